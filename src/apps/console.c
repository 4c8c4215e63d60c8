#include "apps/console.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tandem.h"
#include "text/utf8.h"

#define BAR_WIDTH 30
#define STATUS_COLUMNS 78 /* of a terminal that nobody has widened */
#define BAR_INTERVAL_NS 50000000u

/* A signal handler and the end of main have no argument to get these by. */
static struct {
	_Atomic(struct tandem *) engine;
	volatile sig_atomic_t caught;
	volatile sig_atomic_t told; /* descriptor for signals_to */
	int write_error;            /* errno of stdout's first failure */
} process;

json_t *json_path(const char *text)
{
	struct buf mended = {0};
	enum status st = utf8_append_lossy(&mended, text, strlen(text), NULL);
	json_t *made = st == STATUS_OK ? json_string(mended.data ? mended.data : "") : NULL;
	buf_fini(&mended);
	return made;
}

enum status output_write(const void *bytes, size_t n, struct error *err)
{
	errno = 0;
	if (fwrite(bytes, 1, n, stdout) == n && !fflush(stdout)) return STATUS_OK;
	if (!process.write_error) process.write_error = errno ? errno : EIO;
	if (process.write_error == EPIPE) return FAIL(err, CANCELLED, "stdout: closed by its reader; nothing more to do");
	return FAIL(err, IO, "stdout: %s; the output is incomplete", strerror(process.write_error));
}

enum status output_json(json_t *object, struct error *err)
{
	char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(object);
	if (!text) return FAIL(err, NO_MEMORY, "JSON output: no memory; use a machine with more");
	enum status st = output_write(text, strlen(text), err);
	if (st == STATUS_OK) st = output_write("\n", 1, err);
	free(text);
	return st;
}

int output_finish(void)
{
	errno = 0;
	bool failed = fflush(stdout) || ferror(stdout);
	if (failed && !process.write_error) process.write_error = errno ? errno : EIO;
	return process.write_error;
}

void console_init(struct console *console, bool verbose)
{
	*console = (struct console){.verbose = verbose, .terminal = isatty(STDERR_FILENO) == 1};
}

void console_log(void *context, int level, const char *line)
{
	struct console *console = context;
	if (level < LOG_WARN && !console->verbose) return;
	fprintf(stderr, "%standem: %s%s\n", console->bar ? "\r\033[K" : "", level == LOG_WARN ? "warning: " : "", line);
}

static void sink(void *context, enum log_level level, const char *line)
{
	console_log(context, (int)level, line);
}

struct log console_sink(struct console *console)
{
	return (struct log){.write = sink, .context = console};
}

void console_progress(void *context, const char *what, uint64_t done, uint64_t total)
{
	struct console *console = context;
	uint64_t now = clock_ns();
	if (!console->terminal || !total || (now - console->drawn_ns < BAR_INTERVAL_NS && done < total)) return;
	console->drawn_ns = now;
	console->bar = true;
	double part = done < total ? (double)done / (double)total : 1;
	int filled = (int)(part * BAR_WIDTH);
	fprintf(stderr, "\r\033[K%.20s [%.*s%*s] %3.0f %%", what, filled, "##############################", BAR_WIDTH - filled, "", part * 100);
	fflush(stderr);
}

void console_status(struct console *console, const char *line)
{
	uint64_t now = clock_ns();
	if (!console->terminal || now - console->drawn_ns < BAR_INTERVAL_NS) return;
	console->drawn_ns = now;
	console->bar = true;
	fprintf(stderr, "\r\033[K%.*s", STATUS_COLUMNS, line);
	fflush(stderr);
}

void console_clear(struct console *console)
{
	if (console->bar) fputs("\r\033[K", stderr);
	console->bar = false;
}

static void on_signal(int number)
{
	struct tandem *engine = atomic_load(&process.engine);
	process.caught = number;
	if (!engine) _exit(128 + number);
	tandem_interrupt(engine, true);
}

void signals_watch(struct tandem *engine)
{
	atomic_store(&process.engine, engine);
	if (!engine || process.caught) return;
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static void on_told_signal(int number)
{
	int kept = errno;
	process.caught = number;
	ssize_t n = write(process.told, "", 1);
	(void)n; /* full: many came already */
	errno = kept;
}

void signals_to(int fd)
{
	struct sigaction action = {.sa_handler = on_told_signal, .sa_flags = SA_RESTART};
	process.told = fd;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

int signals_caught(void)
{
	return process.caught;
}

const char *format_bytes(double bytes, char text[24])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	int unit = 0;
	for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
	snprintf(text, 24, unit && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
	return text;
}
