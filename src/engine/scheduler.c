#include "engine/scheduler.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

#define MAP_BUCKETS 1024
/* A head that did not fit is looked at again when there is more room, and after so many plans: others may have cached its prefix. */
#define PATIENCE 16
/* A snapshot that stays is wanted so many blocks behind the last: nearer, computing again costs less than the slot and the shorter chunk. */
#define SNAPSHOT_GAP 2
/* So many of the queue are looked at for a beginning that they share with a running prefill. */
#define LOOK_AHEAD 8

struct list {
	struct sequence *head, *tail;
	int count;
};

struct scheduler {
	struct scheduler_options options;
	struct list queue, running; /* both oldest first; all of running is older than all of queue */
	struct list ended;
	int *free_slots; /* [max_seqs] stack */
	int *take;       /* [max_seqs] by slot: rows in the plan being made */
	int tails;       /* sequences with two parts in it, */
	int most_tails;  /* and how many there may be */
	int free_slot_count;
	int watermark;
	uint64_t plans;
	struct {
		uint64_t id, look_again;
		int room;
	} blocked; /* the head of the queue when it last did not fit */
	uint64_t next_deadline; /* no deadline of a live sequence is before */
	_Atomic bool look;      /* something was cancelled */
	struct scheduler_stats stats;
	uint64_t last_id;
	pthread_mutex_t map_lock;
	bool map_lock_made;
	struct sequence *map[MAP_BUCKETS];
};

static int min_int(int a, int b)
{
	return a < b ? a : b;
}

/* --- life, lists, map of ids ------------------------------------------------------------------------------------------------ */

enum status scheduler_create(struct scheduler **out, const struct scheduler_options *options, struct error *err)
{
	*out = NULL;
	if (options->max_rows < options->max_seqs || options->max_seqs < 1 || options->kv_blocks < 1 || options->block_tokens < 1)
		return FAIL(err, BAD_INPUT, "scheduler: %d rows for %d sequences, %d blocks of %d tokens; each sequence needs a row", options->max_rows,
		            options->max_seqs, options->kv_blocks, options->block_tokens);
	if (options->states && options->states < 2 * options->max_seqs)
		return FAIL(err, BAD_INPUT, "scheduler: %d state slots for %d sequences; each needs two during a step", options->states, options->max_seqs);
	struct scheduler *s = mem_zalloc(1, sizeof *s, "scheduler", err);
	if (!s) return STATUS_NO_MEMORY;
	s->options = *options;
	s->watermark = 1 + options->kv_blocks / 64;
	s->next_deadline = UINT64_MAX;
	s->free_slots = mem_zalloc((size_t)options->max_seqs, sizeof *s->free_slots, "scheduler", err);
	s->take = mem_zalloc((size_t)options->max_seqs, sizeof *s->take, "scheduler", err);
	if (!s->free_slots || !s->take) {
		scheduler_destroy(&s);
		return STATUS_NO_MEMORY;
	}
	for (int i = options->max_seqs; i > 0; i--) s->free_slots[s->free_slot_count++] = i - 1;
	pthread_mutex_init(&s->map_lock, NULL);
	s->map_lock_made = true;
	*out = s;
	return STATUS_OK;
}

static void destroy_list(struct list *list)
{
	for (struct sequence *q = list->head, *next; q; q = next) {
		next = q->next;
		sequence_destroy(&q);
	}
}

void scheduler_destroy(struct scheduler **scheduler)
{
	struct scheduler *s = *scheduler;
	if (!s) return;
	destroy_list(&s->queue);
	destroy_list(&s->running);
	destroy_list(&s->ended);
	if (s->map_lock_made) pthread_mutex_destroy(&s->map_lock);
	free(s->free_slots);
	free(s->take);
	free(s);
	*scheduler = NULL;
}

/* Puts q after `place`; NULL: first. */
static void list_insert(struct list *list, struct sequence *q, struct sequence *place)
{
	q->previous = place;
	q->next = place ? place->next : list->head;
	if (q->next) q->next->previous = q;
	else list->tail = q;
	if (place) place->next = q;
	else list->head = q;
	list->count++;
}

static void list_remove(struct list *list, struct sequence *q)
{
	if (q->previous) q->previous->next = q->next;
	else list->head = q->next;
	if (q->next) q->next->previous = q->previous;
	else list->tail = q->previous;
	q->next = q->previous = NULL;
	list->count--;
}

static void map_insert(struct scheduler *s, struct sequence *q)
{
	struct sequence **bucket = &s->map[q->id % MAP_BUCKETS];
	pthread_mutex_lock(&s->map_lock);
	q->map_next = *bucket;
	*bucket = q;
	pthread_mutex_unlock(&s->map_lock);
}

static void map_remove(struct scheduler *s, struct sequence *q)
{
	struct sequence **link = &s->map[q->id % MAP_BUCKETS];
	pthread_mutex_lock(&s->map_lock);
	while (*link != q) link = &(*link)->map_next;
	*link = q->map_next;
	pthread_mutex_unlock(&s->map_lock);
}

/* The lock must be held, or the caller be the engine thread: it alone changes the map. */
static struct sequence *map_find(const struct scheduler *s, uint64_t id)
{
	struct sequence *q = s->map[id % MAP_BUCKETS];
	while (q && q->id != id) q = q->map_next;
	return q;
}

struct sequence *scheduler_find(struct scheduler *s, uint64_t id)
{
	return map_find(s, id);
}

enum status scheduler_submit(struct scheduler *s, struct sequence *q, struct error *err)
{
	assert(q->id > s->last_id);
	int limit = s->options.max_queue;
	if (limit && s->queue.count >= limit + s->free_slot_count)
		return FAIL(err, BUSY, "queue: full with %d requests waiting; try again later", s->queue.count);
	s->last_id = q->id;
	if (q->deadline_ns && q->deadline_ns < s->next_deadline) s->next_deadline = q->deadline_ns;
	map_insert(s, q);
	list_insert(&s->queue, q, s->queue.tail);
	return STATUS_OK;
}

/* --- ends ------------------------------------------------------------------------------------------------------------------- */

bool scheduler_cancel(struct scheduler *s, uint64_t id)
{
	pthread_mutex_lock(&s->map_lock);
	struct sequence *q = map_find(s, id);
	if (q) atomic_store(&q->cancelled, true);
	pthread_mutex_unlock(&s->map_lock);
	if (q) atomic_store(&s->look, true);
	return q != NULL;
}

bool scheduler_dropped(struct scheduler *s, const struct sequence *q)
{
	if (!atomic_load(&q->cancelled)) return false;
	atomic_store(&s->look, true); /* whoever cancelled may not have come to this line */
	return true;
}

static void leave_slot(struct scheduler *s, struct sequence *q)
{
	kv_group_release(s->options.kv, q->slot);
	s->free_slots[s->free_slot_count++] = q->slot;
	list_remove(&s->running, q);
	q->slot = -1;
	q->computed = 0;
	q->known_blocks = q->keep_at = q->kept_at = 0;
}

void scheduler_remove(struct scheduler *s, struct sequence *q, enum sequence_finish finish)
{
	map_remove(s, q);
	if (q->state == SEQUENCE_RUNNING) leave_slot(s, q);
	else list_remove(&s->queue, q);
	q->state = SEQUENCE_DONE;
	q->finish = finish;
}

static void sweep_list(struct scheduler *s, struct list *list, uint64_t now_ns)
{
	for (struct sequence *q = list->head, *next; q; q = next) {
		next = q->next;
		bool late = q->deadline_ns && now_ns >= q->deadline_ns;
		if (late || atomic_load(&q->cancelled)) {
			scheduler_remove(s, q, late ? FINISH_TIMEOUT : FINISH_CANCELLED);
			list_insert(&s->ended, q, s->ended.tail);
		} else if (q->deadline_ns && q->deadline_ns < s->next_deadline) {
			s->next_deadline = q->deadline_ns;
		}
	}
}

void scheduler_sweep(struct scheduler *s, uint64_t now_ns)
{
	bool look = atomic_exchange(&s->look, false);
	if (!look && now_ns < s->next_deadline) return;
	s->next_deadline = UINT64_MAX;
	sweep_list(s, &s->running, now_ns);
	sweep_list(s, &s->queue, now_ns);
}

struct sequence *scheduler_take_ended(struct scheduler *s)
{
	struct sequence *q = s->ended.head;
	if (q) list_remove(&s->ended, q);
	return q;
}

struct sequence *scheduler_any(const struct scheduler *s)
{
	return s->running.head ? s->running.head : s->queue.head;
}

/* --- admission and prefix cache --------------------------------------------------------------------------------------------- */

static int blocks_for(const struct scheduler *s, int tokens)
{
	return (tokens + s->options.block_tokens - 1) / s->options.block_tokens;
}

static int rows_left(const struct sequence *q)
{
	return q->count - q->computed;
}

/* More than one row to go: a prompt, or a preempted sequence on its way back. */
static bool in_prefill(const struct sequence *q)
{
	return rows_left(q) > 1;
}

/* Full blocks that may come from the cache: not the last token, whose logits are needed, nor a row whose logits score the prompt. */
static int adoptable_blocks(const struct scheduler *s, const struct sequence *q)
{
	int rows = q->scores && q->scored < q->prompt_count ? q->scored - 1 : q->count - 1;
	return rows / s->options.block_tokens;
}

/* Takes what the cache has from where the sequence stands; it must stand at a block's edge. */
static enum status adopt(struct scheduler *s, struct sequence *q, struct error *err)
{
	struct kv_text text;
	int idle, limit = adoptable_blocks(s, q);
	if (q->computed % s->options.block_tokens || q->computed / s->options.block_tokens >= limit || !sequence_text(q, &text)) return STATUS_OK;
	int found = kv_group_match(s->options.kv, q->slot, &text, limit, &idle);
	if (s->options.states) q->known_blocks = q->computed / s->options.block_tokens + kv_group_known(s->options.kv, q->slot, &text, limit);
	if (!found) return STATUS_OK;
	TRY(kv_group_adopt(s->options.kv, q->slot, &text, found, err));
	q->computed += found * s->options.block_tokens;
	q->kept_at = q->computed;
	if (s->options.states) s->stats.state_hits++;
	if (q->preemptions || q->count > q->prompt_count) return STATUS_OK; /* coming back is no hit of the request's */
	q->cached_tokens += found * s->options.block_tokens;
	s->stats.cached_tokens += (uint64_t)(found * s->options.block_tokens);
	return STATUS_OK;
}

/* What others have cached since the last step, siblings with the same prompt above all. */
static enum status adopt_late(struct scheduler *s, struct error *err)
{
	for (struct sequence *q = s->running.head; q; q = q->next)
		if (in_prefill(q)) TRY(adopt(s, q, err));
	return STATUS_OK;
}

static void enter_slot(struct scheduler *s, struct sequence *q, uint64_t now_ns)
{
	list_remove(&s->queue, q);
	list_insert(&s->running, q, s->running.tail);
	q->slot = s->free_slots[--s->free_slot_count];
	q->state = SEQUENCE_RUNNING;
	if (q->started_ns) return;
	q->started_ns = now_ns ? now_ns : 1;
	s->stats.prompt_tokens += (uint64_t)q->prompt_count;
}

/* Blocks that the head needs from the free ones: cached blocks count as free while nobody holds them. */
static int head_need(const struct scheduler *s, const struct sequence *q)
{
	struct kv_text text;
	int idle = 0, found = 0, slot = s->free_slots[s->free_slot_count - 1];
	if (sequence_text(q, &text)) found = kv_group_match(s->options.kv, slot, &text, adoptable_blocks(s, q), &idle);
	return blocks_for(s, q->count) - (found - idle);
}

/* Whether the head may start beside those that run: `owed` blocks they need for the tokens they have, `promised` they can ever need. */
static bool has_room(struct scheduler *s, const struct sequence *q, int owed, int promised)
{
	int room = kv_group_free_blocks(s->options.kv) - owed - s->watermark;
	if (!s->running.head || promised + blocks_for(s, sequence_most_tokens(q)) <= s->options.kv_blocks) return true;
	if (s->blocked.id == q->id && room <= s->blocked.room && s->plans < s->blocked.look_again) return false;
	if (head_need(s, q) <= room) return true;
	s->blocked.id = q->id;
	s->blocked.room = room;
	s->blocked.look_again = s->plans + PATIENCE;
	return false;
}

static enum status admit(struct scheduler *s, uint64_t now_ns, struct error *err)
{
	int owed = 0, promised = 0;
	if (!s->queue.head || !s->free_slot_count) return STATUS_OK;
	for (struct sequence *q = s->running.head; q; q = q->next) {
		owed += blocks_for(s, q->count) - kv_group_seq_blocks(s->options.kv, q->slot);
		promised += blocks_for(s, sequence_most_tokens(q));
	}
	for (struct sequence *q; (q = s->queue.head) && s->free_slot_count && has_room(s, q, owed, promised);) {
		enter_slot(s, q, now_ns);
		TRY(adopt(s, q, err));
		owed += blocks_for(s, q->count) - kv_group_seq_blocks(s->options.kv, q->slot);
		promised += blocks_for(s, sequence_most_tokens(q));
	}
	return STATUS_OK;
}

/* --- snapshots of state ----------------------------------------------------------------------------------------------------- */

/* Blocks that two texts begin with alike. A collision of hashes misplaces a snapshot, no more. */
static int common_blocks(const struct sequence *a, const struct sequence *b)
{
	int low = 0, high = min_int(a->hashed, b->hashed);
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (a->hashes[middle - 1] == b->hashes[middle - 1]) low = middle;
		else high = middle - 1;
	}
	return low;
}

/* Where a sequence's next snapshot is wanted: behind `from` tokens, far enough from its last one at `kept`. */
struct wanted {
	int from, kept, at;
};

/* Moves w->at to the end of so many blocks, if that is before it. */
static void want_snapshot(const struct scheduler *s, struct wanted *w, int blocks)
{
	int size = s->options.block_tokens, tokens = blocks * size;
	if (tokens > w->from && tokens >= w->kept + SNAPSHOT_GAP * size && tokens < w->at) w->at = tokens;
}

static void want_shared(const struct scheduler *s, const struct sequence *q, const struct sequence *r, struct wanted *w)
{
	if (!r->hashes) return;
	int blocks = min_int(common_blocks(q, r), adoptable_blocks(s, r));
	if (r->computed < blocks * s->options.block_tokens) want_snapshot(s, w, blocks);
}

/* The next length behind `from` whose state others will want: where they were seen, or are waiting, to go another way; the end of the prompt, from where a
 * conversation goes on; and every so many tokens of it. INT_MAX: none. */
static int next_snapshot(const struct scheduler *s, const struct sequence *q, int from, int kept)
{
	int size = s->options.block_tokens, every = (s->options.state_every + size - 1) / size, looked = 0;
	struct wanted w = {from, kept, INT_MAX};
	want_snapshot(s, &w, q->known_blocks);
	want_snapshot(s, &w, (q->prompt_count - 1) / size);
	if (every && from < q->prompt_count) {
		int next = (from / size / every + 1) * every, least = kept / size + SNAPSHOT_GAP;
		want_snapshot(s, &w, next < least ? (least + every - 1) / every * every : next);
	}
	for (const struct sequence *r = q->next; r; r = r->next)
		if (in_prefill(r)) want_shared(s, q, r, &w);
	for (const struct sequence *r = s->queue.head; r && looked < LOOK_AHEAD; r = r->next, looked++) want_shared(s, q, r, &w);
	return w.at;
}

/* Ends a chunk where a snapshot is wanted, or makes two parts of it there, if no other is wanted before its end: three parts would leave a third that is short, and
 * a step of few rows costs as much as one of many more. */
static void cut_chunk(struct scheduler *s, struct sequence *q)
{
	int *take = &s->take[q->slot];
	if (!s->options.states || !q->hashes) return;
	q->keep_at = next_snapshot(s, q, q->computed, q->kept_at);
	if (q->keep_at - q->computed >= *take) return;
	const int next = next_snapshot(s, q, q->keep_at, q->keep_at);
	if (s->tails >= s->most_tails || next - q->computed < *take) {
		*take = q->keep_at - q->computed;
		return;
	}
	s->tails++;
	q->part_at = q->keep_at;
	q->keep_at = next;
}

/* A second part of the rows that q got in the end; not of one row, which kernels take for a decode row: those read what they find in the cache early. */
static void settle_parts(struct scheduler *s, struct sequence *q)
{
	int *take = &s->take[q->slot], first = q->part_at - q->computed;
	if (!q->part_at || *take > first + 1) return;
	*take = min_int(*take, first);
	q->keep_at = q->part_at;
	q->part_at = 0;
}

/* What a committed length leaves to others; in places where nobody asked for it only until the sequence is further. */
static void keep_state(struct scheduler *s, struct sequence *q)
{
	if (!s->options.states) return;
	bool wanted = q->computed == q->keep_at;
	kv_group_snapshot(s->options.kv, q->slot, !wanted);
	if (wanted) q->kept_at = q->computed;
}

/* --- rows of a step --------------------------------------------------------------------------------------------------------- */

/* Up to `rows` more for q; returns how many. */
static int give_rows(struct scheduler *s, const struct sequence *q, int rows)
{
	int n = min_int(rows_left(q) - s->take[q->slot], rows);
	s->take[q->slot] += n;
	return n;
}

static struct sequence *shortest_without_rows(const struct scheduler *s)
{
	struct sequence *best = NULL;
	for (struct sequence *q = s->running.head; q; q = q->next)
		if (in_prefill(q) && !s->take[q->slot] && (!best || rows_left(q) < rows_left(best))) best = q;
	return best;
}

/* Ends an unfinished chunk at a block's edge, if that costs at most a quarter of it, so that what others cache can be taken up there. */
static void align_chunk(struct scheduler *s, const struct sequence *q)
{
	int end = q->computed + s->take[q->slot], over = end % s->options.block_tokens;
	if (q->hashes && end < q->count && 4 * over <= s->take[q->slot]) s->take[q->slot] -= over;
}

/* Rows by the row budget alone. Returns how many sequences prefill. */
static int share_rows(struct scheduler *s)
{
	int budget = s->options.max_rows, prefills = 0;
	struct sequence *oldest = NULL;
	s->tails = 0;
	for (struct sequence *q = s->running.head; q; q = q->next) {
		s->take[q->slot] = q->part_at = 0;
		if (in_prefill(q)) {
			prefills++;
			if (!oldest) oldest = q;
		} else budget -= give_rows(s, q, 1);
	}
	if (!oldest) return 0;
	budget -= give_rows(s, oldest, prefills > 1 ? budget - budget / 4 : budget);
	for (struct sequence *q; budget > 0 && prefills > 1 && (q = shortest_without_rows(s));) budget -= give_rows(s, q, budget);
	if (budget > 0) give_rows(s, oldest, budget);
	for (struct sequence *q = oldest; q; q = q->next) {
		if (!in_prefill(q)) continue;
		cut_chunk(s, q);
		align_chunk(s, q);
	}
	return prefills;
}

/* --- sequences that wait for the blocks of another -------------------------------------------------------------------------- */

static bool says_alike(const struct scheduler *s, const struct sequence *q, const struct sequence *r, int length)
{
	int size = s->options.block_tokens, blocks = length / size;
	return length % size == 0 && blocks <= adoptable_blocks(s, q) && r->hashes[blocks - 1] == q->hashes[blocks - 1];
}

/* Whether q can go on where r's rows of this step, or their first part, end: there must be a state of its own text. */
static bool can_follow(const struct scheduler *s, const struct sequence *q, const struct sequence *r)
{
	if (!s->options.states || says_alike(s, q, r, r->computed + s->take[r->slot])) return true;
	return r->part_at > q->computed && says_alike(s, q, r, r->part_at);
}

/* True if an older sequence computes in this step the block where q stands, with the same text up to it. */
static bool has_twin(const struct scheduler *s, const struct sequence *q)
{
	int size = s->options.block_tokens, block = q->computed / size;
	if (!q->hashes || !s->take[q->slot] || q->computed % size || block >= adoptable_blocks(s, q)) return false;
	for (const struct sequence *r = s->running.head; r != q; r = r->next)
		if (r->hashes && r->computed <= block * size && r->computed + s->take[r->slot] >= (block + 1) * size &&
		    r->hashes[block] == q->hashes[block] && can_follow(s, q, r))
			return true;
	return false;
}

static void wait_for_twins(struct scheduler *s)
{
	for (struct sequence *q = s->running.head; q; q = q->next)
		if (in_prefill(q) && has_twin(s, q)) s->take[q->slot] = 0;
}

/* --- room for the rows ------------------------------------------------------------------------------------------------------ */

static void preempt(struct scheduler *s, struct sequence *q)
{
	s->take[q->slot] = 0;
	leave_slot(s, q);
	q->state = SEQUENCE_QUEUED;
	q->preemptions++;
	s->stats.preemptions++;
	s->blocked.id = 0;
	list_insert(&s->queue, q, NULL);
}

/* Makes q's rows fit into the blocks that are left, at the cost of younger ones. Returns the blocks it will take. */
static int fit(struct scheduler *s, struct sequence *q, int charged)
{
	int size = s->options.block_tokens, held = kv_group_seq_blocks(s->options.kv, q->slot);
	int *take = &s->take[q->slot];
	for (;;) {
		int need = blocks_for(s, q->computed + *take) - held, left = kv_group_free_blocks(s->options.kv) - charged;
		if (need <= left) return need > 0 ? need : 0;
		int rows = (held + left) * size - q->computed;
		if (rows > 0) *take = rows;
		else if (q == s->running.tail) *take = 0;
		else preempt(s, s->running.tail);
	}
}

static void fit_blocks(struct scheduler *s)
{
	int charged = 0;
	for (struct sequence *q = s->running.head; q; q = q->next)
		if (s->take[q->slot]) charged += fit(s, q, charged);
}

/* --- the plan --------------------------------------------------------------------------------------------------------------- */

/* Decode rows first, second parts last. */
static void emit(struct scheduler *s, struct step_plan *plan)
{
	for (struct sequence *q = s->running.head; q; q = q->next) settle_parts(s, q);
	for (int pass = 0; pass < 2; pass++) {
		for (struct sequence *q = s->running.head; q; q = q->next) {
			int end = q->part_at ? q->part_at : q->computed + s->take[q->slot];
			if (end == q->computed || in_prefill(q) != (pass == 1)) continue;
			step_plan_add(plan, q, q->slot, q->tokens, q->computed, end, end == q->count && q->max_tokens > 0);
		}
	}
	for (struct sequence *q = s->running.head; q; q = q->next) {
		int end = q->computed + s->take[q->slot];
		if (q->part_at) step_plan_add_tail(plan, q, q->slot, q->tokens, q->part_at, end, end == q->count && q->max_tokens > 0);
	}
}

enum status scheduler_plan(struct scheduler *s, struct step_plan *plan, uint64_t now_ns, struct error *err)
{
	s->plans++;
	s->most_tails = min_int(plan->limits.max_tails, s->options.states - 2 * s->options.max_seqs);
	step_plan_clear(plan);
	TRY(adopt_late(s, err));
	TRY(admit(s, now_ns, err));
	if (share_rows(s) > 1) wait_for_twins(s);
	fit_blocks(s);
	emit(s, plan);
	return STATUS_OK;
}

void scheduler_committed(struct scheduler *s, const struct step_plan *plan)
{
	for (int i = 0; i < plan->seqs; i++) {
		struct sequence *q = plan->sequence[i];
		q->computed = plan->kv_len[i];
		if (plan->goes_on[i]) q->kept_at = q->computed; /* the commit has kept it */
		else keep_state(s, q);
	}
	s->stats.computed_tokens += (uint64_t)plan->rows;
}

/* --- views ------------------------------------------------------------------------------------------------------------------ */

void scheduler_get_stats(const struct scheduler *s, struct scheduler_stats *out)
{
	*out = s->stats;
	out->running = s->running.count;
	out->waiting = s->queue.count;
}

static enum status check_running(const struct scheduler *s, const struct sequence *q, bool *taken, struct error *err)
{
	const struct kv_group *kv = s->options.kv;
	if (q->state != SEQUENCE_RUNNING || q->slot < 0 || q->slot >= s->options.max_seqs || taken[q->slot])
		return FAIL(err, BAD_INPUT, "scheduler check: request %llu runs in state %d, slot %d", (unsigned long long)q->id, q->state, q->slot);
	taken[q->slot] = true;
	for (int r = 0; r < kv->count; r++)
		if (kv_length(kv->pools[r], q->slot) != q->computed)
			return FAIL(err, BAD_INPUT, "scheduler check: request %llu has %d tokens computed, %d on rank %d", (unsigned long long)q->id,
			            q->computed, kv_length(kv->pools[r], q->slot), r);
	if (q->computed > q->count || (q->computed == q->count && !atomic_load(&q->cancelled)))
		return FAIL(err, BAD_INPUT, "scheduler check: request %llu has %d of %d tokens computed", (unsigned long long)q->id, q->computed, q->count);
	return STATUS_OK;
}

static enum status check_lists(const struct scheduler *s, bool *taken, struct error *err)
{
	uint64_t last = 0;
	int running = 0, queued = 0, used = 0;
	for (const struct sequence *q = s->running.head; q; q = q->next, running++) {
		if (q->id <= last) return FAIL(err, BAD_INPUT, "scheduler check: request %llu runs out of order", (unsigned long long)q->id);
		last = q->id;
		TRY(check_running(s, q, taken, err));
	}
	for (const struct sequence *q = s->queue.head; q; q = q->next, queued++) {
		if (q->id <= last) return FAIL(err, BAD_INPUT, "scheduler check: request %llu waits out of order", (unsigned long long)q->id);
		last = q->id;
		if (q->state != SEQUENCE_QUEUED || q->slot != -1 || q->computed)
			return FAIL(err, BAD_INPUT, "scheduler check: request %llu waits in state %d, slot %d, with %d tokens", (unsigned long long)q->id,
			            q->state, q->slot, q->computed);
	}
	for (int i = 0; i < s->options.max_seqs; i++) {
		used += taken[i];
		if (!taken[i] && kv_group_seq_blocks(s->options.kv, i)) return FAIL(err, BAD_INPUT, "scheduler check: slot %d is free but has KV", i);
	}
	if (running != s->running.count || queued != s->queue.count || used + s->free_slot_count != s->options.max_seqs)
		return FAIL(err, BAD_INPUT, "scheduler check: %d running (counted %d), %d waiting (%d), %d + %d slots of %d", running,
		            s->running.count, queued, s->queue.count, used, s->free_slot_count, s->options.max_seqs);
	return STATUS_OK;
}

enum status scheduler_check(const struct scheduler *s, struct error *err)
{
	bool *taken = mem_zalloc((size_t)s->options.max_seqs, sizeof *taken, "scheduler check", err);
	if (!taken) return STATUS_NO_MEMORY;
	enum status st = check_lists(s, taken, err);
	free(taken);
	return st;
}
