/* variants.c: the ways in which this back end can compute a linear, by name (device/variant.h), and which of them a stream was told to take.
 *
 * A way is an instruction set and a shape of work: how many panels an item has, how many k-steps of a panel it goes at a time, and for block
 * types whether weights are widened first. The order of summation is the same in all of them (linear.c), so every way is invariant; they
 * differ in time alone. One more is oneDNN's matrix product, where the system has it: that one sums in an order of its own. Names say what the code
 * does: "avx512, 4 panels, 256 k". The instruction sets are those that this processor has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/onednn.h"

#define KERNEL "panels"
#define DEFAULT "default"
#define ONEDNN "onednn"

struct way_shape {
	int panels, chunk_k;
	bool widen, block_types;
};

static const struct way_shape shapes[] = {
	{1, 0, false, false},   {2, 256, false, false}, {LINEAR_BLOCK_PANELS, LINEAR_CHUNK_K, false, false}, {LINEAR_BLOCK_PANELS, 0, false, false},
	{1, 0, false, true},    {1, LINEAR_WIDE_K, true, true}, {LINEAR_BLOCK_PANELS, LINEAR_WIDE_K, true, true},
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

static void name_way(const struct cpu_stream *stream, const struct cpu_way *way, struct variant *out)
{
	if (way->onednn) {
		*out = (struct variant){.kernel = ONEDNN};
		snprintf(out->mode, sizeof out->mode, "%s", onednn_mode(stream->onednn));
		return;
	}
	char steps[24] = "whole k";
	if (way->chunk_k) snprintf(steps, sizeof steps, "%d k", way->chunk_k);
	*out = (struct variant){.kernel = KERNEL, .invariant = true};
	snprintf(out->mode, sizeof out->mode, "%.16s, %d panel%s, %s%s", way->kernels->name, way->panels, way->panels == 1 ? "" : "s", steps,
	         way->widen ? " widened" : "");
}

/* The i-th way for weights of `dtype`, best instruction set first; false past the last. */
static bool way_at(struct cpu_way *out, enum dtype dtype, int i)
{
	const struct cpu_kernels *kernels;
	for (int isa = 0; (kernels = cpu_isa_usable(isa)) != NULL; isa++)
		for (int s = 0; s < SHAPES; s++) {
			if (shapes[s].block_types == dtype_is_plain(dtype) || i-- > 0) continue;
			*out = (struct cpu_way){.kernels = kernels, .panels = shapes[s].panels, .chunk_k = shapes[s].chunk_k, .widen = shapes[s].widen};
			return true;
		}
	return false;
}

/* Loads the library, once a stream. */
static enum status find_onednn(struct cpu_stream *stream, struct error *err)
{
	if (stream->onednn_tried) return STATUS_OK;
	TRY(onednn_open(&stream->onednn, team_members(cpu_team(&stream->base)), err));
	stream->onednn_tried = true;
	return STATUS_OK;
}

static const struct cpu_way onednn_way = {.kernels = &cpu_kernels_c, .onednn = true};

int cpu_linear_variants(struct stream *stream, const struct linear_key *key, struct variant *out, int max)
{
	struct cpu_way way;
	struct error ignored = {0}; /* no memory for it: it is not offered */
	bool computes = (key->use == LINEAR_USE_PLAIN || key->use == LINEAR_USE_PARTIAL) && (unsigned)key->dtype < DTYPE_COUNT;
	int count = 0;
	if (max > 0) out[count++] = (struct variant){.kernel = DEFAULT, .invariant = true};
	for (int i = 0; computes && count < max && way_at(&way, key->dtype, i); i++) name_way(cpu_stream(stream), &way, &out[count++]);
	if (!computes || !dtype_is_plain(key->dtype) || key->m < ONEDNN_ROWS || count >= max) return count;
	if (find_onednn(cpu_stream(stream), &ignored) == STATUS_OK && cpu_stream(stream)->onednn) name_way(cpu_stream(stream), &onednn_way, &out[count++]);
	return count;
}

/* *found false: it is not oneDNN that is asked for, or not one that is here. */
static enum status find_library(struct cpu_stream *stream, struct cpu_way *out, const struct linear_preference *p, bool *found, struct error *err)
{
	struct variant have;
	*found = false;
	if (strcmp(p->variant.kernel, ONEDNN) != 0 || !dtype_is_plain(p->key.dtype)) return STATUS_OK;
	TRY(find_onednn(stream, err));
	if (!stream->onednn) return STATUS_OK;
	name_way(stream, &onednn_way, &have);
	*found = strcmp(have.mode, p->variant.mode) == 0;
	if (*found) *out = onednn_way;
	return STATUS_OK;
}

static enum status find_way(struct cpu_stream *stream, struct cpu_way *out, const struct linear_preference *p, struct error *err)
{
	bool found;
	*out = (struct cpu_way){0};
	bool known_use = p->key.use == LINEAR_USE_PLAIN || p->key.use == LINEAR_USE_PARTIAL;
	if (!known_use || (unsigned)p->key.dtype >= DTYPE_COUNT || p->m_low < 1 || p->m_high < p->m_low)
		return FAIL(err, BAD_INPUT, "variant of a linear: use %d, dtype %d, rows %d to %d; a CPU has uses %d and %d, and rows are 1 or more, ascending",
		            (int)p->key.use, (int)p->key.dtype, p->m_low, p->m_high, LINEAR_USE_PLAIN, LINEAR_USE_PARTIAL);
	if (!strcmp(p->variant.kernel, DEFAULT) && !p->variant.mode[0]) return STATUS_OK;
	TRY(find_library(stream, out, p, &found, err));
	if (found) return STATUS_OK;
	for (int i = 0; !strcmp(p->variant.kernel, KERNEL) && way_at(out, p->key.dtype, i); i++) {
		struct variant have;
		name_way(stream, out, &have);
		if (!strcmp(have.mode, p->variant.mode)) return STATUS_OK;
	}
	return FAIL(err, BAD_INPUT, "variant of a linear: '%.31s' '%.95s' for %s: this CPU and build have none of that name; measure again here", p->variant.kernel,
	            p->variant.mode, dtype_name(p->key.dtype));
}

enum status cpu_linear_prefer(struct stream *base, const struct linear_preference *list, int count, struct error *err)
{
	struct cpu_stream *stream = cpu_stream(base);
	struct cpu_preference *copy = NULL;
	if (count) {
		copy = mem_zalloc((size_t)count, sizeof *copy, "preferred variants", err);
		if (!copy) return STATUS_NO_MEMORY;
	}
	for (int i = 0; i < count; i++) {
		copy[i] = (struct cpu_preference){.key = list[i].key, .m_low = list[i].m_low, .m_high = list[i].m_high};
		enum status st = find_way(stream, &copy[i].way, &list[i], err);
		if (st == STATUS_OK) continue;
		free(copy);
		return st;
	}
	free(stream->preferences);
	stream->preferences = copy;
	stream->preference_count = count;
	return STATUS_OK;
}

const struct cpu_way *cpu_preferred_way(const struct cpu_stream *stream, const struct linear_args *args)
{
	const struct linear_key key = {.use = args->split ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN, .dtype = args->weight->dtype, .n = args->weight->n,
	                               .k = args->weight->k};
	for (int i = 0; i < stream->preference_count; i++) {
		const struct cpu_preference *p = &stream->preferences[i];
		if (linear_key_alike(&p->key, &key) && args->x.rows >= p->m_low && args->x.rows <= p->m_high)
			return p->way.kernels ? &p->way : NULL;
	}
	return NULL;
}

void cpu_linear_ran(const struct stream *base, struct variant *out)
{
	const struct cpu_stream *stream = (const struct cpu_stream *)base;
	if (stream->ran.kernels) name_way(stream, &stream->ran, out);
	else *out = (struct variant){.kernel = DEFAULT, .invariant = true};
}
