/* measure.c: the public boundary, third part: the last step once more, for its times; where the time of all steps went; which kernels they took. */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "engine/dispatch.h"
#include "model/plan.h"

static enum status measure(struct tandem *t, int repeats, struct error *err)
{
	const bool dead = coordinator_dead(t->coordinator);
	enum status st = coordinator_measure(t->coordinator, repeats, err);
	if (st != STATUS_OK && !dead) requests_after_failure(t, st);
	return st;
}

int tandem_trace_step(struct tandem *t, void (*span)(void *context, int rank, const char *section, const char *op, double begin_us, double us), void *context,
                      struct tandem_error *error)
{
	struct error err = {0};
	if (engine_enter(t, &err) != STATUS_OK) return engine_error(error, STATUS_BAD_INPUT, &err);
	enum status st = measure(t, 0, &err);
	for (int r = 0; r < t->world_size && st == STATUS_OK; r++) {
		const struct trace *trace = coordinator_rank(t->coordinator, r)->trace;
		for (int i = 1; i < trace->count; i++) {
			const struct trace_mark *mark = &trace->marks[i], *before = mark - 1;
			span(context, r, mark->section, mark->op, (double)before->us, (double)mark->us - (double)before->us);
		}
	}
	engine_leave(t);
	return engine_error(error, st, &err);
}

int tandem_time_step(struct tandem *t, int repeats, double *ms, struct tandem_error *error)
{
	struct error err = {0};
	*ms = 0;
	if (engine_enter(t, &err) != STATUS_OK) return engine_error(error, STATUS_BAD_INPUT, &err);
	enum status st = repeats > 0 ? measure(t, repeats, &err) : FAIL(&err, BAD_INPUT, "measurement: %d repeats; give 1 or more", repeats);
	for (int r = 0; r < t->world_size && st == STATUS_OK; r++) {
		const struct trace *trace = coordinator_rank(t->coordinator, r)->trace;
		double own = (double)trace->marks[trace->count - 1].us / 1000 / repeats;
		if (own > *ms) *ms = own;
	}
	engine_leave(t);
	return engine_error(error, st, &err);
}

/* Behind what is there, with a comma; false if it does not fit. */
static bool append_name(char *text, size_t bytes, const char *name)
{
	size_t used = strlen(text);
	int n = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", name);
	return n >= 0 && (size_t)n < bytes - used;
}

/* A fused op is one family's alone; a row-parallel linear asks for a part of a sum, or adds, but for one rank's where a norm comes before the residual sum. */
static bool use_is_of(enum linear_use use, const struct plan_family *f, const struct rank *rank)
{
	bool row = !strcmp(f->kind, "row"), plain = rank->adds && rank->model->config.four_norms;
	if (use == LINEAR_USE_ATTENTION_IN) return !strcmp(f->family, "attn qkv");
	if (use == LINEAR_USE_MLP_IN) return !strcmp(f->family, "mlp gate_up");
	if (use == LINEAR_USE_PLAIN) return !row || plain;
	return row && !plain;
}

/* The families of the model that have this shape on a rank. The rows of a split vocabulary are this rank's own, which may be other than planned. */
static void families_of(const struct plan_degree *plan, const struct rank *rank, const struct linear_key *key, char *text, size_t bytes)
{
	const struct linear_weight *head = &rank->weights.head;
	text[0] = 0;
	for (int i = 0; i < plan->families; i++) {
		const struct plan_family *f = &plan->family[i];
		bool shape = f->local_n == key->n && f->local_k == key->k;
		if (!f->runs || plan_is_of_moe(f->family) || !shape || !strcmp(f->family, "lm_head") || !use_is_of(key->use, f, rank)) continue;
		if (!append_name(text, bytes, f->family)) return;
	}
	if (head->n == key->n && head->k == key->k && key->use == LINEAR_USE_PLAIN) (void)!append_name(text, bytes, "lm_head");
	if (!text[0]) snprintf(text, bytes, "part of a fused one");
}

int tandem_explain_dispatch(const struct tandem *t, void (*each)(void *context, const struct tandem_dispatch *item), void *context, struct tandem_error *error)
{
	struct error err = {0};
	const struct rank *rank = coordinator_rank(t->coordinator, 0);
	const struct dispatch_notes *notes = rank->notes;
	struct plan_degree plan;
	if (!notes) return engine_error(error, FAIL(&err, USAGE, "dispatch: it was not noted; open the engine with explain_dispatch"), &err);
	plan_degree(&plan, &t->model.config, t->world_size, &(struct plan_options){.head_on_rank0 = t->head_on_rank0});
	for (int i = 0; i < notes->count; i++) {
		const struct dispatch_note *note = &notes->item[i];
		const struct linear_key *key = &note->key;
		char families[WHITELIST_TEXT_BYTES], why[DISPATCH_WHY_BYTES];
		const struct whitelist_entry *entry = dispatch_describe(rank, note, why);
		families_of(&plan, rank, key, families, sizeof families);
		each(context, &(struct tandem_dispatch){.families = families, .use = linear_use_name(key->use), .dtype = dtype_name(key->dtype), .m = key->m, .n = key->n,
		                                        .k = key->k, .kernel = note->ran.kernel, .mode = note->ran.mode, .ratio = entry ? entry->ratio : 0, .why = why,
		                                        .calls = note->calls});
	}
	if (notes->missed)
		return engine_error(error, FAIL(&err, NO_ROOM, "dispatch: %llu calls were for problems beyond the %d that are noted; the list is not complete",
		                                (unsigned long long)notes->missed, DISPATCH_MAX_NOTES), &err);
	return 0;
}

void tandem_get_phases(const struct tandem *t, int rank, uint64_t ns[TANDEM_PHASES])
{
	coordinator_phases(t->coordinator, rank, ns);
	for (int i = 0; i < TANDEM_PHASES; i++) ns[i] += t->clock.ns[i];
}
