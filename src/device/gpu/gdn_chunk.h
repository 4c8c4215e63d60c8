/* gdn_chunk.h: the gated delta net's two ways: row by row (gdn.cu, any device), and in chunks of rows on tensor cores (gdn_chunk_cuda.cu,
 * gdn_scan_cuda.cu).
 *
 * The chunked form (after Yang et al., "Gated Delta Networks", 2024). Of a chunk's rows t, with G_t the sum of the logarithms of the decays up to row t, S the state
 * before the chunk, and u_t what row t adds along its key:
 *   (I + A) U = R,  A_ts = beta_t e^(G_t - G_s) k_t k_s (s < t),  R_t = beta_t (v_t - e^(G_t) S^T k_t)
 *   o_t = e^(G_t) S^T q_t + sum over s <= t of e^(G_t - G_s) (q_t k_s) u_s
 *   S' = e^(G_last) S + sum of e^(G_last - G_t) k_t u_t
 * All exponents are at most 0. What does not need S is made for all chunks at once; then a head's chunks follow each other.
 *
 * A chunk has GDN_CHUNK rows of one sequence, counted from the sequence's first row in the step; the last one may be short. Chunk c of sequence s lies in place
 * row_start[s] / GDN_CHUNK + s + c of the workspace: places of different sequences never meet, and some stay empty.
 */
#ifndef TANDEM_DEVICE_GPU_GDN_CHUNK_H
#define TANDEM_DEVICE_GPU_GDN_CHUNK_H

#include "device/gpu/context.h"

struct stream_options;

#define GDN_CHUNK 64    /* rows; sequences with fewer in a step go row by row */
#define GDN_CHUNK_DIM 128 /* of key heads and value heads, both */
#define GDN_CHUNK_TAPS 4  /* at most */
#define GDN_RATES (4 * GDN_CHUNK + 4) /* floats of a chunk and value head: see gdn_chunk_cuda.h */

/* Byte offsets into the stream's workspace; what lies there is of one call. Tiles are f16. */
struct gdn_workspace {
	size_t keys, queries; /* [place][k_heads] tiles of 64 x 128 */
	size_t values;        /* [place][v_heads] tiles of 64 x 128 */
	size_t inverse, pairs; /* [place][v_heads] tiles of 64 x 64: (I + A)^-1, and what u_s counts in o_t */
	size_t rates;         /* [place][v_heads][GDN_RATES] f32 */
	size_t peaks;         /* [place][v_heads] f32: the largest |v|, and how the tile of values is scaled */
	size_t bytes;
	int places;
};

#ifdef __cplusplus
extern "C" {
#endif
struct gdn_workspace gdn_workspace(int rows, int seqs, int k_heads, int v_heads);
/* What gdn may ask for on such a stream. */
size_t gpu_gdn_workspace(const struct stream_options *options);

/* Whether sequences of GDN_CHUNK rows and more go in chunks, where the device can: 16-bit types, heads of 128, up to 4 taps, rows at multiples of 16 bytes, room. The
 * arguments are checked. */
bool gdn_wants_chunks(const struct gdn_args *args, size_t workspace_bytes);

/* Output and states of the sequences with GDN_CHUNK rows or more; the others' are left alone. NULL: not on this device. */
typedef gpu_error (*gdn_chunk_launcher)(const struct gpu_context *context, const struct gdn_args *args);
extern const gdn_chunk_launcher gdn_launch_chunks;
gpu_error gdn_chunk_launch(const struct gpu_context *context, const struct gdn_args *args); /* CUDA's */

/* gpu_gdn; chunks false: row by row, for checks. */
enum status gpu_gdn_by(struct stream *stream, const struct gdn_args *args, bool chunks, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
