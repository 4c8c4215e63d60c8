/* ops.c: checks of arguments that all back ends make alike. */
#include "device/ops.h"

enum status ops_check_program(const struct tree_sum_args *args, int *depth, struct error *err)
{
	int now = 0;
	bool sane = args->sources >= 1 && args->sources <= TREE_SUM_MAX_SOURCES;
	*depth = 0;
	for (int i = 0; sane && i < args->sources; i++) {
		if (++now > *depth) *depth = now;
		sane = now <= SUMTREE_MAX_DEPTH && args->merges[i] < now && args->source[i];
		now -= args->merges[i];
	}
	if (sane && now == 1) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "tree_sum: %d sources with a program that leaves %d values; exactly one is wanted", args->sources, now);
}

enum status ops_check_expert(const struct linear_weight *w, enum dtype dtype, int n, int k, const char *what, struct error *err)
{
	if (w->dtype != dtype || !dtype_is_plain(dtype))
		return FAIL(err, UNSUPPORTED, "moe %s: weights of type %s beside %s; one type out of F32, F16 and BF16 is wanted", what, dtype_name(w->dtype), dtype_name(dtype));
	if (w->n == n && w->k == k && n >= 1 && k >= 1 && w->data) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "moe %s: weight is [%d,%d], expected [%d,%d]", what, w->n, w->k, n, k);
}
