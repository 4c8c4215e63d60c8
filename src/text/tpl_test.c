/* The tests of `is`. Names and meanings are Jinja's. */
#include "text/tpl_eval.h"
#include "text/tpl_format.h"
#include "text/tpl_method.h"
#include "text/tpl_ops.h"

#define TEST(name) static enum status name(struct tpl_run *run, struct tpl_value in, const struct tpl_bound *got, struct tpl_value *out)
/* One that needs nothing but the value. */
#define PLAIN_TEST(name, expression)  \
	TEST(name)                        \
	{                                 \
		(void)run;                    \
		(void)got;                    \
		*out = tpl_bool(expression);  \
		return STATUS_OK;             \
	}

static bool is_sequence(struct tpl_value v) /* has a length and subscripts; so an undefined value is one */
{
	size_t n;
	return tpl_length(v, &n) && v.kind != TPL_VIEW;
}

PLAIN_TEST(defined, in.kind != TPL_UNDEFINED)
PLAIN_TEST(undefined, in.kind == TPL_UNDEFINED)
PLAIN_TEST(none, in.kind == TPL_NONE)
PLAIN_TEST(boolean, in.kind == TPL_BOOL)
PLAIN_TEST(is_true, in.kind == TPL_BOOL && in.boolean)
PLAIN_TEST(is_false, in.kind == TPL_BOOL && !in.boolean)
PLAIN_TEST(integer, in.kind == TPL_INT)
PLAIN_TEST(is_float, in.kind == TPL_FLOAT)
PLAIN_TEST(number, in.kind == TPL_INT || in.kind == TPL_FLOAT || in.kind == TPL_BOOL)
PLAIN_TEST(string, in.kind == TPL_STRING)
PLAIN_TEST(mapping, in.kind == TPL_DICT)
PLAIN_TEST(iterable, tpl_iterable(in))
PLAIN_TEST(sequence, is_sequence(in))
PLAIN_TEST(callable, in.kind == TPL_MACRO || in.kind == TPL_FUNCTION || in.kind == TPL_METHOD || in.kind == TPL_LOOP || in.kind == TPL_UNDEFINED)
PLAIN_TEST(escaped, in.kind == TPL_STRING && in.string->markup)
PLAIN_TEST(sameas, tpl_same(in, *got->at[0]))

static bool test_exists(const struct tpl_string *name);

static enum status known(struct tpl_run *run, struct tpl_value in, bool (*exists)(const struct tpl_string *), struct tpl_value *out)
{
	if (!tpl_hashable(in)) return FAIL(run->err, BAD_INPUT, "a %s cannot be the name of a filter or a test", tpl_kind_name(in));
	*out = tpl_bool(in.kind == TPL_STRING && exists(in.string));
	return STATUS_OK;
}

TEST(known_filter) { (void)got; return known(run, in, tpl_filter_exists, out); }
TEST(known_test) { (void)got; return known(run, in, test_exists, out); }

static enum status cased(struct tpl_run *run, struct tpl_value in, enum tpl_letter as, struct tpl_value *out)
{
	TRY(tpl_soft_str(run, in, &in));
	TRY(tpl_pay_bytes(run, in.string->size));
	*out = tpl_bool(tpl_all_cased(in.string, as));
	return STATUS_OK;
}

TEST(lower) { (void)got; return cased(run, in, TPL_LETTER_LOWER, out); }
TEST(upper) { (void)got; return cased(run, in, TPL_LETTER_UPPER, out); }

static enum status compare(struct tpl_run *run, int op, struct tpl_value a, struct tpl_value b, struct tpl_value *out)
{
	bool holds;
	TRY(tpl_compare(run, op, a, b, &holds));
	*out = tpl_bool(holds);
	return STATUS_OK;
}

TEST(eq) { return compare(run, TPL_OP('=', '='), in, *got->at[0], out); }
TEST(ne) { return compare(run, TPL_OP('!', '='), in, *got->at[0], out); }
TEST(lt) { return compare(run, '<', in, *got->at[0], out); }
TEST(le) { return compare(run, TPL_OP('<', '='), in, *got->at[0], out); }
TEST(gt) { return compare(run, '>', in, *got->at[0], out); }
TEST(ge) { return compare(run, TPL_OP('>', '='), in, *got->at[0], out); }
TEST(contained) { return compare(run, 'i', in, *got->at[0], out); }

static enum status remainder_is(struct tpl_run *run, struct tpl_value in, struct tpl_value by, int64_t wanted, struct tpl_value *out)
{
	struct tpl_value rest;
	TRY(tpl_binary(run, '%', in, by, &rest));
	return compare(run, TPL_OP('=', '='), rest, tpl_int(wanted), out);
}

TEST(odd) { (void)got; return remainder_is(run, in, tpl_int(2), 1, out); }
TEST(even) { (void)got; return remainder_is(run, in, tpl_int(2), 0, out); }
TEST(divisibleby) { return remainder_is(run, in, *got->at[0], 0, out); }

static const struct tpl_function tests[] = {
	{"defined", "", defined},      {"undefined", "", undefined},  {"none", "", none},
	{"boolean", "", boolean},      {"true", "", is_true},         {"false", "", is_false},
	{"integer", "", integer},      {"float", "", is_float},       {"number", "", number},
	{"string", "", string},        {"mapping", "", mapping},      {"iterable", "", iterable},
	{"sequence", "", sequence},    {"callable", "", callable},    {"escaped", "", escaped},
	{"sameas", "other", sameas},   {"filter", "", known_filter},  {"test", "", known_test},
	{"lower", "", lower},          {"upper", "", upper},          {"odd", "", odd},
	{"even", "", even},            {"divisibleby", "num", divisibleby}, {"in", "seq", contained},
	{"==", "-", eq},               {"eq", "-", eq},               {"equalto", "-", eq},
	{"!=", "-", ne},               {"ne", "-", ne},               {"<", "-", lt},
	{"lt", "-", lt},               {"lessthan", "-", lt},         {"<=", "-", le},
	{"le", "-", le},               {">", "-", gt},                {"gt", "-", gt},
	{"greaterthan", "-", gt},      {">=", "-", ge},               {"ge", "-", ge},
};

static const struct tpl_function *find_test(const struct tpl_string *name)
{
	return tpl_function_find(tests, sizeof tests / sizeof *tests, name);
}

static bool test_exists(const struct tpl_string *name)
{
	return find_test(name) != NULL;
}

enum status tpl_test(struct tpl_run *run, const struct tpl_string *name, struct tpl_value in, const struct tpl_args *args, bool *out)
{
	struct tpl_value holds;
	const struct tpl_function *test = find_test(name);
	if (!test) return FAIL(run->err, UNSUPPORTED, "the test '%.*s' is not known here", name->size < 64 ? (int)name->size : 64, name->data);
	TRY(tpl_function_call(run, test, in, args, &holds));
	*out = holds.boolean;
	return STATUS_OK;
}
