/* Statements. See tpl_eval.h. */
#include "text/tpl_eval.h"
#include "text/tpl_format.h"
#include "text/tpl_loop.h"
#include "text/tpl_ops.h"

static enum status assign_tuple(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *target, struct tpl_value v)
{
	struct tpl_seq *items;
	size_t wanted = 0;
	TRY(tpl_collect(run, v, &items));
	for (const struct tpl_node *part = target->list; part; part = part->next) wanted++;
	if (items->count != wanted) return FAIL(run->err, BAD_INPUT, "%zu values for %zu variables", items->count, wanted);
	const struct tpl_node *part = target->list;
	for (size_t i = 0; i < wanted; i++, part = part->next) TRY(tpl_assign(run, frame, part, items->items[i]));
	return STATUS_OK;
}

enum status tpl_assign(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *target, struct tpl_value v)
{
	struct tpl_value space;
	if (target->kind == TPL_NAME) return tpl_frame_set(run, frame, target->name, v);
	if (target->kind == TPL_TUPLE_OF) return assign_tuple(run, frame, target, v);
	TRY(tpl_name(run, frame, target->a->name, &space));
	if (space.kind != TPL_NAMESPACE) return FAIL(run->err, BAD_INPUT, "an attribute is set on a %s, not on a namespace", tpl_kind_name(space));
	return tpl_dict_set(run, space.dict, tpl_string(target->name), v);
}

enum status tpl_exec_captured(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list, struct tpl_value *out)
{
	struct tpl_text text = {0}, *around = run->out;
	run->out = &text;
	enum status st = tpl_exec(run, frame, list);
	run->out = around;
	TRY(st);
	return tpl_text_finish(run, &text, false, out);
}

static enum status exec_output(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	for (const struct tpl_node *part = node->list; part; part = part->next) {
		struct tpl_value v;
		TRY(tpl_eval(run, frame, part, &v));
		TRY(tpl_text_str(run, run->out, v));
	}
	return STATUS_OK;
}

static enum status exec_if(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	for (; node && node->kind == TPL_IF; node = node->other) { /* elif by elif */
		struct tpl_value v;
		TRY(tpl_eval(run, frame, node->a, &v));
		if (tpl_truth(v)) return tpl_exec(run, frame, node->list);
		if (node->other && (node->other->next || node->other->kind != TPL_IF)) break; /* the body of an else */
	}
	return node ? tpl_exec(run, frame, node->other) : STATUS_OK;
}

static enum status exec_rounds(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_loop *loop, bool *finished)
{
	struct tpl_value item, self = {.kind = TPL_LOOP, .loop = loop};
	*finished = false;
	for (;;) {
		bool more;
		TRY(tpl_loop_next(run, loop, &more, &item));
		if (!more) return STATUS_OK;
		frame->count = 0;
		TRY(tpl_frame_set(run, frame, node->name, self));
		TRY(tpl_assign(run, frame, node->a, item));
		TRY(tpl_exec(run, frame, node->list));
		enum tpl_flow flow = run->flow;
		run->flow = TPL_FLOW_NEXT;
		if (flow == TPL_FLOW_BREAK) return STATUS_OK;
		if (flow == TPL_FLOW_NEXT) *finished = true; /* Jinja's else looks at rounds that came to their end */
	}
}

static enum status exec_for(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	struct tpl_value over;
	struct tpl_loop *loop;
	struct tpl_frame *body;
	bool finished;
	TRY(tpl_eval(run, frame, node->b, &over));
	TRY(TPL_NEW(run, loop, 1));
	loop->node = node;
	loop->index0 = -1;
	TRY(tpl_iter_init(run, over, &loop->source));
	if (node->c) TRY(tpl_frame_new(run, frame, &loop->test_frame));
	TRY(tpl_frame_new(run, frame, &body));
	TRY(exec_rounds(run, body, node, loop, &finished));
	if (finished || !node->other) return STATUS_OK;
	TRY(tpl_frame_new(run, frame, &body));
	return tpl_exec(run, body, node->other);
}

/* A block whose text is caught: `set` assigns it, `filter` writes it. */
static enum status exec_capture(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	struct tpl_frame *inner;
	struct tpl_value v;
	TRY(tpl_frame_new(run, frame, &inner));
	TRY(tpl_exec_captured(run, inner, node->list, &v));
	if (run->flow != TPL_FLOW_NEXT) return STATUS_OK; /* a break drops what was caught */
	TRY(tpl_frame_new(run, frame, &inner));
	inner->captured = v;
	TRY(tpl_eval(run, inner, node->kind == TPL_SET_BLOCK ? node->b : node->a, &v));
	if (node->kind == TPL_SET_BLOCK) return tpl_assign(run, frame, node->a, v);
	if (v.kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "the filter of a filter block gives a %s, not a str", tpl_kind_name(v));
	return tpl_text_string(run, run->out, v.string);
}

static enum status exec_with(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	struct tpl_frame *inner;
	TRY(tpl_frame_new(run, frame, &inner));
	for (const struct tpl_node *target = node->other; target; target = target->next->next) {
		struct tpl_value v;
		TRY(tpl_eval(run, frame, target->next, &v));
		TRY(tpl_assign(run, inner, target, v));
	}
	return tpl_exec(run, inner, node->list);
}

static enum status exec_macro(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	struct tpl_macro *macro;
	TRY(TPL_NEW(run, macro, 1));
	*macro = (struct tpl_macro){.node = node, .frame = frame};
	return tpl_frame_set(run, frame, node->name, (struct tpl_value){.kind = TPL_MACRO, .macro = macro});
}

static enum status exec_node(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node)
{
	struct tpl_value v;
	struct tpl_frame *inner;
	switch (node->kind) {
	case TPL_OUTPUT: return exec_output(run, frame, node);
	case TPL_IF: return exec_if(run, frame, node);
	case TPL_FOR: return exec_for(run, frame, node);
	case TPL_SET:
		TRY(tpl_eval(run, frame, node->b, &v));
		return tpl_assign(run, frame, node->a, v);
	case TPL_SET_BLOCK:
	case TPL_FILTER_BLOCK: return exec_capture(run, frame, node);
	case TPL_WITH: return exec_with(run, frame, node);
	case TPL_SCOPE:
		TRY(tpl_frame_new(run, frame, &inner));
		return tpl_exec(run, inner, node->list);
	case TPL_MACRO_DEF: return exec_macro(run, frame, node);
	case TPL_BREAK: run->flow = TPL_FLOW_BREAK; return STATUS_OK;
	default: run->flow = TPL_FLOW_CONTINUE; return STATUS_OK;
	}
}

enum status tpl_exec(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list)
{
	TRY(tpl_descend(run));
	for (; list && run->flow == TPL_FLOW_NEXT; list = list->next) {
		run->line = list->line;
		TRY(tpl_pay(run, 1));
		TRY(exec_node(run, frame, list));
	}
	run->depth++;
	return STATUS_OK;
}
