/* vec_avx2.h: 16 f32 lanes as two 256-bit registers, for kernels_vec.h. Each function is one IEEE operation per lane. */
#ifndef TANDEM_DEVICE_CPU_VEC_AVX2_H
#define TANDEM_DEVICE_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define VEC_NAME "avx2"
#define VEC_LINEAR_ROWS 2 /* 8 accumulators, 4 weights, broadcasts of 16 registers */
#define VEC_ATTEND_ROWS 3 /* 12 accumulators, 1 key, 3 broadcasts */
#define VEC_QUANT_ROWS 2 /* beyond, accumulators, scales and words do not fit */
#define QUANT_CASES(type) QUANT_CASE(1, type) QUANT_CASE(2, type)
#define VEC_DELTA 2 /* 8 sums and changes, 3 or 4 broadcasts, 2 temporaries */
#define FMA_CHAINS 6 /* independent v16 that keep all multipliers busy */

typedef struct { __m256 lo, hi; } v16;
typedef struct { __m256 lo, hi; } m16; /* all bits of a lane set or none */

typedef struct { __m256i lo, hi; } w16; /* 16 words */

#define VEC static inline __attribute__((always_inline))
#define BOTH(expression_lo, expression_hi) ((v16){(expression_lo), (expression_hi)})

VEC v16 v_zero(void) { return BOTH(_mm256_setzero_ps(), _mm256_setzero_ps()); }
VEC v16 v_set(float x) { return BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
VEC v16 v_load(const float *p) { return BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
VEC v16 v_add(v16 a, v16 b) { return BOTH(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
VEC v16 v_sub(v16 a, v16 b) { return BOTH(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
VEC v16 v_mul(v16 a, v16 b) { return BOTH(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
VEC v16 v_div(v16 a, v16 b) { return BOTH(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
VEC v16 v_max(v16 a, v16 b) { return BOTH(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); } /* a > b ? a : b */
VEC v16 v_fma(v16 a, v16 b, v16 c) { return BOTH(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)); }
VEC void v_store(float *p, v16 a)
{
	_mm256_storeu_ps(p, a.lo);
	_mm256_storeu_ps(p + 8, a.hi);
}
VEC v16 v_negate(v16 a)
{
	const __m256 sign = _mm256_set1_ps(-0.0f);
	return BOTH(_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign));
}

/* Lanes [lo, hi), 0 <= lo <= hi <= 16. */
VEC m16 m_range(int lo, int hi)
{
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), lane8 = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
	const __m256i from = _mm256_set1_epi32(lo - 1), to = _mm256_set1_epi32(hi);
	return (m16){_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane))),
	             _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane8, from), _mm256_cmpgt_epi32(to, lane8)))};
}
VEC m16 m_less(v16 a, v16 b) { return (m16){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
VEC m16 m_nan(v16 a) { return (m16){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)}; }
VEC v16 v_select(m16 m, v16 yes, v16 no) { return BOTH(_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)); }
VEC v16 v_load_first(const float *p, int n) /* others 0, not read */
{
	m16 m = m_range(0, n);
	return BOTH(_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)));
}
VEC void v_store_first(float *p, v16 a, int n)
{
	m16 m = m_range(0, n);
	_mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
	_mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

VEC __m256 widen8_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
VEC __m256 low_bf16(__m256i both) { return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)); }
VEC __m256 high_bf16(__m256i both) { return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u))); }

/* One k-step of a panel (kernels.h) to 2 x 16 outputs. */
VEC void v_load2_f16(const uint16_t *p, v16 *a, v16 *b)
{
	*a = BOTH(widen8_f16(p), widen8_f16(p + 8));
	*b = BOTH(widen8_f16(p + 16), widen8_f16(p + 24));
}
VEC void v_load2_bf16(const uint16_t *p, v16 *a, v16 *b)
{
	__m256i first = _mm256_loadu_si256((const __m256i *)p), second = _mm256_loadu_si256((const __m256i *)(p + 16));
	*a = BOTH(low_bf16(first), low_bf16(second));
	*b = BOTH(high_bf16(first), high_bf16(second));
}

VEC v16 v_load_f16(const uint16_t *p) { return BOTH(widen8_f16(p), widen8_f16(p + 8)); }
VEC v16 v_load_i8(const int8_t *p)
{
	return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
	            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}
VEC v16 v_load_u8(const uint8_t *p)
{
	return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))),
	            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}
VEC w16 w_zero(void) { return (w16){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
VEC w16 w_load(const void *p)
{
	return (w16){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
VEC w16 w_down(w16 a, int n) { return (w16){_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
VEC w16 w_up(w16 a, int n) { return (w16){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }

/* Words to numbers less `offset`: bits 0..3 of low; with bit 4 of high; with bits 4 and 5 of high. Others are anything. */
VEC __m256 less8(__m256i bits, int mask, float offset)
{
	return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(mask)), _mm256_set1_epi32((int)offset)));
}
VEC __m256i join8(__m256i low, __m256i high, int mask)
{
	const __m256i above = _mm256_set1_epi32(mask);
	return _mm256_or_si256(_mm256_andnot_si256(above, low), _mm256_and_si256(above, high));
}
VEC v16 v_bits4(w16 low, float offset) { return BOTH(less8(low.lo, 15, offset), less8(low.hi, 15, offset)); }
VEC v16 v_bits5(w16 low, w16 high, float offset)
{
	return BOTH(less8(join8(low.lo, high.lo, 16), 31, offset), less8(join8(low.hi, high.hi, 16), 31, offset));
}
VEC v16 v_bits6(w16 low, w16 high, float offset)
{
	return BOTH(less8(join8(low.lo, high.lo, 0x30), 63, offset), less8(join8(low.hi, high.hi, 0x30), 63, offset));
}

VEC __m256 add_exponent8(__m256 a, __m256 b)
{
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(b), 23)));
}
/* a with bits(b) << 23 added to its bits. */
VEC v16 v_add_exponent(v16 a, v16 b) { return BOTH(add_exponent8(a.lo, b.lo), add_exponent8(a.hi, b.hi)); }

VEC __m256 v_low(v16 a) { return a.lo; }
VEC __m256 v_high(v16 a) { return a.hi; }

#endif
