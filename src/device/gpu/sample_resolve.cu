/* sample_resolve.cu: the last two of the kernels of sample.cu: from a row's histogram to its token. */
#include "device/gpu/sample.h"

#define RESOLVE_THREADS 512
#define CELLS (SAMPLE_BINS / RESOLVE_THREADS) /* of the histogram, or entries of the list, per thread */
#define UNROLL 16                             /* loads of a thread in flight: one block reads the whole row */

/* Where does the distribution reach `count` tokens, or if that is 0, `mass`; or, if that is 0 too, what comes before `cell`. */
struct question {
	uint32_t count;
	uint64_t mass;
	uint32_t cell;
};

/* The cell that answers a question, and what lies before it. */
struct found {
	uint32_t index, count; /* tokens in it */
	uint64_t before, mass_before, mass;
};

/* What the threads of the block share. list and histogram lie in the same memory. */
struct resolve_shared {
	uint64_t mass[32];
	uint32_t count[32];
	struct sample_facts facts;
	struct found found;
	uint32_t low_key, high_key;
	uint32_t listed, ties;
	int32_t token;
};

struct resolve_block {
	const float *x; /* [vocab] */
	int vocab;
	struct resolve_shared *shared;
	unsigned char *memory;
	const struct sample_plan *plan;
	const unsigned long long *list;
	/* The row's histogram: this thread has the cells threadIdx.x * CELLS + j. They are read again for each question: registers are short. */
	const uint32_t *count;
	const unsigned long long *mass;
	uint32_t before, candidates; /* tokens in the cells before this thread's, in all */
	uint64_t mass_before, total;
};

struct answer {
	uint32_t key;  /* of the token that was found */
	uint64_t mass; /* of all with this key or a larger one */
	int32_t token;
};

/* Sums over the threads before this one; totals of the block in *count_total, *mass_total. */
GPU_DEVICE void block_prefix(struct resolve_shared *s, uint32_t *count, uint64_t *mass, uint32_t *count_total, uint64_t *mass_total)
{
	const int lane = (int)threadIdx.x % GPU_WARP, wave = (int)threadIdx.x / GPU_WARP;
	uint32_t c = *count;
	unsigned long long m = *mass;
	for (int step = 1; step < GPU_WARP; step *= 2) {
		const int from = lane >= step ? lane - step : lane;
		const uint32_t c_other = gpu_shfl(c, from);
		const unsigned long long m_other = gpu_shfl(m, from);
		if (lane >= step) c += c_other, m += m_other;
	}
	gpu_sync();
	if (lane == GPU_WARP - 1) s->count[wave] = c, s->mass[wave] = m;
	gpu_sync();
	uint32_t c_before = 0, c_all = 0;
	uint64_t m_before = 0, m_all = 0;
	for (int w = 0; w < RESOLVE_THREADS / GPU_WARP; w++) {
		if (w == wave) c_before = c_all, m_before = m_all;
		c_all += s->count[w];
		m_all += s->mass[w];
	}
	*count = c_before + c - *count;
	*mass = m_before + m - *mass;
	*count_total = c_all;
	*mass_total = m_all;
}

GPU_DEVICE bool reached(struct question q, uint32_t count, uint64_t mass)
{
	return q.count ? count >= q.count : mass >= q.mass;
}

/* Leaves the cell that answers q in shared->found. Each thread has CELLS consecutive cells, c tokens and a mass of m before them. */
GPU_DEVICE void find_cell(struct resolve_shared *s, const uint32_t count[CELLS], const uint64_t mass[CELLS], uint32_t c, uint64_t m,
                          struct question q)
{
	const bool by_cell = !q.count && !q.mass;
	gpu_sync();
	GPU_UNROLL for (int j = 0; j < CELLS; j++) {
		const uint32_t index = threadIdx.x * CELLS + (uint32_t)j;
		if (by_cell ? index == q.cell : !reached(q, c, m) && reached(q, c + count[j], m + mass[j])) {
			const struct found f = {index, count[j], c, m, mass[j]};
			s->found = f;
		}
		c += count[j];
		m += mass[j];
	}
	gpu_sync();
}

/* The same among cells of which nobody has added up what lies before. */
GPU_DEVICE void find_cell_anew(struct resolve_shared *s, const uint32_t count[CELLS], const uint64_t mass[CELLS], struct question q)
{
	uint32_t c = 0, c_total;
	uint64_t m = 0, m_total;
	GPU_UNROLL for (int j = 0; j < CELLS; j++) c += count[j], m += mass[j];
	block_prefix(s, &c, &m, &c_total, &m_total);
	find_cell(s, count, mass, c, m, q);
}

GPU_DEVICE void load_cells(const struct resolve_block *b, uint32_t count[CELLS], uint64_t mass[CELLS])
{
	GPU_UNROLL for (int j = 0; j < CELLS; j++) {
		count[j] = b->count[threadIdx.x * CELLS + (uint32_t)j];
		mass[j] = b->mass[threadIdx.x * CELLS + (uint32_t)j];
	}
}

GPU_DEVICE struct found find_in_histogram(const struct resolve_block *b, struct question q)
{
	uint32_t count[CELLS];
	uint64_t mass[CELLS];
	load_cells(b, count, mass);
	find_cell(b->shared, count, mass, b->before, b->mass_before, q);
	return b->shared->found;
}

/* The block's view of row `row`, whose facts go to shared memory. */
GPU_DEVICE void block_begin(struct resolve_block *b, const struct sample_memory *m, int row, const struct sample_facts *facts)
{
	if (threadIdx.x == 0) b->shared->facts = *facts;
	b->plan = &m->plan[row];
	b->list = m->list + row * SAMPLE_BINS;
	b->count = m->count + row * SAMPLE_BINS;
	b->mass = m->mass + row * SAMPLE_BINS;
	uint32_t count[CELLS];
	uint64_t mass[CELLS];
	load_cells(b, count, mass);
	b->before = 0;
	b->mass_before = 0;
	GPU_UNROLL for (int j = 0; j < CELLS; j++) b->before += count[j], b->mass_before += mass[j];
	block_prefix(b->shared, &b->before, &b->mass_before, &b->candidates, &b->total);
}

/* Index of the lowest 1 of a word that has one: the exponent of that power of two. */
GPU_DEVICE uint32_t lowest_bit(unsigned long long word)
{
	return (gpu_f32_to_bits((float)(word & (~word + 1))) >> 23) - 127;
}

/* Smallest key in [low, high] whose cell is at most `cell`; high's is. A wave looks at GPU_WARP keys at a time. */
GPU_DEVICE uint32_t first_key(const struct sample_facts *f, uint32_t low, uint32_t high, int cell)
{
	const uint32_t lane = threadIdx.x % GPU_WARP;
	while (low < high) {
		const uint32_t step = (high - low) / GPU_WARP + 1, back = (GPU_WARP - 1 - lane) * step; /* lane 0 has the smallest, the last one `high` */
		const bool reachable = high - low >= back, in = reachable && (int)cell_of(key_value(high - back), f) <= cell;
		const unsigned long long votes = gpu_ballot(in);
		const uint32_t found = high - (GPU_WARP - 1 - lowest_bit(votes)) * step;
		if (found - low >= step) low = found - step + 1; /* the key `step` before is out of the cell, or below low */
		high = found;
	}
	return high;
}

/* Keys of the tokens in a cell of the row's histogram: two waves search, as cells never rise with the key. */
GPU_DEVICE void cell_keys(struct resolve_block *b, uint32_t cell)
{
	const struct sample_facts *f = &b->shared->facts;
	const uint32_t wave = threadIdx.x / GPU_WARP, top = key_of(f->top);
	if (wave == 0) {
		const uint32_t low = first_key(f, f->floor_key, top, (int)cell);
		if (threadIdx.x == 0) b->shared->low_key = low;
	} else if (wave == 1) { /* up to the key before the cell that is nearer to the best */
		const uint32_t high = cell ? first_key(f, f->floor_key, top, (int)cell - 1) - 1 : top;
		if (threadIdx.x == GPU_WARP) b->shared->high_key = high;
	}
	gpu_sync();
}

/* Divides the keys [low, high] into at most SAMPLE_BINS ranges by their leading bits and leaves in shared->found the one that answers q. */
GPU_DEVICE uint32_t divide(struct resolve_block *b, uint32_t low, uint32_t high, struct question q)
{
	uint32_t shift = 0;
	while ((high - low) >> shift >= SAMPLE_BINS) shift++;
	const struct shared_histogram h = histogram_at(b->memory);
	gpu_sync();
	histogram_clear(h);
	for (int i = (int)threadIdx.x; i < b->vocab; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, b->x, i, b->vocab);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) {
			const uint32_t key = key_of(v[j]);
			if (key < low || key > high) continue;
			histogram_add(h, (high - key) >> shift, weight_of(v[j], b->shared->facts.top, b->shared->facts.inverse));
		}
	}
	gpu_sync();
	uint32_t count[CELLS];
	uint64_t mass[CELLS];
	GPU_UNROLL for (int j = 0; j < CELLS; j++) {
		const int at = (int)threadIdx.x * CELLS + j;
		count[j] = h.count[at];
		mass[j] = (uint64_t)h.high[at] << 32 | h.low[at];
	}
	find_cell_anew(b->shared, count, mass, q);
	return shift;
}

/* Larger for larger logits, then for smaller ids. */
GPU_DEVICE uint64_t entry_of(uint32_t key, int id)
{
	return (uint64_t)key << 32 | ~(uint32_t)id;
}

/* Entries, largest first; n is a power of two. */
GPU_DEVICE void sort_list(uint64_t *list, uint32_t n)
{
	for (uint32_t size = 2; size <= n; size *= 2)
		for (uint32_t gap = size / 2; gap > 0; gap /= 2) {
			for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x) {
				const uint32_t a = i / gap * (2 * gap) + i % gap, c = a + gap;
				const uint64_t x = list[a], y = list[c];
				if ((a & size) ? x > y : x < y) list[a] = y, list[c] = x;
			}
			gpu_sync();
		}
}

/* Are the tokens of this cell in the row's list? */
GPU_DEVICE bool is_listed(const struct resolve_block *b, uint32_t cell)
{
	bool planned = false;
	for (int r = 0; r < PLAN_RANGES; r++) planned = planned || (cell >= b->plan->first[r] && cell <= b->plan->last[r]);
	return planned && b->plan->listed <= SAMPLE_BINS;
}

/* Copies the tokens with keys in [low, high], at most SAMPLE_BINS of them, into shared memory, in any order; from the row's list or the row. */
GPU_DEVICE uint32_t collect(struct resolve_block *b, uint32_t low, uint32_t high, bool listed)
{
	struct resolve_shared *s = b->shared;
	uint64_t *list = (uint64_t *)b->memory;
	gpu_sync();
	if (threadIdx.x == 0) s->listed = s->ties = 0;
	gpu_sync();
	for (uint32_t i = threadIdx.x; listed && i < b->plan->listed; i += blockDim.x) {
		const uint64_t entry = b->list[i];
		const uint32_t key = (uint32_t)(entry >> 32);
		if (key >= low && key <= high) list[gpu_atomic_add(&s->listed, 1u)] = entry;
	}
	for (int i = (int)threadIdx.x; !listed && i < b->vocab; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, b->x, i, b->vocab);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) {
			const uint32_t key = key_of(v[j]);
			if (key >= low && key <= high) list[gpu_atomic_add(&s->listed, 1u)] = entry_of(key, i + j * (int)blockDim.x);
		}
	}
	gpu_sync();
	return s->listed;
}

/* Of the tokens with keys in [low, high], at most SAMPLE_BINS of them, the one that answers q, counted from them alone. */
GPU_DEVICE struct answer find_token(struct resolve_block *b, uint32_t low, uint32_t high, bool listed, struct question q)
{
	struct resolve_shared *s = b->shared;
	uint64_t *list = (uint64_t *)b->memory;
	const uint32_t n = collect(b, low, high, listed);
	uint32_t room = 1;
	while (room < n) room *= 2;
	for (uint32_t i = n + threadIdx.x; i < room; i += blockDim.x) list[i] = 0;
	gpu_sync();
	sort_list(list, room);
	uint32_t count[CELLS];
	uint64_t mass[CELLS];
	GPU_UNROLL for (int j = 0; j < CELLS; j++) {
		const uint32_t at = threadIdx.x * CELLS + (uint32_t)j;
		count[j] = at < n;
		mass[j] = at < n ? weight_of(key_value((uint32_t)(list[at] >> 32)), b->shared->facts.top, b->shared->facts.inverse) : 0;
	}
	find_cell_anew(s, count, mass, q);
	const struct found f = s->found;
	const uint32_t key = (uint32_t)(list[f.index] >> 32);
	uint32_t ties = 0;
	for (uint32_t at = f.index + 1 + threadIdx.x; at < n; at += blockDim.x) ties += (uint32_t)(list[at] >> 32) == key;
	if (ties) gpu_atomic_add(&s->ties, ties);
	gpu_sync();
	struct answer a;
	a.key = key;
	a.mass = f.mass_before + (1 + (uint64_t)s->ties) * weight_of(key_value(key), b->shared->facts.top, b->shared->facts.inverse);
	a.token = (int32_t) ~(uint32_t)list[f.index];
	return a;
}

/* The nth (from 0) smallest id among the tokens with this key. */
GPU_DEVICE int32_t nth_tie(struct resolve_block *b, uint32_t key, uint32_t nth)
{
	uint32_t seen = 0, total = 0;
	uint64_t unused_total;
	for (int base = 0; base < b->vocab && seen <= nth; base += (int)blockDim.x, seen += total) {
		const int i = base + (int)threadIdx.x;
		const uint32_t mine = i < b->vocab && key_of(b->x[i]) == key;
		uint32_t before = mine;
		uint64_t unused = 0;
		block_prefix(b->shared, &before, &unused, &total, &unused_total);
		if (mine && seen + before == nth) b->shared->token = i;
	}
	gpu_sync();
	return b->shared->token;
}

GPU_DEVICE struct answer ask(struct resolve_block *b, struct question q, bool want_token)
{
	struct found f = find_in_histogram(b, q);
	const bool listed = is_listed(b, f.index);
	cell_keys(b, f.index);
	uint32_t low = b->shared->low_key, high = b->shared->high_key;
	uint64_t mass_before = 0;
	for (;;) {
		mass_before += f.mass_before;
		if (q.count) q.count -= (uint32_t)f.before;
		else q.mass -= f.mass_before;
		if (f.count <= SAMPLE_BINS || low == high) break;
		const uint32_t shift = divide(b, low, high, q);
		f = b->shared->found;
		high -= f.index << shift;
		const uint32_t width = (1u << shift) - 1;
		if (high - low > width) low = high - width;
	}
	struct answer a;
	if (f.count <= SAMPLE_BINS) a = find_token(b, low, high, listed, q);
	else {
		const uint64_t weight = weight_of(key_value(low), b->shared->facts.top, b->shared->facts.inverse);
		a.key = low;
		a.mass = f.count * weight;
		a.token = want_token ? nth_tie(b, low, (uint32_t)((q.mass - 1) / weight)) : -1;
	}
	a.mass += mass_before;
	return a;
}

GPU_DEVICE bool likely_enough(uint32_t key, const struct sample_facts *f, const struct sample_row *p)
{
	return exp(((double)key_value(key) - (double)f->top) / p->temperature) >= p->min_p;
}

/* Smallest key of a token that is at least min_p times as likely as the best: near where the logarithm says, or found by halving. */
GPU_DEVICE uint32_t min_p_key(const struct sample_facts *f, const struct sample_row *p)
{
	uint32_t low = f->floor_key, high = key_of(f->top);
	const uint32_t guess = key_of((float)((double)f->top + p->temperature * log(p->min_p)));
	if (guess > low + 1 && guess < high) {
		if (!likely_enough(guess - 1, f, p)) low = guess;
		if (likely_enough(guess + 1, f, p)) high = guess + 1;
	}
	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;
		if (likely_enough(middle, f, p)) high = middle;
		else low = middle + 1;
	}
	return low;
}

/* Mass of all tokens with this key or a larger one. */
GPU_DEVICE uint64_t mass_from(struct resolve_block *b, uint32_t key)
{
	const struct question q = {0, 0, cell_of(key_value(key), &b->shared->facts)};
	const struct found f = find_in_histogram(b, q);
	const bool listed = is_listed(b, q.cell);
	cell_keys(b, q.cell);
	const uint32_t high = b->shared->high_key;
	uint64_t mass = 0, total;
	uint32_t none = 0, none_total;
	for (uint32_t i = threadIdx.x; listed && i < b->plan->listed; i += blockDim.x) {
		const uint32_t at = (uint32_t)(b->list[i] >> 32);
		if (at >= key && at <= high) mass += weight_of(key_value(at), b->shared->facts.top, b->shared->facts.inverse);
	}
	for (int i = (int)threadIdx.x; !listed && i < b->vocab; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, b->x, i, b->vocab);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) {
			const uint32_t at = key_of(v[j]);
			if (at >= key && at <= high) mass += weight_of(v[j], b->shared->facts.top, b->shared->facts.inverse);
		}
	}
	block_prefix(b->shared, &none, &mass, &none_total, &total);
	return f.mass_before + total;
}

enum draw_stage { STAGE_TOP_K, STAGE_TOP_P, STAGE_DRAW };

/* A mass within [1, kept]. */
GPU_DEVICE uint64_t mass_share(double share, uint64_t kept)
{
	const uint64_t mass = share < 1 ? 1 : (uint64_t)share;
	return mass < kept ? mass : kept;
}

/* Top-k, top-p, min-p, then the draw among what is left. One place that asks: the searches are long, and there is one copy of them. */
GPU_DEVICE int32_t draw_token(struct resolve_block *b, const struct sample_row *p)
{
	uint32_t cut = 0; /* smallest key that is left */
	uint64_t kept = b->total;
	struct answer a = {0, 0, -1};
	for (int stage = STAGE_TOP_K; stage <= STAGE_DRAW; stage++) {
		struct question q = {0, 0, 0};
		if (stage == STAGE_TOP_K && p->top_k > 0 && (uint32_t)p->top_k < b->candidates) q.count = (uint32_t)p->top_k;
		if (stage == STAGE_TOP_P && p->top_p < 1) q.mass = mass_share(ceil(p->top_p * (double)kept), kept);
		if (stage == STAGE_DRAW) {
			const uint32_t key = p->min_p > 0 ? min_p_key(&b->shared->facts, p) : 0;
			if (key > cut) kept = mass_from(b, key);
			q.mass = mass_share(floor(p->unit * (double)kept) + 1, kept);
		}
		if (!q.count && !q.mass) continue;
		a = ask(b, q, stage == STAGE_DRAW);
		cut = a.key;
		kept = a.mass;
	}
	return a.token;
}

/* What is known of the kept mass before the cells that limit it have been looked into. */
struct kept_range {
	uint64_t low, high;
};

/* The cells of the questions of draw_token; range r of `plan` gets those of one of them. */
GPU_DEVICE void plan_range(struct resolve_block *b, struct sample_plan *plan, int r, struct question low, struct question high, struct kept_range *kept)
{
	struct found f = find_in_histogram(b, low);
	plan->first[r] = f.index;
	if (kept && f.mass_before < kept->low) kept->low = f.mass_before;
	if (high.mass != low.mass) f = find_in_histogram(b, high);
	plan->last[r] = f.index;
	if (kept && f.mass_before + f.mass < kept->high) kept->high = f.mass_before + f.mass;
}

GPU_DEVICE struct sample_plan make_plan(struct resolve_block *b, const struct sample_row *p)
{
	struct sample_plan plan;
	struct kept_range kept = {b->total, b->total};
	for (int r = 0; r < PLAN_RANGES; r++) plan.first[r] = 1, plan.last[r] = 0;
	if (p->top_k > 0 && (uint32_t)p->top_k < b->candidates) {
		const struct question q = {(uint32_t)p->top_k, 0, 0};
		plan_range(b, &plan, 0, q, q, &kept);
	}
	if (p->top_p < 1) {
		const struct question low = {0, mass_share(ceil(p->top_p * (double)kept.low), b->total), 0};
		const struct question high = {0, mass_share(ceil(p->top_p * (double)kept.high), b->total), 0};
		plan_range(b, &plan, 1, low, high, &kept);
	}
	if (p->min_p > 0) {
		const struct question q = {0, 0, cell_of(key_value(min_p_key(&b->shared->facts, p)), &b->shared->facts)};
		plan_range(b, &plan, 2, q, q, &kept);
	}
	const struct question low = {0, mass_share(floor(p->unit * (double)kept.low) + 1, b->total), 0};
	const struct question high = {0, mass_share(floor(p->unit * (double)kept.high) + 1, b->total), 0};
	plan_range(b, &plan, 3, low, high, NULL);
	return plan;
}

/* Block (s, r): the s-th range of row r. Each block makes the row's plan for itself. */
GPU_KERNEL(RESOLVE_THREADS)
sample_gather_kernel(const float *logits, int64_t stride, int vocab, const struct sample_row *rows, struct sample_memory m)
{
	GPU_SHARED(struct resolve_shared, shared, 1);
	gpu_wait_previous();
	gpu_start_next();
	const int row = (int)blockIdx.y, split = (int)blockIdx.x, splits = (int)gridDim.x;
	const struct sample_row *p = &rows[row];
	if (p->mode != SAMPLE_DRAW) return;
	const struct sample_facts facts = read_facts(m.partial + row * SAMPLE_MAX_SPLITS, splits, p);
	if (facts.best < 0) return;
	struct resolve_block b = {};
	b.shared = shared;
	block_begin(&b, &m, row, &facts);
	const struct sample_plan plan = make_plan(&b, p);
	for (int r = 0; r < PLAN_RANGES && split == 0 && threadIdx.x == 0; r++) {
		m.plan[row].first[r] = plan.first[r];
		m.plan[row].last[r] = plan.last[r];
	}
	const int chunk = (vocab + splits - 1) / splits, begin = chunk * split, end = begin + chunk < vocab ? begin + chunk : vocab;
	const float *x = logits + row * stride;
	for (int i = begin + (int)threadIdx.x; i < end; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, x, i, end);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) {
			const uint32_t key = key_of(v[j]);
			if (key < facts.floor_key) continue;
			const uint32_t cell = cell_of(v[j], &facts);
			bool planned = false;
			GPU_UNROLL for (int r = 0; r < PLAN_RANGES; r++) planned = planned || (cell >= plan.first[r] && cell <= plan.last[r]);
			if (!planned) continue;
			const uint32_t at = gpu_atomic_add(&m.plan[row].listed, 1u);
			if (at < SAMPLE_BINS) m.list[row * SAMPLE_BINS + at] = entry_of(key, i + j * (int)blockDim.x);
		}
	}
}

/* Block r: row r. 48 KiB of shared memory: histogram or list. */
GPU_KERNEL(RESOLVE_THREADS)
sample_resolve_kernel(const float *logits, int64_t stride, int vocab, int splits, const struct sample_row *rows, struct sample_memory m,
                      struct sample_choice *out)
{
	GPU_DYNAMIC_SHARED(memory);
	GPU_SHARED(struct resolve_shared, shared, 1);
	gpu_wait_previous();
	gpu_start_next();
	const int row = (int)blockIdx.x;
	const struct sample_row *p = &rows[row];
	if (p->mode == SAMPLE_SKIP) return;
	const struct sample_facts facts = read_facts(m.partial + row * SAMPLE_MAX_SPLITS, splits, p);
	const float *x = logits + row * stride;
	struct sample_choice choice = {facts.best, 0};
	if (choice.token >= 0 && p->mode == SAMPLE_DRAW) {
		struct resolve_block b = {};
		b.x = x;
		b.vocab = vocab;
		b.shared = shared;
		b.memory = memory;
		block_begin(&b, &m, row, &facts);
		choice.token = draw_token(&b, p);
	}
	if (threadIdx.x != 0) return;
	if (choice.token >= 0 && p->want_logprob) {
		const double log_sum = (double)facts.top + log((double)m.log_sum[row] * 0x1p-44);
		choice.logprob = (float)((double)x[choice.token] - log_sum);
	}
	out[row] = choice;
}

enum status gpu_sample_resolve(const struct gpu_context *ctx, const struct sample_args *args, int splits, struct sample_memory m, struct error *err)
{
	const struct tensor *x = &args->logits;
	const float *logits = (const float *)x->data;
	TRY(gpu_check(GPU_LAUNCH(sample_gather_kernel, dim3((unsigned)splits, (unsigned)x->rows), dim3(RESOLVE_THREADS), 0, ctx->stream, logits,
	                         x->row_stride, x->cols, args->row, m),
	              "sample: gather", err));
	TRY(gpu_check(gpu_allow_shared(sample_resolve_kernel, SAMPLE_SHARED_BYTES), "sample: shared memory", err));
	return gpu_check(GPU_LAUNCH(sample_resolve_kernel, dim3((unsigned)x->rows), dim3(RESOLVE_THREADS), SAMPLE_SHARED_BYTES, ctx->stream,
	                            logits, x->row_stride, x->cols, splits, args->row, m, args->out),
	                 "sample: resolve", err);
}
