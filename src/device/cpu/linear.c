/* linear.c: weights in panels, and y = x W^T for any number of rows with one order of summation.
 *
 * Layout: [ceil(n / PANEL)][k][PANEL] in the checkpoint's dtype, outputs past n zero, order within PANEL by panel_slot. A vector lane is an output, so a sum over k is
 * one fma chain per lane and no lane reduction exists; one row and a thousand rows do the same arithmetic.
 *
 * Rows are cut into tiles of nearly equal height (<= linear_rows), tiles are packed as [k][rows of the tile]. Few rows stream a
 * panel each, once from memory, then from the second-level cache. Many tiles: a work item is a few panels times a block of tiles, and
 * goes LINEAR_CHUNK_K steps of a panel at a time, which stay in the first-level cache for all tiles of the block; chains pause in
 * `stack` between chunks, so their order stays k ascending. The weights are widened in registers, exactly, wherever they are used
 * (a widened copy in cache was measured slower: it is twice the bytes). Block types (quant.h) take several instructions an element:
 * with more than widen_rows rows they are widened LINEAR_WIDE_K steps at a time for all tiles of the block.
 *
 * With a sum_split each leaf segment is a chain of its own from +0; a finished leaf stays on `stack` until the program of
 * base/sumtree.h adds it to its neighbour. Each span leaves one value, in its slot of y.
 */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "device/cpu/quant.h"

/* Below this many multiplications the caller works alone. */
#define SERIAL_PRODUCTS 65536
/* Elements of x below which packing is not shared. */
#define SERIAL_PACK 4096
#define PREFETCH_NEXT_BYTES 2048
#define PACK_CHUNK_K 512
#define PACK_CHUNKS 2 /* a member's, at least, where a chunk is then no shorter than PACK_STEP_K */
#define PACK_STEP_K 16 /* k-steps transposed at a time: a cache line of each row to as many of the tile */
#define PUT_CHUNK_K 64 /* k-steps transposed at a time: 32 source rows of 128 bytes, 4 KiB of panel */

struct linear_job {
	const struct linear_args *args;
	const struct cpu_kernels *kernels;
	struct cpu_stream *stream;
	const float *x; /* tiles, packed; a single row as it is */
	int rows, tiles, blocks;
	int panels, group, groups; /* panels, panels per item, items along them */
	int packs;                 /* parts along k that are packed apart */
	int chunk_k;
	bool quant, widen; /* block type; by way of scratch */
	struct cpu_sum_plan sum;
};

static int tile_begin(const struct linear_job *job, int tile)
{
	return (int)((int64_t)tile * job->rows / job->tiles);
}

static int block_begin(const struct linear_job *job, int block)
{
	return (int)((int64_t)block * job->tiles / job->blocks);
}

/* Tile `chunk % tiles`, part `chunk / tiles` of the k-steps: x [row][k] to [k][row]. */
static void pack_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct linear_job *job = context;
	const struct tensor *x = &job->args->x;
	int tile = chunk % job->tiles, row = tile_begin(job, tile), height = tile_begin(job, tile + 1) - row, part = chunk / job->tiles;
	int steps_all = (x->cols + PACK_STEP_K - 1) / PACK_STEP_K;
	int k0 = (int)((int64_t)part * steps_all / job->packs) * PACK_STEP_K, k1 = (int)((int64_t)(part + 1) * steps_all / job->packs) * PACK_STEP_K;
	if (k1 > x->cols) k1 = x->cols;
	int first = k0;
	float *out = job->stream->packed + (size_t)row * (size_t)x->cols + (size_t)first * (size_t)height;
	for (; k0 < k1; k0 += PACK_STEP_K)
		for (int r = 0; r < height; r++) {
			const float *in = cpu_row(x, row + r) + k0;
			float *to = out + (size_t)(k0 - first) * (size_t)height + (size_t)r;
			int steps = k1 - k0 < PACK_STEP_K ? k1 - k0 : PACK_STEP_K;
			if (steps < PACK_STEP_K)
				for (int k = 0; k < steps; k++) to[(size_t)k * (size_t)height] = in[k];
			else
				for (int k = 0; k < PACK_STEP_K; k++) to[(size_t)k * (size_t)height] = in[k];
		}
}

struct item {
	const struct linear_job *job;
	struct cpu_scratch *scratch;
	int first_panel, panels;
	int first_tile, end_tile;
	int row, rows; /* of the block */
};

/* Chains in flight of one panel at one depth of the stack: [rows][PANEL]. */
static float *chains(const struct item *item, int panel, int depth)
{
	size_t one = (size_t)item->job->stream->block_rows * PANEL;
	return item->scratch->stack + ((size_t)panel * SUMTREE_MAX_DEPTH + (size_t)depth) * one;
}

static size_t panel_bytes(const struct linear_weight *weight)
{
	if (dtype_is_plain(weight->dtype)) return (size_t)weight->k * PANEL * dtype_bytes(weight->dtype);
	return (size_t)(weight->k / dtype_block(weight->dtype)) * (size_t)quant_layout(weight->dtype).bytes;
}

static void sum_segment(const struct item *item, int panel, int depth, int k0, int k1)
{
	const struct linear_job *job = item->job;
	const struct linear_weight *weight = job->args->weight;
	const char *w = (const char *)weight->data + (size_t)(item->first_panel + panel) * panel_bytes(weight);
	float *acc = chains(item, panel, depth);
	enum dtype dtype = weight->dtype;
	if (job->widen) {
		int from = k0 / QUANT_GROUP * QUANT_GROUP, to = (k1 + QUANT_GROUP - 1) / QUANT_GROUP * QUANT_GROUP;
		job->kernels->quant_widen[dtype](item->scratch->wide, w, from, to - from);
		w = (const char *)(item->scratch->wide + (size_t)(k0 - from) * PANEL);
		dtype = DTYPE_F32;
	} else if (dtype_is_plain(dtype)) {
		w += (size_t)k0 * PANEL * dtype_bytes(dtype);
	}
	for (int tile = item->first_tile; tile < item->end_tile; tile++) {
		int row = tile_begin(job, tile), height = tile_begin(job, tile + 1) - row;
		const float *x = job->x + (size_t)row * (size_t)weight->k + (size_t)k0 * (size_t)height;
		float *out = acc + (size_t)(row - item->row) * PANEL;
		if (dtype_is_plain(dtype)) job->kernels->chain[dtype](out, w, x, k1 - k0, height);
		else job->kernels->quant_chain[dtype](out, w, x, k0, k1 - k0, height);
	}
}

/* One leaf: k0..k0+leaf_k in equal chunks, chunk after chunk for all panels so that the chunk of x stays in the second-level cache. */
static void sum_leaf(const struct item *item, int depth, int k0)
{
	const struct linear_job *job = item->job;
	for (int p = 0; p < item->panels; p++) memset(chains(item, p, depth), 0, (size_t)item->rows * PANEL * sizeof(float));
	int step = job->widen ? QUANT_GROUP : 1, steps = (job->sum.leaf_k + step - 1) / step; /* chunks of whole groups, the last one apart */
	int chunks = (job->sum.leaf_k + job->chunk_k - 1) / job->chunk_k;
	for (int c = 0; c < chunks; c++) {
		int from = k0 + (int)((int64_t)c * steps / chunks) * step, to = k0 + (int)((int64_t)(c + 1) * steps / chunks) * step;
		if (c + 1 == chunks) to = k0 + job->sum.leaf_k;
		for (int p = 0; p < item->panels; p++) sum_segment(item, p, depth, from, to);
	}
}

static void merge_top(const struct item *item, int depth)
{
	for (int p = 0; p < item->panels; p++) {
		float *a = chains(item, p, depth - 2);
		const float *b = chains(item, p, depth - 1);
		for (int i = 0; i < item->rows * PANEL; i++) a[i] = a[i] + b[i];
	}
}

static void store(const struct item *item, int slot)
{
	const struct linear_args *args = item->job->args;
	for (int p = 0; p < item->panels; p++) {
		int n0 = (item->first_panel + p) * PANEL, n = args->weight->n - n0 < PANEL ? args->weight->n - n0 : PANEL;
		for (int r = 0; r < item->rows; r++) {
			float *y = cpu_row(&args->y, item->row + r) + slot * args->y.slot_stride + n0;
			const float *acc = chains(item, p, 0) + (size_t)r * PANEL;
			if (!args->bias && n == PANEL) memcpy(y, acc, PANEL * sizeof *y); /* no call: there are rows * panels of these */
			else if (!args->bias) memcpy(y, acc, (size_t)n * sizeof *y);
			else
				for (int i = 0; i < n; i++) y[i] = acc[i] + args->bias[n0 + i];
		}
	}
}

/* The panel that this member is likely to take next: its beginning, for which no prefetch of a kernel asks. */
static void prefetch_next(const struct linear_job *job, int group)
{
	int panel = (group + team_members(cpu_team(&job->stream->base))) * job->group;
	if (panel >= job->panels) return;
	const char *w = (const char *)job->args->weight->data + (size_t)panel * panel_bytes(job->args->weight);
	for (int i = 0; i < PREFETCH_NEXT_BYTES; i += 64) __builtin_prefetch(w + i, 0, 2);
}

static void linear_chunk(void *context, int chunk, int member)
{
	const struct linear_job *job = context;
	int group = chunk / job->blocks, block = chunk % job->blocks;
	if (job->quant) prefetch_next(job, group);
	struct item item = {
		.job = job,
		.scratch = &job->stream->scratch[member],
		.first_panel = group * job->group,
		.panels = job->panels - group * job->group < job->group ? job->panels - group * job->group : job->group,
		.first_tile = block_begin(job, block),
		.end_tile = block_begin(job, block + 1),
	};
	item.row = tile_begin(job, item.first_tile);
	item.rows = tile_begin(job, item.end_tile) - item.row;
	for (int s = 0; s < job->sum.spans; s++) {
		int depth = 0;
		for (int leaf = job->sum.span[s].lo; leaf < job->sum.span[s].hi; leaf++) {
			sum_leaf(&item, depth++, leaf * job->sum.leaf_k);
			for (int m = job->sum.merges[leaf]; m > 0; m--) merge_top(&item, depth--);
		}
		store(&item, s);
	}
}

enum status cpu_sum_plan(struct cpu_sum_plan *out, const struct sum_split *split, int k, const struct tensor *y, const char *what, struct error *err)
{
	TRY(tensor_expect(y, TENSOR_PARTIAL, what, err));
	if (split->leaves < 1 || split->first < 0 || split->first + split->leaves > split->tree_leaves || split->tree_leaves > SUMTREE_MAX_LEAVES ||
	    split->spans < 1 || split->spans > SUMTREE_MAX_SPANS || split->spans != y->slots || k % split->leaves)
		return FAIL(err, BAD_INPUT, "%s: %d inputs in %d leaves (%d.. of %d), %d spans for %d slots; equal leaves and a slot a span are wanted", what, k,
		            split->leaves, split->first, split->tree_leaves, split->spans, y->slots);
	out->spans = split->spans;
	out->leaves = split->leaves;
	out->leaf_k = k / split->leaves;
	for (int s = 0; s < split->spans; s++) {
		struct sum_span span = split->span[s];
		if (span.lo < split->first || span.hi <= span.lo || span.hi > split->first + split->leaves)
			return FAIL(err, BAD_INPUT, "%s: span [%d,%d) outside the rank's leaves [%d,%d)", what, span.lo, span.hi, split->first,
			            split->first + split->leaves);
		out->span[s] = (struct sum_span){(int16_t)(span.lo - split->first), (int16_t)(span.hi - split->first)};
		sumtree_leaf_program(split->tree_leaves, span, out->merges + out->span[s].lo);
	}
	return STATUS_OK;
}

static enum status plan_sum(struct linear_job *job, struct error *err)
{
	const struct sum_split *split = job->args->split;
	int k = job->args->weight->k;
	if (!split) {
		job->sum.spans = job->sum.leaves = 1;
		job->sum.leaf_k = k;
		job->sum.span[0] = (struct sum_span){0, 1};
		job->sum.merges[0] = 0;
		if (job->args->y.dist == TENSOR_PARTIAL) return tensor_expect(&job->args->y, TENSOR_SHARDED, "linear y without a split", err);
		return tensor_expect(&job->args->x, TENSOR_REPLICATED, "linear x without a split", err);
	}
	if (job->args->bias) return FAIL(err, BAD_INPUT, "linear: bias with a split; it is added once, after the sum over ranks");
	return cpu_sum_plan(&job->sum, split, k, &job->args->y, "linear", err);
}

static enum status check_linear(const struct cpu_stream *stream, const struct linear_args *args, struct error *err)
{
	const struct linear_weight *w = args->weight;
	TRY(cpu_expect_f32(&args->x, "linear x", err));
	TRY(cpu_expect_f32(&args->y, "linear y", err));
	if (args->x.dist == TENSOR_PARTIAL) return tensor_expect(&args->x, TENSOR_SHARDED, "linear x", err);
	if ((unsigned)w->dtype >= DTYPE_COUNT || w->n < 1 || w->k < 1 || w->k % dtype_block(w->dtype) || args->x.cols != w->k || args->y.cols != w->n || args->x.rows != args->y.rows)
		return FAIL(err, BAD_INPUT, "linear: x [%d,%d] with weight [%d,%d] to y [%d,%d]", args->x.rows, args->x.cols, w->n, w->k, args->y.rows,
		            args->y.cols);
	if (args->x.rows > 1 && (args->x.rows > stream->options.max_rows || w->k > stream->options.max_k))
		return FAIL(err, BAD_INPUT, "linear: %d rows of %d inputs in a stream made for %d rows of %d", args->x.rows, w->k,
		            stream->options.max_rows, stream->options.max_k);
	return STATUS_OK;
}

static void run(struct linear_job *job, int chunks, bool alone, team_fn *fn)
{
	if (alone)
		for (int i = 0; i < chunks; i++) fn(job, i, 0);
	else team_run(cpu_team(&job->stream->base), chunks, fn, job);
}

/* What a linear does where nobody said otherwise: few rows stream each panel once, many rows share panels that stay in cache. */
static struct cpu_way default_way(const struct linear_job *job, const struct cpu_kernels *kernels, int members)
{
	bool few = job->rows <= LINEAR_FEW_ROWS, quant = !dtype_is_plain(job->args->weight->dtype);
	struct cpu_way way = {.kernels = kernels, .panels = few ? 1 : LINEAR_BLOCK_PANELS, .chunk_k = few ? 0 : LINEAR_CHUNK_K};
	/* A chain of a block type begins with a group; leaves of another size are rare and go by way of scratch. */
	way.widen = quant && (job->rows > kernels->widen_rows || job->sum.leaf_k % QUANT_GROUP);
	if (way.widen) way.chunk_k = LINEAR_WIDE_K;
	int rows = quant && !way.widen ? kernels->quant_rows : kernels->linear_rows;
	int tiles = (job->rows + rows - 1) / rows, block_tiles = LINEAR_BLOCK_ROWS / rows, blocks = (tiles + block_tiles - 1) / block_tiles;
	/* Several panels an item save reads of x; too few items leave a member idle at the end. */
	while (way.panels > 1 && (job->args->weight->n + PANEL - 1) / PANEL / way.panels * blocks < 8 * members) way.panels--;
	return way;
}

/* The work as `way` cuts it. */
static enum status shape_job(struct linear_job *job, const struct cpu_way *way, int members, struct error *err)
{
	const struct linear_weight *w = job->args->weight;
	job->kernels = way->kernels;
	job->quant = !dtype_is_plain(w->dtype);
	job->widen = way->widen;
	if (job->quant && !job->widen && job->sum.leaf_k % QUANT_GROUP)
		return FAIL(err, BAD_INPUT, "linear: leaves of %d inputs of %s do not begin with a group of %d; only widened variants compute this", job->sum.leaf_k,
		            dtype_name(w->dtype), QUANT_GROUP);
	int tile_rows = job->quant && !job->widen ? job->kernels->quant_rows : job->kernels->linear_rows;
	job->tiles = (job->rows + tile_rows - 1) / tile_rows;
	int block_tiles = LINEAR_BLOCK_ROWS / tile_rows;
	job->blocks = (job->tiles + block_tiles - 1) / block_tiles;
	job->panels = (w->n + PANEL - 1) / PANEL;
	job->chunk_k = way->chunk_k ? way->chunk_k : job->sum.leaf_k;
	job->group = way->panels;
	job->groups = (job->panels + job->group - 1) / job->group;
	job->packs = (w->k + PACK_CHUNK_K - 1) / PACK_CHUNK_K;
	if (job->packs * job->tiles < members * PACK_CHUNKS) job->packs = (members * PACK_CHUNKS + job->tiles - 1) / job->tiles;
	return STATUS_OK;
}

enum status cpu_linear(struct stream *base, const struct linear_args *args, struct error *err)
{
	struct cpu_stream *stream = cpu_stream(base);
	TRY(check_linear(stream, args, err));
	struct linear_job job = {.args = args, .stream = stream, .rows = args->x.rows, .x = args->x.data};
	TRY(plan_sum(&job, err));
	if (!job.rows) return STATUS_OK;
	int k = args->weight->k, members = team_members(cpu_team(base));
	const struct cpu_way *preferred = cpu_preferred_way(stream, args);
	stream->ran = preferred ? *preferred : default_way(&job, cpu_kernels(base), members);
	if (stream->ran.onednn) return onednn_linear(stream->onednn, stream, args, &job.sum, err);
	TRY(shape_job(&job, &stream->ran, members, err));
	if (job.rows > 1) {
		job.x = stream->packed;
		run(&job, job.tiles * job.packs, (int64_t)job.rows * k < SERIAL_PACK, pack_chunk);
	}
	run(&job, job.groups * job.blocks, (int64_t)job.rows * k * args->weight->n < SERIAL_PRODUCTS, linear_chunk);
	return STATUS_OK;
}

/* --- weights ---------------------------------------------------------------------------------------------------------- */

size_t cpu_linear_bytes(enum dtype dtype, int n, int k)
{
	struct linear_weight weight = {.dtype = dtype, .k = k};
	return (size_t)(n + PANEL - 1) / PANEL * panel_bytes(&weight);
}

struct put_job {
	const struct linear_weight *w;
	int n0, rows;
	const char *src;   /* put: row n0 */
	size_t src_stride;
	const char *panels; /* copy_rows: the other device's data */
	int first_panel;
};

/* The part of panel `panel` that the job's rows cover: lanes [*lo, *hi). */
static void put_lanes(const struct put_job *job, int panel, int *lo, int *hi)
{
	int from = job->n0 - panel * PANEL, to = job->n0 + job->rows - panel * PANEL;
	*lo = from > 0 ? from : 0;
	*hi = to < PANEL ? to : PANEL;
}

static void put_u16(uint16_t *out, const char *in, int steps)
{
	for (int k = 0; k < steps; k++) memcpy(out + (size_t)k * PANEL, in + (size_t)k * 2, 2);
}

static void put_u32(uint32_t *out, const char *in, int steps)
{
	for (int k = 0; k < steps; k++) memcpy(out + (size_t)k * PANEL, in + (size_t)k * 4, 4);
}

static void put_blocks(const struct put_job *job, int panel, int lo, int hi)
{
	enum dtype dtype = job->w->dtype;
	size_t stored = dtype_size(dtype, (size_t)dtype_block(dtype)), packed = (size_t)quant_layout(dtype).bytes;
	char *out = (char *)job->w->data + (size_t)panel * panel_bytes(job->w);
	for (int b = 0; b < job->w->k / dtype_block(dtype); b++, out += packed)
		for (int lane = lo; lane < hi; lane++)
			quant_pack(dtype, out, lane, job->src + (size_t)(panel * PANEL + lane - job->n0) * job->src_stride + (size_t)b * stored);
}

/* A whole BF16 panel: the lanes j and j + LANES of a k-step are the halves of one word (panel_slot). */
static void put_bf16_pair(uint16_t *out, const char *low, const char *high, int steps)
{
	for (int k = 0; k < steps; k++) {
		uint16_t a, b;
		memcpy(&a, low + (size_t)k * 2, 2);
		memcpy(&b, high + (size_t)k * 2, 2);
		uint32_t word = a | (uint32_t)b << 16; /* one store; little endian, as every target is */
		memcpy(out + (size_t)k * PANEL, &word, 4);
	}
}

/* One panel's lanes, all k: blocks of PUT_CHUNK_K steps so that the strided side stays in cache. */
static void put_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct put_job *job = context;
	size_t unit = dtype_bytes(job->w->dtype);
	int panel = job->first_panel + chunk, lo, hi;
	put_lanes(job, panel, &lo, &hi);
	if (!dtype_is_plain(job->w->dtype)) {
		put_blocks(job, panel, lo, hi);
		return;
	}
	for (int k0 = 0; k0 < job->w->k; k0 += PUT_CHUNK_K) {
		int steps = job->w->k - k0 < PUT_CHUNK_K ? job->w->k - k0 : PUT_CHUNK_K;
		size_t at = ((size_t)panel * (size_t)job->w->k + (size_t)k0) * PANEL;
		bool pairs = job->w->dtype == DTYPE_BF16 && lo == 0 && hi == PANEL;
		for (int lane = lo; lane < (pairs ? LANES : hi); lane++) {
			const char *in = job->src + (size_t)(panel * PANEL + lane - job->n0) * job->src_stride + (size_t)k0 * unit;
			if (pairs) {
				put_bf16_pair((uint16_t *)job->w->data + at + 2 * (size_t)lane, in, in + LANES * job->src_stride, steps);
				continue;
			}
			size_t to = at + (size_t)panel_slot(job->w->dtype, lane);
			if (unit == 2) put_u16((uint16_t *)job->w->data + to, in, steps);
			else put_u32((uint32_t *)job->w->data + to, in, steps);
		}
	}
}

static void copy_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct put_job *job = context;
	size_t unit = dtype_bytes(job->w->dtype), bytes = panel_bytes(job->w), block = (size_t)quant_layout(job->w->dtype).bytes;
	int panel = job->first_panel + chunk, lo, hi;
	put_lanes(job, panel, &lo, &hi);
	char *out = (char *)job->w->data + (size_t)panel * bytes;
	const char *in = job->panels + (size_t)panel * bytes;
	if (lo == 0 && hi == PANEL) {
		memcpy(out, in, bytes);
		return;
	}
	for (size_t at = 0; block && at < bytes; at += block)
		for (int lane = lo; lane < hi; lane++) quant_copy_lane(job->w->dtype, out + at, in + at, lane);
	if (block) return;
	for (size_t k = 0; k < (size_t)job->w->k; k++)
		for (int lane = lo; lane < hi; lane++) {
			size_t at = (k * PANEL + (size_t)panel_slot(job->w->dtype, lane)) * unit;
			memcpy(out + at, in + at, unit);
		}
}

static enum status check_rows(const struct linear_weight *w, int n0, int rows, struct error *err)
{
	if ((unsigned)w->dtype < DTYPE_COUNT && w->data && w->k % dtype_block(w->dtype) == 0 && n0 >= 0 && rows >= 0 && rows <= w->n - n0) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "linear weight [%d,%d]: rows [%d,%d) are not in it", w->n, w->k, n0, n0 + rows);
}

static void run_panels(struct stream *stream, struct put_job *job, team_fn *fn)
{
	if (!job->rows) return;
	job->first_panel = job->n0 / PANEL;
	team_run(cpu_team(stream), (job->n0 + job->rows - 1) / PANEL - job->first_panel + 1, fn, job);
}

enum status cpu_linear_put(struct stream *stream, const struct linear_weight *w, int n0, int rows, const void *src, size_t src_stride,
                           struct error *err)
{
	TRY(check_rows(w, n0, rows, err));
	run_panels(stream, &(struct put_job){.w = w, .n0 = n0, .rows = rows, .src = src, .src_stride = src_stride}, put_chunk);
	return STATUS_OK;
}

enum status cpu_linear_copy_rows(struct stream *stream, const struct linear_weight *dst, const struct linear_weight *src, int n0, int rows,
                                 struct error *err)
{
	TRY(check_rows(dst, n0, rows, err));
	if (dst->n != src->n || dst->k != src->k || dst->dtype != src->dtype)
		return FAIL(err, BAD_INPUT, "linear weight copy: [%d,%d] %s from [%d,%d] %s; equal ones are wanted", dst->n, dst->k, dtype_name(dst->dtype),
		            src->n, src->k, dtype_name(src->dtype));
	run_panels(stream, &(struct put_job){.w = dst, .n0 = n0, .rows = rows, .panels = src->data}, copy_chunk);
	return STATUS_OK;
}

enum status cpu_vector_put(struct stream *stream, float *dst, const void *src, enum dtype dtype, int n, struct error *err)
{
	(void)stream;
	if (!dtype_is_plain(dtype) || n < 0) return FAIL(err, BAD_INPUT, "vector put: %d elements of type %s", n, dtype_name(dtype));
	const char *in = src;
	for (int i = 0; i < n; i++) dst[i] = dtype_load(dtype, in + (size_t)i * dtype_bytes(dtype));
	return STATUS_OK;
}
