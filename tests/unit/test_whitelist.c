/* The whitelist: its file, what is refused and with which words, which entries results justify, and an engine that uses one: the same bits on a CPU at
 * every world size, every rank with the same table; and that what is measured for one is what an engine runs. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "comm/group.h"
#include "engine/dispatch.h"
#include "engine/engine.h"
#include "model/plan.h"
#include "prescreen/choose.h"
#include "prescreen/problems.h"
#include "unit/files.h"
#include "unit/golden.h"
#include "unit/ranks.h"

#define MODEL GOLDEN_DIR "llama"
#define WORLDS 3
static const int worlds[WORLDS] = {1, 2, 4};
static const int32_t prompt[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28};
#define PROMPT ((int)(sizeof prompt / sizeof *prompt))

static struct device *open_cpu(const char *isa)
{
	struct device *device;
	struct error err = {0};
	if (device_find("cpu")->open(&device, &(struct device_options){.isa = isa, .core_count = 1}, &err) != STATUS_OK) fail_msg("%s", err.text);
	return device;
}

static void need(enum status st, const struct error *err)
{
	if (st != STATUS_OK) fail_msg("%s", err->text);
}

static bool row_parallel(const char *family)
{
	return !strcmp(family, "attn o") || !strcmp(family, "mlp down");
}

/* A table for this machine's CPU with an entry for every linear of the model at three world sizes; the variants go round. */
static void make(struct whitelist *w)
{
	struct error err = {0};
	struct model_config config;
	struct device *device = open_cpu("auto");
	struct stream *stream;
	int turn = 1;
	need(model_config_load(&config, MODEL, NULL, &err), &err);
	need(device->vt->stream_create(device, &(struct stream_options){.max_rows = 1}, &stream, &err), &err);
	*w = (struct whitelist){.program = TANDEM_VERSION, .device = "cpu", .model = "llama", .dtype = config.dtype, .keep = 1.05};
	snprintf(w->model_type, sizeof w->model_type, "%s", config.model_type);
	snprintf(w->flavour, sizeof w->flavour, "%s", device->vt->flavour(device));
	device->vt->versions(device, w->versions, sizeof w->versions);
	for (int p = 0; p < WORLDS; p++) {
		struct plan_degree plan;
		plan_degree(&plan, &config, worlds[p], &(struct plan_options){.vocab_granule = device->vt->linear_granule});
		for (int f = 0; f < plan.families; f++) {
			const struct plan_family *family = &plan.family[f];
			struct whitelist_shape shape = {.world_size = worlds[p], .n = (int)family->local_n, .k = (int)family->local_k};
			struct variant list[32];
			if (!family->runs) continue;
			snprintf(shape.family, sizeof shape.family, "%s", family->family);
			need(whitelist_add_shape(w, &shape, &err), &err);
			struct whitelist_entry e = {.prefer = {.key = {.use = row_parallel(family->family) ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN, .dtype = config.dtype,
			                                               .n = shape.n, .k = shape.k}, .m_low = 1, .m_high = 64}, .ratio = 1.25};
			int count = device->vt->linear_variants(stream, &e.prefer.key, list, 32);
			e.prefer.variant = list[1 + turn++ % (count - 1)];
			snprintf(e.where, sizeof e.where, "TP%d %s", worlds[p], family->family);
			e.prefer.key.m = 1;
			bool twice = whitelist_find(w, &e.prefer.key) != NULL; /* o and down of one shape, or one shape at two degrees */
			e.prefer.key.m = 0;
			if (!twice) need(whitelist_add_entry(w, &e, &err), &err);
		}
	}
	need(whitelist_seal(w, "test", &err), &err);
	device->vt->stream_destroy(stream);
	device->vt->close(device);
}

static char *text_of(const struct whitelist *w)
{
	struct buf text = {0};
	struct error err = {0};
	need(whitelist_format(w, &text, &err), &err);
	return text.data;
}

static void test_round_trip(void **state)
{
	(void)state;
	struct whitelist w, back;
	struct error err = {0};
	make(&w);
	assert_int_equal(strlen(w.hash), 64);
	assert_true(w.entries >= 8);
	char *text = text_of(&w);
	need(whitelist_parse(&back, text, strlen(text), "w.json", &err), &err);
	assert_string_equal(back.hash, w.hash);
	assert_int_equal(back.entries, w.entries);
	assert_int_equal(back.shapes, w.shapes);
	assert_memory_equal(back.shape, w.shape, (size_t)w.shapes * sizeof *w.shape);
	for (int i = 0; i < w.entries; i++) {
		assert_memory_equal(&back.entry[i].prefer.key, &w.entry[i].prefer.key, sizeof w.entry[i].prefer.key);
		assert_string_equal(back.entry[i].prefer.variant.mode, w.entry[i].prefer.variant.mode);
		assert_true(back.entry[i].ratio == w.entry[i].ratio);
	}
	char *again = text_of(&back);
	assert_string_equal(again, text);
	struct linear_key key = w.entry[0].prefer.key;
	key.m = 64;
	assert_ptr_equal(whitelist_find(&w, &key), &w.entry[0]);
	key.m = 65;
	assert_null(whitelist_find(&w, &key));
	free(text), free(again);
	whitelist_fini(&w), whitelist_fini(&back);
}

static void refused(const char *text, enum status code, const char *words)
{
	struct whitelist w;
	struct error err = {0};
	enum status st = whitelist_parse(&w, text, strlen(text), "w.json", &err);
	if (st != code || !strstr(err.text, words)) fail_msg("expected '%s', status %d; got '%s', status %d", words, (int)code, err.text, (int)st);
	assert_null(w.entry);
	assert_null(w.shape);
}

static void test_text_is_refused(void **state)
{
	(void)state;
	static const struct { const char *change, *words; } changes[] = {
		{"{\"format\":\"tandem-prescreen\"}", "tandem-whitelist"},
		{"{\"version\":\"1\"}", "version: expected an integer"},
		{"{\"program\":\"remove!\"}", "program: expected a text"},
		{"{\"notes\":1}", "notes: not a field here"},
		{"{\"device\":{\"kind\":\"cpu\",\"flavour\":\"c\",\"versions\":\"v\",\"cores\":2}}", "device.cores: not a field here"},
		{"{\"device\":[]}", "device: expected an object"},
		{"{\"model\":{\"name\":\"m\",\"type\":\"llama\",\"dtype\":\"BF17\",\"shapes\":[]}}", "model.dtype: expected the name"},
		{"{\"model\":{\"name\":\"m\",\"type\":\"llama\",\"dtype\":\"BF16\",\"shapes\":[{\"world_size\":1,\"family\":\"x\",\"n\":0,\"k\":1}]}}", "model.shapes[0].n"},
		{"{\"keep\":\"1.05\"}", "keep: expected a number"},
		{"{\"any_order\":0}", "any_order: expected true or false"},
		{"{\"entries\":{}}", "entries: expected a list"},
		{"{\"entries\":[3]}", "entries: an item is not an object"},
		{"{\"entries\":[{\"use\":\"gemm\"}]}", "entries[0].use: expected linear"},
		{"{\"entries\":[]}", "hash: the content has"},
		{"{\"keep\":1.06}", "hash: the content has"},
		{"{\"hash\":\"00\"}", "hash: the content has"},
		{"{\"hash\":\"remove!\"}", "hash: expected a text"},
	};
	struct whitelist w;
	make(&w);
	char *text = text_of(&w);
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		char *changed = files_json(text, changes[i].change);
		refused(changed, STATUS_BAD_INPUT, changes[i].words);
		free(changed);
	}
	char *newer = files_json(text, "{\"version\":2}");
	refused(newer, STATUS_UNSUPPORTED, "version 2, this program reads version 1");
	refused("[]", STATUS_BAD_INPUT, "object");
	refused("{", STATUS_BAD_INPUT, "JSON");
	free(newer), free(text);
	whitelist_fini(&w);
}

static void not_sealed(struct whitelist *w, const char *words)
{
	struct error err = {0};
	assert_int_equal(whitelist_seal(w, "test", &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, words)) fail_msg("expected '%s'; got '%s'", words, err.text);
}

static void test_content_is_refused(void **state)
{
	(void)state;
	struct whitelist w;
	make(&w);
	struct whitelist_entry keep = w.entry[1], *e = &w.entry[1];
	e->ratio = 1.04;
	not_sealed(&w, "ratio 1.04 is below keep, 1.05");
	*e = keep, e->prefer.variant.invariant = false;
	not_sealed(&w, "another order of summation");
	*e = keep, e->prefer.m_low = 0;
	not_sealed(&w, "for m from 0 to 64");
	*e = keep, e->prefer.m_high = 0;
	not_sealed(&w, "for m from 1 to 0");
	*e = keep, e->prefer.variant.kernel[0] = 0;
	not_sealed(&w, "entry 2: is empty");
	*e = keep, strcpy(e->where, "a\nb");
	not_sealed(&w, "control character");
	*e = w.entry[0], e->prefer.m_low = e->prefer.m_high = 64;
	not_sealed(&w, "entries 1 and 2 both are for");
	e->prefer.m_low = e->prefer.m_high = 65; /* beside it is fine */
	struct error err = {0};
	need(whitelist_seal(&w, "test", &err), &err);
	*e = keep, w.keep = 0.9;
	not_sealed(&w, "keep: 0.9");
	w.keep = 1.05, w.shapes = 0;
	not_sealed(&w, "no shape");
	whitelist_fini(&w);
}

static void differs(const struct whitelist *w, const struct device *device, const char *words)
{
	struct error err = {0};
	assert_int_equal(whitelist_check_device(w, device, &err), STATUS_UNSUPPORTED);
	if (!strstr(err.text, words)) fail_msg("expected '%s'; got '%s'", words, err.text);
}

static void test_another_device_or_model(void **state)
{
	(void)state;
	struct whitelist w;
	struct error err = {0};
	struct model_config config;
	make(&w);
	struct device *device = open_cpu("auto");
	need(whitelist_check_device(&w, device, &err), &err);
	struct whitelist other = w;
	strcpy(other.program, "0.0.9");
	differs(&other, device, "version '0.0.9'");
	other = w, strcpy(other.device, "cuda");
	differs(&other, device, "device 'cuda', this is 'cpu'");
	other = w, strcpy(other.flavour, "sm_90");
	differs(&other, device, "device 'sm_90'");
	other = w, strcpy(other.versions, "driver 1");
	differs(&other, device, "library or driver 'driver 1'");
	need(model_config_load(&config, MODEL, NULL, &err), &err);
	for (int p = 0; p < WORLDS; p++) need(whitelist_check_model(&w, &config, device_find("cpu"), worlds[p], &err), &err);
	assert_int_equal(whitelist_check_model(&w, &config, device_find("cpu"), 8, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "not measured for world size 8"));
	err = (struct error){0};
	config.intermediate_size *= 2;
	assert_int_equal(whitelist_check_model(&w, &config, device_find("cpu"), 2, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "mlp gate_up [64 x 64]', this is 'mlp gate_up [128 x 64]"));
	config.intermediate_size /= 2;
	/* The LM head of any rank will do, one that no rank has will not. */
	static const int heads[] = {96, 64, 80};
	struct whitelist_shape *head = w.shape;
	while (head->world_size != 2 || strcmp(head->family, "lm_head")) head++;
	for (int i = 0; i < 3; i++) {
		err = (struct error){0};
		head->n = heads[i];
		assert_int_equal(whitelist_check_model(&w, &config, device_find("cpu"), 2, &err), i < 2 ? STATUS_OK : STATUS_UNSUPPORTED);
	}
	assert_non_null(strstr(err.text, "lm_head [80 x 64]', this is 'lm_head [96 x 64]"));
	err = (struct error){0};
	/* Of a table that was measured on another device, whose ranks have other heads, the device is told. */
	strcpy(w.device, "cuda");
	assert_int_equal(whitelist_check_model(&w, &config, device_find("cpu"), 2, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "device 'cuda', this is 'cpu'"));
	strcpy(w.device, "cpu");
	err = (struct error){0};
	strcpy(config.model_type, "mistral");
	assert_int_equal(whitelist_check_model(&w, &config, device_find("cpu"), 2, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "model type 'llama', this is 'mistral'"));
	device->vt->close(device);
	whitelist_fini(&w);
}

/* --- the engine -------------------------------------------------------------------------------------------------------------- */

struct seen {
	int white, other, wrong, shared;
	const struct whitelist *w;
};

static void look(void *context, const struct tandem_dispatch *d)
{
	struct seen *seen = context;
	struct linear_key key = {.dtype = seen->w->dtype, .n = d->n, .k = d->k, .m = d->m, .use = strcmp(d->use, "linear") ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN};
	const struct whitelist_entry *e = whitelist_find(seen->w, &key);
	bool white = d->ratio > 0;
	seen->shared += !strcmp(d->families, "attn o, mlp down");
	if (white) seen->white++;
	else seen->other++;
	seen->wrong += !d->calls || !e != !white || (e && (strcmp(e->prefer.variant.mode, d->mode) || !strstr(d->why, "whitelist, 1.25x"))) ||
	               (!e && !strstr(d->why, "default: no entry"));
}

static void explain(const struct tandem_options *options, const struct whitelist *w, int32_t tokens[8])
{
	struct tandem *engine;
	struct tandem_error err = {0};
	struct seen seen = {.w = w};
	int got;
	if (tandem_open(&engine, options, &err)) fail_msg("open: %s", err.text);
	if (golden_greedy(engine, prompt, PROMPT, 8, true, tokens, &got, &err)) fail_msg("greedy: %s", err.text);
	if (tandem_explain_dispatch(engine, look, &seen, &err)) fail_msg("explain: %s", err.text);
	/* qkv and gate_up have one shape here, o and down another: two problems each for the prompt and for decode; and the head, always of one row, which on
	 * several ranks has the shape of one of these */
	if (seen.wrong || seen.other || seen.white != (options->world_size == 1 ? 5 : 4) || !seen.shared) fail_msg("by the whitelist %d, by default %d, wrong %d", seen.white, seen.other, seen.wrong);
	tandem_close(&engine);
}

static void test_same_bits_with_it(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct whitelist w;
	make(&w);
	char *text = text_of(&w);
	files_make(folder);
	files_write(path, folder, "whitelist.json", text, strlen(text));
	int vocab;
	struct tandem_error err = {0};
	struct tandem_options options = {.model = MODEL, .context = 64, .world_size = 1, .threads = 1};
	float *want = golden_logits(&options, prompt, PROMPT, &vocab, &err);
	if (!want) fail_msg("%s", err.text);
	int32_t first[8], tokens[8];
	for (int p = 0; p < WORLDS; p++) {
		options = (struct tandem_options){.model = MODEL, .context = 64, .world_size = worlds[p], .threads = worlds[p], .whitelist = path, .explain_dispatch = true};
		float *got = golden_logits(&options, prompt, PROMPT, &vocab, &err);
		if (!got) fail_msg("%s", err.text);
		assert_memory_equal(got, want, (size_t)PROMPT * (size_t)vocab * sizeof *want);
		free(got);
		explain(&options, &w, p ? tokens : first);
		if (p) assert_memory_equal(tokens, first, sizeof first);
	}
	free(want), free(text);
	files_remove(folder);
	whitelist_fini(&w);
}

static void refuses(const char *path, struct tandem_options options, const char *words)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	options.model = MODEL;
	options.context = 64;
	options.whitelist = path;
	int code = tandem_open(&engine, &options, &err);
	if (!code || engine || tandem_exit_code(code) != 3 || !strstr(err.text, words)) fail_msg("expected '%s'; got %d '%s'", words, code, err.text);
}

static void test_engine_refuses_it_whole(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct whitelist w;
	struct error err = {0};
	make(&w);
	files_make(folder);
	char *text = text_of(&w);
	files_write(path, folder, "good.json", text, strlen(text));
	refuses(path, (struct tandem_options){.world_size = 2, .threads = 2, .isa = "c"}, strcmp(w.flavour, "c") ? "this is 'c'" : "");
	free(text);
	for (int i = 0; i < w.entries; i++) strcpy(w.entry[i].prefer.variant.mode, "mmx, 1 panel, whole k");
	need(whitelist_seal(&w, "test", &err), &err);
	text = text_of(&w);
	files_write(path, folder, "mode.json", text, strlen(text));
	refuses(path, (struct tandem_options){.world_size = 2, .threads = 2}, "have none of that name");
	free(text);
	strcpy(w.versions, "another processor");
	need(whitelist_seal(&w, "test", &err), &err);
	text = text_of(&w);
	files_write(path, folder, "other.json", text, strlen(text));
	refuses(path, (struct tandem_options){.world_size = 4, .threads = 4}, "library or driver 'another processor'");
	refuses("/nonexistent/w.json", (struct tandem_options){.world_size = 1}, "/nonexistent/w.json");
	free(text);
	files_remove(folder);
	whitelist_fini(&w);
}

/* Does a problem of the results ask for it? */
static bool is_asked(const struct results *r, const struct linear_key *key)
{
	const struct result_problem like = {.op = PROBLEM_LINEAR, .phase = "decode", .linear = *key};
	return results_find(r, &like) != NULL;
}

static bool is_noted(const struct tandem *engine, const struct linear_key *key)
{
	for (int r = 0; r < engine->world_size; r++) {
		const struct dispatch_notes *notes = coordinator_rank(engine->coordinator, r)->notes;
		for (int i = 0; i < notes->count; i++)
			if (linear_key_equal(&notes->item[i].key, key)) return true;
	}
	return false;
}

/* Experts are no linears, whatever shapes they have. */
static void look_for_experts(void *context, const struct tandem_dispatch *d)
{
	if (strstr(d->families, "moe")) fail_msg("%s: [%d x %d] is said to be of %s", (const char *)context, d->n, d->k, d->families);
}

/* Opens the model and decodes; what its ranks take linears for, and what a prescreen asks about, are the same. */
static void compare_questions(const char *model, const struct model_config *config, int32_t world_size)
{
	static const int32_t rows[] = {1}, contexts[] = {64};
	const struct problem_choice choice = {.degrees = &world_size, .degree_count = 1, .decode = true, .rows = rows, .row_count = 1,
	                                      .contexts = contexts, .context_count = 1};
	const struct tandem_options options = {.model = model, .context = 64, .world_size = world_size, .threads = world_size, .explain_dispatch = true};
	struct results r = {0};
	struct tandem *engine;
	struct tandem_error failed = {0};
	struct error err = {0};
	int32_t tokens[2];
	int got;
	need(problems_make(&r, config, device_find("cpu"), &choice, &err), &err);
	if (tandem_open(&engine, &options, &failed)) fail_msg("%s: %s", model, failed.text);
	if (golden_greedy(engine, prompt, 3, 2, true, tokens, &got, &failed)) fail_msg("%s: %s", model, failed.text);
	for (int i = 0; i < r.problems; i++) {
		char text[RESULTS_TEXT];
		if (r.problem[i].op != PROBLEM_LINEAR || is_noted(engine, &r.problem[i].linear)) continue;
		fail_msg("%s: no rank of %d runs %s, %s", model, world_size, result_problem_text(&r.problem[i], text), r.problem[i].place[0].family);
	}
	for (int k = 0; k < world_size; k++) {
		const struct dispatch_notes *notes = coordinator_rank(engine->coordinator, k)->notes;
		for (int i = 0; i < notes->count; i++) {
			const struct linear_key *key = &notes->item[i].key;
			if (key->m != 1 || is_asked(&r, key)) continue;
			fail_msg("%s: nobody measures what rank %d of %d runs: %s [%d x %d]", model, k, world_size, linear_use_name(key->use), key->n, key->k);
		}
	}
	if (tandem_explain_dispatch(engine, look_for_experts, (void *)model, &failed)) fail_msg("%s: %s", model, failed.text);
	tandem_close(&engine);
	results_fini(&r);
}

static void test_measured_is_what_runs(void **state)
{
	(void)state;
	json_t *index = golden_index(), *models = json_object_get(index, "models");
	int compared = 0;
	for (size_t i = 0; i < json_array_size(models); i++) {
		char path[256];
		struct model_config config;
		struct error err = {0};
		snprintf(path, sizeof path, GOLDEN_DIR "%s", json_string_value(json_object_get(json_array_get(models, i), "name")));
		need(model_config_load(&config, path, NULL, &err), &err);
		for (int p = 0; p < WORLDS; p++) {
			if (shard_degree(&config, worlds[p], NULL) != STATUS_OK) continue;
			compare_questions(path, &config, worlds[p]);
			compared++;
		}
	}
	assert_true(compared >= 60);
	json_decref(index);
}

/* Without the option there is nothing to explain. */
static void test_explain_was_not_asked(void **state)
{
	(void)state;
	struct tandem *engine;
	struct tandem_error err = {0};
	if (tandem_open(&engine, &(struct tandem_options){.model = MODEL, .context = 64}, &err)) fail_msg("%s", err.text);
	assert_int_equal(tandem_explain_dispatch(engine, look, NULL, &err), STATUS_USAGE);
	tandem_close(&engine);
}

static void agree(struct rank_run *run)
{
	char hash[WHITELIST_HASH_BYTES];
	memset(hash, 'a', sizeof hash);
	if (run->rank == 2) hash[40] = 'b';
	hash[WHITELIST_HASH_BYTES - 1] = 0;
	struct group **groups = run->context;
	run->st = dispatch_agree(groups[run->rank == 2 || groups[1] == NULL], run->rank, 7, hash, &run->err);
}

static void agree_all_the_same(struct rank_run *run)
{
	char hash[WHITELIST_HASH_BYTES] = "same";
	run->st = dispatch_agree(*(struct group **)run->context, run->rank, 7, hash, &run->err);
}

static void test_ranks_must_agree(void **state)
{
	(void)state;
	struct error err = {0};
	struct group *group;
	struct rank_run runs[3];
	need(group_create(&group, &(struct group_options){.world_size = 3, .timeout_ms = 5000}, &err), &err);
	ranks_run(3, agree_all_the_same, &group, runs);
	for (int r = 0; r < 3; r++) assert_int_equal(runs[r].st, STATUS_OK);
	struct group *both[2] = {group, group};
	ranks_run(3, agree, both, runs);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(runs[r].st, STATUS_MISMATCH);
		if (!strstr(runs[r].err.text, "rank 2 has the table")) fail_msg("rank %d: %s", r, runs[r].err.text);
	}
	group_destroy(&group);
}

/* --- what results justify ---------------------------------------------------------------------------------------------------- */

static struct result_candidate *candidate(struct result_problem *p, const char *kernel, double speedup, enum outcome outcome, bool invariant)
{
	struct error err = {0};
	struct result_candidate *c = result_add_candidate(p, &err);
	assert_non_null(c);
	snprintf(c->requested.kernel, sizeof c->requested.kernel, "%s", kernel);
	c->requested.invariant = invariant;
	c->outcome = outcome;
	c->timing = (struct result_timing){.pairs = 9, .speedup = speedup, .low = speedup, .high = speedup};
	return c;
}

/* speedup: of "a" and "b"; from 1.05 on kept. */
static void problem(struct results *r, int n, int m, double a, double b, bool done)
{
	struct error err = {0};
	struct result_problem *p = results_add_problem(r, &err);
	assert_non_null(p);
	*p = (struct result_problem){.op = PROBLEM_LINEAR, .linear = {.use = LINEAR_USE_PLAIN, .dtype = DTYPE_BF16, .n = n, .k = 64, .m = m}, .done = done};
	strcpy(p->phase, m <= 16 ? "decode" : "prefill");
	need(result_add_place(p, 2, "mlp gate_up", 2, &err), &err);
	candidate(p, "default", 1, OUTCOME_BASELINE, true);
	candidate(p, "a", a, a >= 1.05 ? OUTCOME_KEEP : a >= 1 ? OUTCOME_BOUNDARY : OUTCOME_REJECT, true);
	candidate(p, "b", b, b >= 1.05 ? OUTCOME_KEEP : OUTCOME_REJECT, false);
}

static void assert_range(const struct whitelist *w, int i, int n, int low, int high, const char *kernel, double ratio)
{
	const struct whitelist_entry *e = &w->entry[i];
	if (e->prefer.key.n != n || e->prefer.m_low != low || e->prefer.m_high != high || strcmp(e->prefer.variant.kernel, kernel) || e->ratio != ratio)
		fail_msg("entry %d: n %d, m %d to %d, %s, %g; expected n %d, m %d to %d, %s, %g", i, e->prefer.key.n, e->prefer.m_low, e->prefer.m_high,
		         e->prefer.variant.kernel, e->ratio, n, low, high, kernel, ratio);
}

static struct results *planted(void)
{
	struct results *r = calloc(1, sizeof *r);
	*r = (struct results){.program = "0.1.0", .model = "m", .model_type = "llama", .dtype = DTYPE_BF16, .device = "cpu", .flavour = "c", .keep = 1.05, .reject = 1};
	problem(r, 32, 8, 1.20, 0.9, true); /* the order of the file does not matter */
	problem(r, 32, 1, 1.30, 0.9, true);
	problem(r, 32, 2, 1.10, 0.9, true);
	problem(r, 32, 4, 1.049, 0.9, true);  /* below the threshold: 1..2 and 8..16 must not meet over it */
	problem(r, 32, 16, 1.40, 0.9, true);
	problem(r, 32, 512, 1.50, 0.9, true); /* too far from 16 */
	problem(r, 64, 1, 1.10, 1.60, true);  /* b is faster, but of another order */
	problem(r, 64, 2, 1.12, 1.60, true);
	problem(r, 64, 4, 0.80, 1.60, true);
	problem(r, 96, 1, 1.20, 1.00, false); /* not measured to the end */
	problem(r, 96, 2, 1.20, 1.00, true);
	problem(r, 128, 1, 1.20, 1.21, true); /* with any order: as good as b, and a is taken no earlier */
	problem(r, 128, 2, 1.20, 1.10, true);
	problem(r, 160, 1, 1.20, 0.90, true);
	r->problem[r->problems - 1].candidate[1].timing.low = 0.99; /* it may be slower */
	return r;
}

static void test_ranges_are_conservative(void **state)
{
	(void)state;
	struct results *r = planted();
	struct whitelist w;
	struct error err = {0};
	need(choose_whitelist(&w, r, false, &err), &err);
	assert_int_equal(w.entries, 6);
	assert_range(&w, 0, 32, 1, 2, "a", 1.10);
	assert_range(&w, 1, 32, 8, 16, "a", 1.20);
	assert_range(&w, 2, 32, 512, 512, "a", 1.50);
	assert_range(&w, 3, 64, 1, 2, "a", 1.10);
	assert_range(&w, 4, 96, 2, 2, "a", 1.20);
	assert_range(&w, 5, 128, 1, 2, "a", 1.20);
	assert_string_equal(w.entry[0].where, "TP2 mlp gate_up");
	assert_int_equal(w.shapes, 5);
	/* the rule itself: no range covers an M at which its variant was not kept */
	for (int i = 0; i < r->problems; i++) {
		const struct whitelist_entry *e = whitelist_find(&w, &r->problem[i].linear);
		for (int c = 0; e && c < r->problem[i].candidates; c++)
			if (variant_equal(&r->problem[i].candidate[c].requested, &e->prefer.variant)) assert_int_equal(r->problem[i].candidate[c].outcome, OUTCOME_KEEP);
	}
	whitelist_fini(&w);
	need(choose_whitelist(&w, r, true, &err), &err);
	assert_int_equal(w.entries, 7);
	assert_range(&w, 3, 64, 1, 4, "b", 1.60);
	assert_range(&w, 5, 128, 1, 1, "b", 1.21);
	assert_range(&w, 6, 128, 2, 2, "a", 1.20);
	assert_true(w.any_order);
	whitelist_fini(&w);
	results_fini(r);
	free(r);
}

/* One problem measured as decode and as prefill: only what both keep. */
static void test_twins_must_agree(void **state)
{
	(void)state;
	struct results r = {.program = "0.1.0", .model = "m", .model_type = "llama", .dtype = DTYPE_BF16, .device = "cpu", .keep = 1.05, .reject = 1};
	struct whitelist w;
	struct error err = {0};
	problem(&r, 32, 16, 1.20, 0.9, true);
	problem(&r, 32, 16, 0.97, 0.9, true);
	problem(&r, 64, 16, 1.20, 0.9, true);
	problem(&r, 64, 16, 1.10, 0.9, true);
	need(choose_whitelist(&w, &r, false, &err), &err);
	assert_int_equal(w.entries, 1);
	assert_range(&w, 0, 64, 16, 16, "a", 1.10);
	whitelist_fini(&w);
	results_fini(&r);
	assert_int_equal(choose_whitelist(&w, &(struct results){.model = "empty"}, false, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "no linear"));
}

int main(void)
{
	watchdog(200);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_text_is_refused),
		cmocka_unit_test(test_content_is_refused),
		cmocka_unit_test(test_another_device_or_model),
		cmocka_unit_test(test_same_bits_with_it),
		cmocka_unit_test(test_engine_refuses_it_whole),
		cmocka_unit_test(test_measured_is_what_runs),
		cmocka_unit_test(test_explain_was_not_asked),
		cmocka_unit_test(test_ranks_must_agree),
		cmocka_unit_test(test_ranges_are_conservative),
		cmocka_unit_test(test_twins_must_agree),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
