/* gdn.h: the gated delta net by the formulas of device/ops.h in double precision, row by row: what both back ends are held to. */
#ifndef TANDEM_TESTS_COMMON_GDN_H
#define TANDEM_TESTS_COMMON_GDN_H

#include "base/dtype.h"

struct gdn_oracle {
	int k_heads, v_heads, k_dim, v_dim, taps;
	const float *conv, *a_log, *dt_bias, *norm; /* as in struct gdn_args */
	enum dtype dtype;                           /* of the rows */
};

/* A sequence of `rows` rows with nothing before it: qkvz [rows][q|k|v|z], ba [rows][b|a]. All results are [rows][v_heads * v_dim]: what comes out; by how much an
 * error of out grows with one of o relative to o's length; and (unless NULL) the same times the sum |q| |S| of a column over o's length, both by their root mean
 * square over the head's columns. */
void gdn_oracle(const struct gdn_oracle *g, int rows, const void *qkvz, const void *ba, double *want, double *scale, double *rough);

#endif
