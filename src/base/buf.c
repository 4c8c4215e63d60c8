#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

void buf_fini(struct buf *b)
{
	free(b->data);
	*b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
	b->size = 0;
	if (b->data) b->data[0] = 0;
}

enum status buf_reserve(struct buf *b, size_t extra, struct error *err)
{
	size_t need;
	if (!size_add(b->size, extra, &need) || !size_add(need, 1, &need))
		return FAIL(err, NO_MEMORY, "buffer: %zu + %zu bytes overflow", b->size, extra);
	if (need <= b->capacity) return STATUS_OK;
	size_t capacity = b->capacity > need / 2 ? b->capacity * 2 : need;
	if (capacity < 64) capacity = 64;
	TRY(mem_grow((void **)&b->data, capacity, 1, "buffer", err));
	b->capacity = capacity;
	return STATUS_OK;
}

enum status buf_append(struct buf *b, const void *bytes, size_t n, struct error *err)
{
	TRY(buf_reserve(b, n, err));
	if (n) memcpy(b->data + b->size, bytes, n);
	b->size += n;
	b->data[b->size] = 0;
	return STATUS_OK;
}

enum status buf_puts(struct buf *b, const char *text, struct error *err)
{
	return buf_append(b, text, strlen(text), err);
}

enum status buf_printf(struct buf *b, struct error *err, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (n < 0) return FAIL(err, BAD_INPUT, "buffer: text cannot be formatted");
	TRY(buf_reserve(b, (size_t)n, err));
	va_start(args, format);
	vsnprintf(b->data + b->size, (size_t)n + 1, format, args);
	va_end(args);
	b->size += (size_t)n;
	return STATUS_OK;
}

static enum status read_to_end(struct buf *b, int fd, const char *path, size_t limit, struct error *err)
{
	const size_t start = b->size;
	for (;;) {
		TRY(buf_reserve(b, 65536, err));
		ssize_t n = read(fd, b->data + b->size, 65536);
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) return FAIL(err, IO, "%s: %s", path, strerror(errno));
		b->size += (size_t)n;
		b->data[b->size] = 0;
		if (b->size - start > limit) return FAIL(err, BAD_INPUT, "%s: larger than %zu bytes; this is not the file it is taken for", path, limit);
		if (n == 0) return STATUS_OK;
	}
}

static enum status read_path(struct buf *b, const char *path, bool regular, size_t limit, struct error *err)
{
	struct stat info = {0};
	const int fd = open(path, O_RDONLY | O_CLOEXEC | (regular ? O_NONBLOCK : 0)); /* to open a pipe waits for who writes to it */
	if (fd < 0) return FAIL(err, IO, "%s: %s; check the path", path, strerror(errno));
	enum status st;
	(void)fstat(fd, &info);
	if (S_ISDIR(info.st_mode)) st = FAIL(err, IO, "%s: is a folder; name a file", path);
	else if (regular && !S_ISREG(info.st_mode)) st = FAIL(err, BAD_INPUT, "%s: is not a regular file", path);
	else st = read_to_end(b, fd, path, limit, err);
	close(fd);
	return st;
}

enum status buf_read_file(struct buf *b, const char *path, size_t limit, struct error *err)
{
	return read_path(b, path, false, limit, err);
}

enum status buf_read_regular(struct buf *b, const char *path, size_t limit, struct error *err)
{
	return read_path(b, path, true, limit, err);
}
