/* Fuzzes request bodies: whatever the bytes, the answer is a refusal that is valid JSON, or a request all of whose values are in range,
 * whose completion then writes valid JSON whatever the engine says. The first byte chooses the endpoint. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/chat.h"
#include "serve/completion.h"
#include "text/utf8.h"
#include "fuzz/standalone.h"

static void check_json(const char *text, size_t n)
{
	check(utf8_valid_prefix(text, n) == n);
	json_t *value = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
	check(value != NULL);
	json_decref(value);
}

static void check_refusal(const struct refusal *r)
{
	struct out out = {0};
	check(r->status >= 400 && r->status < 600 && r->message[0] && !strchr(r->message, '\n'));
	refusal_write(r, &out);
	check(!out.failed);
	check_json(out.buf.data, out.buf.size);
	out_fini(&out);
}

static void check_request(const struct request *q, const struct facts *facts)
{
	check(q->n >= 1 && q->n <= REQUEST_MAX_N && q->max_tokens >= -1 && q->min_tokens >= 0);
	check(q->temperature >= 0 && q->temperature <= 2 && q->top_p > 0 && q->top_p <= 1 && q->min_p >= 0 && q->min_p <= 1 && q->top_k >= 0);
	check(q->repetition_penalty > 0 && isfinite(q->repetition_penalty) && fabs(q->presence_penalty) <= 2 && fabs(q->frequency_penalty) <= 2);
	check(q->logprobs >= -1 && q->logprobs <= TANDEM_MAX_LOGPROBS && q->prompt_logprobs >= -1 && q->prompt_logprobs <= TANDEM_MAX_LOGPROBS);
	for (int i = 0; i < q->bias_count; i++) check(q->bias_ids[i] >= 0 && q->bias_ids[i] < facts->info.vocab_size && fabsf(q->bias_values[i]) <= 100);
	for (int i = 0; i < q->stop_count; i++) check(q->stop_ids[i] >= 0 && q->stop_ids[i] < facts->info.vocab_size);
}

static void ignore_cancel(void *context, struct driver_job *job)
{
	(void)context;
	(void)job;
}

/* Plays an engine that says the same token three times, with alternatives, then ends. */
static void play(struct completion *c, bool stream)
{
	int n = completion_choices(c);
	struct driver_job **jobs = calloc((size_t)n, sizeof(struct driver_job *));
	check(jobs != NULL);
	int count = completion_jobs(c, jobs);
	for (int step = 0; step < 3; step++) {
		for (int i = 0; i < count; i++) {
			struct driver_event e = {.job = jobs[i], .event = {.id = 1, .token = step, .finish = step < 2 ? TANDEM_RUNNING : TANDEM_LENGTH, .logprob = -INFINITY, .alternatives = 2,
			                                                   .alternative_id = {0, 1}, .alternative_logprob = {-1, NAN}}};
			if (jobs[i]->scores) jobs[i]->scores->filled = true;
			if (jobs[i]->request.max_tokens == 0 && step == 2) e.event.token = -1;
			if (jobs[i]->request.max_tokens > 0 || step == 2) completion_event(c, &e);
		}
	}
	check(completion_ended(c) && completion_idle(c));
	struct out *out = completion_output(c);
	check(!out->failed && out->buf.size);
	if (stream) check(out->buf.size > 14 && !memcmp(out->buf.data + out->buf.size - 14, "data: [DONE]\n\n", 14));
	else check_json(out->buf.data, out->buf.size);
	free(jobs);
}

static void run(const json_t *body, enum endpoint endpoint, const struct facts *facts)
{
	struct request q;
	struct prompts prompts = {0};
	struct refusal r = {0};
	struct completion *c = NULL;
	int count;
	if (request_parse(&q, endpoint, body, facts, &r) != STATUS_OK) {
		check_refusal(&r);
		return;
	}
	check_request(&q, facts);
	bool stream = q.stream;
	if (prompt_count(body, endpoint, &count, &r) == STATUS_OK && count * q.n <= 64 && prompts_read(&prompts, count, body, &q, facts, &r) == STATUS_OK) {
		struct completion_options options = {.facts = facts, .request = &q, .prompts = &prompts, .id = "x", .cancel = ignore_cancel};
		if (completion_create(&c, &options, &r) == STATUS_OK) play(c, stream);
	}
	if (r.status) check_refusal(&r);
	completion_destroy(&c);
	prompts_fini(&prompts);
	request_fini(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct tokenizer *tokenizer;
	if (!tokenizer && tokenizer_open(&tokenizer, "tests/data/tokenizer/qwen3.json", NULL, NULL) != STATUS_OK) abort();
	struct facts facts = {.names = {"demo"}, .name_count = 1, .root = "demo", .info = {.vocab_size = 400, .context = 60, .kv_tokens = 100, .eos = {2}, .eos_count = 1},
	                      .tokenizer = tokenizer};
	struct refusal r;
	json_t *body;
	if (!size) return 0;
	if (body_parse(&body, (const char *)data + 1, size - 1, &r) != STATUS_OK) {
		check_refusal(&r);
		return 0;
	}
	run(body, data[0] & 1 ? ENDPOINT_COMPLETIONS : ENDPOINT_CHAT, &facts);
	json_decref(body);
	return 0;
}
