/* What can be said of the attention kernels without a device: verdicts with their numbers, on devices that are built in and on described ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prescreen/attention_rules.h"
#include "unit/files.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const struct {
	const char *target;
	enum attention_id kernel;
	int q, kv, dim, tokens;
	bool prefill;
	enum dtype dtype;
	enum verdict_kind kind;
	const char *rule, *detail;
} table[] = {
	/* Qwen3.5-27B at P = 1, 2, 4, 8: groups of 6, 6, 6 and 3, heads of 256 */
	{"h200", ATTENTION_DECODE_TENSOR, 24, 4, 256, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "group of 6 in 1 slice, head_dim 256, 256 of 1024 threads, 95488 bytes shared"},
	{"h200", ATTENTION_DECODE_TENSOR, 3, 1, 256, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "group of 3 in 1 slice, head_dim 256, 256 of 1024 threads, 70528 bytes shared"},
	{"h200", ATTENTION_DECODE, 6, 1, 256, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "group of 6 in 2 slices, head_dim 256, 128 of 1024 threads, 21152 bytes shared"},
	{"h200", ATTENTION_PREFILL_WIDE, 24, 4, 256, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "384 of 1024 threads, 230472 bytes shared"},
	{"h200", ATTENTION_PREFILL_TENSOR, 12, 2, 256, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "128 of 1024 threads, 101376 bytes shared"},
	{"h200", ATTENTION_TILE, 12, 2, 256, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "128 of 1024 threads, 52160 bytes shared"},
	/* Llama-3.1-8B: groups of 4, heads of 128 */
	{"h200", ATTENTION_DECODE_TENSOR, 32, 8, 128, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "group of 4 in 1 slice, head_dim 128, 384 of 1024 threads, 32256 bytes shared"},
	{"h200", ATTENTION_PREFILL_WIDE, 32, 8, 128, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "230504 bytes shared"},
	{"h200", ATTENTION_PREFILL_WIDE, 32, 8, 64, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "115816 bytes shared"},
	{"h200", ATTENTION_PREFILL_WIDE, 32, 8, 160, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "197704 bytes shared"},
	{"h200", ATTENTION_DECODE_TENSOR, 16, 1, 128, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "group of 16 in 2 slices"},
	{"h200", ATTENTION_DECODE, 8, 8, 64, 64, false, DTYPE_F32, VERDICT_LEGAL, "all", "group of 1 in 1 slice, head_dim 64, 128 of 1024 threads, 1472 bytes shared"},
	/* what is asked of heads and blocks */
	{"h200", ATTENTION_TILE, 12, 5, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "group", "12 query heads over 5 KV heads"},
	{"h200", ATTENTION_TILE, 2, 4, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "group", "2 query heads over 4 KV heads"},
	{"h200", ATTENTION_TILE, 12, 0, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "group", "over 0 KV heads"},
	{"h200", ATTENTION_DECODE_TENSOR, 12, 4, 72, 64, false, DTYPE_BF16, VERDICT_ILLEGAL, "head_dim", "72 is no multiple of 16"},
	{"h200", ATTENTION_PREFILL_WIDE, 12, 4, 288, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "head_dim", "288 > 256"},
	{"h200", ATTENTION_DECODE, 12, 4, 128, 24, false, DTYPE_BF16, VERDICT_ILLEGAL, "block tokens", "blocks of 24 tokens are no multiple of 16"},
	{"h200", ATTENTION_DECODE, 12, 4, 128, 8, false, DTYPE_BF16, VERDICT_ILLEGAL, "block tokens", "blocks of 8 tokens"},
	{"h200", ATTENTION_DECODE, 12, 4, 128, 16, false, DTYPE_BF16, VERDICT_LEGAL, "all", ""},
	{"h200", ATTENTION_DECODE_TENSOR, 12, 4, 128, 64, false, DTYPE_F32, VERDICT_ILLEGAL, "dtype", "a cache of F32 is neither F16 nor BF16"},
	{"h200", ATTENTION_DECODE, 12, 4, 128, 64, false, DTYPE_Q8_0, VERDICT_ILLEGAL, "dtype", "Q8_0 is neither F16 nor BF16 nor F32"},
	{"h200", ATTENTION_DECODE, 12, 4, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "phase", "one row"},
	{"h200", ATTENTION_PREFILL_WIDE, 12, 4, 128, 64, false, DTYPE_BF16, VERDICT_ILLEGAL, "phase", "several rows"},
	/* and of the device */
	{"a100", ATTENTION_DECODE_TENSOR, 32, 8, 128, 64, false, DTYPE_BF16, VERDICT_ILLEGAL, "arch", "clusters of blocks: sm 80 < 90"},
	{"a100", ATTENTION_PREFILL_WIDE, 32, 8, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "arch", "warpgroup products: sm 80 is not 90"},
	{"a100", ATTENTION_PREFILL_TENSOR, 32, 8, 256, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "101376 bytes shared"},
	{"a100", ATTENTION_DECODE, 32, 8, 128, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "10912 bytes shared"},
	{"gfx942", ATTENTION_PREFILL_WIDE, 32, 8, 128, 64, true, DTYPE_BF16, VERDICT_ILLEGAL, "build", "prefill_wide: not in the build for gfx942"},
	{"gfx942", ATTENTION_TILE, 24, 4, 256, 64, true, DTYPE_BF16, VERDICT_LEGAL, "all", "52160 bytes shared"},
	{"gfx942", ATTENTION_DECODE, 24, 4, 256, 64, false, DTYPE_BF16, VERDICT_LEGAL, "all", "128 of 1024 threads, 12896 bytes shared"}, /* two waves where 32 lanes make four */
	{"gfx936", ATTENTION_TILE, 24, 4, 256, 64, true, DTYPE_BF16, VERDICT_UNKNOWN, "shared memory", "52160 bytes of a limit not known"},
	{"gfx936", ATTENTION_DECODE, 8, 8, 64, 64, false, DTYPE_F16, VERDICT_LEGAL, "all", "944 bytes shared"}, /* less than is known to be there */
	{"cpu", ATTENTION_TILE, 24, 4, 256, 64, true, DTYPE_F32, VERDICT_ILLEGAL, "build", "not in the build for cpu"},
};

static void expect(const struct target *target, enum attention_id id, const struct attention_shape *shape, enum verdict_kind kind, const char *rule, const char *detail)
{
	struct verdict v;
	attention_judge(&v, target, id, shape);
	if (v.kind != kind || strcmp(v.rule, rule) != 0 || !strstr(v.detail, detail))
		fail_msg("%s on %s: expected %s, %s, \"%s\", found %s, %s, \"%s\"", attention_name(id), target->name, verdict_name(kind), rule, detail, verdict_name(v.kind), v.rule,
		         v.detail);
}

static void test_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(table); i++) {
		const struct attention_shape shape = {.q_heads = table[i].q, .kv_heads = table[i].kv, .head_dim = table[i].dim, .block_tokens = table[i].tokens,
		                                      .prefill = table[i].prefill, .dtype = table[i].dtype};
		expect(target_find(table[i].target), table[i].kernel, &shape, table[i].kind, table[i].rule, table[i].detail);
	}
}

/* Gemma 2 caps its scores, and not every kernel does. */
static void test_softcap(void **state)
{
	(void)state;
	static const struct {
		enum attention_id kernel;
		bool prefill, capped;
	} rows[] = {{ATTENTION_DECODE_TENSOR, false, false}, {ATTENTION_DECODE, false, true}, {ATTENTION_PREFILL_WIDE, true, false}, {ATTENTION_PREFILL_TENSOR, true, true},
	            {ATTENTION_TILE, true, true}};
	assert_int_equal(COUNT(rows), ATTENTION_COUNT);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct attention_shape shape = {.q_heads = 16, .kv_heads = 8, .head_dim = 256, .block_tokens = 64, .prefill = rows[i].prefill, .dtype = DTYPE_BF16};
		expect(target_find("h200"), rows[i].kernel, &shape, VERDICT_LEGAL, "all", "");
		shape.softcap = 50;
		if (rows[i].capped) expect(target_find("h200"), rows[i].kernel, &shape, VERDICT_LEGAL, "all", "");
		else expect(target_find("h200"), rows[i].kernel, &shape, VERDICT_ILLEGAL, "soft cap", "scores are capped at 50, which it cannot do");
	}
}

static struct target parsed(const char *change)
{
	static const char base[] = "{\"name\":\"x\",\"wave\":32,\"max_threads\":1024,\"shared_bytes\":233472,\"align_bytes\":16,\"sm\":90,\"kernels\":[],"
	                           "\"attention\":[\"decode\",\"decode_tensor\",\"prefill_wide\",\"prefill_tensor\",\"tile\"]}";
	char *text = files_json(base, change);
	struct target t;
	struct error err = {0};
	if (target_parse(&t, text, strlen(text), "t.json", &err) != STATUS_OK) fail_msg("%s", err.text);
	free(text);
	return t;
}

/* What is not described decides nothing; what is, decides. */
static void test_described(void **state)
{
	(void)state;
	const struct attention_shape prefill = {.q_heads = 12, .kv_heads = 2, .head_dim = 256, .block_tokens = 64, .prefill = true, .dtype = DTYPE_BF16};
	struct attention_shape decode = prefill;
	decode.prefill = false;
	struct target t = parsed("{}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_LEGAL, "all", "230472 bytes");
	t = parsed("{\"shared_bytes\":166912}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_ILLEGAL, "shared memory", "230472 > 166912 bytes");
	t = parsed("{\"shared_bytes\":null}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_UNKNOWN, "shared memory", "230472 bytes of a limit not known");
	t = parsed("{\"sm\":\"remove!\"}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_UNKNOWN, "arch", "of sm 90; the device's is not known");
	expect(&t, ATTENTION_PREFILL_TENSOR, &prefill, VERDICT_UNKNOWN, "arch", "of sm 80 on");
	expect(&t, ATTENTION_TILE, &prefill, VERDICT_LEGAL, "all", "");
	t = parsed("{\"sm\":0}");
	expect(&t, ATTENTION_DECODE_TENSOR, &decode, VERDICT_ILLEGAL, "arch", "the device has none");
	t = parsed("{\"sm\":100}"); /* a later one has clusters, and no warpgroup products of this kind */
	expect(&t, ATTENTION_DECODE_TENSOR, &decode, VERDICT_LEGAL, "all", "");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_ILLEGAL, "arch", "sm 100 is not 90");
	t = parsed("{\"max_threads\":256}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_ILLEGAL, "threads", "384 > 256");
	t = parsed("{\"max_threads\":null}");
	expect(&t, ATTENTION_PREFILL_WIDE, &prefill, VERDICT_UNKNOWN, "threads", "384 of a limit not known");
	t = parsed("{\"wave\":64}");
	expect(&t, ATTENTION_PREFILL_TENSOR, &prefill, VERDICT_ILLEGAL, "wave", "64 lanes; it is made for 32");
	expect(&t, ATTENTION_TILE, &prefill, VERDICT_LEGAL, "all", "");
	t = parsed("{\"wave\":16}");
	expect(&t, ATTENTION_TILE, &prefill, VERDICT_ILLEGAL, "wave", "16 lanes; it is made for 32 or 64");
	t = parsed("{\"attention\":[\"tile\"]}");
	expect(&t, ATTENTION_PREFILL_TENSOR, &prefill, VERDICT_ILLEGAL, "build", "not in the build for x");
	t = parsed("{\"attention\":\"remove!\"}");
	expect(&t, ATTENTION_TILE, &prefill, VERDICT_ILLEGAL, "build", "not in the build for x");
}

static void test_errors(void **state)
{
	(void)state;
	static const char head[] = "{\"name\":\"a\",\"wave\":32,\"align_bytes\":16,\"kernels\":[]";
	static const struct {
		const char *tail, *expected;
	} cases[] = {
		{",\"attention\":7}", "attention: expected a list of decode_tensor, decode, prefill_wide, prefill_tensor, tile, found 7"},
		{",\"attention\":[\"flash\"]}", "attention: expected a list of decode_tensor, decode, prefill_wide, prefill_tensor, tile, found \"flash\""},
		{",\"sm\":-1}", "sm: expected an integer from 0 to 999, found -1"},
		{",\"sm\":\"sm_90\"}", "sm: expected an integer"},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		struct target t;
		struct error err = {0};
		snprintf(text, sizeof text, "%s%s", head, cases[i].tail);
		assert_int_equal(target_parse(&t, text, strlen(text), "t.json", &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, cases[i].expected)) fail_msg("case %zu: expected \"%s\" in \"%s\"", i, cases[i].expected, err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_softcap), cmocka_unit_test(test_described), cmocka_unit_test(test_errors)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
