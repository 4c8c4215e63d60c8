/* attention_ways.c: the kernels of attention by name: what a stream can be told to take, and what it was told (device/variant.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/gpu/attention.h"
#include "device/gpu/ways.h"

static void write_variant(const struct gpu_context *context, const struct attention_way *way, struct variant *out)
{
	memset(out, 0, sizeof *out);
	out->invariant = context->invariant;
	snprintf(out->kernel, sizeof out->kernel, "%s", way->kernel ? way->kernel->name : "default");
	if (way->splits) snprintf(out->mode, sizeof out->mode, "%d splits", way->splits);
}

/* A key as the kernels' can() sees it: a prompt from its start, where it is of rows of a prompt. */
static struct attention_params params_of(const struct attention_key *key)
{
	const int dim = key->head_dim;
	return (struct attention_params){.q_heads = key->q_heads, .kv_heads = key->kv_heads, .group = key->q_heads / key->kv_heads, .head_dim = dim, .rows = key->m,
	                                 .seqs = key->prefill ? 1 : key->m, .max_seq_rows = key->prefill ? key->m : 1, .max_kv_len = key->m, .block_tokens = ATTENTION_GROUP,
	                                 .block_shift = 4, .blocks = key->m / ATTENTION_GROUP + 1, .q_stride = (int64_t)(key->q_heads + 2 * key->kv_heads) * dim,
	                                 .out_stride = (int64_t)key->q_heads * dim};
}

/* Whether a kernel that is not always there can be listed; why not, the log is told. */
static bool ready(const struct gpu_context *context, const struct attention_kernel *optional, const struct attention_params *p, enum dtype dtype)
{
	struct error why = {0};
	if (!optional->can(p, dtype)) return false;
	if (attention_cudnn_ready(context, p, dtype, &why) == STATUS_OK) return true;
	log_write(context->log, LOG_DEBUG, "gpu: attention '%s' is not a candidate for %d rows of %d/%d heads of %d: %s", optional->name, p->rows, p->q_heads, p->kv_heads,
	          p->head_dim, why.text);
	return false;
}

int gpu_attention_variants(struct stream *stream, const struct attention_key *key, struct variant *out, int max)
{
	const struct gpu_context *context = gpu_context(stream);
	int count = 0;
	if (count < max) write_variant(context, &(struct attention_way){0}, &out[count++]);
	if (context->invariant || key->kv_heads < 1 || key->q_heads < key->kv_heads) return count;
	const struct attention_params p = params_of(key);
	for (const struct attention_kernel *const *k = attention_kernels(key->prefill); *k; k++) {
		if (!(*k)->can(&p, key->dtype)) continue;
		if (count < max) write_variant(context, &(struct attention_way){*k, 0}, &out[count++]);
		for (int splits = 1; (*k)->splits && splits <= ATTENTION_MAX_SPLITS; splits *= 2)
			if (count < max) write_variant(context, &(struct attention_way){*k, splits}, &out[count++]);
	}
	const struct attention_kernel *optional = attention_optional(key->prefill);
	if (count < max && optional && ready(context, optional, &p, key->dtype)) write_variant(context, &(struct attention_way){optional, 0}, &out[count++]);
	return count;
}

void gpu_attention_ran(const struct stream *stream, struct variant *out)
{
	const struct gpu_context *context = gpu_context(stream);
	write_variant(context, &context->dispatch->attention_ran, out);
}

static bool same_key(const struct attention_key *a, const struct attention_key *b)
{
	return a->prefill == b->prefill && a->dtype == b->dtype && a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim;
}

const struct attention_preferred *attention_preferred(const struct gpu_context *context, bool prefill, const struct attention_params *p, enum dtype dtype)
{
	const struct dispatch *d = context->dispatch;
	const struct attention_key key = {.prefill = prefill, .dtype = dtype, .q_heads = p->q_heads, .kv_heads = p->kv_heads, .head_dim = p->head_dim};
	const int m = prefill ? p->rows : p->seqs;
	for (int i = 0; i < d->attention_count; i++) /* a handful: one family of heads, a few classes of rows */
		if (same_key(&d->attention[i].key, &key) && m >= d->attention[i].m_low && m <= d->attention[i].m_high) return &d->attention[i];
	return NULL;
}

static enum status read_preference(const struct gpu_context *context, const struct attention_preference *in, struct attention_preferred *out, struct error *err)
{
	const struct variant *v = &in->variant;
	struct variant again;
	*out = (struct attention_preferred){.key = in->key, .m_low = in->m_low, .m_high = in->m_high, .name = *v};
	if (in->m_low < 1 || in->m_high < in->m_low)
		return FAIL(err, BAD_INPUT, "attention %s '%s' for rows %d to %d: no such rows", v->kernel, v->mode, in->m_low, in->m_high);
	const struct attention_kernel *const *k = attention_kernels(in->key.prefill), *optional = attention_optional(in->key.prefill);
	while (*k && strcmp((*k)->name, v->kernel)) k++;
	if (!*k && optional && !strcmp(optional->name, v->kernel)) k = &optional;
	if (!*k && strcmp(v->kernel, "default")) return FAIL(err, BAD_INPUT, "attention %s '%s': this back end has no such kernel", v->kernel, v->mode);
	out->way.kernel = *k;
	if (*v->mode && sscanf(v->mode, "%d splits", &out->way.splits) != 1) out->way.splits = -1;
	write_variant(context, &out->way, &again);
	if (strcmp(again.mode, v->mode) || out->way.splits < 0 || out->way.splits > (*k && (*k)->splits ? ATTENTION_MAX_SPLITS : 0))
		return FAIL(err, BAD_INPUT, "attention %s '%s': this kernel has no such mode; ''%s wanted", v->kernel, v->mode,
		            *k && (*k)->splits ? " or '1 splits' to '32 splits' are" : " is");
	return STATUS_OK;
}

enum status gpu_attention_prefer(struct stream *stream, const struct attention_preference *list, int count, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	struct dispatch *d = context->dispatch;
	struct attention_preferred *preferred = mem_zalloc((size_t)count, sizeof *preferred, "preferred attention", err);
	if (!preferred) return STATUS_NO_MEMORY;
	int kept = 0;
	enum status st;
	for (int i = 0; i < count; i++) {
		TRY_GOTO(read_preference(context, &list[i], &preferred[kept], err), fail);
		kept += preferred[kept].way.kernel && !context->invariant;
	}
	free(d->attention);
	d->attention = preferred;
	d->attention_count = kept;
	return STATUS_OK;
fail:
	free(preferred);
	return st;
}
