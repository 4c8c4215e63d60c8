#include "apps/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define HELP_COLUMN 32 /* where the help text of a line starts */

int edit_distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	if (n > 63 || m > 63) return 64;
	int row[3][64]; /* the previous two rows and this one, rotating */
	for (size_t j = 0; j <= m; j++) row[0][j] = (int)j;
	for (size_t i = 1; i <= n; i++) {
		int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
		now[0] = (int)i;
		for (size_t j = 1; j <= m; j++) {
			int best = last[j - 1] + (a[i - 1] != b[j - 1]);
			if (last[j] + 1 < best) best = last[j] + 1;
			if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best) best = before[j - 2] + 1;
			now[j] = best;
		}
	}
	return row[n % 3][m];
}

bool edit_near(const char *given, const char *candidate)
{
	int distance = edit_distance(given, candidate);
	return distance <= 2 && distance < (int)strlen(candidate);
}

/* "a whole number from 1 to 64", for messages. */
static const char *expectation(const struct option *option, char *text, size_t size)
{
	switch (option->type) {
	case OPTION_INT:
	case OPTION_U64: snprintf(text, size, "a whole number from %.0f to %.0f", option->min, option->max); break;
	case OPTION_REAL: snprintf(text, size, "a number from %g to %g", option->min, option->max); break;
	case OPTION_BYTES: snprintf(text, size, "bytes, or a number with KiB, MiB, GiB or TiB such as 64GiB"); break;
	case OPTION_INTS: snprintf(text, size, "whole numbers from %.0f to %.0f with commas between them, such as 1,2", option->min, option->max); break;
	case OPTION_CHOICE: snprintf(text, size, "one of %s", option->argument); break;
	case OPTION_TEXT: snprintf(text, size, "%s", option->argument); break;
	case OPTION_FLAG: snprintf(text, size, "no value"); break;
	}
	return text;
}

static enum status bad_value(const struct option *option, const char *value, const char *why, struct error *err)
{
	char expected[160];
	return FAIL(err, USAGE, "--%s '%.80s': %s; give %s", option->name, value, why, expectation(option, expected, sizeof expected));
}

static bool only(const char *text, const char *allowed)
{
	return *text && text[strspn(text, allowed)] == 0;
}

static const char *parse_real(const char *value, double min, double max, double *out)
{
	char *end;
	if (isinf(max) && !strcmp(value, "inf")) return *out = INFINITY, NULL;
	if (*value == '+' || !only(value, "0123456789.eE+-")) return "not a number"; /* also keeps out hexadecimal, inf and nan */
	double number = strtod(value, &end);
	if (end == value || *end) return "not a number";
	if (!(number >= min && number <= max)) return "out of range";
	*out = number;
	return NULL;
}

/* Decimal digits only: no sign but '-', no blanks, no exponent. NULL, or why not. */
static const char *parse_whole(const char *value, double min, double max, int64_t *out, uint64_t *wide)
{
	bool negative = *value == '-';
	const char *digits = value + negative;
	double real;
	if (!only(digits, "0123456789")) return parse_real(value, -1e300, 1e300, &real) ? "not a number" : "not a whole number";
	errno = 0;
	unsigned long long magnitude = strtoull(digits, NULL, 10);
	if (errno) return "out of range";
	const long double number = negative ? -(long double)magnitude : (long double)magnitude; /* exact, where a double rounds */
	if (number < (long double)min || number > (long double)max) return "out of range";
	*wide = magnitude;
	*out = negative ? -(int64_t)magnitude : (int64_t)magnitude;
	return NULL;
}

static const char *parse_bytes(const char *value, uint64_t *out)
{
	static const struct {
		const char *suffix;
		double scale;
	} units[] = {{"", 1}, {"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
	             {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
	size_t digits = strspn(value, "0123456789.");
	char number[32];
	if (!digits || digits >= sizeof number) return "not a number of bytes";
	memcpy(number, value, digits);
	number[digits] = 0;
	double amount;
	if (parse_real(number, 0, 1e18, &amount)) return "not a number of bytes";
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
		if (strcmp(value + digits, units[i].suffix) != 0) continue;
		if (amount * units[i].scale > 0x1p62) return "out of range";
		*out = (uint64_t)(amount * units[i].scale);
		return NULL;
	}
	return "not a unit of bytes";
}

static bool in_choices(const char *choices, const char *value)
{
	size_t n = strlen(value);
	for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
		if (strcspn(at, "|") == n && !strncmp(at, value, n)) return true;
	return false;
}

/* Leaves the first of each; returns how many. */
static int drop_doubles(int32_t *items, int count)
{
	int kept = 0;
	for (int i = 0; i < count; i++) {
		int same = 0;
		while (same < kept && items[same] != items[i]) same++;
		if (same == kept) items[kept++] = items[i];
	}
	return kept;
}

static enum status parse_list(const struct option *option, const char *value, struct int_list *list, struct error *err)
{
	size_t commas = 0;
	for (const char *at = value; *at; at++) commas += *at == ',';
	int32_t *items = mem_zalloc(commas + 1, sizeof *items, option->name, err);
	if (!items) return STATUS_NO_MEMORY;
	int count = 0;
	for (const char *at = value; *value;) {
		char item[24];
		size_t n = strcspn(at, ",");
		int64_t number = 0;
		uint64_t wide;
		snprintf(item, sizeof item, "%.*s", n < sizeof item ? (int)n : (int)sizeof item - 1, at);
		const char *why = n < sizeof item ? parse_whole(item, option->min, option->max, &number, &wide) : "not a number";
		if (why) {
			free(items);
			char expected[160];
			return FAIL(err, USAGE, "--%s: item %d, '%s', is %s; give %s", option->name, count + 1, item, why,
			            expectation(option, expected, sizeof expected));
		}
		items[count++] = (int32_t)number;
		if (!at[n]) break;
		at += n + 1;
	}
	free(list->items);
	*list = (struct int_list){items, option->once ? drop_doubles(items, count) : count};
	return STATUS_OK;
}

static enum status set_value(const struct option *option, const char *value, void *settings, struct error *err)
{
	void *field = (char *)settings + option->offset;
	const char *why = NULL;
	int64_t whole;
	uint64_t wide;
	switch (option->type) {
	case OPTION_FLAG: *(bool *)field = true; break;
	case OPTION_TEXT: *(const char **)field = value; break;
	case OPTION_CHOICE:
		if (in_choices(option->argument, value)) *(const char **)field = value;
		else why = "not a choice";
		break;
	case OPTION_INT:
		why = parse_whole(value, option->min, option->max, &whole, &wide);
		if (!why) *(int *)field = (int)whole;
		break;
	case OPTION_U64:
		why = parse_whole(value, option->min, option->max, &whole, &wide);
		if (!why) *(struct optional_u64 *)field = (struct optional_u64){true, wide};
		break;
	case OPTION_REAL: why = parse_real(value, option->min, option->max, field); break;
	case OPTION_BYTES: why = parse_bytes(value, field); break;
	case OPTION_INTS: return parse_list(option, value, field, err);
	}
	return why ? bad_value(option, value, why, err) : STATUS_OK;
}

void options_init(const struct option_table *table, unsigned command, void *settings)
{
	for (int i = 0; i < table->count; i++) {
		const struct option *row = &table->rows[i];
		if (!row->initial || !(row->commands & command)) continue;
		/* A default that its own row refuses is a bug of the table; the unit test parses them all. */
		if (set_value(row, row->initial, settings, NULL) != STATUS_OK) abort();
	}
}

void options_fini(const struct option_table *table, void *settings)
{
	for (int i = 0; i < table->count; i++) {
		if (table->rows[i].type != OPTION_INTS) continue;
		struct int_list *list = (struct int_list *)(void *)((char *)settings + table->rows[i].offset);
		free(list->items);
		*list = (struct int_list){0};
	}
}

/* The row called name[0..n) (letter: its one-letter form) that `mask` may use; -1. */
static int find(const struct option_table *table, unsigned mask, const char *name, size_t n, bool letter)
{
	for (int i = 0; i < table->count; i++) {
		const struct option *row = &table->rows[i];
		if (!(row->commands & mask)) continue;
		if (letter ? n == 1 && row->letter == *name : strlen(row->name) == n && !strncmp(row->name, name, n)) return i;
	}
	return -1;
}

static enum status unknown(const struct option_table *table, unsigned command, const char *who, const char *argument, struct error *err)
{
	const char *name = argument + strspn(argument, "-");
	int n = (int)strcspn(name, "="), best = -1, distance = 64;
	int elsewhere = find(table, ~0u, name, (size_t)n, argument[1] != '-' && n == 1);
	char shown[64];
	snprintf(shown, sizeof shown, "%.*s", n, name);
	int dashes = (int)(name - argument);
	if (elsewhere >= 0 && !(table->rows[elsewhere].commands & command))
		return FAIL(err, USAGE, "%.*s%s: not an option of '%s'; see tandem %s --help", dashes, argument, shown, who, who);
	for (int i = 0; i < table->count; i++) {
		const struct option *row = &table->rows[i];
		if (!(row->commands & command) || !row->help || !edit_near(shown, row->name)) continue;
		int d = edit_distance(shown, row->name);
		if (d < distance) best = i, distance = d;
	}
	if (best >= 0)
		return FAIL(err, USAGE, "%.*s%s: unknown option of '%s'; did you mean --%s? See tandem %s --help", dashes, argument, shown, who,
		            table->rows[best].name, who);
	return FAIL(err, USAGE, "%.*s%s: unknown option of '%s'; see tandem %s --help", dashes, argument, shown, who, who);
}

/* One option at argv[*at]; moves *at to its last argument. */
static enum status take(const struct option_table *table, unsigned command, const char *who, int argc, char **argv, int *at,
                        bool *given, void *settings, struct error *err)
{
	const char *argument = argv[*at];
	bool letter = argument[1] != '-';
	const char *name = argument + (letter ? 1 : 2);
	size_t n = letter ? strlen(name) : strcspn(name, "=");
	int index = find(table, command, name, n, letter);
	if (index < 0) return unknown(table, command, who, argument, err);
	const struct option *option = &table->rows[index];
	const char *value = name[n] == '=' ? name + n + 1 : NULL;
	if (given[index]) return FAIL(err, USAGE, "--%s: given twice; give it once", option->name);
	given[index] = true;
	if (option->type == OPTION_FLAG && value) return bad_value(option, value, "takes no value", err);
	if (option->type != OPTION_FLAG && !value) {
		char expected[160];
		if (*at + 1 == argc)
			return FAIL(err, USAGE, "--%s: value missing; give %s", option->name, expectation(option, expected, sizeof expected));
		value = argv[++*at];
	}
	return set_value(option, value, settings, err);
}

enum status options_parse(const struct option_table *table, unsigned command, const char *who, int argc, char **argv, void *settings,
                          struct operands *operands, struct error *err)
{
	bool given[OPTIONS_MAX] = {false};
	bool ended = false;
	*operands = (struct operands){0};
	if (table->count > OPTIONS_MAX) return FAIL(err, USAGE, "option table: %d rows; at most %d", table->count, OPTIONS_MAX);
	for (int i = 0; i < argc; i++) {
		if (!ended && !strcmp(argv[i], "--")) {
			ended = true;
		} else if (!ended && argv[i][0] == '-' && argv[i][1]) {
			TRY(take(table, command, who, argc, argv, &i, given, settings, err));
		} else {
			if (operands->count == OPTIONS_MAX_OPERANDS)
				return FAIL(err, USAGE, "'%.80s': one argument too many; see tandem %s --help", argv[i], who);
			operands->item[operands->count++] = argv[i];
		}
	}
	return STATUS_OK;
}

static enum status help_line(const struct option *option, struct buf *out, struct error *err)
{
	char left[96];
	int n = option->letter ? snprintf(left, sizeof left, "  -%c, --%s", option->letter, option->name)
	                       : snprintf(left, sizeof left, "      --%s", option->name);
	if (option->argument) n += snprintf(left + n, sizeof left - (size_t)n, " %s", option->argument);
	if (n < HELP_COLUMN) TRY(buf_printf(out, err, "%-*s%s", HELP_COLUMN, left, option->help));
	else TRY(buf_printf(out, err, "%s\n%*s%s", left, HELP_COLUMN, "", option->help));
	if (option->type == OPTION_FLAG) return buf_puts(out, "\n", err);
	const char *value = option->initial ? option->initial : option->absent ? option->absent : "none";
	return buf_printf(out, err, " [%s%s%s]\n", value, option->unit ? " " : "", option->unit ? option->unit : "");
}

enum status options_help(const struct option_table *table, unsigned mask, struct buf *out, struct error *err)
{
	const char *group = NULL;
	for (int i = 0; i < table->count; i++) {
		const struct option *option = &table->rows[i];
		if (!(option->commands & mask) || !option->help) continue;
		if (!group || strcmp(group, option->group) != 0) TRY(buf_printf(out, err, "\n%s\n", option->group));
		group = option->group;
		TRY(help_line(option, out, err));
	}
	return STATUS_OK;
}
