/* tpl_parse.h: what the two halves of the parser share: statements (tpl_parse.c) and expressions (tpl_parse_expr.c).
 *
 * Recursive descent over the token list, with the grammar of Jinja 3.1. Each level of brackets or blocks pays depth, so the
 * C stack is bounded; chains such as a + b + c are loops here, but become as deep as they are long when evaluated, where the
 * render's depth bounds them.
 */
#ifndef TANDEM_TEXT_TPL_PARSE_H
#define TANDEM_TEXT_TPL_PARSE_H

#include "text/tpl_ast.h"
#include "text/tpl_lex.h"

struct tpl_parser {
	struct tpl_run *run;
	const struct tpl_token *token; /* the current one */
	struct tpl_node *last;
	struct tpl_dict *names; /* interned */
	int loops;              /* FOR bodies around, within the current macro: break and continue need one */
	struct tpl_node *macro; /* the innermost macro around */
};

enum status tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, struct tpl_node **out) NODISCARD;
/* Appends to a list through the pointer to its end. */
void tpl_node_append(struct tpl_node ***end, struct tpl_node *node);

bool tpl_at_op(const struct tpl_parser *p, int op);
bool tpl_at_name(const struct tpl_parser *p, const char *name);
bool tpl_skip_op(struct tpl_parser *p, int op);
bool tpl_skip_name(struct tpl_parser *p, const char *name);
enum status tpl_expect_op(struct tpl_parser *p, int op) NODISCARD;
/* A name of any kind, interned. */
enum status tpl_expect_name(struct tpl_parser *p, const struct tpl_string **out) NODISCARD;
/* BAD_INPUT: this token instead of what was expected. */
enum status tpl_unexpected(struct tpl_parser *p, const char *expected) NODISCARD;

enum status tpl_parse_expression(struct tpl_parser *p, struct tpl_node **out) NODISCARD;
/* One expression, or a tuple without brackets. conditions: `x if y` may stand at its top. */
enum status tpl_parse_tuple(struct tpl_parser *p, bool conditions, struct tpl_node **out) NODISCARD;
/* Names, tuples of names and, if `namespaces`, ns.name; up to `in` or the end of the tag. */
enum status tpl_parse_target(struct tpl_parser *p, bool namespaces, struct tpl_node **out) NODISCARD;
/* `varargs`, `kwargs` or `caller`: in a macro these mean what was not bound to a parameter. */
bool tpl_is_rest_name(const struct tpl_string *name);
/* "name(args)|name..." over `input`; the first name is the current token. */
enum status tpl_parse_filter(struct tpl_parser *p, struct tpl_node *input, struct tpl_node **out) NODISCARD;

#endif
