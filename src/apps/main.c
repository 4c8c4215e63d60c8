/* main.c: finds the command, parses its options, runs it, and turns its status into one line on stderr and an exit code.
 *
 * Exit codes: 0 ok, 2 usage, 3 bad input, 4 no room, 5 group aborted, 6 device fault (base/status.h); 130 after Ctrl-C (143 after
 * SIGTERM) and 141 when the reader of stdout went away, as a shell reports programs that died of these signals.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/console.h"
#include "apps/manual.h"
#include "apps/settings.h"
#include "tandem.h"

#define EXIT_SIGNAL 128
#define EXIT_PIPE (EXIT_SIGNAL + SIGPIPE)

/* "tandem: text" on one line: control characters of a hostile file or argument must not reach the terminal. */
static void print_error(struct error *err)
{
	for (unsigned char *at = (unsigned char *)err->text; *at; at++)
		if (*at < 32 || *at == 127) *at = '?';
	fprintf(stderr, "tandem: %s\n", err->text[0] ? err->text : status_name(err->code));
}

/* True for "bench" and the commands "bench step", "bench peak", …. */
static bool in_family(const struct command *command, const char *family)
{
	size_t n = strlen(family);
	return !strncmp(command->name, family, n) && command->name[n] == ' ';
}

/* Commands whose name starts the arguments. *used: words of the name. */
static const struct command *find_command(int argc, char **argv, int *used)
{
	char pair[64];
	if (argc > 1) {
		snprintf(pair, sizeof pair, "%.30s %.30s", argv[0], argv[1]);
		for (int i = 0; i < COMMAND_COUNT; i++)
			if (!strcmp(command_table[i].name, pair)) return *used = 2, &command_table[i];
	}
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (!strcmp(command_table[i].name, argv[0])) return *used = 1, &command_table[i];
	return NULL;
}

static enum status command_list(const char *family, struct buf *out, struct error *err)
{
	for (int i = 0; i < COMMAND_COUNT; i++) {
		const struct command *command = &command_table[i];
		if (family && !in_family(command, family)) continue;
		char left[64];
		snprintf(left, sizeof left, "  %s %s", command->name, command->operand ? command->operand : "");
		TRY(buf_printf(out, err, "%-33s%s\n", left, command->summary));
	}
	return STATUS_OK;
}

static unsigned bits_of(const char *family)
{
	unsigned mask = 0;
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (!family || in_family(&command_table[i], family)) mask |= command_table[i].bit;
	return mask;
}

static enum status help_all(const char *family, struct error *err)
{
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "Usage: tandem %s [MODEL] [options]\n\n", family ? family : "COMMAND"), end);
	if (!family) TRY_GOTO(buf_puts(&out, "Runs one large language model on several devices by tensor parallelism.\n\nCommands\n", err), end);
	TRY_GOTO(command_list(family, &out, err), end);
	TRY_GOTO(buf_puts(&out, "\nOptions; tandem COMMAND --help lists those of one command. [default unit]\n", err), end);
	TRY_GOTO(options_help(&settings_table, bits_of(family), &out, err), end);
	TRY_GOTO(buf_puts(&out, "\nExit codes: " EXIT_CODES_TEXT "\n", err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

static enum status help_command(const struct command *command, struct error *err)
{
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "Usage: tandem %s%s%s [options]\n\n%c%s.\n", command->name, command->operand ? " " : "",
	                    command->operand ? command->operand : "", command->summary[0] - 'a' + 'A', command->summary + 1), end);
	TRY_GOTO(options_help(&settings_table, command->bit, &out, err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

/* The one of all commands that `name` ("bench gem") may mean, or NULL. */
static const char *near_command(const char *name)
{
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (edit_near(name, command_table[i].name)) return command_table[i].name;
	return NULL;
}

static enum status unknown_command(int argc, char **argv, struct error *err)
{
	const char *name = argv[0], *near;
	bool family = false;
	for (int i = 0; i < COMMAND_COUNT; i++) family |= in_family(&command_table[i], name);
	if (family && argc > 1 && argv[1][0] != '-') {
		char pair[80];
		snprintf(pair, sizeof pair, "%.30s %.40s", name, argv[1]);
		near = near_command(pair);
		if (near) return FAIL(err, USAGE, "%s: unknown command; did you mean %s? See tandem %s --help", pair, near, name);
		return FAIL(err, USAGE, "%s: unknown command; see tandem %s --help", pair, name);
	}
	if (family) return FAIL(err, USAGE, "%s: what to do is missing; see tandem %s --help", name, name);
	near = near_command(name);
	if (near) return FAIL(err, USAGE, "%.40s: unknown command; did you mean %s? See tandem --help", name, near);
	if (name[0] == '-') return FAIL(err, USAGE, "%.40s: options come after the command; see tandem --help", name);
	return FAIL(err, USAGE, "%.40s: unknown command; see tandem --help", name);
}

static bool is_help(const char *argument)
{
	return !strcmp(argument, "--help") || !strcmp(argument, "-h");
}

static enum status print_version(struct error *err)
{
	static const char text[] = "tandem " TANDEM_VERSION "\n";
	return output_write(text, sizeof text - 1, err);
}

/* `tandem --man`, `tandem --man PAGE`, `tandem --completion`. */
static enum status print_manual(int argc, char **argv, struct error *err)
{
	struct buf out = {0};
	bool man = !strcmp(argv[0], "--man");
	enum status st;
	if (argc > (man ? 2 : 1)) return FAIL(err, USAGE, "'%.80s': one argument too many; see man tandem", argv[argc - 1]);
	if (!man) TRY_GOTO(completion_bash(&out, err), end);
	else if (argc == 1) TRY_GOTO(manual_list(&out, err), end);
	else TRY_GOTO(manual_page(argv[1], &out, err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

/* Requests that need no command. *done: answered. */
static enum status before_command(int argc, char **argv, bool *done, struct error *err)
{
	*done = true;
	if (argc == 0) return FAIL(err, USAGE, "command: missing; see tandem --help");
	if (argc > 1 && (is_help(argv[0]) || !strcmp(argv[0], "--version")))
		return FAIL(err, USAGE, "'%.80s': one argument too many; see tandem --help, or tandem COMMAND --help", argv[argc - 1]);
	if (is_help(argv[0])) return help_all(NULL, err);
	if (!strcmp(argv[0], "--version")) return print_version(err);
	if (!strcmp(argv[0], "--man") || !strcmp(argv[0], "--completion")) return print_manual(argc, argv, err);
	if (argc > 1 && is_help(argv[1]) && bits_of(argv[0]) && !settings_is_command(argv[0], strlen(argv[0]))) return help_all(argv[0], err);
	*done = false;
	return STATUS_OK;
}

/* "A.json [B.json]": two. */
static int most_operands(const struct command *command)
{
	return !command->operand ? 0 : strchr(command->operand, ' ') ? 2 : 1;
}

static enum status run_command(const struct command *command, int argc, char **argv, struct error *err)
{
	struct settings settings;
	struct operands operands;
	settings_init(&settings, command->bit);
	enum status st;
	TRY_GOTO(options_parse(&settings_table, command->bit, command->name, argc, argv, &settings, &operands, err), end);
	if (settings.help) {
		st = help_command(command, err);
	} else if (settings.version) {
		st = print_version(err);
	} else if (command->operand && !operands.count) {
		bool model = strstr(command->operand, "MODEL") != NULL;
		st = FAIL(err, USAGE, "%s: %s is missing; give a %s, as in tandem %s %s", command->name, command->operand, model ? "model folder" : "file",
		          command->name, model ? "models/demo" : "prescreen.json");
	} else if (operands.count > most_operands(command)) {
		st = FAIL(err, USAGE, "'%.80s': one argument too many; see tandem %s --help", operands.item[operands.count - 1], command->name);
	} else {
		settings.model = operands.item[0];
		settings.second = operands.count > 1 ? operands.item[1] : NULL;
		st = command->run(&settings, err);
	}
end:
	settings_fini(&settings);
	return st;
}

int main(int argc, char **argv)
{
	/* A closed pipe shows up as EPIPE, so that a run can end its ranks in order. */
	signal(SIGPIPE, SIG_IGN);
	/* NCCL must be told not to use the switch's multicast: a program that dies in it can take the host's GPUs along. Who sets it himself is right. */
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	/* A kernel that CUDA loads at its first launch may wait for one that runs, and that one for a peer: so all are loaded at the start. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	/* Where ranks share a GPU (--devices 0,0), a rank's kernels must not queue behind one of another that waits for them. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	struct error err = {0};
	bool done;
	enum status st = before_command(argc - 1, argv + 1, &done, &err);
	if (!done) {
		int used = 0;
		const struct command *command = find_command(argc - 1, argv + 1, &used);
		st = command ? run_command(command, argc - 1 - used, argv + 1 + used, &err) : unknown_command(argc - 1, argv + 1, &err);
	}
	int failed = output_finish();
	if (failed == EPIPE) return EXIT_PIPE;
	if (failed && st == STATUS_OK) st = FAIL(&err, IO, "stdout: %s; the output is incomplete", strerror(failed));
	if (st == STATUS_CANCELLED) return EXIT_SIGNAL + signals_caught();
	if (st != STATUS_OK) print_error(&err);
	if (status_scope(st) != STATUS_SCOPE_FATAL) return status_exit_code(st);
	fflush(NULL);
	_exit(status_exit_code(st)); /* a GPU's runtime waits for its kernels when a process ends in order, and one may never end */
}
