#include "model/source.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/source_impl.h"

void source_close(struct source **source)
{
	if (*source) (*source)->ops->close(*source);
	*source = NULL;
}

enum status source_find(struct source *source, const char *name, int dims, int64_t rows, int64_t cols, struct source_tensor *out,
                        struct error *err)
{
	*out = (struct source_tensor){0};
	if (dims < 1 || dims > 3 || rows < 1 || (dims > 1 && cols < 1))
		return FAIL(err, BAD_INPUT, "%s: asked for %d dimensions [%" PRId64 ", %" PRId64 "]; expected 1 to 3, above zero", name, dims, rows, cols);
	return source->ops->find(source, name, out, dims, dims == 3 ? (const int64_t[]){rows, 1, cols} : (const int64_t[]){rows, cols, 1}, err);
}

enum status source_find_stack(struct source *source, const char *name, int64_t count, int64_t rows, int64_t cols, struct source_tensor *out,
                              struct error *err)
{
	*out = (struct source_tensor){0};
	if (count < 1 || rows < 1 || cols < 1 || count > INT64_MAX / rows)
		return FAIL(err, BAD_INPUT, "%s: asked for [%" PRId64 ", %" PRId64 ", %" PRId64 "]; expected sizes above zero", name, count, rows, cols);
	return source->ops->find(source, name, out, 3, (const int64_t[]){count, rows, cols}, err);
}

bool source_has(const struct source *source, const char *name)
{
	return source->ops->has && source->ops->has(source, name);
}

const char *source_tensor_at(const struct source *source, size_t i, uint64_t *bytes)
{
	return source->ops->at ? source->ops->at(source, i, bytes) : NULL;
}

void source_scratch_fini(struct source_scratch *scratch)
{
	free(scratch->memory);
	*scratch = (struct source_scratch){0};
}

enum status source_scratch_reserve(struct source_scratch *scratch, size_t count, size_t size, struct error *err)
{
	size_t need;
	if (size_mul(count, size, &need) && need <= scratch->bytes) return STATUS_OK;
	TRY(mem_grow(&scratch->memory, count, size, "rows of weights", err));
	scratch->bytes = need;
	return STATUS_OK;
}

static bool inside(int64_t begin, int64_t count, int64_t size)
{
	return begin >= 0 && count >= 1 && count <= size && begin <= size - count;
}

enum status source_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        struct source_scratch *scratch, const void **data, size_t *stride, struct error *err)
{
	*data = NULL;
	*stride = 0;
	if (!inside(row, rows, tensor->shape[0]) || !inside(col, cols, source_row_elements(tensor)))
		return FAIL(err, BAD_INPUT,
		            "%s: asked for rows [%" PRId64 ", +%" PRId64 ") columns [%" PRId64 ", +%" PRId64 ") of [%" PRId64 ", %" PRId64 "]",
		            tensor->name, row, rows, col, cols, tensor->shape[0], source_row_elements(tensor));
	int block = dtype_block(tensor->dtype);
	if (col % block || cols % block)
		return FAIL(err, BAD_INPUT, "%s: columns [%" PRId64 ", +%" PRId64 ") cut through blocks of %d (%s)", tensor->name, col, cols, block,
		            dtype_name(tensor->dtype));
	TRY(source->ops->read(source, tensor, row, rows, col, cols, scratch, data, stride, err));
	uint64_t bytes = (uint64_t)rows * dtype_size(tensor->dtype, (size_t)cols);
	atomic_fetch_add_explicit(&source->bytes_read, bytes, memory_order_relaxed);
	return STATUS_OK;
}

bool source_recipe(const struct source *source, const struct source_tensor *tensor, struct source_recipe *out)
{
	if (!source->ops->recipe) return false;
	source->ops->recipe(source, tensor, out);
	return true;
}

uint64_t source_bytes_read(const struct source *source)
{
	return atomic_load_explicit(&source->bytes_read, memory_order_relaxed);
}
