/* Expressions. See tpl_eval.h. */
#include "text/tpl_eval.h"

#include <string.h>

#include "text/tpl_format.h"
#include "text/tpl_ops.h"

enum status tpl_frame_new(struct tpl_run *run, struct tpl_frame *parent, struct tpl_frame **out)
{
	TRY(TPL_NEW(run, *out, 1));
	(*out)->parent = parent;
	if (parent) (*out)->captured = parent->captured;
	return STATUS_OK;
}

enum status tpl_frame_set(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_string *name, struct tpl_value v)
{
	for (size_t i = 0; i < frame->count; i++) {
		if (frame->vars[i].name != name) continue;
		frame->vars[i].value = v;
		return tpl_pay(run, 1);
	}
	if (frame->count == frame->capacity) {
		size_t capacity = frame->capacity ? frame->capacity * 2 : 4;
		struct tpl_var *vars;
		TRY(TPL_NEW(run, vars, capacity));
		if (frame->count) memcpy(vars, frame->vars, frame->count * sizeof *vars);
		frame->vars = vars;
		frame->capacity = capacity;
	}
	frame->vars[frame->count++] = (struct tpl_var){.name = name, .value = v};
	return tpl_pay(run, frame->count / 8 + 1);
}

enum status tpl_name(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_string *name, struct tpl_value *out)
{
	for (; frame; frame = frame->parent) {
		for (size_t i = 0; i < frame->count; i++) {
			if (frame->vars[i].name != name) continue;
			*out = frame->vars[i].value;
			return tpl_pay(run, i / 8 + 1);
		}
		TRY(tpl_pay(run, frame->count / 8 + 1));
	}
	struct tpl_value *given;
	TRY(tpl_dict_get(run, run->context, tpl_string(name), &given));
	if (!given) return tpl_global(run, name, out);
	*out = *given;
	return STATUS_OK;
}

/* ---- parts ---- */

static enum status eval_list(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list, enum tpl_kind kind, struct tpl_value *out)
{
	struct tpl_seq *seq;
	TRY(tpl_seq_new(run, 0, &seq));
	for (; list; list = list->next) {
		struct tpl_value item;
		TRY(tpl_eval(run, frame, list, &item));
		TRY(tpl_seq_push(run, seq, item));
	}
	*out = tpl_seq(kind, seq);
	return STATUS_OK;
}

static enum status eval_dict(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_dict *dict;
	TRY(tpl_dict_new(run, &dict));
	for (const struct tpl_node *key = node->list; key; key = key->next->next) {
		struct tpl_value k, v;
		TRY(tpl_eval(run, frame, key, &k));
		TRY(tpl_eval(run, frame, key->next, &v));
		run->line = key->line;
		TRY(tpl_dict_set(run, dict, k, v));
	}
	*out = (struct tpl_value){.kind = TPL_DICT, .dict = dict};
	return STATUS_OK;
}

static enum status eval_concat(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_text t = {0};
	for (const struct tpl_node *part = node->list; part; part = part->next) {
		struct tpl_value v;
		TRY(tpl_eval(run, frame, part, &v));
		TRY(tpl_text_str(run, &t, v));
	}
	return tpl_text_finish(run, &t, false, out);
}

static enum status eval_compare(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_value left, right;
	bool holds = true;
	TRY(tpl_eval(run, frame, node->a, &left));
	for (const struct tpl_node *operand = node->list; holds && operand; operand = operand->next) {
		TRY(tpl_eval(run, frame, operand->a, &right));
		run->line = operand->line;
		TRY(tpl_compare(run, operand->op, left, right, &holds));
		left = right;
	}
	*out = tpl_bool(holds);
	return STATUS_OK;
}

static enum status eval_slice(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_value object, bounds[3];
	const struct tpl_node *bound = node->list;
	TRY(tpl_eval(run, frame, node->a, &object));
	for (size_t i = 0; i < 3; i++, bound = bound->next) TRY(tpl_eval(run, frame, bound, &bounds[i]));
	run->line = node->line;
	return tpl_slice(run, object, bounds, out);
}

/* ---- arguments ---- */

static enum status add_keyword(struct tpl_run *run, struct tpl_args *args, size_t *capacity, const struct tpl_string *name, struct tpl_value v)
{
	for (size_t i = 0; i < args->keyword_count; i++) {
		const struct tpl_string *other = args->keywords[i].name;
		if (other->size == name->size && memcmp(other->data, name->data, name->size) == 0)
			return FAIL(run->err, BAD_INPUT, "the argument '%.*s' is given twice", name->size < 64 ? (int)name->size : 64, name->data);
	}
	if (args->keyword_count == *capacity) {
		struct tpl_keyword *keywords;
		*capacity = *capacity ? *capacity * 2 : 4;
		TRY(TPL_NEW(run, keywords, *capacity));
		if (args->keyword_count) memcpy(keywords, args->keywords, args->keyword_count * sizeof *keywords);
		args->keywords = keywords;
	}
	args->keywords[args->keyword_count++] = (struct tpl_keyword){.name = name, .value = v};
	return tpl_pay(run, args->keyword_count);
}

static enum status spread_dict(struct tpl_run *run, struct tpl_args *args, size_t *capacity, struct tpl_value v)
{
	if (v.kind != TPL_DICT) return FAIL(run->err, BAD_INPUT, "the value after '**' is a %s, not a dict", tpl_kind_name(v));
	for (size_t i = 0; i < v.dict->count; i++) {
		if (v.dict->pairs[i].key.kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "a key of the dict after '**' is no string");
		TRY(add_keyword(run, args, capacity, v.dict->pairs[i].key.string, v.dict->pairs[i].value));
	}
	return STATUS_OK;
}

static enum status eval_args(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list, struct tpl_args *out)
{
	struct tpl_seq *values;
	size_t capacity = 0;
	*out = (struct tpl_args){0};
	TRY(tpl_seq_new(run, 0, &values));
	for (; list; list = list->next) {
		struct tpl_value v;
		TRY(tpl_eval(run, frame, list->a, &v));
		run->line = list->line;
		if (list->kind == TPL_ARG) TRY(tpl_seq_push(run, values, v));
		else if (list->kind == TPL_ARG_KEYWORD) TRY(add_keyword(run, out, &capacity, list->name, v));
		else if (list->kind == TPL_ARG_DICT) TRY(spread_dict(run, out, &capacity, v));
		else {
			struct tpl_seq *items;
			TRY(tpl_collect(run, v, &items));
			for (size_t i = 0; i < items->count; i++) TRY(tpl_seq_push(run, values, items->items[i]));
		}
	}
	out->values = values->items;
	out->count = values->count;
	return STATUS_OK;
}

/* CALL, FILTER and TEST. */
static enum status eval_application(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_value subject;
	struct tpl_args args;
	bool holds;
	TRY(tpl_eval(run, frame, node->a, &subject));
	TRY(eval_args(run, frame, node->list, &args));
	run->line = node->line;
	if (node->kind == TPL_CALL) TRY(tpl_call(run, subject, &args, out));
	else if (node->kind == TPL_FILTER) TRY(tpl_filter(run, node->name, subject, &args, out));
	else {
		TRY(tpl_test(run, node->name, subject, &args, &holds));
		*out = tpl_bool(holds);
	}
	run->line = node->line; /* a macro has moved it */
	return STATUS_OK;
}

/* Nodes with one or two operands that are always evaluated. */
static enum status eval_operands(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_value a, b = tpl_none();
	TRY(tpl_eval(run, frame, node->a, &a));
	if (node->b) TRY(tpl_eval(run, frame, node->b, &b));
	run->line = node->line;
	switch (node->kind) {
	case TPL_ATTR: return tpl_get_attr(run, a, node->name, out);
	case TPL_ITEM: return tpl_get_item(run, a, b, out);
	case TPL_NOT: *out = tpl_bool(!tpl_truth(a)); return STATUS_OK;
	case TPL_NEGATIVE: return tpl_negate(run, a, out);
	case TPL_POSITIVE: return a.kind == TPL_FLOAT ? (*out = a, STATUS_OK) : tpl_binary(run, '+', tpl_int(0), a, out);
	default: return tpl_binary(run, node->op, a, b, out);
	}
}

static enum status eval_node(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	struct tpl_value v;
	switch (node->kind) {
	case TPL_CONSTANT: *out = node->constant; return STATUS_OK;
	case TPL_NAME: return tpl_name(run, frame, node->name, out);
	case TPL_CAPTURED: *out = frame->captured; return STATUS_OK;
	case TPL_LIST_OF: return eval_list(run, frame, node->list, TPL_LIST, out);
	case TPL_TUPLE_OF: return eval_list(run, frame, node->list, TPL_TUPLE, out);
	case TPL_DICT_OF: return eval_dict(run, frame, node, out);
	case TPL_SLICE: return eval_slice(run, frame, node, out);
	case TPL_CALL:
	case TPL_FILTER:
	case TPL_TEST: return eval_application(run, frame, node, out);
	case TPL_CONCAT: return eval_concat(run, frame, node, out);
	case TPL_COMPARE: return eval_compare(run, frame, node, out);
	case TPL_AND:
	case TPL_OR:
		TRY(tpl_eval(run, frame, node->a, out));
		return tpl_truth(*out) == (node->kind == TPL_AND) ? tpl_eval(run, frame, node->b, out) : STATUS_OK;
	case TPL_CONDITION:
		TRY(tpl_eval(run, frame, node->b, &v));
		if (tpl_truth(v)) return tpl_eval(run, frame, node->a, out);
		if (node->c) return tpl_eval(run, frame, node->c, out);
		*out = tpl_undefined(NULL);
		return STATUS_OK;
	default: return eval_operands(run, frame, node, out);
	}
}

enum status tpl_eval(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out)
{
	TRY(tpl_descend(run));
	run->line = node->line;
	TRY(eval_node(run, frame, node, out));
	run->depth++;
	return STATUS_OK;
}
