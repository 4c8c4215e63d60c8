/* mem.h: checked memory. Sizes are products that are checked for overflow; a failure names who asked.
 *
 * Three lifetimes exist in tandem: process, request, step. What is here serves the first two; step memory is carved
 * at start and reused. Ownership: the caller of an allocation frees it with the paired call. Thread: any.
 */
#ifndef TANDEM_BASE_MEM_H
#define TANDEM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* `a * b` and `a + b` in size_t; false on overflow and then *out is untouched. */
bool size_mul(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);
/* The least multiple of `unit` that is at least `n`; n + unit - 1 does not overflow. */
static inline size_t size_round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Zeroed array of count*size bytes (never NULL for 0). NULL with `err` set (NO_MEMORY, naming `what`) on failure. */
void *mem_zalloc(size_t count, size_t size, const char *what, struct error *err) NODISCARD;
/* The same, starting on a cache line: for what holds a struct wait_word. Freed by free(). */
void *mem_zalloc_lines(size_t count, size_t size, const char *what, struct error *err) NODISCARD;
/* Grows `*ptr` (NULL is fine) to count*size bytes; on failure *ptr stays valid. New bytes are not zeroed. */
enum status mem_grow(void **ptr, size_t count, size_t size, const char *what, struct error *err) NODISCARD;
char *mem_strdup(const char *text, const char *what, struct error *err) NODISCARD;

/* Large page-aligned zeroed region from the system, huge pages asked for. Freed by mem_unmap with the same size. */
void *mem_map(size_t bytes, const char *what, struct error *err) NODISCARD;
void mem_unmap(void *ptr, size_t bytes);

#endif
