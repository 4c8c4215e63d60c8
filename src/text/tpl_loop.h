/* tpl_loop.h: a running for loop and the `loop` variable that shows it. Items are pulled as late as Jinja pulls them: the filter
 * of `for ... if` sees what earlier rounds did, unless last, nextitem or length asked ahead. */
#ifndef TANDEM_TEXT_TPL_LOOP_H
#define TANDEM_TEXT_TPL_LOOP_H

#include "text/tpl_eval.h"

struct tpl_loop {
	struct tpl_iter source;
	const struct tpl_node *node;  /* the FOR: its target and filter */
	struct tpl_frame *test_frame; /* where the filter is evaluated; NULL without one */
	int64_t index0;               /* -1 before the first round */
	struct tpl_value before, current, after;
	bool has_after;       /* `after` was pulled ahead */
	bool has_length;
	size_t length;
	struct tpl_seq *rest; /* pulled ahead, all of it */
	size_t rest_at;
	struct tpl_seq *changed; /* what loop.changed() saw last */
};

enum status tpl_loop_next(struct tpl_run *run, struct tpl_loop *loop, bool *more, struct tpl_value *item) NODISCARD;
enum status tpl_loop_length(struct tpl_run *run, struct tpl_loop *loop, size_t *out) NODISCARD;
enum status tpl_loop_attr(struct tpl_run *run, struct tpl_loop *loop, const struct tpl_string *name, struct tpl_value *out, bool *found) NODISCARD;

#endif
