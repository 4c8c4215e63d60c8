/* moe.c: the experts of a layer: route the rows, put them in order of experts, two grouped linears with SwiGLU between.
 *
 * A *pair* is a row and one of its experts. Pairs are sorted by expert, then by row, and cut into *blocks* of rows of one expert and these into tiles, as
 * linear.c cuts rows; an expert's weights are read once for all of its rows. The shared expert is one more expert, the last, of every row.
 * Rows are taken MOE_ROWS at a time, which bounds the memory of intermediate results.
 *
 * Bits (docs/NUMERICS.md): the weight of a pair is multiplied into the product of SwiGLU, so that the down projections of a row's experts are one fma chain
 * per leaf, experts ascending; leaves are added as in every row-parallel linear. For a work item of the down projection (a panel) the chains of all
 * leaves and rows are in flight in `chains`: each expert's part of the panel is read from its beginning to its end, whatever the number of leaves.
 */
#include <string.h>

#include "device/cpu/cpu.h"

#define MOE_ROWS 512          /* rows taken at a time */
#define MOE_CHAINS 4096       /* rows x leaves in flight at most, where that leaves MOE_LEAST_ROWS */
#define MOE_LEAST_ROWS 4
#define ROW_GROUP 8           /* rows that are routed in one chunk of work */
#define SWIGLU_COLUMNS 512

/* Pairs [first, first + pairs) of one expert, in `tiles` tiles of nearly equal height. */
struct moe_block {
	int expert, first, pairs, tiles;
};

/* The caller's memory. Pairs: at most rows x (top_k + 1). */
struct moe_memory {
	float *logits;            /* [rows][router outputs], then probabilities */
	int32_t *chosen;          /* [rows][top_k] */
	float *chosen_weight;     /* [rows][top_k] */
	int32_t *row;             /* [pairs] */
	float *weight;            /* [pairs] */
	struct moe_block *block;
	int *begin;               /* [experts + 2] first pair of each */
	float *packed;            /* [pairs][hidden], tile after tile as [k][rows of the tile] */
	float *gate_up;           /* [pairs][2 inner], then [rows][2 shared inner] */
	float *act;               /* likewise, half as wide, in tiles */
	float *chains;            /* [members][leaves][rows][PANEL] */
	size_t bytes;
};

struct moe_job {
	const struct moe_args *args;
	const struct cpu_kernels *kernels;
	struct cpu_stream *stream;
	struct moe_memory m;
	struct cpu_sum_plan sum, shared_sum;
	int outputs;              /* of the router */
	int first_row, rows;      /* of x, taken now */
	int routed;               /* pairs of chosen experts: rows x top_k; the shared expert's follow */
	int blocks, routed_blocks;
	int group;                /* panels of gate and up in a chunk of work: one, unless there were too many chunks */
};

static int rows_at_a_time(int rows, int leaves)
{
	int most = MOE_CHAINS / leaves;
	if (most < MOE_LEAST_ROWS) most = MOE_LEAST_ROWS;
	if (most > MOE_ROWS) most = MOE_ROWS;
	return rows < most ? rows : most;
}

static void *carve(char *base, size_t *at, size_t count, size_t unit)
{
	void *part = base ? base + *at : NULL;
	*at += (count * unit + 63) / 64 * 64;
	return part;
}

static struct moe_memory lay_out(void *base, const struct moe_shape *s, int members)
{
	size_t rows = (size_t)rows_at_a_time(s->rows, s->leaves), routed = rows * (size_t)s->top_k, at = 0;
	size_t shared = s->shared_inner ? rows : 0, pairs = routed + shared, inner = routed * (size_t)s->inner + shared * (size_t)s->shared_inner;
	struct moe_memory m;
	m.logits = carve(base, &at, rows * ((size_t)s->experts + 1), sizeof *m.logits);
	m.chosen = carve(base, &at, routed, sizeof *m.chosen);
	m.chosen_weight = carve(base, &at, routed, sizeof *m.chosen_weight);
	m.row = carve(base, &at, pairs, sizeof *m.row);
	m.weight = carve(base, &at, pairs, sizeof *m.weight);
	m.block = carve(base, &at, pairs, sizeof *m.block);
	m.begin = carve(base, &at, (size_t)s->experts + 2, sizeof *m.begin);
	m.packed = carve(base, &at, pairs * (size_t)s->hidden, sizeof *m.packed);
	m.gate_up = carve(base, &at, inner * 2, sizeof *m.gate_up);
	m.act = carve(base, &at, inner, sizeof *m.act);
	m.chains = carve(base, &at, (size_t)members * (size_t)s->leaves * rows * PANEL, sizeof *m.chains);
	m.bytes = at;
	return m;
}

size_t cpu_moe_scratch_bytes(const struct device *device, const struct moe_shape *shape)
{
	return lay_out(NULL, shape, team_members(((const struct cpu_device *)device)->team)).bytes;
}

/* --- routing ---------------------------------------------------------------------------------------------------------- */

/* In place; the sum's order is that of `lanes` and tree16 of the contract. */
static void softmax(const struct cpu_kernels *kernels, float *p, int n)
{
	float max = p[0], lane[LANES] = {0};
	for (int e = 1; e < n; e++) max = p[e] > max ? p[e] : max;
	for (int e = 0; e < n; e++) p[e] = p[e] - max;
	kernels->exp(p, p, n);
	for (int e = 0; e < n; e++) lane[e % LANES] = lane[e % LANES] + p[e];
	for (int width = LANES / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
	kernels->divide(p, p, lane[0], n);
}

/* The largest first, of equal ones the lower index; where all are NaN the lowest indices. What is chosen becomes -1 in p. */
static void choose(float *p, int experts, int top_k, int32_t *chosen, float *weight)
{
	for (int i = 0; i < top_k; i++) {
		int best = -1;
		for (int e = 0; e < experts; e++)
			if (!(p[e] < 0) && (best < 0 || p[e] > p[best])) best = e;
		chosen[i] = best;
		weight[i] = p[best];
		p[best] = -1;
	}
}

static void route_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct moe_job *job = context;
	const struct moe_args *a = job->args;
	int experts = a->weights->experts, end = (chunk + 1) * ROW_GROUP < job->rows ? (chunk + 1) * ROW_GROUP : job->rows;
	for (int r = chunk * ROW_GROUP; r < end; r++) {
		float *p = job->m.logits + (size_t)r * (size_t)job->outputs, *weight = job->m.chosen_weight + (size_t)r * (size_t)a->top_k, sum = 0;
		softmax(job->kernels, p, experts);
		choose(p, experts, a->top_k, job->m.chosen + (size_t)r * (size_t)a->top_k, weight);
		for (int i = 0; i < a->top_k; i++) sum = sum + weight[i];
		for (int i = 0; a->norm_topk && i < a->top_k; i++) weight[i] = weight[i] / sum;
	}
}

static void add_blocks(struct moe_job *job, int expert, int first, int pairs)
{
	int blocks = (pairs + LINEAR_BLOCK_ROWS - 1) / LINEAR_BLOCK_ROWS;
	for (int b = 0; b < blocks; b++) {
		int begin = (int)((int64_t)b * pairs / blocks), count = (int)((int64_t)(b + 1) * pairs / blocks) - begin;
		job->m.block[job->blocks++] = (struct moe_block){.expert = expert, .first = first + begin, .pairs = count,
		                                                 .tiles = (count + job->kernels->linear_rows - 1) / job->kernels->linear_rows};
	}
}

/* A counting sort: by expert, then by row. */
static void sort_pairs(struct moe_job *job)
{
	const struct moe_memory *m = &job->m;
	int experts = job->args->weights->experts, top_k = job->args->top_k, *begin = m->begin;
	memset(begin, 0, ((size_t)experts + 2) * sizeof *begin);
	job->routed = job->rows * top_k;
	for (int i = 0; i < job->routed; i++) begin[m->chosen[i] + 2]++;
	for (int e = 2; e < experts + 2; e++) begin[e] += begin[e - 1];
	for (int i = 0; i < job->routed; i++) { /* begin[e + 1]: where e's next pair goes; its end when all are placed */
		int at = begin[m->chosen[i] + 1]++;
		m->row[at] = i / top_k;
		m->weight[at] = m->chosen_weight[i];
	}
	job->blocks = 0;
	for (int e = 0; e < experts; e++) add_blocks(job, e, begin[e], begin[e + 1] - begin[e]);
	job->routed_blocks = job->blocks;
	if (!job->args->weights->shared_down.n) return;
	for (int r = 0; r < job->rows; r++) {
		float gate = -m->logits[(size_t)r * (size_t)job->outputs + (size_t)experts];
		job->kernels->exp(&gate, &gate, 1);
		m->row[job->routed + r] = r;
		m->weight[job->routed + r] = 1.0f / (1.0f + gate);
	}
	add_blocks(job, experts, job->routed, job->rows);
}

/* --- grouped linears -------------------------------------------------------------------------------------------------- */

static int tile_begin(const struct moe_block *block, int tile)
{
	return block->first + (int)((int64_t)tile * block->pairs / block->tiles);
}

static const float *x_row(const struct moe_job *job, int pair)
{
	return cpu_row(&job->args->in.h, job->first_row + job->m.row[pair]);
}

/* A block's rows of x into tiles. A tile of one row is the row itself. */
static void pack_block(void *context, int chunk, int member)
{
	(void)member;
	const struct moe_job *job = context;
	const struct moe_block *block = &job->m.block[chunk];
	int k = job->args->in.h.cols;
	for (int t = 0; t < block->tiles; t++) {
		int pair = tile_begin(block, t), height = tile_begin(block, t + 1) - pair;
		for (int r = 0; height > 1 && r < height; r++) {
			const float *in = x_row(job, pair + r);
			float *out = job->m.packed + (size_t)pair * (size_t)k + r;
			for (int i = 0; i < k; i++) out[(size_t)i * (size_t)height] = in[i];
		}
	}
}

static bool is_shared(const struct moe_job *job, const struct moe_block *block)
{
	return block->expert == job->args->weights->experts;
}

static int inner_of(const struct moe_job *job, const struct moe_block *block)
{
	return is_shared(job, block) ? job->args->weights->shared_down.k : job->args->weights->down.k;
}

/* Where a pair's part of `act` begins, in floats; of gate_up twice as far. */
static size_t act_at(const struct moe_job *job, const struct moe_block *block, int pair)
{
	size_t inner = (size_t)job->args->weights->down.k;
	if (!is_shared(job, block)) return (size_t)pair * inner;
	return (size_t)job->routed * inner + (size_t)(pair - job->routed) * (size_t)inner_of(job, block);
}

static const char *panel_of(const struct moe_job *job, const struct moe_block *block, bool down, int panel)
{
	const struct moe_weights *w = job->args->weights;
	const struct linear_weight *weight = is_shared(job, block) ? (down ? &w->shared_down : &w->shared_gate_up) : down ? &w->down : &w->gate_up;
	size_t expert = is_shared(job, block) ? 0 : (size_t)block->expert * (down ? w->down_bytes : w->gate_up_bytes);
	return (const char *)weight->data + expert + (size_t)panel * cpu_linear_bytes(weight->dtype, PANEL, weight->k);
}

static int panels_of(int n)
{
	return (n + PANEL - 1) / PANEL;
}

/* One panel of gate and up rows for one block. */
static void gate_up_panel(const struct moe_job *job, const struct moe_block *block, int panel, float *acc)
{
	int k = job->args->in.h.cols, n = 2 * inner_of(job, block), step = block->pairs <= LINEAR_FEW_ROWS ? k : LINEAR_CHUNK_K;
	const char *weights = panel_of(job, block, false, panel);
	enum dtype dtype = job->args->weights->gate_up.dtype;
	memset(acc, 0, (size_t)block->pairs * PANEL * sizeof *acc);
	for (int k0 = 0; k0 < k; k0 += step) {
		int steps = k - k0 < step ? k - k0 : step;
		for (int t = 0; t < block->tiles; t++) {
			int pair = tile_begin(block, t), height = tile_begin(block, t + 1) - pair;
			const float *x = height == 1 ? x_row(job, pair) + k0 : job->m.packed + (size_t)pair * (size_t)k + (size_t)k0 * (size_t)height;
			job->kernels->chain[dtype](acc + (size_t)(pair - block->first) * PANEL, weights + (size_t)k0 * PANEL * dtype_bytes(dtype), x, steps, height);
		}
	}
	int n0 = panel * PANEL, columns = n - n0 < PANEL ? n - n0 : PANEL;
	float *out = job->m.gate_up + 2 * act_at(job, block, block->first) + n0;
	for (int r = 0; r < block->pairs; r++) memcpy(out + (size_t)r * (size_t)n, acc + (size_t)r * PANEL, (size_t)columns * sizeof *out);
}

/* Chunks of `group` panels: those of the chosen experts' blocks, then those of the shared expert's. */
static int chunks_of(const struct moe_job *job, const struct linear_weight *gate_up)
{
	return (panels_of(gate_up->n) + job->group - 1) / job->group;
}

static void gate_up_chunk(void *context, int chunk, int member)
{
	const struct moe_job *job = context;
	const struct moe_weights *w = job->args->weights;
	int each = chunks_of(job, &w->gate_up), routed = job->routed_blocks * each, b = chunk / each, panels = panels_of(w->gate_up.n), part = chunk % each;
	if (chunk >= routed) {
		each = chunks_of(job, &w->shared_gate_up);
		panels = panels_of(w->shared_gate_up.n);
		b = job->routed_blocks + (chunk - routed) / each;
		part = (chunk - routed) % each;
	}
	for (int panel = part * job->group; panel < panels && panel < (part + 1) * job->group; panel++)
		gate_up_panel(job, &job->m.block[b], panel, job->stream->scratch[member].stack);
}

/* act = weight * (silu(gate) * up), in tiles. */
static void swiglu_block(void *context, int chunk, int member)
{
	(void)member;
	const struct moe_job *job = context;
	const struct moe_block *block = &job->m.block[chunk];
	int inner = inner_of(job, block);
	float product[SWIGLU_COLUMNS];
	for (int t = 0; t < block->tiles; t++) {
		int first = tile_begin(block, t), height = tile_begin(block, t + 1) - first;
		float *act = job->m.act + act_at(job, block, first);
		for (int r = 0; r < height; r++) {
			const float *gate = job->m.gate_up + 2 * act_at(job, block, first + r);
			float weight = job->m.weight[first + r];
			for (int i0 = 0; i0 < inner; i0 += SWIGLU_COLUMNS) {
				int n = inner - i0 < SWIGLU_COLUMNS ? inner - i0 : SWIGLU_COLUMNS;
				job->kernels->swiglu(product, gate + i0, gate + inner + i0, n);
				for (int i = 0; i < n; i++) act[(size_t)(i0 + i) * (size_t)height + (size_t)r] = product[i] * weight;
			}
		}
	}
}

/* Goes on with the chains of a tile's rows by k steps; acc [rows][PANEL]. The rows of a tile need not follow each other. */
static void add_tile(const struct moe_job *job, float *acc, float *few, int pair, int height, const char *weights, const float *x, int k)
{
	enum dtype dtype = job->args->weights->down.dtype;
	const int32_t *row = job->m.row + pair;
	if (row[height - 1] - row[0] == height - 1) {
		job->kernels->chain[dtype](acc + (size_t)row[0] * PANEL, weights, x, k, height);
		return;
	}
	for (int r = 0; r < height; r++) memcpy(few + r * PANEL, acc + (size_t)row[r] * PANEL, PANEL * sizeof *acc);
	job->kernels->chain[dtype](few, weights, x, k, height);
	for (int r = 0; r < height; r++) memcpy(acc + (size_t)row[r] * PANEL, few + r * PANEL, PANEL * sizeof *acc);
}

/* One block's part of a panel's chains, leaf after leaf. */
static void add_block(const struct moe_job *job, const struct moe_block *block, float *chains, float *few, int panel)
{
	int leaf_k = is_shared(job, block) ? job->shared_sum.leaf_k : job->sum.leaf_k, step = LINEAR_CHUNK_K;
	size_t step_bytes = PANEL * dtype_bytes(job->args->weights->down.dtype);
	const char *weights = panel_of(job, block, true, panel);
	for (int leaf = 0; leaf < job->sum.leaves; leaf++)
		for (int at = 0; at < leaf_k; at += step) {
			int k0 = leaf * leaf_k + at, k = leaf_k - at < step ? leaf_k - at : step;
			for (int t = 0; t < block->tiles; t++) {
				int pair = tile_begin(block, t), height = tile_begin(block, t + 1) - pair;
				add_tile(job, chains + (size_t)leaf * (size_t)job->rows * PANEL, few, pair, height, weights + (size_t)k0 * step_bytes,
				         job->m.act + act_at(job, block, pair) + (size_t)k0 * (size_t)height, k);
			}
		}
}

/* One panel of outputs for all rows: the chains of all leaves, experts ascending, then the tree. */
static void down_chunk(void *context, int panel, int member)
{
	const struct moe_job *job = context;
	const struct moe_args *a = job->args;
	size_t one = (size_t)job->rows * PANEL;
	float *chains = job->m.chains + (size_t)member * (size_t)job->sum.leaves * one;
	memset(chains, 0, (size_t)job->sum.leaves * one * sizeof *chains);
	for (int b = 0; b < job->blocks; b++) add_block(job, &job->m.block[b], chains, job->stream->scratch[member].tile, panel);

	int n0 = panel * PANEL, n = a->y.cols - n0 < PANEL ? a->y.cols - n0 : PANEL;
	for (int s = 0; s < job->sum.spans; s++) {
		int depth = 0;
		float *open[SUMTREE_MAX_DEPTH];
		for (int leaf = job->sum.span[s].lo; leaf < job->sum.span[s].hi; leaf++) {
			open[depth++] = chains + (size_t)leaf * one;
			for (int m = job->sum.merges[leaf]; m > 0; m--, depth--)
				for (size_t i = 0; i < one; i++) open[depth - 2][i] = open[depth - 2][i] + open[depth - 1][i];
		}
		for (int r = 0; r < job->rows; r++)
			memcpy(cpu_row(&a->y, job->first_row + r) + s * a->y.slot_stride + n0, open[0] + (size_t)r * PANEL, (size_t)n * sizeof(float));
	}
}

/* --- the op ----------------------------------------------------------------------------------------------------------- */

static enum status check_moe(const struct moe_args *a, struct error *err)
{
	const struct moe_weights *w = a->weights;
	enum dtype dtype = w->gate_up.dtype;
	bool shared = w->shared_down.n > 0;
	if (!a->in.done) return FAIL(err, UNSUPPORTED, "moe: the cpu back end wants its input normed");
	TRY(tensor_expect(&a->in.h, TENSOR_REPLICATED, "moe x", err));
	TRY(cpu_expect_f32(&a->in.h, "moe x", err));
	TRY(cpu_expect_f32(&a->y, "moe y", err));
	if (w->experts < 1 || a->top_k < 1 || a->top_k > w->experts || a->top_k > MOE_MAX_TOP_K)
		return FAIL(err, BAD_INPUT, "moe: %d of %d experts; 1 to %d of them are wanted", a->top_k, w->experts, MOE_MAX_TOP_K);
	if (a->y.rows != a->in.h.rows || a->y.cols != a->in.h.cols)
		return FAIL(err, BAD_INPUT, "moe: from x [%d,%d] to y [%d,%d]; equal ones are wanted", a->in.h.rows, a->in.h.cols, a->y.rows, a->y.cols);
	if (!a->split || a->accumulate) return FAIL(err, UNSUPPORTED, "moe: y without a split; the cpu back end gives partial sums");
	TRY(ops_check_expert(&w->gate_up, dtype, 2 * w->down.k, a->in.h.cols, "gate and up", err));
	TRY(ops_check_expert(&w->down, dtype, a->in.h.cols, w->down.k, "down", err));
	if (!shared) return STATUS_OK;
	TRY(ops_check_expert(&w->shared_gate_up, dtype, 2 * w->shared_down.k, a->in.h.cols, "shared gate and up", err));
	return ops_check_expert(&w->shared_down, dtype, a->in.h.cols, w->shared_down.k, "shared down", err);
}

static enum status run_rows(struct moe_job *job, struct error *err)
{
	const struct moe_args *a = job->args;
	const struct moe_weights *w = a->weights;
	struct team *team = cpu_team(&job->stream->base);
	struct tensor x = a->in.h;
	x.data = cpu_row(&a->in.h, job->first_row);
	x.rows = job->rows;
	TRY(cpu_linear(&job->stream->base, &(struct linear_args){.x = x, .weight = &w->router,
	                                                         .y = tensor_view(job->m.logits, DTYPE_F32, TENSOR_REPLICATED, job->rows, job->outputs)}, err));
	team_run(team, (job->rows + ROW_GROUP - 1) / ROW_GROUP, route_chunk, job);
	sort_pairs(job);
	if (job->rows > 1) team_run(team, job->blocks, pack_block, job);
	int64_t panels = (int64_t)job->routed_blocks * panels_of(w->gate_up.n) + (int64_t)(job->blocks - job->routed_blocks) * panels_of(w->shared_gate_up.n);
	job->group = 1 + (int)(panels / (TEAM_MAX_CHUNKS / 2));
	team_run(team, job->routed_blocks * chunks_of(job, &w->gate_up) + (job->blocks - job->routed_blocks) * chunks_of(job, &w->shared_gate_up), gate_up_chunk, job);
	team_run(team, job->blocks, swiglu_block, job);
	team_run(team, panels_of(a->y.cols), down_chunk, job);
	return STATUS_OK;
}

enum status cpu_moe(struct stream *base, const struct moe_args *args, struct error *err)
{
	const struct moe_weights *w = args->weights;
	TRY(check_moe(args, err));
	struct moe_job job = {.args = args, .kernels = cpu_kernels(base), .stream = cpu_stream(base), .outputs = w->experts + (w->shared_down.n > 0)};
	if (w->router.n != job.outputs)
		return FAIL(err, BAD_INPUT, "moe router: %d outputs for %d experts%s; %d are wanted", w->router.n, w->experts, w->shared_down.n ? " and a shared one" : "", job.outputs);
	TRY(cpu_sum_plan(&job.sum, args->split, w->down.k, &args->y, "moe", err));
	if (w->shared_down.n) TRY(cpu_sum_plan(&job.shared_sum, args->split, w->shared_down.k, &args->y, "moe shared expert", err));
	const struct moe_shape shape = {.rows = args->in.h.rows, .hidden = args->in.h.cols, .experts = w->experts, .top_k = args->top_k, .inner = w->down.k,
	                                .shared_inner = w->shared_down.n ? w->shared_down.k : 0, .leaves = args->split->leaves};
	if (!args->in.h.rows) return STATUS_OK;
	job.m = lay_out(args->scratch, &shape, team_members(cpu_team(base)));
	int step = rows_at_a_time(args->in.h.rows, args->split->leaves);
	for (job.first_row = 0; job.first_row < args->in.h.rows; job.first_row += step) {
		job.rows = args->in.h.rows - job.first_row < step ? args->in.h.rows - job.first_row : step;
		TRY(run_rows(&job, err));
	}
	return STATUS_OK;
}
