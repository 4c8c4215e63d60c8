/* Attention over a paged cache against doubles: decode, prefill and mixed steps, chunks that go on, windows, soft caps, groups of query heads, block sizes,
 * head sizes. The cache is NaN wherever no key is, block tables are permuted, and their entries behind (and before) what is needed point
 * nowhere. Every kernel of the build is checked, also those that others stand before.
 *
 * Bound: scores are sums of D products in f32, tanh errs by 2^-21 of its largest value, weights are rounded to the cache's type by the tensor core kernels, and so is the result. */
#include "device/gpu/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/gpu/device.h"
#include "gpu/harness.h"

#define MAX_SEQS 16
#define KERNELS 3            /* most candidates of a kind */
#define NOWHERE 0x7ffffff0   /* a block that no cache has */
#define MAX_WORK 4e6         /* products of a case in the oracle */
#define MAX_WORK_QUICK 6e5
#define MAX_KEPT 4e6         /* elements of a case's keys and values */

enum scores { SCORES_RANDOM, SCORES_STEEP, SCORES_ZERO, SCORES_EQUAL };
static const char *const score_names[] = {"random", "steep", "zero", "equal"};
enum steps { STEP_DECODE, STEP_PREFILL, STEP_MIXED, STEP_MOSTLY_DECODE, STEP_DECODE_FIRST, STEP_ONE, STEP_KINDS };
static const char *const step_names[] = {"decode", "prefill", "mixed", "mostly decode", "decode first", "one"};

struct shape {
	enum dtype dtype;
	int head_dim, q_heads, kv_heads, block_tokens, window, seqs;
	int rows[MAX_SEQS], kv_len[MAX_SEQS];
	enum scores scores;
	float softcap; /* 0: none */
	bool finite; /* the cache is not NaN where no key is */
};

/* A step on the host and on the device. */
struct step {
	const struct shape *s;
	int rows, blocks, max_blocks, max_kv_len, max_rows;
	int q_stride;
	int32_t *position, *row_start, *table;
	void *q, *kv; /* host */
	struct step_rows device;
	struct kv_cache cache;
	struct tensor query;
};

static double unit(const struct gpu_check *c, uint64_t stream, uint64_t i)
{
	return 2 * rng_unit(c->seed, stream, i) - 1;
}

static int draw(const struct gpu_check *c, uint64_t stream, uint64_t i, int n)
{
	return (int)(rng_u64(c->seed, stream, i) % (uint64_t)n);
}

static void store(void *to, enum dtype dtype, size_t i, double v)
{
	if (dtype == DTYPE_F32) {
		((float *)to)[i] = (float)v;
		return;
	}
	if (dtype == DTYPE_BF16) {
		((uint16_t *)to)[i] = bf16_from_f32((float)v);
		return;
	}
	/* to a multiple of 2^-8, or of 2^-5 from 8 on: exact in F16, and normal */
	float step = fabs(v) < 8 ? 256 : 32, rounded = rintf((float)v * step) / step;
	uint32_t bits = f32_to_bits(rounded), sign = bits >> 16 & 0x8000;
	((uint16_t *)to)[i] = (uint16_t)(rounded == 0 ? sign : sign | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
}

/* Query (stream 1) and key (2) elements. */
static double score_part(const struct gpu_check *c, const struct shape *s, uint64_t stream, uint64_t i)
{
	switch (s->scores) {
	case SCORES_ZERO: return 0;
	case SCORES_EQUAL: return 0.5;
	case SCORES_STEEP: return unit(c, stream, i) * (stream == 1 ? 40 : 4);
	default: return unit(c, stream, i) * 1.7;
	}
}

/* Element 0 of a key in the cache; its value lies value_offset behind. */
static size_t key_at(const struct step *p, int seq, int key, int head)
{
	const struct shape *s = p->s;
	size_t block = (size_t)p->table[(size_t)seq * (size_t)p->max_blocks + (size_t)(key / s->block_tokens)];
	return ((block * 2 * (size_t)s->kv_heads + (size_t)head) * (size_t)s->block_tokens + (size_t)(key % s->block_tokens)) * (size_t)s->head_dim;
}

static size_t value_offset(const struct shape *s)
{
	return (size_t)s->kv_heads * (size_t)s->block_tokens * (size_t)s->head_dim;
}

/* First key that some row of a sequence sees. */
static int first_key(const struct shape *s, int seq)
{
	int first = s->window && s->rows[seq] ? s->kv_len[seq] - s->rows[seq] - s->window + 1 : 0;
	return first > 0 ? first : 0;
}

static void lay_out(struct gpu_check *c, struct step *p)
{
	const struct shape *s = p->s;
	p->row_start = gpu_host(c, (MAX_SEQS + 1) * sizeof *p->row_start);
	for (int i = 0; i < s->seqs; i++) {
		p->row_start[i + 1] = p->row_start[i] + s->rows[i];
		if (s->kv_len[i] > p->max_kv_len) p->max_kv_len = s->kv_len[i];
		if (s->rows[i] > p->max_rows) p->max_rows = s->rows[i];
		p->blocks += (s->kv_len[i] + s->block_tokens - 1) / s->block_tokens;
	}
	p->rows = p->row_start[s->seqs];
	p->blocks += 3; /* the sink and some that nobody has */
	p->max_blocks = (p->max_kv_len + s->block_tokens - 1) / s->block_tokens + 1;
	int *order = gpu_host(c, (size_t)p->blocks * sizeof *order), next = 1;
	for (int i = 0; i < p->blocks; i++) order[i] = i;
	for (int i = p->blocks - 1; i > 1; i--) {
		int j = 1 + draw(c, 9, (uint64_t)i, i), swap = order[i];
		order[i] = order[j], order[j] = swap;
	}
	p->position = gpu_host(c, (size_t)p->rows * sizeof *p->position);
	p->table = gpu_host(c, (size_t)s->seqs * (size_t)p->max_blocks * sizeof *p->table);
	for (int i = 0; i < s->seqs; i++) {
		int32_t *table = p->table + (size_t)i * (size_t)p->max_blocks;
		for (int b = 0; b < p->max_blocks; b++) {
			bool needed = b * s->block_tokens < s->kv_len[i] && (b + 1) * s->block_tokens > first_key(s, i);
			table[b] = needed ? order[next++] : NOWHERE;
		}
		if (s->rows[i] == 1 && s->kv_len[i] == 1) table[0] = 0; /* as a padding row */
		for (int r = 0; r < s->rows[i]; r++) p->position[p->row_start[i] + r] = s->kv_len[i] - s->rows[i] + r;
	}
}

static void fill_step(struct gpu_check *c, struct step *p)
{
	const struct shape *s = p->s;
	size_t bytes = dtype_bytes(s->dtype), kv = (size_t)p->blocks * 2 * value_offset(s), dim = (size_t)s->head_dim;
	p->kv = gpu_host(c, kv * bytes);
	memset(p->kv, s->finite ? 0x42 : 0xff, kv * bytes);
	for (int i = 0; i < s->seqs; i++)
		for (int k = first_key(s, i); k < s->kv_len[i]; k++)
			for (int h = 0; h < s->kv_heads; h++) {
				size_t at = key_at(p, i, k, h);
				for (size_t d = 0; d < dim; d++) {
					store(p->kv, s->dtype, at + d, score_part(c, s, 2, at + d));
					store(p->kv, s->dtype, at + value_offset(s) + d, unit(c, 3, at + d) * 2);
				}
			}
	size_t cols = (size_t)s->q_heads * dim;
	p->q_stride = (s->q_heads + 2 * s->kv_heads) * s->head_dim; /* q lies among k and v */
	p->q = gpu_host(c, (size_t)p->rows * (size_t)p->q_stride * bytes);
	memset(p->q, 0xff, (size_t)p->rows * (size_t)p->q_stride * bytes);
	for (size_t r = 0; r < (size_t)p->rows; r++)
		for (size_t i = 0; i < cols; i++) store(p->q, s->dtype, r * (size_t)p->q_stride + i, score_part(c, s, 1, r * 100003 + i));
}

static struct step make_step(struct gpu_check *c, const struct shape *s)
{
	struct step p = {.s = s};
	lay_out(c, &p);
	fill_step(c, &p);
	size_t bytes = dtype_bytes(s->dtype);
	p.device = (struct step_rows){.rows = p.rows, .seqs = s->seqs, .max_blocks = p.max_blocks, .max_kv_len = p.max_kv_len, .max_seq_rows = p.max_rows,
	                              .position = gpu_put(c, p.position, (size_t)p.rows * sizeof(int32_t)),
	                              .row_start = gpu_put(c, p.row_start, (size_t)(s->seqs + 1) * sizeof(int32_t)),
	                              .block_table = gpu_put(c, p.table, (size_t)s->seqs * (size_t)p.max_blocks * sizeof(int32_t))};
	p.cache = (struct kv_cache){.data = gpu_put(c, p.kv, (size_t)p.blocks * 2 * value_offset(s) * bytes),
	                            .layout = {.layers = 1, .blocks = p.blocks, .block_tokens = s->block_tokens, .kv_heads = s->kv_heads,
	                                       .head_dim = s->head_dim, .dtype = s->dtype}};
	p.query = tensor_view(gpu_put(c, p.q, (size_t)p.rows * (size_t)p.q_stride * bytes), s->dtype, TENSOR_SHARDED, p.rows, s->q_heads * s->head_dim);
	p.query.row_stride = p.q_stride;
	return p;
}

static float scale_of(const struct shape *s)
{
	return 1.0f / sqrtf((float)s->head_dim);
}

/* One row and head: want[D], and how far off it may be. `score`: room for all keys. */
static void attend(const struct step *p, int seq, int row, int head, double *score, double *want, double *bound)
{
	const struct shape *s = p->s;
	int dim = s->head_dim, group = s->q_heads / s->kv_heads, keys = p->position[row] + 1, first = s->window && keys > s->window ? keys - s->window : 0;
	size_t q = (size_t)row * (size_t)p->q_stride + (size_t)head * (size_t)dim;
	double top = -INFINITY, largest = 0, sum = 0, scale = (double)scale_of(s);
	for (int k = first; k < keys; k++) {
		size_t at = key_at(p, seq, k, head / group);
		double dot = 0, absolute = 0;
		for (int d = 0; d < dim; d++) {
			double product = element(p->q, s->dtype, q + (size_t)d) * element(p->kv, s->dtype, at + (size_t)d);
			dot += product, absolute += fabs(product);
		}
		score[k] = s->softcap > 0 ? (double)s->softcap * tanh(dot * scale / (double)s->softcap) : dot * scale;
		top = fmax(top, score[k]), largest = fmax(largest, absolute * scale);
	}
	for (int d = 0; d < dim; d++) want[d] = bound[d] = 0;
	for (int k = first; k < keys; k++) {
		double weight = exp(score[k] - top);
		sum += weight;
		size_t at = key_at(p, seq, k, head / group) + value_offset(s);
		for (int d = 0; d < dim; d++) {
			double v = element(p->kv, s->dtype, at + (size_t)d);
			want[d] += weight * v, bound[d] += weight * fabs(v);
		}
	}
	double u = 0x1p-24, unit_t = gpu_unit(s->dtype), n = keys - first;
	double relative = 4 * ((dim + 8) * u * largest + (double)s->softcap * 0x1p-21) + (2 * n + 64) * u + (s->dtype == DTYPE_F32 ? 0 : 1.02 * unit_t);
	double tiny = s->dtype == DTYPE_F16 ? n * 0x1p-25 * 2 / sum + 0x1p-24 : 1e-30; /* weights below F16's subnormals */
	for (int d = 0; d < dim; d++) {
		want[d] /= sum;
		bound[d] = relative * bound[d] / sum;
		bound[d] += unit_t * (fabs(want[d]) + bound[d]) + tiny;
	}
}

/* What is wanted of a step's rows, and how far off it may be. */
struct answer {
	double *want, *bound; /* [rows][q_heads * D] */
};

static struct answer answer_of(struct gpu_check *c, const struct step *p)
{
	const struct shape *s = p->s;
	size_t cols = (size_t)s->q_heads * (size_t)s->head_dim, n = (size_t)p->rows * cols;
	struct answer a = {gpu_host(c, n * sizeof *a.want), gpu_host(c, n * sizeof *a.bound)};
	double *score = gpu_host(c, (size_t)p->max_kv_len * sizeof *score);
	for (int seq = 0; seq < s->seqs; seq++)
		for (int row = p->row_start[seq]; row < p->row_start[seq + 1]; row++)
			for (int h = 0; h < s->q_heads; h++) {
				size_t at = (size_t)row * cols + (size_t)h * (size_t)s->head_dim;
				attend(p, seq, row, h, score, a.want + at, a.bound + at);
			}
	return a;
}

static struct attention_args args_of(struct gpu_check *c, const struct step *p)
{
	const struct shape *s = p->s;
	const int cols = s->q_heads * s->head_dim;
	return (struct attention_args){.q = p->query, .out = gpu_output(c, s->dtype, TENSOR_SHARDED, p->rows, cols, cols + 16), .q_heads = s->q_heads,
	                               .cache = &p->cache, .rows = &p->device, .scale = scale_of(s), .window = s->window, .softcap = s->softcap};
}

static void check_shape(struct gpu_check *c, const struct shape *s, struct stream *stream, const char *what)
{
	gpu_case(c, s->dtype, FILL_RANDOM, "%s %d/%d x %d, blocks of %d, window %d, soft cap %g, %s", what, s->q_heads, s->kv_heads, s->head_dim, s->block_tokens,
	         s->window, (double)s->softcap, score_names[s->scores]);
	struct step p = make_step(c, s);
	const struct answer a = answer_of(c, &p);
	int singles = 0;
	while (singles < s->seqs && s->rows[singles] == 1) singles++;
	for (int i = 0; i < 2 * KERNELS; i++) { /* each told how the step begins, and not */
		const int skip = i / 2;
		if (i % 2 && (!singles || singles == s->seqs)) continue;
		p.device.single_seqs = i % 2 ? singles : 0;
		char name[32];
		snprintf(name, sizeof name, "out without %d%s", skip, i % 2 ? ", told" : "");
		struct attention_args args = args_of(c, &p);
		gpu_ok(c, gpu_attention_skip(stream, &args, skip, &c->err));
		gpu_compare(c, name, &args.out, a.want, a.bound, 1, 0);
	}
	gpu_case_end(c);
}

/* Every variant, by name. A step of one kind: what ran is the one that was asked for. */
static void check_variants(struct gpu_check *c, const struct shape *s)
{
	struct variant list[40], ran;
	const struct attention_key key = {.prefill = s->rows[0] > 1, .dtype = s->dtype, .q_heads = s->q_heads, .kv_heads = s->kv_heads,
	                                 .head_dim = s->head_dim, .m = s->seqs * s->rows[0]};
	gpu_case(c, s->dtype, FILL_RANDOM, "variants %d x %d rows, %d/%d x %d", s->seqs, s->rows[0], s->q_heads, s->kv_heads, s->head_dim);
	const int count = c->ops->attention_variants(c->stream, &key, list, 40);
	struct step p = make_step(c, s);
	const struct answer a = answer_of(c, &p);
	if (!strcmp(GPU_NAME_TEXT, "cuda") && key.prefill && s->dtype != DTYPE_F32 && strcmp(list[1].kernel, "prefill_wide"))
		gpu_fail(c, "the first of %d variants is %s; prefill_wide takes such heads", count, list[1].kernel);
	if (count < 2 || count >= 40 || strcmp(list[0].kernel, "default")) gpu_fail(c, "%d variants, the first '%s'; default and others are wanted", count, list[0].kernel);
	for (int i = 0; i < count; i++) {
		char name[80];
		struct attention_args args = args_of(c, &p);
		if (!strcmp(list[i].kernel, attention_cudnn.name)) continue; /* gpu_check_attention_cudnn */
		snprintf(name, sizeof name, "out of %.30s %.30s", list[i].kernel, list[i].mode);
		gpu_ok(c, c->ops->attention_prefer(c->stream, &(struct attention_preference){key, key.m, key.m, list[i]}, 1, &c->err));
		gpu_ok(c, OP(c->stream, attention, &args, &c->err));
		gpu_compare(c, name, &args.out, a.want, a.bound, 1, 0);
		c->ops->attention_ran(c->stream, &ran);
		if (i ? strcmp(ran.kernel, list[i].kernel) || strcmp(ran.mode, list[i].mode) : !strcmp(ran.kernel, "default"))
			gpu_fail(c, "%s: %s %s ran", name, ran.kernel, ran.mode);
	}
	const int last = count - (strcmp(list[count - 1].kernel, attention_cudnn.name) == 0);
	const struct attention_preference other = {key, key.m + 1, key.m + 9, list[last - 1]};
	struct attention_args args = args_of(c, &p);
	gpu_ok(c, c->ops->attention_prefer(c->stream, &other, 1, &c->err));
	gpu_ok(c, OP(c->stream, attention, &args, &c->err));
	c->ops->attention_ran(c->stream, &ran);
	if (last > 2 && !strcmp(ran.kernel, list[last - 1].kernel) && !strcmp(ran.mode, list[last - 1].mode)) gpu_fail(c, "what is preferred for other rows ran");
	static const struct variant bad[] = {{.kernel = "flash"}, {.kernel = "decode", .mode = "2"}, {.kernel = "decode", .mode = "99 splits"},
	                                     {.kernel = "default", .mode = "2 splits"}, {.kernel = "tile", .mode = "2 splits"}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		gpu_refused(c, STATUS_BAD_INPUT, c->ops->attention_prefer(c->stream, &(struct attention_preference){key, 1, 1, bad[i]}, 1, &c->err));
	gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	gpu_case_end(c);
}

/* A split that nobody has workspace for is refused; by itself the dispatch would do without. */
static void check_workspace(struct gpu_check *c)
{
	const int heads = GPU_COUNTERS / 8 + 1;
	const struct shape s = {.dtype = DTYPE_F32, .head_dim = 16, .q_heads = heads, .kv_heads = heads, .block_tokens = 16, .seqs = 8, .rows = {1, 1, 1, 1, 1, 1, 1, 1},
	                        .kv_len = {1, 1, 1, 1, 1, 1, 1, 1}};
	const struct attention_preference two = {{.dtype = s.dtype, .q_heads = heads, .kv_heads = heads, .head_dim = 16}, 8, 8, {.kernel = "decode", .mode = "2 splits"}};
	gpu_case(c, s.dtype, FILL_RANDOM, "%d heads in two splits", heads);
	struct step p = make_step(c, &s);
	struct attention_args args = args_of(c, &p);
	gpu_ok(c, c->ops->attention_prefer(c->stream, &two, 1, &c->err));
	gpu_refused(c, STATUS_UNSUPPORTED, OP(c->stream, attention, &args, &c->err));
	gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	gpu_case_end(c);
}

/* Invariant mode has no other way where sequences times heads are many: 16 sequences with one key but for the last, which has several splits. */
static void check_many_heads(struct gpu_check *c, int group)
{
	const int kv_heads = GPU_COUNTERS / MAX_SEQS / group + 1;
	struct shape s = {.dtype = DTYPE_F32, .head_dim = 16, .q_heads = kv_heads * group, .kv_heads = kv_heads, .block_tokens = 16, .seqs = MAX_SEQS};
	const struct stream_options options = {.max_rows = MAX_SEQS, .max_q_heads = s.q_heads, .max_head_dim = s.head_dim, .max_context = 512, .max_seqs = MAX_SEQS, .invariant = true};
	struct stream *stream = NULL, *plain = c->stream;
	for (int i = 0; i < s.seqs; i++) s.rows[i] = 1, s.kv_len[i] = i == s.seqs - 1 ? 300 : 1;
	enum status st = c->ops->stream_create(c->device, &options, &stream, &c->err);
	gpu_case(c, s.dtype, FILL_RANDOM, "invariant, %d sequences of %d/%d heads", s.seqs, s.q_heads, s.kv_heads);
	gpu_ok(c, st);
	if (st == STATUS_OK) {
		c->stream = stream;
		struct step p = make_step(c, &s);
		const struct answer a = answer_of(c, &p);
		struct attention_args args = args_of(c, &p);
		gpu_ok(c, OP(stream, attention, &args, &c->err));
		gpu_compare(c, "out", &args.out, a.want, a.bound, 1, 0);
	}
	gpu_case_end(c);
	c->stream = plain;
	if (stream) c->ops->stream_destroy(stream);
}

/* Sequences of one step; rows are cut down to what the oracle can do in time. */
static void draw_step(const struct gpu_check *c, struct shape *s, enum steps kind, uint64_t i)
{
	static const int lengths[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300, 511, 513, 700, 1000, 1025, 2049, 5000};
	int choices = c->quick ? 14 : (int)(sizeof lengths / sizeof *lengths), most = c->quick ? 40 : 300;
	int seqs = kind == STEP_ONE ? 1 : kind == STEP_DECODE ? 9 : 5;
	double left = c->quick ? MAX_WORK_QUICK : MAX_WORK;
	for (int n = 0; n < seqs; n++) {
		int length = lengths[draw(c, 5, 100 * i + (uint64_t)n, choices)], rows = 1, some = 1 + draw(c, 6, 100 * i + (uint64_t)n, most);
		if (kind == STEP_PREFILL || kind == STEP_ONE || (kind == STEP_MIXED && n % 2 == 0)) rows = some;
		if (kind == STEP_MOSTLY_DECODE && n % 3 == 0) rows = n ? 7 : length;
		if (kind == STEP_DECODE_FIRST && n > 2) rows = some;
		double kept = MAX_KEPT / seqs / (2.0 * s->kv_heads * s->head_dim);
		if (length > kept) length = (int)kept;
		double can = left / (seqs - n) / ((double)length * s->q_heads * s->head_dim);
		if (rows > can) rows = can > 0 ? (int)can + 1 : 1;
		if (rows > length) rows = length;
		left -= (double)rows * length * s->q_heads * s->head_dim;
		s->rows[s->seqs] = rows, s->kv_len[s->seqs++] = length;
	}
	if (kind == STEP_MIXED) s->rows[s->seqs] = 0, s->kv_len[s->seqs++] = 40; /* a sequence that rests */
	if (kind != STEP_PREFILL && kind != STEP_ONE)
		for (int n = 0; n < 2; n++) s->rows[s->seqs] = 1, s->kv_len[s->seqs++] = 1; /* padding */
}

static void check_drawn(struct gpu_check *c, struct stream *stream, const char *what, int cases)
{
	static const int dims[] = {64, 80, 96, 128, 192, 256, 16, 160}, groups[] = {1, 3, 4, 8, 5, 16, 12}, blocks[] = {16, 32, 64, 48, 128};
	static const enum scores scores[] = {SCORES_RANDOM, SCORES_RANDOM, SCORES_STEEP, SCORES_RANDOM, SCORES_ZERO, SCORES_RANDOM, SCORES_EQUAL};
	for (int i = 0; i < (c->quick && cases > 32 ? 32 : cases); i++) {
		struct shape s = {.dtype = (enum dtype)(i % 3), .head_dim = dims[(i / 2) % 8], .kv_heads = 1 + i % 3, .block_tokens = blocks[i % 5], .scores = scores[i % 7]};
		s.q_heads = s.kv_heads * groups[i / 5 % 7];
		if (i % 4 == 1) s.window = 1 + draw(c, 4, (uint64_t)i, c->quick ? 70 : 300);
		if (i % 5 == 2) s.softcap = (float[]){0.7f, 3, 50}[i / 5 % 3];
		enum steps kind = (enum steps)(i / 3 % STEP_KINDS);
		draw_step(c, &s, kind, (uint64_t)i);
		char name[64];
		snprintf(name, sizeof name, "%s%s", what, step_names[kind]);
		check_shape(c, &s, stream, name);
	}
}

/* Heads above 128, whose tiles of keys are of other sizes than a block's: rows and keys about the edges of tiles, windows that begin within one, contexts of
 * many tiles, sequences of all of it. */
static void check_wide_heads(struct gpu_check *c)
{
	static const struct shape shapes[] = {
		{.head_dim = 256, .q_heads = 6, .kv_heads = 1, .block_tokens = 64, .seqs = 4, .rows = {1, 128, 129, 2}, .kv_len = {80, 128, 161, 81}},
		{.head_dim = 256, .q_heads = 2, .kv_heads = 2, .block_tokens = 16, .window = 70, .seqs = 3, .rows = {300, 79, 127}, .kv_len = {300, 241, 400}},
		{.head_dim = 256, .q_heads = 2, .kv_heads = 1, .block_tokens = 48, .window = 1024, .seqs = 2, .rows = {40, 2}, .kv_len = {1100, 5200}},
		{.head_dim = 256, .q_heads = 3, .kv_heads = 1, .block_tokens = 64, .seqs = 1, .rows = {9}, .kv_len = {5000}, .scores = SCORES_STEEP},
		{.head_dim = 192, .q_heads = 4, .kv_heads = 2, .block_tokens = 64, .seqs = 3, .rows = {97, 257, 3}, .kv_len = {97, 257, 2000}},
		{.head_dim = 192, .q_heads = 2, .kv_heads = 1, .block_tokens = 32, .window = 97, .seqs = 2, .rows = {200, 64}, .kv_len = {500, 64}},
		{.head_dim = 160, .q_heads = 2, .kv_heads = 2, .block_tokens = 16, .seqs = 3, .rows = {130, 5, 96}, .kv_len = {130, 1500, 193}},
		{.head_dim = 208, .q_heads = 3, .kv_heads = 3, .block_tokens = 64, .window = 33, .seqs = 2, .rows = {81, 160}, .kv_len = {700, 160}},
		{.head_dim = 144, .q_heads = 4, .kv_heads = 1, .block_tokens = 128, .seqs = 1, .rows = {150}, .kv_len = {290}, .scores = SCORES_EQUAL},
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int dtype = DTYPE_F16; dtype <= DTYPE_BF16; dtype++) {
			struct shape s = shapes[i];
			s.dtype = (enum dtype)dtype;
			check_shape(c, &s, c->stream, "wide heads");
		}
}

/* Decode steps of heads above 128 with so many rows and KV heads that each way to cut them takes its turn, and contexts of which some have one block's keys. */
static void check_wide_decode(struct gpu_check *c)
{
	static const int kv_heads[] = {1, 2, 4, 5, 9}, dims[] = {256, 256, 192, 256, 160};
	for (size_t i = 0; i < sizeof kv_heads / sizeof *kv_heads; i++)
		for (int dtype = DTYPE_F16; dtype <= DTYPE_BF16; dtype++) {
			struct shape s = {.dtype = (enum dtype)dtype, .head_dim = dims[i], .kv_heads = kv_heads[i], .q_heads = 3 * kv_heads[i], .block_tokens = 64, .seqs = MAX_SEQS};
			for (int n = 0; n < MAX_SEQS; n++) s.rows[n] = 1, s.kv_len[n] = n ? 1 + draw(c, 7, (uint64_t)n, 500) : 1500;
			check_shape(c, &s, c->stream, "wide decode");
		}
}

/* What half of the heads gives must be the same bits as all of them give: of what two ranks are. */
static void check_halves(struct gpu_check *c, struct stream *stream, int rows, enum dtype dtype)
{
	int length = c->quick ? 300 : 2500;
	struct shape s = {.dtype = dtype, .head_dim = 64, .q_heads = 8, .kv_heads = 2, .block_tokens = 16, .seqs = 3, .rows = {rows, 1, rows},
	                  .kv_len = {length, 70, 40}};
	gpu_case(c, dtype, FILL_RANDOM, "invariant, halves, %d rows", rows);
	struct step p = make_step(c, &s);
	int cols = s.q_heads * s.head_dim, half = cols / 2;
	struct tensor all = gpu_output(c, dtype, TENSOR_SHARDED, p.rows, cols, cols);
	struct attention_args args = {.q = p.query, .out = all, .q_heads = s.q_heads, .cache = &p.cache, .rows = &p.device, .scale = scale_of(&s)};
	gpu_ok(c, gpu_attention_skip(stream, &args, 0, &c->err));
	size_t bytes = dtype_bytes(dtype), width = (size_t)half * bytes;
	char *whole = gpu_host(c, (size_t)p.rows * 2 * width), *want = gpu_host(c, (size_t)p.rows * width);
	gpu_get(c, whole, all.data, (size_t)p.rows * 2 * width);
	for (int h = 0; h < 2; h++) {
		size_t part = value_offset(&s) / 2 * bytes, parts = (size_t)p.blocks * 2;
		char *kv = gpu_host(c, parts * part);
		for (size_t i = 0; i < parts; i++) memcpy(kv + i * part, (char *)p.kv + (2 * i + (size_t)h) * part, part);
		struct kv_cache cache = {.data = gpu_put(c, kv, parts * part), .layout = p.cache.layout};
		cache.layout.kv_heads = 1;
		struct tensor out = gpu_output(c, dtype, TENSOR_SHARDED, p.rows, half, half);
		args.q = tensor_columns(&p.query, h * half, half);
		args.out = out, args.q_heads = s.q_heads / 2, args.cache = &cache;
		gpu_ok(c, gpu_attention_skip(stream, &args, 0, &c->err));
		for (size_t r = 0; r < (size_t)p.rows; r++) memcpy(want + r * width, whole + (2 * r + (size_t)h) * width, width);
		gpu_compare_exact(c, h ? "second half" : "first half", &out, want);
	}
	gpu_case_end(c);
}

static void check_refusals(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "refusals");
	struct shape s = {.dtype = DTYPE_BF16, .head_dim = 64, .q_heads = 4, .kv_heads = 2, .block_tokens = 16, .seqs = 1, .rows = {1}, .kv_len = {5}};
	struct step p = make_step(c, &s);
	struct kv_cache odd = p.cache, none = p.cache;
	odd.layout.head_dim = 72;
	none.layout.block_tokens = 24;
	struct tensor out = gpu_output(c, s.dtype, TENSOR_SHARDED, 1, 256, 256);
	GPU_REFUSED(c, attention, UNSUPPORTED, {.q = p.query, .out = out, .q_heads = 4, .cache = &odd, .rows = &p.device, .scale = 1});
	GPU_REFUSED(c, attention, BAD_INPUT, {.q = p.query, .out = out, .q_heads = 4, .cache = &none, .rows = &p.device, .scale = 1});
	GPU_REFUSED(c, attention, BAD_INPUT, {.q = p.query, .out = out, .q_heads = 3, .cache = &p.cache, .rows = &p.device, .scale = 1});
	GPU_REFUSED(c, attention, BAD_INPUT, {.q = p.query, .out = out, .q_heads = 4, .cache = &p.cache, .rows = &p.device, .scale = 0});
	GPU_REFUSED(c, attention, BAD_INPUT, {.q = p.query, .out = out, .q_heads = 4, .cache = &p.cache, .rows = &p.device, .scale = 1, .softcap = -1});
	out.dtype = DTYPE_F16;
	GPU_REFUSED(c, attention, BAD_INPUT, {.q = p.query, .out = out, .q_heads = 4, .cache = &p.cache, .rows = &p.device, .scale = 1});
	gpu_case_end(c);
}

static void expect_number(struct gpu_check *c, const char *what, int i, int32_t got, int32_t want)
{
	if (got != want) gpu_fail(c, "%s %d is %d; %d is wanted", what, i, got, want);
	c->compared++;
}

/* Lengths, offsets and pages as a library wants them, against the host's own: of three sequences behind one of one row, the middle one of one row too, in room for
 * four with `blocks` entries each. */
static void check_pages(struct gpu_check *c, bool skip_single, int rows, int kv_len, int blocks)
{
	const struct shape s = {.dtype = DTYPE_BF16, .head_dim = 16, .q_heads = 1, .kv_heads = 1, .block_tokens = 16, .seqs = 4, .rows = {1, rows, 1, 7}, .kv_len = {30, kv_len, 20, 9}};
	gpu_case(c, s.dtype, FILL_RANDOM, "pages of %d rows, %d keys in tables of %d, single rows %s", rows, kv_len, blocks, skip_single ? "left out" : "too");
	struct step p = make_step(c, &s);
	const struct attention_params params = {.row_start = p.device.row_start, .position = p.device.position, .block_table = p.device.block_table, .first_seq = 1,
	                                        .skip_single = skip_single, .seqs = s.seqs, .rows = p.rows, .max_blocks = p.max_blocks, .block_tokens = s.block_tokens,
	                                        .q_stride = 48, .out_stride = 16};
	const size_t bytes = ATTENTION_PAGES_INTS(4, (size_t)blocks) * sizeof(int32_t);
	void *room = gpu_room(c, bytes), *host = gpu_host(c, bytes);
	const struct attention_pages to = attention_pages_at(room, 4, blocks), got = attention_pages_at(host, 4, blocks);
	gpu_ok(c, attention_pages_write(gpu_context(c->stream), &params, &to, &c->err));
	gpu_get(c, host, room, bytes);
	for (int i = 0; i < 4; i++) {
		const int seq = i + 1, start = p.row_start[seq < s.seqs ? seq : s.seqs];
		const bool has = seq < s.seqs && !(skip_single && s.rows[seq] == 1);
		expect_number(c, "rows of", i, got.rows[i], has ? s.rows[seq] : 0);
		expect_number(c, "keys of", i, got.keys[i], has ? s.kv_len[seq] : 1);
		expect_number(c, "query offset", i, got.q_start[i], start * 48);
		expect_number(c, "result offset", i, got.out_start[i], start * 16);
		for (int b = 0; b < blocks; b++)
			expect_number(c, "entry", i * blocks + b, got.table[i * blocks + b], has && b * s.block_tokens < s.kv_len[seq] ? p.table[seq * p.max_blocks + b] : 0);
	}
	expect_number(c, "query offset", 4, got.q_start[4], p.rows * 48);
	expect_number(c, "result offset", 4, got.out_start[4], p.rows * 16);
	gpu_case_end(c);
}

static void check_all_pages(struct gpu_check *c)
{
	check_pages(c, true, 5, 5, 1);
	check_pages(c, false, 16, 16, 4);
	check_pages(c, true, 3, 4113, 600);
}

void gpu_check_attention(struct gpu_check *c)
{
	check_drawn(c, c->stream, "", 120);
	check_all_pages(c);
	if (!c->quick) {
		check_wide_heads(c);
		check_wide_decode(c);
	}
	GPU_EACH_DTYPE(dtype) {
		check_variants(c, &(struct shape){.dtype = dtype, .head_dim = 64, .q_heads = 6, .kv_heads = 2, .block_tokens = 16, .seqs = 3, .rows = {1, 1, 1},
		                                  .kv_len = {70, 1, 33}});
		for (int dim = 128; dim <= 256; dim *= 2)
			check_variants(c, &(struct shape){.dtype = dtype, .head_dim = dim, .q_heads = 2, .kv_heads = 1, .block_tokens = 32, .seqs = 2, .rows = {20, 20},
			                                  .kv_len = {20, 90}});
	}
	check_workspace(c);
	check_many_heads(c, 4);
	if (!c->quick) check_many_heads(c, 1);
	struct stream *invariant = NULL;
	struct stream_options options = {.max_rows = 1024, .max_q_heads = 64, .max_head_dim = 256, .max_context = 1 << 14, .max_seqs = MAX_SEQS, .invariant = true};
	enum status st = c->ops->stream_create(c->device, &options, &invariant, &c->err);
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "invariant stream");
	gpu_ok(c, st);
	gpu_case_end(c);
	if (st != STATUS_OK) return;
	struct stream *plain = c->stream;
	c->stream = invariant; /* the harness's copies come before and after on the stream that the op runs on */
	check_drawn(c, invariant, "invariant ", 45);
	GPU_EACH_DTYPE(dtype) {
		check_halves(c, invariant, 1, dtype);
		check_halves(c, invariant, 33, dtype);
	}
	c->stream = plain;
	c->ops->stream_destroy(invariant);
	check_refusals(c);
}

/* ---- the library of fused attention */

static bool library_listed(const struct gpu_check *c, const struct attention_key *key, struct variant *out)
{
	struct variant list[40];
	const int count = c->ops->attention_variants(c->stream, key, list, 40);
	for (int i = 0; i < count; i++)
		if (!strcmp(list[i].kernel, attention_cudnn.name)) return *out = list[i], true;
	return false;
}

/* One step with the variant preferred: run at once, and again recorded into a graph and replayed. `taken`: whether the library is to take it. */
static void check_library(struct gpu_check *c, const struct shape *s, bool taken)
{
	struct attention_preference want = {.key = {.prefill = true, .dtype = s->dtype, .q_heads = s->q_heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim, .m = s->rows[s->seqs - 1]},
	                                    .m_low = 1, .m_high = 1 << 20};
	struct graph *graph = NULL;
	struct variant ran;
	if (!library_listed(c, &want.key, &want.variant)) { /* it is there, but has no plan: the log says why */
		gpu_skip(c, "not listed for %d/%d x %d", s->q_heads, s->kv_heads, s->head_dim);
		return;
	}
	gpu_case(c, s->dtype, FILL_RANDOM, "library: %d sequences, the first of %d rows, %d keys, %d/%d x %d, blocks of %d, window %d", s->seqs, s->rows[0], s->kv_len[0], s->q_heads,
	         s->kv_heads, s->head_dim, s->block_tokens, s->window);
	struct step p = make_step(c, s);
	while (p.device.single_seqs < s->seqs && s->rows[p.device.single_seqs] == 1) p.device.single_seqs++;
	const struct answer a = answer_of(c, &p);
	struct attention_args args = args_of(c, &p);
	gpu_ok(c, c->ops->attention_prefer(c->stream, &want, 1, &c->err));
	gpu_ok(c, OP(c->stream, attention, &args, &c->err));
	c->ops->attention_ran(c->stream, &ran);
	gpu_compare(c, "out", &args.out, a.want, a.bound, 1, 0);
	if (taken != !strcmp(ran.kernel, attention_cudnn.name)) gpu_fail(c, "%s ran; the library was %swanted", ran.kernel, taken ? "" : "not ");
	args = args_of(c, &p);
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	gpu_ok(c, OP(c->stream, attention, &args, &c->err));
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	if (graph) gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
	gpu_compare(c, "out of a graph", &args.out, a.want, a.bound, 1, 0);
	c->ops->graph_destroy(graph);
	gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	gpu_case_end(c);
}

void gpu_check_attention_cudnn(struct gpu_check *c)
{
	const struct attention_key key = {.prefill = true, .dtype = DTYPE_BF16, .q_heads = 4, .kv_heads = 2, .head_dim = 128, .m = 64};
	struct variant variant;
	check_all_pages(c);
	if (!library_listed(c, &key, &variant)) {
		gpu_skip(c, "the library is not here, or has no plan");
		return;
	}
	for (enum dtype dtype = DTYPE_F16; dtype <= DTYPE_BF16; dtype++) {
		const struct shape shapes[] = {
			{.head_dim = 128, .q_heads = 4, .kv_heads = 2, .block_tokens = 64, .seqs = 1, .rows = {64}, .kv_len = {64}},
			{.head_dim = 256, .q_heads = 6, .kv_heads = 1, .block_tokens = 64, .seqs = 1, .rows = {200}, .kv_len = {200}},
			{.head_dim = 256, .q_heads = 2, .kv_heads = 2, .block_tokens = 16, .seqs = 3, .rows = {33, 1, 70}, .kv_len = {513, 40, 70}},
			{.head_dim = 128, .q_heads = 8, .kv_heads = 2, .block_tokens = 32, .seqs = 1, .rows = {129}, .kv_len = {300}, .scores = SCORES_STEEP},
			{.head_dim = 64, .q_heads = 3, .kv_heads = 3, .block_tokens = 128, .seqs = 1, .rows = {65}, .kv_len = {1000}},
			{.head_dim = 128, .q_heads = 4, .kv_heads = 1, .block_tokens = 64, .seqs = 4, .rows = {1, 1, 1, 70}, .kv_len = {90, 1, 300, 140}},
			{.head_dim = 128, .q_heads = 4, .kv_heads = 1, .block_tokens = 64, .seqs = 6, .rows = {1, 200, 1, 7, 129, 2}, .kv_len = {90, 300, 1, 7, 1030, 900}},
			{.head_dim = 256, .q_heads = 4, .kv_heads = 1, .block_tokens = 64, .seqs = 4, .rows = {128, 64, 65, 2}, .kv_len = {128, 65, 300, 200}},
			{.head_dim = 96, .q_heads = 2, .kv_heads = 1, .block_tokens = 64, .seqs = 1, .rows = {2}, .kv_len = {2}},
		};
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
			struct shape s = shapes[i];
			s.dtype = dtype, s.finite = true;
			check_library(c, &s, true);
		}
		check_library(c, &(struct shape){.dtype = dtype, .head_dim = 128, .q_heads = 4, .kv_heads = 2, .block_tokens = 64, .window = 50, .seqs = 1, .rows = {64}, .kv_len = {90}}, false);
		check_library(c, &(struct shape){.dtype = dtype, .head_dim = 128, .q_heads = 4, .kv_heads = 2, .block_tokens = 48, .seqs = 1, .rows = {64}, .kv_len = {90}}, false);
	}
}

/* ---- measuring */

struct bench_shape {
	const char *what;
	int seqs, rows, kv_len, q_heads, kv_heads, head_dim, block_tokens;
	int singles; /* of the sequences, the first so many have one row */
};

struct bench {
	struct kv_cache cache;
	struct step_rows rows;
	struct attention_args args;
};

static void bench_call(struct gpu_check *c, void *context, int i)
{
	struct bench *b = context;
	b->args.layer = i % b->cache.layout.layers;
	gpu_ok(c, OP(c->stream, attention, &b->args, &c->err));
}

static void bench_shape(struct gpu_check *c, const struct bench_shape *s)
{
	const int singles = s->rows > 1 ? s->singles : s->seqs, longer = s->seqs - singles, rows = singles + longer * s->rows;
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "%s: %d x %d rows, %d keys, %d/%d x %d", s->what, s->seqs, s->rows, s->kv_len, s->q_heads, s->kv_heads, s->head_dim);
	int each = (s->kv_len + s->block_tokens - 1) / s->block_tokens, blocks = s->seqs * each + 1;
	size_t layer = (size_t)blocks * 2 * (size_t)s->kv_heads * (size_t)s->block_tokens * (size_t)s->head_dim;
	int layers = s->rows > 1 ? 1 : gpu_bench_rotation(c, layer * 2);
	int32_t *position = gpu_host(c, (size_t)rows * 4), *start = gpu_host(c, (size_t)(s->seqs + 1) * 4);
	int32_t *table = gpu_host(c, (size_t)(s->seqs * each) * 4);
	for (int i = 0; i < s->seqs; i++) {
		const int own = i < singles ? 1 : s->rows;
		start[i + 1] = start[i] + own;
		for (int r = 0; r < own; r++) position[start[i] + r] = s->kv_len - own + r;
		for (int b = 0; b < each; b++) table[i * each + b] = 1 + (int32_t)((int64_t)(i * each + b) * 7919 % (blocks - 1));
	}
	struct bench b = {.cache = {.data = gpu_random_room(c, DTYPE_BF16, layer * (size_t)layers, 1),
	                            .layout = {.layers = layers, .blocks = blocks, .block_tokens = s->block_tokens, .kv_heads = s->kv_heads,
	                                       .head_dim = s->head_dim, .dtype = DTYPE_BF16}},
	                  .rows = {.rows = rows, .seqs = s->seqs, .max_blocks = each, .max_kv_len = s->kv_len, .max_seq_rows = s->rows, .single_seqs = singles,
	                           .position = gpu_put(c, position, (size_t)rows * 4), .row_start = gpu_put(c, start, (size_t)(s->seqs + 1) * 4),
	                           .block_table = gpu_put(c, table, (size_t)(s->seqs * each) * 4)}};
	int cols = s->q_heads * s->head_dim;
	void *q = gpu_random_room(c, DTYPE_BF16, (size_t)rows * (size_t)cols, 1), *out = gpu_room(c, (size_t)rows * (size_t)cols * 2);
	b.args = (struct attention_args){.q = tensor_view(q, DTYPE_BF16, TENSOR_SHARDED, rows, cols), .q_heads = s->q_heads, .cache = &b.cache, .rows = &b.rows,
	                                 .out = tensor_view(out, DTYPE_BF16, TENSOR_SHARDED, rows, cols), .scale = 1 / sqrtf((float)s->head_dim)};
	double pairs = longer * ((double)s->rows * (s->kv_len - s->rows) + 0.5 * s->rows * (s->rows + 1.0)) + (double)singles * s->kv_len;
	if (c->variant) { /* its plan is not made while a graph is recorded */
		const struct attention_key key = {true, DTYPE_BF16, s->q_heads, s->kv_heads, s->head_dim, rows};
		gpu_ok(c, c->ops->attention_prefer(c->stream, &(struct attention_preference){key, 1, rows, *c->variant}, 1, &c->err));
		bench_call(c, &b, 0);
		gpu_sync_stream(c);
	}
	double seconds = gpu_bench(c, bench_call, &b, s->rows > 1 ? 2 : layers < 16 ? 16 : layers);
	if (s->rows > 1) gpu_bench_report(c, seconds, 0, 4 * pairs * cols);
	else gpu_bench_report(c, seconds, 4.0 * s->seqs * s->kv_len * s->kv_heads * s->head_dim, 0);
	gpu_case_end(c);
}

void gpu_bench_attention(struct gpu_check *c)
{
	static const struct bench_shape shapes[] = {
		{"8B", 1, 1, 128, 32, 8, 128, 64, 0}, {"8B", 1, 1, 1024, 32, 8, 128, 64, 0}, {"8B", 1, 1, 32768, 32, 8, 128, 64, 0}, {"8B", 4, 1, 1024, 32, 8, 128, 64, 0},
		{"8B", 16, 1, 1024, 32, 8, 128, 64, 0}, {"8B", 64, 1, 1024, 32, 8, 128, 64, 0}, {"8B", 256, 1, 600, 32, 8, 128, 64, 0}, {"8B TP2", 1, 1, 1024, 16, 4, 128, 64, 0},
		{"8B TP2", 16, 1, 1024, 16, 4, 128, 64, 0}, {"8B TP2", 64, 1, 1024, 16, 4, 128, 64, 0}, {"70B TP2", 1, 1, 1024, 32, 4, 128, 64, 0},
		{"32B", 64, 1, 1024, 64, 8, 128, 64, 0}, {"D 64", 64, 1, 1024, 24, 8, 64, 64, 0}, {"8B", 1, 1024, 1024, 32, 8, 128, 64, 0},
		{"8B", 1, 8192, 8192, 32, 8, 128, 64, 0}, {"8B TP2", 1, 8192, 8192, 16, 4, 128, 64, 0}, {"8B blocks of 16", 1, 8192, 8192, 32, 8, 128, 16, 0},
		{"8B", 16, 512, 512, 32, 8, 128, 64, 0}, {"8B mixed, 240 of 1 row", 255, 512, 512, 32, 8, 128, 64, 240}, {"8B chunk", 1, 2048, 8192, 32, 8, 128, 64, 0}, {"D 64", 1, 4096, 4096, 32, 8, 64, 64, 0},
		{"D 256", 1, 4096, 4096, 16, 8, 256, 64, 0}, {"27B", 1, 1024, 1024, 24, 4, 256, 64, 0}, {"27B", 1, 8192, 8192, 24, 4, 256, 64, 0},
		{"27B TP2", 1, 4096, 4096, 12, 2, 256, 64, 0}, {"27B TP2", 1, 8192, 8192, 12, 2, 256, 64, 0}, {"27B blocks of 16", 1, 8192, 8192, 24, 4, 256, 16, 0},
		{"D 192", 1, 4096, 4096, 16, 8, 192, 64, 0}, {"27B", 1, 1, 1024, 24, 4, 256, 64, 0}, {"27B", 1, 1, 8192, 24, 4, 256, 64, 0},
		{"27B", 16, 1, 1024, 24, 4, 256, 64, 0}, {"27B", 16, 1, 8192, 24, 4, 256, 64, 0}, {"27B TP2", 1, 1, 1024, 12, 2, 256, 64, 0},
		{"27B TP2", 16, 1, 1024, 12, 2, 256, 64, 0}, {"27B", 4, 1, 1024, 24, 4, 256, 64, 0}, {"27B", 64, 1, 1024, 24, 4, 256, 64, 0},
		{"27B TP2", 64, 1, 1024, 12, 2, 256, 64, 0},
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) bench_shape(c, &shapes[i]);
}

/* The dispatch's own way and the library, one after the other. */
void gpu_bench_attention_cudnn(struct gpu_check *c)
{
	static const struct bench_shape shapes[] = {
		{"8B", 1, 8192, 8192, 32, 8, 128, 64, 0}, {"8B", 1, 1024, 1024, 32, 8, 128, 64, 0}, {"8B chunk", 1, 2048, 8192, 32, 8, 128, 64, 0},
		{"D 256", 1, 1024, 1024, 12, 2, 256, 64, 0}, {"D 256", 1, 4096, 4096, 12, 2, 256, 64, 0}, {"D 256 chunk", 1, 2048, 8192, 12, 2, 256, 64, 0},
		{"D 256 blocks of 16", 1, 4096, 4096, 12, 2, 256, 16, 0},
	};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		const struct bench_shape *s = &shapes[i];
		const struct attention_key key = {true, DTYPE_BF16, s->q_heads, s->kv_heads, s->head_dim, s->rows};
		struct variant variant, ran;
		bench_shape(c, s);
		if (!library_listed(c, &key, &variant)) {
			gpu_skip(c, "not listed for %d/%d x %d", s->q_heads, s->kv_heads, s->head_dim);
			continue;
		}
		c->variant = &variant;
		bench_shape(c, s);
		c->variant = NULL;
		c->ops->attention_ran(c->stream, &ran);
		printf("  by %s, %s asked for\n", ran.kernel, variant.kernel);
		gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	}
}
