/* internal.h: what the files of the emulated device share.
 *
 *   memory.c   what addresses are: devices' allocations and pinned memory, in one reserved range of addresses
 *   access.c   answers the calls that the compiler put before the kernels' accesses; shared memory and its shadow
 *   fiber.c    stacks and the switch between them
 *   block.c    one block: barriers, waves, atomics
 *   grid.c     which fiber runs next: one launch (eager) or many at once (together)
 *   driver.c   devices, streams, events, graphs: what gpu_* does
 *
 * Threads. An executor (stacks, blocks, order) belongs to one OS thread; the address map is written under a lock and read without one (an
 * entry is complete before its address is handed out). A stream belongs to the thread that uses it.
 */
#ifndef TANDEM_DEVICE_GPU_EMU_INTERNAL_H
#define TANDEM_DEVICE_GPU_EMU_INTERNAL_H

#include "device/gpu/runtime.h"

#define EMU_DEVICES 8
#define EMU_HOST EMU_DEVICES /* pinned memory counts as one more device in the address map */
#define EMU_MAX_THREADS 1024
#define EMU_MAX_WAVES (EMU_MAX_THREADS / 32)
#define EMU_MAX_SHARED (GPU_WARP == 32 ? 232448u : 65536u) /* of a Hopper, of a CDNA */
#define EMU_STATIC_SHARED 49152u /* a launch that wants more must have asked (gpu_allow_shared) */
#define EMU_DEVICE_BYTES ((size_t)256 << 20)
#define EMU_SHARED_SITES 32

/* ---- memory.c */
struct emu_allocation {
	uintptr_t begin, end; /* end: of the bytes asked for */
	int device;           /* or EMU_HOST */
};
gpu_error emu_memory_alloc(int device, size_t bytes, void **out);
gpu_error emu_memory_free(int device, void *p); /* device < 0: any but pinned */
void emu_memory_info(int device, size_t *free_bytes, size_t *total);
/* The allocation that holds p, or NULL. */
const struct emu_allocation *emu_memory_find(const void *p);
bool emu_memory_reserved(const void *p); /* in the range that allocations come from */
void emu_memory_peers_reset(void);
bool emu_memory_peer(int device, int other); /* may `device` use `other`'s memory? */
bool emu_memory_peer_enable(int device, int other); /* false: it was already */

/* ---- fiber.c */
struct emu_fiber {
	void *sp;
	unsigned char *stack; /* lowest usable byte */
	size_t stack_bytes;
	unsigned char *top;   /* the highest that is used: not at the same offset in each stack, or all would meet in the same lines of the cache */
	void *fake;           /* AddressSanitizer's */
	struct emu_fiber *next_free;
};
#define EMU_STACK_BYTES ((size_t)64 << 10)
/* A stack with a page below it that cannot be touched, or NULL. number: of the fibers of this thread. */
struct emu_fiber *emu_fiber_create(int number);
void emu_fiber_destroy(struct emu_fiber *fiber);
/* The next switch to it calls entry, which never returns, on what is `top_bytes` below the top. */
void emu_fiber_reset(struct emu_fiber *fiber, void (*entry)(void), size_t top_bytes);
/* Leaves `from` for `to`. final: `from` will not run again. */
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to, bool final);
void emu_fiber_entered(struct emu_fiber *self); /* first thing on a fresh fiber */
void emu_fiber_main(struct emu_fiber *out); /* the OS thread's own stack */

/* ---- block.c */
enum emu_state { EMU_RUNS, EMU_SPINS, EMU_WAITS_SYNC, EMU_WAITS_WAVE, EMU_LEFT, EMU_FAULTED };

/* Lives at the top of its fiber's stack, so that a kernel's reads of its own index are accesses to its own stack. */
struct emu_lane {
	struct emu_index index;
	struct emu_fiber *fiber;
	struct emu_block *block;
	enum emu_state state;
	int line;      /* where it waits */
	int thread;    /* linear in the block */
	int runnable;  /* its place in the executor's list, -1: waits */
};

struct emu_wave {
	int lanes, arrived;
	enum emu_meeting kind;
	int line;
	unsigned turn;      /* which half of `given` the meeting that is going on uses */
	uint32_t last_sync; /* stamp */
	uint64_t given[2][64];
};

/* Two bytes of shared memory: who used them last, and when. A stamp below the block's `born` is from an earlier block. */
struct emu_cell {
	uint32_t written, read[2]; /* stamps */
	uint16_t writer, reader[2];
	uint16_t atomic; /* the last write was atomic */
};

struct emu_site {
	const void *site; /* NULL: the launch's dynamic bytes */
	uint32_t offset, bytes;
};

struct emu_block {
	struct emu_executor *ex;
	struct emu_grid *grid;
	struct emu_dim3 index;
	uint64_t number; /* in the order of starts of this executor */
	int threads, alive, runnable, waves;
	int arrived, sync_line; /* at the barrier */
	uint32_t born, last_sync; /* stamps */
	struct emu_lane **lanes;
	struct emu_wave wave[EMU_MAX_WAVES];
	unsigned char *shared; /* EMU_MAX_SHARED and room for the gaps between the arrays */
	struct emu_cell *cells;
	struct emu_site sites[EMU_SHARED_SITES];
	int site_count;
	uint32_t shared_used, shared_asked;
	struct emu_block *next_free;
};
#define EMU_SHARED_ROOM (EMU_MAX_SHARED + EMU_SHARED_SITES * 128u)

/* ---- grid.c */
struct emu_op;
struct emu_grid { /* a launch that runs */
	const struct emu_op *op;
	int device;
	uint64_t blocks, started, alive, first, step;
	struct emu_grid *next;
};

struct emu_executor {
	struct emu_fiber main;
	struct emu_fiber *free_fibers;
	int fibers_made;
	uint64_t blocks_made;
	struct emu_block *free_blocks;
	struct emu_lane **runnable;
	int runnable_count;
	struct emu_block **active;
	int active_count;
	int fibers; /* of the active blocks */
	struct emu_grid *grids;
	uint64_t random, switches, idle;
	uint64_t slow, slow_until; /* how the scheduler chooses for a while: grid.c */
	uint32_t stamp;
	bool faulted;
	/* together */
	bool queueing, together;
	struct emu_together options;
	struct emu_stream *streams; /* with something queued */
};
/* This OS thread's; made at the first call. NULL: no memory. */
struct emu_executor *emu_executor(void);
extern _Thread_local struct emu_lane *emu_self; /* the fiber that runs on this OS thread, or NULL */

void emu_lane_wakes(struct emu_lane *lane); /* back into the list */
void emu_switch_out(struct emu_lane *lane); /* its state says why */
uint64_t emu_random(struct emu_executor *ex);
/* Runs one launch to its end. */
gpu_error emu_grid_run(struct emu_executor *ex, const struct emu_op *op, int device);

struct emu_block *emu_block_start(struct emu_executor *ex, struct emu_grid *grid, uint64_t number); /* NULL: no memory */
void emu_stamps_restart(struct emu_executor *ex); /* when no block runs */
void emu_block_destroy(struct emu_block *block);
void emu_block_end(struct emu_block *block); /* its fibers are given up, whatever they were doing */
/* No fiber of the block can run and some wait: says which, as a fault. */
void emu_block_stuck(struct emu_block *block);

/* ---- faults: reported once per device */
__attribute__((format(printf, 2, 3))) void emu_fault(int device, const char *format, ...);
/* A fault of the fiber that runs: with kernel, block and thread. Does not return. */
__attribute__((format(printf, 1, 2), noreturn)) void emu_lane_fault(const char *format, ...);
gpu_error emu_device_state(int device);
const char *emu_fault_text(void);
void emu_faults_reset(void);
/* Before an access of the fiber that runs, which may be none. */
void emu_access(const void *p, size_t size, bool write, bool atomic);

/* ---- driver.c */
enum emu_op_kind { EMU_OP_KERNEL, EMU_OP_COPY, EMU_OP_SET, EMU_OP_WORD, EMU_OP_RECORD, EMU_OP_WAIT };

struct emu_op {
	enum emu_op_kind kind;
	struct emu_launch launch; /* of an op on the heap, args lie behind it */
	void *dst;
	const void *src;
	size_t bytes;
	int byte;
	uint32_t word;
	struct emu_event *event;
	uint64_t version; /* of the event: what a record makes, what a wait waits for */
	struct emu_op *next;
};
struct emu_stream {
	int device;
	struct emu_graph *capture;
	struct emu_op *head, **tail; /* queued */
	bool running; /* its head is a kernel, and runs as `grid` */
	struct emu_grid grid;
	struct emu_stream *next_queued;
	bool listed;
};
/* All but kernels: does it. False: an event is not there yet. */
bool emu_op_do(const struct emu_op *op, int device);
void emu_op_free(struct emu_op *op);

#endif
