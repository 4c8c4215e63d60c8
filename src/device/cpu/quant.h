/* quant.h: weights of block types in panels: where the parts of a panel block lie, and what a weight is.
 *
 * A panel block holds the same `block` consecutive inputs of PANEL outputs, in as many bytes as the checkpoint gives them (up to the
 * 6-bit scales of Q4_K and Q5_K, which are kept as bytes). First, for all of it, arrays over outputs:
 *
 *   scale    f16 [PANEL]           d
 *   min      f16 [PANEL]           m (Q4_1, Q5_1), dmin (Q4_K, Q5_K)
 *
 * then, for each QUANT_GROUP inputs in turn, so that a chain reads one stream, arrays [n][PANEL]:
 *
 *   scales   u8 [1] (Q4_K, Q5_K), i8 [2] (Q6_K: one for each half of the group)
 *   mins     u8 [1] (Q4_K, Q5_K)
 *   high     u32 [1] fifth bits (Q5_x), u32 [2] fifth and sixth, 16 inputs a word (Q6_K); lowest bits first
 *   low      u32 [4] four low bits, 8 inputs a word, lowest first; Q8_0: i8 [32]
 *
 * A vector of words thus gives the same input of 16 outputs at each shift. The value, f32, is what the format's reference gives:
 * d q (Q8_0), d (q - 8), d q + m, d (q - 16), (d s) q - (dmin n) (Q4_K, Q5_K), (d s) (q - 32) (Q6_K). Products of scales and q are
 * exact in f32, so that the only rounding is that of the last operation, which an fma has in common with a multiply and an add.
 */
#ifndef TANDEM_DEVICE_CPU_QUANT_H
#define TANDEM_DEVICE_CPU_QUANT_H

#include <math.h>

#include "device/cpu/kernels.h"

struct quant_layout {
	int min;            /* offset in the block; 0: none */
	int head, group;    /* bytes before the first group, and of a group */
	int scales, mins;   /* bytes of these in a group, which they begin; 0: none */
	int high_bits;      /* above the four low ones */
	int high, low;      /* offsets in a group */
	int bytes;          /* of a panel block; a multiple of 64 */
};

static inline struct quant_layout quant_layout(enum dtype dtype)
{
	switch (dtype) {
	case DTYPE_Q8_0: return (struct quant_layout){.head = 64, .group = 1024, .bytes = 1088};
	case DTYPE_Q4_0: return (struct quant_layout){.head = 64, .group = 512, .bytes = 576};
	case DTYPE_Q4_1: return (struct quant_layout){.min = 64, .head = 128, .group = 512, .bytes = 640};
	case DTYPE_Q5_0: return (struct quant_layout){.head = 64, .group = 640, .high_bits = 1, .low = 128, .bytes = 704};
	case DTYPE_Q5_1: return (struct quant_layout){.min = 64, .head = 128, .group = 640, .high_bits = 1, .low = 128, .bytes = 768};
	case DTYPE_Q4_K: return (struct quant_layout){.min = 64, .head = 128, .group = 576, .scales = 32, .mins = 32, .low = 64, .bytes = 4736};
	case DTYPE_Q5_K:
		return (struct quant_layout){.min = 64, .head = 128, .group = 704, .scales = 32, .mins = 32, .high_bits = 1, .high = 64, .low = 192, .bytes = 5760};
	case DTYPE_Q6_K: return (struct quant_layout){.head = 64, .group = 832, .scales = 64, .high_bits = 2, .high = 64, .low = 320, .bytes = 6720};
	default: return (struct quant_layout){0};
	}
}

/* What is taken off q. */
static inline int quant_offset(enum dtype dtype)
{
	return dtype == DTYPE_Q4_0 ? 8 : dtype == DTYPE_Q5_0 ? 16 : dtype == DTYPE_Q6_K ? 32 : 0;
}

/* Input k of output `lane` of one panel (all its blocks). */
float quant_element(enum dtype dtype, const void *panel, int k, int lane);
/* Puts one output's block as the checkpoint stores it into lane `lane` of a panel block. */
void quant_pack(enum dtype dtype, void *panel_block, int lane, const void *stored);
/* The same lane of another panel block. */
void quant_copy_lane(enum dtype dtype, void *panel_block, const void *from, int lane);

#endif
