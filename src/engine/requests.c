/* requests.c: the public boundary, second half: requests and the steps that answer them. */
#include "engine/engine.h"

#include <assert.h>
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static_assert(TANDEM_MAX_LOGPROBS == SAMPLER_MAX_LOGPROBS, "one limit");
static_assert(sizeof(((struct tandem_error *)0)->text) == sizeof(((struct error *)0)->text), "texts fit");
static_assert((int)TANDEM_STOP == FINISH_STOP && (int)TANDEM_LENGTH == FINISH_LENGTH && (int)TANDEM_CANCELLED == FINISH_CANCELLED &&
                  (int)TANDEM_FAILED == FINISH_FAILED && (int)TANDEM_TIMEOUT == FINISH_TIMEOUT,
              "one meaning");

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
	                               .bias_ids = s->bias_ids, .bias_values = s->bias_values, .bias_count = s->bias_count, .logprobs = s->logprobs,
	                               .want_logprob = s->logprob};
	return sampler_validate(out, t->model.config.vocab_size, err);
}

/* Blocks that the request can ever need must fit into the pool, or it would wait for ever. */
static enum status check_room(const struct tandem *t, int prompt, int *max_tokens, struct error *err)
{
	int64_t most = t->context - prompt + 1; /* the last token is sampled but never read */
	if (*max_tokens > most) *max_tokens = (int)most;
	int64_t tokens = (int64_t)prompt + (*max_tokens ? *max_tokens - 1 : 0), room = (int64_t)t->kv_blocks * t->block_tokens;
	if (tokens > room)
		return FAIL(err, NO_ROOM, "kv: %lld tokens wanted, %lld exist; lower max tokens or raise the KV size", (long long)tokens, (long long)room);
	return STATUS_OK;
}

static enum status make_sequence(struct tandem *t, const struct tandem_request *r, struct sequence **out, struct error *err)
{
	const struct model_config *c = &t->model.config;
	uint64_t now = clock_ns();
	struct sequence_options o = {.prompt = r->prompt, .prompt_count = r->prompt_count, .max_tokens = r->max_tokens,
	                             .min_tokens = r->min_tokens, .score_prompt = r->prompt_logprobs,
	                             .block_tokens = t->prefix_cache ? t->block_tokens : 0, .salt = rng_mix(t->cache_salt ^ rng_mix(r->cache_salt)),
	                             .submitted_ns = now, .deadline_ns = r->deadline_ms ? now + r->deadline_ms * UINT64_C(1000000) : 0};
	TRY(check_tokens(t, r->prompt, r->prompt_count, err));
	if (r->max_tokens < 0 || (r->max_tokens == 0 && !r->prompt_logprobs))
		return FAIL(err, BAD_INPUT, "max_tokens: %d; give at least 1 (0 only to score the prompt)", r->max_tokens);
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
	if (st != STATUS_OK) return engine_error(error, st, &err);
	st = scheduler_submit(t->scheduler, sequence, &err);
	if (st == STATUS_OK) *id = t->next_id++;
	else sequence_destroy(&sequence);
	return engine_error(error, st, &err);
}

int tandem_cancel(struct tandem *t, uint64_t id)
{
	return scheduler_cancel(t->scheduler, id) ? 0 : (int)STATUS_BAD_INPUT;
}

/* --- ends ------------------------------------------------------------------------------------------------------------------- */

void requests_forget_kept(struct tandem *t)
{
	while (t->kept) {
		struct sequence *s = t->kept;
		t->kept = s->next;
		sequence_destroy(&s);
	}
}

/* Takes over a sequence that left the scheduler. */
static void dispose(struct tandem *t, struct sequence *s)
{
	t->finished++;
	if (!s->scores) {
		sequence_destroy(&s);
		return;
	}
	s->next = t->kept;
	t->kept = s;
}

/* After a fatal failure nothing that ran can go on. */
static void retire_all(struct tandem *t)
{
	struct sequence *s;
	while ((s = scheduler_any(t->scheduler))) {
		scheduler_remove(t->scheduler, s, FINISH_FAILED);
		dispose(t, s);
	}
	while ((s = scheduler_take_ended(t->scheduler))) dispose(t, s);
	requests_forget_kept(t);
}

static struct tandem_event event_of(const struct sequence *s, uint64_t now_ns)
{
	uint64_t start = s->started_ns ? s->started_ns : now_ns;
	return (struct tandem_event){.id = s->id, .token = -1, .finish = (enum tandem_finish)s->finish, .cached_tokens = s->cached_tokens,
	                             .queue_ms = start > s->submitted_ns ? (float)((double)(start - s->submitted_ns) / 1e6) : 0};
}

static void give_choice(struct tandem_event *event, const struct sampler_choice *choice)
{
	event->token = choice->token;
	event->logprob = choice->logprob;
	event->alternatives = choice->alternatives;
	memcpy(event->alternative_id, choice->alternative_id, sizeof event->alternative_id);
	memcpy(event->alternative_logprob, choice->alternative_logprob, sizeof event->alternative_logprob);
}

static void give_ended(struct tandem *t, uint64_t now_ns, struct tandem_event *events, int max, int *count)
{
	struct sequence *s;
	while (*count < max && (s = scheduler_take_ended(t->scheduler))) {
		events[(*count)++] = event_of(s, now_ns);
		dispose(t, s);
	}
}

/* --- steps ------------------------------------------------------------------------------------------------------------------ */

/* Tokens before min_tokens: none of them may end the sequence. */
static bool held(const struct sequence *s)
{
	return s->count - s->prompt_count < s->min_tokens;
}

/* Whether the likeliest token of every output is all that is wanted, and the devices can find it. */
static bool wants_best(const struct tandem *t)
{
	if (!t->ops->ops.argmax) return false;
	for (int i = 0; i < t->plan.outputs; i++) {
		const struct sequence *s = t->plan.sequence[t->plan.output_seq[i]];
		if (!sampler_is_argmax(&s->sampling) || (held(s) && s->stop_count)) return false;
	}
	return true;
}

/* The sequence of an output as samplers see it. */
static struct sampler_input input_of(const struct sequence *s, float *logits)
{
	bool hold = held(s);
	return (struct sampler_input){.logits = logits, .prompt = s->tokens, .prompt_count = s->prompt_count, .generated = s->tokens + s->prompt_count,
	                              .generated_count = s->count - s->prompt_count, .masked = hold ? s->stop_ids : NULL,
	                              .masked_count = hold ? s->stop_count : 0};
}

/* Where the tokens of the step will be picked, and what is needed for it. */
static void choose_result(struct tandem *t)
{
	struct step_plan *plan = &t->plan;
	plan->result = RESULT_LOGITS;
	if (wants_best(t)) plan->result = RESULT_BEST;
	else if (t->device_sampler && plan->outputs <= t->sample_rows) plan->result = RESULT_SAMPLED;
	if (plan->result != RESULT_SAMPLED) return;
	device_sampler_begin(t->device_sampler, t->sample_rows); /* padding rows are skipped */
	for (int i = 0; i < plan->outputs; i++) {
		const struct sequence *s = plan->sequence[plan->output_seq[i]];
		struct sampler_input in = input_of(s, NULL);
		plan->to_host[i] = !device_sampler_add(t->device_sampler, i, &s->sampling, &in);
	}
	plan->sample_bytes = device_sampler_bytes_used(t->device_sampler);
}

static enum status run_plan(struct tandem *t, struct error *err)
{
	t->plan.generation = ++t->generation;
	choose_result(t);
	uint64_t before = coordinator_all_reduces(t->coordinator);
	step_clock_end(&t->clock, TANDEM_PLAN);
	TRY(coordinator_step(t->coordinator, &t->plan, err));
	t->collectives_per_step = (int)(coordinator_all_reduces(t->coordinator) - before);
	return STATUS_OK;
}

static float *row_of_logits(const struct tandem *t, int row)
{
	return coordinator_logits(t->coordinator) + (size_t)row * (size_t)t->model.config.vocab_size;
}

/* The token of an output of the step just run. */
static enum status choose(struct tandem *t, int output, const struct sequence *s, struct sampler_choice *choice, struct error *err)
{
	if (t->plan.result == RESULT_BEST) {
		*choice = (struct sampler_choice){.token = -1};
		return coordinator_best(t->coordinator, output, &choice->token, err);
	}
	if (t->plan.result == RESULT_SAMPLED && !t->plan.to_host[output])
		return device_sampler_choice(coordinator_sampled(t->coordinator, output), choice, err);
	struct sampler_input in = input_of(s, row_of_logits(t, output));
	return sampler_pick(t->sampler, &s->sampling, &in, choice, err);
}

static enum status pick(struct tandem *t, int output, struct tandem_event *event, struct error *err)
{
	struct sequence *s = t->plan.sequence[t->plan.output_seq[output]];
	struct sampler_choice choice;
	TRY(choose(t, output, s, &choice, err));
	s->finish = sequence_append(s, choice.token);
	*event = event_of(s, 0);
	give_choice(event, &choice);
	t->generated_tokens++;
	return STATUS_OK;
}

/* Scores the prompt tokens that follow the rows of sequence `seq` just run: more head passes, which overwrite the step's logits. */
static enum status score_rows(struct tandem *t, int seq, struct error *err)
{
	struct sequence *s = t->plan.sequence[seq];
	int row = t->plan.row_start[seq], begin = t->plan.position[row], end = t->plan.kv_len[seq];
	if (end > s->prompt_count - 1) end = s->prompt_count - 1;
	for (int p = s->scored - 1; p < end;) { /* the row at p says what follows it */
		int count = end - p < LOGIT_ROWS ? end - p : LOGIT_ROWS;
		TRY(coordinator_head(t->coordinator, row + p - begin, count, err));
		for (int i = 0; i < count; i++, p++)
			TRY(sampler_score(t->sampler, row_of_logits(t, i), s->tokens[p + 1], s->sampling.logprobs, &s->scores[p + 1], err));
		s->scored = p + 1;
	}
	return STATUS_OK;
}

/* Samples every output once and applies it once. */
static enum status apply(struct tandem *t, struct tandem_event *events, int *count, struct error *err)
{
	scheduler_committed(t->scheduler, &t->plan);
	TRY(fault_check(t->fault.count ? &t->fault : NULL, 0, FAULT_SAMPLE, t->generation - 1, &t->interrupted, err));
	for (int i = 0; i < t->plan.outputs; i++) {
		if (scheduler_dropped(t->scheduler, t->plan.sequence[t->plan.output_seq[i]])) continue;
		TRY(pick(t, i, &events[*count], err));
		++*count;
	}
	for (int i = 0; i < t->plan.seqs; i++) {
		struct sequence *s = t->plan.sequence[i];
		if (s->scores && s->scored < s->prompt_count) TRY(score_rows(t, i, err));
		if (t->plan.goes_on[i]) continue;
		if (s->max_tokens == 0 && s->computed == s->count && !scheduler_dropped(t->scheduler, s)) {
			s->finish = FINISH_LENGTH;
			events[(*count)++] = event_of(s, 0);
		}
		if (s->finish == FINISH_NONE) continue;
		scheduler_remove(t->scheduler, s, s->finish);
		dispose(t, s);
	}
	return STATUS_OK;
}

static enum status step(struct tandem *t, struct tandem_event *events, int max, int *count, bool *idle, struct error *err)
{
	if (max < t->max_sequences) return FAIL(err, BAD_INPUT, "step: room for %d events; give room for %d", max, t->max_sequences);
	if (atomic_load(&t->interrupted)) return FAIL(err, CANCELLED, "interrupted");
	uint64_t now = clock_ns();
	step_clock_begin(&t->clock, now);
	requests_forget_kept(t);
	scheduler_sweep(t->scheduler, now);
	give_ended(t, now, events, max, count);
	if (*count > 0) return STATUS_OK;
	TRY(scheduler_plan(t->scheduler, &t->plan, now, err));
	*idle = t->plan.rows == 0;
	if (*idle) return STATUS_OK;
	TRY(run_plan(t, err));
	step_clock_begin(&t->clock, clock_ns());
	TRY(apply(t, events, count, err));
	step_clock_end(&t->clock, TANDEM_APPLY);
	return STATUS_OK;
}

static enum status rebuild(struct tandem *t, struct error *err)
{
	if (!coordinator_dead(t->coordinator)) return STATUS_OK;
	TRY(coordinator_rebuild(t->coordinator, err));
	t->rebuilds++;
	return STATUS_OK;
}

/* Interrupted inside a step: the ranks are well, the engine stays usable. */
void requests_after_failure(struct tandem *t, enum status st)
{
	if (!coordinator_dead(t->coordinator)) return;
	retire_all(t);
	t->aborted_groups++;
	struct error again = {0};
	if (st == STATUS_CANCELLED && rebuild(t, &again) != STATUS_OK) log_write(&t->log, LOG_WARN, "%s", again.text);
}

int tandem_step(struct tandem *t, struct tandem_event *events, int max, int *count, bool *idle, struct tandem_error *error)
{
	struct error err = {0};
	*count = 0;
	*idle = false;
	if (engine_enter(t, &err) != STATUS_OK) return engine_error(error, STATUS_BAD_INPUT, &err);
	bool dead = coordinator_dead(t->coordinator);
	fenv_t mode; /* tokens are picked on this thread */
	(void)fegetenv(&mode);
	(void)fesetenv(FE_DFL_ENV);
	enum status st = step(t, events, max, count, idle, &err);
	(void)fesetenv(&mode);
	if (st != STATUS_OK && (st != STATUS_BAD_INPUT || coordinator_dead(t->coordinator))) { /* else the call itself was wrong, and nothing has changed */
		*count = 0;
		retire_all(t);
		if (st != STATUS_CANCELLED) coordinator_abort(t->coordinator, &err);
		if (!dead) requests_after_failure(t, st);
	}
	engine_leave(t);
	return engine_error(error, st, &err);
}

int tandem_rebuild(struct tandem *t, struct tandem_error *error)
{
	struct error err = {0};
	if (engine_enter(t, &err) != STATUS_OK) return engine_error(error, STATUS_BAD_INPUT, &err);
	retire_all(t);
	enum status st = rebuild(t, &err);
	engine_leave(t);
	return engine_error(error, st, &err);
}

static const struct sequence *find_scored(const struct tandem *t, uint64_t id)
{
	const struct sequence *s = t->kept;
	while (s && s->id != id) s = s->next;
	return s ? s : scheduler_find(t->scheduler, id);
}

int tandem_prompt_logprob(const struct tandem *t, uint64_t id, int position, struct tandem_event *out, struct tandem_error *error)
{
	struct error err = {0};
	enum status st = STATUS_OK;
	const struct sequence *s = find_scored(t, id);
	if (!s || !s->scores) st = FAIL(&err, BAD_INPUT, "prompt logprobs: request %llu is not here or did not ask for them", (unsigned long long)id);
	else if (position < 1 || position >= s->scored)
		st = FAIL(&err, BAD_INPUT, "prompt logprobs: position %d of request %llu; there are 1 to %d so far", position, (unsigned long long)id,
		          s->scored - 1);
	else {
		*out = event_of(s, 0);
		give_choice(out, &s->scores[position]);
	}
	return engine_error(error, st, &err);
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
			if (row(context, position + first + i, row_of_logits(t, i), vocab))
				return FAIL(err, CANCELLED, "stopped by the receiver of the logits");
	}
	return STATUS_OK;
}

static enum status whole_prompt(struct tandem *t, const int32_t *tokens, int count, logits_row *row, void *context, struct error *err)
{
	for (int begin = 0; begin < count; begin += t->max_rows) {
		int end = count - begin < t->max_rows ? count : begin + t->max_rows;
		if (atomic_load(&t->interrupted)) return FAIL(err, CANCELLED, "interrupted"); /* steps may be too short to see it */
		step_clock_begin(&t->clock, clock_ns());
		step_plan_clear(&t->plan);
		step_plan_add(&t->plan, NULL, 0, tokens, begin, end, 0);
		TRY(run_plan(t, err));
		TRY(give_rows(t, begin, row, context, err));
	}
	return STATUS_OK;
}

static enum status check_logits(const struct tandem *t, const int32_t *tokens, int count, struct error *err)
{
	TRY(check_tokens(t, tokens, count, err));
	if (scheduler_any(t->scheduler)) return FAIL(err, BAD_INPUT, "logits: requests are in flight; let them finish or cancel them first");
	if (count > t->kv_blocks * t->block_tokens)
		return FAIL(err, NO_ROOM, "kv: %d tokens wanted, %d exist; raise the KV size", count, t->kv_blocks * t->block_tokens);
	return STATUS_OK;
}

int tandem_logits(struct tandem *t, const int32_t *tokens, int count, logits_row *row, void *context, struct tandem_error *error)
{
	struct error err = {0};
	enum status st = check_logits(t, tokens, count, &err);
	if (st == STATUS_OK) st = engine_enter(t, &err);
	if (st != STATUS_OK) return engine_error(error, st, &err);
	bool dead = coordinator_dead(t->coordinator);
	st = whole_prompt(t, tokens, count, row, context, &err);
	kv_group_release(coordinator_kv(t->coordinator), 0);
	if (st != STATUS_OK && !dead) requests_after_failure(t, st);
	engine_leave(t);
	return engine_error(error, st, &err);
}
