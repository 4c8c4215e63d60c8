/* tpl_ops.h: Python's operators on template values: truth, equality, order, containment, arithmetic, subscripts. */
#ifndef TANDEM_TEXT_TPL_OPS_H
#define TANDEM_TEXT_TPL_OPS_H

#include "text/tpl_value.h"

/* Of two characters as the source spells them. */
#define TPL_OP(a, b) ((a) | (b) << 8)

bool tpl_truth(struct tpl_value v);
enum status tpl_equal(struct tpl_run *run, struct tpl_value a, struct tpl_value b, bool *out) NODISCARD;
/* -1, 0, 1, or 2 when not ordered (NaN). BAD_INPUT for types that have no order. */
enum status tpl_order(struct tpl_run *run, struct tpl_value a, struct tpl_value b, int *out) NODISCARD;
/* `is`, as far as it can be told from outside: equal scalars are the same. */
bool tpl_same(struct tpl_value a, struct tpl_value b);
/* a == b, !=, <, <=, >, >=, in, not in ("i", "n"). */
enum status tpl_compare(struct tpl_run *run, int op, struct tpl_value a, struct tpl_value b, bool *out) NODISCARD;

/* + - * / // % **. Integers beyond 64 bits are UNSUPPORTED. */
enum status tpl_binary(struct tpl_run *run, int op, struct tpl_value a, struct tpl_value b, struct tpl_value *out) NODISCARD;
enum status tpl_negate(struct tpl_run *run, struct tpl_value v, struct tpl_value *out) NODISCARD;
/* bool counts as int; false if `v` is no integer. */
bool tpl_as_int(struct tpl_value v, int64_t *out);
bool tpl_as_number(struct tpl_value v, double *out); /* int, bool, float */

/* obj.name and obj[key], by Jinja's rules (methods first, or keys first). */
enum status tpl_get_attr(struct tpl_run *run, struct tpl_value obj, const struct tpl_string *name, struct tpl_value *out) NODISCARD;
enum status tpl_get_item(struct tpl_run *run, struct tpl_value obj, struct tpl_value key, struct tpl_value *out) NODISCARD;
/* obj[from:to:step]; none for what is left out. */
enum status tpl_slice(struct tpl_run *run, struct tpl_value obj, const struct tpl_value bounds[3], struct tpl_value *out) NODISCARD;

#endif
