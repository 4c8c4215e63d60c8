/* stats.h: order statistics. */
#ifndef TANDEM_BASE_STATS_H
#define TANDEM_BASE_STATS_H

/* Sorts `values` and returns the value below which `share` of them lie (0.5: the median, the mean of two where n is even). n >= 1. */
double percentile(double *values, int n, double share);

#endif
