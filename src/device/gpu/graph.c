/* graph.c: recorded graphs, and what they launch.
 *
 * After begin, end must be called whatever happened between: it takes the stream out of recording, and where a launch was refused it reports that and gives
 * no graph. The stream is as usable as before.
 */
#include "device/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct graph {
	gpu_graph_exec exec;
	gpu_graph recorded; /* what exec was made from: it can say what it launches */
};

enum status gpu_graph_object_begin(struct stream *stream, struct error *err)
{
	struct gpu_stream_object *object = gpu_stream_object(stream);
	if (object->recording) return FAIL(err, BAD_INPUT, "graph: the stream records one already");
	TRY(gpu_check(gpu_capture_begin(object->context.stream), "begin of recording", err));
	object->recording = true;
	return STATUS_OK;
}

enum status gpu_graph_object_end(struct stream *stream, struct graph **out, struct error *err)
{
	struct gpu_stream_object *object = gpu_stream_object(stream);
	*out = NULL;
	if (!object->recording) return FAIL(err, BAD_INPUT, "graph: the stream does not record one");
	object->recording = false;
	gpu_graph recorded = NULL;
	struct graph *graph = NULL;
	enum status st;
	TRY_GOTO(gpu_check(gpu_capture_end(object->context.stream, &recorded), "end of recording", err), fail);
	graph = mem_zalloc(1, sizeof *graph, "graph", err);
	st = STATUS_NO_MEMORY;
	if (!graph) goto fail;
	TRY_GOTO(gpu_check(gpu_graph_instantiate(&graph->exec, recorded), "a recorded graph", err), fail);
	graph->recorded = recorded;
	*out = graph;
	return STATUS_OK;
fail:
	if (recorded) (void)gpu_graph_destroy(recorded);
	free(graph);
	return st;
}

enum status gpu_graph_object_launch(struct graph *graph, struct stream *stream, struct error *err)
{
	return gpu_check(gpu_graph_launch(graph->exec, gpu_context(stream)->stream), "graph launch", err);
}

void gpu_graph_object_destroy(struct graph *graph)
{
	if (!graph) return;
	(void)gpu_graph_exec_destroy(graph->exec);
	(void)gpu_graph_destroy(graph->recorded);
	free(graph);
}

/* ---- what a graph launches */

struct walk {
	size_t nodes, edges;
	gpu_graph_node *node, *from, *to;
	gpu_graph_edge_kind *kind;
	size_t *waits; /* for how many nodes a node waits; SIZE_MAX: it has been taken */
};

static void walk_fini(struct walk *w)
{
	free(w->node), free(w->from), free(w->to), free(w->kind), free(w->waits);
}

static size_t walk_index(const struct walk *w, gpu_graph_node node)
{
	size_t i = 0;
	while (i < w->nodes && w->node[i] != node) i++;
	return i;
}

static enum status walk_init(struct walk *w, const struct graph *graph, struct error *err)
{
	static const char what[] = "what a graph launches";
	TRY(gpu_check(gpu_graph_nodes(graph->recorded, NULL, &w->nodes), what, err));
	TRY(gpu_check(gpu_graph_edges(graph->recorded, NULL, NULL, NULL, &w->edges), what, err));
	if (!(w->node = mem_zalloc(w->nodes, sizeof *w->node, what, err)) || !(w->from = mem_zalloc(w->edges, sizeof *w->from, what, err)) ||
	    !(w->to = mem_zalloc(w->edges, sizeof *w->to, what, err)) || !(w->kind = mem_zalloc(w->edges, sizeof *w->kind, what, err)) ||
	    !(w->waits = mem_zalloc(w->nodes, sizeof *w->waits, what, err)))
		return STATUS_NO_MEMORY;
	if (w->nodes) TRY(gpu_check(gpu_graph_nodes(graph->recorded, w->node, &w->nodes), what, err));
	if (w->edges) TRY(gpu_check(gpu_graph_edges(graph->recorded, w->from, w->to, w->kind, &w->edges), what, err));
	for (size_t i = 0; i < w->edges; i++) {
		const size_t to = walk_index(w, w->to[i]);
		if (to < w->nodes) w->waits[to]++;
	}
	return STATUS_OK;
}

/* The first node that waits for none, in the order in which they were given: of a chain that is the order of recording. SIZE_MAX: there is none left. */
static size_t walk_next(struct walk *w)
{
	for (size_t n = 0; n < w->nodes; n++) {
		if (w->waits[n]) continue;
		w->waits[n] = SIZE_MAX;
		for (size_t i = 0; i < w->edges; i++) {
			const size_t to = w->from[i] == w->node[n] ? walk_index(w, w->to[i]) : w->nodes;
			if (to < w->nodes) w->waits[to]--;
		}
		return n;
	}
	return SIZE_MAX;
}

static enum status list_kernels(struct walk *w, struct kernel_launch *out, int max, int *count, struct error *err)
{
	for (size_t n = walk_next(w); n != SIZE_MAX; n = walk_next(w)) {
		struct gpu_launched l;
		TRY(gpu_check(gpu_graph_node_launch(w->node[n], &l), "a kernel of a graph", err));
		if (!l.kernel) continue;
		if (*count < max) {
			struct kernel_launch *k = &out[*count];
			*k = (struct kernel_launch){.shared_bytes = (unsigned)l.shared};
			snprintf(k->name, sizeof k->name, "%s", l.name);
			memcpy(k->grid, l.grid, sizeof k->grid);
			memcpy(k->block, l.block, sizeof k->block);
		}
		++*count;
	}
	return STATUS_OK;
}

enum status gpu_graph_object_kernels(struct graph *graph, struct kernel_launch *out, int max, int *count, struct error *err)
{
	struct walk walk = {0};
	*count = 0;
	enum status st = walk_init(&walk, graph, err);
	if (st == STATUS_OK) st = list_kernels(&walk, out, max, count, err);
	walk_fini(&walk);
	return st;
}
