/* moe.c: the experts on a GPU: what is legal, where intermediate results lie, and which kernels compute them (moe.h).
 *
 * Choice: the invariant order where it is asked for (moe_tile.cu); few rows (moe_flow.cu, moe_decode.cu); tensor cores (moe_grouped_cuda.cu); moe_tile.cu. But for few rows the
 * shared expert is three ordinary linears beside the others.
 */
#include <string.h>

#include "device/device.h"
#include "device/gpu/device.h"
#include "device/gpu/linear.h"
#include "device/gpu/moe.h"
#include "device/gpu/moe_grouped.h"

/* ---- memory */

struct moe_memory {
	float *logits;
	void *shared_rows; /* [rows][2 shared_inner] */
	struct moe_problem p;
	size_t bytes;
};

static void *carve(char *base, size_t *at, size_t count, size_t unit)
{
	void *part = base ? base + *at : NULL;
	*at += (count * unit + 255) / 256 * 256;
	return part;
}

static struct moe_memory lay_out(void *base, const struct moe_shape *s)
{
	const size_t rows = (size_t)s->rows, pairs = rows * (size_t)s->top_k, unit = dtype_bytes(s->dtype), shared = s->shared_inner ? rows : 0;
	size_t at = 0;
	struct moe_memory m = {0};
	m.logits = carve(base, &at, rows * ((size_t)s->experts + 1), sizeof *m.logits);
	m.p.chosen = carve(base, &at, pairs, sizeof *m.p.chosen);
	m.p.weight = carve(base, &at, rows * ((size_t)s->top_k + 1), sizeof *m.p.weight);
	m.p.pair_of_slot = carve(base, &at, pairs, sizeof *m.p.pair_of_slot);
	m.p.slot_of_pair = carve(base, &at, pairs, sizeof *m.p.slot_of_pair);
	m.p.tile = carve(base, &at, (size_t)moe_most_tiles(s->rows, s->top_k, s->experts, MOE_LEAST_TILE), sizeof *m.p.tile);
	m.p.tiles = carve(base, &at, 1, sizeof *m.p.tiles);
	m.p.act = carve(base, &at, pairs * (size_t)s->inner, unit);
	m.p.shared_act = carve(base, &at, shared * (size_t)s->shared_inner, unit);
	m.p.part = carve(base, &at, pairs * (size_t)s->hidden, unit);
	m.p.shared_part = carve(base, &at, shared * (size_t)s->hidden, unit);
	m.shared_rows = carve(base, &at, 2 * shared * (size_t)s->shared_inner, unit);
	m.bytes = at;
	return m;
}

size_t gpu_moe_scratch_bytes(const struct device *device, const struct moe_shape *shape)
{
	(void)device;
	return lay_out(NULL, shape).bytes;
}

/* ---- checks */

static enum status check_sum(const struct moe_args *a, struct error *err)
{
	const struct sum_split *s = a->split;
	const struct moe_weights *w = a->weights;
	if (a->accumulate && a->y.dtype != DTYPE_F32) return FAIL(err, UNSUPPORTED, "moe: adding to y of type %s; F32 is wanted", dtype_name(a->y.dtype));
	if (a->y.dtype != a->in.h.dtype && a->y.dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "moe: from %s to %s; %s or F32 is wanted", dtype_name(a->in.h.dtype), dtype_name(a->y.dtype), dtype_name(a->in.h.dtype));
	if (a->accumulate) TRY(tensor_expect(&a->y, TENSOR_REPLICATED, "moe y that is added to", err));
	if (!s) return a->accumulate ? STATUS_OK : FAIL(err, UNSUPPORTED, "moe: y without a split is added to, or it is partial");
	if (s->leaves < 1 || s->first < 0 || s->first + s->leaves > s->tree_leaves || s->tree_leaves > SUMTREE_MAX_LEAVES || s->spans < 1 ||
	    s->spans > SUMTREE_MAX_SPANS || s->spans != a->y.slots || (a->accumulate && s->spans != 1) || w->down.k % s->leaves ||
	    (w->shared_down.n && w->shared_down.k % s->leaves))
		return FAIL(err, BAD_INPUT, "moe: %d and %d inputs in %d leaves (%d.. of %d), %d spans for %d slots; equal leaves and a slot a span are wanted", w->down.k,
		            w->shared_down.k, s->leaves, s->first, s->tree_leaves, s->spans, a->y.slots);
	TRY(gemm_spans_check(s, "moe", err));
	return a->accumulate ? STATUS_OK : tensor_expect(&a->y, TENSOR_PARTIAL, "moe y with a split", err);
}

static enum status check_args(const struct moe_args *a, struct error *err)
{
	const struct moe_weights *w = a->weights;
	const bool shared = w->shared_down.n > 0;
	const int hidden = a->in.h.cols;
	TRY(tensor_expect(&a->in.h, TENSOR_REPLICATED, "moe x", err));
	if (!a->in.done && (a->in.x.dtype != DTYPE_F32 || a->in.x.rows != a->in.h.rows || a->in.x.cols != hidden || !a->in.weight))
		return FAIL(err, BAD_INPUT, "moe: the norm of %s [%d,%d] to [%d,%d]; F32 of equal shape and a weight are wanted", dtype_name(a->in.x.dtype), a->in.x.rows,
		            a->in.x.cols, a->in.h.rows, hidden);
	if (a->in.h.rows < 0 || a->in.h.row_stride < hidden || a->y.rows != a->in.h.rows || a->y.cols != hidden || a->y.row_stride < hidden)
		return FAIL(err, BAD_INPUT, "moe: from x [%d,%d] to y [%d,%d]; equal ones are wanted", a->in.h.rows, hidden, a->y.rows, a->y.cols);
	if (w->experts < 1 || w->experts > MOE_MAX_EXPERTS || a->top_k < 1 || a->top_k > w->experts || a->top_k > MOE_MAX_TOP_K)
		return FAIL(err, UNSUPPORTED, "moe: %d of %d experts; 1 to %d of at most %d are implemented", a->top_k, w->experts, MOE_MAX_TOP_K, MOE_MAX_EXPERTS);
	if (a->in.h.rows > 65535) return FAIL(err, UNSUPPORTED, "moe: %d rows; at most 65535", a->in.h.rows);
	TRY(check_sum(a, err));
	TRY(ops_check_expert(&w->router, a->in.h.dtype, w->experts + shared, hidden, "router", err));
	TRY(ops_check_expert(&w->gate_up, a->in.h.dtype, 2 * w->down.k, hidden, "gate and up", err));
	TRY(ops_check_expert(&w->down, a->in.h.dtype, hidden, w->down.k, "down", err));
	if (!shared) return STATUS_OK;
	TRY(ops_check_expert(&w->shared_gate_up, a->in.h.dtype, 2 * w->shared_down.k, hidden, "shared gate and up", err));
	return ops_check_expert(&w->shared_down, a->in.h.dtype, hidden, w->shared_down.k, "shared down", err);
}

/* ---- the op */

static void fill(struct moe_problem *p, const struct moe_args *a, float *logits)
{
	const struct moe_weights *w = a->weights;
	const size_t unit = dtype_bytes(a->in.h.dtype);
	p->type = a->in.h.dtype;
	p->rows = a->in.h.rows, p->hidden = a->in.h.cols, p->experts = w->experts, p->top_k = a->top_k;
	p->shared = w->shared_down.n > 0;
	p->norm_topk = a->norm_topk;
	p->x = a->in.h.data, p->x_stride = a->in.h.row_stride;
	if (!a->in.done) p->norm_x = a->in.x.data, p->norm_stride = a->in.x.row_stride, p->norm_weight = a->in.weight, p->eps = a->in.eps;
	p->logits = logits, p->router = w->router.data;
	p->gate_up = w->gate_up.data, p->down = w->down.data, p->shared_gate_up = w->shared_gate_up.data, p->shared_down = w->shared_down.data;
	p->gate_up_step = (int64_t)(w->gate_up_bytes / unit), p->down_step = (int64_t)(w->down_bytes / unit);
	p->inner = w->down.k, p->shared_inner = p->shared ? w->shared_down.k : 0;
	p->y = a->y.data, p->y_type = a->y.dtype, p->y_stride = a->y.row_stride, p->accumulate = a->accumulate;
}

static int spans_of(const struct moe_args *a)
{
	return a->split ? a->split->spans : 1;
}

/* Span i, and y for it. */
static struct moe_span span_of(const struct moe_args *a, struct moe_problem *p, int i)
{
	if (!a->split) return (struct moe_span){0, p->inner, 0, p->shared_inner};
	const struct sum_split *s = a->split;
	const int lo = s->span[i].lo - s->first, leaves = s->span[i].hi - s->span[i].lo, leaf = p->inner / s->leaves, shared_leaf = p->shared_inner / s->leaves;
	p->y = (char *)a->y.data + (size_t)i * (size_t)a->y.slot_stride * dtype_bytes(a->y.dtype);
	return (struct moe_span){lo * leaf, leaves * leaf, lo * shared_leaf, leaves * shared_leaf};
}

/* Whether every span's columns are whole pieces of 16 bytes. */
static bool spans_are_pieces(const struct moe_args *a, struct moe_problem p)
{
	const int piece = 16 / (int)dtype_bytes(p.type);
	for (int i = 0; i < spans_of(a); i++) {
		const struct moe_span s = span_of(a, &p, i);
		if ((s.k0 | s.k | s.shared_k0 | s.shared_k) % piece) return false;
	}
	return true;
}

/* ---- ways (moe_ways.h) */

/* y in one piece: all inner columns in one span. */
static bool is_whole(const struct moe_args *a, struct moe_problem p)
{
	if (spans_of(a) != 1) return false;
	const struct moe_span all = span_of(a, &p, 0);
	return all.k == p.inner && all.shared_k == p.shared_inner;
}

static bool can(const struct gpu_context *context, const struct moe_args *a, const struct moe_problem *p, enum moe_way_kernel kernel)
{
	switch (kernel) {
	case MOE_WAY_FLOW: return moe_decode_can(context, p) && spans_are_pieces(a, *p) && is_whole(a, *p) && moe_flow_can(context, p);
	case MOE_WAY_DECODE: return moe_decode_can(context, p) && spans_are_pieces(a, *p);
	case MOE_WAY_GROUPED: return moe_grouped_can(context, p) && spans_are_pieces(a, *p);
	case MOE_WAY_TILE: return true;
	case MOE_WAY_DEFAULT:
	case MOE_WAY_COUNT: break;
	}
	return false;
}

/* Tiles of about as many rows as an expert has. */
static int tile_rows_for(const struct moe_problem *p, bool grouped)
{
	const int mean = p->rows * p->top_k / p->experts;
	if (!grouped) return mean <= 16 ? 16 : 64;
	return mean <= 12 ? 16 : mean <= 24 ? 32 : mean <= 64 ? 64 : 128;
}

/* The first that can. */
static struct moe_way default_way(const struct gpu_context *context, const struct moe_args *a, const struct moe_problem *p)
{
	for (int kernel = MOE_WAY_FLOW; kernel < MOE_WAY_TILE && !context->invariant; kernel++)
		if (can(context, a, p, (enum moe_way_kernel)kernel))
			return (struct moe_way){(enum moe_way_kernel)kernel, kernel == MOE_WAY_GROUPED ? tile_rows_for(p, true) : 0};
	return (struct moe_way){MOE_WAY_TILE, tile_rows_for(p, false)};
}

static enum status choose(const struct gpu_context *context, const struct moe_args *a, const struct moe_problem *p, struct moe_way *out, struct error *err)
{
	const struct moe_key key = {.use = a->accumulate ? LINEAR_USE_ACCUMULATE : a->split ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN, .dtype = p->type, .hidden = p->hidden,
	                            .experts = p->experts, .top_k = p->top_k, .inner = p->inner, .shared_inner = p->shared_inner, .m = p->rows};
	const struct moe_preferred *preferred = moe_preferred(context, &key);
	*out = preferred ? preferred->way : default_way(context, a, p);
	context->dispatch->moe_ran = *out;
	if (!preferred || can(context, a, p, out->kernel)) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "moe: preferred %s '%s' cannot take %d rows of %d, %d of %d experts of %d, in %d spans", preferred->name.kernel, preferred->name.mode, p->rows,
	            p->hidden, p->top_k, p->experts, p->inner, spans_of(a));
}

static enum status run_few(const struct gpu_context *context, const struct moe_args *a, struct moe_problem *p, enum moe_way_kernel kernel, struct error *err)
{
	if (kernel == MOE_WAY_FLOW) {
		(void)span_of(a, p, 0); /* y */
		return moe_flow_launch(context, p, err);
	}
	TRY(moe_decode_logits(context, p, err));
	TRY(moe_decode_up(context, p, err));
	for (int i = 0; i < spans_of(a); i++) {
		const struct moe_span span = span_of(a, p, i);
		TRY(moe_decode_down(context, p, &span, err));
	}
	return STATUS_OK;
}

static enum status shared_up(struct stream *stream, const struct moe_args *a, const struct moe_memory *m, struct error *err)
{
	const struct moe_problem *p = &m->p;
	const struct tensor rows = tensor_view(m->shared_rows, p->type, TENSOR_SHARDED, p->rows, 2 * p->shared_inner);
	if (!p->shared) return STATUS_OK;
	TRY(gpu_linear(stream, &(struct linear_args){.x = a->in.h, .weight = &a->weights->shared_gate_up, .y = rows}, err));
	return gpu_swiglu(stream, &(struct swiglu_args){.x = rows, .out = tensor_view(p->shared_act, p->type, TENSOR_SHARDED, p->rows, p->shared_inner)}, err);
}

static enum status shared_down(const struct gpu_context *context, const struct moe_problem *p, const struct moe_span *s, struct error *err)
{
	const size_t begin = (size_t)s->shared_k0 * dtype_bytes(p->type);
	const struct gemm_problem down = {.x = (const char *)p->shared_act + begin, .w = (const char *)p->shared_down + begin, .y = p->shared_part, .type = p->type,
	                                  .y_type = p->type, .m = p->rows, .n = p->hidden, .k = s->shared_k, .x_stride = p->shared_inner, .w_stride = p->shared_inner,
	                                  .y_stride = p->hidden};
	return p->shared ? gemm_run(context, &down, NULL, err) : STATUS_OK;
}

static enum status run_tiles(struct stream *stream, const struct moe_args *a, struct moe_memory *m, const struct moe_way *way, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	struct moe_problem *p = &m->p;
	const bool grouped = way->kernel == MOE_WAY_GROUPED;
	const int tile_rows = way->tile_rows;
	TRY(gpu_linear(stream, &(struct linear_args){.x = a->in.h, .weight = &a->weights->router,
	                                             .y = tensor_view(m->logits, DTYPE_F32, TENSOR_REPLICATED, p->rows, p->experts + p->shared)}, err));
	TRY(moe_route_launch(context, p, err));
	TRY(moe_sort_launch(context, p, tile_rows, err));
	TRY(shared_up(stream, a, m, err));
	TRY(grouped ? moe_grouped_up(context, p, tile_rows, err) : moe_tile_up(context, p, tile_rows, err));
	for (int i = 0; i < spans_of(a); i++) {
		const struct moe_span span = span_of(a, p, i);
		if (context->invariant) {
			const struct gemm_leaves tree = gemm_leaves_of(a->split, i);
			TRY(moe_tree_down(context, p, &span, &tree, err));
			continue;
		}
		TRY(grouped ? moe_grouped_down(context, p, tile_rows, &span, err) : moe_tile_down(context, p, tile_rows, &span, err));
		TRY(shared_down(context, p, &span, err));
		TRY(moe_combine(context, p, err));
	}
	return STATUS_OK;
}

enum status gpu_moe(struct stream *stream, const struct moe_args *args, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const struct moe_weights *w = args->weights;
	TRY(check_args(args, err));
	if (args->in.h.rows == 0) return STATUS_OK;
	if (context->invariant && args->y.dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "moe: y of type %s in the invariant order; F32 is wanted", dtype_name(args->y.dtype));
	const struct moe_shape shape = {.rows = args->in.h.rows, .dtype = args->in.h.dtype, .hidden = args->in.h.cols, .experts = w->experts, .top_k = args->top_k, .inner = w->down.k,
	                                .shared_inner = w->shared_down.n ? w->shared_down.k : 0, .leaves = 1};
	struct moe_memory m = lay_out(args->scratch, &shape);
	fill(&m.p, args, m.logits);
	struct moe_way way;
	TRY(choose(context, args, &m.p, &way, err));
	if (way.kernel == MOE_WAY_FLOW || way.kernel == MOE_WAY_DECODE) return run_few(context, args, &m.p, way.kernel, err);
	if (!args->in.done) TRY(gpu_rms_norm(stream, &(struct rms_norm_args){.x = args->in.x, .weight = args->in.weight, .eps = args->in.eps, .out = args->in.h}, err));
	return run_tiles(stream, args, &m, &way, err);
}
