/* attention.c: the key/value cache and causal attention over it.
 *
 * Cache layout, F32: [layer][kv head] { K [block][D][block_tokens], V [block][block_tokens][D rounded up to LANES] }. Keys are
 * transposed so that lanes are positions while scores are computed along d; values are not, so that lanes are d while they are
 * summed along positions. Neither sum then crosses lanes. A head's blocks lie together, keys apart from values, so that a long
 * context in neighbouring blocks is two sequential streams (with [block][head] reading was a third as fast).
 *
 * The definition cuts positions into blocks of KV_BLOCK from 0, whatever block_tokens is. Each (row, head, block) gives a maximum, a
 * sum and an unnormalised vector; they are merged in ascending order. A block needs nothing from another, so a long context can
 * be shared by the team (`split`): partial results go to the stream's workspace and are merged afterwards in the same order, with
 * the same bits.
 *
 * Work unit: a tile of (row, query head) pairs of one sequence that share a KV head, so that keys and values are read once a tile.
 */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/exp.h"

/* With fewer units than this per member, blocks of one unit are shared among the members. */
#define SPLIT_UNITS 2
/* Units are taken up to ATTEND_RUN at a time, where each member then still has ATTEND_CHUNKS turns. */
#define ATTEND_RUN 4
#define ATTEND_CHUNKS 6
/* Most partial results kept (71 MB); a step that needs more is not split. */
#define SPLIT_MAX_PARTIALS 65536

/* Up to so many rows, keys and values are written by the caller alone; beyond, a head's rows in so many parts. */
#define KV_WRITE_ALONE 4
#define KV_WRITE_PARTS 4

static int value_width(int head_dim)
{
	return (head_dim + LANES - 1) / LANES * LANES;
}

/* Floats of one head in one block. */
static size_t key_floats(const struct kv_layout *layout)
{
	return (size_t)layout->head_dim * (size_t)layout->block_tokens;
}
static size_t value_floats(const struct kv_layout *layout)
{
	return (size_t)layout->block_tokens * (size_t)value_width(layout->head_dim);
}

/* Where one head's keys and values of one block lie. */
struct head_block {
	float *k, *v;
};

static struct head_block head_block(const struct kv_cache *cache, int layer, int64_t block, int head)
{
	const struct kv_layout *layout = &cache->layout;
	size_t keys = key_floats(layout), values = value_floats(layout), blocks = (size_t)layout->blocks;
	float *base = (float *)cache->data + ((size_t)layer * (size_t)layout->kv_heads + (size_t)head) * blocks * (keys + values);
	return (struct head_block){.k = base + (size_t)block * keys, .v = base + blocks * keys + (size_t)block * values};
}

size_t cpu_kv_bytes(const struct kv_layout *layout)
{
	return (size_t)layout->layers * (size_t)layout->blocks * (size_t)layout->kv_heads * (key_floats(layout) + value_floats(layout)) * sizeof(float);
}

static enum status check_cache(const struct kv_cache *cache, int layer, const char *what, struct error *err)
{
	const struct kv_layout *l = &cache->layout;
	if (l->dtype != DTYPE_F32) return FAIL(err, UNSUPPORTED, "%s: a cache of type %s; the cpu back end keeps F32", what, dtype_name(l->dtype));
	if (l->head_dim < 1 || l->head_dim > MAX_HEAD_DIM || l->head_dim % HEAD_MULTIPLE)
		return FAIL(err, UNSUPPORTED, "%s: heads of %d; multiples of %d up to %d are supported", what, l->head_dim, HEAD_MULTIPLE, MAX_HEAD_DIM);
	if (!cache->data || l->blocks < 1 || l->kv_heads < 1 || l->block_tokens < KV_GROUP || l->block_tokens % KV_GROUP || layer < 0 || layer >= l->layers)
		return FAIL(err, BAD_INPUT, "%s: layer %d of %d, %d blocks of %d tokens (a multiple of %d), %d heads", what, layer, l->layers, l->blocks,
		            l->block_tokens, KV_GROUP, l->kv_heads);
	return STATUS_OK;
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

struct kv_write_job {
	const struct kv_write_args *args;
	int parts;
};

/* One head, a part of the rows; few parts, because neighbouring positions share cache lines of K. */
static void kv_write_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct kv_write_job *job = context;
	const struct kv_write_args *args = job->args;
	int head = chunk / job->parts, part = chunk % job->parts;
	const struct kv_layout *layout = &args->cache->layout;
	int tokens = layout->block_tokens, width = value_width(layout->head_dim);
	for (int t = part * args->k.rows / job->parts; t < (part + 1) * args->k.rows / job->parts; t++) {
		int32_t slot = args->kv_slot[t];
		struct head_block to = head_block(args->cache, args->layer, slot / tokens, head);
		const float *k = cpu_row(&args->k, t) + (size_t)head * layout->head_dim;
		const float *v = cpu_row(&args->v, t) + (size_t)head * layout->head_dim;
		float *key = to.k + slot % tokens;
		for (int d = 0; d < layout->head_dim; d++) key[(size_t)d * tokens] = k[d];
		memcpy(to.v + (size_t)(slot % tokens) * width, v, (size_t)layout->head_dim * sizeof *v);
	}
}

enum status cpu_kv_write(struct stream *stream, const struct kv_write_args *args, struct error *err)
{
	const struct kv_layout *layout = &args->cache->layout;
	TRY(check_cache(args->cache, args->layer, "kv_write", err));
	const struct tensor *both[] = {&args->k, &args->v};
	for (int i = 0; i < 2; i++) {
		TRY(tensor_expect(both[i], TENSOR_SHARDED, i ? "kv_write v" : "kv_write k", err));
		TRY(cpu_expect_f32(both[i], i ? "kv_write v" : "kv_write k", err));
		if (both[i]->cols != layout->kv_heads * layout->head_dim || both[i]->rows != args->k.rows)
			return FAIL(err, BAD_INPUT, "kv_write: %s is [%d,%d], expected [%d,%d]", i ? "v" : "k", both[i]->rows, both[i]->cols, args->k.rows,
			            layout->kv_heads * layout->head_dim);
	}
	struct kv_write_job job = {.args = args, .parts = args->k.rows > KV_WRITE_ALONE ? KV_WRITE_PARTS : 1};
	if (args->k.rows <= KV_WRITE_ALONE)
		for (int h = 0; h < layout->kv_heads; h++) kv_write_chunk(&job, h, 0);
	else team_run(cpu_team(stream), layout->kv_heads * job.parts, kv_write_chunk, &job);
	return STATUS_OK;
}

/* --- attention -------------------------------------------------------------------------------------------------------- */

struct attention_job {
	const struct attention_args *args;
	const struct cpu_kernels *kernels;
	struct cpu_stream *stream;
	int group;   /* query heads that share a KV head */
	int units;   /* of all sequences */
	int blocks;  /* KV_BLOCKs of the longest sequence */
	int run;     /* split: neighbouring blocks of one chunk; else units of one chunk */
};

/* A work unit: pairs [first, first + count) of a sequence, pair i being row i / group and head i % group of the KV head's. */
struct unit {
	int seq, kv_head;
	int first, count;
};

static int seq_pairs(const struct attention_job *job, int seq)
{
	const int32_t *start = job->args->rows->row_start;
	return (start[seq + 1] - start[seq]) * job->group;
}

static int seq_tiles(const struct attention_job *job, int seq)
{
	return (seq_pairs(job, seq) + job->kernels->attend_rows - 1) / job->kernels->attend_rows;
}

/* Fills unit_start and returns the number of units. */
static int count_units(const struct attention_job *job)
{
	int *start = job->stream->unit_start, seqs = job->args->rows->seqs;
	start[0] = 0;
	for (int s = 0; s < seqs; s++) start[s + 1] = start[s] + seq_tiles(job, s) * job->args->cache->layout.kv_heads;
	return start[seqs];
}

static struct unit find_unit(const struct attention_job *job, int index)
{
	const int *start = job->stream->unit_start;
	int lo = 0, hi = job->args->rows->seqs; /* start[lo] <= index < start[hi] */
	while (hi - lo > 1) {
		int mid = lo + (hi - lo) / 2;
		if (start[mid] <= index) lo = mid;
		else hi = mid;
	}
	int tiles = seq_tiles(job, lo), pairs = seq_pairs(job, lo), tile = (index - start[lo]) % tiles;
	int first = (int)((int64_t)tile * pairs / tiles), end = (int)((int64_t)(tile + 1) * pairs / tiles);
	return (struct unit){.seq = lo, .kv_head = (index - start[lo]) / tiles, .first = first, .count = end - first};
}

static int pair_row(const struct attention_job *job, const struct unit *unit, int i)
{
	return job->args->rows->row_start[unit->seq] + (unit->first + i) / job->group;
}

static float *pair_head(const struct attention_job *job, const struct tensor *t, const struct unit *unit, int i)
{
	int head = unit->kv_head * job->group + (unit->first + i) % job->group;
	return cpu_row(t, pair_row(job, unit, i)) + (size_t)head * job->args->cache->layout.head_dim;
}

/* Positions that a row sees: [*lo, *hi). */
static void pair_range(const struct attention_job *job, const struct unit *unit, int i, int *lo, int *hi)
{
	int position = job->args->rows->position[pair_row(job, unit, i)];
	*hi = position + 1;
	*lo = job->args->window > 0 && *hi > job->args->window ? *hi - job->args->window : 0;
}

static float *tile_part(const struct cpu_scratch *scratch, int part)
{
	return scratch->tile + (size_t)part * TILE_MAX_ROWS * TILE_STRIDE;
}
enum { TILE_QUERY, TILE_WEIGHTS, TILE_BLOCK, TILE_RUNNING };

static void load_queries(const struct attention_job *job, const struct unit *unit, float *q)
{
	for (int i = 0; i < unit->count; i++)
		memcpy(q + (size_t)i * TILE_STRIDE, pair_head(job, &job->args->q, unit, i), (size_t)job->args->cache->layout.head_dim * sizeof *q);
}

/* Positions [lo, end) of one KV head that are read after what is at hand, from a KV_BLOCK's first one on; empty: nothing is known. */
struct upcoming {
	const int32_t *table;
	int kv_head, block;
	int lo, end;
};

static const float *upcoming_keys(const struct attention_job *job, const struct upcoming *then, int g)
{
	const struct kv_cache *cache = job->args->cache;
	int position = then->block * KV_BLOCK + g * KV_GROUP, tokens = cache->layout.block_tokens;
	if (position + KV_GROUP <= then->lo || position >= then->end) return NULL;
	return head_block(cache, job->args->layer, then->table[position / tokens], then->kv_head).k + position % tokens;
}

static const int32_t *unit_table(const struct attention_job *job, const struct unit *unit)
{
	return job->args->rows->block_table + (size_t)unit->seq * job->args->rows->max_blocks;
}

/* Where the groups of positions of KV_BLOCK `block` lie. Only groups with visible positions are looked up: the block table
 * may hold anything elsewhere. */
static void find_groups(const struct attention_job *job, const struct unit *unit, int block, int lo, int hi, const struct upcoming *then,
                        struct attend_args *attend)
{
	const struct kv_cache *cache = job->args->cache;
	const int32_t *table = unit_table(job, unit);
	int tokens = cache->layout.block_tokens, width = value_width(cache->layout.head_dim);
	for (int g = lo / KV_GROUP; g <= (hi - 1) / KV_GROUP; g++) {
		int position = block * KV_BLOCK + g * KV_GROUP;
		struct head_block here = head_block(cache, job->args->layer, table[position / tokens], unit->kv_head);
		const float *next = upcoming_keys(job, then, g);
		attend->k[g] = here.k + position % tokens;
		attend->v[g] = here.v + (size_t)(position % tokens) * width;
		attend->next_k[g] = next ? next : attend->k[g];
	}
	attend->k_stride = tokens;
	attend->v_stride = width;
}

/* Pairs [*from, *to) of the unit that see anything of the block: rows ascend and so do both ends of what they see, so these
 * are neighbours. Fills attend with their ranges; false if there are none. */
static bool block_pairs(const struct attention_job *job, const struct unit *unit, int block, int *from, int *to, struct attend_args *attend)
{
	int base = block * KV_BLOCK;
	*from = *to = -1;
	for (int i = 0; i < unit->count; i++) {
		int lo, hi;
		pair_range(job, unit, i, &lo, &hi);
		lo = lo > base ? lo - base : 0;
		hi = hi - base < KV_BLOCK ? hi - base : KV_BLOCK;
		if (lo >= hi) continue;
		if (*from < 0) *from = i;
		attend->lo[i - *from] = lo;
		attend->hi[i - *from] = hi;
		*to = i + 1;
	}
	return *from >= 0;
}

/* One block for the pairs that see it. acc, max and sum are indexed from *from on. end: the caller's next blocks are below it; beyond,
 * `after` comes. */
static bool attend_block(const struct attention_job *job, const struct unit *unit, int block, int end, const struct upcoming *after,
                         struct cpu_scratch *scratch, int *from, int *to, struct attend_args *attend)
{
	if (!block_pairs(job, unit, block, from, to, attend)) return false;
	attend->rows = *to - *from;
	attend->head_dim = job->args->cache->layout.head_dim;
	attend->scale = job->args->scale;
	attend->softcap = job->args->softcap;
	attend->q = tile_part(scratch, TILE_QUERY) + (size_t)*from * TILE_STRIDE;
	attend->p = tile_part(scratch, TILE_WEIGHTS);
	attend->acc = tile_part(scratch, TILE_BLOCK);
	int lo = attend->lo[0], hi = attend->hi[0];
	for (int i = 1; i < attend->rows; i++) {
		if (attend->lo[i] < lo) lo = attend->lo[i];
		if (attend->hi[i] > hi) hi = attend->hi[i];
	}
	int last_lo, last_hi;
	pair_range(job, unit, unit->count - 1, &last_lo, &last_hi);
	struct upcoming next = {unit_table(job, unit), unit->kv_head, block + 1, 0, last_hi < end * KV_BLOCK ? last_hi : end * KV_BLOCK};
	find_groups(job, unit, block, lo, hi, block + 1 < end ? &next : after, attend);
	job->kernels->attend(attend);
	return true;
}

/* The running result of one pair. `blocks` 0: nothing yet. */
struct running {
	float *acc;
	float max, sum;
	int blocks;
};

/* max' = max(max, m); a = exp(max - max'), b = exp(m - max'); sum = fma(sum, a, s * b), acc likewise. */
static void merge_block(const struct cpu_kernels *kernels, struct running *to, const float *acc, float max, float sum, int width)
{
	if (to->blocks++ == 0) {
		memcpy(to->acc, acc, (size_t)width * sizeof *acc);
		to->max = max;
		to->sum = sum;
		return;
	}
	float top = to->max > max ? to->max : max;
	float a = exp_f32(to->max - top), b = exp_f32(max - top);
	to->max = top;
	to->sum = fmaf(to->sum, a, sum * b);
	kernels->rescale(to->acc, acc, a, b, width);
}

/* Blocks that any pair of the unit sees: [*first, *end). */
static void unit_blocks(const struct attention_job *job, const struct unit *unit, int *first, int *end)
{
	int lo, hi;
	pair_range(job, unit, 0, &lo, &hi);
	*first = lo / KV_BLOCK;
	pair_range(job, unit, unit->count - 1, &lo, &hi);
	*end = (hi + KV_BLOCK - 1) / KV_BLOCK;
}

static void finish(const struct attention_job *job, const struct unit *unit, int i, const struct running *running)
{
	float *out = pair_head(job, &job->args->out, unit, i);
	job->kernels->divide(out, running->acc, running->sum, job->args->cache->layout.head_dim);
}

static void whole_unit(const struct attention_job *job, const struct unit *unit, const struct upcoming *after, struct cpu_scratch *scratch)
{
	int width = value_width(job->args->cache->layout.head_dim);
	struct running running[TILE_MAX_ROWS];
	for (int i = 0; i < unit->count; i++) running[i] = (struct running){.acc = tile_part(scratch, TILE_RUNNING) + (size_t)i * TILE_STRIDE};
	load_queries(job, unit, tile_part(scratch, TILE_QUERY));
	int first, end;
	unit_blocks(job, unit, &first, &end);
	float max[TILE_MAX_ROWS], sum[TILE_MAX_ROWS];
	struct attend_args attend = {.max = max, .sum = sum};
	for (int block = first; block < end; block++) {
		int from, to;
		if (!attend_block(job, unit, block, end, after, scratch, &from, &to, &attend)) continue;
		for (int i = from; i < to; i++)
			merge_block(job->kernels, &running[i], attend.acc + (size_t)(i - from) * TILE_STRIDE, max[i - from], sum[i - from], width);
	}
	for (int i = 0; i < unit->count; i++) finish(job, unit, i, &running[i]);
}

/* `run` units. They are taken from the last on: later rows see more, and long work should begin first. Short contexts are a block each,
 * whose keys would come cold: so the values of one unit are summed while the keys of the next are fetched. */
static void unit_chunk(void *context, int chunk, int member)
{
	const struct attention_job *job = context;
	int from = job->units - 1 - chunk * job->run, to = from - job->run < -1 ? -1 : from - job->run;
	struct unit unit = find_unit(job, from);
	for (int i = from; i > to; i--) {
		struct unit next = unit;
		struct upcoming after = {0};
		int then = i - 1 > to ? i - 1 : i - 1 - (team_members(cpu_team(&job->stream->base)) - 1) * job->run; /* members take turns, mostly */
		if (then >= 0) {
			int last_lo;
			next = find_unit(job, then);
			after = (struct upcoming){.table = unit_table(job, &next), .kv_head = next.kv_head};
			pair_range(job, &next, next.count - 1, &last_lo, &after.end);
			pair_range(job, &next, 0, &after.lo, &last_lo);
			after.block = after.lo / KV_BLOCK;
		}
		whole_unit(job, &unit, &after, &job->stream->scratch[member]);
		unit = next;
	}
}

/* Partial of (unit, pair, block): acc, with max and sum behind it (TILE_STRIDE leaves room). */
static float *partial_of(const struct attention_job *job, int unit, int pair, int block)
{
	int64_t index = ((int64_t)unit * job->kernels->attend_rows + pair) * job->blocks + block;
	return job->stream->partial + index * TILE_STRIDE;
}

static void split_chunk(void *context, int chunk, int member)
{
	const struct attention_job *job = context;
	struct cpu_scratch *scratch = &job->stream->scratch[member];
	int runs = (job->blocks + job->run - 1) / job->run, index = chunk / runs, first, end;
	struct unit unit = find_unit(job, index);
	unit_blocks(job, &unit, &first, &end);
	int run_first = chunk % runs * job->run, run_end = run_first + job->run;
	if (first < run_first) first = run_first;
	if (end > run_end) end = run_end;
	if (first >= end) return;
	load_queries(job, &unit, tile_part(scratch, TILE_QUERY));
	float max[TILE_MAX_ROWS], sum[TILE_MAX_ROWS];
	struct attend_args attend = {.max = max, .sum = sum};
	int width = value_width(job->args->cache->layout.head_dim);
	for (int block = first; block < end; block++) {
		int from, to;
		if (!attend_block(job, &unit, block, end, &(struct upcoming){0}, scratch, &from, &to, &attend)) continue;
		for (int i = from; i < to; i++) {
			float *partial = partial_of(job, index, i, block);
			memcpy(partial, attend.acc + (size_t)(i - from) * TILE_STRIDE, (size_t)width * sizeof *partial);
			partial[MAX_HEAD_DIM] = max[i - from];
			partial[MAX_HEAD_DIM + 1] = sum[i - from];
		}
	}
}

static void merge_chunk(void *context, int chunk, int member)
{
	const struct attention_job *job = context;
	struct unit unit = find_unit(job, chunk);
	int width = value_width(job->args->cache->layout.head_dim);
	for (int i = 0; i < unit.count; i++) {
		int lo, hi;
		pair_range(job, &unit, i, &lo, &hi);
		struct running running = {.acc = tile_part(&job->stream->scratch[member], TILE_RUNNING)};
		for (int block = lo / KV_BLOCK; block < (hi + KV_BLOCK - 1) / KV_BLOCK; block++) {
			const float *partial = partial_of(job, chunk, i, block);
			merge_block(job->kernels, &running, partial, partial[MAX_HEAD_DIM], partial[MAX_HEAD_DIM + 1], width);
		}
		finish(job, &unit, i, &running);
	}
}

int64_t cpu_attention_partials(const struct stream_options *options, int members)
{
	if (members < 2) return 0;
	int64_t blocks = (options->max_context + KV_BLOCK - 1) / KV_BLOCK;
	int64_t most = (int64_t)SPLIT_UNITS * members * TILE_MAX_ROWS * blocks;
	if (blocks < 2) return 0;
	return most < SPLIT_MAX_PARTIALS ? most : SPLIT_MAX_PARTIALS;
}

static enum status check_attention(const struct cpu_stream *stream, const struct attention_args *args, struct error *err)
{
	const struct kv_layout *layout = &args->cache->layout;
	const struct step_rows *rows = args->rows;
	TRY(check_cache(args->cache, args->layer, "attention", err));
	TRY(tensor_expect(&args->q, TENSOR_SHARDED, "attention q", err));
	TRY(tensor_expect(&args->out, TENSOR_SHARDED, "attention out", err));
	TRY(cpu_expect_f32(&args->q, "attention q", err));
	TRY(cpu_expect_f32(&args->out, "attention out", err));
	if (args->q_heads < 1 || args->q_heads % layout->kv_heads)
		return FAIL(err, BAD_INPUT, "attention: %d query heads over %d kv heads; a multiple is wanted", args->q_heads, layout->kv_heads);
	int cols = args->q_heads * layout->head_dim;
	if (args->q.rows != rows->rows || args->out.rows != rows->rows || args->q.cols != cols || args->out.cols != cols)
		return FAIL(err, BAD_INPUT, "attention: q [%d,%d], out [%d,%d], expected [%d,%d]", args->q.rows, args->q.cols, args->out.rows,
		            args->out.cols, rows->rows, cols);
	if (rows->rows > stream->options.max_rows && rows->rows > 1)
		return FAIL(err, BAD_INPUT, "attention: %d rows in a stream made for %d", rows->rows, stream->options.max_rows);
	int most_seqs = stream->options.max_rows > 1 ? stream->options.max_rows : 1; /* room of unit_start */
	if (rows->seqs < 0 || rows->seqs > most_seqs || rows->max_kv_len > (int64_t)rows->max_blocks * layout->block_tokens)
		return FAIL(err, BAD_INPUT, "attention: %d sequences of %d rows, %d keys in %d blocks of %d", rows->seqs, rows->rows, rows->max_kv_len,
		            rows->max_blocks, layout->block_tokens);
	return STATUS_OK;
}

enum status cpu_attention(struct stream *base, const struct attention_args *args, struct error *err)
{
	struct cpu_stream *stream = cpu_stream(base);
	TRY(check_attention(stream, args, err));
	struct attention_job job = {.args = args, .kernels = cpu_kernels(base), .stream = stream};
	job.group = args->q_heads / args->cache->layout.kv_heads;
	job.blocks = (args->rows->max_kv_len + KV_BLOCK - 1) / KV_BLOCK;
	job.units = count_units(&job);
	struct team *team = cpu_team(base);
	int members = team_members(team);
	bool split = members > 1 && job.blocks > 1 && job.units < SPLIT_UNITS * members &&
	             (int64_t)job.units * job.kernels->attend_rows * job.blocks <= stream->partials && (int64_t)job.units * job.blocks <= TEAM_MAX_CHUNKS;
	if (!split) {
		job.run = job.units / (ATTEND_CHUNKS * members) > 1 ? job.units / (ATTEND_CHUNKS * members) : 1;
		if (job.run > ATTEND_RUN) job.run = ATTEND_RUN;
		team_run(team, (job.units + job.run - 1) / job.run, unit_chunk, &job);
		return STATUS_OK;
	}
	job.run = (job.units * job.blocks + 8 * members - 1) / (8 * members);
	if (job.run > job.blocks) job.run = job.blocks;
	team_run(team, job.units * ((job.blocks + job.run - 1) / job.run), split_chunk, &job);
	team_run(team, job.units, merge_chunk, &job);
	return STATUS_OK;
}
