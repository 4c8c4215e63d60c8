/* What can be said of kernels without a device: the shapes of every family at every degree, the published verdicts on them, and files that
 * describe devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prescreen/shapes.h"
#include "unit/files.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct shapes shapes_at(int world_size)
{
	static struct model_config config;
	struct error err = {0};
	struct plan_degree d;
	struct shapes s;
	const struct plan_options options = {.activation = DTYPE_BF16, .kv = DTYPE_BF16};
	if (model_config_load(&config, "tests/data/plan/qwen3.5-27b", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	plan_degree(&d, &config, world_size, &options);
	shapes_of(&s, &config, &d);
	return s;
}

static const int degrees[] = {1, 2, 4, 8};

/* Local N and K at P = 1, 2, 4, 8. P = 2 and 4 of the first six are the account's table. */
static const struct {
	const char *family;
	int64_t n[4], k[4];
	int count;
} table[] = {
	{"attn qkv", {14336, 7168, 3584, 2048}, {5120, 5120, 5120, 5120}, 16},
	{"gdn qkvz", {16384, 8192, 4096, 2048}, {5120, 5120, 5120, 5120}, 48},
	{"mlp gate_up", {34816, 17408, 8704, 4352}, {5120, 5120, 5120, 5120}, 64},
	{"gdn ba", {96, 48, 24, 12}, {5120, 5120, 5120, 5120}, 48},
	{"mlp down", {5120, 5120, 5120, 5120}, {17408, 8704, 4352, 2176}, 64},
	{"gdn out", {5120, 5120, 5120, 5120}, {6144, 3072, 1536, 768}, 48},
	{"attn o", {5120, 5120, 5120, 5120}, {6144, 3072, 1536, 768}, 16},
	{"lm_head", {248320, 124160, 62080, 31040}, {5120, 5120, 5120, 5120}, 1},
};

static int find_family(const struct shapes *s, const char *name)
{
	for (int i = 0; i < s->families; i++)
		if (strcmp(s->family[i].family, name) == 0) return i;
	fail_msg("TP%d: no family \"%s\"", s->world_size, name);
	return -1;
}

static void test_shapes(void **state)
{
	(void)state;
	for (int p = 0; p < 4; p++) {
		struct shapes s = shapes_at(degrees[p]);
		assert_true(s.legal);
		assert_int_equal(s.families, COUNT(table));
		for (size_t i = 0; i < COUNT(table); i++) {
			int f = find_family(&s, table[i].family);
			assert_int_equal(s.family[f].n, table[i].n[p]);
			assert_int_equal(s.family[f].k, table[i].k[p]);
			assert_int_equal(s.family[f].count, table[i].count);
			for (int c = 0; c < SHAPES_CLASSES; c++) {
				struct linear_shape l = shapes_linear(&s, f, c);
				assert_true(l.n == table[i].n[p] && l.k == table[i].k[p] && l.m == shapes_class[c].m && l.dtype == DTYPE_BF16 && !l.bias);
			}
		}
	}
	struct shapes none = shapes_at(3);
	assert_false(none.legal);
	assert_int_equal(none.families, 0);
}

static void test_classes(void **state)
{
	(void)state;
	static const int rows[SHAPES_CLASSES] = {1, 2, 4, 8, 16, 512, 1024, 2048, 4096, 8192};
	for (int c = 0; c < SHAPES_CLASSES; c++) {
		assert_int_equal(shapes_class[c].m, rows[c]);
		assert_string_equal(shapes_class[c].phase, rows[c] <= 16 ? "decode" : "prefill");
	}
}

/* 24Q/4KV, 12Q/2KV, 6Q/1KV of the account; at 8 two ranks share a KV head. */
static void test_heads(void **state)
{
	(void)state;
	static const int expected[4][5] = {{24, 4, 16, 48, 10240}, {12, 2, 8, 24, 5120}, {6, 1, 4, 12, 2560}, {3, 1, 2, 6, 1280}};
	for (int p = 0; p < 4; p++) {
		struct shapes s = shapes_at(degrees[p]);
		const int *e = expected[p];
		assert_int_equal(s.attention.layers, 16);
		assert_int_equal(s.attention.q_heads, e[0]);
		assert_int_equal(s.attention.kv_heads, e[1]);
		assert_int_equal(s.attention.head_dim, 256);
		assert_int_equal(s.gdn.layers, 48);
		assert_int_equal(s.gdn.k_heads, e[2]);
		assert_int_equal(s.gdn.v_heads, e[3]);
		assert_int_equal(s.gdn.conv_channels, e[4]);
		assert_true(s.gdn.k_dim == 128 && s.gdn.v_dim == 128 && s.gdn.conv_kernel == 4 && s.gdn.state_dtype == DTYPE_F32);
	}
}

/* rows: of the mode. threads: 0, or what a mode of gemv_strided fixes. */
static const struct {
	const char *target;
	enum kernel_id kernel;
	int rows, threads;
	int64_t n, k;
	int m;
	enum verdict_kind kind;
	const char *rule, *detail;
} verdicts[] = {
	/* down: illegal at P = 1 and 2, legal from 4 on; 64 lanes and 32 */
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 17408, 1, VERDICT_ILLEGAL, "threads", "2176 > 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 8704, 1, VERDICT_ILLEGAL, "threads", "1088 > 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 4352, 1, VERDICT_LEGAL, "all", "576 of 1024 threads, 1024 bytes shared, 1280 blocks"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 2176, 1, VERDICT_LEGAL, "all", "320 of 1024 threads, 1024 bytes shared, 1280 blocks"},
	{"gfx90a", KERNEL_LLMM1, 4, 0, 5120, 8704, 1, VERDICT_ILLEGAL, "threads", "1088 > 1024"},
	{"gfx942", KERNEL_LLMM1, 4, 0, 5120, 4352, 1, VERDICT_LEGAL, "all", "576 of 1024"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 5120, 17408, 1, VERDICT_ILLEGAL, "threads", "2176 > 1024"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 5120, 8704, 1, VERDICT_ILLEGAL, "threads", "1088 > 1024"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 5120, 4352, 1, VERDICT_LEGAL, "all", "544 of 1024 threads, 512 bytes shared, 1280 blocks"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 5120, 2176, 1, VERDICT_LEGAL, "all", "288 of 1024"},
	{"a100", KERNEL_GEMV_LLMM1, 4, 0, 5120, 8704, 1, VERDICT_ILLEGAL, "threads", "1088 > 1024"},
	{"a100", KERNEL_GEMV_LLMM1, 4, 0, 5120, 4352, 1, VERDICT_LEGAL, "all", "544 of 1024"},
	/* the other families: 5120 in, and out projection */
	{"gfx936", KERNEL_LLMM1, 4, 0, 14336, 5120, 1, VERDICT_LEGAL, "all", "640 of 1024"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 14336, 5120, 1, VERDICT_LEGAL, "all", "640 of 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 6144, 1, VERDICT_LEGAL, "all", "768 of 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 3072, 1, VERDICT_LEGAL, "all", "384 of 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 1536, 1, VERDICT_LEGAL, "all", "192 of 1024"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 768, 1, VERDICT_LEGAL, "all", "128 of 1024"},
	{"h200", KERNEL_GEMV_LLMM1, 4, 0, 5120, 768, 1, VERDICT_LEGAL, "all", "96 of 1024"},
	{"gfx936", KERNEL_LLMM1, 16, 0, 5120, 768, 1, VERDICT_LEGAL, "all", "256 of 1024 threads, 4096 bytes shared, 320 blocks"},
	/* the last K that fits, and the first that does not */
	{"gfx936", KERNEL_LLMM1, 2, 0, 64, 8192, 1, VERDICT_LEGAL, "all", "1024 of 1024"},
	{"gfx936", KERNEL_LLMM1, 2, 0, 64, 8200, 1, VERDICT_ILLEGAL, "threads", "1088 > 1024"},
	/* modes that do not exist */
	{"gfx936", KERNEL_LLMM1, 1, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "mode", "1 is none of 2, 4, 8, 16; it falls to the default branch, kernel<4>"},
	{"gfx936", KERNEL_LLMM1, 32, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "mode", "32 is none of"},
	{"gfx936", KERNEL_LLMM1, 0, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "mode", ""},
	{"h200", KERNEL_GEMV_LLMM1, 1, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "mode", "1 is none of 2, 4, 8, 16"},
	{"h200", KERNEL_GEMV_STRIDED, 8, 640, 5120, 5120, 1, VERDICT_ILLEGAL, "mode", "8 rows, 640 threads is none of (4, 640), (2, 640), (1, 1024), (4, 256)"},
	/* rows that nobody writes; ours guards them */
	{"gfx936", KERNEL_LLMM1, 16, 0, 24, 5120, 1, VERDICT_ILLEGAL, "grid tail", "N 24 % 16: the last 8 rows are never written"},
	{"gfx936", KERNEL_LLMM1, 8, 0, 24, 5120, 1, VERDICT_LEGAL, "all", "3 blocks"},
	{"gfx936", KERNEL_LLMM1, 8, 0, 12, 5120, 1, VERDICT_ILLEGAL, "grid tail", "N 12 % 8: the last 4 rows are never written"},
	{"gfx936", KERNEL_LLMM1, 16, 0, 12, 5120, 1, VERDICT_ILLEGAL, "grid tail", "the last 12 rows"},
	{"gfx936", KERNEL_GEMV_LLMM1, 16, 0, 24, 5120, 1, VERDICT_LEGAL, "all", "2 blocks"},
	/* what is asked of the shape */
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 5124, 1, VERDICT_ILLEGAL, "k8", "K 5124 % 8 = 4"},
	{"gfx936", KERNEL_LLMM1, 4, 0, 5120, 5120, 2, VERDICT_ILLEGAL, "rows", "M 2 > 1"},
	{"h200", KERNEL_LINEAR, 0, 0, 7, 13, 8192, VERDICT_LEGAL, "all", ""},
	{"cpu", KERNEL_LINEAR, 0, 0, 7, 13, 8192, VERDICT_LEGAL, "all", ""},
	/* K is no limit of a kernel that loops */
	{"gfx936", KERNEL_GEMV_STRIDED, 2, 640, 5120, 8704, 1, VERDICT_LEGAL, "all", "640 of 1024 threads, 80 bytes shared, 2560 blocks"},
	{"gfx936", KERNEL_GEMV_STRIDED, 1, 1024, 5120, 17408, 1, VERDICT_LEGAL, "all", "1024 of 1024"},
	{"h200", KERNEL_GEMV_STRIDED, 4, 256, 5120, 3072, 1, VERDICT_LEGAL, "all", "256 of 1024"},
	/* what a build lacks, and stubs */
	{"gfx936", KERNEL_WVSPLITK, 0, 1024, 5120, 5120, 1, VERDICT_ILLEGAL, "build", "an assert(false) stub on gfx936"},
	{"h200", KERNEL_LLMM1, 4, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "build", "not in the build for h200"},
	{"cpu", KERNEL_GEMV_LLMM1, 4, 0, 5120, 5120, 1, VERDICT_ILLEGAL, "build", "not in the build for cpu"},
	{"gfx90a", KERNEL_WVSPLITK, 0, 1024, 5120, 5120, 5, VERDICT_ILLEGAL, "rows", "M 5 > 4"},
	{"gfx90a", KERNEL_WVSPLITK, 0, 1024, 5120, 5120, 4, VERDICT_UNKNOWN, "compute units", "not known"},
	/* through the guards */
	{"gfx90a", KERNEL_LLMM1_DISPATCHED, 4, 0, 14336, 5120, 1, VERDICT_ILLEGAL, "guard order", "wvSplitK is reached: N 14336 > 8 and M 1 <= 4"},
	{"gfx90a", KERNEL_LLMM1_DISPATCHED, 4, 0, 8, 5120, 1, VERDICT_LEGAL, "all", "640 of 1024"},
	{"gfx90a", KERNEL_LLMM1_DISPATCHED, 4, 0, 4, 5120, 1, VERDICT_LEGAL, "all", "640 of 1024"},
	{"gfx90a", KERNEL_LLMM1_DISPATCHED, 8, 0, 8, 5120, 1, VERDICT_ILLEGAL, "mode", "8 is none of 4"},
	{"gfx936", KERNEL_LLMM1_DISPATCHED, 4, 0, 14336, 5120, 1, VERDICT_UNKNOWN, "guard order", "wvSplitK comes first"},
};

static void test_verdicts(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(verdicts); i++) {
		struct verdict v;
		const struct kernel_mode mode = {verdicts[i].rows, verdicts[i].threads};
		const struct linear_shape shape = {.n = verdicts[i].n, .k = verdicts[i].k, .m = verdicts[i].m, .dtype = DTYPE_BF16};
		kernel_judge(&v, target_find(verdicts[i].target), verdicts[i].kernel, &mode, &shape);
		if (v.kind != verdicts[i].kind || strcmp(v.rule, verdicts[i].rule) != 0 || !strstr(v.detail, verdicts[i].detail))
			fail_msg("verdict %zu, %s on %s: expected %s, %s, \"%s\", found %s, %s, \"%s\"", i, kernel_name(verdicts[i].kernel), verdicts[i].target,
			         verdict_name(verdicts[i].kind), verdicts[i].rule, verdicts[i].detail, verdict_name(v.kind), v.rule, v.detail);
	}
}

static struct target parsed(const char *change)
{
	static const char base[] = "{\"name\":\"x\",\"wave\":32,\"max_threads\":1024,\"shared_bytes\":65536,\"compute_units\":100,\"align_bytes\":16,"
	                           "\"skinny\":true,\"kernels\":[\"LLMM1\",\"wvSplitK\",\"gemv_llmm1\",\"gemv_strided\",\"linear\"]}";
	char *text = files_json(base, change);
	struct target t;
	struct error err = {0};
	if (target_parse(&t, text, strlen(text), "t.json", &err) != STATUS_OK) fail_msg("%s", err.text);
	free(text);
	return t;
}

static void expect(const struct target *t, enum kernel_id id, struct kernel_mode mode, struct linear_shape shape, enum verdict_kind kind, const char *rule,
                   const char *detail)
{
	struct verdict v;
	kernel_judge(&v, t, id, &mode, &shape);
	if (v.kind != kind || strcmp(v.rule, rule) != 0 || !strstr(v.detail, detail))
		fail_msg("%s: expected %s, %s, \"%s\", found %s, %s, \"%s\"", kernel_name(id), verdict_name(kind), rule, detail, verdict_name(v.kind), v.rule, v.detail);
}

/* What is not described decides nothing; what is, decides. */
static void test_described_devices(void **state)
{
	(void)state;
	const struct kernel_mode four = {4, 0}, sixteen = {16, 0}, split = {0, 1024}, strided = {4, 640};
	const struct linear_shape s = {.n = 5120, .k = 5120, .m = 1, .dtype = DTYPE_BF16};
	struct linear_shape down = s, f32 = s, q8 = s;
	down.k = 4352, f32.dtype = DTYPE_F32, q8.dtype = DTYPE_Q8_0;
	struct target t = parsed("{}");
	expect(&t, KERNEL_LLMM1, four, down, VERDICT_ILLEGAL, "reduction", "17 waves > 16"); /* 544 threads of 32 lanes: runs, and is wrong */
	expect(&t, KERNEL_GEMV_LLMM1, four, down, VERDICT_LEGAL, "all", "544 of 1024");
	expect(&t, KERNEL_WVSPLITK, split, s, VERDICT_LEGAL, "all", "1024 of 1024 threads, 65536 bytes shared, 100 blocks");
	expect(&t, KERNEL_LLMM1, four, f32, VERDICT_ILLEGAL, "dtype", "F32 is neither");
	expect(&t, KERNEL_GEMV_STRIDED, strided, q8, VERDICT_ILLEGAL, "dtype", "Q8_0 is neither");
	t = parsed("{\"shared_bytes\":1024}");
	expect(&t, KERNEL_GEMV_LLMM1, sixteen, s, VERDICT_ILLEGAL, "shared memory", "2048 > 1024 bytes");
	expect(&t, KERNEL_GEMV_LLMM1, four, s, VERDICT_LEGAL, "all", "");
	t = parsed("{\"shared_bytes\":null}");
	expect(&t, KERNEL_GEMV_LLMM1, four, s, VERDICT_UNKNOWN, "shared memory", "512 bytes of a limit not known");
	t = parsed("{\"shared_bytes\":null,\"shared_floor\":512}");
	expect(&t, KERNEL_GEMV_LLMM1, four, s, VERDICT_LEGAL, "all", "");
	expect(&t, KERNEL_GEMV_LLMM1, sixteen, s, VERDICT_UNKNOWN, "shared memory", "2048 bytes");
	expect(&t, KERNEL_WVSPLITK, split, s, VERDICT_UNKNOWN, "shared memory", "65536 bytes");
	t = parsed("{\"max_threads\":\"remove!\"}");
	expect(&t, KERNEL_GEMV_LLMM1, four, s, VERDICT_UNKNOWN, "threads", "640 of a limit not known");
	t = parsed("{\"max_threads\":null,\"shared_bytes\":64}"); /* what is known to fail comes before what is not known */
	expect(&t, KERNEL_GEMV_LLMM1, four, s, VERDICT_ILLEGAL, "shared memory", "512 > 64");
	t = parsed("{\"align_bytes\":32}");
	expect(&t, KERNEL_GEMV_LLMM1, four, (struct linear_shape){.n = 8, .k = 24, .m = 1, .dtype = DTYPE_BF16}, VERDICT_ILLEGAL, "alignment", "48 bytes");
	t = parsed("{\"wave\":48}");
	expect(&t, KERNEL_GEMV_STRIDED, strided, s, VERDICT_ILLEGAL, "wave", "640 threads are no multiple of 48");
}

static void test_dispatch(void **state)
{
	(void)state;
	static const struct {
		int64_t n, k;
		int m;
		enum dtype dtype;
		bool bias;
		enum kernel_id branch;
	} cases[] = {
		{9, 5120, 1, DTYPE_BF16, false, KERNEL_WVSPLITK},   {8, 5120, 1, DTYPE_BF16, false, KERNEL_LLMM1}, {8, 8192, 1, DTYPE_F16, false, KERNEL_LLMM1},
		{8, 8200, 1, DTYPE_BF16, false, KERNEL_LINEAR},     {8, 5120, 1, DTYPE_BF16, true, KERNEL_LINEAR}, {6, 5120, 1, DTYPE_BF16, false, KERNEL_LINEAR},
		{8, 5120, 2, DTYPE_BF16, false, KERNEL_LINEAR},     {5120, 8704, 4, DTYPE_BF16, true, KERNEL_WVSPLITK},
		{5120, 8704, 5, DTYPE_BF16, false, KERNEL_LINEAR},  {5120, 5124, 1, DTYPE_BF16, false, KERNEL_LINEAR},
		{5120, 5120, 1, DTYPE_F32, false, KERNEL_LINEAR},
	};
	char why[VERDICT_DETAIL_BYTES];
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct linear_shape s = {.n = cases[i].n, .k = cases[i].k, .m = cases[i].m, .dtype = cases[i].dtype, .bias = cases[i].bias};
		enum kernel_id branch = kernel_dispatch(target_find("gfx942"), &s, why);
		if (branch != cases[i].branch) fail_msg("case %zu: expected %s, found %s: %s", i, kernel_name(cases[i].branch), kernel_name(branch), why);
		assert_int_equal(kernel_dispatch(target_find("h200"), &s, why), KERNEL_LINEAR);
	}
	const struct linear_shape s = {.n = 5120, .k = 5120, .m = 1, .dtype = DTYPE_BF16};
	assert_int_equal(kernel_dispatch(target_find("gfx936"), &s, why), KERNEL_COUNT);
}

static void test_target_errors(void **state)
{
	(void)state;
	static const struct {
		const char *text, *expected;
	} cases[] = {
		{"[]", "expected a JSON object"},
		{"{", "not valid JSON"},
		{"{}", "name: expected a name"},
		{"{\"name\":\"a b\"}", "name: expected a name of 1 to 47 letters"},
		{"{\"name\":7}", "name: expected a string, found 7"},
		{"{\"name\":\"a\"}", "wave: expected an integer from 1 to 128, found nothing"},
		{"{\"name\":\"a\",\"wave\":0}", "wave: expected an integer from 1 to 128, found 0"},
		{"{\"name\":\"a\",\"wave\":32.0}", "wave: expected an integer"},
		{"{\"name\":\"a\",\"wave\":32,\"max_threds\":1024}", "max_threds: not a field of a target"},
		{"{\"name\":\"a\",\"wave\":32,\"max_threads\":-1}", "max_threads: expected an integer from 1 to 65536, found -1"},
		{"{\"name\":\"a\",\"wave\":32,\"shared_bytes\":\"64KiB\"}", "shared_bytes: expected an integer"},
		{"{\"name\":\"a\",\"wave\":32}", "align_bytes: expected an integer"},
		{"{\"name\":\"a\",\"wave\":32,\"align_bytes\":16,\"skinny\":1}", "skinny: expected true or false, found 1"},
		{"{\"name\":\"a\",\"wave\":32,\"align_bytes\":16}", "kernels: expected a list of LLMM1"},
		{"{\"name\":\"a\",\"wave\":32,\"align_bytes\":16,\"kernels\":[\"gemv\"]}", "kernels: expected a list of LLMM1, wvSplitK, gemv_llmm1, gemv_strided, linear, found \"gemv\""},
		{"{\"name\":\"a\",\"wave\":32,\"align_bytes\":16,\"kernels\":[\"LLMM1 dispatched\"]}", "kernels: expected"},
		{"{\"name\":\"a\",\"name\":\"b\"}", "duplicate"},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct target t;
		struct error err = {0};
		assert_int_equal(target_parse(&t, cases[i].text, strlen(cases[i].text), "t.json", &err), STATUS_BAD_INPUT);
		if (strncmp(err.text, "t.json: ", 8) != 0 || !strstr(err.text, cases[i].expected)) fail_msg("case %zu: expected \"%s\" in \"%s\"", i, cases[i].expected, err.text);
		assert_int_equal(t.name[0], 0);
	}
}

static void test_target_open(void **state)
{
	(void)state;
	struct target t;
	struct error err = {0};
	char names[128], *save = NULL;
	snprintf(names, sizeof names, "%s", target_names());
	int count = 0;
	for (char *name = strtok_r(names, ", ", &save); name; name = strtok_r(NULL, ", ", &save), count++) {
		assert_int_equal(target_open(&t, name, &err), STATUS_OK);
		assert_string_equal(t.name, name);
		assert_true(t.kernels & 1u << KERNEL_LINEAR);
	}
	assert_int_equal(count, 6);
	assert_int_equal(target_open(&t, "tests/data/target/example.json", &err), STATUS_OK);
	assert_string_equal(t.name, "example-wave32");
	assert_int_equal(t.compute_units, TARGET_UNKNOWN);
	assert_int_equal(target_open(&t, "h300", &err), STATUS_USAGE);
	assert_non_null(strstr(err.text, "give one of gfx936, gfx90a, gfx942, h200, a100, cpu"));
	err = (struct error){0};
	assert_int_equal(target_open(&t, "./nowhere.json", &err), STATUS_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),   cmocka_unit_test(test_classes),           cmocka_unit_test(test_heads),
		cmocka_unit_test(test_verdicts), cmocka_unit_test(test_described_devices), cmocka_unit_test(test_dispatch),
		cmocka_unit_test(test_target_errors), cmocka_unit_test(test_target_open),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
