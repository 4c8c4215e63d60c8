#include "device/gpu/ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/gpu/device.h"

static const char *const kernel_names[] = {
#define X(code, name) [WAY_##code] = name,
	WAY_LIST(X)
#undef X
};
static const char *const fusion_names[] = {[WAY_PLAIN] = "", [WAY_APART] = "apart", [WAY_NORM_BEFORE] = "norm before", [WAY_NORM_INSIDE] = "norm inside"};
enum { FUSIONS = sizeof fusion_names / sizeof *fusion_names };

static bool is_fused_use(enum linear_use use)
{
	return use == LINEAR_USE_ATTENTION_IN || use == LINEAR_USE_MLP_IN;
}

/* ---- names */

/* How the family cuts the work; "" where there is but one way. */
static void write_cut(const struct gpu_context *context, const struct way *way, char text[GEMM_ALGO_NAME_BYTES])
{
	text[0] = 0;
	if (way->kernel == WAY_STRIDED || way->kernel == WAY_WAVE) snprintf(text, GEMM_ALGO_NAME_BYTES, "%d rows, %d threads", way->gemv.rows, way->gemv.threads);
	else if (way->kernel == WAY_LLMM1) snprintf(text, GEMM_ALGO_NAME_BYTES, "%d", way->gemv.rows);
	else if (way->kernel == WAY_SKINNY && way->skinny.stages) snprintf(text, GEMM_ALGO_NAME_BYTES, "%d rows, %d stages", way->skinny.rows, way->skinny.stages);
	else if (way->kernel == WAY_SKINNY) snprintf(text, GEMM_ALGO_NAME_BYTES, "%d rows", way->skinny.rows);
	else if (way->kernel == WAY_WIDE) snprintf(text, GEMM_ALGO_NAME_BYTES, "%d blocks", way->wide.blocks);
	else if (way->kernel == WAY_LIBRARY && context->gemm) gemm_algo_name(context->gemm, &way->algo, text);
}

static void write_variant(const struct gpu_context *context, enum linear_use use, const struct way *way, struct variant *out)
{
	const bool whole_k = use != LINEAR_USE_ACCUMULATE && use != LINEAR_USE_PARTIAL; /* K is no leaf of a tree */
	char cut[GEMM_ALGO_NAME_BYTES];
	memset(out, 0, sizeof *out);
	write_cut(context, way, cut);
	const char *fusion = fusion_names[way->fusion];
	snprintf(out->kernel, sizeof out->kernel, "%s", kernel_names[way->kernel]);
	snprintf(out->mode, sizeof out->mode, "%s%s%s", cut, *cut && *fusion ? ", " : "", fusion);
	out->invariant = context->invariant || (way->kernel == WAY_TILE && whole_k);
}

/* Numbers of a cut; what does not read back as written is refused by read_way. */
static bool read_cut(struct way *way, const char *cut)
{
	switch (way->kernel) {
	case WAY_STRIDED:
	case WAY_WAVE:
		way->gemv.family = way->kernel == WAY_WAVE ? GEMV_WAVE : GEMV_STRIDED;
		return sscanf(cut, "%d rows, %d threads", &way->gemv.rows, &way->gemv.threads) == 2;
	case WAY_LLMM1: way->gemv.family = GEMV_LLMM1; return sscanf(cut, "%d", &way->gemv.rows) == 1;
	case WAY_SKINNY: return sscanf(cut, "%d rows, %d stages", &way->skinny.rows, &way->skinny.stages) >= 1;
	case WAY_WIDE: return sscanf(cut, "%d blocks", &way->wide.blocks) == 1 && wide_has(&way->wide);
	case WAY_DEFAULT:
	case WAY_DECODE:
	case WAY_TILE:
	case WAY_LIBRARY:
	case WAY_COUNT: break;
	}
	return true;
}

/* "16 rows, norm inside" to "16 rows" and which. */
static enum way_fusion cut_fusion(char *mode)
{
	for (int i = 1; i < FUSIONS; i++) {
		const size_t length = strlen(mode), tail = strlen(fusion_names[i]);
		if (length < tail || strcmp(mode + length - tail, fusion_names[i])) continue;
		if (length == tail) return mode[0] = 0, (enum way_fusion)i;
		if (length < tail + 2 || memcmp(mode + length - tail - 2, ", ", 2)) continue;
		return mode[length - tail - 2] = 0, (enum way_fusion)i;
	}
	return WAY_PLAIN;
}

/* The problem of a key, of dense operands as aligned as allocations are. Nothing is read. */
static struct gemm_problem problem_of(const struct linear_key *key, enum dtype y_type)
{
	void *aligned = (void *)(uintptr_t)256;
	return (struct gemm_problem){.x = aligned, .w = aligned, .y = aligned, .type = key->dtype, .y_type = y_type, .m = key->m, .n = key->n, .k = key->k,
	                             .x_stride = key->k, .w_stride = key->k, .y_stride = key->n, .accumulate = key->use == LINEAR_USE_ACCUMULATE};
}

static bool is_legal(const struct gpu_context *context, const struct way_preference *p, enum dtype y_type, struct gemm_algo *algo)
{
	struct linear_key first = p->key, last = p->key;
	struct error ignored = {0};
	first.m = p->m_low, last.m = p->m_high;
	const struct gemm_problem low = problem_of(&first, y_type), high = problem_of(&last, y_type);
	return gemm_algo_check(context->gemm, context, &low, algo, &ignored) == STATUS_OK &&
	       gemm_algo_check(context->gemm, context, &high, algo, &ignored) == STATUS_OK;
}

/* Both algorithms of a preference. One of them may not exist, where the use does not ask for it. */
static enum status read_algorithms(const struct gpu_context *context, const char *cut, struct way_preference *out, struct error *err)
{
	const enum dtype dtype = out->key.dtype;
	struct error other = {0};
	if (!context->gemm) return FAIL(err, BAD_INPUT, "variant %s '%s': this machine has no such library; measure again here", out->name.kernel, out->name.mode);
	const bool f32 = out->key.use == LINEAR_USE_ACCUMULATE || dtype == DTYPE_F32; /* nothing else is asked for */
	enum status st = gemm_algo_named(context->gemm, cut, dtype, DTYPE_F32, &out->algo_f32, f32 ? err : &other);
	out->legal_f32 = st == STATUS_OK && is_legal(context, out, DTYPE_F32, &out->algo_f32);
	out->way.algo = out->algo_f32;
	if (f32) return st;
	TRY(gemm_algo_named(context->gemm, cut, dtype, dtype, &out->way.algo, err));
	out->legal = is_legal(context, out, dtype, &out->way.algo);
	return STATUS_OK;
}

static enum status read_way(const struct gpu_context *context, const struct linear_key *key, struct way_preference *out, struct error *err)
{
	const struct variant *v = &out->name;
	struct way *way = &out->way;
	struct variant again;
	char cut[VARIANT_MODE_BYTES];
	snprintf(cut, sizeof cut, "%s", v->mode);
	int kernel = 0;
	while (kernel < WAY_COUNT && strcmp(kernel_names[kernel], v->kernel)) kernel++;
	if (kernel == WAY_COUNT) return FAIL(err, BAD_INPUT, "variant %s '%s': this back end has no such kernel; measure again here", v->kernel, v->mode);
	way->kernel = (enum way_kernel)kernel;
	way->fusion = cut_fusion(cut);
	bool good = read_cut(way, cut);
	if (good && kernel == WAY_LIBRARY) TRY(read_algorithms(context, cut, out, err));
	if (good) write_variant(context, key->use, way, &again);
	if (!good || strcmp(again.mode, v->mode)) return FAIL(err, BAD_INPUT, "variant %s '%s': this kernel has no such mode; measure again here", v->kernel, v->mode);
	const bool can_fuse = kernel == WAY_SKINNY || (kernel == WAY_DECODE && way->fusion == WAY_NORM_INSIDE) ||
	                      (kernel == WAY_WIDE && way->fusion == WAY_NORM_BEFORE && key->use == LINEAR_USE_MLP_IN);
	if (kernel != WAY_DEFAULT && is_fused_use(key->use) ? way->fusion == WAY_PLAIN || (way_is_fused(way) && !can_fuse) : way->fusion != WAY_PLAIN)
		return FAIL(err, BAD_INPUT, "variant %s '%s': no such way of '%s'", v->kernel, v->mode, linear_use_name(key->use));
	return STATUS_OK;
}

/* ---- what a stream can be told */

struct listing {
	const struct gpu_context *context;
	enum linear_use use;
	struct variant *out;
	int max, count;
};

static void list_way(struct listing *l, struct way way)
{
	if (l->count < l->max) write_variant(l->context, l->use, &way, &l->out[l->count]);
	if (l->count < l->max) l->count++;
}

static void list_gemv(struct listing *l, int m, enum way_fusion fusion)
{
	static const int threads[] = {256, 640, 1024};
	for (int rows = 1; m == 1 && rows <= 4; rows *= 2)
		for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) list_way(l, (struct way){WAY_STRIDED, fusion, .gemv = {GEMV_STRIDED, rows, threads[t]}});
	for (int rows = 1; m <= GEMV_MAX_ROWS && rows <= (m == 1 ? 4 : 1); rows *= 2)
		for (int t = 128; t <= 256; t *= 2) list_way(l, (struct way){WAY_WAVE, fusion, .gemv = {GEMV_WAVE, rows, t}});
	for (int rows = 2; m == 1 && rows <= 16; rows *= 2) list_way(l, (struct way){WAY_LLMM1, fusion, .gemv = {GEMV_LLMM1, rows, 0}});
}

static void list_skinny(struct listing *l, enum way_fusion fusion)
{
	for (int rows = 16; rows <= 32; rows *= 2)
		for (int stages = 0; stages <= 4; stages += 4) list_way(l, (struct way){WAY_SKINNY, fusion, .skinny = {.rows = rows, .stages = stages}});
}

/* Rows of x from which on tiles of 128 of them are worth a look. */
#define WIDE_MIN_ROWS 33

static void list_wide(struct listing *l, enum way_fusion fusion)
{
	for (int blocks = 1; blocks <= 2; blocks++) list_way(l, (struct way){WAY_WIDE, fusion, .wide = {blocks}});
}

static void list_library(struct listing *l, const struct gemm_problem *problem, enum way_fusion fusion)
{
	struct gemm_algo found[GEMM_MAX_CANDIDATES];
	if (!l->context->gemm) return;
	const int count = gemm_library_candidates(l->context->gemm, l->context, problem, found, GEMM_MAX_CANDIDATES);
	for (int i = 0; i < count; i++) list_way(l, (struct way){WAY_LIBRARY, fusion, .algo = found[i]});
}

/* Rows to which one chain of fma for an output is worth a look. */
#define TILE_MAX_ROWS 64

int gpu_linear_variants(struct stream *stream, const struct linear_key *key, struct variant *out, int max)
{
	const struct gpu_context *context = gpu_context(stream);
	struct listing l = {.context = context, .use = key->use, .out = out, .max = max};
	const bool fused = is_fused_use(key->use);
	const enum way_fusion fusion = fused ? WAY_APART : WAY_PLAIN;
	const struct gemm_problem p = problem_of(key, key->use == LINEAR_USE_ACCUMULATE ? DTYPE_F32 : key->dtype);
	const struct fused_problem few = {.gemm = p};
	list_way(&l, (struct way){.kernel = WAY_DEFAULT});
	if (!dtype_is_plain(key->dtype) || key->m < 1 || key->n < 1 || key->k < 1) return l.count;
	if (context->invariant) return list_way(&l, (struct way){.kernel = WAY_TILE, .fusion = fusion}), l.count;
	if (fused && skinny_can(context, &few)) {
		list_skinny(&l, WAY_NORM_BEFORE);
		if (key->m == 1) list_skinny(&l, WAY_NORM_INSIDE);
	}
	const bool wide = key->m >= WIDE_MIN_ROWS && wide_can(context, &few);
	if (wide && key->use == LINEAR_USE_MLP_IN) list_wide(&l, WAY_NORM_BEFORE);
	if (fused && decode_can(context, &few)) list_way(&l, (struct way){.kernel = WAY_DECODE, .fusion = WAY_NORM_INSIDE});
	list_gemv(&l, key->m, fusion);
	if (skinny_can(context, &few)) list_skinny(&l, fusion);
	if (wide) list_wide(&l, fusion);
	if (decode_can(context, &few)) list_way(&l, (struct way){.kernel = WAY_DECODE, .fusion = fusion});
	if (key->m <= TILE_MAX_ROWS || !context->gemm) list_way(&l, (struct way){.kernel = WAY_TILE, .fusion = fusion});
	list_library(&l, &p, fusion);
	return l.count;
}

void gpu_linear_ran(const struct stream *stream, struct variant *out)
{
	const struct gpu_context *context = gpu_context(stream);
	write_variant(context, context->dispatch->use, &context->dispatch->ran, out);
}

/* ---- what it was told */

static int order_of_keys(const struct linear_key *a, const struct linear_key *b)
{
	const int difference[] = {(int)a->use - (int)b->use, (int)a->dtype - (int)b->dtype, (a->n > b->n) - (a->n < b->n), (a->k > b->k) - (a->k < b->k)};
	for (size_t i = 0; i < sizeof difference / sizeof *difference; i++)
		if (difference[i]) return difference[i];
	return 0;
}

static int order(const void *left, const void *right)
{
	const struct way_preference *a = left, *b = right;
	const int keys = order_of_keys(&a->key, &b->key);
	return keys ? keys : (a->m_low > b->m_low) - (a->m_low < b->m_low);
}

const struct way_preference *way_preferred(const struct gpu_context *context, enum linear_use use, const struct linear_weight *w, int m)
{
	const struct dispatch *d = context->dispatch;
	const struct linear_key key = {.use = use, .dtype = w->dtype, .n = w->n, .k = w->k};
	int low = 0, high = d->count;
	while (low < high) { /* the last that begins at or before m */
		const int mid = (low + high) / 2, keys = order_of_keys(&d->preferred[mid].key, &key);
		if (keys < 0 || (keys == 0 && d->preferred[mid].m_low <= m)) low = mid + 1;
		else high = mid;
	}
	if (low == 0) return NULL;
	const struct way_preference *found = &d->preferred[low - 1];
	return order_of_keys(&found->key, &key) == 0 && m <= found->m_high ? found : NULL;
}

static enum status read_preference(const struct gpu_context *context, const struct linear_preference *in, struct way_preference *out, struct error *err)
{
	if ((unsigned)in->key.use >= LINEAR_USE_COUNT || !dtype_is_plain(in->key.dtype) || in->key.n < 1 || in->key.k < 1 || in->m_low < 1 || in->m_high < in->m_low)
		return FAIL(err, BAD_INPUT, "variant %s '%s' for [%d,%d], use %d, rows %d to %d: no such problem", in->variant.kernel, in->variant.mode, in->key.n, in->key.k,
		            (int)in->key.use, in->m_low, in->m_high);
	*out = (struct way_preference){.key = in->key, .m_low = in->m_low, .m_high = in->m_high, .name = in->variant};
	out->key.m = 0;
	return read_way(context, &in->key, out, err);
}

enum status gpu_linear_prefer(struct stream *stream, const struct linear_preference *list, int count, struct error *err)
{
	struct dispatch *d = gpu_context(stream)->dispatch;
	const struct gpu_context *context = gpu_context(stream);
	struct way_preference *preferred = mem_zalloc((size_t)count, sizeof *preferred, "preferred variants", err);
	if (!preferred) return STATUS_NO_MEMORY;
	enum status st;
	int kept = 0;
	for (int i = 0; i < count; i++) {
		TRY_GOTO(read_preference(context, &list[i], &preferred[kept], err), fail);
		kept += preferred[kept].way.kernel != WAY_DEFAULT && (!context->invariant || preferred[kept].way.kernel == WAY_TILE);
	}
	qsort(preferred, (size_t)kept, sizeof *preferred, order);
	for (int i = 1; i < kept; i++) {
		const struct way_preference *a = &preferred[i - 1], *b = &preferred[i];
		if (order_of_keys(&a->key, &b->key) || a->m_high < b->m_low) continue;
		st = FAIL(err, BAD_INPUT, "[%d,%d] %s '%s' for rows %d to %d, and %s '%s' for %d to %d: one variant for a row count is wanted", b->key.n, b->key.k, a->name.kernel,
		          a->name.mode, a->m_low, a->m_high, b->name.kernel, b->name.mode, b->m_low, b->m_high);
		goto fail;
	}
	free(d->preferred);
	d->preferred = preferred;
	d->count = kept;
	return STATUS_OK;
fail:
	free(preferred);
	return st;
}
