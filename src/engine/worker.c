#include "engine/worker.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "engine/dispatch.h"
#include "engine/forward.h"
#include "engine/graphs.h"
#include "engine/loader.h"
#include "engine/warm.h"

#define DRAIN_MS 2000

static enum status meet(struct rank *rank, struct error *err)
{
	return rank->comm->vt->barrier(rank->comm, err);
}

static enum status join_group(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	TRY(comm_create(&rank->comm, rank->group, rank->index, rank->device, rank->stream, &w->comm_options, err));
	rank->adds = rank->world_size == 1 && rank->device->vt->accumulates && !rank->options.invariant;
	if (!rank->options.whitelist) return STATUS_OK;
	return dispatch_agree(rank->group, rank->index, rank->comm->sequence, rank->options.whitelist->hash, err);
}

static enum status check_room(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	const double need = (double)w->need_bytes * (rank->device->vt->one_memory ? rank->world_size : 1);
	return device_room(rank->device, need, "memory (weights, KV, buffers)", "a smaller --context or model, or more devices", err);
}

/* Says how long the phases of opening took, once for the group. */
struct phases {
	uint64_t last;
	char text[200];
	size_t used;
};

static const char opening[] = "opening its device";

bool worker_is_opening(const struct worker *worker)
{
	return atomic_load_explicit(&worker->doing, memory_order_acquire) == opening && !worker_finished(worker);
}

/* A move, like an op: the time that a phase took is not held against the next. */
static void begin(struct worker *w, const char *what)
{
	atomic_fetch_add_explicit(&w->rank.heartbeat, 1, memory_order_relaxed);
	atomic_store_explicit(&w->doing, what, memory_order_release); /* who sees it sees the move */
}

static void phase(struct phases *p, const char *name)
{
	uint64_t now = clock_ns();
	int n = snprintf(p->text + p->used, sizeof p->text - p->used, "%s%s %.0f ms", p->used ? ", " : "", name, (double)(now - p->last) / 1e6);
	if (n > 0 && (size_t)n < sizeof p->text - p->used) p->used += (size_t)n;
	p->last = now;
}

static enum status open_rank(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	struct phases phases = {.last = clock_ns()};
	begin(w, opening);
	TRY(fault_check(group_fault(rank->group), rank->index, FAULT_OPEN, 0, group_abort_flag(rank->group), err));
	TRY(w->device_ops->open(&rank->device, &w->device_options, err));
	TRY(rank->device->vt->stream_create(rank->device, &w->stream_options, &rank->stream, err));
	TRY(dispatch_apply(rank, err));
	phase(&phases, "device");
	begin(w, "joining its group");
	TRY(check_room(w, err));
	TRY(join_group(w, err)); /* all meet here: nobody allocates before everybody has looked */
	phase(&phases, "collectives");
	begin(w, "loading weights");
	TRY(loader_read(rank, err));
	TRY(meet(rank, err));
	TRY(loader_share(rank, rank->peers, err));
	phase(&phases, "weights");
	begin(w, "making its cache and buffers");
	TRY(rank_prepare(rank, err));
	TRY(meet(rank, err));
	phase(&phases, "kv and buffers");
	begin(w, "running its linears once");
	TRY(warm_linears(rank, err));
	TRY(meet(rank, err));
	phase(&phases, "linears");
	begin(w, "recording its steps");
	TRY(graphs_record(rank, err));
	phase(&phases, "graphs");
	if (rank->index == 0 && w->device_options.log) log_write(w->device_options.log, LOG_INFO, "opened in %s", phases.text);
	return meet(rank, err);
}

static enum status sync_rank(struct worker *w, struct error *err)
{
	return comm_sync(w->rank.comm, w->rank.stream, err);
}

static enum status fault(struct worker *w, enum fault_point at, uint64_t seq, struct error *err)
{
	return fault_check(group_fault(w->rank.group), w->rank.index, at, seq, group_abort_flag(w->rank.group), err);
}

/* Contract E2 as one rank sees it; commit and rollback are the coordinator's, once all ranks have reported. */
static enum status run_step(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	const struct step_plan *plan = w->plan;
	step_clock_end(&rank->clock, TANDEM_WAKE);
	TRY(fault(w, FAULT_RESERVE, plan->generation - 1, err));
	for (int s = 0; s < plan->seqs; s++)
		TRY(kv_reserve(rank->pool, plan->slot[s], plan->row_start[s + 1] - plan->row_start[s], err));
	const int bucket = graphs_bucket(rank, plan);
	TRY(rank_assemble(rank, plan, bucket, err));
	if (plan->result == RESULT_SAMPLED && rank->index == 0)
		TRY(rank->device->vt->copy(rank->stream, rank->buffers.sample, rank->sample_host, plan->sample_bytes, COPY_TO_DEVICE, err));
	step_clock_end(&rank->clock, TANDEM_PREPARE);
	TRY(graphs_meet(rank, bucket, plan->result, err));
	step_clock_end(&rank->clock, TANDEM_MEET);
	if (bucket) TRY(graphs_replay(rank, bucket, plan->result, err));
	else TRY(forward_layers(rank, err));
	TRY(fault(w, FAULT_KERNEL, plan->generation - 1, err));
	if (!bucket) TRY(forward_head(rank, plan->outputs, plan->result, err));
	if (plan->result != RESULT_BEST) TRY(rank_fetch_logits(rank, plan->outputs, plan->result == RESULT_SAMPLED ? plan->to_host : NULL, err));
	step_clock_end(&rank->clock, TANDEM_LAUNCH);
	TRY(sync_rank(w, err));
	step_clock_end(&rank->clock, TANDEM_WAIT);
	return STATUS_OK;
}

static enum status run_head(struct worker *w, struct error *err)
{
	TRY(rank_select_outputs(&w->rank, w->head_first, w->head_count, err));
	TRY(forward_head(&w->rank, w->head_count, RESULT_LOGITS, err));
	TRY(rank_fetch_logits(&w->rank, w->head_count, NULL, err));
	return sync_rank(w, err);
}

/* Every op of the last step marked, or its recorded form `repeats` times between two marks: in rank->trace. */
static enum status measure(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	const struct step_plan *plan = w->plan;
	const int bucket = graphs_bucket(rank, plan), outputs = bucket ? bucket : plan->outputs;
	if (!rank->trace) TRY(trace_create(&rank->trace, rank->device, 24 * rank->model->config.layers + 64, err));
	trace_begin(rank->trace, "layers");
	if (rank->notes) rank->notes->rehearsal = true;
	TRY(graphs_meet(rank, bucket, plan->result, err));
	TRY(trace_mark(rank->trace, rank->stream, "begin", err));
	if (w->repeats) {
		for (int i = 0; i < w->repeats; i++) TRY(graphs_replay(rank, bucket, plan->result, err));
		TRY(trace_mark(rank->trace, rank->stream, "replays", err));
	} else {
		rank->tracing = true;
		enum status st = forward_layers(rank, err);
		if (st == STATUS_OK) st = forward_head(rank, outputs, plan->result, err);
		rank->tracing = false;
		if (st != STATUS_OK) return st;
	}
	if (rank->notes) rank->notes->rehearsal = false;
	TRY(sync_rank(w, err));
	return trace_resolve(rank->trace, err);
}

/* A new comm; the old one is gone, and what was recorded with it goes. */
static enum status rejoin(struct worker *w, struct error *err)
{
	struct rank *rank = &w->rank;
	graphs_forget(rank);
	if (rank->notes) rank->notes->rehearsal = false; /* a rehearsal may be what failed */
	TRY(join_group(w, err));
	TRY(graphs_record(rank, err));
	return meet(rank, err);
}

/* After a failure: what this rank has on its stream leaves its waits by the group's abort. Only then may anybody free what it uses. */
static void drain(struct worker *w)
{
	struct rank *rank = &w->rank;
	struct error ignored = {0};
	if (rank->stream && rank->device->vt->stream_sync(rank->stream, clock_deadline_ms(DRAIN_MS), NULL, &ignored) == STATUS_TIMEOUT)
		w->busy_device = true;
}

static enum status run_command(struct worker *w, struct error *err)
{
	static const char *const doing[] = {[WORKER_OPEN] = "opening", [WORKER_STEP] = "running a step", [WORKER_HEAD] = "running the head",
	                                    [WORKER_MEASURE] = "measuring a step", [WORKER_REJOIN] = "joining a new group", [WORKER_STOP] = "stopping"};
	begin(w, doing[w->what]);
	switch (w->what) {
	case WORKER_OPEN: return open_rank(w, err);
	case WORKER_STEP: return run_step(w, err);
	case WORKER_HEAD: return run_head(w, err);
	case WORKER_MEASURE: return measure(w, err);
	case WORKER_REJOIN: return rejoin(w, err);
	case WORKER_STOP: return fault(w, FAULT_SHUTDOWN, 0, err);
	}
	return FAIL(err, BAD_INPUT, "rank %d: unknown command %d", w->rank.index, (int)w->what);
}

static void *worker_main(void *argument)
{
	struct worker *w = argument;
	uint32_t seen = 0;
	uint64_t last = w->accepted;
	if (w->rank.device) w->rank.device->vt->attach(w->rank.device);
	for (;;) {
		/* idle: not a wait for a peer; the coordinator always ends it, at the latest with STOP */
		while (!wait_change_spin(&w->command, seen, w->spin_ns, clock_deadline_ms(60000))) continue;
		seen = atomic_load_explicit(&w->command.value, memory_order_acquire);
		struct error err = {0};
		enum status st;
		if (w->generation != last + 1)
			st = FAIL(&err, BAD_INPUT, "rank %d: command generation %llu after %llu", w->rank.index, (unsigned long long)w->generation,
			          (unsigned long long)last);
		else st = run_command(w, &err);
		last = w->generation;
		if (st == STATUS_RANK_LOST && !group_aborted(w->rank.group)) return NULL; /* as a dead rank (fault kind exit): no abort, no report */
		if (st != STATUS_OK && w->what != WORKER_STOP) {
			group_abort(w->rank.group, w->rank.index, &err);
			drain(w);
		}
		bool stop = w->what == WORKER_STOP;
		w->status = st;
		w->error = err;
		atomic_store_explicit(&w->finished, last, memory_order_release);
		wait_bump(w->done);
		if (stop) return NULL;
	}
}

enum status worker_start(struct worker *w, struct error *err)
{
	atomic_store(&w->command.value, 0);
	atomic_store(&w->finished, w->generation);
	w->accepted = w->generation; /* nothing up to this is a command for the new thread */
	w->lost = false;
	int code = thread_start(&w->thread, NULL, worker_main, w);
	if (code) return FAIL(err, NO_MEMORY, "rank %d: no thread: %s", w->rank.index, strerror(code));
	w->started = true;
	return STATUS_OK;
}

void worker_command(struct worker *w, enum worker_command what, uint64_t generation)
{
	w->what = what;
	w->generation = generation;
	wait_bump(&w->command);
}

bool worker_check_lost(struct worker *w, uint64_t deadline_ns)
{
	if (w->lost || !w->started) return true;
	uint64_t now = clock_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(left / 1000000000u);
	until.tv_nsec += (long)(left % 1000000000u);
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	if (pthread_timedjoin_np(w->thread, NULL, &until) != 0) return false;
	w->started = false;
	w->lost = !(atomic_load(&w->finished) == w->generation);
	return w->lost;
}
