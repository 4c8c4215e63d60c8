/* moe_ways.h: the families of kernels that compute the experts, by name: what a stream can be told to take, and what it was told (device/variant.h).
 *
 * Names. Kernel: "default", "moe_flow", "moe_decode", "moe_grouped", "moe_tile". Mode of the last two: rows of a tile, "64 rows". Owner: the stream's; preferences
 * change between steps only. A stream that is to be invariant takes its own way whatever is preferred.
 */
#ifndef TANDEM_DEVICE_GPU_MOE_WAYS_H
#define TANDEM_DEVICE_GPU_MOE_WAYS_H

#include "device/gpu/context.h"
#include "device/variant.h"

/* X(enumerator, name) */
#define MOE_WAY_LIST(X)         \
	X(DEFAULT, "default")       \
	X(FLOW, "moe_flow")         \
	X(DECODE, "moe_decode")     \
	X(GROUPED, "moe_grouped")   \
	X(TILE, "moe_tile")

enum moe_way_kernel {
#define X(code, name) MOE_WAY_##code,
	MOE_WAY_LIST(X)
#undef X
	MOE_WAY_COUNT
};

struct moe_way {
	enum moe_way_kernel kernel;
	int tile_rows; /* GROUPED: 16, 32, 64 or 128; TILE: 16 or 64; else 0 */
};
struct moe_preferred {
	struct moe_key key; /* m: 0 */
	int m_low, m_high;
	struct moe_way way;
	struct variant name;
};

/* What the stream prefers for this, or NULL. The key's m counts. */
const struct moe_preferred *moe_preferred(const struct gpu_context *context, const struct moe_key *key);

/* device_ops: */
int gpu_moe_variants(struct stream *stream, const struct moe_key *key, struct variant *out, int max);
enum status gpu_moe_prefer(struct stream *stream, const struct moe_preference *list, int count, struct error *err);
void gpu_moe_ran(const struct stream *stream, struct variant *out);

#endif
