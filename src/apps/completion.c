/* The bash completion script. Its logic is fixed text; what differs from version to version, the words, is written as case branches
 * from the tables. */
#include <string.h>

#include "apps/manual.h"

static const char prologue[] =
	"# bash completion for tandem; written by `tandem --completion` from the option table.\n"
	"_tandem() {\n"
	"\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words= kind=words\n"
	"\tCOMPREPLY=()\n"
	"\t# bash splits --name=value at the equals sign\n"
	"\tif [ \"$cur\" = = ]; then cur=\n"
	"\telif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi\n";

static const char epilogue[] =
	"\tcase $kind in\n"
	"\tfiles) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); compopt -o filenames 2>/dev/null ;;\n"
	"\tfolders) mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); compopt -o filenames 2>/dev/null ;;\n"
	"\twords) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;\n"
	"\tesac\n"
	"}\n"
	"complete -F _tandem tandem\n";

/* First words of command names, each once. */
static enum status put_commands(struct buf *out, struct error *err)
{
	TRY(buf_puts(out, "\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\twords='", err));
	for (int i = 0; i < COMMAND_COUNT; i++) {
		size_t n = strcspn(command_table[i].name, " ");
		bool seen = false;
		for (int j = 0; j < i; j++) seen |= !strncmp(command_table[j].name, command_table[i].name, n) && strchr(" ", command_table[j].name[n]);
		if (!seen) TRY(buf_printf(out, err, "%.*s ", (int)n, command_table[i].name));
	}
	return buf_puts(out, "--help --version --man --completion'\n", err);
}

/* The second words of the names that begin with the n bytes of `name`. */
static enum status put_seconds(const char *name, size_t n, struct buf *out, struct error *err)
{
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (!strncmp(command_table[i].name, name, n)) TRY(buf_printf(out, err, "%s ", command_table[i].name + n));
	return STATUS_OK;
}

/* Second words, where a name has two. */
static enum status put_families(struct buf *out, struct error *err)
{
	for (int i = 0; i < COMMAND_COUNT; i++) {
		const char *name = command_table[i].name, *space = strchr(name, ' ');
		if (!space) continue;
		size_t n = (size_t)(space - name) + 1;
		bool seen = false;
		for (int j = 0; j < i; j++) seen |= !strncmp(command_table[j].name, name, n);
		if (seen) continue;
		TRY(buf_printf(out, err, "\telif [ \"$COMP_CWORD\" -eq 2 ] && [ \"$command\" = %.*s ]", (int)n - 1, name));
		if (settings_is_command(name, n - 1)) { /* its operand, or options, unless a second word begins so */
			TRY(buf_puts(out, " && compgen -W '", err));
			TRY(put_seconds(name, n, out, err));
			TRY(buf_puts(out, "' -- \"$cur\" >/dev/null", err));
		}
		TRY(buf_puts(out, "; then\n\t\twords='", err));
		TRY(put_seconds(name, n, out, err));
		TRY(buf_puts(out, settings_is_command(name, n - 1) ? "'\n" : "--help'\n", err));
	}
	return STATUS_OK;
}

static const char *kind_of(const struct option *option)
{
	bool text = option->type == OPTION_TEXT && option->argument;
	if (text && (!strcmp(option->argument, "F") || !strcmp(option->argument, "FILE") || !strcmp(option->argument, "NAME|FILE"))) return "files";
	return text && !strcmp(option->argument, "DIR") ? "folders" : "none";
}

/* The branch for the value of one option: `command:--name | command:-letter) …`. */
static enum status put_value(const struct command *command, const struct option *option, struct buf *out, struct error *err)
{
	if (option->letter) TRY(buf_printf(out, err, "\t\t'%s:-%c' | ", command->name, option->letter));
	else TRY(buf_puts(out, "\t\t", err));
	TRY(buf_printf(out, err, "'%s:--%s') ", command->name, option->name));
	if (option->type != OPTION_CHOICE) return buf_printf(out, err, "kind=%s ;;\n", kind_of(option));
	TRY(buf_puts(out, "words='", err));
	for (const char *at = option->argument; *at; at++) TRY(buf_append(out, *at == '|' ? " " : at, 1, err));
	return buf_puts(out, "' ;;\n", err);
}

/* After a command: values where the word before is an option that takes one, options after a dash, else the operand. */
static enum status put_arguments(struct buf *out, struct error *err)
{
	TRY(buf_puts(out, "\telse\n\t\tcase \"$command ${COMP_WORDS[2]}\" in\n", err));
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (strchr(command_table[i].name, ' ')) TRY(buf_printf(out, err, "\t\t'%s') command='%s' ;;\n", command_table[i].name, command_table[i].name));
	TRY(buf_puts(out, "\t\tesac\n\t\tcase $command:$prev in\n", err));
	for (int i = 0; i < COMMAND_COUNT; i++)
		for (int j = 0; j < settings_table.count; j++) {
			const struct option *option = &settings_table.rows[j];
			if ((option->commands & command_table[i].bit) && option->help && option->type != OPTION_FLAG)
				TRY(put_value(&command_table[i], option, out, err));
		}
	TRY(buf_puts(out, "\t\t*)\n\t\t\tcase $command:$cur in\n", err));
	for (int i = 0; i < COMMAND_COUNT; i++) {
		TRY(buf_printf(out, err, "\t\t\t'%s:-'*) words='", command_table[i].name));
		for (int j = 0; j < settings_table.count; j++) {
			const struct option *option = &settings_table.rows[j];
			if ((option->commands & command_table[i].bit) && option->help) TRY(buf_printf(out, err, "--%s ", option->name));
		}
		TRY(buf_puts(out, "' ;;\n", err));
	}
	return buf_puts(out, "\t\t\t*) kind=folders ;;\n\t\t\tesac ;;\n\t\tesac\n\tfi\n", err);
}

enum status completion_bash(struct buf *out, struct error *err)
{
	TRY(buf_puts(out, prologue, err));
	TRY(put_commands(out, err));
	TRY(put_families(out, err));
	TRY(put_arguments(out, err));
	return buf_puts(out, epilogue, err);
}
