/* linear.c: gpu_linear: what is legal, and which kernels compute it. The kernels are in gemv.cu, gemm_tile.cu, gemm_skinny_cuda.cu, gemm_wide_cuda.cu and library.c.
 *
 * Choice, in order: the invariant order where it is asked for (gemm_tile: slow, one chain for each output); the way that the stream prefers (ways.h), or
 * an error; a family made for few rows; the vendor's library; gemm_tile. A rank's partial sum over several spans is one GEMM for each span, over that span's columns of x and W.
 */
#include <string.h>

#include "device/device.h"
#include "device/gpu/device.h"
#include "device/gpu/library.h"
#include "device/gpu/linear.h"
#include "device/gpu/skinny.h"
#include "device/gpu/ways.h"
#include "device/gpu/wide.h"

static enum status check_tensor(const struct tensor *t, int cols, const char *what, struct error *err)
{
	if (t->cols != cols || t->rows < 0 || t->row_stride < t->cols || (!t->data && t->rows > 0))
		return FAIL(err, BAD_INPUT, "linear %s: tensor [%d,%d] with row stride %lld%s; [rows,%d] is wanted", what, t->rows, t->cols,
		            (long long)t->row_stride, t->data ? "" : " and no data", cols);
	return STATUS_OK;
}

static enum status check_types(const struct linear_args *a, struct error *err)
{
	const struct linear_weight *w = a->weight;
	if (!dtype_is_plain(w->dtype) || w->dtype != a->x.dtype)
		return FAIL(err, UNSUPPORTED, "linear: weights of type %s and activations of type %s; this back end multiplies equal plain types", dtype_name(w->dtype),
		            dtype_name(a->x.dtype));
	if (a->y.dtype != a->x.dtype && a->y.dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "linear: from %s to %s; %s or F32 is wanted", dtype_name(a->x.dtype), dtype_name(a->y.dtype), dtype_name(a->x.dtype));
	if (a->accumulate && a->y.dtype != DTYPE_F32) return FAIL(err, UNSUPPORTED, "linear: adding to y of type %s; F32 is wanted", dtype_name(a->y.dtype));
	return STATUS_OK;
}

struct gemm_leaves gemm_leaves_of(const struct sum_split *split, int i)
{
	struct gemm_leaves tree = {.leaves = 1};
	if (!split) return tree;
	tree.leaves = split->span[i].hi - split->span[i].lo;
	sumtree_leaf_program(split->tree_leaves, split->span[i], tree.merges);
	return tree;
}

enum status gemm_spans_check(const struct sum_split *s, const char *what, struct error *err)
{
	for (int i = 0; i < s->spans; i++)
		if (s->span[i].lo < s->first || s->span[i].hi <= s->span[i].lo || s->span[i].hi > s->first + s->leaves)
			return FAIL(err, BAD_INPUT, "%s: span [%d,%d) outside the rank's leaves [%d,%d)", what, s->span[i].lo, s->span[i].hi, s->first, s->first + s->leaves);
	return STATUS_OK;
}

static enum status check_split(const struct linear_args *a, struct error *err)
{
	const struct sum_split *s = a->split;
	const int k = a->weight->k;
	if (s->leaves < 1 || s->first < 0 || s->first + s->leaves > s->tree_leaves || s->tree_leaves > SUMTREE_MAX_LEAVES || s->spans < 1 ||
	    s->spans > SUMTREE_MAX_SPANS || s->spans != a->y.slots || k % s->leaves)
		return FAIL(err, BAD_INPUT, "linear: %d inputs in %d leaves (%d.. of %d), %d spans for %d slots; equal leaves and a slot a span are wanted", k, s->leaves,
		            s->first, s->tree_leaves, s->spans, a->y.slots);
	TRY(gemm_spans_check(s, "linear", err));
	if (a->accumulate && s->spans != 1) return FAIL(err, BAD_INPUT, "linear: %d spans to add to y; one is wanted", s->spans);
	if (!a->accumulate && a->bias) return FAIL(err, BAD_INPUT, "linear: bias with a split; it is added once, after the sum over ranks");
	return STATUS_OK;
}

static enum status check_args(const struct linear_args *a, struct error *err)
{
	TRY(check_types(a, err));
	TRY(check_tensor(&a->x, a->weight->k, "x", err));
	TRY(check_tensor(&a->y, a->weight->n, "y", err));
	if (a->y.rows != a->x.rows) return FAIL(err, BAD_INPUT, "linear: %d rows of x, %d of y", a->x.rows, a->y.rows);
	if (a->split) TRY(check_split(a, err));
	if (a->split && !a->accumulate) return tensor_expect(&a->y, TENSOR_PARTIAL, "linear y with a split", err);
	if (a->accumulate) return tensor_expect(&a->y, TENSOR_REPLICATED, "linear y that is added to", err);
	if (a->y.dist == TENSOR_PARTIAL) return tensor_expect(&a->y, TENSOR_SHARDED, "linear y without a split", err);
	return tensor_expect(&a->x, TENSOR_REPLICATED, "linear x without a split", err);
}

static enum status by_library(const struct gpu_context *context, const struct gemm_problem *p, const struct gemm_algo *algo, bool *done, struct error *err)
{
	struct way way = {.kernel = WAY_LIBRARY};
	*done = false;
	if (!context->gemm) return STATUS_OK;
	if (p->bias) TRY(bias_fill_launch(context, p, err)); /* harmless if the library declines: then tile writes, or p adds no bias again */
	TRY(gemm_library_run(context->gemm, context, p, p->accumulate || p->bias, algo, &way.algo, done, err));
	if (*done) way_ran(context, &way);
	return STATUS_OK;
}

static enum status by_skinny(const struct gpu_context *context, const struct fused_problem *p, const struct skinny_shape *shape, struct error *err)
{
	way_ran(context, &(struct way){.kernel = WAY_SKINNY, .skinny = *shape});
	return skinny_launch(context, p, shape, err);
}

static enum status by_wide(const struct gpu_context *context, const struct fused_problem *p, const struct wide_shape *shape, struct error *err)
{
	way_ran(context, &(struct way){.kernel = WAY_WIDE, .wide = *shape});
	return wide_launch(context, p, shape, err);
}

static enum status by_gemv(const struct gpu_context *context, const struct gemm_problem *p, const struct gemv_shape *shape, struct error *err)
{
	static const enum way_kernel kernels[] = {[GEMV_STRIDED] = WAY_STRIDED, [GEMV_WAVE] = WAY_WAVE, [GEMV_LLMM1] = WAY_LLMM1};
	way_ran(context, &(struct way){.kernel = kernels[shape->family], .gemv = *shape});
	return gemv_launch(context, p, shape, err);
}

static enum status by_tile(const struct gpu_context *context, const struct gemm_problem *p, const struct gemm_leaves *leaves, struct error *err)
{
	way_ran(context, &(struct way){.kernel = WAY_TILE});
	return tile_launch(context, p, leaves, err);
}

static enum status by_decode(const struct gpu_context *context, const struct fused_problem *p, struct error *err)
{
	way_ran(context, &(struct way){.kernel = WAY_DECODE});
	return decode_launch(context, p, err);
}

static enum status by_preference(const struct gpu_context *context, const struct gemm_problem *p, const struct way_preference *preferred, struct error *err)
{
	const struct way *way = &preferred->way;
	const struct fused_problem few = {.gemm = *p};
	const bool f32 = p->y_type == DTYPE_F32;
	struct gemm_algo algo = f32 ? preferred->algo_f32 : way->algo;
	bool done;
	switch (way->kernel) {
	case WAY_STRIDED:
	case WAY_WAVE:
	case WAY_LLMM1: return by_gemv(context, p, &way->gemv, err);
	case WAY_SKINNY: return by_skinny(context, &few, &way->skinny, err);
	case WAY_WIDE: return by_wide(context, &few, &way->wide, err);
	case WAY_DECODE: return by_decode(context, &few, err);
	case WAY_LIBRARY:
		if (!(f32 ? preferred->legal_f32 : preferred->legal)) TRY(gemm_algo_check(context->gemm, context, p, &algo, err));
		return by_library(context, p, &algo, &done, err);
	case WAY_TILE:
	case WAY_DEFAULT:
	case WAY_COUNT: break;
	}
	return by_tile(context, p, NULL, err);
}

enum status gemm_run(const struct gpu_context *context, const struct gemm_problem *p, const struct way_preference *preferred, struct error *err)
{
	bool done = false;
	if (preferred) {
		enum status st = by_preference(context, p, preferred, err);
		if (st != STATUS_OK) error_prefix(err, "preferred %s '%s'", preferred->name.kernel, preferred->name.mode);
		return st;
	}
	const struct fused_problem few = {.gemm = *p};
	if (skinny_can(context, &few)) {
		const struct skinny_shape shape = skinny_default(context, &few);
		if (shape.rows) return by_skinny(context, &few, &shape, err);
	}
	if (wide_can(context, &few)) {
		const struct wide_shape shape = wide_default(context, &few);
		if (shape.blocks) return by_wide(context, &few, &shape, err);
	}
	if (decode_can(context, &few)) return by_decode(context, &few, err);
	if (gemv_can(context, p) && (p->m <= 4 || !context->gemm || p->type == DTYPE_F32)) {
		const struct gemv_shape shape = gemv_default(context, p);
		return by_gemv(context, p, &shape, err);
	}
	TRY(by_library(context, p, NULL, &done, err));
	if (done) return STATUS_OK;
	struct gemm_problem rest = *p;
	if (context->gemm && p->accumulate) rest.bias = NULL; /* in y already */
	return by_tile(context, &rest, NULL, err);
}

/* Span i of the split, or all of K. */
static struct gemm_problem problem_of(const struct linear_args *a, int i)
{
	const struct linear_weight *w = a->weight;
	struct gemm_problem p = {.x = a->x.data, .w = w->data, .bias = a->bias, .y = a->y.data, .type = w->dtype, .y_type = a->y.dtype, .m = a->x.rows, .n = w->n,
	                         .k = w->k, .x_stride = a->x.row_stride, .w_stride = w->k, .y_stride = a->y.row_stride, .accumulate = a->accumulate};
	if (!a->split) return p;
	const int leaf_k = w->k / a->split->leaves;
	const size_t begin = (size_t)(a->split->span[i].lo - a->split->first) * (size_t)leaf_k * dtype_bytes(w->dtype);
	p.x = (const char *)p.x + begin;
	p.w = (const char *)p.w + begin;
	p.k = (a->split->span[i].hi - a->split->span[i].lo) * leaf_k;
	p.y = (char *)p.y + (size_t)i * (size_t)a->y.slot_stride * dtype_bytes(a->y.dtype);
	return p;
}

static enum status invariant_run(const struct gpu_context *context, const struct linear_args *a, int i, struct error *err)
{
	struct gemm_problem p = problem_of(a, i);
	if (!a->split) return by_tile(context, &p, NULL, err);
	const struct gemm_leaves tree = gemm_leaves_of(a->split, i);
	return by_tile(context, &p, &tree, err);
}

enum status linear_run(struct stream *stream, const struct linear_args *args, const struct way_preference *preferred, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	TRY(check_args(args, err));
	if (args->x.rows == 0 || args->weight->n == 0) return STATUS_OK;
	for (int i = 0; i < (args->split ? args->split->spans : 1); i++) {
		if (context->invariant) {
			TRY(invariant_run(context, args, i, err));
		} else {
			struct gemm_problem p = problem_of(args, i);
			TRY(gemm_run(context, &p, preferred, err));
		}
	}
	return STATUS_OK;
}

enum status gpu_linear(struct stream *stream, const struct linear_args *args, struct error *err)
{
	const enum linear_use use = args->accumulate ? LINEAR_USE_ACCUMULATE : args->split ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN;
	gpu_context(stream)->dispatch->use = use;
	return linear_run(stream, args, way_preferred(gpu_context(stream), use, args->weight, args->x.rows), err);
}

int gpu_linear_rows_after(const struct stream *stream, int rows)
{
	const struct gpu_context *context = gpu_context(stream);
	return context->gemm && !context->invariant ? gemm_library_rows_after(rows) : 0;
}
