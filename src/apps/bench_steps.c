#include "apps/bench_steps.h"

static const char *const phase_names[] = {
#define X(code, name, what) name,
	TANDEM_PHASE_LIST(X)
#undef X
};

void bench_phases_get(struct bench_phases *out, const struct tandem *engine, int ranks)
{
	for (int r = 0; r < ranks; r++) tandem_get_phases(engine, r, out->ns[r]);
}

void bench_steps_add(struct bench_steps *s, double ms, const struct bench_phases *before, const struct bench_phases *after)
{
	s->steps++;
	s->ms += ms;
	if (ms > s->most_ms) s->most_ms = ms;
	for (int r = 0; r < SHARD_MAX_WORLD; r++)
		for (int i = 0; i < TANDEM_PHASES; i++) s->phases.ns[r][i] += after->ns[r][i] - before->ns[r][i];
}

double bench_steps_mean(const struct bench_steps *s)
{
	return s->steps ? s->ms / s->steps : 0;
}

static double mean_us(const struct bench_steps *s, int rank, int phase)
{
	return s->steps ? (double)s->phases.ns[rank][phase] / 1e3 / s->steps : 0;
}

json_t *bench_steps_json(const struct bench_steps *s, int ranks)
{
	json_t *list = json_array();
	for (int r = 0; r < ranks; r++) {
		json_t *object = json_object();
		for (int i = 0; i < TANDEM_PHASES; i++) json_object_set_new(object, phase_names[i], json_real(mean_us(s, r, i)));
		json_array_append_new(list, object);
	}
	return list;
}

enum status bench_steps_text(const struct bench_steps *s, const char *what, int ranks, struct buf *out, struct error *err)
{
	for (int r = 0; r < ranks && s->steps; r++) {
		TRY(buf_printf(out, err, "%s, rank %d, us:", what, r));
		for (int i = 0; i < TANDEM_PHASES; i++) TRY(buf_printf(out, err, "%s %s %.0f", i ? "," : "", phase_names[i], mean_us(s, r, i)));
		TRY(buf_puts(out, "\n", err));
	}
	return STATUS_OK;
}
