/* compare.c: launches the comparison of two matrices and adds up what its blocks saw. */
#include "device/gpu/compare.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "device/gpu/device.h"

#define BLOCK_VALUES 4096 /* that are worth a block */
#define BLOCKS_PER_MULTIPROCESSOR 8

static void add(struct compare_result *out, const struct compare_part *part)
{
	out->values += part->values;
	out->unwritten += part->unwritten;
	out->outside += part->outside;
	out->different += part->different;
	out->diff2 += part->diff2;
	out->ref2 += part->ref2;
	if (part->nans) out->most_diff = NAN;
	if (part->most_diff > out->most_diff) out->most_diff = part->most_diff; /* never of NaN */
	if (part->most > out->most) out->most = part->most;
	out->hash += part->hash;
}

enum status gpu_compare_memory(struct stream *stream, const struct compare_args *args, struct compare_result *out, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const int64_t values = args->rows * args->cols, most = (int64_t)context->props.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
	int64_t blocks = (values + BLOCK_VALUES - 1) / BLOCK_VALUES;
	*out = (struct compare_result){0};
	if (!dtype_is_plain(args->dtype)) return FAIL(err, UNSUPPORTED, "compare: values of type %s; plain types are supported", dtype_name(args->dtype));
	if (!values) return STATUS_OK;
	if (blocks > most) blocks = most;
	const size_t bytes = (size_t)blocks * sizeof(struct compare_part);
	if (bytes > context->workspace_bytes) return FAIL(err, NO_ROOM, "compare: %zu bytes of workspace wanted, there are %zu", bytes, context->workspace_bytes);
	struct compare_part *parts = mem_zalloc((size_t)blocks, sizeof *parts, "compare", err);
	if (!parts) return STATUS_NO_MEMORY;
	enum status st = compare_launch(context, args, context->workspace, (unsigned)blocks, err);
	if (st == STATUS_OK) st = gpu_memory_copy(stream, parts, context->workspace, bytes, COPY_TO_HOST, err);
	if (st == STATUS_OK) st = gpu_stream_object_sync(stream, args->deadline_ns, NULL, err);
	for (int64_t i = 0; st == STATUS_OK && i < blocks; i++) add(out, &parts[i]);
	free(parts);
	return st;
}
