/* tpl_eval.h: evaluating expressions and executing statements.
 *
 * Scopes are frames. As in Jinja, a loop round, a macro, a block of set, filter, with or generation has its own; `if` has none. A
 * name is looked for from the inside out, then among the variables of the caller, then among the built-ins.
 */
#ifndef TANDEM_TEXT_TPL_EVAL_H
#define TANDEM_TEXT_TPL_EVAL_H

#include "text/tpl_ast.h"
#include "text/tpl_call.h"

struct tpl_var {
	const struct tpl_string *name; /* interned */
	struct tpl_value value;
};
/* In the arena: a macro may outlive the block that it was defined in. */
struct tpl_frame {
	struct tpl_frame *parent;
	struct tpl_var *vars;
	size_t count, capacity;
	struct tpl_value captured; /* what TPL_CAPTURED stands for */
};

enum status tpl_frame_new(struct tpl_run *run, struct tpl_frame *parent, struct tpl_frame **out) NODISCARD;
enum status tpl_frame_set(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_string *name, struct tpl_value v) NODISCARD;
enum status tpl_name(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_string *name, struct tpl_value *out) NODISCARD;
/* target = v, unpacking tuples. */
enum status tpl_assign(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *target, struct tpl_value v) NODISCARD;

enum status tpl_eval(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *node, struct tpl_value *out) NODISCARD;
/* A list of statements, written to run->out. run->flow says whether a break or continue is under way. */
enum status tpl_exec(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list) NODISCARD;
/* The same into a string. */
enum status tpl_exec_captured(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *list, struct tpl_value *out) NODISCARD;

/* By name, as `|name` and `is name` do. */
enum status tpl_filter(struct tpl_run *run, const struct tpl_string *name, struct tpl_value in, const struct tpl_args *args, struct tpl_value *out) NODISCARD;
enum status tpl_test(struct tpl_run *run, const struct tpl_string *name, struct tpl_value in, const struct tpl_args *args, bool *out) NODISCARD;
bool tpl_filter_exists(const struct tpl_string *name);

#endif
