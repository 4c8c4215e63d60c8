#include "prescreen/results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *problem_op_name(enum problem_op op)
{
	static const char *const names[] = {
#define X(code, name) name,
		PROBLEM_OP_LIST(X)
#undef X
	};
	return names[op];
}

const char *outcome_name(enum outcome outcome)
{
	static const char *const names[] = {
#define X(code, name) name,
		OUTCOME_LIST(X)
#undef X
	};
	return names[outcome];
}

const char *reason_name(enum reason reason)
{
	static const char *const names[] = {
#define X(code, name, text) name,
		REASON_LIST(X)
#undef X
	};
	return names[reason];
}

const char *reason_text(enum reason reason)
{
	static const char *const texts[] = {
#define X(code, name, text) text,
		REASON_LIST(X)
#undef X
	};
	return texts[reason];
}

void result_candidate_fini(struct result_candidate *candidate)
{
	free(candidate->observed.item);
	*candidate = (struct result_candidate){0};
}

static void problem_fini(struct result_problem *problem)
{
	for (int i = 0; i < problem->candidates; i++) result_candidate_fini(&problem->candidate[i]);
	free(problem->candidate);
	free(problem->place);
}

void results_fini(struct results *results)
{
	for (int i = 0; i < results->problems; i++) problem_fini(&results->problem[i]);
	free(results->problem);
	free(results->chain);
	*results = (struct results){0};
}

struct result_problem *results_add_problem(struct results *results, struct error *err)
{
	if (mem_grow((void **)&results->problem, (size_t)results->problems + 1, sizeof *results->problem, "problems", err) != STATUS_OK) return NULL;
	struct result_problem *added = &results->problem[results->problems++];
	*added = (struct result_problem){0};
	return added;
}

struct result_candidate *result_add_candidate(struct result_problem *problem, struct error *err)
{
	if (mem_grow((void **)&problem->candidate, (size_t)problem->candidates + 1, sizeof *problem->candidate, "candidates", err) != STATUS_OK) return NULL;
	struct result_candidate *added = &problem->candidate[problem->candidates++];
	*added = (struct result_candidate){0};
	return added;
}

enum status result_add_place(struct result_problem *problem, int world_size, const char *family, int count, struct error *err)
{
	TRY(mem_grow((void **)&problem->place, (size_t)problem->places + 1, sizeof *problem->place, "places", err));
	struct result_place *added = &problem->place[problem->places++];
	*added = (struct result_place){.world_size = world_size, .count = count};
	snprintf(added->family, sizeof added->family, "%s", family);
	return STATUS_OK;
}

enum status result_set_launches(struct result_launches *out, const struct kernel_launch *item, int count, struct error *err)
{
	free(out->item);
	*out = (struct result_launches){.known = true};
	if (!count) return STATUS_OK;
	out->item = mem_zalloc((size_t)count, sizeof *out->item, "launches", err);
	if (!out->item) return STATUS_NO_MEMORY;
	memcpy(out->item, item, (size_t)count * sizeof *item);
	out->count = count;
	return STATUS_OK;
}

enum status results_add_chain(struct results *results, const struct result_chain *chain, struct error *err)
{
	TRY(mem_grow((void **)&results->chain, (size_t)results->chains + 1, sizeof *results->chain, "chains", err));
	results->chain[results->chains++] = *chain;
	return STATUS_OK;
}

int results_done(const struct results *results)
{
	int done = 0;
	for (int i = 0; i < results->problems; i++) done += results->problem[i].done;
	return done;
}

const struct result_chain *results_find_chain(const struct results *results, int world_size, int rows)
{
	for (int i = 0; i < results->chains; i++)
		if (results->chain[i].world_size == world_size && results->chain[i].rows == rows) return &results->chain[i];
	return NULL;
}

bool result_problem_chained(const struct result_problem *problem)
{
	return problem->op == PROBLEM_LINEAR && strcmp(problem->phase, "decode") == 0;
}

bool result_confirmed(const struct results *results, const struct result_problem *problem, const struct result_candidate *candidate)
{
	if (candidate->confirm.outcome != OUTCOME_KEEP || !problem->places) return false;
	for (int i = 0; i < problem->places; i++)
		if (!results_find_chain(results, problem->place[i].world_size, problem->linear.m)) return false;
	return true;
}

static bool attention_equal(const struct attention_problem *a, const struct attention_problem *b)
{
	return a->dtype == b->dtype && a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->rows == b->rows &&
	       a->context == b->context && a->block_tokens == b->block_tokens && a->prefill == b->prefill && (float)a->softcap == (float)b->softcap; /* a file has as many digits as a float needs */
}

static bool gdn_equal(const struct gdn_problem *a, const struct gdn_problem *b)
{
	return a->dtype == b->dtype && a->k_heads == b->k_heads && a->v_heads == b->v_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
	       a->conv_kernel == b->conv_kernel && a->rows == b->rows && a->prefill == b->prefill;
}

/* The same question: op, phase, key. */
static bool problem_equal(const struct result_problem *a, const struct result_problem *b)
{
	if (a->op != b->op || strcmp(a->phase, b->phase) != 0) return false;
	switch (a->op) {
	case PROBLEM_LINEAR: return linear_key_equal(&a->linear, &b->linear);
	case PROBLEM_ATTENTION: return attention_equal(&a->attention, &b->attention);
	case PROBLEM_MOE: return moe_key_alike(&a->moe, &b->moe) && a->moe.m == b->moe.m;
	case PROBLEM_GDN: return gdn_equal(&a->gdn, &b->gdn);
	case PROBLEM_OP_COUNT: break;
	}
	return false;
}

int result_problem_rows(const struct result_problem *problem)
{
	switch (problem->op) {
	case PROBLEM_LINEAR: return problem->linear.m;
	case PROBLEM_ATTENTION: return problem->attention.rows;
	case PROBLEM_MOE: return problem->moe.m;
	case PROBLEM_GDN: return problem->gdn.rows;
	case PROBLEM_OP_COUNT: break;
	}
	return 0;
}

const char *result_problem_use(const struct result_problem *problem)
{
	return problem->op == PROBLEM_LINEAR ? linear_use_name(problem->linear.use) : problem_op_name(problem->op);
}

const char *result_problem_shape(const struct result_problem *problem, char text[RESULTS_TEXT])
{
	const struct attention_problem *a = &problem->attention;
	const struct moe_key *e = &problem->moe;
	const struct gdn_problem *g = &problem->gdn;
	char shared[32] = "";
	if (problem->op == PROBLEM_MOE && e->shared_inner) snprintf(shared, sizeof shared, " + 1 of %d", e->shared_inner);
	switch (problem->op) {
	case PROBLEM_LINEAR: snprintf(text, RESULTS_TEXT, "%d x %d", problem->linear.n, problem->linear.k); break;
	case PROBLEM_ATTENTION: snprintf(text, RESULTS_TEXT, "%d + %d heads of %d", a->q_heads, a->kv_heads, a->head_dim); break;
	case PROBLEM_MOE: snprintf(text, RESULTS_TEXT, "%d of %d experts, %d x %d%s", e->top_k, e->experts, e->inner, e->hidden, shared); break;
	case PROBLEM_GDN: snprintf(text, RESULTS_TEXT, "%d + %d heads, state %d x %d", g->k_heads, g->v_heads, g->k_dim, g->v_dim); break;
	case PROBLEM_OP_COUNT: text[0] = 0; break;
	}
	return text;
}

struct result_problem *results_find(const struct results *results, const struct result_problem *like)
{
	for (int i = 0; i < results->problems; i++)
		if (problem_equal(&results->problem[i], like)) return &results->problem[i];
	return NULL;
}

const char *result_problem_text(const struct result_problem *problem, char text[RESULTS_TEXT])
{
	const struct attention_problem *a = &problem->attention;
	char shape[RESULTS_TEXT];
	if (problem->op == PROBLEM_ATTENTION)
		snprintf(text, RESULTS_TEXT, "%s attention %d+%d of %d, %d rows over %d keys", problem->phase, a->q_heads, a->kv_heads, a->head_dim, a->rows, a->context);
	else
		snprintf(text, RESULTS_TEXT, "%s M=%d %s [%.100s]", problem->phase, result_problem_rows(problem), result_problem_use(problem), result_problem_shape(problem, shape));
	return text;
}

static bool launch_equal(const struct kernel_launch *a, const struct kernel_launch *b)
{
	return strcmp(a->name, b->name) == 0 && memcmp(a->grid, b->grid, sizeof a->grid) == 0 && memcmp(a->block, b->block, sizeof a->block) == 0 &&
	       a->shared_bytes == b->shared_bytes;
}

bool result_launches_equal(const struct result_launches *a, const struct result_launches *b)
{
	if (a->known != b->known || a->count != b->count) return false;
	for (int i = 0; i < a->count; i++)
		if (!launch_equal(&a->item[i], &b->item[i])) return false;
	return true;
}

bool results_thresholds_differ(const struct results *a, const struct results *b, char text_a[RESULTS_TEXT], char text_b[RESULTS_TEXT])
{
	if (a->keep == b->keep && a->reject == b->reject) return false;
	for (int digits = 6; digits <= 17; digits += 11) { /* what a reader expects; else all that a double has */
		snprintf(text_a, RESULTS_TEXT, "%.*g and %.*g", digits, a->keep, digits, a->reject);
		snprintf(text_b, RESULTS_TEXT, "%.*g and %.*g", digits, b->keep, digits, b->reject);
		if (strcmp(text_a, text_b) != 0) break;
	}
	return true;
}
