/* out_file.h: a file that appears whole or not at all. A regular file, or a new one, is written beside its path under a name that nothing has, and takes
 * the path's place at the end, with the permissions of what it replaces; a symbolic link stays, what it leads to is replaced. Anything else (a FIFO, a
 * device, a link that leads nowhere) is opened and written as it is. Owner: whoever opened it; one thread at a time. */
#ifndef TANDEM_BASE_OUT_FILE_H
#define TANDEM_BASE_OUT_FILE_H

#include <stdio.h>

#include "base/status.h"

struct out_file {
	FILE *file;   /* to write to; NULL: not open */
	char *path;   /* what is replaced, without links; NULL: it is written in place */
	char *beside; /* where it is written until then */
};

/* `out` is zeroed before. IO, with `path` and what to do. A FIFO waits for its reader. */
enum status out_file_open(struct out_file *out, const char *path, struct error *err) NODISCARD;
/* To be called right after the last write: what was written takes its place; `out` is closed either way, and after a failure what was there is as it was. IO, NO_MEMORY. */
enum status out_file_commit(struct out_file *out, const char *path, struct error *err) NODISCARD;
/* Drops what was not committed. Zeroed or closed: nothing happens. */
void out_file_drop(struct out_file *out);
/* All three at once: data[0..n) is what is at `path`. */
enum status out_file_write(const char *path, const void *data, size_t n, struct error *err) NODISCARD;

#endif
