#include "serve/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "serve/answer.h"

struct completion {
	const struct facts *facts;
	struct request request;
	struct prompts prompts;
	struct choice *choices;
	int count;
	struct answer answer;
	void (*cancel)(void *context, struct driver_job *job);
	void *context;
	struct out out;
	bool begun, ended, silent; /* silent: the client has gone */
	struct refusal refusal;
	int open, in_flight; /* choices not ended; jobs without their terminal event */
	struct completion_times times;
	size_t first_bytes; /* of the chunks that choices began with */
};

/* ---- building ---- */

static uint64_t choice_seed(const struct completion *c, const struct completion_options *o, int choice)
{
	const struct request *q = &c->request;
	/* Every choice draws from a stream of its own; the first from the seed itself, so that n does not change it. */
	if (q->seed == -1) return rng_u64(o->seed, rng_name("request"), (uint64_t)choice);
	int i = choice % q->n;
	return i ? rng_u64((uint64_t)q->seed, rng_name("choice"), (uint64_t)i) : (uint64_t)q->seed;
}

static struct tandem_sampling sampling_of(const struct request *q, uint64_t seed)
{
	return (struct tandem_sampling){.temperature = q->temperature, .top_k = q->top_k, .top_p = q->top_p, .min_p = q->min_p,
	                                .repetition_penalty = q->repetition_penalty, .presence_penalty = q->presence_penalty,
	                                .frequency_penalty = q->frequency_penalty, .seed = seed, .bias_ids = q->bias_ids, .bias_values = q->bias_values,
	                                .bias_count = q->bias_count, .logprob = q->logprobs >= 0,
	                                .logprobs = q->logprobs > q->prompt_logprobs ? q->logprobs : q->prompt_logprobs > 0 ? q->prompt_logprobs : 0};
}

static bool wants_scores(const struct request *q)
{
	return q->prompt_logprobs >= 0 || (q->echo && q->logprobs >= 0);
}

static enum status init_choice(struct completion *c, const struct completion_options *o, int index, struct refusal *r)
{
	const struct request *q = &c->request;
	struct choice *choice = &c->choices[index];
	const struct prompt *prompt = &c->prompts.items[index / q->n];
	int max_tokens;
	*choice = (struct choice){.completion = c, .index = index, .prompt = prompt, .stop = -1, .stop_id = -1};
	TRY(prompt_room(q, prompt->ids.count, c->facts, &max_tokens, r));
	choice->job.owner = choice;
	choice->job.request = (struct tandem_request){.prompt = prompt->ids.ids, .prompt_count = (int)prompt->ids.count, .max_tokens = max_tokens,
	                                              .min_tokens = q->min_tokens, .ignore_eos = q->ignore_eos, .stop_ids = q->stop_ids,
	                                              .stop_count = q->stop_count, .sampling = sampling_of(q, choice_seed(c, o, index)),
	                                              .prompt_logprobs = wants_scores(q), .cache_salt = q->cache_salt};
	if (wants_scores(q) && !choice_want_scores(choice, choice->job.request.sampling.logprobs)) return refuse_memory(r);
	if (c->facts->tokenizer && detokenizer_create(&choice->text, c->facts->tokenizer, q->skip_special, NULL) != STATUS_OK) return refuse_memory(r);
	if (choice->text && detokenizer_follow(choice->text, prompt->ids.ids, prompt->ids.count, NULL) != STATUS_OK) return refuse_memory(r);
	if (q->echo && buf_append(&choice->fresh, prompt->text.data, prompt->text.size, NULL) != STATUS_OK) return refuse_memory(r);
	choice->chars = choice_count_chars(choice->fresh.data, choice->fresh.size);
	return STATUS_OK;
}

static enum status init(struct completion *c, const struct completion_options *o, struct refusal *r)
{
	c->facts = o->facts;
	c->cancel = o->cancel;
	c->context = o->context;
	c->times.arrival_ns = o->arrival_ns;
	c->request = *o->request; /* borrowed until all is well */
	c->prompts = *o->prompts;
	int count = c->prompts.count * c->request.n;
	c->choices = mem_zalloc((size_t)count, sizeof *c->choices, "choices", NULL);
	if (!c->choices) return refuse_memory(r);
	for (; c->count < count; c->count++) {
		enum status st = init_choice(c, o, c->count, r);
		if (st == STATUS_OK) continue;
		c->count++; /* half built, to be taken apart */
		return st;
	}
	for (int i = 0; i < c->prompts.count; i++) c->times.prompt_tokens += (int)c->prompts.items[i].ids.count;
	if (!answer_init(&c->answer, c->request.endpoint, o->id, o->created, c->facts, &c->request)) return refuse_memory(r);
	c->open = c->count;
	return STATUS_OK;
}

static void free_choices(struct completion *c)
{
	for (int i = 0; i < c->count; i++) choice_fini(&c->choices[i]);
	free(c->choices);
	answer_fini(&c->answer);
	out_fini(&c->out);
	free(c);
}

enum status completion_create(struct completion **out, const struct completion_options *options, struct refusal *r)
{
	*out = NULL;
	struct completion *c = mem_zalloc(1, sizeof *c, "completion", NULL);
	if (!c) return refuse_memory(r);
	enum status st = init(c, options, r);
	if (st != STATUS_OK) {
		free_choices(c);
		return st;
	}
	*options->request = (struct request){0};
	*options->prompts = (struct prompts){0};
	*out = c;
	return STATUS_OK;
}

void completion_destroy(struct completion **completion)
{
	struct completion *c = *completion;
	if (!c) return;
	request_fini(&c->request);
	prompts_fini(&c->prompts);
	free_choices(c);
	*completion = NULL;
}

/* ---- ends ---- */

static void cancel_job(struct completion *c, struct choice *choice)
{
	if (choice->submitted && !choice->over) c->cancel(c->context, &choice->job);
}

/* No memory for the answer, or it is complete: either way nothing more will be put out. */
static void settle(struct completion *c)
{
	if (c->ended || c->open) return;
	c->ended = true;
	if (c->silent) return;
	if (c->request.stream) answer_end(&c->answer, &c->out, &c->times);
	else answer_body(&c->answer, &c->out, c->choices, c->count, &c->times);
	c->begun = true;
}

void completion_fail(struct completion *c, const struct refusal *why)
{
	if (c->ended) return;
	c->ended = true;
	for (int i = 0; i < c->count; i++) {
		if (!c->choices[i].finish) c->choices[i].finish = "error";
		cancel_job(c, &c->choices[i]);
	}
	if (c->silent) return;
	if (c->begun) answer_error(&c->out, why);
	else c->refusal = *why;
}

void completion_abandon(struct completion *c)
{
	c->silent = true;
	if (!c->ended) {
		c->ended = true;
		for (int i = 0; i < c->count; i++)
			if (!c->choices[i].finish) c->choices[i].finish = "abort";
	}
	for (int i = 0; i < c->count; i++) cancel_job(c, &c->choices[i]);
	out_fini(&c->out);
}

static void fail_by(struct completion *c, const struct driver_event *event)
{
	struct refusal why;
	struct error err = {0};
	enum status code = STATUS_CANCELLED;
	if (event->event.finish == TANDEM_FAILED) {
		code = (enum status)event->job->error.code;
		snprintf(err.text, sizeof err.text, "%s", event->job->error.text);
	}
	(void)refuse_error(&why, NULL, code, &err);
	completion_fail(c, &why);
}

/* ---- events ---- */

static void put_out(struct completion *c, struct choice *choice)
{
	if (!c->request.stream || c->silent) return;
	size_t before = c->out.buf.size;
	bool first = !choice->role_sent;
	answer_chunk(&c->answer, &c->out, choice, &c->times);
	c->begun = c->begun || c->out.buf.size > before;
	if (first) c->first_bytes += c->out.buf.size - before;
}

static void count_token(struct completion *c, struct choice *choice, uint64_t at_ns)
{
	choice->tokens++;
	c->times.completion_tokens++;
	if (!c->times.first_ns) c->times.first_ns = at_ns;
	c->times.last_ns = at_ns;
	c->times.gap_ns = choice->last_ns ? at_ns - choice->last_ns : 0;
	choice->last_ns = at_ns;
}

static void fail_memory(struct completion *c)
{
	struct refusal why;
	(void)refuse_memory(&why);
	completion_fail(c, &why);
}

static void on_token(struct completion *c, struct choice *choice, const struct driver_event *event)
{
	count_token(c, choice, event->at_ns);
	if (!choice_token(choice, &event->event, &c->request, c->facts)) {
		fail_memory(c);
		return;
	}
	if (choice->finish) cancel_job(c, choice); /* a stop string is not the engine's business */
}

/* What stands at the front of a choice's first event: the prompt's scores, and what its start cost. */
static void on_first(struct completion *c, struct choice *choice, const struct driver_event *event)
{
	choice->started = true;
	if (choice->index % c->request.n == 0) c->times.cached_tokens += event->event.cached_tokens;
	if (choice->index == 0) c->times.queue_seconds = (double)event->event.queue_ms / 1e3;
	if (!choice->job.scores) return;
	if (choice->scores.filled) choice_take_scores(choice, &c->request);
	else fail_by(c, event);
}

void completion_event(struct completion *c, const struct driver_event *event)
{
	struct choice *choice = event->job->owner;
	bool last = event->event.finish != TANDEM_RUNNING;
	c->times.gap_ns = 0;
	if (last) {
		choice->over = true;
		c->in_flight--;
	}
	if (c->ended || choice->finish) return;
	bool well = event->event.token >= 0 || event->event.finish == TANDEM_LENGTH; /* the latter: only the prompt was to be scored */
	if (!well) {
		if (last) fail_by(c, event);
		return;
	}
	if (!choice->started) on_first(c, choice, event);
	if (c->ended) return;
	if (event->event.token >= 0) on_token(c, choice, event);
	else choice->finish = "length";
	if (c->ended) return;
	if (choice->finish) c->open--;
	put_out(c, choice);
	settle(c);
	if (c->out.failed && !c->ended) fail_memory(c);
}

int completion_jobs(struct completion *c, struct driver_job **jobs)
{
	bool needed = c->request.max_tokens != 0 || wants_scores(&c->request);
	for (int i = 0; i < c->count; i++) {
		struct choice *choice = &c->choices[i];
		if (needed) {
			choice->submitted = true;
			jobs[i] = &choice->job;
			continue;
		}
		choice->finish = "length";
		c->open--;
		put_out(c, choice);
	}
	c->in_flight = needed ? c->count : 0;
	settle(c);
	return c->in_flight;
}

/* ---- asking ---- */

struct completion *completion_of(const struct driver_job *job)
{
	const struct choice *choice = job->owner;
	return choice->completion;
}

void *completion_context(const struct completion *c)
{
	return c->context;
}

int completion_choices(const struct completion *c)
{
	return c->count;
}

bool completion_is_stream(const struct completion *c)
{
	return c->request.stream;
}

const struct request *completion_request(const struct completion *c)
{
	return &c->request;
}

void completion_comment(struct completion *c)
{
	if (c->ended || !c->request.stream) return;
	out_puts(&c->out, ": still working\n\n");
	c->begun = true;
}

struct out *completion_output(struct completion *c)
{
	return &c->out;
}

size_t completion_first_bytes(const struct completion *c)
{
	return c->first_bytes;
}

bool completion_ended(const struct completion *c)
{
	return c->ended;
}

bool completion_idle(const struct completion *c)
{
	return c->in_flight == 0;
}

const struct refusal *completion_refusal(const struct completion *c)
{
	return &c->refusal;
}

bool completion_begun(const struct completion *c)
{
	return c->begun;
}

void completion_get_times(const struct completion *c, struct completion_times *out)
{
	*out = c->times;
}

const char *completion_finish(const struct completion *c, int choice)
{
	const char *finish = c->choices[choice].finish;
	return finish ? finish : "abort";
}
