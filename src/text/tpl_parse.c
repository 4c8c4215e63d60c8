/* Statements. See tpl_parse.h. */
#include "text/tpl_parse.h"

#include <stdio.h>
#include <string.h>


enum status tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, struct tpl_node **out)
{
	TRY(TPL_NEW(p->run, *out, 1));
	**out = (struct tpl_node){.kind = kind, .line = p->token->line, .all = p->last};
	p->last = *out;
	p->run->line = p->token->line;
	return tpl_pay(p->run, 1);
}

void tpl_node_append(struct tpl_node ***end, struct tpl_node *node)
{
	**end = node;
	*end = &node->next;
}

/* ---- tokens ---- */

bool tpl_at_op(const struct tpl_parser *p, int op)
{
	return p->token->kind == TPL_TOKEN_OPERATOR && p->token->op == op;
}

bool tpl_at_name(const struct tpl_parser *p, const char *name)
{
	return p->token->kind == TPL_TOKEN_NAME && tpl_string_is(p->token->text.string, name);
}

bool tpl_skip_op(struct tpl_parser *p, int op)
{
	bool there = tpl_at_op(p, op);
	p->token += there;
	return there;
}

bool tpl_skip_name(struct tpl_parser *p, const char *name)
{
	bool there = tpl_at_name(p, name);
	p->token += there;
	return there;
}

enum status tpl_unexpected(struct tpl_parser *p, const char *expected)
{
	char got[64];
	const struct tpl_token *t = p->token;
	switch (t->kind) {
	case TPL_TOKEN_NAME: snprintf(got, sizeof got, "'%.*s'", t->text.string->size < 48 ? (int)t->text.string->size : 48, t->text.string->data); break;
	case TPL_TOKEN_OPERATOR: snprintf(got, sizeof got, "'%c%s'", t->op & 0xFF, t->op >> 8 == '=' ? "=" : t->op >> 8 == '*' ? "*" : t->op >> 8 ? "/" : ""); break;
	case TPL_TOKEN_CONSTANT: snprintf(got, sizeof got, "a constant"); break;
	case TPL_TOKEN_END: snprintf(got, sizeof got, "the end of the template"); break;
	default: snprintf(got, sizeof got, t->kind == TPL_TOKEN_DATA ? "text" : "the %s of a tag", t->kind == TPL_TOKEN_BLOCK_END || t->kind == TPL_TOKEN_VARIABLE_END ? "end" : "start"); break;
	}
	p->run->line = t->line;
	return FAIL(p->run->err, BAD_INPUT, "expected %s, got %s", expected, got);
}

enum status tpl_expect_op(struct tpl_parser *p, int op)
{
	char name[] = {'\'', (char)op, '\'', 0};
	if (!tpl_at_op(p, op)) return tpl_unexpected(p, name);
	p->token++;
	return STATUS_OK;
}

enum status tpl_expect_name(struct tpl_parser *p, const struct tpl_string **out)
{
	struct tpl_value *known;
	if (p->token->kind != TPL_TOKEN_NAME) return tpl_unexpected(p, "a name");
	struct tpl_value name = p->token++->text;
	TRY(tpl_dict_get(p->run, p->names, name, &known));
	if (!known) TRY(tpl_dict_set(p->run, p->names, name, name));
	*out = known ? known->string : name.string;
	return STATUS_OK;
}

static enum status expect_end_of_tag(struct tpl_parser *p)
{
	if (p->token->kind != TPL_TOKEN_BLOCK_END) return tpl_unexpected(p, "the end of the tag");
	p->token++;
	return STATUS_OK;
}

/* ---- blocks ---- */

static const struct tpl_string loop_name = {.data = "loop", .size = 4, .chars = 4}; /* the interned one of every template */

static enum status parse_statement(struct tpl_parser *p, struct tpl_node **out);

static bool at_any(const struct tpl_parser *p, const char *const *ends)
{
	for (; *ends; ends++)
		if (tpl_at_name(p, *ends)) return true;
	return false;
}

/* Text, variables and statements up to a tag of `ends` (NULL: up to the end of the template); stops at the name in that tag. */
static enum status parse_body(struct tpl_parser *p, const char *const *ends, struct tpl_node **out)
{
	struct tpl_node **end = out, *output = NULL, **items = NULL, *node;
	*out = NULL;
	while (p->token->kind != TPL_TOKEN_END) {
		if (p->token->kind == TPL_TOKEN_BLOCK_BEGIN) {
			output = NULL;
			p->token++;
			if (ends && at_any(p, ends)) return STATUS_OK;
			TRY(parse_statement(p, &node));
			tpl_node_append(&end, node);
			TRY(expect_end_of_tag(p));
			continue;
		}
		if (!output) {
			TRY(tpl_node_new(p, TPL_OUTPUT, &output));
			items = &output->list;
			tpl_node_append(&end, output);
		}
		if (p->token->kind == TPL_TOKEN_DATA) {
			TRY(tpl_node_new(p, TPL_CONSTANT, &node));
			node->constant = p->token++->text;
		} else {
			p->token++; /* {{ */
			TRY(tpl_parse_tuple(p, true, &node));
			if (p->token->kind != TPL_TOKEN_VARIABLE_END) return tpl_unexpected(p, "'}}'");
			p->token++;
		}
		tpl_node_append(&items, node);
	}
	return ends ? tpl_unexpected(p, *ends) : STATUS_OK;
}

/* The end of a tag, and the body it opens. */
static enum status parse_block(struct tpl_parser *p, const char *const *ends, struct tpl_node **out)
{
	(void)tpl_skip_op(p, ':');
	TRY(expect_end_of_tag(p));
	return parse_body(p, ends, out);
}

static enum status parse_if(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endif", "elif", "else", NULL}, *const last[] = {"endif", NULL};
	struct tpl_node **place = out;
	for (;;) { /* an elif is an if in the else of the one before */
		struct tpl_node *node;
		TRY(tpl_node_new(p, TPL_IF, &node));
		*place = node;
		place = &node->other;
		p->token++;
		TRY(tpl_parse_tuple(p, false, &node->a));
		TRY(parse_block(p, ends, &node->list));
		if (!tpl_at_name(p, "elif")) break;
	}
	if (tpl_skip_name(p, "else")) TRY(parse_block(p, last, place));
	p->token++;
	return STATUS_OK;
}

static enum status parse_for(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
	TRY(tpl_node_new(p, TPL_FOR, out));
	struct tpl_node *node = *out;
	node->name = &loop_name;
	p->token++;
	TRY(tpl_parse_target(p, false, &node->a));
	if (!tpl_skip_name(p, "in")) return tpl_unexpected(p, "'in'");
	TRY(tpl_parse_tuple(p, false, &node->b));
	if (tpl_skip_name(p, "if")) TRY(tpl_parse_expression(p, &node->c));
	if (tpl_at_name(p, "recursive")) return FAIL(p->run->err, UNSUPPORTED, "'recursive' in a 'for' is not implemented");
	p->loops++;
	TRY(parse_block(p, ends, &node->list));
	p->loops--;
	if (tpl_skip_name(p, "else")) TRY(parse_block(p, last, &node->other));
	p->token++;
	return STATUS_OK;
}

static enum status parse_set(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endset", NULL};
	TRY(tpl_node_new(p, TPL_SET, out));
	struct tpl_node *node = *out;
	p->token++;
	TRY(tpl_parse_target(p, true, &node->a));
	if (tpl_skip_op(p, '=')) return tpl_parse_tuple(p, true, &node->b);
	node->kind = TPL_SET_BLOCK;
	TRY(tpl_node_new(p, TPL_CAPTURED, &node->b));
	if (tpl_skip_op(p, '|')) TRY(tpl_parse_filter(p, node->b, &node->b));
	TRY(parse_block(p, ends, &node->list));
	p->token++;
	return STATUS_OK;
}

static enum status parse_filter_block(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endfilter", NULL};
	struct tpl_node *captured;
	TRY(tpl_node_new(p, TPL_FILTER_BLOCK, out));
	p->token++;
	TRY(tpl_node_new(p, TPL_CAPTURED, &captured));
	TRY(tpl_parse_filter(p, captured, &(*out)->a));
	TRY(parse_block(p, ends, &(*out)->list));
	p->token++;
	return STATUS_OK;
}

static enum status parse_with(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endwith", NULL};
	TRY(tpl_node_new(p, TPL_WITH, out));
	struct tpl_node **end = &(*out)->other, *node;
	p->token++;
	while (p->token->kind != TPL_TOKEN_BLOCK_END) {
		if ((*out)->other) TRY(tpl_expect_op(p, ','));
		TRY(tpl_node_new(p, TPL_NAME, &node));
		TRY(tpl_expect_name(p, &node->name));
		tpl_node_append(&end, node);
		TRY(tpl_expect_op(p, '='));
		TRY(tpl_parse_expression(p, &node));
		tpl_node_append(&end, node);
	}
	TRY(parse_block(p, ends, &(*out)->list));
	p->token++;
	return STATUS_OK;
}

static enum status parse_parameters(struct tpl_parser *p, struct tpl_node **out)
{
	struct tpl_node **end = out, *parameter;
	bool defaults = false;
	*out = NULL;
	TRY(tpl_expect_op(p, '('));
	while (!tpl_at_op(p, ')')) {
		if (*out) TRY(tpl_expect_op(p, ','));
		TRY(tpl_node_new(p, TPL_PARAMETER, &parameter));
		TRY(tpl_expect_name(p, &parameter->name));
		tpl_node_append(&end, parameter);
		if (tpl_skip_op(p, '=')) TRY(tpl_parse_expression(p, &parameter->a));
		else if (defaults) return FAIL(p->run->err, BAD_INPUT, "a parameter without a default after one that has one");
		defaults = parameter->a != NULL;
	}
	return tpl_expect_op(p, ')');
}

static enum status parse_macro(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endmacro", NULL};
	TRY(tpl_node_new(p, TPL_MACRO_DEF, out));
	struct tpl_node *node = *out, *around = p->macro;
	int loops = p->loops;
	p->token++;
	TRY(tpl_expect_name(p, &node->name));
	p->macro = node;
	p->loops = 0;
	TRY(parse_parameters(p, &node->other));
	TRY(parse_block(p, ends, &node->list));
	for (const struct tpl_node *parameter = node->other; parameter; parameter = parameter->next)
		if (tpl_is_rest_name(parameter->name)) node->takes_rest = false; /* then it is a name like any other */
	p->macro = around;
	p->loops = loops;
	p->token++;
	return STATUS_OK;
}

static enum status parse_generation(struct tpl_parser *p, struct tpl_node **out)
{
	static const char *const ends[] = {"endgeneration", NULL};
	int loops = p->loops;
	TRY(tpl_node_new(p, TPL_SCOPE, out));
	p->token++;
	p->loops = 0;
	TRY(parse_block(p, ends, &(*out)->list));
	p->loops = loops;
	p->token++;
	return STATUS_OK;
}

static enum status parse_print(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_node_new(p, TPL_OUTPUT, out));
	struct tpl_node **end = &(*out)->list, *node;
	p->token++;
	while (p->token->kind != TPL_TOKEN_BLOCK_END) {
		if ((*out)->list) TRY(tpl_expect_op(p, ','));
		TRY(tpl_parse_expression(p, &node));
		tpl_node_append(&end, node);
	}
	return STATUS_OK;
}

static enum status parse_jump(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_node_new(p, tpl_at_name(p, "break") ? TPL_BREAK : TPL_CONTINUE, out));
	if (p->loops == 0) return FAIL(p->run->err, BAD_INPUT, "'break' or 'continue' outside a loop");
	p->token++;
	return STATUS_OK;
}

static enum status parse_statement(struct tpl_parser *p, struct tpl_node **out)
{
	static const struct {
		const char *name;
		enum status (*parse)(struct tpl_parser *, struct tpl_node **);
	} tags[] = {{"if", parse_if},       {"for", parse_for},         {"set", parse_set},     {"macro", parse_macro},
	            {"break", parse_jump},  {"continue", parse_jump},   {"filter", parse_filter_block},
	            {"with", parse_with},   {"generation", parse_generation}, {"print", parse_print}};
	p->run->line = p->token->line;
	if (p->token->kind != TPL_TOKEN_NAME) return tpl_unexpected(p, "the name of a tag");
	for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
		if (!tpl_at_name(p, tags[i].name)) continue;
		TRY(tpl_descend(p->run));
		TRY(tags[i].parse(p, out));
		p->run->depth++;
		return STATUS_OK;
	}
	const struct tpl_string *name = p->token->text.string;
	return FAIL(p->run->err, UNSUPPORTED, "the tag '%.*s' is not known here", name->size < 64 ? (int)name->size : 64, name->data);
}

enum status tpl_parse(struct tpl_run *run, const char *source, size_t n, struct tpl_node **body, struct tpl_node **last)
{
	struct tpl_parser p = {.run = run};
	struct tpl_token *tokens;
	size_t count;
	TRY(tpl_lex(run, source, n, &tokens, &count));
	p.token = tokens;
	TRY(tpl_dict_new(run, &p.names));
	TRY(tpl_dict_set(run, p.names, tpl_string(&loop_name), tpl_string(&loop_name)));
	TRY(parse_body(&p, NULL, body));
	*last = p.last;
	return STATUS_OK;
}
