#include "prescreen/choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The linear problems in order of key and, within one, of M; the choice of each. */
struct choice {
	const struct result_problem *problem;
	const struct result_candidate *taken; /* NULL: the default stays */
};

static int compare_int(int a, int b)
{
	return (a > b) - (a < b);
}

static int by_key(const void *left, const void *right)
{
	const struct linear_key *a = &((const struct choice *)left)->problem->linear, *b = &((const struct choice *)right)->problem->linear;
	if (a->use != b->use) return compare_int((int)a->use, (int)b->use);
	if (a->dtype != b->dtype) return compare_int((int)a->dtype, (int)b->dtype);
	if (a->n != b->n) return compare_int(a->n, b->n);
	if (a->k != b->k) return compare_int(a->k, b->k);
	return compare_int(a->m, b->m);
}

static const struct result_candidate *candidate_of(const struct result_problem *problem, const struct variant *variant)
{
	for (int i = 0; i < problem->candidates; i++)
		if (variant_equal(&problem->candidate[i].requested, variant)) return &problem->candidate[i];
	return NULL;
}

/* What decides for one whitelist. */
struct rule {
	const struct results *results;
	bool any_order;
};

/* Kept by its median, not slower anywhere in the interval of that, and, where chains were measured, confirmed there. */
static bool may_take(const struct rule *rule, const struct result_problem *problem, const struct result_candidate *c)
{
	if (rule->results->chain_mode == CHAIN_ON && result_problem_chained(problem) && !result_confirmed(rule->results, problem, c)) return false;
	return choose_eligible(c, rule->any_order);
}

bool choose_eligible(const struct result_candidate *c, bool any_order)
{
	return c->outcome == OUTCOME_KEEP && c->timing.low >= 1 && (c->requested.invariant || any_order);
}

/* The fastest of one class; the one of the class before, where it is as good as that. */
static const struct result_candidate *take(const struct rule *rule, const struct result_problem *problem, const struct result_candidate *before)
{
	const struct result_candidate *best = NULL;
	if (!problem->done) return NULL;
	for (int i = 0; i < problem->candidates; i++) {
		const struct result_candidate *c = &problem->candidate[i];
		if (may_take(rule, problem, c) && (!best || c->timing.speedup > best->timing.speedup)) best = c;
	}
	const struct result_candidate *same = before && best ? candidate_of(problem, &before->requested) : NULL;
	return same && may_take(rule, problem, same) && same->timing.speedup >= CHOOSE_NEAR * best->timing.speedup ? same : best;
}

/* Appends the places of a problem that `text` does not name yet; what does not fit is left out, with dots. */
static void name_places(char text[WHITELIST_TEXT_BYTES], const struct result_problem *problem)
{
	for (int i = 0; i < problem->places; i++) {
		char place[56];
		size_t used = strlen(text);
		int n = snprintf(place, sizeof place, "TP%d %s", problem->place[i].world_size, problem->place[i].family);
		const char *at = strstr(text, place);
		if (n < 0 || (at && (at[n] == ',' || !at[n])) || (used > 3 && !strcmp(text + used - 3, "..."))) continue;
		if (used + (size_t)n + 2 + 5 >= WHITELIST_TEXT_BYTES) snprintf(text + used, WHITELIST_TEXT_BYTES - used, " ...");
		else snprintf(text + used, WHITELIST_TEXT_BYTES - used, "%s%s", used && text[used - 1] != ' ' ? ", " : "", place);
	}
}

/* One problem twice (once as decode, once as prefill, say): what one of them does not keep is not taken. */
static void agree_on_twins(const struct rule *rule, struct choice *list, int count)
{
	for (int i = 1; i < count; i++) {
		struct choice *a = &list[i - 1], *b = &list[i];
		if (!linear_key_equal(&a->problem->linear, &b->problem->linear)) continue;
		const struct result_candidate *other = a->taken ? candidate_of(b->problem, &a->taken->requested) : NULL;
		b->taken = other && b->problem->done && may_take(rule, b->problem, other) ? other : NULL;
		if (!b->taken) a->taken = NULL;
	}
}

static bool continues(const struct choice *a, const struct choice *b)
{
	const struct linear_key *x = &a->problem->linear, *y = &b->problem->linear;
	return linear_key_alike(x, y) && a->taken && b->taken && variant_equal(&a->taken->requested, &b->taken->requested) && y->m <= (int64_t)CHOOSE_MAX_STEP * x->m;
}

static enum status add_ranges(struct whitelist *out, const struct rule *rule, const struct choice *list, int count, struct error *err)
{
	for (int from = 0, to; from < count; from = to) {
		for (to = from + 1; to < count && continues(&list[to - 1], &list[to]);) to++;
		if (!list[from].taken) continue;
		struct whitelist_entry e = {.prefer = {.key = list[from].problem->linear, .m_low = list[from].problem->linear.m, .m_high = list[to - 1].problem->linear.m,
		                                       .variant = list[from].taken->requested},
		                            .ratio = list[from].taken->timing.speedup};
		e.prefer.key.m = 0;
		if (rule->results->chain_mode == CHAIN_OFF && result_problem_chained(list[from].problem)) snprintf(e.where, sizeof e.where, "%s", CHOOSE_UNCONFIRMED);
		for (int i = from; i < to; i++) {
			if (list[i].taken->timing.speedup < e.ratio) e.ratio = list[i].taken->timing.speedup;
			name_places(e.where, list[i].problem);
		}
		TRY(whitelist_add_entry(out, &e, err));
	}
	return STATUS_OK;
}

static enum status add_shapes(struct whitelist *out, const struct choice *list, int count, struct error *err)
{
	for (int i = 0; i < count; i++)
		for (int p = 0; p < list[i].problem->places; p++) {
			const struct result_place *place = &list[i].problem->place[p];
			struct whitelist_shape shape = {.world_size = place->world_size, .n = list[i].problem->linear.n, .k = list[i].problem->linear.k};
			bool known = false;
			snprintf(shape.family, sizeof shape.family, "%s", place->family);
			for (int s = 0; s < out->shapes; s++) {
				const struct whitelist_shape *have = &out->shape[s];
				known |= have->world_size == shape.world_size && have->n == shape.n && have->k == shape.k && !strcmp(have->family, shape.family);
			}
			if (!known) TRY(whitelist_add_shape(out, &shape, err));
		}
	return STATUS_OK;
}

static void fill_head(struct whitelist *out, const struct results *r, bool any_order)
{
	snprintf(out->program, sizeof out->program, "%s", r->program);
	snprintf(out->device, sizeof out->device, "%s", r->device);
	snprintf(out->flavour, sizeof out->flavour, "%s", r->flavour);
	snprintf(out->versions, sizeof out->versions, "%s", r->versions);
	snprintf(out->model, sizeof out->model, "%s", r->model);
	snprintf(out->model_type, sizeof out->model_type, "%s", r->model_type);
	out->dtype = r->dtype;
	out->keep = r->keep;
	out->any_order = any_order;
}

static enum status fill(struct whitelist *out, const struct results *r, struct choice *list, bool any_order, struct error *err)
{
	const struct rule rule = {.results = r, .any_order = any_order};
	int count = 0;
	for (int i = 0; i < r->problems; i++)
		if (r->problem[i].op == PROBLEM_LINEAR) list[count++].problem = &r->problem[i];
	if (!count) return FAIL(err, BAD_INPUT, "whitelist: the results of %s have no linear; measure a model that has some", r->model);
	qsort(list, (size_t)count, sizeof *list, by_key);
	for (int i = 0; i < count; i++) {
		bool follows = i && linear_key_alike(&list[i - 1].problem->linear, &list[i].problem->linear);
		list[i].taken = take(&rule, list[i].problem, follows ? list[i - 1].taken : NULL);
	}
	agree_on_twins(&rule, list, count);
	fill_head(out, r, any_order);
	TRY(add_shapes(out, list, count, err));
	TRY(add_ranges(out, &rule, list, count, err));
	return whitelist_seal(out, "whitelist", err);
}

enum status choose_whitelist(struct whitelist *out, const struct results *results, bool any_order, struct error *err)
{
	*out = (struct whitelist){0};
	struct choice *list = mem_zalloc((size_t)results->problems + 1, sizeof *list, "choices", err);
	if (!list) return STATUS_NO_MEMORY;
	enum status st = fill(out, results, list, any_order, err);
	free(list);
	if (st != STATUS_OK) whitelist_fini(out);
	return st;
}
