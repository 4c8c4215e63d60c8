/* topology.h: which hardware threads each rank's team runs on.
 *
 * Reading the machine (hwloc, affinity mask, cgroup quota) and dividing it are separate, so that the division is a pure function that
 * tests feed with machines they do not have.
 */
#ifndef TANDEM_DEVICE_CPU_TOPOLOGY_H
#define TANDEM_DEVICE_CPU_TOPOLOGY_H

#include "base/status.h"

/* One hardware thread that the process may use. */
struct cpu_pu {
	int os_index; /* for an affinity mask */
	int node;     /* NUMA node, counted from 0 among those used */
	int sibling;  /* 0: first usable thread of its core, 1: the second, ... */
};

struct cpu_topology {
	struct cpu_pu *pu; /* [count], by node, then core */
	int count;
	int nodes;
	int threads; /* sensible number of threads: usable cores, no more than the cgroup's quota of processor time */
};

/* What this process may use. Where hwloc or the mask tell nothing: the online processors, each a core, one node.
 * cpu_topology_fini frees; it accepts a zeroed one. */
enum status cpu_topology_init(struct cpu_topology *out, struct error *err) NODISCARD;
void cpu_topology_fini(struct cpu_topology *topology);

/* Gives each rank its share of `threads` hardware threads (at least one each; the first ranks get the remainder). Rank r's are
 * cores[start[r]] .. cores[start[r + 1] - 1], OS indices. No hardware thread is used twice before all are used once; cores go
 * before siblings; within that a rank stays on its own nodes: node r * nodes / world_size, or the range up to the next rank's
 * where there are more nodes than ranks.
 * cores: room for max(threads, world_size); start: for world_size + 1. uses: scratch of topology->count. */
void cpu_topology_divide(const struct cpu_topology *topology, int world_size, int threads, int *cores, int *start, int *uses);

#endif
