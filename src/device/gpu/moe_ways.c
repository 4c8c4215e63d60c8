#include "device/gpu/moe_ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/gpu/moe.h"
#include "device/gpu/ways.h"

static const char *const kernel_names[] = {
#define X(code, name) [MOE_WAY_##code] = name,
	MOE_WAY_LIST(X)
#undef X
};

/* In the order of the dispatch. What a build lacks is not there. */
static const struct moe_way ways[] = {
	{MOE_WAY_FLOW, 0},     {MOE_WAY_DECODE, 0},
#ifdef GPU_CUDA
	{MOE_WAY_GROUPED, 16}, {MOE_WAY_GROUPED, 32}, {MOE_WAY_GROUPED, 64}, {MOE_WAY_GROUPED, 128},
#endif
	{MOE_WAY_TILE, 16},    {MOE_WAY_TILE, 64},
};
#define WAYS (sizeof ways / sizeof *ways)

static void write_variant(const struct gpu_context *context, const struct moe_way *way, struct variant *out)
{
	memset(out, 0, sizeof *out);
	out->invariant = context->invariant;
	snprintf(out->kernel, sizeof out->kernel, "%s", kernel_names[way->kernel]);
	if (way->tile_rows) snprintf(out->mode, sizeof out->mode, "%d rows", way->tile_rows);
}

int gpu_moe_variants(struct stream *stream, const struct moe_key *key, struct variant *out, int max)
{
	const struct gpu_context *context = gpu_context(stream);
	int count = 0;
	if (count < max) write_variant(context, &(struct moe_way){0}, &out[count++]);
	for (size_t i = 0; i < WAYS && !context->invariant; i++) {
		const int most = ways[i].kernel == MOE_WAY_FLOW ? MOE_FLOW_ROWS : ways[i].kernel == MOE_WAY_DECODE ? MOE_DECODE_ROWS : key->m;
		if (count < max && key->m <= most) write_variant(context, &ways[i], &out[count++]);
	}
	return count;
}

void gpu_moe_ran(const struct stream *stream, struct variant *out)
{
	const struct gpu_context *context = gpu_context(stream);
	write_variant(context, &context->dispatch->moe_ran, out);
}

const struct moe_preferred *moe_preferred(const struct gpu_context *context, const struct moe_key *key)
{
	const struct dispatch *d = context->dispatch;
	for (int i = 0; i < d->moe_count; i++) /* one family of experts, a few classes of rows */
		if (moe_key_alike(&d->moe[i].key, key) && key->m >= d->moe[i].m_low && key->m <= d->moe[i].m_high) return &d->moe[i];
	return NULL;
}

static enum status read_preference(const struct gpu_context *context, const struct moe_preference *in, struct moe_preferred *out, struct error *err)
{
	const struct variant *v = &in->variant;
	struct variant name;
	*out = (struct moe_preferred){.key = in->key, .m_low = in->m_low, .m_high = in->m_high, .name = *v};
	if (in->m_low < 1 || in->m_high < in->m_low) return FAIL(err, BAD_INPUT, "experts %s '%s' for rows %d to %d: no such rows", v->kernel, v->mode, in->m_low, in->m_high);
	if (strcmp(v->kernel, kernel_names[MOE_WAY_DEFAULT]) == 0 && !v->mode[0]) return STATUS_OK;
	for (size_t i = 0; i < WAYS; i++) {
		write_variant(context, &ways[i], &name);
		if (!variant_equal(&name, v)) continue;
		out->way = ways[i];
		return STATUS_OK;
	}
	return FAIL(err, BAD_INPUT, "experts %s '%s': this back end has no such kernel, or it has no such mode; measure again here", v->kernel, v->mode);
}

enum status gpu_moe_prefer(struct stream *stream, const struct moe_preference *list, int count, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	struct dispatch *d = context->dispatch;
	struct moe_preferred *preferred = mem_zalloc((size_t)count, sizeof *preferred, "preferred experts", err);
	if (!preferred) return STATUS_NO_MEMORY;
	int kept = 0;
	for (int i = 0; i < count; i++) {
		enum status st = read_preference(context, &list[i], &preferred[kept], err);
		if (st != STATUS_OK) {
			free(preferred);
			return st;
		}
		kept += preferred[kept].way.kernel != MOE_WAY_DEFAULT && !context->invariant;
	}
	free(d->moe);
	d->moe = preferred;
	d->moe_count = kept;
	return STATUS_OK;
}
