/* kernels_vec.h: the vector kernels, written once over 16 lanes. Included by isa_avx2.c and isa_avx512.c after their
 * vec_*.h; everything is static, and the including file puts the functions into its table.
 *
 * Each lane is one output (linear), one position (scores), one column (values) or one of the 16 partial sums of the definition,
 * so no operation crosses lanes but the final tree over 16. Kernels take the number of rows as a compile-time constant to keep
 * accumulators in registers: ROW_CASES_… makes one copy for each.
 */
#include <math.h>

#include "device/cpu/exp.h"
#include "device/cpu/kernels.h"
#include "device/cpu/quant.h"

#define UNROLL_ROWS _Pragma("GCC unroll 24")
#define UNROLL_OCTET _Pragma("GCC unroll 8")

/* One case a row count: `body(n)` with n a constant. */
#define ROW_CASE(n, body) case n: body(n); break;
#define ROW_CASES_2(body) ROW_CASE(1, body) ROW_CASE(2, body)
#define ROW_CASES_3(body) ROW_CASES_2(body) ROW_CASE(3, body)
#define ROW_CASES_14(body)                                                                                                   \
	ROW_CASES_3(body) ROW_CASE(4, body) ROW_CASE(5, body) ROW_CASE(6, body) ROW_CASE(7, body) ROW_CASE(8, body)         \
	ROW_CASE(9, body) ROW_CASE(10, body) ROW_CASE(11, body) ROW_CASE(12, body) ROW_CASE(13, body) ROW_CASE(14, body)

#define QUANT_CASE(n, type) case n: QUANT_CHAIN(type, n) break;
#define HALVES_CASE(n, type) case n: QUANT_CHAIN_HALVES(type, n) break;

/* Halves are added (maximum taken) until one lane is left: the order of isa_c.c. */
VEC float lane_sum(v16 a)
{
	__m256 a8 = _mm256_add_ps(v_low(a), v_high(a));
	__m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
	__m128 a2 = _mm_add_ps(a4, _mm_movehl_ps(a4, a4));
	return _mm_cvtss_f32(_mm_add_ss(a2, _mm_shuffle_ps(a2, a2, 1)));
}

VEC float lane_max(v16 a)
{
	__m256 a8 = _mm256_max_ps(v_low(a), v_high(a));
	__m128 a4 = _mm_max_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
	__m128 a2 = _mm_max_ps(a4, _mm_movehl_ps(a4, a4));
	return _mm_cvtss_f32(_mm_max_ss(a2, _mm_shuffle_ps(a2, a2, 1)));
}

VEC v16 v_exp(v16 x)
{
	v16 t = v_fma(x, v_set(EXP_LOG2E), v_set(EXP_MAGIC));
	v16 n = v_sub(t, v_set(EXP_MAGIC));
	v16 r = v_fma(n, v_set(-EXP_LN2_HIGH), x);
	r = v_fma(n, v_set(-EXP_LN2_LOW), r);
	v16 q = v_fma(v_set(EXP_C7), r, v_set(EXP_C6));
	q = v_fma(q, r, v_set(EXP_C5));
	q = v_fma(q, r, v_set(EXP_C4));
	q = v_fma(q, r, v_set(EXP_C3));
	q = v_fma(q, r, v_set(EXP_C2));
	v16 p = v_add(v_fma(q, v_mul(r, r), r), v_set(1.0f));
	v16 y = v_add_exponent(p, t);
	y = v_select(m_less(x, v_set(EXP_LOW)), v_zero(), y);
	y = v_select(m_less(v_set(EXP_HIGH), x), v_set(HUGE_VALF), y);
	return v_select(m_nan(x), x, y);
}

VEC v16 v_tanh(v16 x)
{
	v16 size = v_max(x, v_negate(x)), z = v_mul(x, x);
	v16 p = v_fma(v_set(TANH_C4), z, v_set(TANH_C3));
	p = v_fma(p, z, v_set(TANH_C2));
	p = v_fma(p, z, v_set(TANH_C1));
	p = v_fma(p, z, v_set(TANH_C0));
	v16 near = v_fma(v_mul(p, z), x, x);
	v16 far = v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(v_exp(v_add(size, size)), v_set(1.0f))));
	return v_select(m_less(size, v_set(TANH_SMALL)), near, v_select(m_less(x, v_zero()), v_negate(far), far));
}

VEC v16 v_softcap(v16 x, v16 cap)
{
	return v_mul(v_tanh(v_div(x, cap)), cap);
}

#define PREFETCH(p) __builtin_prefetch((p), 0, 2) /* into the second-level cache */

/* --- linear ----------------------------------------------------------------------------------------------------------- */

/* k-step i of a panel. */
VEC void load2_f32(const void *p, size_t i, v16 *a, v16 *b)
{
	*a = v_load((const float *)p + i * PANEL);
	*b = v_load((const float *)p + i * PANEL + LANES);
}
VEC void load2_f16(const void *p, size_t i, v16 *a, v16 *b)
{
	v_load2_f16((const uint16_t *)p + i * PANEL, a, b);
}
VEC void load2_bf16(const void *p, size_t i, v16 *a, v16 *b)
{
	v_load2_bf16((const uint16_t *)p + i * PANEL, a, b);
}

/* Up to three rows the loop runs as fast as memory delivers and the hardware's prefetch does best alone (measured: -20 % with ours);
 * with more it is slow enough for that prefetch to lose the thread at page ends (+12 % with ours). F32 panels are twice as long, and
 * memory stays the limit. */
#define CHAIN_AHEAD_ROWS 4
#define CHAIN_AHEAD_BYTES 8192

/* rows x PANEL outputs in registers over k steps. Reads w once as one sequential stream, x [k][rows] packed, acc [rows][PANEL].
 * Bound: FMA rate from about 4 rows on, memory below. */
#define CHAIN_BODY(load2, ahead, n)                                                     \
	{                                                                        \
		v16 a[n][2];                                                     \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                        \
		{                                                                \
			a[r][0] = v_load(acc + r * PANEL);                       \
			a[r][1] = v_load(acc + r * PANEL + LANES);               \
		}                                                                \
		const float *xi = x;                                             \
		for (int i = 0; i < k; i++, xi += (n)) {                         \
			v16 w0, w1;                                              \
			load2(w, (size_t)i, &w0, &w1);                           \
			if ((ahead) && (n) >= CHAIN_AHEAD_ROWS) PREFETCH((const char *)w + (size_t)i * 64 + (ahead)); \
			UNROLL_ROWS for (int r = 0; r < (n); r++)                \
			{                                                        \
				v16 b = v_set(xi[r]);                            \
				a[r][0] = v_fma(b, w0, a[r][0]);                 \
				a[r][1] = v_fma(b, w1, a[r][1]);                 \
			}                                                        \
		}                                                                \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                        \
		{                                                                \
			v_store(acc + r * PANEL, a[r][0]);                       \
			v_store(acc + r * PANEL + LANES, a[r][1]);               \
		}                                                                \
	}

#define CHAIN_F32(n) CHAIN_BODY(load2_f32, 0, n)
#define CHAIN_F16(n) CHAIN_BODY(load2_f16, CHAIN_AHEAD_BYTES, n)
#define CHAIN_BF16(n) CHAIN_BODY(load2_bf16, CHAIN_AHEAD_BYTES, n)

static void chain_f32(float *acc, const void *w, const float *x, int k, int rows)
{
	switch (rows) { LINEAR_CASES(CHAIN_F32) }
}

static void chain_f16(float *acc, const void *w, const float *x, int k, int rows)
{
	switch (rows) { LINEAR_CASES(CHAIN_F16) }
}

static void chain_bf16(float *acc, const void *w, const float *x, int k, int rows)
{
	switch (rows) { LINEAR_CASES(CHAIN_BF16) }
}

/* --- linear over block types ------------------------------------------------------------------------------------------ */

/* Scale and min of outputs [16 h, 16 h + 16) for the inputs from 8 * octet of a group on. */
VEC void quant_scales(enum dtype type, const char *block, const char *group, int octet, int h, v16 *scale, v16 *min)
{
	const struct quant_layout at = quant_layout(type);
	*scale = v_load_f16((const uint16_t *)(const void *)block + h * LANES);
	if (type == DTYPE_Q6_K) *scale = v_mul(*scale, v_load_i8((const int8_t *)group + octet / 2 * PANEL + h * LANES));
	else if (at.scales) *scale = v_mul(*scale, v_load_u8((const uint8_t *)group + h * LANES));
	if (!at.min) return;
	*min = v_load_f16((const uint16_t *)(const void *)(block + at.min) + h * LANES);
	if (at.mins) *min = v_negate(v_mul(*min, v_load_u8((const uint8_t *)group + at.scales + h * LANES)));
}

/* Eight inputs of these outputs as words: four low bits each, and what lies above them, moved up by four. */
VEC void quant_words(enum dtype type, const char *group, int octet, int h, w16 *low, w16 *high)
{
	const struct quant_layout at = quant_layout(type);
	if (type == DTYPE_Q8_0) return;
	*low = w_load(group + at.low + (octet * PANEL + h * LANES) * 4);
	if (at.high_bits == 2) *high = w_up(w_down(w_load(group + at.high + (octet / 2 * PANEL + h * LANES) * 4), octet % 2 * 16), 4);
	if (at.high_bits == 1) *high = w_up(w_down(w_load(group + at.high + h * LANES * 4), octet * 8), 4);
}

/* Input i of the eight, of 16 outputs. */
VEC v16 quant_weight(enum dtype type, const char *bytes, int i, w16 low, w16 high, v16 scale, v16 min)
{
	v16 q;
	if (type == DTYPE_Q8_0) return v_mul(scale, v_load_i8((const int8_t *)bytes + i * PANEL));
	low = w_down(low, 4 * i);
	if (quant_layout(type).high_bits == 2) q = v_bits6(low, w_down(high, 2 * i), (float)quant_offset(type));
	else if (quant_layout(type).high_bits) q = v_bits5(low, w_down(high, i), (float)quant_offset(type));
	else q = v_bits4(low, (float)quant_offset(type));
	return quant_layout(type).min ? v_fma(scale, q, min) : v_mul(scale, q);
}

/* Memory is asked for so far ahead into the second-level cache: three to four groups, some 400 ns of 16 rows; up to three rows
 * not, as with plain types (above). By halves only the first asks: it fetches the lines of the second too. */
#define QUANT_AHEAD_BYTES 2048
#define QUANT_AHEAD_ROWS 4

/* Cache lines that a group takes of the stream. */
VEC int quant_lines(enum dtype type)
{
	const struct quant_layout at = quant_layout(type);
	return (at.group + (dtype_block(type) == QUANT_GROUP ? at.head : 0) + 63) / 64;
}

/* Inputs [k0, k0 + k) of a panel in ascending order, halves [from, to) of its outputs, widened in registers: `USE` for each input, with
 * w[h]. Reads the panel once, as one stream; a weight takes four instructions or so, so that memory is the limit of a single row where
 * there are two threads to it. */
#define QUANT_LOOP(type, from, to, ahead, USE)                                                                                  \
	const int size = dtype_block(type);                                                                              \
	for (int at = k0; at < k0 + k; at += QUANT_GROUP) {                                                              \
		const char *block = (const char *)panel + (size_t)(at / size) * (size_t)quant_layout(type).bytes;        \
		const char *group = block + quant_layout(type).head + at % size / QUANT_GROUP * quant_layout(type).group; \
		v16 scale[2] = {v_zero(), v_zero()}, min[2] = {v_zero(), v_zero()};                                      \
		w16 low[2] = {w_zero(), w_zero()}, high[2] = {w_zero(), w_zero()};                                       \
		for (int octet = 0; octet < 4; octet++) {                                                                \
			if (ahead)                                                                                       \
				for (int line = octet; line < quant_lines(type); line += 4) PREFETCH(group + QUANT_AHEAD_BYTES + line * 64); \
			for (int h = (from); h < (to); h++) {                                                            \
				if (octet == 0 || (type == DTYPE_Q6_K && octet == 2))                                    \
					quant_scales(type, block, group, octet, h, &scale[h], &min[h]);                  \
				quant_words(type, group, octet, h, &low[h], &high[h]);                                   \
			}                                                                                                \
			const char *bytes = group + octet * 8 * PANEL; /* Q8_0 */                                        \
			UNROLL_OCTET for (int i = 0; i < 8; i++)                                                         \
			{                                                                                                \
				v16 w[2];                                                                                \
				for (int h = (from); h < (to); h++)                                                      \
					w[h] = quant_weight(type, bytes + h * LANES, i, low[h], high[h], scale[h], min[h]); \
				USE                                                                                      \
			}                                                                                                \
		}                                                                                                        \
	}

#define QUANT_FMA(n)                                     \
	UNROLL_ROWS for (int r = 0; r < (n); r++)        \
	{                                                \
		v16 b = v_set(xi[r]);                    \
		a[r][0] = v_fma(b, w[0], a[r][0]);       \
		a[r][1] = v_fma(b, w[1], a[r][1]);       \
	}                                                \
	xi += (n);

#define QUANT_FMA_HALF(n, h)                             \
	UNROLL_ROWS for (int r = 0; r < (n); r++) a[r] = v_fma(v_set(xi[r]), w[h], a[r]); \
	xi += (n);

#define QUANT_STORE                         \
	v_store(out, w[0]);                 \
	v_store(out + LANES, w[1]);         \
	out += PANEL;

#define QUANT_CHAIN(type, n)                                             \
	{                                                                \
		v16 a[n][2];                                             \
		const float *xi = x;                                     \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                \
		{                                                        \
			a[r][0] = v_load(acc + r * PANEL);               \
			a[r][1] = v_load(acc + r * PANEL + LANES);       \
		}                                                        \
		QUANT_LOOP(type, 0, 2, (n) >= QUANT_AHEAD_ROWS, QUANT_FMA(n))                     \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                \
		{                                                        \
			v_store(acc + r * PANEL, a[r][0]);               \
			v_store(acc + r * PANEL + LANES, a[r][1]);       \
		}                                                        \
	}

/* More rows, one half of the outputs after the other: half the accumulators a row, so that twice the rows share what a weight costs. The
 * second half comes from the cache. */
#define QUANT_CHAIN_HALF(type, n, h)                                     \
	{                                                                \
		v16 a[n];                                                \
		const float *xi = x;                                     \
		UNROLL_ROWS for (int r = 0; r < (n); r++) a[r] = v_load(acc + r * PANEL + (h) * LANES); \
		QUANT_LOOP(type, h, (h) + 1, (h) == 0, QUANT_FMA_HALF(n, h))       \
		UNROLL_ROWS for (int r = 0; r < (n); r++) v_store(acc + r * PANEL + (h) * LANES, a[r]); \
	}

#define QUANT_CHAIN_HALVES(type, n) \
	QUANT_CHAIN_HALF(type, n, 0)  \
	QUANT_CHAIN_HALF(type, n, 1)

#define QUANT_TYPE(type)                                                                                         \
	static void chain_##type(float *acc, const void *panel, const float *x, int k0, int k, int rows)         \
	{                                                                                                        \
		switch (rows) { QUANT_CASES(DTYPE_##type) }                                                      \
	}                                                                                                        \
	static void widen_##type(float *out, const void *panel, int k0, int k)                                   \
	{                                                                                                        \
		QUANT_LOOP(DTYPE_##type, 0, 2, 0, QUANT_STORE)                                                      \
	}
QUANT_TYPES(QUANT_TYPE)

/* --- rows ------------------------------------------------------------------------------------------------------------- */

static void rms_norm(float *out, const float *x, const float *weight, int n, float eps)
{
	v16 sum = v_zero();
	int i = 0;
	for (; i + LANES <= n; i += LANES) {
		v16 a = v_load(x + i);
		sum = v_fma(a, a, sum);
	}
	if (i < n) { /* absent lanes add 0 * 0 to a sum that is never -0 */
		v16 a = v_load_first(x + i, n - i);
		sum = v_fma(a, a, sum);
	}
	float mean = lane_sum(sum) / (float)n;
	v16 r = v_set(1.0f / sqrtf(mean + eps));
	for (i = 0; i + LANES <= n; i += LANES) v_store(out + i, v_mul(v_mul(v_load(x + i), r), v_load(weight + i)));
	if (i < n)
		v_store_first(out + i, v_mul(v_mul(v_load_first(x + i, n - i), r), v_load_first(weight + i, n - i)), n - i);
}

static void rope(float *x, const float *cosine, const float *sine, int half)
{
	for (int i = 0; i < half; i += LANES) {
		int n = half - i < LANES ? half - i : LANES;
		v16 a = v_load_first(x + i, n), b = v_load_first(x + half + i, n);
		v16 c = v_load_first(cosine + i, n), s = v_load_first(sine + i, n);
		v_store_first(x + i, v_fma(a, c, v_negate(v_mul(b, s))), n);
		v_store_first(x + half + i, v_fma(b, c, v_mul(a, s)), n);
	}
}

VEC v16 silu_times(v16 gate, v16 up)
{
	return v_mul(v_div(gate, v_add(v_set(1.0f), v_exp(v_negate(gate)))), up);
}

static void swiglu(float *out, const float *gate, const float *up, int n)
{
	int i = 0;
	for (; i + LANES <= n; i += LANES) v_store(out + i, silu_times(v_load(gate + i), v_load(up + i)));
	if (i < n) v_store_first(out + i, silu_times(v_load_first(gate + i, n - i), v_load_first(up + i, n - i)), n - i);
}

VEC v16 gelu_times(v16 g, v16 up)
{
	v16 u = v_mul(v_set(GELU_ROOT), v_fma(v_mul(v_set(GELU_CUBE), g), v_mul(g, g), g));
	return v_mul(v_div(g, v_add(v_set(1.0f), v_exp(v_negate(u)))), up);
}

static void geglu(float *out, const float *g, const float *up, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(out + i, gelu_times(v_load_first(g + i, m), v_load_first(up + i, m)), m);
	}
}

static void softcap(float *x, float cap, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(x + i, v_softcap(v_load_first(x + i, m), v_set(cap)), m);
	}
}

/* Two vectors a turn, so that the small program's branches are shared; `n` <= 2 * LANES valid elements at column i. */
VEC void tree_columns(const struct tree_args *args, int i, int n0, int n1)
{
	v16 stack[SUMTREE_MAX_DEPTH][2];
	int depth = 0;
	for (int s = 0; s < args->sources; s++) {
		const float *source = args->source[s] + args->offset + i;
		v16 a = v_load_first(source, n0), b = v_load_first(source + LANES, n1);
		for (int m = args->merges[s]; m > 0; m--) {
			depth--;
			a = v_add(stack[depth][0], a);
			b = v_add(stack[depth][1], b);
		}
		stack[depth][0] = a;
		stack[depth++][1] = b;
	}
	v16 a = stack[0][0], b = stack[0][1];
	if (args->bias) {
		a = v_add(a, v_load_first(args->bias + i, n0));
		b = v_add(b, v_load_first(args->bias + i + LANES, n1));
	}
	if (args->residual) {
		a = v_add(v_load_first(args->residual + i, n0), a);
		b = v_add(v_load_first(args->residual + i + LANES, n1), b);
	}
	v_store_first(args->out + i, a, n0);
	v_store_first(args->out + i + LANES, b, n1);
}

static void tree_sum(const struct tree_args *args)
{
	int i = 0;
	for (; i + 2 * LANES <= args->n; i += 2 * LANES) tree_columns(args, i, LANES, LANES);
	int left = args->n - i;
	if (left) tree_columns(args, i, left < LANES ? left : LANES, left < LANES ? 0 : left - LANES);
}

static void rescale(float *acc, const float *part, float a, float b, int n)
{
	for (int i = 0; i < n; i += LANES)
		v_store(acc + i, v_fma(v_load(acc + i), v_set(a), v_mul(v_load(part + i), v_set(b))));
}

static void divide(float *out, const float *acc, float by, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(out + i, v_div(v_load_first(acc + i, m), v_set(by)), m);
	}
}

static void exponential(float *out, const float *x, int n)
{
	for (int i = 0; i < n; i += LANES) {
		int m = n - i < LANES ? n - i : LANES;
		v_store_first(out + i, v_exp(v_load_first(x + i, m)), m);
	}
}

static float read_sum(const float *p, size_t n)
{
	v16 sum[8];
	for (int c = 0; c < 8; c++) sum[c] = v_zero();
	for (size_t i = 0; i < n; i += 8 * LANES)
		for (int c = 0; c < 8; c++) sum[c] = v_add(sum[c], v_load(p + i + (size_t)c * LANES));
	for (int c = 1; c < 8; c++) sum[0] = v_add(sum[0], sum[c]);
	return lane_sum(sum[0]);
}

static float fma_run(long steps)
{
	v16 a[FMA_CHAINS];
	for (int c = 0; c < FMA_CHAINS; c++) a[c] = v_set((float)c);
	for (long i = 0; i < steps; i++)
		for (int c = 0; c < FMA_CHAINS; c++) a[c] = v_fma(a[c], v_set(0.5f), v_set(1.0f));
	for (int c = 1; c < FMA_CHAINS; c++) a[0] = v_add(a[0], a[c]);
	return lane_sum(a[0]);
}

/* --- attention -------------------------------------------------------------------------------------------------------- */

/* Memory is asked for one phase ahead, into the second-level cache: the values of a group while its scores are computed, the next
 * block's keys while values are summed. Both phases touch the same number of lines, so one keeps pace with the other. (The
 * hardware's prefetch alone begins anew in each block, and nearer targets come too late when few rows share the work.) */

/* Scores of all rows for the groups g and g2 (lanes = positions; g2 = g where only one is wanted). Keys are read once for the
 * whole tile, along d, 64 bytes a group. */
#define SCORES_BODY(n)                                                           \
	{                                                                        \
		v16 a[n][2];                                                     \
		UNROLL_ROWS for (int r = 0; r < (n); r++) a[r][0] = a[r][1] = v_zero(); \
		const float *k0 = args->k[g], *k1 = args->k[g2], *q = args->q;   \
		const float *v0 = args->v[g], *v1 = args->v[g2];                 \
		for (int d = 0; d < args->head_dim; d++, q++) {                  \
			v16 w0 = v_load(k0), w1 = v_load(k1);                    \
			PREFETCH(v0 + (size_t)d * LANES);                        \
			PREFETCH(v1 + (size_t)d * LANES);                        \
			k0 += args->k_stride;                                    \
			k1 += args->k_stride;                                    \
			UNROLL_ROWS for (int r = 0; r < (n); r++)                \
			{                                                        \
				v16 b = v_set(q[r * TILE_STRIDE]);               \
				a[r][0] = v_fma(b, w0, a[r][0]);                 \
				a[r][1] = v_fma(b, w1, a[r][1]);                 \
			}                                                        \
		}                                                                \
		v16 scale = v_set(args->scale);                                  \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                        \
		{                                                                \
			v_store(args->p + r * TILE_STRIDE + g2 * KV_GROUP, v_mul(a[r][1], scale)); \
			v_store(args->p + r * TILE_STRIDE + g * KV_GROUP, v_mul(a[r][0], scale));  \
		}                                                                \
	}

static void scores(const struct attend_args *args, int g, int g2)
{
	switch (args->rows) { ATTEND_CASES(SCORES_BODY) }
}

VEC int clamp16(int x)
{
	return x < 0 ? 0 : x > 16 ? 16 : x;
}

/* Scores of one row to weights; invisible positions of its groups become 0. */
static void weights(const struct attend_args *args, int row)
{
	float *p = args->p + row * TILE_STRIDE;
	int lo = args->lo[row], hi = args->hi[row];
	v16 low = v_set(-HUGE_VALF), max = low, sum = v_zero();
	for (int j = lo / LANES * LANES; args->softcap > 0.0f && j < hi; j += LANES) v_store(p + j, v_softcap(v_load(p + j), v_set(args->softcap)));
	for (int j = lo / LANES * LANES; j < hi; j += LANES) {
		m16 seen = m_range(clamp16(lo - j), clamp16(hi - j));
		max = v_max(v_select(seen, v_load(p + j), low), max);
	}
	float top = lane_max(max);
	for (int j = lo / LANES * LANES; j < hi; j += LANES) {
		m16 seen = m_range(clamp16(lo - j), clamp16(hi - j));
		v16 e = v_select(seen, v_exp(v_sub(v_load(p + j), v_set(top))), v_zero());
		v_store(p + j, e);
		sum = v_add(sum, e); /* + 0 for the invisible: the sum is never -0 */
	}
	args->max[row] = top;
	args->sum[row] = lane_sum(sum);
}

/* acc[r][col..] += p[r][j] * v[j][col..] for j in [j0, j1) ascending, rows [row, row + n), 16 * vecs columns. Values are read once
 * for the tile; weights are broadcast from p, whose row stride is a constant of the address. */
#define VALUES_LOOP(n, vecs)                                                     \
	{                                                                        \
		v16 a[n][vecs];                                                  \
		float *acc = args->acc + row * TILE_STRIDE + col;                \
		const float *p = args->p + row * TILE_STRIDE;                    \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                        \
			for (int c = 0; c < (vecs); c++) a[r][c] = v_load(acc + r * TILE_STRIDE + c * LANES); \
		for (int j = j0; j < j1;) {                                      \
			int end = (j / KV_GROUP + 1) * KV_GROUP < j1 ? (j / KV_GROUP + 1) * KV_GROUP : j1; \
			const float *v = args->v[j / KV_GROUP] + (size_t)(j % KV_GROUP) * args->v_stride + col; \
			const float *k = args->next_k[j / KV_GROUP] + (size_t)(col + 2 * (j % KV_GROUP)) * args->k_stride; \
			for (; j < end; j++, v += args->v_stride, k += 2 * args->k_stride) { \
				v16 w[vecs];                                     \
				PREFETCH(k);                                     \
				PREFETCH(k + args->k_stride);                    \
				for (int c = 0; c < (vecs); c++) w[c] = v_load(v + c * LANES); \
				UNROLL_ROWS for (int r = 0; r < (n); r++)        \
				{                                                \
					v16 b = v_set(p[r * TILE_STRIDE + j]);   \
					for (int c = 0; c < (vecs); c++) a[r][c] = v_fma(b, w[c], a[r][c]); \
				}                                                \
			}                                                        \
		}                                                                \
		UNROLL_ROWS for (int r = 0; r < (n); r++)                        \
			for (int c = 0; c < (vecs); c++) v_store(acc + r * TILE_STRIDE + c * LANES, a[r][c]); \
	}

#define VALUES_BODY(n)                                                           \
	{                                                                        \
		int col = 0;                                                     \
		for (; col + 2 * LANES <= args->v_stride; col += 2 * LANES) VALUES_LOOP(n, 2) \
		if (col < args->v_stride) VALUES_LOOP(n, 1)                      \
	}

static void values(const struct attend_args *args, int row, int rows, int j0, int j1)
{
	if (j0 >= j1) return;
	switch (rows) { ATTEND_CASES(VALUES_BODY) }
}

/* Positions that all rows see are done as a tile; those at the ragged ends row by row, because a weight of 0 would not be the same
 * as no term (0 * NaN, and -0 + 0). */
static void attend(const struct attend_args *args)
{
	int lo = args->lo[0], hi = args->hi[0], all_lo = lo, all_hi = hi;
	for (int r = 1; r < args->rows; r++) {
		if (args->lo[r] < lo) lo = args->lo[r];
		if (args->lo[r] > all_lo) all_lo = args->lo[r];
		if (args->hi[r] > hi) hi = args->hi[r];
		if (args->hi[r] < all_hi) all_hi = args->hi[r];
	}
	int last = (hi - 1) / KV_GROUP;
	for (int g = lo / KV_GROUP; g <= last; g += 2) scores(args, g, g < last ? g + 1 : g);
	for (int r = 0; r < args->rows; r++) {
		weights(args, r);
		for (int d = 0; d < args->v_stride; d += LANES) v_store(args->acc + r * TILE_STRIDE + d, v_zero());
	}
	if (all_lo >= all_hi) {
		for (int r = 0; r < args->rows; r++) values(args, r, 1, args->lo[r], args->hi[r]);
		return;
	}
	for (int r = 0; r < args->rows; r++) values(args, r, 1, args->lo[r], all_lo);
	values(args, 0, args->rows, all_lo, all_hi);
	for (int r = 0; r < args->rows; r++) values(args, r, 1, all_hi, args->hi[r]);
}
