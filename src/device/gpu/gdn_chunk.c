/* gdn_chunk.c: which steps of the gated delta net go in chunks, and where their intermediate results lie (gdn_chunk.h). */
#include "device/gpu/gdn_chunk.h"

#include "device/device.h"

#define ALIGN ((size_t)256)

#ifdef GPU_CUDA
const gdn_chunk_launcher gdn_launch_chunks = gdn_chunk_launch;
#else
const gdn_chunk_launcher gdn_launch_chunks = NULL;
#endif

static size_t take(size_t *end, size_t count, size_t bytes)
{
	const size_t at = *end;
	*end = at + (count * bytes + ALIGN - 1) / ALIGN * ALIGN;
	return at;
}

struct gdn_workspace gdn_workspace(int rows, int seqs, int k_heads, int v_heads)
{
	struct gdn_workspace w = {.places = rows / GDN_CHUNK + seqs};
	const size_t k = (size_t)w.places * (size_t)k_heads, v = (size_t)w.places * (size_t)v_heads;
	w.keys = take(&w.bytes, k, 2 * GDN_CHUNK * GDN_CHUNK_DIM);
	w.queries = take(&w.bytes, k, 2 * GDN_CHUNK * GDN_CHUNK_DIM);
	w.values = take(&w.bytes, v, 2 * GDN_CHUNK * GDN_CHUNK_DIM);
	w.inverse = take(&w.bytes, v, 2 * GDN_CHUNK * GDN_CHUNK);
	w.pairs = take(&w.bytes, v, 2 * GDN_CHUNK * GDN_CHUNK);
	w.rates = take(&w.bytes, v, GDN_RATES * sizeof(float));
	w.peaks = take(&w.bytes, v, sizeof(float));
	return w;
}

size_t gpu_gdn_workspace(const struct stream_options *options)
{
	if (!gdn_launch_chunks || options->gdn_k_dim != GDN_CHUNK_DIM || options->gdn_v_dim != GDN_CHUNK_DIM || options->max_rows < GDN_CHUNK) return 0;
	return gdn_workspace(options->max_rows, options->max_seqs, options->gdn_k_heads, options->gdn_v_heads).bytes;
}

static bool aligned(const struct tensor *t)
{
	return (uintptr_t)t->data % 16 == 0 && t->row_stride % 8 == 0;
}

bool gdn_wants_chunks(const struct gdn_args *args, size_t workspace_bytes)
{
	const struct gdn_layout *l = &args->cache->layout;
	const struct step_rows *rows = args->rows;
	if (rows->max_seq_rows < GDN_CHUNK || (l->dtype != DTYPE_F16 && l->dtype != DTYPE_BF16)) return false;
	if (l->k_dim != GDN_CHUNK_DIM || l->v_dim != GDN_CHUNK_DIM || l->conv_kernel > GDN_CHUNK_TAPS) return false;
	if ((uintptr_t)args->conv % 16 || (uintptr_t)args->norm % 16) return false;
	return aligned(&args->qkvz) && aligned(&args->out) && gdn_workspace(rows->rows, rows->seqs, l->k_heads, l->v_heads).bytes <= workspace_bytes;
}
