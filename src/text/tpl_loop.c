#include "text/tpl_loop.h"

#include "text/tpl_method.h"
#include "text/tpl_ops.h"

/* The next item of the source that passes the filter. */
static enum status pull(struct tpl_run *run, struct tpl_loop *loop, bool *more, struct tpl_value *item)
{
	if (loop->rest) {
		*more = loop->rest_at < loop->rest->count;
		if (*more) *item = loop->rest->items[loop->rest_at++];
		return STATUS_OK;
	}
	for (;;) {
		struct tpl_value passes;
		TRY(tpl_iter_next(run, &loop->source, more, item));
		if (!*more || !loop->node->c) return STATUS_OK;
		loop->test_frame->count = 0;
		TRY(tpl_assign(run, loop->test_frame, loop->node->a, *item));
		TRY(tpl_eval(run, loop->test_frame, loop->node->c, &passes));
		if (tpl_truth(passes)) return STATUS_OK;
	}
}

enum status tpl_loop_next(struct tpl_run *run, struct tpl_loop *loop, bool *more, struct tpl_value *item)
{
	*more = true;
	if (loop->has_after) *item = loop->after;
	else TRY(pull(run, loop, more, item));
	loop->has_after = false;
	if (!*more) return STATUS_OK;
	loop->index0++;
	loop->before = loop->current;
	loop->current = *item;
	return STATUS_OK;
}

static enum status peek(struct tpl_run *run, struct tpl_loop *loop, bool *more)
{
	*more = true;
	if (loop->has_after) return STATUS_OK;
	TRY(pull(run, loop, more, &loop->after));
	loop->has_after = *more;
	return STATUS_OK;
}

enum status tpl_loop_length(struct tpl_run *run, struct tpl_loop *loop, size_t *out)
{
	if (!loop->has_length && (loop->node->c || !tpl_length(loop->source.of, &loop->length))) {
		struct tpl_seq *rest;
		TRY(tpl_seq_new(run, 0, &rest));
		for (;;) {
			bool more;
			struct tpl_value item;
			TRY(pull(run, loop, &more, &item));
			if (!more) break;
			TRY(tpl_seq_push(run, rest, item));
		}
		loop->length = rest->count + (size_t)(loop->index0 + 1) + loop->has_after;
		loop->rest = rest;
		loop->rest_at = 0;
	}
	loop->has_length = true;
	*out = loop->length;
	return STATUS_OK;
}

static enum status loop_cycle(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	if (got->all->count == 0) return FAIL(run->err, BAD_INPUT, "loop.cycle has nothing to choose from");
	*out = got->all->values[(size_t)self.loop->index0 % got->all->count];
	return STATUS_OK;
}

static enum status loop_changed(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	struct tpl_loop *loop = self.loop;
	struct tpl_seq now = {.items = got->all->values, .count = got->all->count};
	bool same = false;
	if (loop->changed) TRY(tpl_equal(run, tpl_seq(TPL_TUPLE, loop->changed), tpl_seq(TPL_TUPLE, &now), &same));
	if (!same) {
		TRY(TPL_NEW(run, loop->changed, 1));
		*loop->changed = now;
	}
	*out = tpl_bool(!same);
	return STATUS_OK;
}

enum status tpl_loop_attr(struct tpl_run *run, struct tpl_loop *loop, const struct tpl_string *name, struct tpl_value *out, bool *found)
{
	static const struct tpl_function methods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}};
	static const char *const named[] = {"index0", "index", "first", "last", "previtem", "nextitem", "length", "revindex", "revindex0", "depth", "depth0"};
	size_t which = 0, length;
	bool more;
	while (which < sizeof named / sizeof *named && !tpl_string_is(name, named[which])) which++;
	*found = true;
	switch (which) {
	case 0:
	case 1: *out = tpl_int(loop->index0 + (int64_t)which); return STATUS_OK;
	case 2: *out = tpl_bool(loop->index0 == 0); return STATUS_OK;
	case 3:
		TRY(peek(run, loop, &more));
		*out = tpl_bool(!more);
		return STATUS_OK;
	case 4: *out = loop->index0 > 0 ? loop->before : tpl_undefined(NULL); return STATUS_OK;
	case 5:
		TRY(peek(run, loop, &more));
		*out = more ? loop->after : tpl_undefined(NULL);
		return STATUS_OK;
	case 6:
	case 7:
	case 8:
		TRY(tpl_loop_length(run, loop, &length));
		*out = tpl_int(which == 6 ? (int64_t)length : (int64_t)length - loop->index0 - (which == 8));
		return STATUS_OK;
	case 9:
	case 10: *out = tpl_int(which == 9); return STATUS_OK;
	default: break;
	}
	const struct tpl_function *method = tpl_function_find(methods, 2, name);
	*found = method != NULL;
	return method ? tpl_method_bind(run, (struct tpl_value){.kind = TPL_LOOP, .loop = loop}, method, out) : STATUS_OK;
}
