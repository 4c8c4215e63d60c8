/* quant.c: block types in and out of panels, by plain C. See quant.h for both layouts. */
#include "device/cpu/quant.h"

#include <string.h>

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

/* q without its offset; k counts within the group. */
static int stored_q(enum dtype dtype, const unsigned char *group, struct quant_layout at, int k, int lane)
{
	if (dtype == DTYPE_Q8_0) return (int8_t)group[k * PANEL + lane];
	int q = (int)(word_at(group + at.low, k / 8, lane) >> (4 * (k % 8)) & 15);
	if (at.high_bits == 2) return q | (int)(word_at(group + at.high, k / 16, lane) >> (2 * (k % 16)) & 3) << 4;
	if (at.high_bits == 1) return q | (int)(word_at(group + at.high, 0, lane) >> k & 1) << 4;
	return q;
}

float quant_element(enum dtype dtype, const void *panel, int k, int lane)
{
	struct quant_layout at = quant_layout(dtype);
	int size = dtype_block(dtype), within = k % QUANT_GROUP;
	const unsigned char *block = (const unsigned char *)panel + (size_t)(k / size) * (size_t)at.bytes;
	const unsigned char *group = block + at.head + k % size / QUANT_GROUP * at.group;
	float scale = half_at(block, lane), q = (float)(stored_q(dtype, group, at, within, lane) - quant_offset(dtype));
	if (dtype == DTYPE_Q6_K) scale = scale * (float)(int8_t)group[within / 16 * PANEL + lane];
	else if (at.scales) scale = scale * (float)group[lane];
	if (!at.min) return scale * q;
	float min = half_at(block + at.min, lane);
	if (at.mins) min = -(min * (float)group[at.scales + lane]);
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
			put_word(high, half, lane, word);
		}
		return;
	}
	uint32_t word = 0;
	if (dtype == DTYPE_Q5_K)
		for (int i = 0; i < QUANT_GROUP; i++) word |= (uint32_t)(s.high[i] >> g & 1) << i;
	else memcpy(&word, s.high, 4);
	put_word(high, 0, lane, word);
}

void quant_pack(enum dtype dtype, void *panel_block, int lane, const void *stored)
{
	struct quant_layout at = quant_layout(dtype);
	unsigned char *out = panel_block;
	const unsigned char *in = stored;
	struct stored s = stored_parts(dtype, in);
	memcpy(out + 2 * lane, dtype == DTYPE_Q6_K ? in + 208 : in, 2);
	if (at.min) memcpy(out + at.min + 2 * lane, in + 2, 2);
	for (int g = 0; g < dtype_block(dtype) / QUANT_GROUP; g++) {
		unsigned char q[QUANT_GROUP], *group = out + at.head + g * at.group;
		if (dtype == DTYPE_Q8_0) {
			for (int i = 0; i < QUANT_GROUP; i++) group[i * PANEL + lane] = s.low[i];
			return;
		}
		low_of_group(dtype, s, g, q);
		for (int w = 0; w < QUANT_GROUP / 8; w++) put_word(group + at.low, w, lane, pack_eight(q + 8 * w));
		if (at.high_bits) pack_high(dtype, s, g, group + at.high, lane);
		if (at.mins) unpack_scale(in + 4, g, &group[lane], &group[at.scales + lane]);
		for (int i = 0; dtype == DTYPE_Q6_K && i < 2; i++) group[i * PANEL + lane] = in[192 + 2 * g + i];
	}
}

/* `bytes` from `from` on are an array [..][PANEL] of `unit` bytes. */
static void copy_part(unsigned char *out, const unsigned char *in, int from, int bytes, int unit, int lane)
{
	for (int at = from + lane * unit; at < from + bytes; at += PANEL * unit) memcpy(out + at, in + at, (size_t)unit);
}

void quant_copy_lane(enum dtype dtype, void *panel_block, const void *from, int lane)
{
	struct quant_layout at = quant_layout(dtype);
	copy_part(panel_block, from, 0, at.head, 2, lane);
	for (int begin = at.head; begin < at.bytes; begin += at.group) {
		int bytes = at.scales + at.mins; /* these are single */
		copy_part(panel_block, from, begin, bytes, 1, lane);
		copy_part(panel_block, from, begin + bytes, at.group - bytes, dtype == DTYPE_Q8_0 ? 1 : 4, lane);
	}
}
