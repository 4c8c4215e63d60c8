/* tpl_call.h: calling things: arguments, the built-in functions, filters, tests and methods, and macros.
 *
 * All built-ins are entries of one shape, in four tables (functions here, methods in tpl_method.c, filters in tpl_filter.c and
 * tpl_filter_seq.c, tests in tpl_test.c). An entry names its parameters once; binding, and every complaint about arguments, is
 * done here.
 */
#ifndef TANDEM_TEXT_TPL_CALL_H
#define TANDEM_TEXT_TPL_CALL_H

#include "text/tpl_ast.h"
#include "text/tpl_text.h"

struct tpl_frame; /* tpl_eval.h */

struct tpl_keyword {
	const struct tpl_string *name;
	struct tpl_value value;
};
struct tpl_args {
	struct tpl_value *values;
	size_t count;
	struct tpl_keyword *keywords;
	size_t keyword_count;
};

#define TPL_MAX_PARAMETERS 6

struct tpl_bound {
	const struct tpl_value *at[TPL_MAX_PARAMETERS]; /* NULL: not given */
	const struct tpl_args *all;
};

struct tpl_function {
	const char *name;
	/* The parameters in order, with spaces between; "-": cannot be a keyword; "!" before the first optional one; "*": whatever
	 * comes (the entry reads `all`). */
	const char *parameters;
	/* self: the input of a filter or test, the object of a method; none for functions. A test gives a bool. */
	enum status (*call)(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out);
};

const struct tpl_function *tpl_function_find(const struct tpl_function *table, size_t count, const struct tpl_string *name);
enum status tpl_function_call(struct tpl_run *run, const struct tpl_function *f, struct tpl_value self, const struct tpl_args *args,
                              struct tpl_value *out) NODISCARD;

/* The built-in of that name that every template has (range, dict, namespace, raise_exception, strftime_now); *out is undefined if
 * there is none. */
enum status tpl_global(struct tpl_run *run, const struct tpl_string *name, struct tpl_value *out) NODISCARD;

struct tpl_macro {
	const struct tpl_node *node;
	struct tpl_frame *frame; /* where it was defined */
};
const struct tpl_string *tpl_macro_name(const struct tpl_macro *macro);

enum status tpl_call(struct tpl_run *run, struct tpl_value callee, const struct tpl_args *args, struct tpl_value *out) NODISCARD;

/* Arguments of built-ins: what was given, or the fallback. BAD_INPUT for a wrong type. */
enum status tpl_arg_int(struct tpl_run *run, const struct tpl_value *given, int64_t fallback, int64_t *out) NODISCARD;
bool tpl_arg_true(const struct tpl_value *given); /* given and true */
enum status tpl_arg_string(struct tpl_run *run, const struct tpl_value *given, const struct tpl_string **out) NODISCARD;

/* datetime.now().strftime(format): the codes that do not depend on a locale or a time zone. */
enum status tpl_strftime(struct tpl_run *run, const struct tm *now, const struct tpl_string *format, struct tpl_value *out) NODISCARD;

#endif
