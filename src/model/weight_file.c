#include "model/weight_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/source_impl.h"

#define ANNOUNCE_BYTES ((size_t)128 << 10) /* below this the kernel reads ahead as far by itself */
#define WHOLE_LINES_BELOW 4096             /* bytes of a line: parts of shorter ones are not worth a call each */

static enum status open_regular(struct weight_file *out, const char *path, const char *kind, struct error *err)
{
	/* Not blocking, so that a pipe under this name cannot hang the start. */
	out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (out->fd < 0) return FAIL(err, IO, "%s: %s; check the path", path, strerror(errno));
	struct stat info;
	if (fstat(out->fd, &info) != 0) return FAIL(err, IO, "%s: %s", path, strerror(errno));
	if (!S_ISREG(info.st_mode)) return FAIL(err, BAD_INPUT, "%s: is not a regular file; name a %s file", path, kind);
	out->size = (size_t)info.st_size;
	if (out->size < 8)
		return FAIL(err, BAD_INPUT, "%s: %zu bytes are too few for a %s file; the file is truncated", path, out->size, kind);
	return STATUS_OK;
}

enum status weight_file_open(struct weight_file *out, const char *path, const char *kind, struct error *err)
{
	*out = (struct weight_file){.fd = -1, .path = mem_strdup(path, "path", err)};
	if (!out->path) return STATUS_NO_MEMORY;
	enum status st = open_regular(out, path, kind, err);
	if (st != STATUS_OK) weight_file_close(out);
	return st;
}

void weight_file_close(struct weight_file *file)
{
	if (file->path && file->fd >= 0) close(file->fd);
	free(file->path);
	*file = (struct weight_file){0};
}

enum status weight_file_read(const struct weight_file *file, size_t begin, void *into, size_t bytes, struct error *err)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pread(file->fd, (char *)into + done, bytes - done, (off_t)(begin + done));
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) return FAIL(err, IO, "%s: %s at byte %zu", file->path, strerror(errno), begin + done);
		if (n == 0)
			return FAIL(err, BAD_INPUT, "%s: no byte %zu any more, of %zu when it was opened; do not change a file while it is read", file->path, begin + done,
			            file->size);
		done += (size_t)n;
	}
	return STATUS_OK;
}

void weight_file_announce(const struct weight_file *file, size_t begin, size_t bytes)
{
	if (bytes >= ANNOUNCE_BYTES) (void)posix_fadvise(file->fd, (off_t)begin, (off_t)bytes, POSIX_FADV_WILLNEED); /* advice only */
}

enum status weight_file_lines(const struct weight_file *file, const struct weight_lines *l, struct source_scratch *scratch, const void **data, size_t *stride,
                              struct error *err)
{
	const bool whole = l->bytes == l->line || l->line < WHOLE_LINES_BELOW;
	const size_t rows = (size_t)l->rows, each = whole ? l->line : l->bytes;
	TRY(source_scratch_reserve(scratch, rows, each, err));
	weight_file_announce(file, l->begin, rows * l->line);
	char *to = scratch->memory;
	if (whole) TRY(weight_file_read(file, l->begin, to, rows * each, err));
	for (size_t i = 0; i < rows && !whole; i++) TRY(weight_file_read(file, l->begin + i * l->line + l->skip, to + i * each, each, err));
	*data = to + (whole ? l->skip : 0);
	*stride = each;
	return STATUS_OK;
}
