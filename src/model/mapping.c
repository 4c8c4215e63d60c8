#include "model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANNOUNCE_BYTES ((size_t)128 << 10) /* below this the kernel's own fault-around does as well */

enum status mapping_open(struct mapping *out, const char *path, const char *kind, struct error *err)
{
	*out = (struct mapping){0};
	/* Not blocking, so that a pipe under this name cannot hang the start. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) return FAIL(err, IO, "%s: %s; check the path", path, strerror(errno));
	struct stat info;
	enum status st = STATUS_OK;
	if (fstat(fd, &info) != 0) st = FAIL(err, IO, "%s: %s", path, strerror(errno));
	else if (!S_ISREG(info.st_mode)) st = FAIL(err, BAD_INPUT, "%s: is not a regular file; name a %s file", path, kind);
	else if (info.st_size < 8)
		st = FAIL(err, BAD_INPUT, "%s: %lld bytes are too few for a %s file; the file is truncated", path, (long long)info.st_size, kind);
	if (st == STATUS_OK) {
		void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (bytes == MAP_FAILED) st = FAIL(err, NO_MEMORY, "%s: cannot be mapped: %s", path, strerror(errno));
		else *out = (struct mapping){.bytes = bytes, .size = (size_t)info.st_size};
	}
	close(fd);
	if (st == STATUS_OK) (void)madvise((void *)out->bytes, out->size, MADV_SEQUENTIAL);
	return st;
}

void mapping_close(struct mapping *mapping)
{
	if (mapping->bytes) munmap((void *)mapping->bytes, mapping->size);
	*mapping = (struct mapping){0};
}

static void advise(const struct mapping *mapping, size_t begin, size_t bytes, int advice)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), start = begin / page * page;
	if (bytes) (void)madvise((void *)(mapping->bytes + start), begin - start + bytes, advice); /* advice only */
}

void mapping_announce(const struct mapping *mapping, size_t begin, size_t bytes)
{
	if (bytes >= ANNOUNCE_BYTES) advise(mapping, begin, bytes, MADV_WILLNEED);
}

void mapping_drop(const struct mapping *mapping, size_t begin, size_t bytes)
{
	advise(mapping, begin, bytes, MADV_DONTNEED);
}
