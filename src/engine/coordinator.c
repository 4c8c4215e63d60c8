#include "engine/coordinator.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/graphs.h"
#include "engine/sequence.h"
#include "model/plan.h"

/* How often a waiting coordinator looks at heartbeats, interrupts and progress. */
#define LOOK_MS 20
/* Where devices compute and not the host's cores, waits spin: a worker for the next step, the coordinator for the end of this one. Waking a
 * sleeper costs 5 to 50 us, twice a step. */
#define IDLE_SPIN_NS 2000000
/* After an abort every worker leaves its waits at once; one that has not reported by then is stuck in its device. */
#define GRACE_MS 5000
/* Devices take this many times as long to open as a rank may be silent later: a driver lets its processes wait for each other. */
#define OPENING_TIMES 4

struct coordinator {
	struct coordinator_options options;
	struct group *group;
	struct worker *workers; /* [world_size] */
	struct rank **ranks;    /* [world_size] views of the workers' */
	struct wait_word done;
	struct kv_pool **pools; /* [world_size] the ranks' */
	struct kv_group kv;
	_Atomic bool dead; /* as of the last command, for onlookers */
	uint64_t generation; /* of the last command */
	uint64_t all_reduces_before; /* of groups that are gone */
	void *partition;     /* what the device options point to */
	uint64_t spin_ns;    /* how long it looks for the workers' reports before it sleeps */
	struct step_clock clock; /* COMMIT */
	bool stuck;          /* a worker did not come back: its memory must not be touched again */
};

/* opens: its ranks have yet to open their devices. */
static enum status new_group(struct coordinator *c, bool opens, struct error *err)
{
	const uint64_t timeout = c->options.timeout_ms, least = timeout - timeout / 5;
	/* Ranks give up on one another before the coordinator gives up on them all: they know who is missing. */
	struct group_options options = {.world_size = c->options.world_size, .timeout_ms = least, .first_timeout_ms = opens ? OPENING_TIMES * least : 0,
	                                .fault = c->options.fault};
	TRY(group_create(&c->group, &options, err));
	for (int r = 0; r < c->options.world_size; r++) c->workers[r].rank.group = c->group;
	return STATUS_OK;
}

static bool all_finished(const struct coordinator *c)
{
	for (int r = 0; r < c->options.world_size; r++)
		if (!worker_finished(&c->workers[r])) return false;
	return true;
}

static bool any_device_busy(const struct coordinator *c)
{
	for (int r = 0; r < c->options.world_size; r++)
		if (c->workers[r].busy_device) return true;
	return false;
}

/* Sum of what only grows while anything moves. */
static uint64_t movement(const struct coordinator *c)
{
	uint64_t sum = 0;
	for (int r = 0; r < c->options.world_size; r++) {
		sum += atomic_load_explicit(&c->workers[r].rank.heartbeat, memory_order_relaxed);
		sum += worker_finished(&c->workers[r]);
	}
	return sum;
}

/* For onlookers: when each rank was last seen to move; 0 once it has finished. */
static void note_movement(struct coordinator *c, uint64_t now)
{
	for (int r = 0; r < c->options.world_size; r++) {
		struct worker *w = &c->workers[r];
		uint64_t moves = atomic_load_explicit(&w->rank.heartbeat, memory_order_relaxed);
		if (worker_finished(w)) atomic_store(&w->moved_ns, 0);
		else if (moves != w->moves_seen || !atomic_load(&w->moved_ns)) atomic_store(&w->moved_ns, now);
		w->moves_seen = moves;
	}
}

/* How long the group may be without movement. */
static uint64_t patience_ms(const struct coordinator *c)
{
	for (int r = 0; r < c->options.world_size; r++)
		if (worker_is_opening(&c->workers[r])) return OPENING_TIMES * c->options.timeout_ms;
	return c->options.timeout_ms;
}

static void report_progress(const struct coordinator *c)
{
	if (!c->options.progress) return;
	uint64_t done = 0;
	for (int r = 0; r < c->options.world_size; r++) done += atomic_load_explicit(&c->workers[r].rank.loaded_bytes, memory_order_relaxed);
	c->options.progress(c->options.progress_context, done);
}

static const char *doing(const struct worker *w)
{
	const char *what = atomic_load_explicit(&w->doing, memory_order_relaxed);
	return what ? what : "starting";
}

/* Long before it is given up, a group that does not move says where each rank is. */
static void warn_still(const struct coordinator *c, uint64_t ms)
{
	for (int r = 0; r < c->options.world_size; r++)
		if (!worker_finished(&c->workers[r]))
			log_write(c->options.log, LOG_WARN, "rank %d: no progress for %llu ms, while %s; given up after %llu", r, (unsigned long long)ms, doing(&c->workers[r]),
			          (unsigned long long)patience_ms(c));
}

static void abort_stuck(struct coordinator *c)
{
	struct error reason = {0};
	for (int r = 0; r < c->options.world_size; r++) {
		if (worker_finished(&c->workers[r])) continue;
		(void)FAIL(&reason, TIMEOUT, "rank %d: no progress for %llu ms, while %s; the rank is lost or its device hangs", r,
		           (unsigned long long)patience_ms(c), doing(&c->workers[r]));
	}
	group_abort(c->group, -1, &reason);
}

/* A worker whose thread is gone is known at once; nobody has to wait for its deadline. */
static void find_lost(struct coordinator *c)
{
	for (int r = 0; r < c->options.world_size; r++) {
		if (worker_finished(&c->workers[r]) || !worker_check_lost(&c->workers[r], 0)) continue;
		struct error reason = {0};
		(void)FAIL(&reason, RANK_LOST, "its worker is gone; see what ended it, then rebuild the group or restart");
		group_abort(c->group, r, &reason);
	}
}

static void abort_interrupted(struct coordinator *c)
{
	struct error reason = {0};
	(void)FAIL(&reason, CANCELLED, "interrupted");
	group_abort(c->group, -1, &reason);
}

/* Waits until every worker has reported or is known to be gone. */
static void wait_workers(struct coordinator *c)
{
	uint64_t moved = movement(c), still_since = clock_ns(), aborted_at = 0;
	bool warned = false;
	note_movement(c, still_since);
	for (;;) {
		uint32_t seen = atomic_load_explicit(&c->done.value, memory_order_acquire);
		if (all_finished(c)) return;
		if (wait_change_spin(&c->done, seen, c->spin_ns, clock_deadline_ms(LOOK_MS))) continue;
		report_progress(c);
		find_lost(c);
		/* An interrupt that ended a group must not end the one that is made after it. */
		if (c->workers[0].what != WORKER_REJOIN && c->options.interrupt && atomic_load(c->options.interrupt)) abort_interrupted(c);
		uint64_t now = clock_ns(), patience_ns = patience_ms(c) * 1000000u, moves = movement(c); /* in this order: the end of an opening counts as a move */
		note_movement(c, now);
		if (moves != moved) {
			moved = moves;
			still_since = now;
			warned = false;
		}
		if (!warned && !group_aborted(c->group) && now - still_since > patience_ns / 4) {
			warned = true;
			warn_still(c, (now - still_since) / 1000000);
		}
		if (!group_aborted(c->group)) {
			if (now - still_since > patience_ns) abort_stuck(c);
			continue;
		}
		if (!aborted_at) aborted_at = now;
		if (now - aborted_at > (uint64_t)GRACE_MS * 1000000u) {
			c->stuck = !all_finished(c);
			if (c->stuck) c->kv.count = 0;
			return;
		}
	}
}

/* One command to all ranks, and the group's verdict. */
static enum status run_command(struct coordinator *c, enum worker_command what, struct error *err)
{
	if (c->stuck) return FAIL(err, DEVICE_FAULT, "a rank did not come back from its device; restart the process");
	c->generation++;
	for (int r = 0; r < c->options.world_size; r++) worker_command(&c->workers[r], what, c->generation);
	wait_workers(c);
	c->stuck |= any_device_busy(c);
	if (group_aborted(c->group)) return group_error(c->group, err);
	for (int r = 0; r < c->options.world_size; r++) { /* a failure always aborts: this is for a worker that could not say why */
		struct worker *w = &c->workers[r];
		if (!w->lost && w->status == STATUS_OK) continue;
		struct error reason = w->error;
		(void)FAIL(&reason, RANK_LOST, "rank %d: lost", r);
		group_abort(c->group, r, &reason);
		return group_error(c->group, err);
	}
	return STATUS_OK;
}

static enum status command_all(struct coordinator *c, enum worker_command what, struct error *err)
{
	enum status st = run_command(c, what, err);
	note_movement(c, clock_ns());
	atomic_store(&c->dead, st != STATUS_OK);
	return st;
}

static uint64_t need_bytes(const struct coordinator_options *o, const struct worker *w)
{
	struct plan_degree plan;
	struct step_limits limits = rank_limits(&o->rank);
	enum dtype activation = w->rank.activation;
	const struct plan_options options = {.window_slots = o->rank.kv.windows ? (o->rank.kv.windows + 1) * o->rank.kv.block_tokens : 0,
	                                     .max_rows = limits.max_rows, .max_outputs = limits.max_outputs, .context = o->rank.max_context,
	                                     .head_on_rank0 = o->rank.head_on_rank0, .vocab_granule = o->ops->linear_granule,
	                                     .embedding_split = o->rank.embedding_split, .activation = activation, .kv = activation,
	                                     .scratch_bytes = comm_scratch_bytes(o->ops, o->world_size, &w->comm_options)};
	plan_degree(&plan, &o->model->config, o->world_size, &options);
	uint64_t kv = (uint64_t)(o->rank.kv.blocks + 1) * (uint64_t)o->rank.kv.block_tokens * plan.kv_per_token;
	const struct gdn_layout state = rank_gdn_layout(&w->rank);
	return plan.sharded_bytes + plan.replicated_bytes + plan.scratch_bytes + plan.workspace_bytes + plan.window_bytes + kv + gdn_cache_bytes(&state);
}

static void fill_worker(struct coordinator *c, int r, const struct device_options *device)
{
	const struct coordinator_options *o = &c->options;
	struct worker *w = &c->workers[r];
	const struct model_config *config = &o->model->config;
	struct rank_shape shape = rank_shape(config, o->world_size);
	struct step_limits limits = rank_limits(&o->rank);
	enum dtype activation = device_activation(o->ops, config->dtype);
	const int outputs[] = {2 * shape.inner, shape.qkv_cols, shape.gdn_in_cols, config->vocab_size};
	const int inputs[] = {config->hidden_size, shape.inner, shape.q_cols, shape.gdn_v_cols};
	int max_n = 0, max_k = 0;
	for (int i = 0; i < 4; i++) {
		if (outputs[i] > max_n) max_n = outputs[i];
		if (inputs[i] > max_k) max_k = inputs[i];
	}
	w->rank.index = r;
	w->rank.world_size = o->world_size;
	w->rank.model = o->model;
	w->rank.options = o->rank;
	w->rank.options.kv.shuffle = o->kv_shuffle ? rng_u64(o->kv_shuffle, 0, (uint64_t)r) | 1 : 0;
	w->rank.peers = c->ranks;
	w->rank.activation = activation;
	w->done = &c->done;
	w->device_options = *device;
	w->device_options.isa = o->isa;
	w->device_options.log = o->log;
	w->device_ops = o->ops;
	w->comm_options = (struct comm_options){.max_rows = limits.max_rows, .cols = config->hidden_size,
	                                        .dtype = o->rank.invariant ? DTYPE_F32 : activation,
	                                        .invariant = o->rank.invariant, .tree_leaves = o->model->tree_leaves};
	w->stream_options = (struct stream_options){.max_rows = limits.max_rows, .max_k = max_k, .max_n = max_n, .max_q_heads = shape.q_heads,
	                                            .max_head_dim = config->head_dim, .max_context = o->rank.max_context,
	                                            .max_seqs = limits.max_seqs + limits.max_tails, .invariant = o->rank.invariant,
	                                            .gdn_k_heads = shape.gdn_k_heads, .gdn_v_heads = shape.gdn_v_heads, .gdn_k_dim = config->gdn.k_dim,
	                                            .gdn_v_dim = config->gdn.v_dim};
	w->spin_ns = o->ops->host_idles ? IDLE_SPIN_NS : WAIT_SPIN_NS;
	w->need_bytes = need_bytes(o, w);
	c->ranks[r] = &w->rank;
}

enum status coordinator_open(struct coordinator **out, const struct coordinator_options *options, struct error *err)
{
	*out = NULL;
	struct device_options devices[SHARD_MAX_WORLD] = {0};
	struct coordinator *c = mem_zalloc_lines(1, sizeof *c, "coordinator", err);
	if (!c) return STATUS_NO_MEMORY;
	*out = c;
	c->options = *options;
	c->spin_ns = options->ops->host_idles ? 2 * LOOK_MS * UINT64_C(1000000) : WAIT_SPIN_NS;
	c->workers = mem_zalloc_lines((size_t)options->world_size, sizeof *c->workers, "workers", err);
	c->ranks = mem_zalloc((size_t)options->world_size, sizeof *c->ranks, "ranks", err);
	c->pools = mem_zalloc((size_t)options->world_size, sizeof *c->pools, "pools", err);
	if (!c->workers || !c->ranks || !c->pools) return STATUS_NO_MEMORY;
	TRY(options->ops->partition(options->world_size, options->threads, options->ordinals, devices, &c->partition, err));
	for (int r = 0; r < options->world_size; r++) fill_worker(c, r, &devices[r]);
	TRY(new_group(c, true, err));
	for (int r = 0; r < options->world_size; r++) TRY(worker_start(&c->workers[r], err));
	TRY(command_all(c, WORKER_OPEN, err));
	for (int r = 0; r < options->world_size; r++) c->pools[r] = c->workers[r].rank.pool;
	c->kv = (struct kv_group){c->pools, options->world_size};
	c->options.progress = NULL; /* loading is over */
	return STATUS_OK;
}

/* Ends the worker threads that exist. False if one did not end in time. */
static bool stop_workers(struct coordinator *c)
{
	c->generation++;
	for (int r = 0; r < c->options.world_size; r++) {
		struct worker *w = &c->workers[r];
		if (w->started && worker_finished(w) && !w->lost) worker_command(w, WORKER_STOP, c->generation);
	}
	bool all = true;
	uint64_t deadline = clock_deadline_ms(c->options.timeout_ms + GRACE_MS);
	for (int r = 0; r < c->options.world_size; r++) {
		struct worker *w = &c->workers[r];
		if (w->started && !worker_check_lost(w, deadline) && w->started) all = false;
	}
	return all;
}

bool coordinator_close(struct coordinator **coordinator)
{
	struct coordinator *c = *coordinator;
	if (!c) return true;
	*coordinator = NULL;
	if (c->group) { /* anything still in a wait leaves it */
		struct error reason = {0};
		(void)FAIL(&reason, ABORTED, "shutting down");
		if (!all_finished(c)) {
			group_abort(c->group, -1, &reason);
			if (!c->stuck) wait_workers(c); /* else it was waited for */
		}
	}
	if (c->workers && (!stop_workers(c) || any_device_busy(c))) return false; /* a thread or a kernel still runs on this memory: leaving it is the only safe thing */
	for (int r = 0; c->workers && r < c->options.world_size; r++) comm_destroy(&c->workers[r].rank.comm);
	for (int r = 0; c->workers && r < c->options.world_size; r++) rank_release(&c->workers[r].rank);
	group_destroy(&c->group);
	free(c->partition);
	free(c->workers);
	free(c->ranks);
	free(c->pools);
	free(c);
	return true;
}

/* Commit or roll back on every rank. */
static void settle(struct coordinator *c, const struct step_plan *plan, bool commit)
{
	for (int s = 0; s < plan->seqs; s++) {
		struct kv_text text;
		if (!commit) kv_group_rollback(&c->kv, plan->slot[s]);
		else kv_group_commit(&c->kv, plan->slot[s], plan->sequence[s] ? sequence_text(plan->sequence[s], &text) : NULL);
	}
}

enum status coordinator_step(struct coordinator *c, const struct step_plan *plan, struct error *err)
{
	if (group_aborted(c->group)) return group_error(c->group, err);
	const uint64_t now = clock_ns();
	for (int r = 0; r < c->options.world_size; r++) {
		c->workers[r].plan = plan;
		step_clock_begin(&c->workers[r].rank.clock, now);
	}
	enum status st = command_all(c, WORKER_STEP, err);
	for (int r = 0; r < c->options.world_size && !c->stuck; r++) step_clock_end(&c->workers[r].rank.clock, TANDEM_REPORT);
	step_clock_begin(&c->clock, clock_ns());
	settle(c, plan, st == STATUS_OK);
	step_clock_end(&c->clock, TANDEM_COMMIT);
	return st;
}

enum status coordinator_head(struct coordinator *c, int first, int count, struct error *err)
{
	if (group_aborted(c->group)) return group_error(c->group, err);
	for (int r = 0; r < c->options.world_size; r++) {
		c->workers[r].head_first = first;
		c->workers[r].head_count = count;
	}
	return command_all(c, WORKER_HEAD, err);
}

enum status coordinator_measure(struct coordinator *c, int repeats, struct error *err)
{
	if (group_aborted(c->group)) return group_error(c->group, err);
	for (int r = 0; r < c->options.world_size; r++) {
		c->workers[r].repeats = repeats;
		if (!c->workers[r].plan || !c->workers[r].plan->rows) return FAIL(err, BAD_INPUT, "measurement: no step was run yet");
		if (repeats && !graphs_bucket(&c->workers[r].rank, c->workers[r].plan))
			return FAIL(err, UNSUPPORTED, "measurement: the last step is not a recorded one");
	}
	return command_all(c, WORKER_MEASURE, err);
}

float *coordinator_logits(struct coordinator *c)
{
	return c->workers[0].rank.host_logits;
}

enum status coordinator_best(const struct coordinator *c, int output, int32_t *token, struct error *err)
{
	struct best_token best = {.index = -1};
	for (int r = 0; r < c->options.world_size; r++) { /* ascending ids: among equals the first stays */
		const struct rank *rank = &c->workers[r].rank;
		if (!rank->weights.head.n) continue;
		struct best_token own = rank->best[output];
		if (own.index < 0 || !isfinite(own.value))
			return FAIL(err, DEVICE_FAULT, "sampling: rank %d's logits hold NaN or infinity; the weights or the device are faulty", r);
		if (best.index < 0 || own.value > best.value) best = own;
	}
	*token = best.index;
	return STATUS_OK;
}

void *coordinator_sample_memory(struct coordinator *c)
{
	return c->workers[0].rank.sample_host;
}

const struct sample_choice *coordinator_sampled(const struct coordinator *c, int output)
{
	return &c->workers[0].rank.sampled[output];
}

void coordinator_abort(struct coordinator *c, const struct error *reason)
{
	group_abort(c->group, -1, reason);
	atomic_store(&c->dead, true);
}

bool coordinator_dead(const struct coordinator *c)
{
	return group_aborted(c->group);
}

enum status coordinator_rebuild(struct coordinator *c, struct error *err)
{
	if (c->stuck) return FAIL(err, DEVICE_FAULT, "a rank did not come back from its device; restart the process");
	if (!group_aborted(c->group)) return STATUS_OK;
	for (int r = 0; r < c->options.world_size; r++) {
		struct rank *rank = &c->workers[r].rank;
		if (r == 0 && rank->comm) c->all_reduces_before += rank->comm->all_reduces;
		comm_destroy(&rank->comm);
	}
	struct group *dead = c->group;
	kv_group_reset(&c->kv);
	enum status st = new_group(c, false, err);
	if (st != STATUS_OK) { /* the dead one stays, and with it why */
		c->group = dead;
		return st;
	}
	group_destroy(&dead);
	for (int r = 0; r < c->options.world_size && st == STATUS_OK; r++) {
		struct worker *w = &c->workers[r];
		if (w->started) continue;
		w->generation = c->generation;
		st = worker_start(w, err);
	}
	if (st != STATUS_OK) { /* a group that nobody joined is as dead as the one before */
		group_abort(c->group, -1, err);
		return st;
	}
	return command_all(c, WORKER_REJOIN, err);
}

struct kv_group *coordinator_kv(struct coordinator *c)
{
	return &c->kv;
}

bool coordinator_health(const struct coordinator *c, int rank, struct rank_health *out)
{
	const struct worker *w = &c->workers[rank];
	uint64_t seen = atomic_load(&w->moved_ns), now = clock_ns();
	*out = (struct rank_health){.commands = atomic_load(&w->finished), .moves = atomic_load_explicit(&w->rank.heartbeat, memory_order_relaxed),
	                            .silent_ms = seen && now > seen ? (now - seen) / 1000000u : 0};
	return !atomic_load(&c->dead);
}

const struct rank *coordinator_rank(const struct coordinator *c, int rank)
{
	return &c->workers[rank].rank;
}

void coordinator_phases(const struct coordinator *c, int rank, uint64_t ns[TANDEM_PHASES])
{
	for (int i = 0; i < TANDEM_PHASES; i++) ns[i] = c->clock.ns[i] + c->workers[rank].rank.clock.ns[i];
}

int coordinator_threads(const struct coordinator *c)
{
	int total = 0;
	for (int r = 0; r < c->options.world_size; r++) total += c->options.ops->threads(c->workers[r].rank.device);
	return total;
}

uint64_t coordinator_all_reduces(const struct coordinator *c)
{
	const struct comm *comm = c->workers[0].rank.comm;
	return c->all_reduces_before + (comm ? comm->all_reduces : 0);
}
