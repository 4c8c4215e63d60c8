#include "device/cpu/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* Processors worth of time that the cgroup (v2, as a container sees its own) grants; 0: no limit known. */
static int quota_threads(void)
{
	FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
	long long quota = 0, period = 0;
	if (!file) return 0;
	if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = period = 0; /* "max 100000" */
	fclose(file);
	if (quota <= 0 || period <= 0) return 0;
	long long threads = (quota + period - 1) / period;
	return threads < 4096 ? (int)threads : 4096;
}

static bool allowed(const cpu_set_t *mask, bool mask_known, int os_index)
{
	return !mask_known || (os_index >= 0 && os_index < CPU_SETSIZE && CPU_ISSET(os_index, mask));
}

/* Nodes are renumbered 0.. in order of appearance, so that unused ones leave no gap. */
static int dense_node(int *seen, int *count, int node)
{
	for (int i = 0; i < *count; i++)
		if (seen[i] == node) return i;
	seen[*count] = node;
	return (*count)++;
}

/* hwloc orders PUs by package, node, core, so siblings of a core are neighbours. */
static void read_hwloc(struct cpu_topology *out, hwloc_topology_t topology, const cpu_set_t *mask, bool mask_known, int *seen)
{
	hwloc_obj_t last_core = NULL;
	int total = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), sibling = 0;
	for (int i = 0; i < total; i++) {
		hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
		if (!allowed(mask, mask_known, (int)pu->os_index)) continue;
		hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
		sibling = core && core == last_core ? sibling + 1 : 0;
		last_core = core;
		int node = pu->nodeset ? hwloc_bitmap_first(pu->nodeset) : 0;
		out->pu[out->count++] = (struct cpu_pu){.os_index = (int)pu->os_index, .node = dense_node(seen, &out->nodes, node), .sibling = sibling};
	}
}

static void read_mask(struct cpu_topology *out, const cpu_set_t *mask, bool mask_known, int room)
{
	for (int i = 0; out->count < room && i < CPU_SETSIZE; i++)
		if (allowed(mask, mask_known, i)) out->pu[out->count++] = (struct cpu_pu){.os_index = i};
	out->nodes = 1;
}

enum status cpu_topology_init(struct cpu_topology *out, struct error *err)
{
	*out = (struct cpu_topology){0};
	cpu_set_t mask;
	bool mask_known = sched_getaffinity(0, sizeof mask, &mask) == 0;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	hwloc_topology_t topology = NULL;
	int rc = hwloc_topology_init(&topology);
	if (rc == 0 && hwloc_topology_load(topology) != 0) rc = -1;
	int room = rc == 0 ? hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU) : 0;
	if (mask_known && CPU_COUNT(&mask) > room) room = CPU_COUNT(&mask);
	if (online > room) room = (int)online;
	if (room < 1) room = 1;
	enum status st = STATUS_NO_MEMORY;
	int *seen = mem_zalloc((size_t)room, sizeof *seen, "cpu topology", err);
	out->pu = mem_zalloc((size_t)room, sizeof *out->pu, "cpu topology", err);
	if (seen && out->pu) {
		if (rc == 0) read_hwloc(out, topology, &mask, mask_known, seen);
		if (out->count == 0) read_mask(out, &mask, mask_known, room);
		if (out->count == 0) out->pu[out->count++] = (struct cpu_pu){0};
		for (int i = 0; i < out->count; i++) out->threads += out->pu[i].sibling == 0;
		int quota = quota_threads();
		if (quota && quota < out->threads) out->threads = quota;
		st = STATUS_OK;
	}
	if (topology) hwloc_topology_destroy(topology);
	free(seen);
	if (st != STATUS_OK) cpu_topology_fini(out);
	return st;
}

void cpu_topology_fini(struct cpu_topology *topology)
{
	free(topology->pu);
	*topology = (struct cpu_topology){0};
}

/* Is hardware thread a a better choice than b for a rank whose nodes are [node0, node1)? Earlier ones win ties. */
static bool better(const struct cpu_topology *t, const int *uses, int a, int b, int node0, int node1)
{
	if (uses[a] != uses[b]) return uses[a] < uses[b];
	if (t->pu[a].sibling != t->pu[b].sibling) return t->pu[a].sibling < t->pu[b].sibling;
	bool home_a = t->pu[a].node >= node0 && t->pu[a].node < node1, home_b = t->pu[b].node >= node0 && t->pu[b].node < node1;
	return home_a && !home_b;
}

void cpu_topology_divide(const struct cpu_topology *topology, int world_size, int threads, int *cores, int *start, int *uses)
{
	if (threads < world_size) threads = world_size;
	memset(uses, 0, (size_t)topology->count * sizeof *uses);
	start[0] = 0;
	for (int r = 0; r < world_size; r++) start[r + 1] = start[r] + threads / world_size + (r < threads % world_size);
	/* One thread a rank and round, so that an early rank does not take a late one's node. */
	for (int round = 0; round < threads; round++) {
		for (int r = 0; r < world_size; r++) {
			if (start[r] + round >= start[r + 1]) continue;
			int node0 = (int)((long long)r * topology->nodes / world_size);
			int node1 = (int)((long long)(r + 1) * topology->nodes / world_size);
			if (node1 <= node0) node1 = node0 + 1;
			int best = 0;
			for (int i = 1; i < topology->count; i++)
				if (better(topology, uses, i, best, node0, node1)) best = i;
			uses[best]++;
			cores[start[r] + round] = topology->pu[best].os_index;
		}
	}
}
