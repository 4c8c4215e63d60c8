#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

bool size_mul(size_t a, size_t b, size_t *out)
{
	size_t product;
	if (__builtin_mul_overflow(a, b, &product)) return false;
	*out = product;
	return true;
}

bool size_add(size_t a, size_t b, size_t *out)
{
	size_t sum;
	if (__builtin_add_overflow(a, b, &sum)) return false;
	*out = sum;
	return true;
}

static enum status no_memory(size_t count, size_t size, const char *what, struct error *err)
{
	return FAIL(err, NO_MEMORY, "%s: no memory for %zu x %zu bytes; use a smaller model or context, or a larger machine", what, count,
	            size);
}

void *mem_zalloc(size_t count, size_t size, const char *what, struct error *err)
{
	size_t bytes;
	void *ptr = size_mul(count, size, &bytes) ? calloc(1, bytes ? bytes : 1) : NULL;
	if (!ptr) (void)no_memory(count, size, what, err);
	return ptr;
}

void *mem_zalloc_lines(size_t count, size_t size, const char *what, struct error *err)
{
	size_t bytes, rounded;
	void *ptr = size_mul(count, size, &bytes) && size_add(bytes, 63, &rounded) ? aligned_alloc(64, rounded / 64 * 64 + 64 * !bytes) : NULL;
	if (ptr) memset(ptr, 0, bytes);
	else (void)no_memory(count, size, what, err);
	return ptr;
}

enum status mem_grow(void **ptr, size_t count, size_t size, const char *what, struct error *err)
{
	size_t bytes;
	void *grown = size_mul(count, size, &bytes) ? realloc(*ptr, bytes ? bytes : 1) : NULL;
	if (!grown) return no_memory(count, size, what, err);
	*ptr = grown;
	return STATUS_OK;
}

char *mem_strdup(const char *text, const char *what, struct error *err)
{
	size_t n = strlen(text) + 1;
	char *copy = mem_zalloc(n, 1, what, err);
	if (copy) memcpy(copy, text, n);
	return copy;
}

void *mem_map(size_t bytes, const char *what, struct error *err)
{
	void *ptr = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ptr == MAP_FAILED) {
		(void)no_memory(bytes, 1, what, err);
		return NULL;
	}
	(void)madvise(ptr, bytes, MADV_HUGEPAGE); /* advice only: without it everything works, slower */
	return ptr;
}

void mem_unmap(void *ptr, size_t bytes)
{
	if (ptr) munmap(ptr, bytes ? bytes : 1);
}
