/* trial_check.c: what a run left in its output, in numbers (trial.h says against what). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "prescreen/trial_parts.h"

/* Half the distance of neighbouring values, relative, with a factor of two to spare. */
static double precision(enum dtype dtype)
{
	return dtype == DTYPE_BF16 ? 0x1p-8 : dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-23;
}

/* Products that a value is the sum of. */
static double terms(const struct result_problem *p)
{
	switch (p->op) {
	case PROBLEM_ATTENTION: return p->attention.context + p->attention.head_dim;
	case PROBLEM_MOE: return p->moe.hidden + p->moe.inner + p->moe.shared_inner;
	case PROBLEM_GDN: return p->gdn.rows + p->gdn.k_dim + p->gdn.v_dim;
	case PROBLEM_LINEAR:
	case PROBLEM_OP_COUNT: break;
	}
	return p->linear.k;
}

/* A sum of K products in f32, in any order, strays from the exact one like a random walk: some 2^-24 sqrt(K), relative. On top comes the rounding of the
 * output, and of what an op that does more than one thing keeps in between (four roundings: norm, gate, up or scores, weights, sum). */
static struct result_error bound_of(const struct trial *t, double rms, double most)
{
	const struct result_problem *p = t->problem;
	const bool composed = p->op != PROBLEM_LINEAR || p->linear.use == LINEAR_USE_MLP_IN || p->linear.use == LINEAR_USE_ATTENTION_IN;
	const double walk = 0x1p-24 * sqrt(terms(p)), out = precision(t->region[0].dtype), between = composed ? 4 * precision(t->activation) : 0;
	return (struct result_error){.l2 = out + between + 4 * walk, .max = (out + between) * most + (2 * between + 16 * walk) * rms};
}

/* How far out of its bound an error is. */
static double excess(const struct result_error *error, const struct result_error *bound)
{
	double l2 = error->l2 / bound->l2, max = error->max / bound->max;
	return isfinite(l2) && isfinite(max) ? fmax(l2, max) : INFINITY;
}

/* Of several comparisons the one that comes closest to its bound counts. `slack`: of a comparison with what may be off itself. */
static void consider(const struct trial *t, const struct compare_result *r, double slack, struct result_check *out)
{
	const int64_t written = r->values - r->unwritten;
	if (written < 1) return;
	const struct result_error error = {.l2 = r->ref2 > 0 ? sqrt(r->diff2 / r->ref2) : sqrt(r->diff2), .max = r->most_diff};
	struct result_error bound = bound_of(t, sqrt(r->ref2 / (double)written), r->most);
	bound.l2 *= slack;
	bound.max *= slack;
	if (out->bound.l2 > 0 && !(excess(&error, &bound) > excess(&out->error, &out->bound))) return;
	out->error = error;
	out->bound = bound;
}

static void count(struct compare_result *r, double value, double reference)
{
	const double diff = fabs(value - reference);
	r->diff2 += diff * diff;
	r->ref2 += reference * reference;
	if (!isnan(r->most_diff) && !(diff <= r->most_diff)) r->most_diff = diff; /* NaN sticks */
	if (fabs(reference) > r->most) r->most = fabs(reference);
	r->values++;
}

static enum status fetch(struct trial *t, void *to, const void *from, size_t bytes, struct error *err)
{
	return t->bench->ops->copy(t->bench->stream, to, from, bytes, COPY_TO_HOST, err);
}

/* The sampled rows of region 0. */
static enum status against_samples(struct trial *t, struct result_check *out, struct error *err)
{
	const struct trial_region *r = &t->region[0];
	const struct trial_samples *s = &t->samples;
	const size_t size = dtype_bytes(r->dtype), stride = (size_t)r->stride * size, row = (size_t)(r->more ? r->more_at + r->more : r->cols) * size;
	struct compare_result result = {0};
	char *host = mem_zalloc((size_t)s->rows, row, "prescreen: sampled rows", err);
	if (!host) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	for (int i = 0; i < s->rows && st == STATUS_OK; i++) st = fetch(t, host + (size_t)i * row, (char *)trial_output(t) + (size_t)s->row[i] * stride, row, err);
	if (st == STATUS_OK) st = trial_sync(t, err);
	for (int i = 0; i < s->rows && st == STATUS_OK; i++)
		for (int j = 0; j < s->cols; j++) count(&result, dtype_load(r->dtype, host + (size_t)i * row + (size_t)s->col[j] * size), s->reference[(size_t)i * (size_t)s->cols + (size_t)j]);
	free(host);
	out->referenced += result.values;
	consider(t, &result, 1, out);
	return st;
}

/* The sampled keys and values in the cache, each by itself. */
static enum status against_cached(struct trial *t, struct result_check *out, struct error *err)
{
	const struct trial_region *r = &t->region[1];
	const struct trial_samples *s = &t->cached;
	if (!s->rows) return STATUS_OK;
	struct compare_result keys = {0}, values = {0};
	char *host = mem_zalloc(1, r->bytes, "prescreen: cache", err);
	if (!host) return STATUS_NO_MEMORY;
	enum status st = fetch(t, host, r->device + TRIAL_GUARD_BYTES, r->bytes, err);
	if (st == STATUS_OK) st = trial_sync(t, err);
	for (int i = 0; st == STATUS_OK && i < s->rows * s->cols; i++)
		count(i % s->cols < s->cols / 2 ? &keys : &values, dtype_load(r->dtype, host + (size_t)s->place[i] * dtype_bytes(r->dtype)), s->reference[i]);
	free(host);
	out->referenced += keys.values + values.values;
	consider(t, &keys, 1, out);
	consider(t, &values, 1, out);
	return st;
}

static enum status count_guards(struct trial *t, struct result_check *out, struct error *err)
{
	unsigned char guard[TRIAL_REGIONS][2][TRIAL_GUARD_BYTES];
	for (int i = 0; i < t->regions; i++) {
		TRY(fetch(t, guard[i][0], t->region[i].device, TRIAL_GUARD_BYTES, err));
		TRY(fetch(t, guard[i][1], t->region[i].device + TRIAL_GUARD_BYTES + t->region[i].bytes, TRIAL_GUARD_BYTES, err));
	}
	TRY(trial_sync(t, err));
	for (int i = 0; i < t->regions; i++)
		for (int b = 0; b < 2 * TRIAL_GUARD_BYTES; b++) out->outside += guard[i][b / TRIAL_GUARD_BYTES][b % TRIAL_GUARD_BYTES] != 0xff;
	return STATUS_OK;
}

static uint64_t join(uint64_t hash, int region, uint64_t other)
{
	return region ? rng_mix(hash) + other : other;
}

enum status trial_hash(struct trial *t, uint64_t *hash, struct error *err)
{
	struct compare_result r;
	*hash = 0;
	for (int i = 0; i < t->regions; i++) {
		TRY(trial_look(t, i, false, &r, err));
		*hash = join(*hash, i, r.hash);
	}
	return STATUS_OK;
}

enum status trial_check(struct trial *t, struct result_check *out, struct error *err)
{
	uint64_t hash = 0;
	*out = (struct result_check){.repeats = out->repeats, .repeatable = out->repeatable, .same_bits = t->region[0].baseline != NULL};
	TRY(trial_sync(t, err));
	TRY(count_guards(t, out, err));
	TRY(against_samples(t, out, err));
	TRY(against_cached(t, out, err));
	for (int i = 0; i < t->regions; i++) {
		struct compare_result r;
		TRY(trial_look(t, i, true, &r, err));
		hash = join(hash, i, r.hash);
		out->values += r.values;
		out->unwritten += r.unwritten;
		out->outside += r.outside;
		out->same_bits = out->same_bits && !r.different && !r.outside;
		if (t->region[i].baseline && r.different) consider(t, &r, 2, out); /* both may be off */
	}
	snprintf(out->hash, sizeof out->hash, "%016llx", (unsigned long long)hash);
	return STATUS_OK;
}
