/* kernels_gdn.h: the vector kernels of the gated delta net. Included after kernels_vec.h by the instruction sets; the definition of each bit is
 * in isa_c.c. Lanes are channels (conv), heads (rates) or columns of S (delta).
 */

VEC v16 v_silu(v16 x)
{
	return v_div(x, v_add(v_set(1.0f), v_exp(v_negate(x))));
}

VEC v16 conv_columns(const float *const *in, const float *w, int taps, int64_t stride, int c, int n)
{
	v16 sum = v_zero();
	for (int tap = 0; tap < taps; tap++)
		if (in[tap]) sum = v_fma(v_load_first(w + tap * stride + c, n), v_load_first(in[tap] + c, n), sum);
	return v_silu(sum);
}

static void conv(float *out, const float *const *in, const float *w, int taps, int64_t stride, int n)
{
	int c = 0;
	for (; c + LANES <= n; c += LANES) v_store(out + c, conv_columns(in, w, taps, stride, c, LANES));
	if (c < n) v_store_first(out + c, conv_columns(in, w, taps, stride, c, n - c), n - c);
}

static void l2_norm(float *x, int n, float eps, float scale)
{
	v16 sum = v_zero();
	for (int i = 0; i < n; i += LANES) { /* absent lanes add 0 * 0 to a sum that is never -0 */
		v16 a = v_load_first(x + i, n - i < LANES ? n - i : LANES);
		sum = v_fma(a, a, sum);
	}
	v16 r = v_set(scale / sqrtf(lane_sum(sum) + eps));
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(x + i, v_mul(v_load_first(x + i, m), r), m);
	}
}

VEC v16 v_softplus(v16 x)
{
	v16 y = v_exp(v_negate(v_max(x, v_negate(x))));
	v16 s = v_div(y, v_add(v_set(2.0f), y)), z = v_mul(s, s), twice = v_add(s, s);
	v16 q = v_fma(v_set(LOG1P_C15), z, v_set(LOG1P_C13));
	q = v_fma(q, z, v_set(LOG1P_C11));
	q = v_fma(q, z, v_set(LOG1P_C9));
	q = v_fma(q, z, v_set(LOG1P_C7));
	q = v_fma(q, z, v_set(LOG1P_C5));
	q = v_fma(q, z, v_set(LOG1P_C3));
	return v_add(v_max(x, v_zero()), v_fma(v_mul(twice, z), q, twice));
}

static void rates(float *b, float *a, const float *a_log, const float *dt_bias, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v16 one = v_set(1.0f);
		v_store_first(b + i, v_div(one, v_add(one, v_exp(v_negate(v_load_first(b + i, m))))), m);
		v16 soft = v_softplus(v_add(v_load_first(a + i, m), v_load_first(dt_bias + i, m)));
		v_store_first(a + i, v_exp(v_negate(v_mul(v_exp(v_load_first(a_log + i, m)), soft))), m);
	}
}

/* All rows of `vecs` vectors of columns from column j on, the last of `last` columns: the columns' part of S, k_dim * vecs * 64 bytes, stays in
 * the near caches from one pass to the next and from row to row. In the first row it comes from s_in, and memory is asked for ahead.
 * Bound: a decode step reads and writes S once; with many rows 5 operations and 3 accesses of the cache an element and row. */
#define DELTA_AHEAD 16 /* rows of S */
#define PREFETCH_TO_WRITE(p) __builtin_prefetch((p), 1, 2)
#define DELTA_BODY(vecs, load, store)                                                                            \
	{                                                                                                        \
		const int k_dim = args->k_dim;                                                                   \
		const int64_t width = args->v_dim;                                                               \
		for (int row = 0; row < args->rows; row++) {                                                     \
			const float *q = args->q + row * args->stride, *k = args->k + row * args->stride;        \
			const float *v = args->v + row * args->stride + j, *from = (row ? args->s : args->s_in) + j; \
			float *s = args->s + j;                                                                  \
			v16 decay = v_set(args->decay[row * args->rate_stride]), beta = v_set(args->beta[row * args->rate_stride]); \
			v16 change[vecs], out[vecs];                                                             \
			UNROLL_OCTET for (int c = 0; c < (vecs); c++) change[c] = out[c] = v_zero();             \
			for (int i = 0; i < k_dim; i++) {                                                        \
				v16 ki = v_set(k[i]);                                                            \
				if (!row) UNROLL_OCTET for (int c = 0; c < (vecs); c++)                          \
				{                                                                                \
					PREFETCH(from + (i + DELTA_AHEAD) * width + c * LANES);                  \
					PREFETCH_TO_WRITE(s + (i + DELTA_AHEAD) * width + c * LANES);            \
				}                                                                                \
				UNROLL_OCTET for (int c = 0; c < (vecs); c++)                                    \
					change[c] = v_fma(ki, v_mul(load(from + i * width + c * LANES), decay), change[c]); \
			}                                                                                        \
			UNROLL_OCTET for (int c = 0; c < (vecs); c++) change[c] = v_mul(v_sub(load(v + c * LANES), change[c]), beta); \
			for (int i = 0; i < k_dim; i++) {                                                        \
				v16 ki = v_set(k[i]), qi = v_set(q[i]);                                          \
				UNROLL_OCTET for (int c = 0; c < (vecs); c++)                                    \
				{                                                                                \
					v16 next = v_fma(ki, change[c], v_mul(load(from + i * width + c * LANES), decay)); \
					store(s + i * width + c * LANES, next);                                  \
					out[c] = v_fma(qi, next, out[c]);                                        \
				}                                                                                \
			}                                                                                        \
			UNROLL_OCTET for (int c = 0; c < (vecs); c++) store(args->out + row * args->out_stride + j + c * LANES, out[c]); \
		}                                                                                                \
	}
#define DELTA_LOAD_LAST(p) v_load_first((p), last)
#define DELTA_STORE_LAST(p, a) v_store_first((p), (a), last)

static void delta(const struct delta_args *args)
{
	int j = 0;
	for (; j + VEC_DELTA * LANES <= args->v_dim; j += VEC_DELTA * LANES) DELTA_BODY(VEC_DELTA, v_load, v_store)
	for (; j < args->v_dim; j += LANES) {
		const int last = args->v_dim - j < LANES ? args->v_dim - j : LANES;
		DELTA_BODY(1, DELTA_LOAD_LAST, DELTA_STORE_LAST)
	}
}

static void gate(float *x, const float *by, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(x + i, v_div(v_load_first(x + i, m), v_add(v_set(1.0f), v_exp(v_negate(v_load_first(by + i, m))))), m);
	}
}
