/* The option mechanism, and the program's own table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "apps/settings.h"

/* The table names the commands; this test runs none. */
#define X(code, function, name, operand, summary)                        \
	enum status function(const struct settings *settings, struct error *err) \
	{                                                                    \
		(void)settings;                                                  \
		return FAIL(err, USAGE, "%s: not here", name);                    \
	}
COMMAND_LIST(X)
#undef X

struct sample {
	bool flag;
	const char *text, *choice;
	int whole, other;
	struct optional_u64 seed;
	double real;
	uint64_t bytes;
	struct int_list list, set;
};

#define FIRST 1u
#define SECOND 2u
#define AT(field) .offset = offsetof(struct sample, field)

static const struct option rows[] = {
	{.name = "flag", .letter = 'f', .type = OPTION_FLAG, .group = "A", AT(flag), .commands = FIRST, .help = "a flag"},
	{.name = "text", .type = OPTION_TEXT, .argument = "T", .group = "A", AT(text), .commands = FIRST, .help = "a text"},
	{.name = "choice", .type = OPTION_CHOICE, .argument = "red|green", .group = "A", AT(choice), .initial = "red", .commands = FIRST,
	 .help = "a choice"},
	{.name = "tp", .letter = 'n', .type = OPTION_INT, .argument = "P", .group = "B", AT(whole), .initial = "1", .unit = "ranks",
	 .commands = FIRST, .help = "a number", .min = 1, .max = 64},
	{.name = "tp", .type = OPTION_INT, .argument = "P", .group = "B", AT(other), .initial = "7", .commands = SECOND, .help = "another",
	 .min = 1, .max = 8},
	{.name = "seed", .type = OPTION_U64, .argument = "S", .group = "B", AT(seed), .absent = "off", .commands = FIRST, .help = "a seed",
	 .min = 0, .max = 9007199254740992.0},
	{.name = "real", .type = OPTION_REAL, .argument = "R", .group = "B", AT(real), .commands = FIRST, .help = "a real", .min = -1, .max = 2},
	{.name = "bytes", .type = OPTION_BYTES, .argument = "64GiB", .group = "B", AT(bytes), .commands = FIRST, .help = "bytes"},
	{.name = "hidden", .type = OPTION_TEXT, .argument = "H", .group = "B", AT(text), .commands = FIRST},
	{.name = "list", .type = OPTION_INTS, .argument = "1,2", .group = "B", AT(list), .initial = "4,5", .commands = FIRST, .help = "a list",
	 .min = -5, .max = 50},
	{.name = "set", .type = OPTION_INTS, .argument = "1,2", .group = "B", AT(set), .commands = FIRST, .max = 50, .once = true},
};
static const struct option_table table = {rows, sizeof rows / sizeof rows[0]};

/* Parses up to 6 arguments, a NULL ends them. */
static enum status parse(struct sample *sample, struct operands *operands, struct error *err, const char *const *arguments)
{
	char *argv[8];
	int argc = 0;
	for (; arguments[argc]; argc++) argv[argc] = (char *)(uintptr_t)arguments[argc];
	*sample = (struct sample){0};
	*err = (struct error){0};
	options_init(&table, FIRST, sample);
	return options_parse(&table, FIRST, "sub", argc, argv, sample, operands, err);
}

#define PARSE(...) parse(&s, &operands, &err, (const char *const[]){__VA_ARGS__, NULL})
#define ACCEPT(...) assert_int_equal(PARSE(__VA_ARGS__), STATUS_OK)
#define DONE() options_fini(&table, &s)
#define REFUSE(message, ...)                                    \
	do {                                                        \
		assert_int_equal(PARSE(__VA_ARGS__), STATUS_USAGE);     \
		assert_string_equal(err.text, message);                 \
		DONE();                                                 \
	} while (0)

static void accepts(void **state)
{
	(void)state;
	struct sample s;
	struct operands operands;
	struct error err;
	ACCEPT("model", "--tp", "4", "--text=a=b", "-f");
	assert_int_equal(s.whole, 4);
	assert_string_equal(s.text, "a=b");
	assert_string_equal(s.choice, "red");
	assert_true(s.flag);
	assert_int_equal(operands.count, 1);
	assert_string_equal(operands.item[0], "model");
	assert_int_equal(s.list.count, 2);
	assert_int_equal(s.list.items[1], 5);
	assert_false(s.seed.given);
	DONE();
	ACCEPT("-n", "64", "--seed=0", "--real", "-0.5e0", "--choice", "green", "--");
	assert_int_equal(s.whole, 64);
	assert_true(s.seed.given);
	assert_true(s.real == -0.5);
	assert_string_equal(s.choice, "green");
	DONE();
	ACCEPT("--list", "", "--text", "--tp", "-");
	assert_non_null(s.list.items);
	assert_int_equal(s.list.count, 0);
	assert_string_equal(s.text, "--tp"); /* a value may look like an option */
	assert_string_equal(operands.item[0], "-");
	DONE();
	ACCEPT("--list=-5,50,0", "--", "--tp", "9");
	assert_int_equal(s.list.count, 3);
	assert_int_equal(s.list.items[0], -5);
	assert_int_equal(s.whole, 1);
	assert_int_equal(operands.count, 2);
	DONE();
	ACCEPT("--list=2,2,1", "--set=2,2,1,2,0,1"); /* tokens may come again; world sizes that do would be measured twice */
	assert_int_equal(s.list.count, 3);
	assert_int_equal(s.set.count, 3);
	assert_memory_equal(s.set.items, ((int32_t[]){2, 1, 0}), 3 * sizeof *s.set.items);
	DONE();
	ACCEPT("--seed", "9007199254740991");
	assert_true(s.seed.value == 9007199254740991u);
	DONE();
}

static void bytes(void **state)
{
	(void)state;
	struct sample s;
	struct operands operands;
	struct error err;
	static const struct {
		const char *text;
		uint64_t value;
	} cases[] = {{"0", 0}, {"17", 17}, {"64GiB", 64ull << 30}, {"1.5KiB", 1536}, {"2GB", 2000000000u}, {"1TiB", 1ull << 40}, {"3B", 3}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		ACCEPT("--bytes", cases[i].text);
		assert_true(s.bytes == cases[i].value);
		DONE();
	}
	const char *expected = "give bytes, or a number with KiB, MiB, GiB or TiB such as 64GiB";
	static const char *const bad[] = {"", "GiB", "-1", "64gib", "64 GiB", "1..2", "9e9", "0x10", "99999999999TiB"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		assert_int_equal(PARSE("--bytes", bad[i]), STATUS_USAGE);
		assert_non_null(strstr(err.text, expected));
		DONE();
	}
}

static void refuses(void **state)
{
	(void)state;
	struct sample s;
	struct operands operands;
	struct error err;
	REFUSE("--tp 'abc': not a number; give a whole number from 1 to 64", "--tp", "abc");
	REFUSE("--tp '': not a number; give a whole number from 1 to 64", "--tp=");
	REFUSE("--tp ' 4': not a number; give a whole number from 1 to 64", "--tp", " 4");
	REFUSE("--tp '+4': not a number; give a whole number from 1 to 64", "--tp", "+4");
	REFUSE("--tp '4x': not a number; give a whole number from 1 to 64", "--tp", "4x");
	REFUSE("--tp '0x4': not a number; give a whole number from 1 to 64", "--tp", "0x4");
	REFUSE("--tp '1.5': not a whole number; give a whole number from 1 to 64", "--tp", "1.5");
	REFUSE("--seed '9007199254740993': out of range; give a whole number from 0 to 9007199254740992", "--seed", "9007199254740993");
	REFUSE("--tp '1e1': not a whole number; give a whole number from 1 to 64", "--tp", "1e1");
	REFUSE("--tp '0': out of range; give a whole number from 1 to 64", "--tp", "0");
	REFUSE("--tp '-1': out of range; give a whole number from 1 to 64", "--tp", "-1");
	REFUSE("--tp '65': out of range; give a whole number from 1 to 64", "-n", "65");
	REFUSE("--tp '99999999999999999999999': out of range; give a whole number from 1 to 64", "--tp", "99999999999999999999999");
	REFUSE("--tp: value missing; give a whole number from 1 to 64", "--tp");
	REFUSE("--tp: given twice; give it once", "--tp", "1", "-n", "2");
	REFUSE("--flag 'yes': takes no value; give no value", "--flag=yes");
	REFUSE("--choice 'blue': not a choice; give one of red|green", "--choice", "blue");
	REFUSE("--choice 'red|green': not a choice; give one of red|green", "--choice", "red|green");
	REFUSE("--real 'nan': not a number; give a number from -1 to 2", "--real", "nan");
	REFUSE("--real '2.01': out of range; give a number from -1 to 2", "--real", "2.01");
	REFUSE("--real '1e999': out of range; give a number from -1 to 2", "--real", "1e999");
	REFUSE("--list: item 2, '', is not a number; give whole numbers from -5 to 50 with commas between them, such as 1,2", "--list", "1,,2");
	REFUSE("--list: item 2, '', is not a number; give whole numbers from -5 to 50 with commas between them, such as 1,2", "--list", "1,");
	REFUSE("--list: item 1, '51', is out of range; give whole numbers from -5 to 50 with commas between them, such as 1,2", "--list", "51");
	REFUSE("--txt: unknown option of 'sub'; did you mean --text? See tandem sub --help", "--txt=3");
	REFUSE("--wonder: unknown option of 'sub'; see tandem sub --help", "--wonder");
	REFUSE("-q: unknown option of 'sub'; see tandem sub --help", "-q");
	REFUSE("-tp: unknown option of 'sub'; did you mean --tp? See tandem sub --help", "-tp");
	REFUSE("'e': one argument too many; see tandem sub --help", "a", "b", "c", "d", "e");
}

static void other_command(void **state)
{
	(void)state;
	struct sample s = {0};
	struct operands operands;
	struct error err = {0};
	options_init(&table, SECOND, &s);
	assert_int_equal(s.other, 7);
	assert_int_equal(s.whole, 0);
	char flag[] = "--flag", *argv[] = {flag};
	assert_int_equal(options_parse(&table, SECOND, "two", 1, argv, &s, &operands, &err), STATUS_USAGE);
	assert_string_equal(err.text, "--flag: not an option of 'two'; see tandem two --help");
}

static void help(void **state)
{
	(void)state;
	struct buf out = {0};
	struct error err = {0};
	assert_int_equal(options_help(&table, FIRST, &out, &err), STATUS_OK);
	assert_non_null(strstr(out.data, "\nA\n  -f, --flag "));
	assert_non_null(strstr(out.data, "  -n, --tp P                    a number [1 ranks]\n"));
	assert_non_null(strstr(out.data, "a seed [off]\n"));
	assert_null(strstr(out.data, "another"));
	assert_null(strstr(out.data, "hidden"));
	buf_fini(&out);
}

static void distance(void **state)
{
	(void)state;
	assert_int_equal(edit_distance("", ""), 0);
	assert_int_equal(edit_distance("tp", ""), 2);
	assert_int_equal(edit_distance("rnu", "run"), 1);
	assert_int_equal(edit_distance("threds", "threads"), 1);
	assert_int_equal(edit_distance("kitten", "sitting"), 3);
	assert_true(edit_near("threds", "threads"));
	assert_false(edit_near("xy", "tp"));
}

/* Every row of the program: its default parses, it has a help line, and no command sees one name or letter twice. */
static void program_table(void **state)
{
	(void)state;
	assert_true(settings_table.count <= OPTIONS_MAX);
	for (int c = 0; c < COMMAND_COUNT; c++) {
		struct settings settings;
		settings_init(&settings, 1u << c);
		assert_true(isnan(settings.temperature));
		settings_fini(&settings);
	}
	for (int i = 0; i < settings_table.count; i++) {
		const struct option *a = &settings_table.rows[i];
		assert_true((!a->help || *a->help) && a->commands);
		assert_true((a->type == OPTION_FLAG) == !a->argument);
		for (int j = i + 1; j < settings_table.count; j++) {
			const struct option *b = &settings_table.rows[j];
			if (!(a->commands & b->commands)) continue;
			assert_string_not_equal(a->name, b->name);
			assert_true(!a->letter || a->letter != b->letter);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(accepts), cmocka_unit_test(bytes),    cmocka_unit_test(refuses),       cmocka_unit_test(other_command),
		cmocka_unit_test(help),    cmocka_unit_test(distance), cmocka_unit_test(program_table),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
