/* console.h: the program's stdout, stderr and signals. One thread writes stdout; log and progress lines may come from any. */
#ifndef TANDEM_APPS_CONSOLE_H
#define TANDEM_APPS_CONSOLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"

struct tandem;

/* As json_string, with U+FFFD for what is not UTF-8: a path may hold any bytes. NULL: no memory. */
json_t *json_path(const char *text);
/* Writes and flushes: a reader of a stream of tokens sees each at once. CANCELLED when the reader has gone (main then exits as a
 * program that died of SIGPIPE), IO otherwise. */
enum status output_write(const void *bytes, size_t n, struct error *err) NODISCARD;
/* One line of JSON. Takes `object`; NULL (jansson had no memory) gives NO_MEMORY. */
enum status output_json(json_t *object, struct error *err) NODISCARD;
/* Flushes. errno of the first write that failed, or 0. */
int output_finish(void);

/* What the engine says while it loads and runs. Warnings always show; the rest with `verbose`. The bar shows on a terminal only. */
struct console {
	bool verbose;
	bool terminal; /* stderr is one */
	uint64_t drawn_ns;
	bool bar; /* a bar stands on the line */
};
void console_init(struct console *console, bool verbose);
void console_log(void *console, int level, const char *line);
void console_progress(void *console, const char *what, uint64_t done, uint64_t total);
/* A line that stands until the next one, on a terminal only. */
void console_status(struct console *console, const char *line);
void console_clear(struct console *console); /* takes the bar away */
/* The same sink as base/log.h wants it. */
struct log console_sink(struct console *console);

/* The first SIGINT or SIGTERM interrupts `engine` (ends the program while it is NULL), the second ends the program. NULL also
 * forgets an engine that is about to close. */
void signals_watch(struct tandem *engine);
/* From here on SIGINT and SIGTERM, each time they come, write a byte to `fd` and do nothing else. For a program that ends in order. */
void signals_to(int fd);
/* The signal that came, or 0. */
int signals_caught(void);

/* "1.5 GiB" */
const char *format_bytes(double bytes, char text[24]);

#endif
