#include "apps/prescreen_text.h"

#include <stdio.h>
#include <string.h>

static const char *key_text(const struct result_problem *p, char text[RESULTS_TEXT])
{
	const struct attention_problem *a = &p->attention;
	const struct gdn_problem *g = &p->gdn;
	if (p->op == PROBLEM_ATTENTION) snprintf(text, RESULTS_TEXT, "%d+%d of %d, %d", a->q_heads, a->kv_heads, a->head_dim, a->context);
	else if (p->op == PROBLEM_MOE) snprintf(text, RESULTS_TEXT, "%d/%d, %d x %d", p->moe.top_k, p->moe.experts, p->moe.inner, p->moe.hidden);
	else if (p->op == PROBLEM_GDN) snprintf(text, RESULTS_TEXT, "%d+%d of %d x %d", g->k_heads, g->v_heads, g->k_dim, g->v_dim);
	else snprintf(text, RESULTS_TEXT, "%d x %d", p->linear.n, p->linear.k);
	return text;
}

/* "TP2 mlp down, TP4 attn qkv", at most so much of it as fits. */
static const char *places_text(const struct result_problem *p, char *text, size_t size)
{
	size_t used = 0;
	text[0] = 0;
	for (int i = 0; i < p->places; i++) {
		char one[64];
		int n = snprintf(one, sizeof one, "%sTP%d %s", i ? ", " : "", p->place[i].world_size, p->place[i].family);
		if (used + (size_t)n + 4 >= size) {
			snprintf(text + used, size - used, ", …");
			break;
		}
		memcpy(text + used, one, (size_t)n + 1);
		used += (size_t)n;
	}
	return text;
}

/* The fastest that was timed; NULL: none was. */
static const struct result_candidate *best_of(const struct result_problem *p)
{
	const struct result_candidate *best = NULL;
	for (int i = 1; i < p->candidates; i++) {
		const struct result_candidate *c = &p->candidate[i];
		if (c->timing.pairs && (!best || c->timing.speedup > best->timing.speedup)) best = c;
	}
	return best;
}

static enum status put_problem(const struct result_problem *p, struct buf *out, struct error *err)
{
	char key[RESULTS_TEXT], places[80];
	const struct result_candidate *best = best_of(p);
	int kept = 0;
	for (int i = 0; i < p->candidates; i++) kept += p->candidate[i].outcome == OUTCOME_KEEP;
	TRY(buf_printf(out, err, "%-7s %5d  %-12s %-18s %10.2f ", p->phase, result_problem_rows(p), result_problem_use(p), key_text(p, key),
	               p->candidates ? p->candidate[0].timing.us : 0));
	if (best) TRY(buf_printf(out, err, "%5.3f %-8s %s%s%s", best->timing.speedup, outcome_name(best->outcome), best->requested.kernel, best->requested.mode[0] ? " " : "", best->requested.mode));
	else TRY(buf_printf(out, err, "    - %-8s", p->done ? "" : "open"));
	if (kept > 1) TRY(buf_printf(out, err, " (%d kept)", kept));
	if (p->note[0]) TRY(buf_printf(out, err, " %s", p->note));
	return buf_printf(out, err, "\n%47s%s\n", "", places_text(p, places, sizeof places));
}

static enum status put_rejections(const struct results *r, struct buf *out, struct error *err)
{
	for (int reason = REASON_NONE + 1; reason < REASON_COUNT; reason++) {
		int count = 0;
		const struct result_candidate *first = NULL;
		char problem[RESULTS_TEXT] = "";
		for (int i = 0; i < r->problems; i++)
			for (int j = 1; j < r->problem[i].candidates; j++) {
				const struct result_candidate *c = &r->problem[i].candidate[j];
				if (c->reason != (enum reason)reason) continue;
				if (!count++) {
					first = c;
					result_problem_text(&r->problem[i], problem);
				}
			}
		if (!first) continue;
		TRY(buf_printf(out, err, "%5d %s: %s\n      such as %s%s%s, %s: %s\n", count, reason_name((enum reason)reason), reason_text((enum reason)reason), first->requested.kernel,
		               first->requested.mode[0] ? " " : "", first->requested.mode, problem, first->detail));
	}
	return STATUS_OK;
}

enum status prescreen_text(const struct results *r, struct buf *out, struct error *err)
{
	int count[OUTCOME_COUNT] = {0};
	TRY(buf_printf(out, err, "%s (%s) on %s %s%s%s, %d thread%s, weights through %.0f MiB; keep from %g, reject below %g\n", r->model, dtype_name(r->dtype), r->device,
	               r->flavour, r->versions[0] ? ", " : "", r->versions, r->threads, r->threads == 1 ? "" : "s", (double)r->rotate_bytes / 0x1p20, r->keep, r->reject));
	for (int i = 0; i < r->degrees; i++)
		if (!r->degree[i].legal) TRY(buf_printf(out, err, "TP%d: %s\n", r->degree[i].world_size, r->degree[i].why_not));
	TRY(buf_printf(out, err, "%-7s %5s  %-12s %-18s %10s %5s\n", "phase", "M", "op", "shape", "us", "best"));
	for (int i = 0; i < r->problems; i++) {
		const struct result_problem *p = &r->problem[i];
		for (int j = 0; j < p->candidates; j++) count[p->candidate[j].outcome]++;
		TRY(put_problem(p, out, err));
	}
	TRY(buf_printf(out, err, "%d problems in %.1f s: %d candidates kept, %d boundary, %d rejected%s\n", r->problems, r->seconds, count[OUTCOME_KEEP], count[OUTCOME_BOUNDARY],
	               count[OUTCOME_REJECT], r->complete ? "" : "; some are open"));
	return put_rejections(r, out, err);
}
