/* prescreen_text.h: what a prescreen found, as a table for a terminal. */
#ifndef TANDEM_APPS_PRESCREEN_TEXT_H
#define TANDEM_APPS_PRESCREEN_TEXT_H

#include "base/buf.h"
#include "prescreen/results.h"

/* One line a problem, with its best candidate; then why others were rejected. */
enum status prescreen_text(const struct results *results, struct buf *out, struct error *err) NODISCARD;

#endif
