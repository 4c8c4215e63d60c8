#include "serve/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void set_bounds(struct histogram *h, const double *bounds, int n)
{
	for (int i = 0; i < n && i < METRICS_MAX_BUCKETS; i++) h->bounds[h->buckets++] = bounds[i];
}

/* 1, 2, 5, 10, … up to the first that is at least `most`. */
static void set_125(struct histogram *h, int most)
{
	static const int steps[] = {1, 2, 5};
	double scale = 1;
	for (int i = 0; h->buckets < METRICS_MAX_BUCKETS; i++) {
		h->bounds[h->buckets++] = steps[i % 3] * scale;
		if (steps[i % 3] * scale >= most) break;
		if (i % 3 == 2) scale *= 10;
	}
}

#define SET(h, ...)                                                                   \
	do {                                                                              \
		static const double bounds_[] = {__VA_ARGS__};                                \
		set_bounds((h), bounds_, (int)(sizeof bounds_ / sizeof *bounds_));            \
	} while (0)

void metrics_init(struct metrics *m, int context)
{
	*m = (struct metrics){0};
	SET(&m->ttft, 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560);
	SET(&m->itl, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80);
	struct histogram *const long_ones[] = {&m->e2e, &m->inference, &m->decode, &m->queue, &m->prefill};
	for (int i = 0; i < 5; i++)
		SET(long_ones[i], 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680);
	set_125(&m->prompt, context);
	set_125(&m->generation, context);
	set_125(&m->max_tokens, context);
	SET(&m->n, 1, 2, 5, 10, 20, 50, 100, 128);
	for (int i = 0; i < METRICS_MAX_HANDLERS; i++) SET(&m->http[i], 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300);
}

void histogram_add(struct histogram *h, double value)
{
	int i = 0;
	while (i < h->buckets && value > h->bounds[i]) i++;
	h->counts[i]++;
	h->count++;
	h->sum += value;
}

void metrics_http(struct metrics *m, int number, const char *handler, const char *method, int status, double seconds)
{
	int i = 0;
	histogram_add(&m->http[number], seconds);
	while (i < m->request_kinds && !(m->requests[i].handler == handler && m->requests[i].status == status && !strcmp(m->requests[i].method, method))) i++;
	if (i == METRICS_MAX_HTTP) return;
	if (i == m->request_kinds) {
		m->request_kinds++;
		m->requests[i].handler = handler;
		m->requests[i].method = method;
		m->requests[i].status = status;
	}
	m->requests[i].count++;
}

static double seconds_between(uint64_t from, uint64_t to)
{
	return to > from ? (double)(to - from) / 1e9 : 0;
}

void metrics_completion(struct metrics *m, const struct completion *completion, uint64_t submitted_ns, uint64_t now_ns)
{
	struct completion_times t;
	const struct request *q = completion_request(completion);
	completion_get_times(completion, &t);
	for (int i = 0; i < completion_choices(completion); i++) {
		const char *finish = completion_finish(completion, i);
		if (!strcmp(finish, "stop")) m->finished_stop++;
		else if (!strcmp(finish, "length")) m->finished_length++;
		else if (!strcmp(finish, "error")) m->finished_error++;
		else m->finished_abort++;
	}
	histogram_add(&m->e2e, seconds_between(t.arrival_ns, now_ns));
	histogram_add(&m->prompt, t.prompt_tokens);
	histogram_add(&m->generation, t.completion_tokens);
	histogram_add(&m->n, q->n);
	if (q->max_tokens >= 0) histogram_add(&m->max_tokens, (double)q->max_tokens);
	if (!t.first_ns) return;
	histogram_add(&m->ttft, seconds_between(t.arrival_ns, t.first_ns));
	double first = seconds_between(submitted_ns, t.first_ns);
	histogram_add(&m->queue, t.queue_seconds);
	histogram_add(&m->prefill, first > t.queue_seconds ? first - t.queue_seconds : 0);
	histogram_add(&m->inference, seconds_between(submitted_ns, t.last_ns));
	histogram_add(&m->decode, seconds_between(t.first_ns, t.last_ns));
}

/* ---- text ---- */

struct writer {
	struct out *out;
	const char *model; /* escaped for a label */
};

static void escape_label(const char *text, char *out, size_t size)
{
	size_t n = 0;
	for (; *text && n + 3 < size; text++) {
		if (*text == '\\' || *text == '"' || *text == '\n') out[n++] = '\\';
		out[n++] = *text == '\n' ? 'n' : *text;
	}
	out[n] = 0;
}

static void family(struct writer *w, const char *name, const char *type, const char *help)
{
	out_printf(w->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample(struct writer *w, const char *name, const char *labels, double value)
{
	out_printf(w->out, "%s{model_name=\"%.300s\",engine=\"0\"%s} %.17g\n", name, w->model, labels, value);
}

static void one(struct writer *w, const char *name, const char *type, const char *help, double value)
{
	family(w, name, type, help);
	sample(w, name, "", value);
}

static void put_histogram(struct writer *w, const char *name, const char *labels, const struct histogram *h)
{
	char bucket[96], more[160];
	uint64_t total = 0;
	snprintf(bucket, sizeof bucket, "%s_bucket", name);
	for (int i = 0; i < h->buckets; i++) {
		total += h->counts[i];
		snprintf(more, sizeof more, "%s,le=\"%g\"", labels, h->bounds[i]);
		sample(w, bucket, more, (double)total);
	}
	snprintf(more, sizeof more, "%s,le=\"+Inf\"", labels);
	sample(w, bucket, more, (double)h->count);
	snprintf(bucket, sizeof bucket, "%s_sum", name);
	sample(w, bucket, labels, h->sum);
	snprintf(bucket, sizeof bucket, "%s_count", name);
	sample(w, bucket, labels, (double)h->count);
}

static void write_requests(struct writer *w, const struct metrics *m, const struct metrics_state *s)
{
	const struct tandem_info *info = &s->driver->info;
	const struct tandem_stats *stats = &s->driver->stats;
	one(w, "vllm:num_requests_running", "gauge", "Sequences that the engine works on.", stats->running);
	one(w, "vllm:num_requests_waiting", "gauge", "Sequences that wait for a place.", stats->waiting + s->waiting);
	one(w, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.",
	    info->kv_tokens ? 1 - (double)info->kv_free_tokens / (double)info->kv_tokens : 0);
	family(w, "vllm:cache_config_info", "gauge", "Size of the KV cache.");
	char labels[160];
	snprintf(labels, sizeof labels, ",block_size=\"%d\",num_gpu_blocks=\"%d\"", stats->kv_block_tokens, stats->kv_blocks);
	sample(w, "vllm:cache_config_info", labels, 1);
	one(w, "vllm:num_preemptions_total", "counter", "Sequences that gave their KV back and were computed again.", (double)stats->preemptions);
	one(w, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", (double)stats->prompt_tokens);
	one(w, "vllm:prefix_cache_hits_total", "counter", "Of these, found.", (double)stats->cached_tokens);
	one(w, "vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that the engine got.", (double)m->prompt_tokens);
	one(w, "vllm:generation_tokens_total", "counter", "Generated tokens.", (double)m->generation_tokens);
	family(w, "vllm:request_success_total", "counter", "Sequences that ended, by reason.");
	sample(w, "vllm:request_success_total", ",finished_reason=\"stop\"", (double)m->finished_stop);
	sample(w, "vllm:request_success_total", ",finished_reason=\"length\"", (double)m->finished_length);
	sample(w, "vllm:request_success_total", ",finished_reason=\"abort\"", (double)m->finished_abort);
	sample(w, "vllm:request_success_total", ",finished_reason=\"error\"", (double)m->finished_error);
#define X(member, name, help)            \
	family(w, name, "histogram", help);  \
	put_histogram(w, name, "", &m->member);
	METRICS_HISTOGRAM_LIST(X)
#undef X
}

static void write_http(struct writer *w, const struct metrics *m, const struct metrics_state *s)
{
	char labels[160];
	family(w, "http_requests_total", "counter", "Answers, by route, method and status.");
	for (int i = 0; i < m->request_kinds; i++) {
		snprintf(labels, sizeof labels, ",handler=\"%s\",method=\"%s\",status=\"%d\"", m->requests[i].handler, m->requests[i].method, m->requests[i].status);
		sample(w, "http_requests_total", labels, (double)m->requests[i].count);
	}
	family(w, "http_request_duration_seconds", "histogram", "Arrival of a request to the end of its answer, by route.");
	for (int i = 0; i < s->handler_count && i < METRICS_MAX_HANDLERS; i++) {
		if (!m->http[i].count) continue;
		snprintf(labels, sizeof labels, ",handler=\"%s\"", s->handlers[i]);
		put_histogram(w, "http_request_duration_seconds", labels, &m->http[i]);
	}
	one(w, "tandem_connections", "gauge", "Open connections.", s->connections);
	one(w, "tandem_rejected_requests_total", "counter", "Requests refused because the queue was full.", (double)m->rejected);
	one(w, "tandem_slow_readers_total", "counter", "Connections closed because their client did not read.", (double)m->slow_readers);
	one(w, "tandem_refused_connections_total", "counter", "Connections beyond the limit.", (double)m->refused_connections);
	one(w, "tandem_timed_out_requests_total", "counter", "Requests that did not arrive in time.", (double)m->timed_out);
}

static void write_ranks(struct writer *w, const struct metrics_state *s)
{
	const struct driver_status *d = s->driver;
	int world = d->info.world_size < DRIVER_MAX_RANKS ? d->info.world_size : DRIVER_MAX_RANKS;
	static const char *const names[] = {"tandem_rank_weight_bytes", "tandem_rank_kv_bytes", "tandem_rank_state_bytes", "tandem_rank_scratch_bytes", "tandem_rank_workspace_bytes",
	                                    "tandem_rank_peak_bytes", "tandem_rank_generation"};
	static const char *const help[] = {"Weights of a rank, its shards and what it replicates.", "KV cache of a rank.", "Recurrent state of sequences of a rank.", "Scratch of a rank.",
	                                   "Workspace of a rank.", "Most bytes that a rank ever held.", "Commands that a rank has finished; all ranks show the same between steps."};
	one(w, "tandem_world_size", "gauge", "Ranks.", d->info.world_size);
	for (int i = 0; i < 7; i++) {
		family(w, names[i], "gauge", help[i]);
		for (int r = 0; r < world; r++) {
			char labels[32];
			const struct tandem_rank_bytes *b = &d->ranks[r];
			struct tandem_health h;
			tandem_get_health(s->engine, r, &h);
			const uint64_t values[] = {b->sharded + b->replicated, b->kv, b->state, b->scratch, b->workspace, b->peak, h.commands};
			snprintf(labels, sizeof labels, ",rank=\"%d\"", r);
			sample(w, names[i], labels, (double)values[i]);
		}
	}
	one(w, "tandem_kv_free_tokens", "gauge", "Tokens of KV that are free on every rank.", (double)d->info.kv_free_tokens);
	one(w, "tandem_kv_tokens", "gauge", "Tokens of KV in all.", (double)d->info.kv_tokens);
	one(w, "tandem_kv_cached_blocks", "gauge", "Free blocks that still hold a prefix.", d->stats.kv_cached_blocks);
	one(w, "tandem_kv_evictions_total", "counter", "Cached blocks that were given to others.", (double)d->stats.evictions);
	one(w, "tandem_state_slots", "gauge", "Slots of recurrent state of each rank; 0: the model has none.", d->info.state_slots);
	one(w, "tandem_state_free_slots", "gauge", "Slots that are empty or hold a snapshot that no request uses.", d->stats.state_free_slots);
	one(w, "tandem_state_snapshots", "gauge", "Snapshots of recurrent state that a prefix can be continued from.", d->stats.state_snapshots);
	one(w, "tandem_state_hits_total", "counter", "Snapshots that requests went on from.", (double)d->stats.state_hits);
	one(w, "tandem_state_evictions_total", "counter", "Snapshots that were given up for room.", (double)d->stats.state_evictions);
	one(w, "tandem_computed_tokens_total", "counter", "Rows of all steps.", (double)d->stats.computed_tokens);
	one(w, "tandem_steps_total", "counter", "Steps that all ranks have done.", (double)d->generation);
	one(w, "tandem_step_seconds_total", "counter", "Time of all steps, from plan to tokens. Ranks go in step: it is that of each.", (double)d->step_ns / 1e9);
	one(w, "tandem_aborts_total", "counter", "Failures of the group of ranks.", (double)d->aborts);
	one(w, "tandem_rebuilds_total", "counter", "Groups made anew after a failure.", (double)d->rebuilds);
	one(w, "tandem_state", "gauge", "0 ready, 1 rebuilding, 2 stopped.", d->state);
}

static void write_process(struct writer *w)
{
	unsigned long size = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");
	if (file && fscanf(file, "%lu %lu", &size, &resident) != 2) resident = 0;
	if (file) fclose(file);
	int fds = 0;
	DIR *folder = opendir("/proc/self/fd");
	while (folder && readdir(folder)) fds++;
	if (folder) closedir(folder);
	struct timespec cpu = {0};
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	one(w, "process_resident_memory_bytes", "gauge", "Resident memory.", (double)resident * (double)sysconf(_SC_PAGESIZE));
	one(w, "process_open_fds", "gauge", "Open file descriptors.", fds > 3 ? fds - 3 : 0);
	one(w, "process_cpu_seconds_total", "counter", "CPU time of all threads.", (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9);
}

void metrics_write(const struct metrics *m, const struct metrics_state *state, struct out *out)
{
	char model[256];
	escape_label(state->facts->names[0], model, sizeof model);
	struct writer w = {out, model};
	write_requests(&w, m, state);
	write_http(&w, m, state);
	write_ranks(&w, state);
	write_process(&w);
}
