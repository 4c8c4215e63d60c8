/* Sharding: parts are disjoint and cover, query heads find their KV heads, fused segments are cut first, tied heads are no
 * tensor, what does not divide is refused and says what would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/shard.h"

/* Nq 24, Nkv 4, D 6, H 20, I 48: legal at 1, 2, 4, 8 (KV shared by two); at 3 and 6 the KV heads are in the way. */
static struct model_config small(void)
{
	return (struct model_config){.model_type = "llama",
	                             .hidden_size = 20,
	                             .intermediate_size = 48,
	                             .layers = 3,
	                             .q_heads = 24,
	                             .kv_heads = 4,
	                             .head_dim = 6,
	                             .vocab_size = 50,
	                             .rotary_dim = 6,
	                             .tensor_prefix = "model."};
}

static struct manifest manifest_of(const struct model_config *config)
{
	struct manifest m;
	struct error err = {0};
	if (manifest_init(&m, config, &err) != STATUS_OK) fail_msg("%s", err.text);
	return m;
}

static struct shard_spec part(const struct weight *w, int world_size, int rank)
{
	struct shard_spec s;
	struct error err = {0};
	if (shard_of(&s, w, world_size, rank, &err) != STATUS_OK) fail_msg("%s", err.text);
	if (shard_validate(&s, w->name, 2, &err) != STATUS_OK) fail_msg("%s", err.text);
	return s;
}

/* Each element of each tensor is on as many ranks as its part has replicas. test_source.c compares the values. */
static void test_parts_are_disjoint_and_cover(void **state)
{
	(void)state;
	struct model_config config = small();
	config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
	struct manifest m = manifest_of(&config);
	static const int degrees[] = {1, 2, 4, 8};
	for (int i = 0; i < m.count; i++) {
		const struct weight *w = &m.weights[i];
		for (int d = 0; d < 4; d++) {
			int p = degrees[d];
			struct shard_spec specs[8];
			int *seen = calloc((size_t)(w->rows * w->cols), sizeof *seen);
			for (int r = 0; r < p; r++) {
				struct shard_spec s = specs[r] = part(w, p, r);
				int64_t row0 = s.axis == 0 ? s.begin : 0, col0 = s.axis == 1 ? s.begin : 0;
				/* the offsets by themselves */
				if (s.kind == SHARD_COLUMN && s.replicas == 1) {
					assert_int_equal(s.local_rows, w->rows / p);
					assert_int_equal(s.begin, r * (w->rows / p));
				}
				if (s.kind == SHARD_ROW) {
					assert_int_equal(s.local_cols, w->cols / p);
					assert_int_equal(s.begin, r * (w->cols / p));
				}
				for (int64_t y = 0; y < s.local_rows; y++)
					for (int64_t x = 0; x < s.local_cols; x++) {
						assert_true(row0 + y < w->rows && col0 + x < w->cols);
						seen[(row0 + y) * w->cols + col0 + x]++;
					}
			}
			for (int64_t e = 0; e < w->rows * w->cols; e++)
				if (seen[e] != specs[0].replicas) fail_msg("%s: element %lld at degree %d: %d times", w->name, (long long)e, p, seen[e]);
			free(seen);
			struct error err = {0};
			if (shard_validate_group(specs, p, w->name, &err) != STATUS_OK) fail_msg("%s", err.text);
		}
	}
	manifest_fini(&m);
}

/* Local query head q uses local KV head q / (local Nq / local Nkv): it must be the one that the global map gives. */
static void test_query_heads_find_their_kv_heads(void **state)
{
	(void)state;
	static const struct {
		int q, kv;
	} heads[] = {{24, 4}, {8, 1}, {64, 8}, {16, 16}, {40, 8}, {12, 12}, {9, 3}, {28, 4}, {840, 840}};
	for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
		struct model_config config = small();
		config.q_heads = heads[i].q;
		config.kv_heads = heads[i].kv;
		config.intermediate_size = 840;
		struct manifest m = manifest_of(&config);
		const struct weight *q = manifest_find(&m, WEIGHT_Q, 0), *k = manifest_find(&m, WEIGHT_K, 0), *o = manifest_find(&m, WEIGHT_O, 0);
		int legal = 0;
		for (int p = 1; p <= 8; p++) {
			if (shard_degree(&config, p, NULL) != STATUS_OK) continue;
			legal++;
			for (int r = 0; r < p; r++) {
				struct shard_spec sq = part(q, p, r), sk = part(k, p, r), so = part(o, p, r);
				int d = config.head_dim, nq = (int)sq.local_rows / d, nkv = (int)sk.local_rows / d;
				assert_int_equal(sq.begin % d, 0);
				assert_int_equal(sk.begin % d, 0);
				assert_int_equal(so.begin, sq.begin); /* o's inputs are the heads that this rank computes */
				assert_int_equal(so.local_cols, sq.local_rows);
				for (int h = 0; h < nq; h++) {
					int global_q = (int)sq.begin / d + h, global_kv = (int)sk.begin / d + h / (nq / nkv);
					assert_int_equal(global_kv, global_q / (config.q_heads / config.kv_heads));
				}
			}
		}
		assert_true(legal >= 1);
		manifest_fini(&m);
	}
}

static void test_kv_heads_are_shared_by_neighbours(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	const struct weight *v = manifest_find(&m, WEIGHT_V, 2);
	for (int r = 0; r < 8; r++) {
		struct shard_spec s = part(v, 8, r);
		assert_int_equal(s.replicas, 2);
		assert_int_equal(s.owner, r / 2 * 2);
		assert_int_equal(s.local_rows, 6);
		assert_int_equal(s.begin, r / 2 * 6);
	}
	struct shard_spec whole = part(manifest_find(&m, WEIGHT_EMBED, -1), 8, 5);
	assert_int_equal(whole.kind, SHARD_REPLICATED);
	assert_int_equal(whole.axis, -1);
	assert_int_equal(whole.replicas, 8);
	assert_int_equal(whole.owner, 0);
	manifest_fini(&m);
}

/* The fused local tensor is the segments' own parts below each other, which a cut of the fused global tensor is not. */
static void test_fused_segments_are_cut_one_by_one(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	static const enum weight_role qkv[] = {WEIGHT_Q, WEIGHT_K, WEIGHT_V}, gate_up[] = {WEIGHT_GATE, WEIGHT_UP};
	static const struct {
		const enum weight_role *roles;
		int n;
	} fused[] = {{qkv, 3}, {gate_up, 2}};
	for (int f = 0; f < 2; f++) {
		for (int p = 2; p <= 4; p *= 2) {
			int64_t global = 0;
			for (int i = 0; i < fused[f].n; i++) global += manifest_find(&m, fused[f].roles[i], 0)->rows;
			for (int r = 0; r < p; r++) {
				int64_t n0 = 0, segment = 0; /* local row, first row of the segment in the fused global tensor */
				bool differs = false;
				for (int i = 0; i < fused[f].n; i++) {
					const struct weight *w = manifest_find(&m, fused[f].roles[i], 0);
					struct shard_spec s = part(w, p, r);
					assert_int_equal(s.local_rows, w->rows / p); /* segment boundary in the local tensor */
					for (int64_t y = 0; y < s.local_rows; y++) {
						int64_t from = segment + s.begin + y; /* what row n0 + y of the fused local tensor holds */
						assert_true(from >= segment && from < segment + w->rows);
						differs |= from != r * (global / p) + n0 + y;
					}
					n0 += s.local_rows;
					segment += w->rows;
				}
				assert_int_equal(n0, global / p);
				assert_true(differs);
			}
		}
	}
	manifest_fini(&m);
}

static void test_manifest(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	assert_int_equal(m.count, 3 + 3 * 9);
	assert_string_equal(manifest_find(&m, WEIGHT_LM_HEAD, -1)->name, "lm_head.weight");
	assert_string_equal(manifest_find(&m, WEIGHT_Q, 2)->name, "model.layers.2.self_attn.q_proj.weight");
	assert_int_equal(manifest_find(&m, WEIGHT_Q, 2)->rows, 144);
	assert_int_equal(manifest_find(&m, WEIGHT_Q, 2)->cols, 20);
	assert_int_equal(manifest_find(&m, WEIGHT_O, 2)->cols, 144);
	assert_int_equal(manifest_find(&m, WEIGHT_INPUT_NORM, 0)->dims, 1);
	assert_null(manifest_find(&m, WEIGHT_Q, 3));
	assert_null(manifest_find(&m, WEIGHT_Q, -1));
	assert_null(manifest_find(&m, WEIGHT_EMBED, 0));
	assert_null(manifest_find(&m, WEIGHT_Q_BIAS, 0));
	assert_null(manifest_find(&m, WEIGHT_Q_NORM, 0));
	for (int i = 0; i < m.count; i++) /* found where it is */
		assert_ptr_equal(manifest_find(&m, m.weights[i].role, m.weights[i].layer), &m.weights[i]);
	manifest_fini(&m);

	config.tied = config.qkv_bias = config.qk_norm = true;
	snprintf(config.tensor_prefix, sizeof config.tensor_prefix, "model.language_model.");
	m = manifest_of(&config);
	assert_null(manifest_find(&m, WEIGHT_LM_HEAD, -1)); /* tied: the head is the embedding, not a tensor of its own */
	assert_int_equal(m.count, 2 + 3 * 14);
	assert_string_equal(manifest_find(&m, WEIGHT_EMBED, -1)->name, "model.language_model.embed_tokens.weight");
	assert_string_equal(manifest_find(&m, WEIGHT_K_NORM, 1)->name, "model.language_model.layers.1.self_attn.k_norm.weight");
	assert_string_equal(manifest_find(&m, WEIGHT_V_BIAS, 1)->name, "model.language_model.layers.1.self_attn.v_proj.bias");
	assert_null(manifest_find(&m, WEIGHT_O_BIAS, 1));
	manifest_fini(&m);
	manifest_fini(&m);

	snprintf(config.cannot_run, sizeof config.cannot_run, "hybrid");
	struct error err = {0};
	assert_int_equal(manifest_init(&m, &config, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "hybrid"));
}

static void refused(const struct weight *w, int p, const char *needle)
{
	struct shard_spec s;
	struct error err = {0};
	assert_int_equal(shard_of(&s, w, p, 0, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, w->name) || !strstr(err.text, needle)) fail_msg("expected \"%s\" in \"%s\"", needle, err.text);
	if (!strstr(err.text, "expected") || !strstr(err.text, "found")) fail_msg("no expected and found in \"%s\"", err.text);
}

static void test_what_does_not_divide_is_refused(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	refused(manifest_find(&m, WEIGHT_Q, 0), 5, "degrees that divide it: 1, 2, 3, 4, 6, 8");
	refused(manifest_find(&m, WEIGHT_Q, 0), 48, "rows (outputs)"); /* query heads are never shared, though 48 is a multiple of 24 */
	refused(manifest_find(&m, WEIGHT_K, 0), 3, "degrees that divide it: 1, 2, 4, 8");
	refused(manifest_find(&m, WEIGHT_K, 0), 6, "4 units");
	refused(manifest_find(&m, WEIGHT_O, 0), 7, "columns (inputs)");
	refused(manifest_find(&m, WEIGHT_DOWN, 0), 5, "48");
	struct weight tiny = *manifest_find(&m, WEIGHT_GATE, 0);
	tiny.rows = tiny.units = 4;
	refused(&tiny, 8, "found 4 units"); /* would be summed twice if shared */

	struct shard_spec s;
	const struct weight *q = manifest_find(&m, WEIGHT_Q, 0);
	assert_int_equal(shard_of(&s, q, 0, 0, NULL), STATUS_BAD_INPUT);
	assert_int_equal(shard_of(&s, q, 2, 2, NULL), STATUS_BAD_INPUT);
	assert_int_equal(shard_of(&s, q, 2, -1, NULL), STATUS_BAD_INPUT);
	assert_int_equal(shard_of(&s, q, SHARD_MAX_WORLD + 1, 0, NULL), STATUS_BAD_INPUT);
	struct weight empty = *q;
	empty.rows = 0;
	assert_int_equal(shard_of(&s, &empty, 2, 0, NULL), STATUS_BAD_INPUT);
	manifest_fini(&m);
}

static void invalid(struct shard_spec s, size_t element_bytes, const char *needle)
{
	struct error err = {0};
	assert_int_equal(shard_validate(&s, "t", element_bytes, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, needle)) fail_msg("expected \"%s\" in \"%s\"", needle, err.text);
}

static void test_validate(void **state)
{
	(void)state;
	const struct shard_spec fine = {.kind = SHARD_COLUMN, .global_rows = 8, .global_cols = 3, .local_rows = 4, .local_cols = 3, .axis = 0,
	                                .begin = 4, .rank = 1, .world_size = 2, .replicas = 1, .owner = 1};
	struct error err = {0};
	if (shard_validate(&fine, "t", 4, &err) != STATUS_OK) fail_msg("%s", err.text);
	struct shard_spec s;
#define WITH(change, bytes, needle) \
	s = fine;                       \
	s.change;                       \
	invalid(s, bytes, needle)
	WITH(rank = 2, 4, "rank 2 of 2");
	WITH(rank = -1, 4, "rank -1");
	WITH(world_size = 0, 4, "of 0");
	WITH(global_rows = 0, 4, "above zero");
	WITH(local_cols = -3, 4, "above zero");
	WITH(axis = 1, 4, "axis");
	WITH(begin = 5, 4, "outside");
	WITH(begin = -1, 4, "outside");
	WITH(begin = INT64_MAX, 4, "outside");
	WITH(local_cols = 2, 4, "stays whole");
	WITH(owner = 0, 4, "owner");
	WITH(replicas = 0, 4, "replicas");
	WITH(kind = SHARD_REPLICATED, 4, "axis");
	/* products */
	s = fine;
	s.global_rows = s.local_rows = INT64_C(1) << 40;
	s.global_cols = s.local_cols = INT64_C(1) << 22;
	s.begin = 0;
	invalid(s, 4, "larger than the address space");
	s.global_rows = s.local_rows = INT64_MAX;
	s.global_cols = s.local_cols = 1;
	invalid(s, 2, "larger than the address space");
	s = (struct shard_spec){.kind = SHARD_REPLICATED, .global_rows = 8, .global_cols = 3, .local_rows = 4, .local_cols = 3, .axis = -1,
	                        .rank = 1, .world_size = 2, .replicas = 2};
	invalid(s, 4, "stays whole"); /* replicated: local = global */
#undef WITH
}

static void test_validate_group(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	struct shard_spec good[4], specs[4];
	for (int r = 0; r < 4; r++) good[r] = part(manifest_find(&m, WEIGHT_DOWN, 0), 4, r);
	assert_int_equal(shard_validate_group(good, 4, "t", NULL), STATUS_OK);
	static const struct {
		int rank;
		int64_t begin, cols;
		const char *needle;
	} wrong[] = {{1, 11, 12, "rank 1 begins at 11, expected 12"}, {2, 25, 12, "rank 2 begins at 25"}, {3, 36, 11, "parts cover 47 of 48"}};
	for (size_t i = 0; i < 3; i++) {
		memcpy(specs, good, sizeof specs);
		specs[wrong[i].rank].begin = wrong[i].begin;
		specs[wrong[i].rank].local_cols = wrong[i].cols;
		struct error err = {0};
		assert_int_equal(shard_validate_group(specs, 4, "t", &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, wrong[i].needle)) fail_msg("expected \"%s\" in \"%s\"", wrong[i].needle, err.text);
	}
	memcpy(specs, good, sizeof specs);
	specs[2].rank = 1;
	assert_int_equal(shard_validate_group(specs, 4, "t", NULL), STATUS_BAD_INPUT);
	memcpy(specs, good, sizeof specs);
	specs[3].global_rows++;
	assert_int_equal(shard_validate_group(specs, 4, "t", NULL), STATUS_BAD_INPUT);
	struct shard_spec kv[8];
	for (int r = 0; r < 8; r++) kv[r] = part(manifest_find(&m, WEIGHT_K, 0), 8, r);
	kv[3].begin = 0; /* not what its owner holds */
	assert_int_equal(shard_validate_group(kv, 8, "t", NULL), STATUS_BAD_INPUT);
	manifest_fini(&m);
}

/* One parameter among all whose parts leave rows to nobody. */
static void test_validate_all(void **state)
{
	(void)state;
	struct model_config config = small();
	struct manifest m = manifest_of(&config);
	struct error err = {0};
	if (shard_validate_all(&m, 4, &err) != STATUS_OK) fail_msg("%s", err.text);
	m.weights[manifest_find(&m, WEIGHT_Q, 1) - m.weights].units -= 4;
	assert_int_equal(shard_validate_all(&m, 4, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "layers.1.self_attn.q_proj") || !strstr(err.text, "parts cover 120 of 144")) fail_msg("%s", err.text);
	manifest_fini(&m);
}

static void test_degrees(void **state)
{
	(void)state;
	static const struct {
		int q, kv, intermediate;
		unsigned legal; /* bit p: degree p */
		int leaves;
	} models[] = {
		{24, 4, 48, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, 8},
		{24, 4, 17408, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, 8},
		{32, 8, 14336, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, 8},
		{12, 12, 96, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6, 12},
		{9, 3, 96, 1 << 1 | 1 << 3, 3},
		{14, 2, 4864, 1 << 1 | 1 << 2, 2},
		{28, 4, 18944, 1 << 1 | 1 << 2 | 1 << 4, 4},
		{7, 1, 7, 1 << 1 | 1 << 7, 7},
		{1, 1, 1, 1 << 1, 1},
		{840, 840, 840, 0x1fe, 840},
		{8, 4, 100, 1 << 1 | 1 << 2 | 1 << 4, 4},
	};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		struct model_config config = small();
		config.q_heads = models[i].q;
		config.kv_heads = models[i].kv;
		config.intermediate_size = models[i].intermediate;
		unsigned legal = 0;
		for (int p = 1; p <= 8; p++)
			if (shard_degree(&config, p, NULL) == STATUS_OK) legal |= 1u << p;
		if (legal != models[i].legal) fail_msg("model %zu: expected degrees %#x, found %#x", i, models[i].legal, legal);
		assert_int_equal(shard_tree_leaves(&config), models[i].leaves);
		assert_true(config.q_heads % models[i].leaves == 0 && config.intermediate_size % models[i].leaves == 0);
	}
	struct model_config config = small();
	struct error err = {0};
	assert_int_equal(shard_degree(&config, 3, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "num_key_value_heads 4") || !strstr(err.text, "degrees that work: 1, 2, 4, 8")) fail_msg("%s", err.text);
	assert_int_equal(shard_degree(&config, 0, NULL), STATUS_BAD_INPUT);
	assert_int_equal(shard_degree(&config, -2, NULL), STATUS_BAD_INPUT);
	assert_int_equal(shard_degree(&config, SHARD_MAX_WORLD + 1, NULL), STATUS_BAD_INPUT);
	/* beyond 8: only what divides the tree */
	config.q_heads = config.kv_heads = 24;
	config.intermediate_size = 48;
	assert_int_equal(shard_tree_leaves(&config), 24);
	assert_int_equal(shard_degree(&config, 12, NULL), STATUS_OK);
	assert_int_equal(shard_degree(&config, 24, NULL), STATUS_OK);
	config.q_heads = config.kv_heads = 64;
	config.intermediate_size = 64;
	err = (struct error){0};
	assert_int_equal(shard_degree(&config, 16, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "summation tree")) fail_msg("%s", err.text);
}

/* Rows of the vocabulary: what ranks have is what it is made of, in whole granules; and how many there are of each. */
static void test_vocabulary(void **state)
{
	(void)state;
	static const struct {
		int64_t vocab;
		int world_size, granule;
		int64_t rows[SHARD_VOCAB_SIZES + 1]; /* ends with 0 */
	} cases[] = {
		{160, 1, 32, {160}},           {160, 2, 32, {96, 64}},      {160, 4, 32, {64, 32}},        {160, 8, 32, {32}},       {165, 4, 32, {64, 37, 32}},
		{50, 4, 32, {32, 18}},         {160, 2, 1, {80}},           {32003, 2, 1, {16002, 16001}}, {32003, 4, 0, {8001, 8000}}, {248320, 8, 32, {31040}},
		{151936, 8, 32, {19008, 18976}}, {151936, 8, 0, {18992}}, {262208, 8, 32, {32800, 32768}}, {1, 64, 32, {1}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int64_t rows[SHARD_VOCAB_SIZES], at = 0, found = 0;
		const int64_t vocab = cases[i].vocab, *want = cases[i].rows;
		int sizes = shard_vocab_sizes(rows, vocab, cases[i].world_size, cases[i].granule);
		for (int s = 0; s < sizes; s++) assert_int_equal(rows[s], want[s]);
		assert_int_equal(want[sizes], 0);
		for (int r = 0; r < cases[i].world_size; r++) {
			const struct shard_rows own = shard_vocab(vocab, cases[i].world_size, r, cases[i].granule);
			assert_int_equal(own.begin, at);
			assert_true(own.end >= at && own.end <= vocab && (own.end == vocab || !cases[i].granule || own.end % cases[i].granule == 0));
			for (int s = 0; s < sizes; s++) found += own.end - own.begin == rows[s] ? rows[s] : 0;
			at = own.end;
		}
		assert_int_equal(at, vocab);
		assert_int_equal(found, vocab);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_are_disjoint_and_cover),
		cmocka_unit_test(test_query_heads_find_their_kv_heads),
		cmocka_unit_test(test_kv_heads_are_shared_by_neighbours),
		cmocka_unit_test(test_fused_segments_are_cut_one_by_one),
		cmocka_unit_test(test_manifest),
		cmocka_unit_test(test_what_does_not_divide_is_refused),
		cmocka_unit_test(test_validate),
		cmocka_unit_test(test_validate_group),
		cmocka_unit_test(test_validate_all),
		cmocka_unit_test(test_degrees),
		cmocka_unit_test(test_vocabulary),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
