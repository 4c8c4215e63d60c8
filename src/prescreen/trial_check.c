/* trial_check.c: what a run left in its output, in numbers (trial.h says against what). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "prescreen/trial.h"

static double load(enum dtype dtype, const char *at, int64_t i)
{
	uint16_t half;
	float value;
	if (dtype == DTYPE_F32) {
		memcpy(&value, at + 4 * i, 4);
		return value;
	}
	memcpy(&half, at + 2 * i, 2);
	return dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

/* Half the distance of neighbouring values, relative, with a factor of two to spare. */
static double precision(enum dtype dtype)
{
	return dtype == DTYPE_BF16 ? 0x1p-8 : dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-23;
}

/* A sum of K products in f32, in any order, strays from the exact one like a random walk: some 2^-24 sqrt(K), relative. On top comes the rounding of the
 * output, and of what an op that does more than one thing keeps in between (four roundings: norm, gate, up or scores, weights, sum). */
static struct result_error bound_of(const struct trial *t, double rms, double most)
{
	const struct result_problem *p = t->problem;
	bool composed = p->op == PROBLEM_ATTENTION || p->linear.use == LINEAR_USE_MLP_IN || p->linear.use == LINEAR_USE_ATTENTION_IN;
	double walk = 0x1p-24 * sqrt(p->op == PROBLEM_ATTENTION ? p->attention.context + p->attention.head_dim : p->linear.k), out = precision(t->region[0].dtype);
	double between = composed ? 4 * precision(t->activation) : 0;
	return (struct result_error){.l2 = out + between + 4 * walk, .max = (out + between) * most + (2 * between + 16 * walk) * rms};
}

struct tally {
	double diff2, ref2, most_diff, most;
	int64_t values;
};

static void count(struct tally *t, double value, double reference)
{
	double diff = fabs(value - reference);
	t->diff2 += diff * diff;
	t->ref2 += reference * reference;
	if (!isnan(t->most_diff) && !(diff <= t->most_diff)) t->most_diff = diff; /* NaN sticks */
	if (fabs(reference) > t->most) t->most = fabs(reference);
	t->values++;
}

static struct result_error error_of(const struct tally *t)
{
	return (struct result_error){.l2 = t->ref2 > 0 ? sqrt(t->diff2 / t->ref2) : sqrt(t->diff2), .max = t->most_diff};
}

static double rms(const struct tally *t)
{
	return t->values ? sqrt(t->ref2 / (double)t->values) : 0;
}

static const char *inside(const struct trial *t, const char *memory, int region)
{
	for (int i = 0; i < region; i++) memory += t->region[i].bytes + 2 * TRIAL_GUARD_BYTES;
	return memory + TRIAL_GUARD_BYTES;
}

static void against_reference(const struct trial *t, struct tally *out)
{
	const struct trial_region *r = &t->region[0];
	const char *at = inside(t, t->host, 0);
	for (int i = 0; i < t->sample_rows; i++)
		for (int j = 0; j < t->sample_cols; j++)
			count(out, load(r->dtype, at, t->sample_row[i] * r->stride + t->sample_col[j]), t->reference[(size_t)i * (size_t)t->sample_cols + (size_t)j]);
}

static bool is_start(const struct trial *t, const struct trial_region *r, const char *at, int64_t i)
{
	uint32_t word;
	uint16_t half;
	if (r->dtype != DTYPE_F32) {
		memcpy(&half, at + 2 * i, 2);
		return half == 0xffff;
	}
	memcpy(&word, at + 4 * i, 4);
	bool added = t->problem->op == PROBLEM_LINEAR && t->problem->linear.use == LINEAR_USE_ACCUMULATE;
	return word == (added ? f32_to_bits(0x1p-10f) : 0xffffffffu);
}

/* One region against the baseline's, if there is one, and what of it was not written. */
static void scan_region(const struct trial *t, int region, struct tally *tally, struct result_check *out)
{
	const struct trial_region *r = &t->region[region];
	const char *at = inside(t, t->host, region), *base = t->baseline ? inside(t, t->baseline, region) : NULL;
	for (int64_t row = 0; row < r->rows; row++)
		for (int64_t i = row * r->stride; i < row * r->stride + r->cols; i++) {
			bool untouched = is_start(t, r, at, i), base_untouched = base && is_start(t, r, base, i);
			if (r->sparse && !base) continue;
			if (r->sparse && base_untouched) {
				out->outside += !untouched;
				continue;
			}
			out->values++;
			out->unwritten += untouched;
			if (base && !untouched) count(tally, load(r->dtype, at, i), load(r->dtype, base, i));
		}
}

static int64_t guard_damage(const struct trial *t, int region)
{
	const char *start = inside(t, t->host, region);
	int64_t changed = 0;
	for (size_t i = 1; i <= TRIAL_GUARD_BYTES; i++) changed += (start[-(int64_t)i] != (char)0xff) + (start[t->region[region].bytes + i - 1] != (char)0xff);
	return changed;
}

static bool same_bits(const struct trial *t)
{
	if (!t->baseline) return false;
	for (int g = 0; g < t->regions; g++) {
		const struct trial_region *r = &t->region[g];
		size_t size = dtype_bytes(r->dtype), row = (size_t)r->cols * size, stride = (size_t)r->stride * size;
		for (int64_t i = 0; i < r->rows; i++)
			if (memcmp(inside(t, t->host, g) + (size_t)i * stride, inside(t, t->baseline, g) + (size_t)i * stride, row) != 0) return false;
	}
	return true;
}

uint64_t trial_hash(const struct trial *t)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (int g = 0; g < t->regions; g++) {
		const struct trial_region *r = &t->region[g];
		size_t size = dtype_bytes(r->dtype), row = (size_t)r->cols * size, stride = (size_t)r->stride * size;
		for (int64_t i = 0; i < r->rows; i++) {
			const char *at = inside(t, t->host, g) + (size_t)i * stride;
			for (size_t b = 0; b < row; b += 8) { /* eight bytes at a time */
				uint64_t word = 0;
				memcpy(&word, at + b, row - b < 8 ? row - b : 8);
				hash = (hash ^ word) * 0x100000001b3u;
				hash ^= hash >> 29;
			}
		}
	}
	return hash;
}

/* How far out of its bound an error is. */
static double excess(const struct result_error *error, const struct result_error *bound)
{
	double l2 = error->l2 / bound->l2, max = error->max / bound->max;
	return isfinite(l2) && isfinite(max) ? fmax(l2, max) : INFINITY;
}

void trial_check(const struct trial *t, struct result_check *out)
{
	struct tally reference = {0}, baseline = {0};
	int repeats = out->repeats;
	bool repeatable = out->repeatable;
	*out = (struct result_check){.repeats = repeats, .repeatable = repeatable};
	against_reference(t, &reference);
	out->referenced = reference.values;
	out->error = error_of(&reference);
	out->bound = bound_of(t, rms(&reference), reference.most);
	out->same_bits = same_bits(t);
	for (int g = 0; g < t->regions; g++) {
		scan_region(t, g, &baseline, out);
		out->outside += guard_damage(t, g);
	}
	if (baseline.values && !out->same_bits) {
		struct result_error error = error_of(&baseline), bound = bound_of(t, rms(&baseline), baseline.most);
		bound.l2 *= 2; /* both may be off */
		bound.max *= 2;
		if (excess(&error, &bound) > excess(&out->error, &out->bound)) out->error = error, out->bound = bound;
	}
	snprintf(out->hash, sizeof out->hash, "%016llx", (unsigned long long)trial_hash(t));
}
