#include "prescreen/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "prescreen/candidate.h"
#include "prescreen/chain.h"

#define ROTATE_MOST ((int64_t)512 << 20)
#define ROTATE_UNKNOWN ((int64_t)256 << 20) /* where the device does not say what its cache holds */
#define BUDGET_PROBLEMS 0.75 /* part of the budget that the problems are to take, where chains follow */
#define BUDGET_CANDIDATES 12 /* that a problem is taken to have, to divide the rest of the budget */
#define BUDGET_SAMPLE 10 /* problems that tell how long one takes */
#define BUDGET_CLOSE 3 /* candidates of a problem that are close to a threshold */

/* ---- device */

static int largest(int a, int b)
{
	return a > b ? a : b;
}

/* What the stream has to be made for: lengths of sequences, and the largest matrix. */
static void widen_stream(struct stream_options *o, const struct result_problem *p, const struct model_config *config)
{
	const struct attention_problem *a = &p->attention;
	const int rows = result_problem_rows(p), keys = p->op == PROBLEM_ATTENTION ? a->context : largest(rows, 256);
	o->max_rows = largest(o->max_rows, rows);
	if (p->op == PROBLEM_ATTENTION) o->max_rows = largest(o->max_rows, keys < 512 ? keys : 512); /* the cache is filled 512 rows at a time */
	if (p->op == PROBLEM_GDN) o->max_rows = largest(o->max_rows, rows + DECODE_MAX_ROWS * TRIAL_GDN_HISTORY);
	o->max_q_heads = largest(o->max_q_heads, config->q_heads);
	o->max_context = largest(o->max_context, keys);
	o->max_seqs = largest(o->max_seqs, DECODE_MAX_ROWS);
	if (p->op == PROBLEM_LINEAR) o->max_n = largest(o->max_n, p->linear.n), o->max_k = largest(o->max_k, p->linear.k);
	if (p->op == PROBLEM_MOE) {
		const struct moe_key *k = &p->moe;
		o->max_n = largest(o->max_n, largest(largest(k->hidden, 2 * k->inner), largest(2 * k->shared_inner, k->experts + 1)));
		o->max_k = largest(o->max_k, largest(k->hidden, largest(k->inner, k->shared_inner)));
	}
}

static enum status open_device(struct screen *s, struct error *err)
{
	const struct screen_options *o = s->options;
	struct stream_options stream = {.max_head_dim = o->config->head_dim};
	for (int i = 0; i < s->results->problems; i++) widen_stream(&stream, &s->results->problem[i], o->config);
	if (o->chain) chain_widen(&stream, s->results, o);
	TRY(o->ops->open(&s->bench.device, o->device, err));
	return s->bench.device->vt->stream_create(s->bench.device, &stream, &s->bench.stream, err);
}

static void close_device(struct screen *s)
{
	if (s->bench.stream) s->bench.ops->stream_destroy(s->bench.stream);
	if (s->bench.device) s->bench.ops->close(s->bench.device);
	s->bench.stream = NULL;
	s->bench.device = NULL;
}

static void identify(struct screen *s)
{
	struct results *r = s->results;
	const struct device *device = s->bench.device;
	struct device_limits limits = {0};
	if (s->bench.ops->limits) s->bench.ops->limits(device, &limits);
	snprintf(r->device, sizeof r->device, "%s", s->bench.ops->name);
	snprintf(r->flavour, sizeof r->flavour, "%s", s->bench.ops->flavour(device));
	if (s->bench.ops->versions) s->bench.ops->versions(device, r->versions, sizeof r->versions);
	r->threads = s->bench.ops->threads(device);
	r->rotate_bytes = s->options->rotate_bytes;
	if (r->rotate_bytes < 0) {
		r->rotate_bytes = limits.cache_bytes ? 2 * (int64_t)limits.cache_bytes : ROTATE_UNKNOWN;
		if (r->rotate_bytes > ROTATE_MOST) r->rotate_bytes = ROTATE_MOST;
	}
	s->bench.rotate_bytes = (size_t)r->rotate_bytes;
	candidate_target(&s->target, device, &limits);
}

enum status screen_identify(struct results *results, const struct screen_options *options, struct error *err)
{
	struct screen s = {.results = results, .options = options, .bench = {.ops = options->ops}};
	enum status st = options->ops->open(&s.bench.device, options->device, err);
	if (st == STATUS_OK) identify(&s);
	close_device(&s);
	return st;
}

/* ---- one problem */

static enum status report(struct screen *s, const struct result_problem *p, int candidate, struct error *err)
{
	const struct screen_options *o = s->options;
	struct screen_progress progress = {.problems = s->results->problems, .done = results_done(s->results), .candidates = p->candidates, .candidate = candidate,
	                                   .problem = p, .seconds = clock_seconds_since(s->started_ns), .measured = s->measured};
	if (o->progress) o->progress(o->context, &progress);
	return candidate_stopped(s, err);
}

/* What the back end lists, 0: nothing. */
static int variants_of(const struct screen *s, const struct result_problem *p, struct variant *list)
{
	const struct device_ops *ops = s->bench.ops;
	if (p->op == PROBLEM_LINEAR && ops->linear_variants && ops->linear_prefer && ops->linear_ran)
		return ops->linear_variants(s->bench.stream, &p->linear, list, CANDIDATES_MAX);
	if (p->op == PROBLEM_ATTENTION && ops->attention_variants && ops->attention_prefer && ops->attention_ran) {
		const struct attention_key key = problem_attention_key(&p->attention);
		return ops->attention_variants(s->bench.stream, &key, list, CANDIDATES_MAX);
	}
	if (p->op == PROBLEM_MOE && ops->moe_variants && ops->moe_prefer && ops->moe_ran) return ops->moe_variants(s->bench.stream, &p->moe, list, CANDIDATES_MAX);
	return 0;
}

/* What the back end offers, the baseline first. */
static enum status list_candidates(struct screen *s, struct result_problem *p, struct error *err)
{
	struct variant list[CANDIDATES_MAX] = {{.kernel = "default"}};
	int count = 1;
	const int listed = variants_of(s, p, list);
	if (listed > 0) count = listed;
	for (int i = 0; i < p->candidates; i++) result_candidate_fini(&p->candidate[i]);
	p->candidates = 0;
	for (int i = 0; i < count; i++) {
		struct result_candidate *c = result_add_candidate(p, err);
		if (!c) return STATUS_NO_MEMORY;
		c->requested = list[i];
		c->outcome = i ? OUTCOME_OPEN : OUTCOME_BASELINE;
	}
	if (count == 1) snprintf(p->note, sizeof p->note, "this back end has one way only");
	return STATUS_OK;
}

/* Seconds that a candidate's pairs may take. Most end long before; what problems so far have left of the budget goes to those that are close to a threshold. */
static double share_of_budget(const struct screen *s)
{
	const double most = s->options->quick ? CANDIDATE_QUICK_S : CANDIDATE_S;
	if (s->options->budget_s <= 0) return most;
	const int left = s->results->problems - results_done(s->results);
	const double elapsed = clock_seconds_since(s->started_ns), budget = s->options->budget_s * (s->options->chain ? BUDGET_PROBLEMS : 1) - elapsed;
	double share = budget / (left * BUDGET_CANDIDATES + 1);
	if (s->measured >= BUDGET_SAMPLE) {
		const double spare = (budget - elapsed / s->measured * left) / (left * BUDGET_CLOSE + 1);
		if (spare > share) share = spare;
	}
	return share < most ? share : most;
}

static enum status screen_problem(struct screen *s, struct trial_weights *weights, struct trial_experts *experts, struct result_problem *p, struct error *err)
{
	struct trial trial = {0};
	enum status st;
	TRY(list_candidates(s, p, err));
	TRY_GOTO(trial_open(&trial, &s->bench, weights, experts, p, err), end);
	for (int i = 0; i < p->candidates; i++) {
		TRY_GOTO(report(s, p, i, err), end);
		if (!candidate_cut(s)) TRY_GOTO(candidate_run(s, &trial, p, i, share_of_budget(s), err), end);
		if (s->cut) goto end;
		if (i == 0 && p->note[0]) break; /* nothing to compare, or the baseline itself fails */
	}
	p->done = true;
end:
	for (int i = 0; s->cut && i < p->candidates; i++) result_candidate_fini(&p->candidate[i]);
	if (s->cut) p->candidates = 0, p->note[0] = 0; /* as one that was not reached */
	candidate_forget(s);
	trial_close(&trial);
	return st;
}

static enum status finish_problem(struct screen *s, struct error *err)
{
	const struct screen_options *o = s->options;
	s->measured++;
	s->results->seconds = s->seconds_before + clock_seconds_since(s->started_ns);
	return o->save ? o->save(o->context, s->results, err) : STATUS_OK;
}

/* Do two problems share weights? */
static bool shares_weights(const struct result_problem *a, const struct result_problem *b)
{
	if (a->op != b->op) return false;
	if (a->op == PROBLEM_MOE) return moe_key_alike(&a->moe, &b->moe);
	return a->op == PROBLEM_LINEAR && a->linear.n == b->linear.n && a->linear.k == b->linear.k && a->linear.dtype == b->linear.dtype;
}

/* Problem `first`, and all behind it that share its weights. */
static enum status screen_group(struct screen *s, int first, struct error *err)
{
	struct results *r = s->results;
	const struct result_problem *p = &r->problem[first];
	const struct linear_key key = p->linear;
	struct trial_weights *weights = p->op == PROBLEM_LINEAR ? mem_zalloc(1, sizeof *weights, "prescreen: weights", err) : NULL;
	struct trial_experts *experts = p->op == PROBLEM_MOE ? mem_zalloc(1, sizeof *experts, "prescreen: experts", err) : NULL;
	enum status st = (p->op == PROBLEM_LINEAR && !weights) || (p->op == PROBLEM_MOE && !experts) ? STATUS_NO_MEMORY : STATUS_OK;
	if (weights) TRY_GOTO(trial_weights_open(weights, &s->bench, key.dtype, key.n, key.k, err), end);
	if (experts) TRY_GOTO(trial_experts_open(experts, &s->bench, &p->moe, err), end);
	for (int i = first; st == STATUS_OK && i < r->problems && !candidate_out_of_budget(s); i++) {
		struct result_problem *next = &r->problem[i];
		if (next->done || (i > first && !shares_weights(&r->problem[first], next))) continue;
		TRY_GOTO(screen_problem(s, weights, experts, next, err), end);
		if (next->done) TRY_GOTO(finish_problem(s, err), end);
	}
end:
	if (weights) trial_weights_close(weights);
	if (experts) trial_experts_close(experts);
	free(weights);
	free(experts);
	return st;
}

static enum status screen_all(struct screen *s, struct error *err)
{
	struct results *r = s->results;
	TRY(open_device(s, err));
	identify(s);
	for (int i = 0; i < r->problems && !candidate_out_of_budget(s); i++)
		if (!r->problem[i].done) TRY(screen_group(s, i, err));
	r->complete = results_done(r) == r->problems;
	return r->complete && s->options->chain ? chain_run(s, err) : STATUS_OK;
}

enum status screen_run(struct results *results, const struct screen_options *options, struct error *err)
{
	struct screen *s = mem_zalloc(1, sizeof *s, "prescreen", err);
	if (!s) return STATUS_NO_MEMORY;
	*s = (struct screen){.results = results, .options = options, .started_ns = clock_ns(), .seconds_before = results->seconds,
	                     .bench = {.ops = options->ops, .config = options->config, .timeout_ms = options->timeout_ms}};
	s->rule = (struct pair_rule){.keep = results->keep, .reject = results->reject, .least = options->quick ? 4 : 8, .most = options->quick ? 15 : PAIRS_MAX,
	                             .width = options->quick ? 0.02 : 0.004};
	s->repeats = options->quick ? 3 : 5;
	results->chain_mode = options->chain ? CHAIN_ON : CHAIN_OFF;
	enum status st = screen_all(s, err);
	candidate_forget(s);
	close_device(s);
	results->seconds = s->seconds_before + clock_seconds_since(s->started_ns);
	if (st != STATUS_OK && options->save && s->measured + s->chains_measured) { /* else what a file has from before is worth more */
		struct error ignored = {0}; /* the first one is what is told */
		(void)!options->save(options->context, results, &ignored);
	}
	free(s);
	return st;
}

/* ---- going on */

static enum status differs(const char *file, const char *what, const char *old, const char *new, struct error *err)
{
	return FAIL(err, BAD_INPUT, "%s: %s is %.60s, now it is %.60s; leave --resume out to measure anew", file, what, old[0] ? old : "nothing", new[0] ? new : "nothing");
}

/* Is a place of `done` among those of `now` (NULL: the problem is none of this run's)? */
static bool has_place(const struct result_problem *now, const struct result_place *place)
{
	for (int i = 0; now && i < now->places; i++)
		if (now->place[i].world_size == place->world_size && strcmp(now->place[i].family, place->family) == 0) return true;
	return false;
}

/* What was measured and is not asked for now would be gone with the next save. */
static enum status refuse_loss(const struct results *results, const struct results *old, const char *file, struct error *err)
{
	char text[RESULTS_TEXT], first[RESULTS_TEXT + 32] = "";
	int lost = 0;
	for (int i = 0; i < old->problems; i++) {
		const struct result_problem *done = &old->problem[i], *now = results_find(results, done);
		int missing = 0;
		while (missing < done->places && has_place(now, &done->place[missing])) missing++;
		if (!done->done || (now && missing == done->places)) continue;
		if (!lost++ && done->places) snprintf(first, sizeof first, ", the first TP%d %.120s", done->place[missing].world_size, result_problem_text(done, text));
		else if (lost == 1) snprintf(first, sizeof first, ", the first %.120s", result_problem_text(done, text));
	}
	if (!lost) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: has %d results that are not asked for now and would be lost%s; ask for them too (--tp, --phase, --rows, --contexts, --families), or give another --out",
	            file, lost, first);
}

static enum status same_degrees(const struct results *results, const struct results *old, const char *file, struct error *err)
{
	for (int i = 0; i < old->degrees; i++)
		for (int j = 0; j < results->degrees; j++) {
			const struct result_degree *a = &old->degree[i], *b = &results->degree[j];
			if (a->world_size != b->world_size) continue;
			if (a->legal == b->legal && a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->kv_replicated == b->kv_replicated && a->head_dim == b->head_dim &&
			    a->gdn_k_heads == b->gdn_k_heads && a->gdn_v_heads == b->gdn_v_heads && a->gdn_k_dim == b->gdn_k_dim && a->gdn_v_dim == b->gdn_v_dim)
				continue;
			return FAIL(err, BAD_INPUT, "%s: at world size %d the model has other heads; leave --resume out to measure anew", file, a->world_size);
		}
	return STATUS_OK;
}

static enum status same_header(const struct results *results, const struct results *old, const char *file, struct error *err)
{
	char a[RESULTS_TEXT], b[RESULTS_TEXT];
	if (strcmp(old->program, results->program)) return differs(file, "the version of tandem", old->program, results->program, err);
	if (strcmp(old->model, results->model)) return differs(file, "the model", old->model, results->model, err);
	if (strcmp(old->model_type, results->model_type)) return differs(file, "the model's type", old->model_type, results->model_type, err);
	if (old->dtype != results->dtype) return differs(file, "the type of the weights", dtype_name(old->dtype), dtype_name(results->dtype), err);
	if (strcmp(old->device, results->device)) return differs(file, "the device", old->device, results->device, err);
	if (strcmp(old->flavour, results->flavour)) return differs(file, "the device", old->flavour, results->flavour, err);
	if (strcmp(old->versions, results->versions)) return differs(file, "the device's software", old->versions, results->versions, err);
	snprintf(a, sizeof a, "%d threads, %lld bytes", old->threads, (long long)old->rotate_bytes);
	snprintf(b, sizeof b, "%d threads, %lld bytes", results->threads, (long long)results->rotate_bytes);
	if (strcmp(a, b)) return differs(file, "what is measured with", a, b, err);
	if (results_thresholds_differ(old, results, a, b)) return differs(file, "--keep and --reject", a, b, err);
	if (old->any_order != results->any_order) return differs(file, "--any-order", old->any_order ? "on" : "off", results->any_order ? "on" : "off", err);
	return same_degrees(results, old, file, err);
}

enum status screen_resume(struct results *results, struct results *old, bool chain, const char *file, struct error *err)
{
	TRY(same_header(results, old, file, err));
	TRY(refuse_loss(results, old, file, err));
	if (!chain && old->chains) return FAIL(err, BAD_INPUT, "%s: has %d chains that would be lost; leave --no-chain out, or give another --out", file, old->chains);
	results->seconds = old->seconds;
	results->chain_mode = old->chain_mode;
	for (int i = 0; i < results->problems; i++) {
		struct result_problem *p = &results->problem[i], *done = results_find(old, p);
		if (!done || !done->done) continue;
		p->candidate = done->candidate;
		p->candidates = done->candidates;
		p->done = true;
		memcpy(p->note, done->note, sizeof p->note);
		done->candidate = NULL; /* taken */
		done->candidates = 0;
	}
	/* A chain counts if nothing of it is to be measured now. */
	for (int i = 0; i < old->chains; i++)
		if (chain_measured(results, old->chain[i].world_size, old->chain[i].rows)) TRY(results_add_chain(results, &old->chain[i], err));
	return STATUS_OK;
}
