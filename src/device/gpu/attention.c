/* attention.c: checks the arguments of attention and picks its kernels (attention.h). */
#include "device/gpu/attention.h"

#include "device/device.h"
#include "device/gpu/ways.h"

/* Blocks of the decode kernel that fill a multiprocessor. */
#define DECODE_BLOCKS 4

/* First that can is taken. */
static const struct attention_kernel *const decode_kernels[] = {
#ifdef GPU_CUDA
	&attention_decode_tensor,
#endif
	&attention_decode, NULL};
static const struct attention_kernel *const prefill_kernels[] = {
#ifdef GPU_CUDA
	&attention_prefill_wide, &attention_prefill_tensor,
#endif
	&attention_tile, NULL};

/* Those that know of soft caps. */
static const struct attention_kernel *const capped_decode_kernels[] = {&attention_decode, NULL};
static const struct attention_kernel *const capped_prefill_kernels[] = {
#ifdef GPU_CUDA
	&attention_prefill_tensor,
#endif
	&attention_tile, NULL};

const struct attention_kernel *const *attention_kernels(bool prefill)
{
	return prefill ? prefill_kernels : decode_kernels;
}

static const struct attention_kernel *const *candidates(bool prefill, const struct attention_params *p)
{
	if (p->cap_scale > 0) return prefill ? capped_prefill_kernels : capped_decode_kernels;
	return attention_kernels(prefill);
}

const struct attention_kernel *attention_optional(bool prefill)
{
	return prefill ? &attention_cudnn : NULL;
}

/* Splits of one sequence and KV head: enough blocks for the device, whatever the contexts' lengths. */
static int decode_splits(const struct gpu_props *props, bool invariant, int seqs, int kv_heads)
{
	if (invariant) return ATTENTION_CHUNKS;
	int splits = DECODE_BLOCKS * props->multiprocessors / (seqs * kv_heads);
	return splits < 1 ? 1 : splits > ATTENTION_MAX_SPLITS ? ATTENTION_MAX_SPLITS : splits;
}

static size_t partial_bytes(int seqs, int q_heads, int splits, int head_dim)
{
	return splits < 2 ? 0 : (size_t)seqs * (size_t)q_heads * (size_t)splits * (size_t)(head_dim + 2) * sizeof(float);
}

size_t gpu_attention_workspace(const struct stream_options *options, const struct gpu_props *props)
{
	size_t most = 0;
	for (int seqs = 1; seqs <= options->max_seqs || seqs == 1; seqs++) {
		/* One KV head has the most splits; its blocks are what all query heads share. */
		size_t bytes = partial_bytes(seqs, options->max_q_heads, decode_splits(props, options->invariant, seqs, 1), options->max_head_dim);
		if (bytes > most) most = bytes;
	}
	return most;
}

int gpu_attention_counters(const struct stream_options *options)
{
	const int64_t most = (int64_t)options->max_seqs * options->max_q_heads; /* a slice has at least one query head */
	return most > INT32_MAX ? INT32_MAX : (int)most;
}

static enum status check_tensor(const struct tensor *t, const struct attention_args *args, const char *what, struct error *err)
{
	const struct kv_layout *l = &args->cache->layout;
	TRY(tensor_expect(t, TENSOR_SHARDED, what, err));
	int64_t lanes = 16 / (int64_t)dtype_bytes(l->dtype);
	if (t->dtype != l->dtype)
		return FAIL(err, BAD_INPUT, "%s: %s over a cache of %s; one type is wanted", what, dtype_name(t->dtype), dtype_name(l->dtype));
	if (t->rows != args->rows->rows || t->cols != args->q_heads * l->head_dim)
		return FAIL(err, BAD_INPUT, "%s: [%d,%d], expected [%d,%d]", what, t->rows, t->cols, args->rows->rows, args->q_heads * l->head_dim);
	if ((uintptr_t)t->data % 16 || t->row_stride % lanes)
		return FAIL(err, BAD_INPUT, "%s: rows of stride %lld at %p; multiples of 16 bytes are wanted", what, (long long)t->row_stride, t->data);
	return STATUS_OK;
}

static enum status check(const struct attention_args *args, struct error *err)
{
	const struct kv_layout *l = &args->cache->layout;
	const struct step_rows *rows = args->rows;
	if (!dtype_is_plain(l->dtype)) return FAIL(err, UNSUPPORTED, "attention: a cache of type %s; F32, F16 and BF16 are supported", dtype_name(l->dtype));
	if (l->head_dim < 1 || l->head_dim > ATTENTION_MAX_HEAD || l->head_dim % ATTENTION_HEAD_MULTIPLE)
		return FAIL(err, UNSUPPORTED, "attention: heads of %d; multiples of %d up to %d are supported", l->head_dim, ATTENTION_HEAD_MULTIPLE, ATTENTION_MAX_HEAD);
	if (!args->cache->data || (uintptr_t)args->cache->data % 16 || l->blocks < 1 || l->kv_heads < 1 || l->block_tokens < ATTENTION_GROUP ||
	    l->block_tokens % ATTENTION_GROUP || args->layer < 0 || args->layer >= l->layers)
		return FAIL(err, BAD_INPUT, "attention: layer %d of %d, %d blocks of %d tokens (a multiple of %d), %d heads", args->layer, l->layers, l->blocks,
		            l->block_tokens, ATTENTION_GROUP, l->kv_heads);
	if (args->q_heads < 1 || args->q_heads % l->kv_heads)
		return FAIL(err, BAD_INPUT, "attention: %d query heads over %d kv heads; a multiple is wanted", args->q_heads, l->kv_heads);
	TRY(check_tensor(&args->q, args, "attention q", err));
	TRY(check_tensor(&args->out, args, "attention out", err));
	if (rows->seqs < 0 || rows->single_seqs < 0 || rows->single_seqs > rows->seqs || rows->max_seq_rows > rows->rows || rows->max_kv_len > (int64_t)rows->max_blocks * l->block_tokens)
		return FAIL(err, BAD_INPUT, "attention: %d rows (at most %d a sequence) of %d sequences, %d with one, %d keys in %d blocks of %d", rows->rows,
		            rows->max_seq_rows, rows->seqs, rows->single_seqs, rows->max_kv_len, rows->max_blocks, l->block_tokens);
	if (!(args->scale > 0) || !(args->softcap >= 0))
		return FAIL(err, BAD_INPUT, "attention: scores times %g, capped at %g; a positive scale, and a positive cap or 0, are wanted", (double)args->scale,
		            (double)args->softcap);
	return STATUS_OK;
}

static int log2_of(int n)
{
	int shift = 0;
	while (n >> shift > 1) shift++;
	return n == 1 << shift ? shift : -1;
}

static struct attention_params make_params(const struct attention_args *args, bool invariant)
{
	const struct kv_layout *l = &args->cache->layout;
	const struct step_rows *rows = args->rows;
	return (struct attention_params){.q = args->q.data, .out = args->out.data, .kv = (const char *)args->cache->data + (size_t)args->layer * gpu_kv_layer_bytes(l),
	                                 .q_stride = args->q.row_stride, .out_stride = args->out.row_stride, .position = rows->position,
	                                 .row_start = rows->row_start, .block_table = rows->block_table, .rows = rows->rows, .seqs = rows->seqs, .max_seq_rows = rows->max_seq_rows,
	                                 .max_blocks = rows->max_blocks, .block_tokens = l->block_tokens, .blocks = l->blocks,
	                                 .max_kv_len = rows->max_kv_len, .q_heads = args->q_heads, .kv_heads = l->kv_heads,
	                                 .group = args->q_heads / l->kv_heads, .head_dim = l->head_dim,
	                                 .scale_log2 = (args->softcap > 0 ? args->softcap : args->scale) * 1.44269504f,
	                                 .cap_scale = args->softcap > 0 ? args->scale / args->softcap : 0, .window = args->window, .block_shift = log2_of(l->block_tokens),
	                                 .dense = rows->rows == rows->seqs && rows->max_seq_rows == 1, .invariant = invariant};
}

/* For a kernel that goes by splits: room for p->splits, or no splits where there is too little and nobody asked for so many. */
static enum status fit_splits(const struct gpu_context *ctx, const struct attention_way *way, struct attention_params *p, struct error *err)
{
	const size_t bytes = partial_bytes(p->seqs, p->q_heads, p->splits, p->head_dim);
	const int64_t counters = (int64_t)p->seqs * p->kv_heads * ((p->group + ATTENTION_SLICE - 1) / ATTENTION_SLICE);
	if (p->splits > 1 && (bytes > ctx->workspace_bytes || counters > ctx->counter_count)) {
		if (p->invariant || way->splits)
			return FAIL(err, UNSUPPORTED, "attention %s: %d sequences of %d heads in %d splits want %zu bytes of workspace and %lld counters; there are %zu and %d",
			            way->kernel->name, p->seqs, p->q_heads, p->splits, bytes, (long long)counters, ctx->workspace_bytes, ctx->counter_count);
		p->splits = 1;
	}
	p->partial_stats = p->partial + (size_t)p->seqs * (size_t)p->q_heads * (size_t)p->splits * (size_t)p->head_dim;
	return STATUS_OK;
}

static enum status launch(const struct gpu_context *ctx, const struct attention_kernel *kernel, int splits, const struct attention_params *p, enum dtype dtype,
                          struct error *err)
{
	const struct attention_way way = {kernel, splits};
	struct attention_params fitted = *p;
	if (kernel->splits) TRY(fit_splits(ctx, &way, &fitted, err));
	ctx->dispatch->attention_ran = way;
	return kernel->launch(ctx, &fitted, dtype, err);
}

/* The first that can, but for `skip` of them as long as another follows. */
static enum status launch_first(bool prefill, int skip, const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err)
{
	for (const struct attention_kernel *const *k = candidates(prefill, p); *k; k++)
		if ((skip-- <= 0 || !k[1]) && (*k)->can(p, dtype)) return launch(ctx, *k, 0, p, dtype, err);
	return FAIL(err, UNSUPPORTED, "attention: no kernel for heads of %d of type %s", p->head_dim, dtype_name(dtype));
}

static enum status launch_preferred(const struct gpu_context *ctx, const struct attention_preferred *preferred, const struct attention_params *p, enum dtype dtype,
                                    struct error *err)
{
	const struct attention_way *way = &preferred->way;
	const bool optional = way->kernel == attention_optional(true);
	if (optional && (p->cap_scale > 0 || !way->kernel->can(p, dtype) || attention_cudnn_ready(ctx, p, dtype, NULL) != STATUS_OK))
		return launch_first(true, 0, ctx, p, dtype, err);
	const struct attention_kernel *const *k = candidates(preferred->key.prefill, p);
	while (*k && *k != way->kernel) k++;
	if ((*k || optional) && way->kernel->can(p, dtype)) return launch(ctx, way->kernel, way->splits, p, dtype, err);
	return FAIL(err, UNSUPPORTED, "attention: preferred %s '%s' cannot take %d/%d heads of %d of type %s%s", preferred->name.kernel, preferred->name.mode, p->q_heads,
	            p->kv_heads, p->head_dim, dtype_name(dtype), *k || optional ? "" : ", scores with a soft cap");
}

static enum status decode(const struct gpu_context *ctx, struct attention_params *p, enum dtype dtype, int skip, struct error *err)
{
	const struct attention_preferred *preferred = skip ? NULL : attention_preferred(ctx, false, p, dtype);
	const int splits = preferred ? preferred->way.splits : 0;
	p->splits = splits ? splits : decode_splits(&ctx->props, p->invariant, p->seqs, p->kv_heads);
	p->partial = ctx->workspace;
	p->counters = ctx->counters;
	return preferred ? launch_preferred(ctx, preferred, p, dtype, err) : launch_first(false, skip, ctx, p, dtype, err);
}

static enum status prefill(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, int skip, struct error *err)
{
	const struct attention_preferred *preferred = skip ? NULL : attention_preferred(ctx, true, p, dtype);
	return preferred ? launch_preferred(ctx, preferred, p, dtype, err) : launch_first(true, skip, ctx, p, dtype, err);
}

enum status gpu_attention_skip(struct stream *stream, const struct attention_args *args, int skip, struct error *err)
{
	const struct gpu_context *ctx = gpu_context(stream);
	const struct step_rows *rows = args->rows;
	TRY(check(args, err));
	if (rows->rows == 0 || rows->seqs == 0) return STATUS_OK;
	struct attention_params p = make_params(args, ctx->invariant);
	enum dtype dtype = args->cache->layout.dtype;
	bool long_rows = rows->max_seq_rows > 1;
	/* All sequences as long as the longest, or only one: none is a single row. */
	bool single_rows = !long_rows || (int64_t)rows->seqs * rows->max_seq_rows != rows->rows;
	if (single_rows) TRY(decode(ctx, &p, dtype, skip, err));
	p.skip_single = single_rows;
	p.first_seq = rows->single_seqs;
	return long_rows ? prefill(ctx, &p, dtype, skip, err) : STATUS_OK;
}

enum status gpu_attention(struct stream *stream, const struct attention_args *args, struct error *err)
{
	return gpu_attention_skip(stream, args, 0, err);
}
