/* tandem.c: the public boundary (include/tandem.h), first half: options → model and group, reports, the end. Second half: requests.c. */
#include "engine/engine.h"

#include <assert.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/loader.h"
#include "model/plan.h"
#include "model/skipped.h"

#define DEFAULT_CONTEXT 8192
#define DEFAULT_SEQUENCES 8
#define DEFAULT_TIMEOUT_MS 30000
#define DEFAULT_STATE_EVERY 4096 /* tokens: the KV of so many is about as large as two states, of models that have both */

int engine_error(struct tandem_error *out, enum status code, const struct error *err)
{
	if (!out || code == STATUS_OK) return (int)code;
	out->code = (int)code;
	memcpy(out->text, err->text, sizeof out->text);
	return (int)code;
}

enum status engine_enter(struct tandem *t, struct error *err)
{
	if (t->process != getpid()) return FAIL(err, BAD_INPUT, "engine: opened by process %d, of which this is a fork; all it may do is close it", (int)t->process);
	if (t->busy) return FAIL(err, BAD_INPUT, "engine: called from a callback of its own; return from that first");
	t->busy = true;
	return STATUS_OK;
}

void engine_leave(struct tandem *t)
{
	t->busy = false;
}

const char *tandem_status_name(int code)
{
	return status_name((enum status)code);
}

int tandem_exit_code(int code)
{
	return status_exit_code((enum status)code);
}

bool tandem_is_fatal(int code)
{
	return status_scope((enum status)code) == STATUS_SCOPE_FATAL;
}

static void forward_log(void *context, enum log_level level, const char *line)
{
	struct tandem *t = context;
	if (!atomic_load(&t->left)) t->user_log(t->user_context, (int)level, line);
}

static void forward_progress(void *context, uint64_t done)
{
	struct tandem *t = context;
	if (!atomic_load(&t->left)) t->user_progress(t->user_context, "weights", done < t->progress_total ? done : t->progress_total, t->progress_total);
}

/* --- opening ---------------------------------------------------------------------------------------------------------------- */

static enum status between(const char *name, int64_t value, int64_t lo, int64_t hi, struct error *err)
{
	if (value >= lo && value <= hi) return STATUS_OK;
	return FAIL(err, USAGE, "%s: %lld is out of range; give %lld to %lld", name, (long long)value, (long long)lo, (long long)hi);
}

static enum status read_lm_head(struct tandem *t, const char *name, struct error *err)
{
	bool split = !strcmp(name, "vocab") || !strcmp(name, "auto");
	if (!split && strcmp(name, "rank0")) return FAIL(err, USAGE, "lm head: '%s'; give auto, vocab or rank0", name);
	t->head_on_rank0 = !split || t->world_size == 1;
	return STATUS_OK;
}

/* A partial sum must hold the table's elements as they are. */
static enum status choose_embedding(struct tandem *t, const char *choice, struct error *err)
{
	const struct model_config *c = &t->model.config;
	if (strcmp(choice, "auto") && strcmp(choice, "vocab") && strcmp(choice, "replicated"))
		return FAIL(err, USAGE, "embedding: '%s'; give auto, replicated or vocab", choice);
	const enum dtype partial = t->invariant ? DTYPE_F32 : device_activation(t->ops, c->dtype);
	const enum dtype table = loader_embedding_dtype(&t->model);
	const bool exact = partial == DTYPE_F32 || partial == table;
	t->embedding_split = shard_embedding(c, t->world_size, choice, t->ops->one_memory);
	if (!t->embedding_split || exact) return STATUS_OK;
	t->embedding_split = false;
	if (!strcmp(choice, "auto")) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "embedding: a table of %s would be rounded to %s on its way between ranks; take --embedding replicated", dtype_name(table),
	            dtype_name(partial));
}

static enum status read_options(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	if (!o->model) return FAIL(err, USAGE, "model: no path given; name a model folder");
	const char *device = o->device ? o->device : "cpu";
	t->ops = device_find(device);
	if (!t->ops) return FAIL(err, USAGE, "device: '%s' is not in this build; it has %s", device, device_names());
	t->world_size = o->world_size ? o->world_size : 1;
	t->max_sequences = o->max_sequences ? o->max_sequences : DEFAULT_SEQUENCES;
	t->max_rows = o->prefill_chunk ? o->prefill_chunk : device_prefill_chunk(t->ops);
	t->block_tokens = o->kv_block_tokens ? o->kv_block_tokens : device_kv_block_tokens(t->ops);
	t->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
	TRY(between("world size", t->world_size, 1, SHARD_MAX_WORLD, err));
	TRY(between("threads", o->threads, 0, 4096, err));
	TRY(between("sequences", t->max_sequences, 1, 4096, err));
	TRY(between("prefill chunk", t->max_rows, 1, 65536, err));
	TRY(between("kv block", t->block_tokens, 16, 4096, err));
	if (t->block_tokens % 16) return FAIL(err, USAGE, "kv block: %d tokens; give a multiple of 16", t->block_tokens);
	t->max_rows = step_limits_of(t->max_rows, t->max_sequences).max_rows;
	if (o->max_queue < 0) return FAIL(err, USAGE, "queue: %d requests; give 0 (no limit) or more", o->max_queue);
	t->max_queue = o->max_queue;
	t->prefix_cache = !o->no_prefix_cache;
	if (o->fault) TRY(fault_parse(&t->fault, o->fault, err));
	for (int i = 0; i < t->fault.count; i++)
		if (t->fault.entries[i].rank >= t->world_size)
			return FAIL(err, USAGE, "--fault: rank %d of a group of %d; give 0 to %d", t->fault.entries[i].rank, t->world_size, t->world_size - 1);
	t->graphs = t->ops->graph_begin && !o->no_graphs;
	t->invariant = o->tp_invariant;
	t->explain = o->explain_dispatch;
	TRY(read_lm_head(t, o->lm_head ? o->lm_head : "auto", err));
	if (o->log) {
		t->user_log = o->log;
		t->log = (struct log){forward_log, t};
	}
	t->user_progress = o->progress;
	t->user_context = o->context_pointer;
	return STATUS_OK;
}

/* Whole or not at all: a table that was made for something else says nothing here. */
static enum status open_whitelist(struct tandem *t, const char *path, struct error *err)
{
	TRY(whitelist_load(&t->whitelist, path, err));
	enum status st = whitelist_check_model(&t->whitelist, &t->model.config, t->ops, t->world_size, err);
	if (st != STATUS_OK) error_prefix(err, "%.200s", path);
	else log_write(&t->log, LOG_INFO, "whitelist %s: %d entries, hash %.12s", path, t->whitelist.entries, t->whitelist.hash);
	return st;
}

static enum status open_model(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	struct model *m = &t->model;
	TRY(model_config_load(&m->config, o->model, &t->log, err));
	TRY(generation_defaults_load(&t->defaults, &m->config, o->model, err));
	if (m->config.cannot_run[0]) return FAIL(err, UNSUPPORTED, "%s: %s", o->model, m->config.cannot_run);
	TRY(shard_degree(&m->config, t->world_size, err));
	if (o->whitelist) TRY(open_whitelist(t, o->whitelist, err));
	m->tree_leaves = shard_tree_leaves(&m->config);
	TRY(rope_init(&m->rope, &m->config, err));
	if (m->config.two_ropes) TRY(rope_init_local(&m->rope_local, &m->config, err));
	if (o->random_weights) TRY(source_open_random(&m->source, o->random_seed, m->config.dtype, err));
	else TRY(source_open_checkpoint(&m->source, o->model, &t->log, err));
	manifest_match(&m->config, m->source);
	TRY(manifest_init(&m->manifest, &m->config, err));
	TRY(shard_validate_all(&m->manifest, t->world_size, err));
	char skipped[SKIPPED_TEXT_BYTES];
	TRY(skipped_text(skipped, m->source, &m->manifest, err));
	if (skipped[0]) log_write(&t->log, LOG_INFO, "%s: skipped %s", o->model, skipped);
	TRY(loader_check(m, t->ops, err));
	return choose_embedding(t, o->embedding ? o->embedding : "auto", err);
}

/* Context and KV size. Whether they fit is for the ranks to say: each looks at its device before it allocates. */
static enum status size_memory(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	const struct model_config *c = &t->model.config;
	int longest = c->max_position;
	t->context = o->context ? o->context : longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
	TRY(between("context", t->context, 1, longest, err));
	int64_t tokens = o->kv_tokens ? o->kv_tokens : t->context;
	TRY(between("kv tokens", tokens, 1, (int64_t)1 << 30, err));
	t->kv_blocks = (int)((tokens + t->block_tokens - 1) / t->block_tokens);
	TRY(between("state snapshots", o->state_snapshots, -1, 65536, err));
	TRY(between("tokens between state snapshots", o->state_every, -1, (int64_t)1 << 30, err));
	int snapshots = !t->prefix_cache || o->state_snapshots < 0 ? 0 : o->state_snapshots ? o->state_snapshots : t->max_sequences;
	t->states = model_gdn_layers(c) ? plan_state_slots(t->max_sequences, snapshots) : 0;
	t->state_every = o->state_every < 0 ? 0 : o->state_every ? o->state_every : DEFAULT_STATE_EVERY;
	/* A window spare for each sequence, so that its prefix can be taken up. */
	const bool sliding = memchr(c->layer_kind, LAYER_SLIDING, (size_t)c->layers);
	t->windows = sliding ? plan_window_blocks(t->kv_blocks, t->block_tokens, t->max_sequences, t->max_rows, c->sliding_window, t->prefix_cache ? t->max_sequences : 0) : 0;
	return STATUS_OK;
}

static struct rank_options rank_options_of(const struct tandem *t)
{
	struct step_limits limits = step_limits_of(t->max_rows, t->max_sequences);
	const int spare = t->states - 2 * t->max_sequences; /* slots */
	limits.max_tails = spare < 0 ? 0 : spare < t->max_sequences ? spare : t->max_sequences;
	return (struct rank_options){
		.limits = limits,
		.kv = {.blocks = t->kv_blocks, .block_tokens = t->block_tokens, .max_seqs = t->max_sequences,
		       .max_blocks = (t->context + t->block_tokens - 1) / t->block_tokens, .prefix_cache = t->prefix_cache, .states = t->states,
		       .windows = t->windows, .window_tokens = t->model.config.sliding_window},
		.max_context = t->context, .graphs = t->graphs, .invariant = t->invariant,
		.head_on_rank0 = t->head_on_rank0, .embedding_split = t->embedding_split, .whitelist = t->whitelist.shapes ? &t->whitelist : NULL,
		.explain = t->explain};
}

static enum status open_group(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	struct rank_options rank = rank_options_of(t);
	TRY(step_plan_init(&t->plan, &rank.limits, err));
	TRY(sampler_create(&t->sampler, t->model.config.vocab_size, err));
	t->progress_total = loader_bytes(&t->model);
	struct coordinator_options c = {.model = &t->model, .ops = t->ops, .world_size = t->world_size, .threads = o->threads, .ordinals = o->devices,
	                                .isa = o->isa ? o->isa : "auto", .rank = rank, .kv_shuffle = o->kv_shuffle,
	                                .timeout_ms = t->timeout_ms, .fault = t->fault.count ? &t->fault : NULL, .log = &t->log,
	                                .interrupt = &t->interrupted, .progress = t->user_progress ? forward_progress : NULL, .progress_context = t};
	TRY(coordinator_open(&t->coordinator, &c, err));
	void *memory = coordinator_sample_memory(t->coordinator);
	t->sample_rows = rank_sample_rows(&rank);
	if (memory)
		TRY(device_sampler_create(&t->device_sampler, t->model.config.vocab_size, t->sample_rows, rank_sample_adjusts(&rank), memory, err));
	struct scheduler_options s = {.max_seqs = t->max_sequences, .max_rows = t->max_rows, .kv_blocks = t->kv_blocks,
	                              .block_tokens = t->block_tokens, .max_queue = t->max_queue, .states = t->states,
	                              .state_every = t->state_every, .kv = coordinator_kv(t->coordinator)};
	return scheduler_create(&t->scheduler, &s, err);
}

static int open_engine(struct tandem **out, const struct tandem_options *o, struct tandem_error *error)
{
	*out = NULL;
	uint64_t start = clock_ns();
	struct error err = {0};
	enum status st = STATUS_NO_MEMORY;
	struct tandem *t = mem_zalloc(1, sizeof *t, "engine", &err);
	if (!t) return engine_error(error, st, &err);
	t->next_id = 1;
	t->process = getpid();
	if (getrandom(&t->cache_salt, sizeof t->cache_salt, GRND_NONBLOCK) < 0) t->cache_salt = rng_mix(start); /* it only spreads hashes */
	TRY_GOTO(read_options(t, o, &err), fail);
	TRY_GOTO(open_model(t, o, &err), fail);
	TRY_GOTO(size_memory(t, o, &err), fail);
	TRY_GOTO(open_group(t, o, &err), fail);
	t->load_ms = (double)(clock_ns() - start) / 1e6;
	log_write(&t->log, LOG_INFO, "%s: %d rank%s, lm_head %s, embedding %s, kv %d blocks of %d tokens, prefix cache %s", t->model.config.model_type,
	          t->world_size, t->world_size == 1 ? "" : "s", t->head_on_rank0 ? "rank0" : "vocab", t->embedding_split ? "vocab" : "replicated", t->kv_blocks, t->block_tokens,
	          t->prefix_cache ? "on" : "off");
	if (t->windows) log_write(&t->log, LOG_INFO, "sliding layers: %d blocks of their own", t->windows);
	if (t->states) log_write(&t->log, LOG_INFO, "recurrent state: %d slots a rank, snapshots in those that no sequence needs", t->states);
	*out = t;
	return 0;
fail:
	tandem_close(&t);
	return engine_error(error, st, &err);
}

int tandem_open(struct tandem **out, const struct tandem_options *o, struct tandem_error *error)
{
	fenv_t mode; /* numbers of files are read, and tables made, on this thread */
	(void)fegetenv(&mode);
	(void)fesetenv(FE_DFL_ENV);
	int code = open_engine(out, o, error);
	(void)fesetenv(&mode);
	return code;
}

void tandem_close(struct tandem **engine)
{
	struct tandem *t = *engine;
	if (!t || t->busy) return;
	*engine = NULL;
	if (t->process != getpid()) return; /* threads and devices are the other process's: what is freed with them is left as it is */
	if (!coordinator_close(&t->coordinator)) { /* a rank may still use what it was given */
		atomic_store(&t->left, true);
		return;
	}
	device_sampler_destroy(&t->device_sampler);
	requests_forget_kept(t);
	scheduler_destroy(&t->scheduler);
	sampler_destroy(&t->sampler);
	step_plan_fini(&t->plan);
	source_close(&t->model.source);
	manifest_fini(&t->model.manifest);
	whitelist_fini(&t->whitelist);
	free(t);
}

/* --- reports ---------------------------------------------------------------------------------------------------------------- */

void tandem_get_rank_bytes(const struct tandem *t, int rank, struct tandem_rank_bytes *out)
{
	struct mem_report report;
	t->ops->report(coordinator_rank(t->coordinator, rank)->device, &report);
	*out = (struct tandem_rank_bytes){.sharded = report.now[MEM_SHARDED], .replicated = report.now[MEM_REPLICATED], .kv = report.now[MEM_KV],
	                                  .state = report.now[MEM_STATE],
	                                  .scratch = report.now[MEM_SCRATCH], .workspace = report.now[MEM_WORKSPACE] + report.now[MEM_GATHERED],
	                                  .runtime = report.now[MEM_RUNTIME], .peak = report.peak};
}

void tandem_get_info(const struct tandem *t, struct tandem_info *out)
{
	const struct model_config *c = &t->model.config;
	*out = (struct tandem_info){.device = t->ops->name, .isa = t->ops->flavour(coordinator_rank(t->coordinator, 0)->device),
	                            .lm_head = t->head_on_rank0 ? "rank0" : "vocab", .embedding = t->embedding_split ? "vocab" : "replicated",
	                            .world_size = t->world_size,
	                            .threads = coordinator_threads(t->coordinator), .vocab_size = c->vocab_size, .layers = c->layers,
	                            .context = t->context, .max_sequences = t->max_sequences, .eos_count = c->eos_count, .bos = c->bos,
	                            .collectives_per_step = t->collectives_per_step, .steps = t->generation,
	                            .checkpoint_bytes_read = source_bytes_read(t->model.source),
	                            .kv_tokens = (int64_t)t->kv_blocks * t->block_tokens,
	                            .kv_free_tokens = (int64_t)kv_group_free_blocks(coordinator_kv(t->coordinator)) * t->block_tokens, .state_slots = t->states,
	                            .load_ms = t->load_ms,
	                            .default_temperature = t->defaults.temperature, .default_top_p = t->defaults.top_p,
	                            .default_repetition_penalty = t->defaults.repetition_penalty, .default_top_k = t->defaults.top_k,
	                            .default_sample = t->defaults.do_sample};
	for (int i = 0; i < c->eos_count; i++) out->eos[i] = c->eos[i];
	for (int r = 0; r < t->world_size; r++) {
		struct tandem_rank_bytes bytes;
		tandem_get_rank_bytes(t, r, &bytes);
		out->weight_bytes += bytes.sharded + bytes.replicated;
	}
}

void tandem_get_stats(const struct tandem *t, struct tandem_stats *out)
{
	struct scheduler_stats s;
	const struct kv_group *kv = coordinator_kv(t->coordinator);
	scheduler_get_stats(t->scheduler, &s);
	*out = (struct tandem_stats){.running = s.running, .waiting = s.waiting, .submitted = t->next_id - 1, .finished = t->finished,
	                             .prompt_tokens = s.prompt_tokens, .cached_tokens = s.cached_tokens, .generated_tokens = t->generated_tokens,
	                             .computed_tokens = s.computed_tokens, .preemptions = s.preemptions, .steps = t->generation,
	                             .aborted_groups = t->aborted_groups, .rebuilds = t->rebuilds, .kv_block_tokens = t->block_tokens,
	                             .kv_blocks = t->kv_blocks, .kv_free_blocks = kv_group_free_blocks(kv), .state_hits = s.state_hits};
	if (!kv->count) return;
	out->evictions = kv_evictions(kv->pools[0]);
	out->kv_cached_blocks = kv_idle_blocks(kv->pools[0]);
	out->state_snapshots = kv_snapshots(kv->pools[0]);
	out->state_free_slots = kv_free_states(kv->pools[0]);
	out->state_evictions = kv_snapshot_evictions(kv->pools[0]);
}

void tandem_get_health(const struct tandem *t, int rank, struct tandem_health *out)
{
	struct rank_health h;
	bool usable = coordinator_health(t->coordinator, rank, &h);
	*out = (struct tandem_health){.usable = usable, .commands = h.commands, .moves = h.moves, .silent_ms = h.silent_ms};
}

void tandem_interrupt(struct tandem *t, bool on)
{
	atomic_store(&t->interrupted, on);
}
