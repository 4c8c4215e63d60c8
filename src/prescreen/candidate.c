#include "prescreen/candidate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "prescreen/attention_rules.h"

/* A side is timed over so many calls that it takes about SIDE_US, goes through all copies of the weights if that takes no longer than SIDE_MOST_US. */
#define SIDE_US 200
#define SIDE_MOST_US 2000
#define QUICK_SIDE_US 50
#define SIDE_MAX_CALLS TRIAL_MAX_COPIES
#define REPEATS_S 0.5 /* repeats go on for so long, with two at least */
#define HOPELESS 0.25 /* a candidate that is slower than this in a first pair that took HOPELESS_S needs no other: that was no accident */
#define HOPELESS_S 0.5
#define BASELINE_PAIRS 7 /* of the baseline with itself, where nothing else is timed */

void candidate_target(struct target *out, const struct device *device, const struct device_limits *limits)
{
	const struct target *cpu = target_find("cpu");
	*out = *cpu;
	if (limits->wave <= 1) return;
	*out = (struct target){.wave = limits->wave, .max_threads = limits->max_threads ? limits->max_threads : TARGET_UNKNOWN,
	                       .shared_bytes = limits->shared_bytes ? limits->shared_bytes : TARGET_UNKNOWN,
	                       .compute_units = limits->compute_units ? limits->compute_units : TARGET_UNKNOWN, .align_bytes = 16, .skinny = KNOWN_NO,
	                       .kernels = 1u << KERNEL_GEMV_LLMM1 | 1u << KERNEL_GEMV_STRIDED | 1u << KERNEL_LINEAR,
	                       .attention = (1u << ATTENTION_COUNT) - 1}; /* of these its back end lists what its build has */
	if (sscanf(device->vt->flavour(device), "sm_%d", &out->sm) != 1) out->sm = 0;
	snprintf(out->name, sizeof out->name, "%.40s", device->vt->flavour(device));
}

enum status candidate_stopped(const struct screen *s, struct error *err)
{
	if (s->options->stop && s->options->stop(s->options->context)) return FAIL(err, CANCELLED, "prescreen: interrupted");
	return STATUS_OK;
}

bool candidate_ends_run(enum status st, const struct error *why, struct error *err)
{
	const bool ends = st == STATUS_NO_MEMORY || st == STATUS_CANCELLED;
	if (ends && err) *err = *why;
	return ends;
}

bool candidate_out_of_budget(const struct screen *s)
{
	return s->options->budget_s > 0 && clock_seconds_since(s->started_ns) >= s->options->budget_s;
}

bool candidate_cut(struct screen *s)
{
	s->cut = s->cut || candidate_out_of_budget(s);
	return s->cut;
}

PRINTF_LIKE(3, 4) static void reject(struct result_candidate *c, enum reason reason, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(c->detail, sizeof c->detail, format, args);
	va_end(args);
	if (c->outcome != OUTCOME_BASELINE) c->outcome = OUTCOME_REJECT; /* a baseline that fails is the problem's note */
	c->reason = reason;
}

/* ---- static rules */

/* The kernel and mode of the rules' table that a variant names; what stands behind the mode ("4, apart") does not matter. */
static const struct kernel_mode *known_mode(const struct variant *v, enum kernel_id *id)
{
	for (int k = 0; k < KERNEL_LINEAR; k++) {
		const struct kernel_family *family = kernel_family((enum kernel_id)k);
		if (strcmp(kernel_name((enum kernel_id)k), v->kernel) != 0) continue;
		for (int m = 0; m < family->modes; m++) {
			char name[32];
			size_t n = strlen(kernel_mode_name(&family->mode[m], name));
			*id = (enum kernel_id)k;
			if (strncmp(v->mode, name, n) == 0 && (!v->mode[n] || v->mode[n] == ',')) return &family->mode[m];
		}
	}
	return NULL;
}

/* Whether a rule is about this candidate at all; then what it says. */
static bool judge(const struct screen *s, const struct result_problem *p, const struct variant *v, struct verdict *out)
{
	if (p->op == PROBLEM_ATTENTION) {
		const struct attention_problem *a = &p->attention;
		const struct attention_shape shape = {.q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .block_tokens = a->block_tokens, .prefill = a->prefill,
		                                      .dtype = a->dtype, .softcap = a->softcap};
		int id = 0;
		while (id < ATTENTION_COUNT && strcmp(attention_name((enum attention_id)id), v->kernel) != 0) id++;
		if (id == ATTENTION_COUNT) return false;
		attention_judge(out, &s->target, (enum attention_id)id, &shape);
		return true;
	}
	/* The rules are about 16-bit types: our kernels of these names take F32 too, in chunks of four. */
	const bool half = p->op == PROBLEM_LINEAR && (p->linear.dtype == DTYPE_F16 || p->linear.dtype == DTYPE_BF16);
	enum kernel_id id;
	const struct kernel_mode *mode = half ? known_mode(v, &id) : NULL;
	if (!mode) return false;
	const struct linear_shape shape = {.n = p->linear.n, .k = p->linear.k, .m = p->linear.m, .dtype = p->linear.dtype};
	kernel_judge(out, &s->target, id, mode, &shape);
	return true;
}

static bool static_legal(const struct screen *s, const struct result_problem *p, struct result_candidate *c)
{
	struct verdict v;
	if (!judge(s, p, &c->requested, &v)) return true;
	snprintf(c->verdict, sizeof c->verdict, "%s", verdict_name(v.kind));
	snprintf(c->rule, sizeof c->rule, "%s", v.rule);
	snprintf(c->verdict_detail, sizeof c->verdict_detail, "%s", v.detail);
	if (v.kind != VERDICT_ILLEGAL) return true;
	reject(c, REASON_STATIC, "%s: %s", v.rule, v.detail);
	return false;
}

/* ---- running */

static enum status prefer(struct screen *s, const struct result_problem *p, const struct variant *v, struct error *err)
{
	const struct device_ops *ops = s->bench.ops;
	const int count = strcmp(v->kernel, "default") == 0 ? 0 : 1, m = result_problem_rows(p);
	if (p->op == PROBLEM_ATTENTION && ops->attention_prefer) {
		const struct attention_preference attention = {.key = problem_attention_key(&p->attention), .m_low = m, .m_high = m, .variant = *v};
		return ops->attention_prefer(s->bench.stream, &attention, count, err);
	}
	if (p->op == PROBLEM_MOE && ops->moe_prefer) {
		const struct moe_preference moe = {.key = p->moe, .m_low = m, .m_high = m, .variant = *v};
		return ops->moe_prefer(s->bench.stream, &moe, count, err);
	}
	const struct linear_preference preference = {.key = p->linear, .m_low = m, .m_high = m, .variant = *v};
	if (p->op != PROBLEM_LINEAR || !ops->linear_prefer) return STATUS_OK;
	return ops->linear_prefer(s->bench.stream, &preference, count, err);
}

/* What the dispatch says that it took; what was asked for, where it cannot say. */
static void ask_what_ran(const struct screen *s, const struct result_problem *p, struct variant *out)
{
	const struct device_ops *ops = s->bench.ops;
	if (p->op == PROBLEM_LINEAR && ops->linear_ran) ops->linear_ran(s->bench.stream, out);
	if (p->op == PROBLEM_ATTENTION && ops->attention_ran) ops->attention_ran(s->bench.stream, out);
	if (p->op == PROBLEM_MOE && ops->moe_ran) ops->moe_ran(s->bench.stream, out);
}

/* A graph of `calls` calls; `timed`: with what stands between them. A recording that fails is ended all the same. */
static enum status record(struct screen *s, struct trial *t, int calls, bool timed, struct graph **out, struct error *err)
{
	enum status st = STATUS_OK;
	*out = NULL;
	TRY(s->bench.ops->graph_begin(s->bench.stream, err));
	for (int i = 0; i < calls && st == STATUS_OK; i++) {
		if (timed) st = trial_issue_between(t, err);
		if (st == STATUS_OK) st = trial_issue(t, i, err);
	}
	return device_graph_end(s->bench.stream, st, out, err);
}

/* One call over poison. */
static enum status run_once(struct screen *s, struct trial *t, struct graph *graph, struct error *err)
{
	TRY(trial_poison(t, err));
	if (graph) TRY(s->bench.ops->graph_launch(graph, s->bench.stream, err));
	else TRY(trial_issue(t, 0, err));
	return trial_sync(t, err);
}

static enum status look_at_launches(struct screen *s, struct graph *graph, struct result_candidate *c, struct error *err)
{
	const struct device_ops *ops = s->bench.ops;
	if (!graph || !ops->graph_kernels) return STATUS_OK;
	struct kernel_launch *list = mem_zalloc(LAUNCHES_MAX, sizeof *list, "prescreen: launches", err);
	int count = 0;
	if (!list) return STATUS_NO_MEMORY;
	enum status st = ops->graph_kernels(graph, list, LAUNCHES_MAX, &count, err);
	if (st == STATUS_OK) st = result_set_launches(&c->observed, list, count < LAUNCHES_MAX ? count : LAUNCHES_MAX, err);
	free(list);
	return st;
}

static bool has_changed(const struct result_candidate *c, const struct result_candidate *base)
{
	if (c->observed.known && base->observed.known) return !result_launches_equal(&c->observed, &base->observed);
	return !variant_equal(&c->resolved, &base->resolved);
}

/* Is what runs what was asked for, and something else than the baseline? */
static bool is_candidate(struct result_candidate *c, const struct result_candidate *base)
{
	if (c == base) return true;
	if (!variant_equal(&c->resolved, &c->requested)) {
		reject(c, REASON_NOT_TAKEN, "resolved to %s%s%.100s", c->resolved.kernel, c->resolved.mode[0] ? " " : "", c->resolved.mode);
		return false;
	}
	c->changed = has_changed(c, base);
	if (c->changed) return true;
	bool named = c->observed.known && c->observed.count;
	if (named) reject(c, REASON_UNCHANGED, "%s%.90s as the baseline", c->observed.count > 1 ? "several, the first " : "", c->observed.item[0].name);
	else reject(c, REASON_UNCHANGED, "%s %.90s as the baseline", c->resolved.kernel, c->resolved.mode);
	return false;
}

/* What the checks say; true: nothing is wrong. */
static bool is_right(struct result_candidate *c)
{
	const struct result_check *k = &c->check;
	if (k->outside) reject(c, REASON_OUTSIDE, "%lld places outside of the output were written", (long long)k->outside);
	else if (k->unwritten) reject(c, REASON_UNWRITTEN, "%lld of %lld values were never written", (long long)k->unwritten, (long long)k->values);
	else if (!k->repeatable) reject(c, REASON_UNREPEATABLE, "%d runs on the same input gave different bits", k->repeats);
	else if (!(k->error.l2 <= k->bound.l2)) reject(c, REASON_WRONG, "relative L2 %.3g > %.3g", k->error.l2, k->bound.l2);
	else if (!(k->error.max <= k->bound.max)) reject(c, REASON_WRONG, "largest difference %.3g > %.3g", k->error.max, k->bound.max);
	return c->reason == REASON_NONE;
}

static enum status check_output(struct screen *s, struct trial *t, struct graph *graph, struct result_candidate *c, struct error *err)
{
	const uint64_t start = clock_ns();
	uint64_t first, again;
	TRY(trial_check(t, &c->check, err));
	TRY(trial_hash(t, &first, err));
	c->check.repeatable = true;
	for (c->check.repeats = 1; c->check.repeats < s->repeats && c->check.repeatable; c->check.repeats++) {
		if (c->check.repeats > 1 && clock_seconds_since(start) > REPEATS_S) break;
		TRY(candidate_stopped(s, err));
		TRY(run_once(s, t, graph, err));
		TRY(trial_hash(t, &again, err));
		c->check.repeatable = again == first;
	}
	return STATUS_OK;
}

static void refuse(struct result_candidate *c, const struct error *why)
{
	reject(c, REASON_REFUSED, "%.150s", why->text);
}

/* Request, recording, launches, first run: what the back end may refuse. *graph: of one call, the caller's. */
static enum status request(struct screen *s, struct trial *t, struct result_problem *p, struct result_candidate *c, struct graph **graph, struct error *err)
{
	const struct device_ops *ops = s->bench.ops;
	TRY(prefer(s, p, &c->requested, err));
	/* A library of attention makes its plan in the first call that is not recorded. */
	if (p->op == PROBLEM_ATTENTION && p->attention.prefill) TRY(run_once(s, t, NULL, err));
	if (ops->graph_begin) TRY(record(s, t, 1, false, graph, err));
	else TRY(run_once(s, t, NULL, err));
	c->resolved = c->requested;
	ask_what_ran(s, p, &c->resolved);
	TRY(look_at_launches(s, *graph, c, err));
	if (!is_candidate(c, &p->candidate[0])) return STATUS_OK;
	return *graph ? run_once(s, t, *graph, err) : STATUS_OK;
}

/* ---- timing */

static void side_fini(struct screen *s, struct side *side)
{
	if (side->graph) s->bench.ops->graph_destroy(side->graph);
	*side = (struct side){0};
}

static enum status time_loop(struct screen *s, struct trial *t, int calls, double *us, struct error *err)
{
	uint64_t start = clock_ns();
	for (int i = 0; i < calls; i++) TRY(trial_issue(t, s->next_copy++, err));
	TRY(trial_sync(t, err));
	*us = (double)(clock_ns() - start) / 1e3 / calls;
	s->next_copy %= trial_copies(t);
	return STATUS_OK;
}

enum status candidate_time_graph(struct screen *s, struct graph *graph, double *us, struct error *err)
{
	const struct device_ops *ops = s->bench.ops;
	uint64_t deadline = clock_deadline_ms((uint64_t)s->bench.timeout_ms);
	float ms;
	if (!ops->event_create) {
		uint64_t start = clock_ns();
		TRY(ops->graph_launch(graph, s->bench.stream, err));
		TRY(ops->stream_sync(s->bench.stream, deadline, NULL, err));
		*us = (double)(clock_ns() - start) / 1e3;
		return STATUS_OK;
	}
	if (!s->from) TRY(ops->event_create(s->bench.device, &s->from, err));
	if (!s->to) TRY(ops->event_create(s->bench.device, &s->to, err));
	TRY(ops->event_record(s->from, s->bench.stream, err));
	TRY(ops->graph_launch(graph, s->bench.stream, err));
	TRY(ops->event_record(s->to, s->bench.stream, err));
	TRY(ops->stream_sync(s->bench.stream, deadline, NULL, err));
	TRY(ops->event_elapsed_ms(s->from, s->to, &ms, err));
	*us = (double)ms * 1e3;
	return STATUS_OK;
}

/* us of one call. */
static enum status time_side(struct screen *s, struct trial *t, const struct result_problem *p, const struct side *side, double *us, struct error *err)
{
	if (!side->graph) {
		TRY(prefer(s, p, &side->variant, err));
		return time_loop(s, t, side->calls, us, err);
	}
	TRY(candidate_time_graph(s, side->graph, us, err));
	*us /= side->calls;
	return STATUS_OK;
}

static int calls_for(const struct screen *s, const struct trial *t, double us)
{
	int copies = trial_copies(t);
	double least_us = s->options->quick ? QUICK_SIDE_US : SIDE_US, most_us = s->options->quick ? 4 * QUICK_SIDE_US : SIDE_MOST_US;
	double calls = us > 0 ? least_us / us : SIDE_MAX_CALLS, most = us > 0 ? most_us / us : SIDE_MAX_CALLS;
	if (calls < copies) calls = copies;
	if (calls > most) calls = most;
	return calls < 1 ? 1 : calls > SIDE_MAX_CALLS ? SIDE_MAX_CALLS : (int)calls;
}

/* Calls: so many as the baseline has, or, for the baseline itself, as the time of one tells. */
static enum status make_side(struct screen *s, struct trial *t, const struct result_problem *p, const struct variant *v, int calls, struct side *out, struct error *err)
{
	*out = (struct side){.variant = *v, .calls = calls};
	TRY(prefer(s, p, v, err));
	if (s->bench.ops->graph_begin) TRY(record(s, t, calls, true, &out->graph, err));
	return STATUS_OK;
}

static enum status make_baseline(struct screen *s, struct trial *t, const struct result_problem *p, struct error *err)
{
	double us = 0;
	side_fini(s, &s->baseline);
	TRY(make_side(s, t, p, &p->candidate[0].requested, 1, &s->baseline, err));
	for (int i = 0; i < 3; i++) TRY(time_side(s, t, p, &s->baseline, &us, err));
	int calls = calls_for(s, t, us);
	if (calls == 1) return STATUS_OK;
	side_fini(s, &s->baseline);
	return make_side(s, t, p, &p->candidate[0].requested, calls, &s->baseline, err);
}

static enum status time_pair(struct screen *s, struct trial *t, const struct result_problem *p, const struct side *side, double *base_us, double *us, struct error *err)
{
	double a[2], b[2];
	TRY(time_side(s, t, p, &s->baseline, &a[0], err));
	TRY(time_side(s, t, p, side, &b[0], err));
	TRY(time_side(s, t, p, side, &b[1], err));
	TRY(time_side(s, t, p, &s->baseline, &a[1], err));
	*base_us = a[0] + a[1];
	*us = b[0] + b[1];
	return STATUS_OK;
}

static enum status time_candidate(struct screen *s, struct trial *t, struct result_problem *p, struct result_candidate *c, double seconds, struct error *err)
{
	struct side side = {0};
	double base_us, us;
	uint64_t start = clock_ns();
	enum status st;
	s->pairs.count = 0;
	TRY_GOTO(make_side(s, t, p, &c->requested, s->baseline.calls, &side, err), end);
	TRY_GOTO(time_pair(s, t, p, &side, &base_us, &us, err), end); /* to warm up */
	if (base_us < HOPELESS * us && clock_seconds_since(start) > HOPELESS_S) {
		pairs_add(&s->pairs, base_us, us);
		pairs_summary(&s->pairs, &c->timing);
		goto end;
	}
	do {
		TRY_GOTO(candidate_stopped(s, err), end);
		if (candidate_cut(s)) goto end;
		TRY_GOTO(time_pair(s, t, p, &side, &base_us, &us, err), end);
		pairs_add(&s->pairs, base_us, us);
	} while (!pairs_enough(&s->pairs, &s->rule) && s->pairs.count < s->rule.most &&
	         (s->pairs.count < s->rule.least || clock_seconds_since(start) < seconds));
	pairs_summary(&s->pairs, &c->timing);
	c->timing.steady = pairs_enough(&s->pairs, &s->rule);
end:
	side_fini(s, &side);
	return st;
}

/* The baseline's own time: against itself, so that its spread is seen too. */
static enum status time_baseline(struct screen *s, struct trial *t, struct result_problem *p, struct error *err)
{
	double base_us, us;
	TRY(make_baseline(s, t, p, err));
	s->pairs.count = 0;
	for (int i = -1; i < BASELINE_PAIRS; i++) {
		TRY(candidate_stopped(s, err));
		if (candidate_cut(s)) return STATUS_OK;
		TRY(time_pair(s, t, p, &s->baseline, &base_us, &us, err));
		if (i >= 0) pairs_add(&s->pairs, base_us, us);
	}
	pairs_summary(&s->pairs, &p->candidate[0].timing);
	p->candidate[0].timing.steady = true;
	return STATUS_OK;
}

/* ---- one candidate */

void candidate_forget(struct screen *s)
{
	side_fini(s, &s->baseline);
	if (s->from) s->bench.ops->event_destroy(s->from);
	if (s->to) s->bench.ops->event_destroy(s->to);
	s->from = s->to = NULL;
}

/* A refusal is the candidate's, as long as the device still computes the baseline. */
static enum status still_alive(struct screen *s, struct trial *t, struct result_problem *p, const struct result_candidate *c, struct error *err)
{
	enum status st = prefer(s, p, &p->candidate[0].requested, err);
	if (st == STATUS_OK) st = run_once(s, t, NULL, err);
	if (st != STATUS_OK) error_prefix(err, "after %s %.60s (%.80s) the baseline fails", c->requested.kernel, c->requested.mode, c->detail);
	return st;
}

static enum status evidence(struct screen *s, struct trial *t, struct result_problem *p, struct result_candidate *c, struct error *err)
{
	struct graph *graph = NULL;
	struct error why = {0};
	enum status st = request(s, t, p, c, &graph, &why);
	if (st == STATUS_OK && c->reason == REASON_NONE) st = check_output(s, t, graph, c, &why);
	if (graph) s->bench.ops->graph_destroy(graph);
	if (candidate_ends_run(st, &why, err)) return st;
	if (st != STATUS_OK && c->outcome == OUTCOME_BASELINE) {
		if (err) *err = why;
		return st;
	}
	if (st != STATUS_OK) {
		refuse(c, &why);
		return still_alive(s, t, p, c, err);
	}
	if (c->reason == REASON_NONE) (void)is_right(c);
	return STATUS_OK;
}

static enum status run_baseline(struct screen *s, struct trial *t, struct result_problem *p, struct error *err)
{
	struct result_candidate *c = &p->candidate[0];
	TRY(evidence(s, t, p, c, err));
	if (c->reason != REASON_NONE) {
		snprintf(p->note, sizeof p->note, "the baseline fails: %.120s", c->detail);
		return STATUS_OK;
	}
	TRY(trial_keep_baseline(t, err));
	return time_baseline(s, t, p, err);
}

enum status candidate_run(struct screen *s, struct trial *t, struct result_problem *p, int i, double seconds, struct error *err)
{
	struct result_candidate *c = &p->candidate[i];
	if (i == 0) return run_baseline(s, t, p, err);
	if (!static_legal(s, p, c)) return STATUS_OK;
	TRY(evidence(s, t, p, c, err));
	if (c->reason != REASON_NONE) return STATUS_OK;
	struct error why = {0};
	enum status st = time_candidate(s, t, p, c, seconds, &why);
	if (candidate_ends_run(st, &why, err)) return st;
	if (st != STATUS_OK) {
		refuse(c, &why);
		return still_alive(s, t, p, c, err);
	}
	if (s->cut) return STATUS_OK;
	c->outcome = pairs_outcome(&c->timing, &s->rule);
	if (c->outcome == OUTCOME_REJECT) reject(c, REASON_SLOW, "%.3f < %g", c->timing.speedup, s->rule.reject);
	return STATUS_OK;
}
