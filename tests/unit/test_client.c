/* The load generator's pure parts: server-sent events and HTTP responses in any pieces, arrivals, order statistics, summary, URLs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "client/arrivals.h"
#include "client/reply.h"
#include "client/sse.h"
#include "client/summary.h"
#include "client/url.h"

static bool note(void *context, const char *data, size_t n)
{
	struct buf *out = context;
	assert_int_equal(data[n], 0);
	assert_int_equal(buf_printf(out, NULL, "<%.*s>", (int)n, data), STATUS_OK);
	return true;
}

static void feed(struct sse *sse, const char *bytes, size_t n, struct buf *out)
{
	assert_int_equal(sse_feed(sse, bytes, n, note, out, NULL), STATUS_OK);
}

static void test_sse_split(void **state)
{
	static const char stream[] = "\xef\xbb\xbf"
								 "data: one\n\n"
								 ": a comment\n\n"
								 "data: two\r\n\r\n"
								 "event: x\rdata:three\rid: 7\r\r"
								 "data: a\ndata:  b\ndata\n\n"
								 "database: no\n\n"
								 "data:\n\n"
								 "data: [DONE]\n\n"
								 "data: cut off";
	static const char expected[] = "<one><two><three><a\n b\n><><[DONE]>";
	size_t n = sizeof stream - 1;
	(void)state;
	for (size_t i = 0; i <= n; i++)
		for (size_t j = i; j <= n; j++) {
			struct sse sse = {0};
			struct buf out = {0};
			feed(&sse, stream, i, &out);
			feed(&sse, stream + i, j - i, &out);
			feed(&sse, stream + j, n - j, &out);
			if (strcmp(out.data, expected) != 0) fail_msg("split at %zu and %zu: '%s', not '%s'", i, j, out.data, expected);
			sse_fini(&sse);
			buf_fini(&out);
		}
	struct sse sse = {0};
	struct buf out = {0};
	for (size_t i = 0; i < n; i++) feed(&sse, stream + i, 1, &out);
	assert_string_equal(out.data, expected);
	sse_clear(&sse);
	buf_clear(&out);
	feed(&sse, "data: again\n\n", 13, &out);
	assert_string_equal(out.data, "<again>");
	sse_fini(&sse);
	buf_fini(&out);
}

static bool stop(void *context, const char *data, size_t n)
{
	return note(context, data, n) && false;
}

static void test_sse_limits(void **state)
{
	struct sse sse = {0};
	struct buf out = {0};
	struct error err = {0};
	(void)state;
	assert_int_equal(sse_feed(&sse, "data: 1\n\ndata: 2\n\n", 18, stop, &out, &err), STATUS_OK);
	assert_string_equal(out.data, "<1>");
	char *many = calloc(1, SSE_MAX_EVENT + 1);
	assert_non_null(many);
	memset(many, 'x', SSE_MAX_EVENT + 1);
	assert_int_equal(sse_feed(&sse, many, SSE_MAX_EVENT + 1, note, &out, &err), STATUS_BAD_INPUT);
	free(many);
	sse_fini(&sse);
	buf_fini(&out);
}

static bool keep(void *context, const char *bytes, size_t n)
{
	return buf_append(context, bytes, n, NULL) == STATUS_OK;
}

/* Feeds `text` cut at `cut` and ends the connection; the state and the body tell. */
static enum status read_reply(struct reply *r, const char *text, size_t cut, struct buf *body, size_t *left)
{
	size_t n = strlen(text), used = 0, more = 0;
	*r = (struct reply){0};
	buf_clear(body);
	TRY(reply_feed(r, text, cut, &used, keep, body, NULL));
	assert_true(used == cut || r->state == REPLY_DONE);
	if (used == cut) TRY(reply_feed(r, text + cut, n - cut, &more, keep, body, NULL));
	*left = n - used - more;
	return reply_end(r, NULL);
}

static void test_reply(void **state)
{
	static const struct {
		const char *text, *body;
		int status;
		size_t left;
		bool close, stream;
	} cases[] = {
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, 0, false, false},
		{"HTTP/1.1 200 OK\nContent-Length: 5\n\nhelloHTTP/1.1", "hello", 200, 8, false, false},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many Requests\r\ncontent-length:2 \r\nConnection: Close\r\n\r\n{}", "{}", 429, 0, true, false},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
		 "abc0123456789", 200, 0, false, true},
		{"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\nto the end", "to the end", 200, 0, true, true},
		{"HTTP/1.1 204 No Content\r\n\r\n", "", 204, 0, false, false},
		{"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "", 200, 0, false, false},
	};
	struct buf body = {0};
	(void)state;
	assert_int_equal(buf_puts(&body, "", NULL), STATUS_OK);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
			struct reply r;
			size_t left = 99;
			if (read_reply(&r, cases[i].text, cut, &body, &left) != STATUS_OK) fail_msg("case %zu cut at %zu: refused", i, cut);
			body.data[body.size] = 0;
			assert_string_equal(body.data, cases[i].body);
			assert_int_equal(r.status, cases[i].status);
			assert_int_equal(left, cases[i].left);
			assert_int_equal(r.close, cases[i].close);
			assert_int_equal(r.event_stream, cases[i].stream);
		}
	buf_fini(&body);
}

static void test_reply_refuses(void **state)
{
	static const char *const cases[] = {
		"HTTP/2 200 OK\r\n\r\n",
		"SSH-2.0-x\r\n",
		"HTTP/1.1 20 OK\r\n\r\n",
		"HTTP/1.1 2000 OK\r\n\r\n",
		"HTTP/1.1 099 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
		"HTTP/1.1 200 OK\r\n",
		"",
	};
	struct buf body = {0};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct reply r;
		size_t left;
		if (read_reply(&r, cases[i], 0, &body, &left) != STATUS_BAD_INPUT) fail_msg("case %zu: taken", i);
	}
	buf_fini(&body);
}

static void test_arrivals(void **state)
{
	enum { COUNT = 20000 };
	static struct arrival a[COUNT], b[COUNT];
	struct token_range in = {16, 256}, out = {1, 4};
	(void)state;
	arrivals_draw(a, COUNT, 50, 7, in, out);
	arrivals_draw(b, COUNT, 50, 7, in, out);
	assert_memory_equal(a, b, sizeof a);
	arrivals_draw(b, COUNT, 50, 8, in, out);
	assert_true(memcmp(a, b, sizeof a) != 0);
	/* A shorter load is the start of a longer one. */
	arrivals_draw(b, 100, 50, 7, in, out);
	assert_memory_equal(a, b, 100 * sizeof *a);
	assert_int_equal(a[0].at_ns, 0);
	int seen[257] = {0}, beyond = 0;
	double sum = 0, squares = 0;
	for (int i = 1; i < COUNT; i++) {
		assert_true(a[i].at_ns >= a[i - 1].at_ns);
		double gap = (double)(a[i].at_ns - a[i - 1].at_ns) / 1e9;
		sum += gap;
		squares += gap * gap;
		beyond += gap > 0.02; /* the mean: e^-1 of an exponential lies beyond it */
		assert_in_range(a[i].input_tokens, 16, 256);
		assert_in_range(a[i].output_tokens, 1, 4);
		seen[a[i].input_tokens] = 1;
	}
	double mean = sum / (COUNT - 1), deviation = sqrt(squares / (COUNT - 1) - mean * mean);
	assert_true(fabs(mean - 0.02) < 0.0006);
	assert_true(fabs(deviation - 0.02) < 0.001);
	assert_true(fabs((double)beyond / (COUNT - 1) - exp(-1)) < 0.015);
	for (int i = 16; i <= 256; i++) assert_int_equal(seen[i], 1);
	arrivals_draw(a, 10, INFINITY, 1, in, out);
	for (int i = 0; i < 10; i++) assert_int_equal(a[i].at_ns, 0);
}

static void test_lengths(void **state)
{
	struct token_range range;
	struct arrival a[5] = {0};
	struct error err = {0};
	(void)state;
	assert_int_equal(token_range_parse(&range, "x", "128", NULL), STATUS_OK);
	assert_int_equal(range.lo * 1000 + range.hi, 128128);
	assert_int_equal(token_range_parse(&range, "x", "1:16777216", NULL), STATUS_OK);
	static const char *const bad[] = {"", "0", "-1", "5:", ":5", "5:4", "1 ", "1:2:3", "16777217", "99999999999", "1.5", "0x10"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (token_range_parse(&range, "input-len", bad[i], NULL) != STATUS_USAGE) fail_msg("'%s' is taken", bad[i]);
	assert_int_equal(arrivals_lengths(a, 5, "f", "# pairs\n10 1\n\n20,2\r\n 30\t3", &err), STATUS_OK);
	assert_int_equal(a[2].input_tokens * 10 + a[2].output_tokens, 303);
	assert_int_equal(a[4].input_tokens * 10 + a[4].output_tokens, 202);
	assert_int_equal(arrivals_lengths(a, 1, "f", "10 1\n20 2\n", &err), STATUS_OK);
	assert_int_equal(arrivals_lengths(a, 5, "f", "10 1\n20\n", &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "f, line 2:"));
	assert_int_equal(arrivals_lengths(a, 5, "f", "10\n1\n", NULL), STATUS_BAD_INPUT);
	assert_int_equal(arrivals_lengths(a, 5, "f", "1 2 3", NULL), STATUS_BAD_INPUT);
	assert_int_equal(arrivals_lengths(a, 5, "f", "# none\n", NULL), STATUS_BAD_INPUT);
}

static void test_percentiles(void **state)
{
	double one[] = {5}, some[] = {4, 1, 3, 2}, many[101];
	(void)state;
	for (int i = 0; i <= 100; i++) many[i] = 100 - i;
	struct distribution d = distribution_of(one, 1);
	assert_true(d.mean == 5 && d.p50 == 5 && d.p90 == 5 && d.p99 == 5 && d.max == 5 && d.count == 1);
	d = distribution_of(some, 4);
	assert_true(d.mean == 2.5 && d.p50 == 2.5 && fabs(d.p90 - 3.7) < 1e-12 && fabs(d.p99 - 3.97) < 1e-12 && d.max == 4);
	d = distribution_of(many, 101);
	assert_true(d.p50 == 50 && d.p90 == 90 && d.p99 == 99 && d.max == 100);
	d = distribution_of(NULL, 0);
	assert_true(d.count == 0 && d.mean == 0 && d.max == 0);
}

#define MS 1000000u

/* A request sent at `sent` ms whose pieces come at `first` and then every `gap` ms. */
static struct sample request(uint64_t sent, uint64_t first, uint64_t gap, int tokens)
{
	struct sample s = {.end = LOAD_DONE, .status = 200, .done_mark = true, .due_ns = sent * MS, .sent_ns = sent * MS, .input_tokens = 10, .output_tokens = tokens};
	for (int i = 0; i < tokens; i++) assert_int_equal(sample_piece(&s, (first + (uint64_t)i * gap) * MS, NULL), STATUS_OK);
	s.end_ns = s.last_ns + MS;
	return s;
}

static void test_summary(void **state)
{
	struct sample s[7] = {request(1000, 1010, 5, 5), request(1000, 1100, 20, 41), request(1500, 1510, 0, 1), request(2000, 2010, 1, 2),
	                      request(2000, 2010, 1, 2), request(2000, 2010, 1, 2), {.end = LOAD_DONE, .status = 429, .sent_ns = 2000 * MS, .end_ns = 3000 * MS}};
	struct goodput limits = {.ttft = 50, .tpot = 10};
	struct summary sum;
	(void)state;
	s[3].error_event = true;
	s[4].done_mark = false;
	s[5].end = LOAD_LOST;
	assert_int_equal(summary_make(&sum, s, 7, &limits, NULL), STATUS_OK);
	assert_int_equal(sum.completed, 3);
	assert_int_equal(sum.good, 2);
	assert_int_equal(sum.output_tokens, 47);
	assert_int_equal(sum.input_tokens, 30);
	assert_true(sum.seconds == 2.0);
	assert_true(sum.ttft.count == 3 && sum.ttft.mean == 40 && sum.ttft.p50 == 10 && sum.ttft.max == 100);
	assert_true(sum.tpot.count == 2 && sum.tpot.mean == 12.5);
	assert_true(sum.itl.count == 44 && sum.itl.max == 20 && sum.itl.p50 == 20);
	assert_true(sum.e2el.max == 901);
	assert_int_equal(sum.failure_kinds, 4);
	assert_string_equal(sum.failures[0].text, "error event in the stream");
	assert_string_equal(sum.failures[3].text, "HTTP 429");
	for (int i = 0; i < 7; i++) sample_fini(&s[i]);
	assert_int_equal(summary_make(&sum, NULL, 0, &limits, NULL), STATUS_OK);
	assert_int_equal(sum.completed, 0);
}

static void test_goodput(void **state)
{
	struct goodput g;
	(void)state;
	assert_int_equal(goodput_parse(&g, "ttft:200,e2el:5000.5", NULL), STATUS_OK);
	assert_true(g.ttft == 200 && g.tpot == 0 && g.e2el == 5000.5);
	static const char *const bad[] = {"", "ttft", "ttft:", "ttft:0", "ttft:1,", "itl:3", "ttft:1,ttft:2", "ttft:1x", "ttft:-1", "ttft:1 ,tpot:2", "ttft:1.2.3"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (goodput_parse(&g, bad[i], NULL) != STATUS_USAGE) fail_msg("'%s' is taken", bad[i]);
}

static void test_url(void **state)
{
	struct url u;
	(void)state;
	assert_int_equal(url_parse(&u, "http://127.0.0.1:8000", NULL), STATUS_OK);
	assert_string_equal(u.host, "127.0.0.1");
	assert_int_equal(u.port, 8000);
	assert_string_equal(u.path, "");
	assert_int_equal(url_parse(&u, "http://[::1]:9/prefix/", NULL), STATUS_OK);
	assert_string_equal(u.host, "::1");
	assert_true(u.brackets);
	assert_string_equal(u.path, "/prefix");
	assert_int_equal(url_parse(&u, "http://host", NULL), STATUS_OK);
	assert_int_equal(u.port, 80);
	static const char *const bad[] = {"https://x", "http://", "http://:80", "http://x:0", "http://x:65536", "http://x:8000x", "http://a b", "http://u@x",
	                                  "http://x/?q", "http://[::1", "http://x:", "http://x\r\nA: b"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (url_parse(&u, bad[i], NULL) != STATUS_USAGE) fail_msg("'%s' is taken", bad[i]);
	assert_true(url_is("http://x") && !url_is("models/demo"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sse_split),     cmocka_unit_test(test_sse_limits), cmocka_unit_test(test_reply),   cmocka_unit_test(test_reply_refuses),
		cmocka_unit_test(test_arrivals),      cmocka_unit_test(test_lengths),    cmocka_unit_test(test_percentiles), cmocka_unit_test(test_summary),
		cmocka_unit_test(test_goodput),       cmocka_unit_test(test_url),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
