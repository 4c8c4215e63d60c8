#include "sim/workload.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/plan.h"
#include "sim/world.h"

#define VOCAB 60
#define STOP 59
#define CONTEXT 320 /* tokens of a sequence */
#define PREFIXES 4

/* What a client knows of its request. */
struct client {
	uint64_t id, seed, deadline_ns;
	int32_t *want; /* tokens that it gets alone */
	int want_count;
	bool want_stop;
	int got, ends;
	bool cancelled;
	int oldest_steps; /* since nothing older lives */
	int bound;        /* for these */
	struct sequence *sequence; /* while live */
};

struct sim {
	uint64_t seed, draws, now_ns;
	struct world world;
	struct scheduler *scheduler;
	struct scheduler_options options;
	struct step_plan plan;
	struct client *clients; /* all, by id - 1 */
	int client_count, client_capacity, live;
	int oldest; /* index of the oldest live client */
	uint64_t preemptions; /* up to the last plan */
	uint64_t cut;         /* request whose chunk in this step is shorter than its share, to leave a snapshot; 0: none */
	int32_t prefix[PREFIXES][CONTEXT];
	/* per thousand, each step */
	int arrive, burst, cancel, fail, deadline;
	int longest_prompt, longest_answer;
	struct sim_counts *counts;
};

static int draw(struct sim *m, int below)
{
	return (int)(rng_u64(m->seed, 1, m->draws++) % (uint64_t)below);
}

static bool chance(struct sim *m, int per_thousand)
{
	return draw(m, 1000) < per_thousand;
}

static int between(struct sim *m, int low, int high)
{
	return low + draw(m, high - low + 1);
}

#define BROKEN(...) FAIL(err, BAD_INPUT, __VA_ARGS__)
#define ID(client) ((unsigned long long)(client)->id)

/* --- setting up ------------------------------------------------------------------------------------------------------------- */

static enum status set_up(struct sim *m, struct error *err)
{
	int size = 4 << draw(m, 3), max_seqs = between(m, 1, 12), pressure = draw(m, 3);
	m->longest_prompt = chance(m, 300) ? 200 : 60;
	m->longest_answer = chance(m, 400) ? 100 : 20;
	int one = (m->longest_prompt + m->longest_answer + size - 1) / size;
	int blocks = pressure == 0 ? between(m, one / 2 + 1, one + 2) : pressure == 1 ? between(m, one, 3 * one) : between(m, 3 * one, 12 * one);
	struct world_options w = {.ranks = between(m, 1, WORLD_RANKS), .blocks = blocks, .block_tokens = size, .max_seqs = max_seqs,
	                          .max_blocks = (CONTEXT + size - 1) / size, .prefix_cache = chance(m, 750), .seed = m->seed};
	if (chance(m, 500)) w.states = 2 * max_seqs + draw(m, chance(m, 500) ? 3 : 3 * max_seqs + 1);
	m->counts->stateful_workloads += w.states > 0;
	int max_rows = max_seqs + draw(m, chance(m, 500) ? 4 : 80);
	if (chance(m, 300)) {
		w.window_tokens = between(m, 1, 60);
		w.windows = plan_window_blocks(blocks, size, max_seqs, max_rows, w.window_tokens, chance(m, 500) ? max_seqs : 0);
	}
	m->counts->windowed_workloads += w.windows > 0;
	TRY(world_create(&m->world, &w, err));
	m->options = (struct scheduler_options){.max_seqs = max_seqs, .max_rows = max_rows, .kv_blocks = blocks,
	                                        .block_tokens = size, .max_queue = chance(m, 300) ? between(m, 1, 10) : 0, .states = w.states,
	                                        .state_every = chance(m, 500) ? between(m, 1, 100) : 0, .kv = &m->world.kv};
	TRY(scheduler_create(&m->scheduler, &m->options, err));
	struct step_limits limits = {.max_rows = m->options.max_rows, .max_seqs = max_seqs, .max_tails = w.states ? draw(m, max_seqs + 1) : 0, .max_outputs = max_seqs};
	TRY(step_plan_init(&m->plan, &limits, err));
	m->arrive = between(m, 10, 400);
	m->burst = chance(m, 300) ? 200 : 0;
	m->cancel = chance(m, 500) ? between(m, 1, 80) : 0;
	m->fail = chance(m, 250) ? between(m, 1, 20) : 0;
	m->deadline = chance(m, 400) ? between(m, 50, 800) : 0;
	for (int p = 0; p < PREFIXES; p++)
		for (int i = 0; i < CONTEXT; i++) m->prefix[p][i] = draw(m, 10);
	return STATUS_OK;
}

/* What the request says alone: no blocks, no batch. */
static enum status answer_alone(struct client *c, const int32_t *prompt, int prompt_count, int max_tokens, int min_tokens, struct error *err)
{
	uint64_t value = 0;
	for (int i = 0; i < prompt_count; i++) value = world_next_value(value, prompt[i]);
	c->want = mem_zalloc((size_t)max_tokens, sizeof *c->want, "answer", err);
	if (!c->want) return STATUS_NO_MEMORY;
	while (c->want_count < max_tokens) {
		int32_t token = world_draw(value, c->seed, VOCAB);
		c->want[c->want_count++] = token;
		value = world_next_value(value, token);
		c->want_stop = token == STOP && c->want_count > min_tokens;
		if (c->want_stop) break;
	}
	return STATUS_OK;
}

/* Steps that a request needs at most once it is the oldest: prefill at the guaranteed share or, where KV is short, at a block a step; then
 * a token a step. */
static int bound_of(const struct sim *m, int prompt_count, int max_tokens)
{
	int size = m->options.block_tokens, spare = m->options.max_rows - m->options.max_seqs + 1, most = prompt_count + max_tokens;
	int share = spare - spare / 4;
	share -= share / 4;
	int cuts = m->options.states ? most / size + 1 : 0; /* chunks that end where a snapshot is wanted */
	return most / share + 2 * (most / size + 2) + max_tokens + 4 + cuts;
}

static enum status submit(struct sim *m, struct error *err)
{
	int32_t prompt[CONTEXT];
	int count = between(m, 1, chance(m, 100) ? m->longest_prompt : m->longest_prompt / 2);
	int common = chance(m, 600) ? between(m, 0, count) : 0, from = draw(m, PREFIXES);
	int max_tokens = between(m, 1, m->longest_answer), min_tokens = chance(m, 200) ? draw(m, max_tokens + 1) : 0;
	bool score = chance(m, 100);
	if (score && chance(m, 500)) max_tokens = min_tokens = 0;
	for (int i = 0; i < count; i++) prompt[i] = i < common ? m->prefix[from][i] : draw(m, 10);
	if (count + max_tokens > CONTEXT || count + max_tokens > m->options.kv_blocks * m->options.block_tokens) {
		m->counts->refused++;
		return STATUS_OK;
	}
	if (m->client_count == m->client_capacity) {
		m->client_capacity = m->client_capacity ? 2 * m->client_capacity : 64;
		TRY(mem_grow((void **)&m->clients, (size_t)m->client_capacity, sizeof *m->clients, "clients", err));
	}
	struct client *c = &m->clients[m->client_count];
	*c = (struct client){.id = (uint64_t)m->client_count + 1, .seed = (uint64_t)draw(m, 3), .bound = bound_of(m, count, max_tokens)};
	if (chance(m, m->deadline)) c->deadline_ns = m->now_ns + (uint64_t)between(m, 1, 200);
	struct sequence_options o = {.prompt = prompt, .prompt_count = count, .max_tokens = max_tokens, .min_tokens = min_tokens,
	                             .stop_ids = (int32_t[]){STOP}, .stop_count = 1, .score_prompt = score,
	                             .block_tokens = m->world.options.prefix_cache ? m->options.block_tokens : 0,
	                             .salt = chance(m, 100) ? 5 : 3, .submitted_ns = m->now_ns, .deadline_ns = c->deadline_ns};
	TRY(sequence_create(&c->sequence, c->id, &o, err));
	struct error busy = {0};
	if (scheduler_submit(m->scheduler, c->sequence, &busy) != STATUS_OK) {
		sequence_destroy(&c->sequence);
		m->counts->busy++;
		return busy.code == STATUS_BUSY ? STATUS_OK : BROKEN("submit: %s", busy.text);
	}
	m->client_count++;
	m->live++;
	m->counts->requests++;
	return answer_alone(c, prompt, count, max_tokens, min_tokens, err);
}

/* --- what happens to requests ----------------------------------------------------------------------------------------------- */

/* The one terminal event. */
static enum status end(struct sim *m, struct sequence *q, struct error *err)
{
	struct client *c = &m->clients[q->id - 1];
	if (c->ends++) return BROKEN("request %llu ends twice", ID(c));
	int generated = q->count - q->prompt_count;
	if (generated != c->got) return BROKEN("request %llu has %d tokens and gave %d", ID(c), generated, c->got);
	if (q->finish == FINISH_STOP || q->finish == FINISH_LENGTH) {
		if (c->got != c->want_count || c->want_stop != (q->finish == FINISH_STOP))
			return BROKEN("request %llu gives %d tokens and ends by %d; alone it gives %d", ID(c), c->got, q->finish, c->want_count);
		if (q->scores && q->scored != q->prompt_count) return BROKEN("request %llu: %d of %d prompt tokens scored", ID(c), q->scored, q->prompt_count);
		m->counts->finished++;
		m->counts->stopped += q->finish == FINISH_STOP;
		m->counts->scored += q->scores != NULL;
	} else if (q->finish == FINISH_CANCELLED) {
		if (!c->cancelled) return BROKEN("request %llu was never cancelled", ID(c));
	} else if (q->finish == FINISH_TIMEOUT) {
		if (!c->deadline_ns || m->now_ns < c->deadline_ns) return BROKEN("request %llu ends before its deadline", ID(c));
		m->counts->timeouts++;
	}
	c->sequence = NULL;
	m->live--;
	sequence_destroy(&q);
	return STATUS_OK;
}

static enum status cancel_some(struct sim *m, bool in_flight, struct error *err)
{
	if (!m->client_count || !chance(m, m->cancel)) return STATUS_OK;
	int back = m->client_count < 40 ? m->client_count : 40;
	struct client *c = &m->clients[m->client_count - 1 - draw(m, back)];
	if (scheduler_cancel(m->scheduler, c->id) != (c->sequence != NULL)) return BROKEN("cancel of request %llu answers wrongly", ID(c));
	if (!c->sequence) {
		m->counts->cancelled_finished++;
		return STATUS_OK;
	}
	c->cancelled = true;
	bool running = c->sequence->state == SEQUENCE_RUNNING;
	m->counts->cancelled_queued += !running;
	m->counts->cancelled_running += running && !in_flight;
	m->counts->cancelled_in_flight += running && in_flight;
	return STATUS_OK;
}

static enum status sweep(struct sim *m, struct error *err)
{
	struct sequence *q;
	scheduler_sweep(m->scheduler, m->now_ns);
	while ((q = scheduler_take_ended(m->scheduler))) TRY(end(m, q, err));
	while (m->oldest < m->client_count && !m->clients[m->oldest].sequence) m->oldest++;
	for (int i = m->oldest; i < m->client_count; i++) {
		const struct client *c = &m->clients[i];
		bool late = c->deadline_ns && m->now_ns >= c->deadline_ns;
		if (c->sequence && (c->cancelled || late)) return BROKEN("request %llu outlives its cancel or deadline", ID(c));
	}
	return STATUS_OK;
}

/* --- a plan, judged --------------------------------------------------------------------------------------------------------- */

struct plan_view {
	int rows[CONTEXT]; /* by slot */
	int decodes, prefills, running;
	int free_after; /* blocks */
	const struct sequence *oldest, *youngest, *oldest_prefill;
};

static enum status view_plan(const struct sim *m, struct plan_view *v, struct error *err)
{
	const struct step_plan *p = &m->plan;
	*v = (struct plan_view){.free_after = kv_group_free_blocks(&m->world.kv)};
	for (int i = 0; i < p->seqs; i++) {
		const struct sequence *q = p->sequence[i];
		int first = p->row_start[i], rows = p->row_start[i + 1] - first, size = m->options.block_tokens;
		const int before = v->rows[q->slot], begin = q->computed + before;
		const bool tail = i >= p->seqs - p->tails;
		if (q->state != SEQUENCE_RUNNING || q->slot != p->slot[i] || (before > 0) != tail) return BROKEN("plan: request %llu is in it wrongly", ID(q));
		if (tail && (rows < 2 || begin % size || !q->hashes)) return BROKEN("plan: request %llu has a second part of %d rows at %d", ID(q), rows, begin);
		v->rows[q->slot] += rows;
		for (int r = 0; r < rows; r++)
			if (p->position[first + r] != begin + r || p->token[first + r] != q->tokens[begin + r])
				return BROKEN("plan: row %d of request %llu is not its next", r, ID(q));
		v->free_after -= (begin + rows + size - 1) / size - (tail ? (begin + size - 1) / size : kv_group_seq_blocks(&m->world.kv, q->slot));
		m->counts->tails += tail;
	}
	for (int i = m->oldest; i < m->client_count; i++) {
		const struct sequence *q = m->clients[i].sequence;
		if (!q || q->state != SEQUENCE_RUNNING) continue;
		bool prefill = q->count - q->computed > 1;
		v->running++;
		v->decodes += !prefill;
		v->prefills += prefill;
		if (!v->oldest) v->oldest = q;
		if (prefill && !v->oldest_prefill) v->oldest_prefill = q;
		v->youngest = q;
	}
	return STATUS_OK;
}

static int min_int(int a, int b)
{
	return a < b ? a : b;
}

static enum status check_plan(struct sim *m, bool preempted, struct error *err)
{
	struct plan_view v;
	const struct step_plan *p = &m->plan;
	m->cut = 0;
	TRY(view_plan(m, &v, err));
	if (p->rows > m->options.max_rows || p->seqs - p->tails > m->options.max_seqs || p->tails > p->limits.max_tails) return BROKEN("plan: %d rows of %d sequences", p->rows, p->seqs);
	if (v.free_after < 0) return BROKEN("plan: %d blocks more than there are", -v.free_after);
	if (m->live && !p->rows) return BROKEN("plan: empty with %d requests live", m->live);
	if (!m->live) return STATUS_OK;
	if (!v.oldest || !v.rows[v.oldest->slot]) return BROKEN("plan: the oldest request gets nothing");
	int budget = m->options.max_rows, others = 0;
	for (int i = m->oldest; i < m->client_count; i++) {
		const struct sequence *q = m->clients[i].sequence;
		if (!q || q->state != SEQUENCE_RUNNING) continue;
		if (q->count - q->computed > 1) {
			others += q != v.oldest_prefill && v.rows[q->slot];
			continue;
		}
		budget -= v.rows[q->slot];
		if (v.rows[q->slot]) continue;
		if (q != v.youngest) return BROKEN("plan: request %llu decodes, is not the youngest, and gets no row", ID(q));
		m->counts->youngest_waits++;
	}
	if (!v.oldest_prefill || preempted) return STATUS_OK; /* rows of the preempted are in nobody's share */
	m->counts->prefills_beside += v.prefills > 1 && others;
	const struct sequence *q = v.oldest_prefill;
	int share = v.prefills > 1 ? budget - budget / 4 : budget, got = v.rows[q->slot], left = q->count - q->computed;
	if (m->world.options.prefix_cache && left > share) share -= share / 4; /* to end at a block's edge */
	bool short_of_share = got < min_int(share, left) && v.free_after > 0;
	if (short_of_share && m->options.states && q->hashes && (q->computed + got) % m->options.block_tokens == 0) m->cut = q->id;
	else if (short_of_share)
		return BROKEN("plan: the oldest prefill, request %llu, gets %d of %d rows", ID(q), got, min_int(share, left));
	if (!m->world.options.prefix_cache && v.prefills > 1 && budget / 4 > 0 && v.free_after > 0 && !others)
		return BROKEN("plan: only the oldest of %d prefills gets rows", v.prefills);
	return STATUS_OK;
}

static enum status check_all(const struct sim *m, struct error *err)
{
	TRY(kv_group_check(&m->world.kv, m->options.max_seqs, err));
	return scheduler_check(m->scheduler, err);
}

/* The oldest request may need only so long. */
static enum status check_waiting(struct sim *m, struct error *err)
{
	while (m->oldest < m->client_count && !m->clients[m->oldest].sequence) m->oldest++;
	if (m->oldest == m->client_count) return STATUS_OK;
	struct client *c = &m->clients[m->oldest];
	if (++c->oldest_steps > c->bound) return BROKEN("request %llu is the oldest for %d steps; its bound is %d", ID(c), c->oldest_steps, c->bound);
	return STATUS_OK;
}

/* --- steps ------------------------------------------------------------------------------------------------------------------ */

/* A rank failed: everything in flight ends, the group is rebuilt. */
static enum status fail_group(struct sim *m, struct error *err)
{
	struct sequence *q;
	m->counts->failures++;
	world_settle(&m->world, &m->plan, false);
	for (int r = 0; r < m->world.options.ranks; r++) TRY(kv_check(m->world.pools[r], err));
	TRY(scheduler_check(m->scheduler, err)); /* nothing was committed anywhere */
	for (int i = m->oldest; i < m->client_count; i++)
		if (m->clients[i].sequence) TRY(world_check_state(&m->world, m->clients[i].sequence, err));
	while ((q = scheduler_any(m->scheduler))) {
		scheduler_remove(m->scheduler, q, FINISH_FAILED);
		TRY(end(m, q, err));
	}
	kv_group_reset(&m->world.kv);
	return check_all(m, err);
}

static enum status sample(struct sim *m, int output, struct error *err)
{
	int seq = m->plan.output_seq[output];
	struct sequence *q = m->plan.sequence[seq];
	struct client *c = &m->clients[q->id - 1];
	if (scheduler_dropped(m->scheduler, q)) return STATUS_OK;
	int32_t token = world_draw(world_value(&m->world, &m->plan, seq), c->seed, VOCAB);
	if (c->got >= c->want_count || token != c->want[c->got])
		return BROKEN("request %llu draws %d as token %d; alone it draws %d", ID(c), token, c->got, c->got < c->want_count ? c->want[c->got] : -1);
	c->got++;
	m->counts->tokens++;
	q->finish = sequence_append(q, token);
	return STATUS_OK;
}

static enum status apply(struct sim *m, struct error *err)
{
	for (int i = 0; i < m->plan.outputs; i++) TRY(sample(m, i, err));
	for (int i = 0; i < m->plan.seqs; i++) {
		struct sequence *q = m->plan.sequence[i];
		int begin = m->plan.position[m->plan.row_start[i]];
		if (q->scores && q->scored < q->prompt_count) {
			if (begin > q->scored - 1) return BROKEN("request %llu: the row that scores token %d was not computed", (unsigned long long)q->id, q->scored);
			if (m->plan.kv_len[i] >= q->scored) q->scored = min_int(m->plan.kv_len[i] + 1, q->prompt_count);
		}
		if (m->plan.goes_on[i]) continue;
		if (!q->max_tokens && q->computed == q->count && !scheduler_dropped(m->scheduler, q)) q->finish = FINISH_LENGTH;
		if (q->finish == FINISH_NONE) continue;
		scheduler_remove(m->scheduler, q, q->finish);
		TRY(end(m, q, err));
	}
	return STATUS_OK;
}

/* A sequence that stands at a block's edge leaves its state there, and a chunk was cut short for nothing less. */
static enum status check_snapshots(struct sim *m, struct error *err)
{
	for (int i = 0; i < m->plan.seqs && m->options.states; i++) {
		const struct sequence *q = m->plan.sequence[i];
		bool kept = true;
		for (int r = 0; r < m->world.options.ranks; r++) kept &= kv_is_snapshot(m->world.pools[r], kv_state_read(m->world.pools[r], q->slot));
		if (!kept && q->hashes && q->computed % m->options.block_tokens == 0)
			return BROKEN("request %llu leaves no snapshot at %d tokens", (unsigned long long)q->id, q->computed);
		if (kept && !q->hashes) return BROKEN("request %llu leaves a snapshot without a text", (unsigned long long)q->id);
		m->counts->snapshots += kept;
		m->counts->cut_chunks += q->id == m->cut;
	}
	return STATUS_OK;
}

static enum status step(struct sim *m, struct error *err)
{
	m->counts->steps++;
	m->now_ns += (uint64_t)between(m, 0, 3);
	TRY(cancel_some(m, false, err));
	TRY(sweep(m, err));
	TRY(scheduler_plan(m->scheduler, &m->plan, m->now_ns, err));
	struct scheduler_stats stats;
	scheduler_get_stats(m->scheduler, &stats);
	TRY(check_plan(m, stats.preemptions > m->preemptions, err));
	TRY(check_all(m, err));
	m->preemptions = stats.preemptions;
	m->counts->full_queue_steps += stats.waiting > 0;
	if (!m->plan.rows) return STATUS_OK;
	bool fail = chance(m, m->fail);
	int rank = fail ? draw(m, m->world.options.ranks) : -1;
	struct error ran = {0};
	enum status st = world_run(&m->world, &m->plan, rank, draw(m, m->plan.seqs + 1), &ran);
	TRY(cancel_some(m, true, err));
	if (st == STATUS_ABORTED) return fail_group(m, err);
	if (st != STATUS_OK) return BROKEN("step: %s", ran.text);
	world_settle(&m->world, &m->plan, true);
	scheduler_committed(m->scheduler, &m->plan);
	TRY(check_snapshots(m, err));
	TRY(apply(m, err));
	TRY(check_all(m, err));
	return check_waiting(m, err);
}

static enum status run_all(struct sim *m, int steps, struct error *err)
{
	TRY(set_up(m, err));
	for (int i = 0; i < steps; i++) {
		for (int n = chance(m, m->arrive) ? (chance(m, m->burst) ? 12 : 1) : 0; n > 0; n--) TRY(submit(m, err));
		TRY(step(m, err));
	}
	int left = 0; /* everything ends, each request within its bound */
	for (int i = 0; i < m->client_count; i++) left += m->clients[i].sequence ? m->clients[i].bound : 0;
	for (; m->live; left--) {
		if (left < 0) return BROKEN("%d requests do not end", m->live);
		TRY(step(m, err));
	}
	for (int i = 0; i < m->client_count; i++)
		if (m->clients[i].ends != 1) return BROKEN("request %d ends %d times", i + 1, m->clients[i].ends);
	if (kv_group_free_blocks(&m->world.kv) != m->options.kv_blocks) return BROKEN("blocks are held by nobody's request");
	if (kv_free_windows(m->world.pools[0]) != m->world.options.windows) return BROKEN("window blocks are held by nobody's request");
	if (kv_free_states(m->world.pools[0]) != m->options.states) return BROKEN("state slots are held by nobody's request");
	return STATUS_OK;
}

enum status workload_run(unsigned long long seed, int steps, struct sim_counts *counts, struct error *err)
{
	struct sim m = {.seed = seed, .counts = counts, .now_ns = 1000};
	enum status st = run_all(&m, steps, err);
	if (m.scheduler) {
		struct scheduler_stats stats;
		scheduler_get_stats(m.scheduler, &stats);
		counts->preemptions += stats.preemptions;
		counts->cached_tokens += stats.cached_tokens;
		if (m.world.options.windows) counts->windowed_cached_tokens += stats.cached_tokens;
		counts->evictions += kv_evictions(m.world.pools[0]);
		counts->state_hits += stats.state_hits;
		counts->snapshot_evictions += kv_snapshot_evictions(m.world.pools[0]);
		unsigned long long useful = stats.prompt_tokens - stats.cached_tokens + counts->tokens;
		counts->recomputed_tokens += stats.computed_tokens > useful ? stats.computed_tokens - useful : 0;
	}
	for (int i = 0; i < m.client_count; i++) free(m.clients[i].want);
	free(m.clients);
	scheduler_destroy(&m.scheduler);
	step_plan_fini(&m.plan);
	world_destroy(&m.world);
	return st;
}
