/* options.h: the option mechanism of the command line. One table row per option gives its parsing, its checks and its line in
 * --help; nothing else knows an option's name. The table itself is settings.c.
 *
 * Strict on purpose: a number is a whole text, ranges are checked, an option given twice is refused (two values with one silently
 * ignored hide mistakes), and every refusal names the option, the value and what was expected. Values are borrowed from argv.
 */
#ifndef TANDEM_APPS_OPTIONS_H
#define TANDEM_APPS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* X(enumerator, type of the field at `offset`) */
#define OPTION_TYPE_LIST(X)       \
	X(FLAG, bool)                 \
	X(TEXT, const char *)         \
	X(CHOICE, const char *)       \
	X(INT, int)                   \
	X(U64, struct optional_u64)   \
	X(REAL, double)               \
	X(BYTES, uint64_t)            \
	X(INTS, struct int_list)

enum option_type {
#define X(code, field) OPTION_##code,
	OPTION_TYPE_LIST(X)
#undef X
};

/* `{0}` is "not given"; given but empty has items != NULL and count 0. Freed by options_fini. */
struct int_list {
	int32_t *items;
	int count;
};

/* value is 0 while not given. */
struct optional_u64 {
	bool given;
	uint64_t value;
};

struct option {
	const char *name;     /* without "--" */
	char letter;          /* one-letter form, or 0 */
	enum option_type type;
	const char *argument; /* how help shows the value; NULL for a flag. CHOICE: the choices, "a|b|c" */
	const char *group;    /* heading in help; rows of a group stand together in the table */
	const char *initial;  /* default, parsed like a value; NULL: the field keeps what it has */
	const char *unit;     /* shown after the default; NULL: none */
	const char *absent;   /* what help shows in place of the default when `initial` is NULL */
	const char *help;     /* NULL: the option is known, so that its refusal can say why, but not shown */
	double min, max;      /* INT, U64, REAL (max INFINITY: takes "inf" too), and each item of INTS */
	bool once;            /* INTS: a set; an item that is given twice counts once */
	size_t offset;        /* of the field in the settings struct */
	unsigned commands;    /* bit mask of the commands that take it */
};

/* The arguments that are not options. */
#define OPTIONS_MAX_OPERANDS 4
struct operands {
	const char *item[OPTIONS_MAX_OPERANDS];
	int count;
};

#define OPTIONS_MAX 128 /* rows of a table */
struct option_table {
	const struct option *rows;
	int count;
};

/* Writes the defaults of the command's rows into `settings`. */
void options_init(const struct option_table *table, unsigned command, void *settings);
void options_fini(const struct option_table *table, void *settings);

/* Reads argv[0..argc) (program and command names already taken off) for the command with bit `command` and name `who`. USAGE on
 * anything unexpected. "--" ends the options. */
enum status options_parse(const struct option_table *table, unsigned command, const char *who, int argc, char **argv, void *settings,
                          struct operands *operands, struct error *err) NODISCARD;

/* Appends the grouped option lines of the commands in `mask`. */
enum status options_help(const struct option_table *table, unsigned mask, struct buf *out, struct error *err) NODISCARD;

/* Changes of one character (insert, delete, replace, swap of neighbours) that turn a into b. Texts beyond 63 bytes: 64. */
int edit_distance(const char *a, const char *b);
/* Near enough to ask "did you mean". */
bool edit_near(const char *given, const char *candidate);

#endif
