/* tandem.c: the public boundary (include/tandem.h): options → model, group and requests; everything speaks token ids. */
#include "tandem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"
#include "engine/coordinator.h"
#include "engine/loader.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

#define DEFAULT_CONTEXT 8192
#define DEFAULT_CHUNK 512
#define DEFAULT_SEQUENCES 8
#define DEFAULT_BLOCK_TOKENS 32
#define DEFAULT_TIMEOUT_MS 30000
#define LOGIT_ROWS 32 /* rows of one tandem_logits head pass */

static_assert(TANDEM_MAX_LOGPROBS == SAMPLER_MAX_LOGPROBS, "one limit");
static_assert(sizeof(((struct tandem_error *)0)->text) == sizeof(((struct error *)0)->text), "texts fit");
static_assert((int)TANDEM_STOP == FINISH_STOP && (int)TANDEM_LENGTH == FINISH_LENGTH && (int)TANDEM_CANCELLED == FINISH_CANCELLED &&
                  (int)TANDEM_FAILED == FINISH_FAILED,
              "one meaning");

struct tandem {
	struct model model;
	struct generation_defaults defaults;
	const struct device_ops *ops;
	struct coordinator *coordinator;
	struct scheduler *scheduler;
	struct step_plan plan;
	struct sampler *sampler;
	float *host_logits;
	size_t host_logits_bytes;
	struct fault_plan fault;
	struct log log;
	_Atomic int interrupted;
	int world_size, context, max_sequences, kv_blocks, block_tokens, max_rows;
	uint64_t timeout_ms;
	uint64_t next_id;
	uint64_t generation; /* of the last plan */
	int collectives_per_step;
	double load_ms;
	void (*user_log)(void *, int, const char *);
	void (*user_progress)(void *, const char *, uint64_t, uint64_t);
	void *user_context;
	uint64_t progress_total;
};

static int give_error(struct tandem_error *out, enum status code, const struct error *err)
{
	if (!out || code == STATUS_OK) return (int)code;
	out->code = (int)code;
	memcpy(out->text, err->text, sizeof out->text);
	return (int)code;
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
	t->user_log(t->user_context, (int)level, line);
}

static void forward_progress(void *context, uint64_t done)
{
	struct tandem *t = context;
	t->user_progress(t->user_context, "weights", done < t->progress_total ? done : t->progress_total, t->progress_total);
}

/* --- opening ---------------------------------------------------------------------------------------------------------------- */

static enum status between(const char *name, int64_t value, int64_t lo, int64_t hi, struct error *err)
{
	if (value >= lo && value <= hi) return STATUS_OK;
	return FAIL(err, USAGE, "%s: %lld is out of range; give %lld to %lld", name, (long long)value, (long long)lo, (long long)hi);
}

static enum status read_options(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	if (!o->model) return FAIL(err, USAGE, "model: no path given; name a model folder");
	if (o->whitelist) return FAIL(err, UNSUPPORTED, "whitelist: kernel tables are not supported by this version; leave --whitelist out");
	t->world_size = o->world_size ? o->world_size : 1;
	t->max_sequences = o->max_sequences ? o->max_sequences : DEFAULT_SEQUENCES;
	t->max_rows = o->prefill_chunk ? o->prefill_chunk : DEFAULT_CHUNK;
	t->block_tokens = o->kv_block_tokens ? o->kv_block_tokens : DEFAULT_BLOCK_TOKENS;
	t->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
	TRY(between("world size", t->world_size, 1, SHARD_MAX_WORLD, err));
	TRY(between("threads", o->threads, 0, 4096, err));
	TRY(between("sequences", t->max_sequences, 1, 4096, err));
	TRY(between("prefill chunk", t->max_rows, 1, 65536, err));
	TRY(between("kv block", t->block_tokens, 16, 4096, err));
	if (t->block_tokens % 16) return FAIL(err, USAGE, "kv block: %d tokens; give a multiple of 16", t->block_tokens);
	if (t->max_rows < t->max_sequences) t->max_rows = t->max_sequences; /* every running sequence gets its decode row */
	if (o->fault) TRY(fault_parse(&t->fault, o->fault, err));
	for (int i = 0; i < t->fault.count; i++)
		if (t->fault.entries[i].rank >= t->world_size)
			return FAIL(err, USAGE, "--fault: rank %d of a group of %d; give 0 to %d", t->fault.entries[i].rank, t->world_size, t->world_size - 1);
	const char *device = o->device ? o->device : "cpu";
	t->ops = device_find(device);
	if (!t->ops) return FAIL(err, USAGE, "device: '%s' is not in this build; it has %s", device, device_names());
	if (o->log) {
		t->user_log = o->log;
		t->log = (struct log){forward_log, t};
	}
	t->user_progress = o->progress;
	t->user_context = o->context_pointer;
	return STATUS_OK;
}

static enum status open_model(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	struct model *m = &t->model;
	TRY(model_config_load(&m->config, o->model, &t->log, err));
	TRY(generation_defaults_load(&t->defaults, &m->config, o->model, err));
	if (m->config.cannot_run[0]) return FAIL(err, UNSUPPORTED, "%s: %s", o->model, m->config.cannot_run);
	TRY(shard_degree(&m->config, t->world_size, err));
	m->tree_leaves = shard_tree_leaves(&m->config);
	TRY(rope_init(&m->rope, &m->config, err));
	if (o->random_weights) TRY(source_open_random(&m->source, o->random_seed, m->config.dtype, err));
	else TRY(source_open_checkpoint(&m->source, o->model, &t->log, err));
	manifest_match(&m->config, m->source);
	TRY(manifest_init(&m->manifest, &m->config, err));
	return loader_check(m, err);
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
	return STATUS_OK;
}

static struct rank_options rank_options_of(const struct tandem *t)
{
	int outputs = t->max_sequences > LOGIT_ROWS ? t->max_sequences : LOGIT_ROWS;
	return (struct rank_options){
		.limits = {.max_rows = t->max_rows, .max_seqs = t->max_sequences, .max_outputs = outputs, .rotary_dim = t->model.config.rotary_dim},
		.kv = {.blocks = t->kv_blocks, .block_tokens = t->block_tokens, .max_seqs = t->max_sequences,
		       .max_blocks = (t->context + t->block_tokens - 1) / t->block_tokens},
		.max_context = t->context};
}

static enum status open_group(struct tandem *t, const struct tandem_options *o, struct error *err)
{
	struct rank_options rank = rank_options_of(t);
	size_t vocab = (size_t)t->model.config.vocab_size;
	t->host_logits_bytes = (size_t)rank.limits.max_outputs * vocab * sizeof(float);
	t->host_logits = mem_map(t->host_logits_bytes, "logits", err);
	if (!t->host_logits) return STATUS_NO_MEMORY;
	TRY(step_plan_init(&t->plan, &rank.limits, err));
	TRY(sampler_create(&t->sampler, t->model.config.vocab_size, err));
	struct scheduler_options s = {.max_seqs = t->max_sequences, .max_rows = t->max_rows, .kv_blocks = t->kv_blocks, .block_tokens = t->block_tokens};
	TRY(scheduler_create(&t->scheduler, &s, err));
	t->progress_total = loader_bytes(&t->model);
	struct coordinator_options c = {.model = &t->model, .ops = t->ops, .world_size = t->world_size, .threads = o->threads, .ordinals = o->devices,
	                                .isa = o->isa ? o->isa : "auto", .rank = rank, .kv_shuffle = o->kv_shuffle, .host_logits = t->host_logits,
	                                .timeout_ms = t->timeout_ms, .fault = t->fault.count ? &t->fault : NULL, .log = &t->log,
	                                .interrupt = &t->interrupted, .progress = t->user_progress ? forward_progress : NULL, .progress_context = t};
	return coordinator_open(&t->coordinator, &c, err);
}

int tandem_open(struct tandem **out, const struct tandem_options *o, struct tandem_error *error)
{
	*out = NULL;
	uint64_t start = clock_ns();
	struct error err = {0};
	enum status st = STATUS_NO_MEMORY;
	struct tandem *t = mem_zalloc(1, sizeof *t, "engine", &err);
	if (!t) return give_error(error, st, &err);
	t->next_id = 1;
	TRY_GOTO(read_options(t, o, &err), fail);
	TRY_GOTO(open_model(t, o, &err), fail);
	TRY_GOTO(size_memory(t, o, &err), fail);
	TRY_GOTO(open_group(t, o, &err), fail);
	t->load_ms = (double)(clock_ns() - start) / 1e6;
	log_write(&t->log, LOG_INFO, "%s: %d rank%s, lm_head %s, embedding replicated, kv %d blocks of %d tokens", t->model.config.model_type,
	          t->world_size, t->world_size == 1 ? "" : "s", t->world_size == 1 ? "rank0" : "vocab", t->kv_blocks, t->block_tokens);
	*out = t;
	return 0;
fail:
	tandem_close(&t);
	return give_error(error, st, &err);
}

void tandem_close(struct tandem **engine)
{
	struct tandem *t = *engine;
	if (!t) return;
	*engine = NULL;
	coordinator_close(&t->coordinator);
	scheduler_destroy(&t->scheduler);
	sampler_destroy(&t->sampler);
	step_plan_fini(&t->plan);
	mem_unmap(t->host_logits, t->host_logits_bytes);
	source_close(&t->model.source);
	manifest_fini(&t->model.manifest);
	free(t);
}

/* --- reports ---------------------------------------------------------------------------------------------------------------- */

void tandem_get_rank_bytes(const struct tandem *t, int rank, struct tandem_rank_bytes *out)
{
	struct mem_report report;
	t->ops->report(coordinator_rank(t->coordinator, rank)->device, &report);
	*out = (struct tandem_rank_bytes){.sharded = report.now[MEM_SHARDED], .replicated = report.now[MEM_REPLICATED], .kv = report.now[MEM_KV],
	                                  .scratch = report.now[MEM_SCRATCH], .workspace = report.now[MEM_WORKSPACE], .peak = report.peak};
}

void tandem_get_info(const struct tandem *t, struct tandem_info *out)
{
	const struct model_config *c = &t->model.config;
	*out = (struct tandem_info){.device = t->ops->name, .isa = t->ops->flavour(coordinator_rank(t->coordinator, 0)->device),
	                            .lm_head = t->world_size == 1 ? "rank0" : "vocab", .world_size = t->world_size,
	                            .threads = coordinator_threads(t->coordinator), .vocab_size = c->vocab_size, .layers = c->layers,
	                            .context = t->context, .max_sequences = t->max_sequences, .eos_count = c->eos_count, .bos = c->bos,
	                            .collectives_per_step = t->collectives_per_step, .steps = t->generation,
	                            .checkpoint_bytes_read = source_bytes_read(t->model.source),
	                            .kv_tokens = (int64_t)t->kv_blocks * t->block_tokens,
	                            .kv_free_tokens = (int64_t)coordinator_free_blocks(t->coordinator) * t->block_tokens, .load_ms = t->load_ms,
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

/* --- requests --------------------------------------------------------------------------------------------------------------- */

static enum status check_tokens(const struct tandem *t, const int32_t *tokens, int count, struct error *err)
{
	if (count < 1) return FAIL(err, BAD_INPUT, "prompt: empty; give at least one token");
	for (int i = 0; i < count; i++)
		if (tokens[i] < 0 || tokens[i] >= t->model.config.vocab_size)
			return FAIL(err, BAD_INPUT, "prompt: token id %d at position %d is out of range; give 0 to %d", tokens[i], i,
			            t->model.config.vocab_size - 1);
	if (count > t->context)
		return FAIL(err, BAD_INPUT, "prompt: %d tokens are more than the context of %d; shorten it or raise --context (the model allows %d)", count,
		            t->context, t->model.config.max_position);
	return STATUS_OK;
}

static enum status sampling_of(const struct tandem *t, const struct tandem_sampling *s, struct sampler_params *out, struct error *err)
{
	*out = (struct sampler_params){.temperature = s->temperature, .top_k = s->top_k, .top_p = s->top_p == 0 ? 1 : s->top_p, .min_p = s->min_p,
	                               .repetition_penalty = s->repetition_penalty == 0 ? 1 : s->repetition_penalty,
	                               .presence_penalty = s->presence_penalty, .frequency_penalty = s->frequency_penalty, .seed = s->seed,
	                               .bias_ids = s->bias_ids, .bias_values = s->bias_values, .bias_count = s->bias_count, .logprobs = s->logprobs};
	return sampler_validate(out, t->model.config.vocab_size, err);
}

/* Blocks that the request can ever need must fit into the pool, or it would wait for ever. */
static enum status check_room(const struct tandem *t, int prompt, int *max_tokens, struct error *err)
{
	int64_t most = t->context - prompt + 1; /* the last token is sampled but never read */
	if (*max_tokens > most) *max_tokens = (int)most;
	int64_t tokens = (int64_t)prompt + *max_tokens - 1, room = (int64_t)t->kv_blocks * t->block_tokens;
	if (tokens > room)
		return FAIL(err, NO_ROOM, "kv: %lld tokens wanted, %lld exist; lower max tokens or raise the KV size", (long long)tokens, (long long)room);
	return STATUS_OK;
}

static enum status make_sequence(struct tandem *t, const struct tandem_request *r, struct sequence **out, struct error *err)
{
	const struct model_config *c = &t->model.config;
	struct sequence_options o = {.prompt = r->prompt, .prompt_count = r->prompt_count, .max_tokens = r->max_tokens, .min_tokens = r->min_tokens};
	TRY(check_tokens(t, r->prompt, r->prompt_count, err));
	if (r->max_tokens < 1) return FAIL(err, BAD_INPUT, "max_tokens: %d; give at least 1", r->max_tokens);
	if (r->min_tokens < 0 || r->min_tokens > r->max_tokens)
		return FAIL(err, BAD_INPUT, "min_tokens: %d; give 0 to max_tokens (%d)", r->min_tokens, r->max_tokens);
	if (r->stop_count < 0 || r->stop_count > SEQUENCE_MAX_STOPS - MODEL_MAX_EOS)
		return FAIL(err, BAD_INPUT, "stop_token_ids: %d ids; give at most %d", r->stop_count, SEQUENCE_MAX_STOPS - MODEL_MAX_EOS);
	TRY(sampling_of(t, &r->sampling, &o.sampling, err));
	TRY(check_room(t, r->prompt_count, &o.max_tokens, err));
	int32_t stops[SEQUENCE_MAX_STOPS];
	for (int i = 0; i < r->stop_count; i++) stops[o.stop_count++] = r->stop_ids[i];
	for (int i = 0; i < c->eos_count && !r->ignore_eos; i++) stops[o.stop_count++] = c->eos[i];
	o.stop_ids = stops;
	return sequence_create(out, t->next_id, &o, err);
}

int tandem_submit(struct tandem *t, const struct tandem_request *request, uint64_t *id, struct tandem_error *error)
{
	struct error err = {0};
	struct sequence *sequence;
	enum status st = make_sequence(t, request, &sequence, &err);
	if (st != STATUS_OK) return give_error(error, st, &err);
	*id = t->next_id++;
	scheduler_submit(t->scheduler, sequence);
	return 0;
}

int tandem_cancel(struct tandem *t, uint64_t id)
{
	struct sequence *sequence = scheduler_find(t->scheduler, id);
	if (!sequence) return (int)STATUS_BAD_INPUT;
	sequence->cancelled = true;
	return 0;
}

void tandem_interrupt(struct tandem *t, bool on)
{
	atomic_store(&t->interrupted, on);
}

/* --- steps ------------------------------------------------------------------------------------------------------------------ */

/* Ends a sequence: its KV goes back on every rank, its memory is freed. */
static void retire(struct tandem *t, struct sequence *sequence)
{
	int slot = sequence->slot;
	scheduler_remove(t->scheduler, sequence);
	if (slot >= 0) coordinator_release(t->coordinator, slot);
	sequence_destroy(&sequence);
}

/* After a fatal failure nothing that ran can go on. */
static void retire_all(struct tandem *t)
{
	struct sequence *sequence;
	while ((sequence = scheduler_next_cancelled(t->scheduler, true))) retire(t, sequence);
}

static void fill_rope(struct tandem *t)
{
	for (int i = 0; i < t->plan.rows; i++)
		rope_row(&t->model.rope, t->plan.position[i], t->plan.cos_sin + (size_t)i * (size_t)t->plan.limits.rotary_dim);
}

static enum status run_plan(struct tandem *t, struct error *err)
{
	t->plan.generation = ++t->generation;
	fill_rope(t);
	uint64_t before = coordinator_all_reduces(t->coordinator);
	TRY(coordinator_step(t->coordinator, &t->plan, err));
	t->collectives_per_step = (int)(coordinator_all_reduces(t->coordinator) - before);
	return STATUS_OK;
}

static enum status pick(struct tandem *t, int output, struct tandem_event *event, struct error *err)
{
	struct sequence *s = t->plan.sequence[t->plan.output_seq[output]];
	bool hold = s->count - s->prompt_count < s->min_tokens; /* no end before min_tokens */
	struct sampler_input in = {.logits = t->host_logits + (size_t)output * (size_t)t->model.config.vocab_size, .prompt = s->tokens,
	                           .prompt_count = s->prompt_count, .generated = s->tokens + s->prompt_count,
	                           .generated_count = s->count - s->prompt_count, .masked = hold ? s->stop_ids : NULL,
	                           .masked_count = hold ? s->stop_count : 0};
	struct sampler_choice choice;
	TRY(sampler_pick(t->sampler, &s->sampling, &in, &choice, err));
	*event = (struct tandem_event){.id = s->id, .token = choice.token, .logprob = choice.logprob, .alternatives = choice.alternatives};
	memcpy(event->alternative_id, choice.alternative_id, sizeof event->alternative_id);
	memcpy(event->alternative_logprob, choice.alternative_logprob, sizeof event->alternative_logprob);
	event->finish = (enum tandem_finish)sequence_append(s, choice.token);
	return STATUS_OK;
}

/* Samples every output once and applies it once. */
static enum status apply(struct tandem *t, struct tandem_event *events, int *count, struct error *err)
{
	scheduler_committed(t->scheduler, &t->plan);
	TRY(fault_check(t->fault.count ? &t->fault : NULL, 0, FAULT_SAMPLE, t->generation - 1, &t->interrupted, err));
	for (int i = 0; i < t->plan.outputs; i++) {
		struct sequence *s = t->plan.sequence[t->plan.output_seq[i]];
		struct tandem_event *event = &events[*count];
		TRY(pick(t, i, event, err));
		++*count;
		if (event->finish != TANDEM_RUNNING) retire(t, s);
	}
	return STATUS_OK;
}

static void drain_cancelled(struct tandem *t, struct tandem_event *events, int max, int *count)
{
	struct sequence *s;
	while (*count < max && (s = scheduler_next_cancelled(t->scheduler, false))) {
		events[(*count)++] = (struct tandem_event){.id = s->id, .token = -1, .finish = TANDEM_CANCELLED};
		retire(t, s);
	}
}

static enum status step(struct tandem *t, struct tandem_event *events, int max, int *count, bool *idle, struct error *err)
{
	if (max < t->max_sequences) return FAIL(err, BAD_INPUT, "step: room for %d events; give room for %d", max, t->max_sequences);
	if (atomic_load(&t->interrupted)) return FAIL(err, CANCELLED, "interrupted");
	drain_cancelled(t, events, max, count);
	if (*count > 0) return STATUS_OK;
	scheduler_plan(t->scheduler, &t->plan);
	*idle = t->plan.rows == 0;
	if (*idle) return STATUS_OK;
	TRY(run_plan(t, err));
	return apply(t, events, count, err);
}

int tandem_step(struct tandem *t, struct tandem_event *events, int max, int *count, bool *idle, struct tandem_error *error)
{
	struct error err = {0};
	*count = 0;
	*idle = false;
	enum status st = step(t, events, max, count, idle, &err);
	if (st != STATUS_OK && st != STATUS_BAD_INPUT) {
		*count = 0;
		retire_all(t);
		if (st != STATUS_CANCELLED) coordinator_abort(t->coordinator, &err);
		else if (coordinator_dead(t->coordinator)) { /* interrupted inside a step: the ranks are well, the engine stays usable */
			struct error again = {0};
			if (coordinator_rebuild(t->coordinator, &again) != STATUS_OK) log_write(&t->log, LOG_WARN, "%s", again.text);
		}
	}
	return give_error(error, st, &err);
}

int tandem_rebuild(struct tandem *t, struct tandem_error *error)
{
	struct error err = {0};
	retire_all(t);
	return give_error(error, coordinator_rebuild(t->coordinator, &err), &err);
}

/* --- logits of a whole prompt ----------------------------------------------------------------------------------------------- */

typedef int logits_row(void *context, int position, const float *logits, int vocab_size);

/* Hands out the logits of the rows just run. */
static enum status give_rows(struct tandem *t, int position, logits_row *row, void *context, struct error *err)
{
	int vocab = t->model.config.vocab_size;
	for (int first = 0; first < t->plan.rows; first += LOGIT_ROWS) {
		int count = t->plan.rows - first < LOGIT_ROWS ? t->plan.rows - first : LOGIT_ROWS;
		TRY(coordinator_head(t->coordinator, first, count, err));
		for (int i = 0; i < count; i++)
			if (row(context, position + first + i, t->host_logits + (size_t)i * (size_t)vocab, vocab))
				return FAIL(err, CANCELLED, "stopped by the receiver of the logits");
	}
	return STATUS_OK;
}

static enum status whole_prompt(struct tandem *t, const int32_t *tokens, int count, logits_row *row, void *context, struct error *err)
{
	for (int begin = 0; begin < count; begin += t->max_rows) {
		int end = count - begin < t->max_rows ? count : begin + t->max_rows;
		step_plan_clear(&t->plan);
		step_plan_add(&t->plan, NULL, 0, tokens, begin, end, 0);
		TRY(run_plan(t, err));
		TRY(give_rows(t, begin, row, context, err));
	}
	return STATUS_OK;
}

int tandem_logits(struct tandem *t, const int32_t *tokens, int count, logits_row *row, void *context, struct tandem_error *error)
{
	struct error err = {0};
	enum status st = check_tokens(t, tokens, count, &err);
	if (st == STATUS_OK && scheduler_next_cancelled(t->scheduler, true))
		st = FAIL(&err, BAD_INPUT, "logits: requests are in flight; let them finish or cancel them first");
	if (st != STATUS_OK) return give_error(error, st, &err);
	st = whole_prompt(t, tokens, count, row, context, &err);
	coordinator_release(t->coordinator, 0);
	if (st == STATUS_CANCELLED && coordinator_dead(t->coordinator)) {
		struct error again = {0};
		if (coordinator_rebuild(t->coordinator, &again) != STATUS_OK) log_write(&t->log, LOG_WARN, "%s", again.text);
	}
	return give_error(error, st, &err);
}
