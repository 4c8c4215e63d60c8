/* The weight source over a GGUF file: names of checkpoints in, tensors of the file out, rows of q and k in the checkpoint's order. Where
 * rows lie in another order a read copies the rows that were asked for, a window of them at a time; all else points into the mapping.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/fields.h"
#include "model/gguf.h"
#include "model/source_impl.h"

struct gguf_source {
	struct source base;
	struct gguf file;
	int heads, kv_heads; /* 0: rows are stored as they are read */
};

static void gguf_source_close(struct source *source)
{
	struct gguf_source *g = (struct gguf_source *)source;
	gguf_close(&g->file);
	free(g);
}

static const struct gguf_tensor *find_tensor(const struct gguf_source *g, const char *name, enum gguf_order *order)
{
	char own[128];
	return gguf_name_of(&g->file, name, own, sizeof own, order) ? gguf_tensor(&g->file, own) : NULL;
}

static bool gguf_source_has(const struct source *source, const char *name)
{
	enum gguf_order order;
	return find_tensor((const struct gguf_source *)source, name, &order) != NULL;
}

static void shape_text(char *out, size_t size, int dims, const int64_t *shape)
{
	size_t n = (size_t)snprintf(out, size, "[");
	for (int i = 0; i < dims && n < size; i++) n += (size_t)snprintf(out + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
	if (n < size) snprintf(out + n, size - n, "]");
}

static enum status gguf_source_find(struct source *source, const char *name, struct source_tensor *out, int dims, const int64_t *shape, struct error *err)
{
	const struct gguf_source *g = (const struct gguf_source *)source;
	enum gguf_order order = GGUF_PLAIN;
	const struct gguf_tensor *t = find_tensor(g, name, &order);
	char expected[64], found[120], own[128] = "", type[24];
	(void)gguf_name_of(&g->file, name, own, sizeof own, &order);
	const int64_t rows = source_rows(dims, shape), cols = source_cols(dims, shape);
	shape_text(expected, sizeof expected, dims, shape);
	if (!t)
		return FAIL(err, BAD_INPUT, "%s: tensor \"%s\" (%s) of shape %s is missing; the file is incomplete", g->file.path, own, name, expected);
	if (t->dims != dims || dims > 2 || t->shape[0] != rows || (dims == 2 && t->shape[1] != cols)) {
		shape_text(found, sizeof found, t->dims, t->shape);
		return FAIL(err, BAD_INPUT, "%s: tensor \"%s\": expected shape %s, found %s; the tensors do not fit the metadata", g->file.path, own, expected, found);
	}
	if (t->dtype == DTYPE_COUNT || (dims == 1 && !dtype_is_plain(t->dtype)))
		return FAIL(err, UNSUPPORTED, "%s: tensor \"%s\": type %s is not implemented%s", g->file.path, own, gguf_type_name(t->type, type),
		            dims == 1 ? " for a vector" : "");
	int heads = order == GGUF_Q_HEADS ? g->heads : order == GGUF_KV_HEADS ? g->kv_heads : 0;
	*out = (struct source_tensor){.name = t->name, .dtype = t->dtype, .dims = dims, .shape = {rows, cols}, .internal = t,
	                              .head_rows = heads ? (int)(rows / heads) : 0};
	if (heads && (rows % heads || out->head_rows % 2))
		return FAIL(err, BAD_INPUT, "%s: tensor \"%s\": its %" PRId64 " rows are not %d heads of an even size; the file is damaged", g->file.path, own, rows,
		            heads);
	return STATUS_OK;
}

static size_t line_bytes(const struct source_tensor *tensor)
{
	return dtype_size(tensor->dtype, (size_t)source_row_elements(tensor));
}

static size_t place_of(const struct gguf_source *g, const struct source_tensor *tensor, int64_t row)
{
	const struct gguf_tensor *t = tensor->internal;
	return (size_t)(g->file.data_offset + t->begin) + (size_t)row * line_bytes(tensor);
}

/* Row (head, half, pair) is stored as (head, pair, half). */
static int64_t stored_row(const struct source_tensor *tensor, int64_t row)
{
	int64_t size = tensor->head_rows, head = row / size, half = row % size / (size / 2), pair = row % (size / 2);
	return head * size + 2 * pair + half;
}

/* The whole heads that rows [*row, *row + *rows) belong to. */
static void whole_heads(const struct source_tensor *tensor, int64_t *row, int64_t *rows)
{
	if (!tensor->head_rows) return;
	int64_t size = tensor->head_rows, begin = *row / size * size, end = (*row + *rows + size - 1) / size * size;
	*row = begin;
	*rows = end - begin;
}

static enum status gguf_source_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                    struct source_scratch *scratch, const void **data, size_t *stride, struct error *err)
{
	const struct gguf_source *g = (const struct gguf_source *)source;
	int64_t first = row, count = rows;
	whole_heads(tensor, &first, &count);
	mapping_announce(&g->file.mapping, place_of(g, tensor, first), (size_t)count * line_bytes(tensor));
	size_t skip = dtype_size(tensor->dtype, (size_t)col), bytes = dtype_size(tensor->dtype, (size_t)cols);
	if (!tensor->head_rows) {
		*data = g->file.bytes + place_of(g, tensor, row) + skip;
		*stride = line_bytes(tensor);
		return STATUS_OK;
	}
	if (scratch->bytes < (size_t)rows * bytes) { /* no overflow: it is a part of the file */
		TRY(mem_grow(&scratch->memory, (size_t)rows, bytes, "rows of q or k", err));
		scratch->bytes = (size_t)rows * bytes;
	}
	for (int64_t i = 0; i < rows; i++)
		memcpy((char *)scratch->memory + (size_t)i * bytes, g->file.bytes + place_of(g, tensor, stored_row(tensor, row + i)) + skip, bytes);
	*data = scratch->memory;
	*stride = bytes;
	return STATUS_OK;
}

static void gguf_source_done(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows)
{
	const struct gguf_source *g = (const struct gguf_source *)source;
	whole_heads(tensor, &row, &rows);
	mapping_drop(&g->file.mapping, place_of(g, tensor, row), (size_t)rows * line_bytes(tensor));
}

static const struct source_ops gguf_ops = {
	.close = gguf_source_close, .find = gguf_source_find, .has = gguf_source_has, .read = gguf_source_read, .done = gguf_source_done};

enum status source_open_gguf(struct source **out, const char *path, const struct log *log, struct error *err)
{
	*out = NULL;
	struct model_config config;
	struct gguf_source *g = mem_zalloc(1, sizeof *g, "GGUF source", err);
	if (!g) return STATUS_NO_MEMORY;
	g->base.ops = &gguf_ops;
	enum status st;
	TRY_GOTO(gguf_open(&g->file, path, err), fail);
	if (gguf_interleaves(&g->file)) {
		TRY_GOTO(gguf_config(&config, &g->file, NULL, err), fail);
		g->heads = config.q_heads;
		g->kv_heads = config.kv_heads;
	}
	for (size_t i = 0; i < g->file.tensor_count; i++) g->base.bytes_total += g->file.tensors[i].bytes;
	mapping_drop(&g->file.mapping, 0, (size_t)g->file.data_offset);
	log_write(log, LOG_DEBUG, "%s: %zu tensors, %" PRIu64 " bytes", path, g->file.tensor_count, g->base.bytes_total);
	*out = &g->base;
	return STATUS_OK;
fail:
	gguf_source_close(&g->base);
	return st;
}
