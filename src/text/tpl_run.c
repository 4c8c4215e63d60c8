#include "text/tpl_run.h"

#include <stdalign.h>
#include <stdlib.h>

#include "base/mem.h"

#define CHUNK_BYTES ((size_t)32 << 10)

struct tpl_chunk {
	struct tpl_chunk *next;
	size_t used, size;
	alignas(max_align_t) char bytes[];
};

enum status tpl_out_of(struct tpl_run *run, const char *what)
{
	run->exhausted = true;
	return FAIL(run->err, BAD_INPUT, "the template needs more %s than it may have", what);
}

static struct tpl_chunk *chunk_create(struct tpl_run *run, size_t need)
{
	size_t size = need > CHUNK_BYTES / 4 ? need : CHUNK_BYTES;
	if (size > run->memory_bytes) size = need;
	if (size > run->memory_bytes) {
		run->memory_status = tpl_out_of(run, "memory");
		return NULL;
	}
	struct tpl_chunk *chunk = mem_zalloc(1, sizeof *chunk + size, "chat template", run->err);
	if (!chunk) {
		run->memory_status = STATUS_NO_MEMORY;
		return NULL;
	}
	run->memory_bytes -= size;
	chunk->size = size;
	if (size == need && run->chunks) { /* a big one: the newest keeps serving small ones */
		chunk->next = run->chunks->next;
		run->chunks->next = chunk;
	} else {
		chunk->next = run->chunks;
		run->chunks = chunk;
	}
	return chunk;
}

void *tpl_alloc(struct tpl_run *run, size_t count, size_t size)
{
	size_t bytes;
	if (!size_mul(count, size, &bytes) || !size_add(bytes, alignof(max_align_t), &bytes)) {
		run->memory_status = tpl_out_of(run, "memory");
		return NULL;
	}
	bytes = bytes / alignof(max_align_t) * alignof(max_align_t); /* rounded up, and never 0 for count 0 */
	struct tpl_chunk *chunk = run->chunks;
	if (!chunk || chunk->size - chunk->used < bytes) chunk = chunk_create(run, bytes);
	if (!chunk) return NULL;
	void *ptr = chunk->bytes + chunk->used;
	chunk->used += bytes;
	return ptr;
}

void tpl_chunks_free(struct tpl_chunk **chunks)
{
	while (*chunks) {
		struct tpl_chunk *chunk = *chunks;
		*chunks = chunk->next;
		free(chunk);
	}
}
