/* The weight source over a GGUF file: names of checkpoints in, tensors of the file out, rows of q and k in the checkpoint's order.
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

/* Rows that lie in another order, one at a time. */
static enum status read_in_order(const struct gguf_source *g, const struct source_tensor *tensor, int64_t row, const struct weight_lines *l,
                                 struct source_scratch *scratch, struct error *err)
{
	TRY(source_scratch_reserve(scratch, (size_t)l->rows, l->bytes, err));
	char *to = scratch->memory;
	for (int64_t i = 0; i < l->rows; i++, to += l->bytes)
		TRY(weight_file_read(&g->file.file, place_of(g, tensor, stored_row(tensor, row + i)) + l->skip, to, l->bytes, err));
	return STATUS_OK;
}

static enum status gguf_source_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                    struct source_scratch *scratch, const void **data, size_t *stride, struct error *err)
{
	const struct gguf_source *g = (const struct gguf_source *)source;
	const struct weight_lines lines = {.begin = place_of(g, tensor, row), .line = line_bytes(tensor), .skip = dtype_size(tensor->dtype, (size_t)col),
	                                   .bytes = dtype_size(tensor->dtype, (size_t)cols), .rows = rows};
	if (!tensor->head_rows) return weight_file_lines(&g->file.file, &lines, scratch, data, stride, err);
	TRY(read_in_order(g, tensor, row, &lines, scratch, err));
	*data = scratch->memory;
	*stride = lines.bytes;
	return STATUS_OK;
}

static const struct source_ops gguf_ops = {
	.close = gguf_source_close, .find = gguf_source_find, .has = gguf_source_has, .read = gguf_source_read};

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
	log_write(log, LOG_DEBUG, "%s: %zu tensors, %" PRIu64 " bytes", path, g->file.tensor_count, g->base.bytes_total);
	*out = &g->base;
	return STATUS_OK;
fail:
	gguf_source_close(&g->base);
	return st;
}
