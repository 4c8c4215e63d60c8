/* explain.h: --explain-dispatch: which kernel each linear of the steps took, and why, as a table and as JSON. Main thread only. */
#ifndef TANDEM_APPS_EXPLAIN_H
#define TANDEM_APPS_EXPLAIN_H

#include "apps/session.h"

/* Appends the table of what ran; every: also what was recorded and has not run yet. */
enum status explain_text(const struct session *session, bool every, struct buf *out, struct error *err) NODISCARD;
/* A new list of what ran; *out is the caller's. */
enum status explain_json(const struct session *session, json_t **out, struct error *err) NODISCARD;
/* Steps of 1, 2, 4, ... and max_sequences rows and one of a long prompt, with made-up requests, so that the table has what a server will need. They count
 * in its statistics. */
enum status explain_rehearse(const struct session *session, struct error *err) NODISCARD;

#endif
