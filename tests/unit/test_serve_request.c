/* Request bodies without a server: what is accepted, what is refused with which status and field; events of the engine to bytes of an
 * answer. The tables of the API as a whole are in tests/serve. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "serve/completion.h"

static struct facts facts_of(void)
{
	return (struct facts){.names = {"demo"}, .name_count = 1, .root = "demo",
	                      .info = {.vocab_size = 100, .context = 50, .kv_tokens = 64, .world_size = 2, .eos = {2, 3}, .eos_count = 2, .default_temperature = 0.7,
	                               .default_top_p = NAN, .default_repetition_penalty = NAN, .default_top_k = 40},
	                      .model_defaults = true};
}

/* Reads a body as a completion request; returns the status of the refusal, or 0. */
static int judge_by(const struct facts *facts, const char *text, enum endpoint endpoint, struct request *q, struct refusal *r)
{
	json_t *body;
	*r = (struct refusal){0};
	if (body_parse(&body, text, strlen(text), r) != STATUS_OK) return r->status;
	enum status st = request_parse(q, endpoint, body, facts, r);
	json_decref(body);
	assert_int_equal(st == STATUS_OK, r->status == 0);
	return r->status;
}

static int judge(const char *text, enum endpoint endpoint, struct request *q, struct refusal *r)
{
	const struct facts facts = facts_of();
	return judge_by(&facts, text, endpoint, q, r);
}

static void test_accepted_and_refused(void **state)
{
	(void)state;
	static const struct {
		const char *body;
		int status;
		const char *param;
	} rows[] = {
		{"{}", 0, NULL}, {"{\"unknown\":[{}]}", 0, NULL}, {"", 400, NULL}, {"[]", 400, NULL}, {"{\"n\":2,\"n\":3}", 400, NULL}, {"{\"n\":\"2\"}", 400, "n"},
		{"{\"n\":2.0}", 0, NULL}, {"{\"n\":2.5}", 400, "n"}, {"{\"temperature\":2.0001}", 400, "temperature"}, {"{\"top_p\":0}", 0, NULL},
		{"{\"seed\":9223372036854775807}", 0, NULL}, {"{\"seed\":9223372036854775808}", 400, NULL}, {"{\"max_tokens\":0}", 400, "max_tokens"},
		{"{\"max_tokens\":0,\"echo\":true}", 0, NULL}, {"{\"min_tokens\":17}", 400, "min_tokens"}, {"{\"logit_bias\":{\"99\":1}}", 0, NULL},
		{"{\"logit_bias\":{\"100\":1}}", 400, "logit_bias"}, {"{\"logit_bias\":{\"09\":1}}", 400, "logit_bias"}, {"{\"stop\":\"\"}", 400, "stop"},
		{"{\"stop_token_ids\":[100]}", 400, "stop_token_ids"}, {"{\"stream_options\":{}}", 400, "stream_options"}, {"{\"response_format\":{\"type\":\"json_object\"}}", 501, "response_format"},
		{"{\"model\":\"demo\"}", 0, NULL}, {"{\"model\":\"x\"}", 404, "model"}, {"{\"best_of\":2}", 400, "best_of"}, {"{\"logprobs\":true}", 400, "logprobs"},
		{"{\"prompt_logprobs\":1,\"stream\":true}", 400, "prompt_logprobs"}, {"{\"cache_salt\":\"\"}", 400, "cache_salt"}, {"{\"suffix\":\"x\"}", 400, "suffix"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct request q;
		struct refusal r;
		int status = judge(rows[i].body, ENDPOINT_COMPLETIONS, &q, &r);
		bool same = rows[i].param ? r.param && !strcmp(r.param, rows[i].param) : status == 0 || !r.param;
		if (status != rows[i].status || !same) fail_msg("%s: %d %s (%s), expected %d %s", rows[i].body, status, r.param, r.message, rows[i].status, rows[i].param);
		if (!status) request_fini(&q);
	}
}

static void test_defaults(void **state)
{
	(void)state;
	struct request q;
	struct refusal r;
	assert_int_equal(judge("{}", ENDPOINT_COMPLETIONS, &q, &r), 0);
	assert_true(q.temperature == 0.7 && q.top_k == 40 && q.top_p == 1 && q.repetition_penalty == 1 && q.max_tokens == 16 && q.n == 1 && q.seed == -1 && q.add_special);
	assert_int_equal(judge("{\"temperature\":null,\"max_tokens\":null}", ENDPOINT_CHAT, &q, &r), 0);
	assert_true(q.temperature == 0.7 && q.max_tokens == -1 && !q.add_special && q.add_generation_prompt);
	assert_int_equal(judge("{\"max_tokens\":3,\"max_completion_tokens\":4,\"temperature\":1e-10,\"top_k\":5}", ENDPOINT_CHAT, &q, &r), 0);
	assert_true(q.max_tokens == 4 && q.temperature == 0 && q.top_k == 0);
	assert_int_equal(judge("{\"logprobs\":true,\"top_logprobs\":3}", ENDPOINT_CHAT, &q, &r), 0);
	assert_int_equal(q.logprobs, 3);
	assert_int_equal(judge("{\"top_p\":0}", ENDPOINT_CHAT, &q, &r), 0);
	assert_true(q.top_p > 0 && q.top_p < 1e-200 && !q.ignore_eos);
	struct facts facts = facts_of();
	facts.ignore_eos = true; /* serve --ignore-eos: for requests that do not say */
	assert_int_equal(judge_by(&facts, "{}", ENDPOINT_CHAT, &q, &r), 0);
	assert_true(q.ignore_eos);
	assert_int_equal(judge_by(&facts, "{\"ignore_eos\":false}", ENDPOINT_CHAT, &q, &r), 0);
	assert_false(q.ignore_eos);
}

static void test_room(void **state)
{
	(void)state;
	struct facts facts = facts_of();
	struct request q = {.endpoint = ENDPOINT_COMPLETIONS, .max_tokens = 10};
	struct refusal r;
	int room;
	assert_int_equal(prompt_room(&q, 30, &facts, &room, &r), STATUS_OK);
	assert_int_equal(room, 10);
	assert_int_equal(prompt_room(&q, 45, &facts, &room, &r), STATUS_OK);
	assert_int_equal(room, 5);
	q.max_tokens = INT64_MAX;
	assert_int_equal(prompt_room(&q, 1, &facts, &room, &r), STATUS_OK);
	assert_int_equal(room, 49);
	assert_int_not_equal(prompt_room(&q, 50, &facts, &room, &r), STATUS_OK);
	assert_string_equal(refusal_type(&r), "context_length_exceeded");
	facts.info.kv_tokens = 20;
	assert_int_equal(prompt_room(&q, 10, &facts, &room, &r), STATUS_OK);
	assert_int_equal(room, 11);
	q.max_tokens = 0;
	facts.info.kv_tokens = 64;
	assert_int_equal(prompt_room(&q, 50, &facts, &room, &r), STATUS_OK);
	facts.info.kv_tokens = 20;
	assert_int_equal(prompt_room(&q, 20, &facts, &room, &r), STATUS_OK);
	assert_int_equal(room, 0);
	assert_int_not_equal(prompt_room(&q, 21, &facts, &room, &r), STATUS_OK);
	assert_string_equal(refusal_type(&r), "context_length_exceeded");
}

/* ---- completions ---- */

struct harness {
	struct facts facts;
	struct completion *completion;
	struct driver_job *jobs[16];
	int count, cancelled;
};

static void count_cancel(void *context, struct driver_job *job)
{
	struct harness *h = context;
	(void)job;
	h->cancelled++;
}

static void begin(struct harness *h, const char *text)
{
	struct request q;
	struct prompts prompts;
	struct refusal r = {0};
	json_t *body;
	int count;
	*h = (struct harness){.facts = facts_of()};
	if (body_parse(&body, text, strlen(text), &r) != STATUS_OK || request_parse(&q, ENDPOINT_COMPLETIONS, body, &h->facts, &r) != STATUS_OK ||
	    prompt_count(body, ENDPOINT_COMPLETIONS, &count, &r) != STATUS_OK || prompts_read(&prompts, count, body, &q, &h->facts, &r) != STATUS_OK)
		fail_msg("%s: %s", text, r.message);
	struct completion_options options = {.facts = &h->facts, .request = &q, .prompts = &prompts, .id = "x", .created = 1, .seed = 1, .cancel = count_cancel, .context = h};
	if (completion_create(&h->completion, &options, &r) != STATUS_OK) fail_msg("%s: %s", text, r.message);
	json_decref(body);
	h->count = completion_jobs(h->completion, h->jobs);
}

static void event(struct harness *h, int job, int32_t token, enum tandem_finish finish)
{
	struct driver_event e = {.job = h->jobs[job], .event = {.id = (uint64_t)job + 1, .token = token, .finish = finish}, .at_ns = 1000};
	completion_event(h->completion, &e);
}

static int occurrences(struct harness *h, const char *text)
{
	int count = 0;
	struct out *out = completion_output(h->completion);
	for (const char *at = out->buf.data; at && (at = strstr(at, text)); at += strlen(text)) count++;
	return count;
}

static void test_a_stream_has_one_end(void **state)
{
	(void)state;
	struct harness h;
	begin(&h, "{\"prompt\":[5,6],\"n\":2,\"stream\":true,\"return_token_ids\":true}");
	assert_int_equal(h.count, 2);
	assert_false(completion_begun(h.completion));
	event(&h, 0, 7, TANDEM_RUNNING);
	event(&h, 1, 8, TANDEM_LENGTH);
	assert_true(completion_begun(h.completion) && !completion_ended(h.completion) && !completion_idle(h.completion));
	event(&h, 0, 2, TANDEM_STOP);
	assert_true(completion_ended(h.completion) && completion_idle(h.completion));
	assert_int_equal(occurrences(&h, "[DONE]"), 1);
	assert_int_equal(occurrences(&h, "\"finish_reason\":\"stop\""), 1);
	assert_int_equal(occurrences(&h, "\"finish_reason\":\"length\""), 1);
	assert_int_equal(occurrences(&h, "\"error\""), 0);
	completion_destroy(&h.completion);
}

static void test_a_failure_ends_all_choices_once(void **state)
{
	(void)state;
	for (int begun = 0; begun < 2; begun++) {
		struct harness h;
		begin(&h, "{\"prompt\":[[5],[6],[7]],\"stream\":true,\"max_tokens\":3}");
		if (begun) event(&h, 0, 9, TANDEM_LENGTH);
		h.jobs[1]->error = (struct tandem_error){.code = STATUS_ABORTED, .text = "rank 1: gone"};
		event(&h, 1, -1, TANDEM_FAILED);
		assert_true(completion_ended(h.completion) && !completion_idle(h.completion));
		assert_int_equal(completion_refusal(h.completion)->status, begun ? 0 : 500);
		assert_int_equal(h.cancelled, begun ? 1 : 2);
		assert_int_equal(occurrences(&h, "\"error\""), begun);
		event(&h, 2, 9, TANDEM_RUNNING); /* late: nobody hears of it */
		event(&h, 2, -1, TANDEM_FAILED);
		if (!begun) event(&h, 0, -1, TANDEM_CANCELLED);
		assert_true(completion_idle(h.completion));
		assert_int_equal(occurrences(&h, "[DONE]"), begun);
		completion_destroy(&h.completion);
	}
}

static void test_an_abandoned_completion_waits_for_its_jobs(void **state)
{
	(void)state;
	struct harness h;
	begin(&h, "{\"prompt\":[5],\"n\":3}");
	event(&h, 0, 9, TANDEM_LENGTH);
	completion_abandon(h.completion);
	assert_int_equal(h.cancelled, 2);
	assert_false(completion_idle(h.completion));
	event(&h, 1, 9, TANDEM_STOP);
	event(&h, 2, -1, TANDEM_CANCELLED);
	assert_true(completion_idle(h.completion));
	assert_string_equal(completion_finish(h.completion, 0), "length");
	assert_string_equal(completion_finish(h.completion, 2), "abort");
	assert_int_equal(completion_output(h.completion)->buf.size, 0);
	completion_destroy(&h.completion);
}

static void test_an_echo_needs_no_engine(void **state)
{
	(void)state;
	struct harness h;
	begin(&h, "{\"prompt\":[5],\"echo\":true,\"max_tokens\":0}");
	assert_int_equal(h.count, 0);
	assert_true(completion_ended(h.completion) && completion_idle(h.completion));
	assert_int_equal(occurrences(&h, "\"completion_tokens\":0"), 1);
	completion_destroy(&h.completion);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_accepted_and_refused),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_a_stream_has_one_end),
		cmocka_unit_test(test_a_failure_ends_all_choices_once),
		cmocka_unit_test(test_an_abandoned_completion_waits_for_its_jobs),
		cmocka_unit_test(test_an_echo_needs_no_engine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
