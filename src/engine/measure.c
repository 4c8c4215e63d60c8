/* measure.c: the public boundary, third part: the last step once more, for its times; where the time of all steps went. */
#include "engine/engine.h"

int tandem_trace_step(struct tandem *t, void (*span)(void *context, int rank, const char *section, const char *op, double begin_us, double us), void *context,
                      struct tandem_error *error)
{
	struct error err = {0};
	enum status st = coordinator_measure(t->coordinator, 0, &err);
	for (int r = 0; r < t->world_size && st == STATUS_OK; r++) {
		const struct trace *trace = coordinator_rank(t->coordinator, r)->trace;
		for (int i = 1; i < trace->count; i++) {
			const struct trace_mark *mark = &trace->marks[i], *before = mark - 1;
			span(context, r, mark->section, mark->op, (double)before->us, (double)mark->us - (double)before->us);
		}
	}
	return engine_error(error, st, &err);
}

int tandem_time_step(struct tandem *t, int repeats, double *ms, struct tandem_error *error)
{
	struct error err = {0};
	*ms = 0;
	enum status st = repeats > 0 ? coordinator_measure(t->coordinator, repeats, &err) : FAIL(&err, BAD_INPUT, "measurement: %d repeats; give 1 or more", repeats);
	for (int r = 0; r < t->world_size && st == STATUS_OK; r++) {
		const struct trace *trace = coordinator_rank(t->coordinator, r)->trace;
		double own = (double)trace->marks[trace->count - 1].us / 1000 / repeats;
		if (own > *ms) *ms = own;
	}
	return engine_error(error, st, &err);
}

void tandem_get_phases(const struct tandem *t, int rank, uint64_t ns[TANDEM_PHASES])
{
	coordinator_phases(t->coordinator, rank, ns);
	for (int i = 0; i < TANDEM_PHASES; i++) ns[i] += t->clock.ns[i];
}
