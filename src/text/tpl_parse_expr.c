/* Expressions. See tpl_parse.h. The functions stand in the order of the grammar, loosest first. */
#include <string.h>

#include "text/tpl_ops.h"
#include "text/tpl_parse.h"
#include "text/tpl_text.h"

static enum status parse_unary(struct tpl_parser *p, bool filters, struct tpl_node **out);

static enum status new_pair(struct tpl_parser *p, enum tpl_node_kind kind, int line, struct tpl_node *a, struct tpl_node *b, struct tpl_node **out)
{
	TRY(tpl_node_new(p, kind, out));
	(*out)->line = line;
	(*out)->a = a;
	(*out)->b = b;
	return STATUS_OK;
}

static enum status parse_binary(struct tpl_parser *p, int op, enum status (*operand)(struct tpl_parser *, struct tpl_node **), struct tpl_node **left)
{
	int line = p->token->line;
	struct tpl_node *right;
	p->token++;
	TRY(operand(p, &right));
	TRY(new_pair(p, TPL_BINARY, line, *left, right, left));
	(*left)->op = op;
	return STATUS_OK;
}

static enum status parse_signed(struct tpl_parser *p, struct tpl_node **out)
{
	return parse_unary(p, true, out);
}

static enum status parse_power(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(parse_unary(p, true, out));
	while (tpl_at_op(p, TPL_OP('*', '*'))) TRY(parse_binary(p, TPL_OP('*', '*'), parse_signed, out));
	return STATUS_OK;
}

static enum status parse_product(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(parse_power(p, out));
	while (tpl_at_op(p, '*') || tpl_at_op(p, '/') || tpl_at_op(p, TPL_OP('/', '/')) || tpl_at_op(p, '%'))
		TRY(parse_binary(p, p->token->op, parse_power, out));
	return STATUS_OK;
}

static enum status parse_concat(struct tpl_parser *p, struct tpl_node **out)
{
	struct tpl_node *first, *concat, **end;
	TRY(parse_product(p, &first));
	*out = first;
	if (!tpl_at_op(p, '~')) return STATUS_OK;
	TRY(tpl_node_new(p, TPL_CONCAT, &concat));
	end = &concat->list;
	tpl_node_append(&end, first);
	while (tpl_skip_op(p, '~')) {
		struct tpl_node *operand;
		TRY(parse_product(p, &operand));
		tpl_node_append(&end, operand);
	}
	*out = concat;
	return STATUS_OK;
}

static enum status parse_sum(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(parse_concat(p, out));
	while (tpl_at_op(p, '+') || tpl_at_op(p, '-')) TRY(parse_binary(p, p->token->op, parse_concat, out));
	return STATUS_OK;
}

/* The comparison operator at the current token, skipped; 0 if there is none. */
static int skip_comparison(struct tpl_parser *p)
{
	static const int ops[] = {TPL_OP('=', '='), TPL_OP('!', '='), TPL_OP('<', '='), TPL_OP('>', '='), '<', '>'};
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (tpl_skip_op(p, ops[i])) return ops[i];
	if (tpl_skip_name(p, "in")) return 'i';
	if (!tpl_at_name(p, "not") || p->token[1].kind != TPL_TOKEN_NAME || !tpl_string_is(p->token[1].text.string, "in")) return 0;
	p->token += 2;
	return 'n';
}

static enum status parse_comparison(struct tpl_parser *p, struct tpl_node **out)
{
	struct tpl_node *compare = NULL, **end = NULL;
	TRY(parse_sum(p, out));
	for (;;) {
		int line = p->token->line, op = skip_comparison(p);
		struct tpl_node *right, *operand;
		if (op == 0) break;
		if (!compare) {
			TRY(new_pair(p, TPL_COMPARE, line, *out, NULL, &compare));
			end = &compare->list;
		}
		TRY(parse_sum(p, &right));
		TRY(new_pair(p, TPL_OPERAND, line, right, NULL, &operand));
		operand->op = op;
		tpl_node_append(&end, operand);
	}
	if (compare) *out = compare;
	return STATUS_OK;
}

static enum status parse_not(struct tpl_parser *p, struct tpl_node **out)
{
	int line = p->token->line;
	if (!tpl_skip_name(p, "not")) return parse_comparison(p, out);
	struct tpl_node *operand;
	TRY(tpl_descend(p->run));
	TRY(parse_not(p, &operand));
	p->run->depth++;
	return new_pair(p, TPL_NOT, line, operand, NULL, out);
}

static enum status parse_and(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(parse_not(p, out));
	while (tpl_at_name(p, "and")) {
		int line = p->token++->line;
		struct tpl_node *right;
		TRY(parse_not(p, &right));
		TRY(new_pair(p, TPL_AND, line, *out, right, out));
	}
	return STATUS_OK;
}

static enum status parse_or(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(parse_and(p, out));
	while (tpl_at_name(p, "or")) {
		int line = p->token++->line;
		struct tpl_node *right;
		TRY(parse_and(p, &right));
		TRY(new_pair(p, TPL_OR, line, *out, right, out));
	}
	return STATUS_OK;
}

enum status tpl_parse_expression(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_descend(p->run));
	TRY(parse_or(p, out));
	while (tpl_at_name(p, "if")) {
		int line = p->token++->line;
		struct tpl_node *test;
		TRY(parse_or(p, &test));
		TRY(new_pair(p, TPL_CONDITION, line, *out, test, out));
		if (tpl_skip_name(p, "else")) TRY(tpl_parse_expression(p, &(*out)->c));
	}
	p->run->depth++;
	return STATUS_OK;
}

/* ---- primaries ---- */

static bool at_tuple_end(const struct tpl_parser *p, bool in_ends)
{
	return p->token->kind == TPL_TOKEN_VARIABLE_END || p->token->kind == TPL_TOKEN_BLOCK_END || tpl_at_op(p, ')') || (in_ends && tpl_at_name(p, "in"));
}

enum tuple_of { TUPLE_OF_EXPRESSIONS, TUPLE_WITHOUT_CONDITIONS, TUPLE_OF_TARGETS, TUPLE_OF_NS_TARGETS };

static enum status parse_one_target(struct tpl_parser *p, bool namespaces, struct tpl_node **out);

static enum status parse_tuple_item(struct tpl_parser *p, enum tuple_of of, struct tpl_node **out)
{
	if (of == TUPLE_OF_EXPRESSIONS) return tpl_parse_expression(p, out);
	if (of == TUPLE_WITHOUT_CONDITIONS) return parse_or(p, out);
	return parse_one_target(p, of == TUPLE_OF_NS_TARGETS, out);
}

static enum status parse_tuple(struct tpl_parser *p, enum tuple_of of, bool in_ends, bool bracketed, struct tpl_node **out)
{
	struct tpl_node *first = NULL, **end = &first, *tuple;
	bool commas = false;
	int line = p->token->line;
	for (;;) {
		if (first && !tpl_skip_op(p, ',')) break;
		if (first) commas = true;
		if (at_tuple_end(p, in_ends)) break;
		struct tpl_node *item;
		TRY(parse_tuple_item(p, of, &item));
		tpl_node_append(&end, item);
	}
	*out = first;
	if (first && !commas) return STATUS_OK;
	if (!first && !bracketed) return tpl_unexpected(p, "an expression");
	TRY(tpl_node_new(p, TPL_TUPLE_OF, &tuple));
	tuple->line = line;
	tuple->list = first;
	*out = tuple;
	return STATUS_OK;
}

enum status tpl_parse_tuple(struct tpl_parser *p, bool conditions, struct tpl_node **out)
{
	return parse_tuple(p, conditions ? TUPLE_OF_EXPRESSIONS : TUPLE_WITHOUT_CONDITIONS, false, false, out);
}

static bool is_constant_name(const struct tpl_string *s, struct tpl_value *out)
{
	if (tpl_string_is(s, "true") || tpl_string_is(s, "True")) *out = tpl_bool(true);
	else if (tpl_string_is(s, "false") || tpl_string_is(s, "False")) *out = tpl_bool(false);
	else if (tpl_string_is(s, "none") || tpl_string_is(s, "None")) *out = tpl_none();
	else return false;
	return true;
}

static enum status parse_one_target(struct tpl_parser *p, bool namespaces, struct tpl_node **out)
{
	struct tpl_value constant;
	int line = p->token->line;
	if (tpl_skip_op(p, '(')) {
		TRY(tpl_descend(p->run));
		TRY(parse_tuple(p, TUPLE_OF_TARGETS, false, true, out));
		p->run->depth++;
		return tpl_expect_op(p, ')');
	}
	if (p->token->kind != TPL_TOKEN_NAME || is_constant_name(p->token->text.string, &constant)) return tpl_unexpected(p, "a variable to assign to");
	TRY(tpl_node_new(p, TPL_NAME, out));
	TRY(tpl_expect_name(p, &(*out)->name));
	if (!namespaces || !tpl_skip_op(p, '.')) return STATUS_OK;
	struct tpl_node *name = *out;
	TRY(new_pair(p, TPL_NS_TARGET, line, name, NULL, out));
	return tpl_expect_name(p, &(*out)->name);
}

enum status tpl_parse_target(struct tpl_parser *p, bool namespaces, struct tpl_node **out)
{
	return parse_tuple(p, namespaces ? TUPLE_OF_NS_TARGETS : TUPLE_OF_TARGETS, !namespaces, false, out);
}

static enum status parse_list(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_node_new(p, TPL_LIST_OF, out));
	struct tpl_node **end = &(*out)->list, *item;
	TRY(tpl_expect_op(p, '['));
	while (!tpl_at_op(p, ']')) {
		if ((*out)->list) TRY(tpl_expect_op(p, ','));
		if (tpl_at_op(p, ']')) break;
		TRY(tpl_parse_expression(p, &item));
		tpl_node_append(&end, item);
	}
	return tpl_expect_op(p, ']');
}

static enum status parse_dict(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_node_new(p, TPL_DICT_OF, out));
	struct tpl_node **end = &(*out)->list, *item;
	TRY(tpl_expect_op(p, '{'));
	while (!tpl_at_op(p, '}')) {
		if ((*out)->list) TRY(tpl_expect_op(p, ','));
		if (tpl_at_op(p, '}')) break;
		TRY(tpl_parse_expression(p, &item));
		tpl_node_append(&end, item);
		TRY(tpl_expect_op(p, ':'));
		TRY(tpl_parse_expression(p, &item));
		tpl_node_append(&end, item);
	}
	return tpl_expect_op(p, '}');
}

static enum status parse_constant(struct tpl_parser *p, struct tpl_node **out)
{
	TRY(tpl_node_new(p, TPL_CONSTANT, out));
	(*out)->constant = p->token++->text;
	if ((*out)->constant.kind != TPL_STRING) return STATUS_OK;
	while (p->token->kind == TPL_TOKEN_CONSTANT && p->token->text.kind == TPL_STRING) /* "a" "b" is one string */
		TRY(tpl_binary(p->run, '+', (*out)->constant, p->token++->text, &(*out)->constant));
	return STATUS_OK;
}

bool tpl_is_rest_name(const struct tpl_string *name)
{
	return tpl_string_is(name, "varargs") || tpl_string_is(name, "kwargs") || tpl_string_is(name, "caller");
}

static enum status parse_primary(struct tpl_parser *p, struct tpl_node **out)
{
	struct tpl_value constant;
	if (p->token->kind == TPL_TOKEN_NAME) {
		if (is_constant_name(p->token->text.string, &constant)) {
			TRY(tpl_node_new(p, TPL_CONSTANT, out));
			(*out)->constant = constant;
			p->token++;
			return STATUS_OK;
		}
		TRY(tpl_node_new(p, TPL_NAME, out));
		TRY(tpl_expect_name(p, &(*out)->name));
		if (p->macro && tpl_is_rest_name((*out)->name)) p->macro->takes_rest = true; /* refused when it is called */
		return STATUS_OK;
	}
	if (p->token->kind == TPL_TOKEN_CONSTANT) return parse_constant(p, out);
	if (tpl_at_op(p, '[')) return parse_list(p, out);
	if (tpl_at_op(p, '{')) return parse_dict(p, out);
	if (!tpl_skip_op(p, '(')) return tpl_unexpected(p, "an expression");
	TRY(parse_tuple(p, TUPLE_OF_EXPRESSIONS, false, true, out));
	return tpl_expect_op(p, ')');
}

/* ---- what follows a primary ---- */

static enum status parse_argument(struct tpl_parser *p, enum tpl_node_kind *most, struct tpl_node **out)
{
	enum tpl_node_kind kind = TPL_ARG;
	TRY(tpl_node_new(p, TPL_ARG, out));
	if (tpl_skip_op(p, '*')) kind = TPL_ARG_LIST;
	else if (tpl_skip_op(p, TPL_OP('*', '*'))) kind = TPL_ARG_DICT;
	else if (p->token->kind == TPL_TOKEN_NAME && p->token[1].kind == TPL_TOKEN_OPERATOR && p->token[1].op == '=') {
		kind = TPL_ARG_KEYWORD;
		TRY(tpl_expect_name(p, &(*out)->name));
		p->token++;
	}
	bool ordered = kind == TPL_ARG           ? *most == TPL_ARG
	               : kind == TPL_ARG_KEYWORD ? *most != TPL_ARG_DICT
	               : kind == TPL_ARG_LIST    ? *most == TPL_ARG || *most == TPL_ARG_KEYWORD
	                                         : *most != TPL_ARG_DICT;
	if (!ordered) return FAIL(p->run->err, BAD_INPUT, "the arguments of a call are not in order");
	if (kind != TPL_ARG_KEYWORD || *most == TPL_ARG) *most = kind;
	(*out)->kind = kind;
	return tpl_parse_expression(p, &(*out)->a);
}

static enum status parse_arguments(struct tpl_parser *p, struct tpl_node **out)
{
	struct tpl_node **end = out, *argument;
	enum tpl_node_kind most = TPL_ARG;
	*out = NULL;
	TRY(tpl_expect_op(p, '('));
	while (!tpl_at_op(p, ')')) {
		if (*out) TRY(tpl_expect_op(p, ','));
		if (*out && tpl_at_op(p, ')')) break;
		TRY(parse_argument(p, &most, &argument));
		tpl_node_append(&end, argument);
	}
	return tpl_expect_op(p, ')');
}

static enum status parse_bound(struct tpl_parser *p, struct tpl_node ***end)
{
	struct tpl_node *bound;
	if (tpl_at_op(p, ':') || tpl_at_op(p, ']') || tpl_at_op(p, ',')) {
		TRY(tpl_node_new(p, TPL_CONSTANT, &bound));
		bound->constant = tpl_none();
	} else TRY(tpl_parse_expression(p, &bound));
	tpl_node_append(end, bound);
	return STATUS_OK;
}

static enum status parse_subscript(struct tpl_parser *p, struct tpl_node **node)
{
	int line = p->token++->line; /* [ */
	struct tpl_node *first = NULL, **end = &first, *made;
	bool none = tpl_at_op(p, ']'); /* x[] is x[()] */
	if (!none) TRY(parse_bound(p, &end));
	if (!tpl_at_op(p, ':')) {
		if (none || tpl_at_op(p, ',')) { /* a tuple as the key */
			struct tpl_node *tuple;
			TRY(tpl_node_new(p, TPL_TUPLE_OF, &tuple));
			tuple->list = first;
			while (tpl_skip_op(p, ',')) TRY(parse_bound(p, &end));
			if (tpl_at_op(p, ':')) return FAIL(p->run->err, UNSUPPORTED, "slices in a tuple of subscripts are not implemented");
			first = tuple;
		}
		TRY(new_pair(p, TPL_ITEM, line, *node, first, node));
		return tpl_expect_op(p, ']');
	}
	p->token++;
	TRY(parse_bound(p, &end));
	if (tpl_skip_op(p, ':')) TRY(parse_bound(p, &end));
	else {
		struct tpl_node *step;
		TRY(tpl_node_new(p, TPL_CONSTANT, &step));
		step->constant = tpl_none();
		tpl_node_append(&end, step);
	}
	if (tpl_at_op(p, ',')) return FAIL(p->run->err, UNSUPPORTED, "slices in a tuple of subscripts are not implemented");
	TRY(new_pair(p, TPL_SLICE, line, *node, NULL, &made));
	made->list = first;
	*node = made;
	return tpl_expect_op(p, ']');
}

static enum status parse_dot(struct tpl_parser *p, struct tpl_node **node)
{
	int line = p->token++->line;
	if (p->token->kind == TPL_TOKEN_CONSTANT && p->token->text.kind == TPL_INT) {
		struct tpl_node *index;
		TRY(parse_constant(p, &index));
		return new_pair(p, TPL_ITEM, line, *node, index, node);
	}
	TRY(new_pair(p, TPL_ATTR, line, *node, NULL, node));
	return tpl_expect_name(p, &(*node)->name);
}

static enum status parse_call(struct tpl_parser *p, struct tpl_node **node)
{
	struct tpl_node *call;
	TRY(new_pair(p, TPL_CALL, p->token->line, *node, NULL, &call));
	TRY(parse_arguments(p, &call->list));
	*node = call;
	return STATUS_OK;
}

static enum status parse_postfix(struct tpl_parser *p, struct tpl_node **node)
{
	for (;;) {
		if (tpl_at_op(p, '.')) TRY(parse_dot(p, node));
		else if (tpl_at_op(p, '[')) TRY(parse_subscript(p, node));
		else if (tpl_at_op(p, '(')) TRY(parse_call(p, node));
		else return STATUS_OK;
	}
}

/* The name of a filter or test; dots belong to it. Whether it exists is asked when it is used. */
static enum status parse_dotted(struct tpl_parser *p, const struct tpl_string **out)
{
	TRY(tpl_expect_name(p, out));
	while (tpl_skip_op(p, '.')) {
		struct tpl_text t = {0};
		const struct tpl_string *more;
		struct tpl_value name;
		TRY(tpl_expect_name(p, &more));
		TRY(tpl_text_string(p->run, &t, *out));
		TRY(tpl_text_puts(p->run, &t, "."));
		TRY(tpl_text_string(p->run, &t, more));
		TRY(tpl_text_finish(p->run, &t, false, &name));
		*out = name.string;
	}
	return STATUS_OK;
}

static enum status parse_test(struct tpl_parser *p, struct tpl_node **node)
{
	int line = p->token++->line; /* is */
	bool negated = tpl_skip_name(p, "not");
	struct tpl_node *test, *argument;
	TRY(new_pair(p, TPL_TEST, line, *node, NULL, &test));
	TRY(parse_dotted(p, &test->name));
	if (tpl_at_op(p, '(')) TRY(parse_arguments(p, &test->list));
	else if (p->token->kind == TPL_TOKEN_CONSTANT || tpl_at_op(p, '[') || tpl_at_op(p, '{') ||
	         (p->token->kind == TPL_TOKEN_NAME && !tpl_at_name(p, "else") && !tpl_at_name(p, "or") && !tpl_at_name(p, "and"))) {
		if (tpl_at_name(p, "is")) return FAIL(p->run->err, BAD_INPUT, "tests cannot be chained with 'is'");
		TRY(tpl_node_new(p, TPL_ARG, &argument));
		TRY(parse_primary(p, &argument->a));
		TRY(parse_postfix(p, &argument->a));
		test->list = argument;
	}
	*node = test;
	return negated ? new_pair(p, TPL_NOT, line, test, NULL, node) : STATUS_OK;
}

enum status tpl_parse_filter(struct tpl_parser *p, struct tpl_node *input, struct tpl_node **out)
{
	*out = input;
	do {
		struct tpl_node *filter;
		TRY(new_pair(p, TPL_FILTER, p->token->line, *out, NULL, &filter));
		TRY(parse_dotted(p, &filter->name));
		if (tpl_at_op(p, '(')) TRY(parse_arguments(p, &filter->list));
		*out = filter;
	} while (tpl_skip_op(p, '|'));
	return STATUS_OK;
}

static enum status parse_filters(struct tpl_parser *p, struct tpl_node **node)
{
	for (;;) {
		if (tpl_skip_op(p, '|')) TRY(tpl_parse_filter(p, *node, node));
		else if (tpl_at_name(p, "is")) TRY(parse_test(p, node));
		else if (tpl_at_op(p, '(')) TRY(parse_call(p, node));
		else return STATUS_OK;
	}
}

static enum status parse_unary(struct tpl_parser *p, bool filters, struct tpl_node **out)
{
	int line = p->token->line;
	bool minus = tpl_at_op(p, '-');
	if (minus || tpl_at_op(p, '+')) {
		struct tpl_node *operand;
		p->token++;
		TRY(tpl_descend(p->run));
		TRY(parse_unary(p, false, &operand));
		p->run->depth++;
		TRY(new_pair(p, minus ? TPL_NEGATIVE : TPL_POSITIVE, line, operand, NULL, out));
	} else TRY(parse_primary(p, out));
	TRY(parse_postfix(p, out));
	return filters ? parse_filters(p, out) : STATUS_OK;
}
