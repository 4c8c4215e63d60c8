#include "base/stats.h"

#include <stdlib.h>

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double percentile(double *values, int n, double share)
{
	qsort(values, (size_t)n, sizeof *values, compare_double);
	double at = share * (n - 1);
	int below = (int)at;
	if (below + 1 >= n) return values[n - 1];
	return values[below] + (at - below) * (values[below + 1] - values[below]);
}
