/* check_attention.c: kv_write and attention over ragged batches, block sizes, permuted blocks, windows, chunked prefill; their speed.
 *
 * The cache starts as NaN everywhere and the block table is -1 wherever no key is visible: whatever reads beyond what it should
 * shows up as NaN or as a crash.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "check/check.h"

#define MAX_SEQS 8

/* Sequences of `len[s]` keys of which the last `fresh[s]` are this step's rows. */
struct batch {
	int seqs, len[MAX_SEQS], fresh[MAX_SEQS];
	int q_heads, kv_heads, dim, window;
	float softcap; /* 0: none */
};

/* Keys and values of a whole sequence, and queries for each position: functions of (seed, seq, position) alone, so that any way to cut
 * the sequence into steps has the same inputs. */
static void fill_position(struct check *c, float *out, int n, int seq, int position, uint64_t what)
{
	fill_with(out, DTYPE_F32, (size_t)n, c->fill, c->seed + what, (uint64_t)seq << 32 | (uint32_t)position);
}

struct world {
	const struct runner *v;
	struct kv_cache cache;
	struct guarded memory;
	int32_t *table; /* [MAX_SEQS][max_blocks] all blocks of each sequence */
	int max_blocks;
};

static struct world world_make(const struct runner *v, const struct batch *b, int block_tokens, bool permute)
{
	struct world w = {.v = v};
	int longest = 1, total = 0;
	for (int s = 0; s < b->seqs; s++) {
		if (b->len[s] > longest) longest = b->len[s];
		total += (b->len[s] + block_tokens - 1) / block_tokens;
	}
	w.max_blocks = (longest + block_tokens - 1) / block_tokens + 1;
	w.cache.layout = (struct kv_layout){.layers = 2, .blocks = total + 1, .block_tokens = block_tokens, .kv_heads = b->kv_heads, .head_dim = b->dim,
	                                    .dtype = DTYPE_F32};
	w.memory = guarded_alloc(v->device->vt->kv_bytes(&w.cache.layout));
	guarded_poison(&w.memory);
	w.cache.data = w.memory.data;
	w.table = malloc(sizeof(int32_t) * MAX_SEQS * (size_t)w.max_blocks);
	int next = 0, step = !permute ? 1 : total % 7 ? 7 : total % 11 ? 11 : 1; /* coprime with total: a permutation */
	for (int s = 0; s < b->seqs; s++)
		for (int i = 0; i < w.max_blocks; i++) {
			bool used = i * block_tokens < b->len[s];
			w.table[s * w.max_blocks + i] = used ? 1 + next * step % total : -1;
			next += used;
		}
	return w;
}

static void world_free(struct world *w)
{
	guarded_free(&w->memory);
	free(w->table);
}

/* One step: rows [from[s], to[s]) of each sequence are written to the cache and attended; out[s] takes the rows' results. Without an
 * out of any sequence the step only fills the cache. */
static void step(struct check *c, struct world *w, const struct batch *b, const int *from, const int *to, float *const *out)
{
	const struct runner *v = w->v;
	int rows = 0, q_cols = b->q_heads * b->dim, kv_cols = b->kv_heads * b->dim, tokens = w->cache.layout.block_tokens;
	for (int s = 0; s < b->seqs; s++) rows += to[s] - from[s];
	if (!rows) return;
	/* q, k and v side by side, as one fused projection leaves them */
	int cols = q_cols + 2 * kv_cols;
	struct guarded qkv = guarded_alloc((size_t)rows * (size_t)cols * 4), result = guarded_alloc((size_t)rows * (size_t)q_cols * 4);
	int32_t *position = malloc((size_t)rows * 4), *slot = malloc((size_t)rows * 4), start[MAX_SEQS + 1] = {0};
	int32_t *table = malloc(sizeof(int32_t) * (size_t)(b->seqs * w->max_blocks));
	struct step_rows sr = {.rows = rows, .seqs = b->seqs, .position = position, .kv_slot = slot, .row_start = start, .block_table = table, .max_blocks = w->max_blocks};
	int t = 0;
	for (int s = 0; s < b->seqs; s++) {
		for (int p = from[s]; p < to[s]; p++, t++) {
			float *row = (float *)qkv.data + (size_t)t * (size_t)cols;
			fill_position(c, row, q_cols, s, p, 100);
			fill_position(c, row + q_cols, kv_cols, s, p, 200);
			fill_position(c, row + q_cols + kv_cols, kv_cols, s, p, 300);
			position[t] = p;
			slot[t] = w->table[s * w->max_blocks + p / tokens] * tokens + p % tokens;
		}
		start[s + 1] = t;
		if (to[s] > sr.max_kv_len) sr.max_kv_len = to[s];
		if (to[s] - from[s] > sr.max_seq_rows) sr.max_seq_rows = to[s] - from[s];
		for (int i = 0; i < w->max_blocks; i++) { /* blocks that no row may see are not even named */
			int first_seen = b->window && from[s] + 1 > b->window ? from[s] + 1 - b->window : 0;
			bool seen = i * tokens < to[s] && (i + 1) * tokens > first_seen;
			table[s * w->max_blocks + i] = seen ? w->table[s * w->max_blocks + i] : -1000000;
		}
	}
	struct tensor all = tensor_view(qkv.data, DTYPE_F32, TENSOR_SHARDED, rows, cols);
	struct kv_write_args write = {.k = tensor_columns(&all, q_cols, kv_cols), .v = tensor_columns(&all, q_cols + kv_cols, kv_cols), .cache = &w->cache,
	                              .layer = 1, .kv_slot = slot};
	struct attention_args attention = {.q = tensor_columns(&all, 0, q_cols), .out = tensor_view(result.data, DTYPE_F32, TENSOR_SHARDED, rows, q_cols),
	                                   .q_heads = b->q_heads, .cache = &w->cache, .layer = 1, .rows = &sr, .scale = 1.0f / sqrtf((float)b->dim),
	                                   .window = b->window, .softcap = b->softcap};
	struct error err = {0};
	guarded_poison(&result);
	expect_ok(c, v, OP(v->stream, kv_write, &write, &err), &err);
	bool wanted = false;
	for (int s = 0; s < b->seqs; s++) wanted |= out[s] != NULL;
	if (wanted) expect_ok(c, v, OP(v->stream, attention, &attention, &err), &err);
	expect_intact(c, v, &result, "out");
	expect_intact(c, v, &w->memory, "cache");
	for (int s = 0; s < b->seqs; s++)
		if (out[s]) memcpy(out[s], (float *)result.data + (size_t)start[s] * (size_t)q_cols, (size_t)(to[s] - from[s]) * (size_t)q_cols * 4);
	guarded_free(&qkv), guarded_free(&result);
	free(position), free(slot), free(table);
}

/* Everything before the fresh rows in steps of `history` rows, then the fresh rows in steps of `chunk`; results of the fresh rows of all
 * sequences one after another. */
static float *run_batch(struct check *c, const struct runner *v, const struct batch *b, int block_tokens, bool permute, int history, int chunk)
{
	struct world w = world_make(v, b, block_tokens, permute);
	size_t row = (size_t)(b->q_heads * b->dim), floats = 0;
	for (int s = 0; s < b->seqs; s++) floats += (size_t)b->fresh[s] * row;
	float *out = malloc(floats * 4), *at[MAX_SEQS];
	int from[MAX_SEQS], to[MAX_SEQS], done[MAX_SEQS] = {0};
	for (int s = 0; s < b->seqs; s++) at[s] = s ? at[s - 1] + (size_t)b->fresh[s - 1] * row : out;
	for (bool more = true; more;) {
		more = false;
		float *target[MAX_SEQS];
		for (int s = 0; s < b->seqs; s++) {
			int old = b->len[s] - b->fresh[s], end = done[s] < old ? old : b->len[s], most = done[s] < old ? history : chunk;
			from[s] = done[s];
			to[s] = end - done[s] < most ? end : done[s] + most;
			target[s] = done[s] < old ? NULL : at[s] + (size_t)(done[s] - old) * row;
			done[s] = to[s];
			more |= done[s] < b->len[s];
		}
		step(c, &w, b, from, to, target);
	}
	world_free(&w);
	return out;
}

/* Bound, for scores of magnitude <= S: a score errs by (D + 2) u sum|q k| scale =: e, a weight by (2 e + 4 u) relative, as does l; a sum over n
 * keys rounds each term n + blocks times at most, twice for rescaling: |error| <= (2 e + (n + 4 blocks + 16) u) sum p |v| / l. */
static void oracle(struct check *c, const struct batch *b, const float *got)
{
	int q_cols = b->q_heads * b->dim, kv_cols = b->kv_heads * b->dim, group = b->q_heads / b->kv_heads;
	double scale = (double)(1.0f / sqrtf((float)b->dim));
	float *q = malloc((size_t)q_cols * 4);
	for (int s = 0; s < b->seqs; s++) {
		float *k = malloc((size_t)b->len[s] * (size_t)kv_cols * 4), *v = malloc((size_t)b->len[s] * (size_t)kv_cols * 4);
		double *p = malloc((size_t)b->len[s] * 8), want[256], bound[256];
		for (int j = 0; j < b->len[s]; j++) {
			fill_position(c, k + (size_t)j * (size_t)kv_cols, kv_cols, s, j, 200);
			fill_position(c, v + (size_t)j * (size_t)kv_cols, kv_cols, s, j, 300);
		}
		for (int i = b->len[s] - b->fresh[s]; i < b->len[s]; i++, got += q_cols) {
			fill_position(c, q, q_cols, s, i, 100);
			int lo = b->window && i + 1 > b->window ? i + 1 - b->window : 0;
			for (int h = 0; h < b->q_heads; h++) {
				double max = -INFINITY, l = 0, e = 0;
				size_t head = (size_t)(h / group * b->dim);
				for (int j = lo; j <= i; j++) {
					double dot = 0, size = 0;
					for (int d = 0; d < b->dim; d++) {
						double term = (double)q[h * b->dim + d] * (double)k[(size_t)j * (size_t)kv_cols + head + (size_t)d];
						dot += term;
						size += fabs(term);
					}
					p[j] = b->softcap > 0 ? (double)b->softcap * tanh(dot * scale / (double)b->softcap) : dot * scale;
					max = fmax(max, p[j]);
					e = fmax(e, (b->dim + 2) * 0x1.01p-24 * size * scale + 6 * 0x1.01p-24 * fabs(p[j])); /* a cap never stretches */
				}
				for (int j = lo; j <= i; j++) l += p[j] = exp(p[j] - max);
				for (int d = 0; d < b->dim; d++) {
					double sum = 0, size = 0;
					for (int j = lo; j <= i; j++) {
						double term = p[j] * (double)v[(size_t)j * (size_t)kv_cols + head + (size_t)d];
						sum += term;
						size += fabs(term);
					}
					int n = i + 1 - lo;
					want[d] = sum / l;
					bound[d] = (4 * e + (n + 4 * (n / 256 + 2) + 16) * 0x1.01p-24) * size / l + 0x1p-140;
				}
				compare_bound(c, "out", got + h * b->dim, want, bound, (size_t)b->dim);
			}
		}
		free(k), free(v), free(p);
	}
	free(q);
}

static void batch_case(struct check *c, enum fill fill, const struct batch *b, bool ways)
{
	char lens[96] = "";
	size_t floats = 0;
	int fresh = 1;
	for (int s = 0; s < b->seqs; s++) {
		size_t used = strlen(lens);
		snprintf(lens + used, sizeof lens - used, " %d/%d", b->fresh[s], b->len[s]);
		floats += (size_t)b->fresh[s] * (size_t)(b->q_heads * b->dim);
		if (b->fresh[s] > fresh) fresh = b->fresh[s];
	}
	char cap[24] = "";
	if (b->softcap > 0) snprintf(cap, sizeof cap, " softcap %g", (double)b->softcap);
	case_begin(c, fill, "rows/keys%s, heads %d/%d D=%d window %d%s", lens, b->q_heads, b->kv_heads, b->dim, b->window, cap);
	float *first = run_batch(c, &c->variant[0], b, 16, false, 128, fresh);
	reference_bits(c, first, floats);
	if (fill == FILL_RANDOM || fill == FILL_ZERO) oracle(c, b, first);
	static const int sizes[] = {16, 32, 48, 64, 256};
	for (int i = 1; i < c->variants; i++) {
		float *out = run_batch(c, &c->variant[i], b, sizes[i % 5], i % 2, 128, fresh);
		compare_bits(c, &c->variant[i], "out", out, first, floats);
		free(out);
	}
	for (int i = 0; ways && i < 5; i++) { /* the best variant: every block size, permuted or not, prefill in chunks of many sizes */
		static const int chunks[] = {1, 7, 16, 33, 100};
		const struct runner *v = &c->variant[c->variants - 1 - i % 2];
		float *out = run_batch(c, v, b, sizes[i], i % 2 == 0, 64 + i, chunks[i]);
		compare_bits(c, v, "out in chunks", out, first, floats);
		free(out);
	}
	case_end(c);
	free(first);
}

void check_attention(struct check *c)
{
	static const struct batch cases[] = {
		{1, {1}, {1}, 1, 1, 8, 0, 0},
		{1, {17}, {17}, 2, 1, 16, 0, 0},
		{1, {300}, {40}, 4, 2, 24, 0, 0},
		{3, {5, 260, 33}, {5, 1, 20}, 8, 2, 64, 0, 0},
		{2, {257, 256}, {3, 2}, 3, 3, 40, 0, 0},
		{1, {530}, {60}, 14, 2, 72, 0, 0},
		{2, {600, 90}, {1, 90}, 6, 1, 128, 100, 0},
		{2, {300, 40}, {300, 12}, 2, 2, 32, 17, 0},
		{1, {520}, {9}, 4, 4, 256, 300, 0},
		{4, {1, 2, 3, 70}, {1, 1, 1, 1}, 16, 4, 80, 0, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		batch_case(c, FILL_RANDOM, &cases[i], true);
		if (c->quick) continue;
		batch_case(c, FILL_ZERO, &cases[i], false);
		batch_case(c, FILL_DENORMAL, &cases[i], false);
		batch_case(c, FILL_EXTREME, &cases[i], false);
		batch_case(c, FILL_SPECIAL, &cases[i], false);
	}
	if (c->quick) return;
	batch_case(c, FILL_RANDOM, &(struct batch){1, {3000}, {1}, 4, 2, 64, 0, 0}, true); /* split over the team by blocks */
	batch_case(c, FILL_RANDOM, &(struct batch){1, {2000}, {3}, 2, 1, 64, 900, 0}, true);
	batch_case(c, FILL_RANDOM, &(struct batch){1, {400}, {400}, 4, 1, 64, 0, 0}, true);
	batch_case(c, FILL_RANDOM, &(struct batch){.seqs = 1, .len = {300}, .fresh = {40}, .q_heads = 4, .kv_heads = 2, .dim = 64, .softcap = 0.7f}, true);
	batch_case(c, FILL_RANDOM, &(struct batch){.seqs = 2, .len = {700, 33}, .fresh = {2, 33}, .q_heads = 2, .kv_heads = 1, .dim = 72, .window = 290, .softcap = 3}, true);
}

/* Written keys and values, read back by attention with a softmax of one key: the output is the value's bits. */
void check_kv_write(struct check *c)
{
	static const int shapes[][4] = {{1, 1, 8, 16}, {17, 2, 64, 16}, {65, 3, 40, 32}, {200, 4, 128, 64}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		int rows = shapes[i][0], heads = shapes[i][1], dim = shapes[i][2], tokens = shapes[i][3], cols = heads * dim;
		case_begin(c, FILL_RANDOM, "T=%d heads=%d D=%d block %d", rows, heads, dim, tokens);
		struct batch b = {1, {rows}, {rows}, heads, heads, dim, 1, 0};
		float *want = malloc((size_t)rows * (size_t)cols * 4);
		for (int p = 0; p < rows; p++) fill_position(c, want + (size_t)p * (size_t)cols, cols, 0, p, 300);
		for (int j = 0; j < c->variants; j++) {
			float *out = run_batch(c, &c->variant[j], &b, tokens, true, 1, rows);
			/* window 1: p = exp(0) = 1, acc = fma(1, v, +0), l = 1. -0 comes back as +0: */
			for (int n = 0; n < rows * cols; n++) want[n] = want[n] + 0.0f;
			compare_bits(c, &c->variant[j], "values", out, want, (size_t)rows * (size_t)cols);
			free(out);
		}
		case_end(c);
		free(want);
	}
}

/* --- bench ------------------------------------------------------------------------------------------------------------ */

struct attention_bench {
	const struct runner *v;
	struct attention_args args;
	int layers;
};

static void attention_step(void *context)
{
	struct attention_bench *b = context;
	struct error err = {0};
	b->args.layer = (b->args.layer + 1) % b->layers;
	if (OP(b->v->stream, attention, &b->args, &err) != STATUS_OK) printf("bench: %s\n", err.text);
}

static void bench_batch(struct check *c, int seqs, int rows, int context, int q_heads, int kv_heads, int dim)
{
	const struct runner *v = &c->variant[0];
	const struct device_ops *vt = v->device->vt;
	enum { TOKENS = 32 };
	int blocks = (context + TOKENS - 1) / TOKENS, total = seqs * rows, q_cols = q_heads * dim;
	struct kv_cache cache = {.layout = {.layers = 1, .blocks = seqs * blocks + 1, .block_tokens = TOKENS, .kv_heads = kv_heads, .head_dim = dim}};
	size_t layer = vt->kv_bytes(&cache.layout);
	cache.layout.layers = (int)(300000000 / layer) + 1;
	struct error err = {0};
	void *q;
	if (vt->alloc(v->device, vt->kv_bytes(&cache.layout), MEM_KV, "bench", &cache.data, &err) != STATUS_OK) return;
	for (size_t i = 0; i < vt->kv_bytes(&cache.layout) / 4; i++) ((float *)cache.data)[i] = (float)(i % 17) * 0.1f - 0.8f;
	(void)!vt->alloc(v->device, (size_t)total * (size_t)q_cols * 8, MEM_WORKSPACE, "bench", &q, &err);
	fill_with(q, DTYPE_F32, (size_t)total * (size_t)q_cols, FILL_RANDOM, 1, 1);
	int32_t *position = calloc((size_t)total, 4), *start = calloc((size_t)seqs + 1, 4), *table = calloc((size_t)(seqs * blocks), 4);
	for (int s = 0; s < seqs; s++) {
		start[s + 1] = (s + 1) * rows;
		for (int i = 0; i < rows; i++) position[s * rows + i] = context - rows + i;
		for (int i = 0; i < blocks; i++) table[s * blocks + i] = 1 + s * blocks + i;
	}
	struct step_rows sr = {.rows = total, .seqs = seqs, .position = position, .row_start = start, .block_table = table, .max_blocks = blocks,
	                       .max_kv_len = context, .max_seq_rows = rows};
	struct attention_bench b = {.v = v, .layers = cache.layout.layers};
	b.args = (struct attention_args){.q = tensor_view(q, DTYPE_F32, TENSOR_SHARDED, total, q_cols),
	                                 .out = tensor_view((float *)q + (size_t)total * (size_t)q_cols, DTYPE_F32, TENSOR_SHARDED, total, q_cols),
	                                 .q_heads = q_heads, .cache = &cache, .rows = &sr, .scale = 0.125f};
	struct bench_timer t = bench_run(attention_step, &b);
	double keys = 0;
	for (int i = 0; i < rows; i++) keys += context - rows + i + 1;
	double gflop = 4e-9 * seqs * keys * q_cols, gb = 8e-9 * seqs * context * kv_heads * dim;
	printf("attention S=%-3d T=%-3d context %-5d heads %d/%d D=%d: %9.1f us median (%9.1f best), %5.1f GB/s = %3.0f %% of read, %6.1f GFLOP/s = %3.0f %% of fma\n",
	       seqs, rows, context, q_heads, kv_heads, dim, t.median_s * 1e6, t.best_s * 1e6, gb / t.median_s, 100 * gb / t.median_s / c->read_gbps, gflop / t.median_s,
	       100 * gflop / t.median_s / c->fma_gflops);
	fflush(stdout);
	vt->free(v->device, cache.data), vt->free(v->device, q);
	free(position), free(start), free(table);
}

void bench_attention(struct check *c)
{
	bench_batch(c, 1, 1, 128, 32, 8, 64);
	bench_batch(c, 1, 1, 2048, 32, 8, 64);
	bench_batch(c, 1, 1, 16384, 32, 8, 64);
	bench_batch(c, 1, 1, 16384, 16, 1, 128);
	bench_batch(c, 16, 1, 1024, 32, 8, 128);
	bench_batch(c, 1, 512, 512, 32, 8, 64);
	bench_batch(c, 1, 512, 512, 32, 32, 64);
	bench_batch(c, 1, 512, 4096, 32, 8, 128);
}
