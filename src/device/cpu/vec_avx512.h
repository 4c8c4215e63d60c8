/* vec_avx512.h: 16 f32 lanes as one 512-bit register, for kernels_vec.h. Each function is one IEEE operation per lane. */
#ifndef TANDEM_DEVICE_CPU_VEC_AVX512_H
#define TANDEM_DEVICE_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VEC_NAME "avx512"
#define VEC_LINEAR_ROWS 14 /* 28 accumulators, 2 weights, 1 broadcast of 32 registers */
#define VEC_ATTEND_ROWS 14 /* the same */
/* Up to 4 rows 8 accumulators, 4 scales and mins, 4 words, 2 tables, 2 weights, 1 broadcast; beyond, by halves: up to 16 accumulators, half of
 * the rest, broadcasts from memory. */
#define VEC_QUANT_ROWS 16
#define QUANT_CASES(type)                                                                                   \
	QUANT_CASE(1, type) QUANT_CASE(2, type) QUANT_CASE(3, type) QUANT_CASE(4, type)                     \
	HALVES_CASE(5, type) HALVES_CASE(6, type) HALVES_CASE(7, type) HALVES_CASE(8, type)                 \
	HALVES_CASE(9, type) HALVES_CASE(10, type) HALVES_CASE(11, type) HALVES_CASE(12, type)              \
	HALVES_CASE(13, type) HALVES_CASE(14, type) HALVES_CASE(15, type) HALVES_CASE(16, type)
#define VEC_DELTA 8 /* whole rows of S with heads of 128: memory is read as one stream */
#define FMA_CHAINS 16 /* independent v16 that keep all multipliers busy */

typedef __m512 v16;
typedef __m512i w16; /* 16 words */
typedef __mmask16 m16;

#define VEC static inline __attribute__((always_inline))

VEC v16 v_zero(void) { return _mm512_setzero_ps(); }
VEC v16 v_set(float x) { return _mm512_set1_ps(x); }
VEC v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
VEC void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
VEC v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
VEC v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
VEC v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
VEC v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
VEC v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); } /* a > b ? a : b */
VEC v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
VEC v16 v_negate(v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }

/* Lanes [lo, hi), 0 <= lo <= hi <= 16. */
VEC m16 m_range(int lo, int hi) { return (m16)(((1u << hi) - 1) & ~((1u << lo) - 1)); }
VEC m16 m_less(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VEC m16 m_nan(v16 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
VEC v16 v_select(m16 m, v16 yes, v16 no) { return _mm512_mask_blend_ps(m, no, yes); }
VEC v16 v_load_first(const float *p, int n) { return _mm512_maskz_loadu_ps(m_range(0, n), p); } /* others 0, not read */
VEC void v_store_first(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, m_range(0, n), a); }

/* One k-step of a panel (kernels.h) to 2 x 16 outputs. */
VEC void v_load2_f16(const uint16_t *p, v16 *a, v16 *b)
{
	*a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
	*b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 16)));
}
VEC void v_load2_bf16(const uint16_t *p, v16 *a, v16 *b)
{
	__m512i both = _mm512_loadu_si512(p);
	*a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
	*b = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}

VEC v16 v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VEC v16 v_load_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
VEC v16 v_load_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
VEC w16 w_zero(void) { return _mm512_setzero_si512(); }
VEC w16 w_load(const void *p) { return _mm512_loadu_si512(p); }
VEC w16 w_down(w16 a, int n) { return n ? _mm512_srli_epi32(a, (unsigned)n) : a; }
VEC w16 w_up(w16 a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }

/* Words to numbers less `offset`: bits 0..3 of low; with bit 4 of high; with bits 4 and 5 of high. Others are anything. The first two look
 * the number up: an index takes no masking, and no conversion follows. */
VEC v16 v_bits4(w16 low, float offset)
{
	const v16 table = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v_set(offset));
	return _mm512_permutexvar_ps(low, table);
}
VEC v16 v_bits5(w16 low, w16 high, float offset)
{
	const v16 table = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v_set(offset));
	const w16 fifth = _mm512_set1_epi32(16);
	return _mm512_permutex2var_ps(table, _mm512_ternarylogic_epi32(low, high, fifth, 0xd8), v_add(table, v_set(16)));
}
VEC v16 v_bits6(w16 low, w16 high, float offset)
{
	w16 bits = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi32(0x30), 0xd8);
	return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(63)), _mm512_set1_epi32((int)offset)));
}

/* a with bits(b) << 23 added to its bits. */
VEC v16 v_add_exponent(v16 a, v16 b)
{
	return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(b), 23)));
}

VEC __m256 v_low(v16 a) { return _mm512_castps512_ps256(a); }
VEC __m256 v_high(v16 a) { return _mm512_extractf32x8_ps(a, 1); }

#endif
