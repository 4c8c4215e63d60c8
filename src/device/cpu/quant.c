/* quant.c: block types in and out of panels, by plain C. See quant.h for both layouts. */
#include "device/cpu/quant.h"

#include <string.h>

#define GROUPS_K 8 /* of QUANT_GROUP inputs in a block of the K types */

static float half_at(const unsigned char *part, int lane)
{
	uint16_t bits;
	memcpy(&bits, part + 2 * lane, 2);
	return f16_to_f32(bits);
}

static uint32_t word_at(const unsigned char *part, int row, int lane)
{
	uint32_t word;
	memcpy(&word, part + 4 * (row * PANEL + lane), 4);
	return word;
}

/* q without its offset; k counts within the block. */
static int stored_q(enum dtype dtype, const unsigned char *block, struct quant_layout at, int k, int lane)
{
	if (dtype == DTYPE_Q8_0) return (int8_t)block[at.low + k * PANEL + lane];
	int q = (int)(word_at(block + at.low, k / 8, lane) >> (4 * (k % 8)) & 15);
	if (dtype == DTYPE_Q6_K) return q | (int)(word_at(block + at.high, k / 16, lane) >> (2 * (k % 16)) & 3) << 4;
	if (at.high) return q | (int)(word_at(block + at.high, k / 32, lane) >> (k % 32) & 1) << 4;
	return q;
}

float quant_element(enum dtype dtype, const void *panel, int k, int lane)
{
	struct quant_layout at = quant_layout(dtype);
	int size = dtype_block(dtype), group = k % size / QUANT_GROUP;
	const unsigned char *block = (const unsigned char *)panel + (size_t)(k / size) * (size_t)at.bytes;
	float scale = half_at(block, lane), q = (float)(stored_q(dtype, block, at, k % size, lane) - quant_offset(dtype));
	if (dtype == DTYPE_Q6_K) scale = scale * (float)(int8_t)block[at.scales + k % size / 16 * PANEL + lane];
	else if (at.scales) scale = scale * (float)block[at.scales + group * PANEL + lane];
	if (!at.min) return scale * q;
	float min = half_at(block + at.min, lane);
	if (at.mins) min = -(min * (float)block[at.mins + group * PANEL + lane]);
	return fmaf(scale, q, min);
}

/* ---- from the checkpoint's blocks ---- */

/* Scale and min number `i` of the 12 bytes of Q4_K and Q5_K: six bits each, the high two of the last four apart. */
static void unpack_scale(const unsigned char *s, int i, unsigned char *scale, unsigned char *min)
{
	if (i < 4) {
		*scale = s[i] & 63;
		*min = s[i + 4] & 63;
		return;
	}
	*scale = (unsigned char)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
	*min = (unsigned char)(s[i + 4] >> 4 | (s[i] >> 6) << 4);
}

/* Where the parts of a stored block begin; scales of Q6_K apart. */
struct stored {
	const unsigned char *low, *high;
};

static struct stored stored_parts(enum dtype dtype, const unsigned char *b)
{
	switch (dtype) {
	case DTYPE_Q4_0: return (struct stored){.low = b + 2};
	case DTYPE_Q4_1: return (struct stored){.low = b + 4};
	case DTYPE_Q5_0: return (struct stored){.high = b + 2, .low = b + 6};
	case DTYPE_Q5_1: return (struct stored){.high = b + 4, .low = b + 8};
	case DTYPE_Q4_K: return (struct stored){.low = b + 16};
	case DTYPE_Q5_K: return (struct stored){.high = b + 16, .low = b + 48};
	case DTYPE_Q6_K: return (struct stored){.low = b, .high = b + 128};
	default: return (struct stored){.low = b + 2};
	}
}

/* The 32 low halves of group g, one a byte. */
static void low_of_group(enum dtype dtype, struct stored s, int g, unsigned char q[QUANT_GROUP])
{
	if (dtype == DTYPE_Q6_K) { /* 64 bytes hold four groups: low halves of two, then high halves of two */
		const unsigned char *from = s.low + 64 * (g / 4) + 32 * (g % 2);
		for (int i = 0; i < QUANT_GROUP; i++) q[i] = from[i] >> (g % 4 / 2 * 4) & 15;
	} else if (dtype_block(dtype) > QUANT_GROUP) {
		for (int i = 0; i < QUANT_GROUP; i++) q[i] = s.low[32 * (g / 2) + i] >> (g % 2 * 4) & 15;
	} else {
		for (int i = 0; i < QUANT_GROUP / 2; i++) {
			q[i] = s.low[i] & 15;
			q[i + QUANT_GROUP / 2] = s.low[i] >> 4;
		}
	}
}

/* Eight bytes of four bits to one word, the first lowest. */
static uint32_t pack_eight(const unsigned char *q)
{
	uint64_t x;
	memcpy(&x, q, sizeof x);
	x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
	x = (x | x >> 8) & 0x0000ffff0000ffffu;
	return (uint32_t)(x | x >> 16);
}

static void put_word(unsigned char *part, int row, int lane, uint32_t word)
{
	memcpy(part + 4 * (row * PANEL + lane), &word, 4);
}

static void pack_high(enum dtype dtype, struct stored s, int g, unsigned char *high, int lane)
{
	if (dtype == DTYPE_Q6_K) {
		for (int half = 0; half < 2; half++) {
			uint32_t word = 0;
			for (int i = 0; i < 16; i++) word |= (uint32_t)(s.high[32 * (g / 4) + 16 * half + i] >> (2 * (g % 4)) & 3) << (2 * i);
			put_word(high, 2 * g + half, lane, word);
		}
		return;
	}
	uint32_t word = 0;
	if (dtype == DTYPE_Q5_K)
		for (int i = 0; i < QUANT_GROUP; i++) word |= (uint32_t)(s.high[i] >> g & 1) << i;
	else memcpy(&word, s.high, 4);
	put_word(high, g, lane, word);
}

void quant_pack(enum dtype dtype, void *panel_block, int lane, const void *stored)
{
	struct quant_layout at = quant_layout(dtype);
	unsigned char *out = panel_block;
	const unsigned char *in = stored;
	struct stored s = stored_parts(dtype, in);
	memcpy(out + 2 * lane, dtype == DTYPE_Q6_K ? in + 208 : in, 2);
	if (at.min) memcpy(out + at.min + 2 * lane, in + 2, 2);
	if (dtype == DTYPE_Q8_0) {
		for (int i = 0; i < QUANT_GROUP; i++) out[at.low + i * PANEL + lane] = s.low[i];
		return;
	}
	for (int g = 0; g < dtype_block(dtype) / QUANT_GROUP; g++) {
		unsigned char q[QUANT_GROUP];
		low_of_group(dtype, s, g, q);
		for (int w = 0; w < QUANT_GROUP / 8; w++) put_word(out + at.low, g * (QUANT_GROUP / 8) + w, lane, pack_eight(q + 8 * w));
		if (at.high) pack_high(dtype, s, g, out + at.high, lane);
		if (at.mins) unpack_scale(in + 4, g, &out[at.scales + g * PANEL + lane], &out[at.mins + g * PANEL + lane]);
	}
	if (dtype == DTYPE_Q6_K)
		for (int i = 0; i < 2 * GROUPS_K; i++) out[at.scales + i * PANEL + lane] = in[192 + i];
}

/* [begin, end) of a panel block is an array [..][PANEL] of `unit` bytes. */
static void copy_part(unsigned char *out, const unsigned char *in, int begin, int end, int unit, int lane)
{
	for (int at = begin + lane * unit; at < end; at += PANEL * unit) memcpy(out + at, in + at, (size_t)unit);
}

void quant_copy_lane(enum dtype dtype, void *panel_block, const void *from, int lane)
{
	struct quant_layout at = quant_layout(dtype);
	int words = at.high ? at.high : at.low, bytes = at.scales ? at.scales : words; /* where words and single bytes begin */
	copy_part(panel_block, from, 0, bytes, 2, lane);
	copy_part(panel_block, from, bytes, words, 1, lane);
	copy_part(panel_block, from, words, at.bytes, dtype == DTYPE_Q8_0 ? 1 : 4, lane);
}
