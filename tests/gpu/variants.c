/* variants.c: runs a case once for each variant of its linear (harness.h). */
#include <string.h>

#include "base/clock.h"
#include "gpu/harness.h"

#define MAX_VARIANTS 96
#define MAX_KERNELS 16

void gpu_each_variant(struct gpu_check *c, const struct linear_key *key, void (*run)(struct gpu_check *c, const void *arg), const void *arg)
{
	static struct variant list[MAX_VARIANTS];
	const int count = c->ops->linear_variants(c->stream, key, list, MAX_VARIANTS);
	c->refused = 0;
	if (count < 2 || count >= MAX_VARIANTS || strcmp(list[0].kernel, "default"))
		gpu_fail(c, "%d variants, the first '%s'; default and others are wanted", count, list[0].kernel);
	for (int i = 0; i < count; i++) {
		const struct linear_preference p = {.key = *key, .m_low = key->m, .m_high = key->m, .variant = list[i]};
		gpu_ok(c, c->ops->linear_prefer(c->stream, &p, 1, &c->err));
		c->variant = &list[i];
		run(c, arg);
		c->variant = NULL;
	}
	gpu_ok(c, c->ops->linear_prefer(c->stream, NULL, 0, &c->err));
}

void gpu_variant_begin(struct gpu_check *c)
{
	if (c->variant) gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
}

/* What a kernel of this back end is called in the source; NULL: it is a library's, or whatever the dispatch takes. */
static const char *source_name(const char *kernel)
{
	static const char *const names[][2] = {{"gemv_strided", "gemv_strided_kernel"}, {"gemv_wave", "gemv_wave_kernel"}, {"gemv_llmm1", "gemv_llmm1_kernel"},
	                                       {"skinny", "skinny_kernel"},             {"wide", "wide_kernel"},               {"gemv_decode", "gemv_decode_kernel"}, {"tile", "tile_"}};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(names[i][0], kernel)) return names[i][1];
	return NULL;
}

static void expect_kernels(struct gpu_check *c, struct graph *graph)
{
	struct kernel_launch launch[MAX_KERNELS];
	const char *wanted = source_name(c->variant->kernel);
	int count = 0, found = 0;
	gpu_ok(c, c->ops->graph_kernels(graph, launch, MAX_KERNELS, &count, &c->err));
	if (count < 1 || count > MAX_KERNELS) gpu_fail(c, "%d kernels in the graph; 1 to %d are wanted", count, MAX_KERNELS);
	for (int i = 0; i < count && i < MAX_KERNELS; i++) {
		const struct kernel_launch *k = &launch[i];
		found += wanted && strstr(k->name, wanted);
		if (!*k->name || !k->grid[0] || !k->grid[1] || !k->grid[2] || !k->block[0] || !k->block[1] || !k->block[2])
			gpu_fail(c, "kernel %d, '%s', of %u x %u x %u blocks of %u threads", i, k->name, k->grid[0], k->grid[1], k->grid[2], k->block[0]);
	}
	if (wanted && found != 1) gpu_fail(c, "%d kernels of %d in the graph are a %s (the first is %s); one is wanted", found, count, wanted, launch[0].name);
}

static void expect_ran(struct gpu_check *c)
{
	struct variant ran;
	c->ops->linear_ran(c->stream, &ran);
	if (!strcmp(c->variant->kernel, "default")) {
		if (!strcmp(ran.kernel, "default") || !*ran.kernel) gpu_fail(c, "the default says that it ran as '%s'", ran.kernel);
	} else if (strcmp(ran.kernel, c->variant->kernel) || strcmp(ran.mode, c->variant->mode)) {
		gpu_fail(c, "%s '%s' ran; it was not asked for", ran.kernel, ran.mode);
	}
}

bool gpu_variant_end(struct gpu_check *c, enum status st)
{
	struct graph *graph = NULL;
	struct error ignored = {0};
	if (!c->variant) {
		gpu_ok(c, st);
		return true;
	}
	if (st == STATUS_UNSUPPORTED) {
		c->refused++;
		if (!strcmp(c->variant->kernel, "default") || !strstr(c->err.text, c->variant->kernel)) gpu_fail(c, "refused by '%s', which does not name it", c->err.text);
		if (c->ops->graph_end(c->stream, &graph, &ignored) == STATUS_OK) c->ops->graph_destroy(graph);
		c->err = (struct error){0};
		return false;
	}
	gpu_ok(c, st);
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	if (!graph) return false;
	gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
	gpu_sync_stream(c);
	expect_kernels(c, graph);
	expect_ran(c);
	c->ops->graph_destroy(graph);
	return true;
}
