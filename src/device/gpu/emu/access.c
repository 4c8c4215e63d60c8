/* access.c: every access of a kernel passes here before it happens. The kernels' sources are compiled with -fsanitize=thread, which makes
 * the compiler call __tsan_readN(p) and __tsan_writeN(p); these functions are ours, and judge the address:
 *
 *   the fiber's own stack       fine (its index lies there too)
 *   the block's shared memory   must lie in one array; the shadow says whether it was written and who else used it since the last barrier
 *   the range of memory.c       must lie in one allocation, of this device, of an enabled peer or pinned
 *   the launch's arguments, the program's constants: may be read
 *
 * all else is a fault. Two accesses of different threads are in order if a barrier of the block lies between them, or if the threads are of one
 * wave and a gpu_warp_sync does. Barriers take numbers from one counter, so an access is remembered as "thread, counter": it is in order with one
 * now if its number is below that of the last barrier that both passed. Out of order and one of them a write: a race, whichever way it went
 * this time. Two readers are remembered for each cell, so a race with a third may need another order of fibers to be seen. A cell is two bytes;
 * accesses to single bytes are not looked at for races.
 *
 * Code that no kernel runs (launchers are in the same sources) passes with one look at emu_self.
 */
#include <string.h>

#include "device/gpu/emu/internal.h"

extern const char __executable_start[], end[]; /* of the linker: the program's image */

static bool in_order(const struct emu_lane *me, unsigned other, uint32_t stamp)
{
	const struct emu_block *block = me->block;
	if (other == (unsigned)me->thread || stamp < block->last_sync) return true;
	const int wave = me->thread / GPU_WARP;
	return (int)other / GPU_WARP == wave && stamp < block->wave[wave].last_sync;
}

static void judge_race(const struct emu_lane *me, const struct emu_cell *c, size_t at, bool write, bool atomic)
{
	const uint32_t born = me->block->born;
	const char *now = write ? "writes" : "reads";
	if (c->written >= born && !(atomic && c->atomic) && !in_order(me, c->writer, c->written))
		emu_lane_fault("%s byte %zu of shared memory, which thread %u wrote with no barrier between", now, at, c->writer);
	for (int i = 0; write && i < 2; i++)
		if (c->read[i] >= born && !in_order(me, c->reader[i], c->read[i]))
			emu_lane_fault("%s byte %zu of shared memory, which thread %u read with no barrier between", now, at, c->reader[i]);
}

static void cell_use(const struct emu_lane *me, struct emu_cell *c, size_t at, bool write, bool atomic)
{
	const struct emu_block *block = me->block;
	const uint32_t now = block->ex->stamp;
	if (c->written < block->born && (!write || atomic)) emu_lane_fault("reads byte %zu of shared memory, which this block has not written", at);
	if (write) {
		c->written = now, c->writer = (uint16_t)me->thread, c->atomic = atomic;
		return;
	}
	const int slot = c->read[0] < block->last_sync || c->reader[0] == me->thread ? 0 : 1;
	c->read[slot] = now, c->reader[slot] = (uint16_t)me->thread;
}

static void shared_access(const struct emu_lane *me, const void *p, size_t size, bool write, bool atomic)
{
	const struct emu_block *block = me->block;
	const size_t at = (size_t)((const unsigned char *)p - block->shared);
	const struct emu_site *site = NULL;
	for (int i = 0; i < block->site_count && !site; i++)
		if (at - block->sites[i].offset < block->sites[i].bytes) site = &block->sites[i];
	if (!site || size > site->bytes - (at - site->offset))
		emu_lane_fault("%s %zu bytes at byte %zu of shared memory, beside or beyond the arrays there", write ? "writes" : "reads", size, at);
	for (size_t cell = at / 2; cell <= (at + size - 1) / 2; cell++) {
		if (size > 1) judge_race(me, &block->cells[cell], cell * 2, write, atomic);
		cell_use(me, &block->cells[cell], cell * 2, write, atomic);
	}
}

static void global_access(const struct emu_lane *me, const void *p, size_t size, bool write)
{
	const int device = me->block->grid->device;
	const char *now = write ? "writes" : "reads";
	const struct emu_allocation *a = emu_memory_find(p);
	if (!a) emu_lane_fault("%s %zu bytes at %p, where nothing is allocated", now, size, p);
	if (size > a->end - (uintptr_t)p || (uintptr_t)p >= a->end)
		emu_lane_fault("%s %zu bytes at byte %zu of an allocation of %zu bytes", now, size, (size_t)((uintptr_t)p - a->begin), (size_t)(a->end - a->begin));
	if (!emu_memory_peer(device, a->device)) emu_lane_fault("%s memory of device %d, whose peer access is not enabled", now, a->device);
}

static bool within(const void *p, const void *begin, size_t bytes)
{
	return (uintptr_t)p - (uintptr_t)begin < bytes;
}

void emu_access(const void *p, size_t size, bool write, bool atomic)
{
	const struct emu_lane *me = emu_self;
	if (!me || within(p, me->fiber->stack, EMU_STACK_BYTES)) return;
	if (within(p, me->block->shared, EMU_SHARED_ROOM)) {
		shared_access(me, p, size, write, atomic);
		return;
	}
	if (emu_memory_reserved(p)) {
		global_access(me, p, size, write);
		return;
	}
	const struct emu_launch *launch = &me->block->grid->op->launch;
	if (!write && (within(p, launch->args, launch->args_bytes) || within(p, __executable_start, (size_t)(end - __executable_start)))) return;
	emu_lane_fault("%s %zu bytes at %p, which is host memory", write ? "writes" : "reads", size, p);
}

static void aligned(const void *p, size_t size, bool write)
{
	if (emu_self && (uintptr_t)p % size) emu_lane_fault("%s %zu bytes at %p, which is not aligned to them", write ? "writes" : "reads", size, p);
	emu_access(p, size, write, false);
}

/* What the compiler calls. It knows of an unaligned access only where a type says so (packed); such an access is slow on a device, not wrong. */
#define X(n)                                       \
	void __tsan_read##n(void *p);                  \
	void __tsan_read##n(void *p)                   \
	{                                              \
		aligned(p, n, false);                      \
	}                                              \
	void __tsan_write##n(void *p);                 \
	void __tsan_write##n(void *p)                  \
	{                                              \
		aligned(p, n, true);                       \
	}                                              \
	void __tsan_unaligned_read##n(void *p);        \
	void __tsan_unaligned_read##n(void *p)         \
	{                                              \
		emu_access(p, n, false, false);            \
	}                                              \
	void __tsan_unaligned_write##n(void *p);       \
	void __tsan_unaligned_write##n(void *p)        \
	{                                              \
		emu_access(p, n, true, false);             \
	}
X(1)
X(2)
X(4)
X(8)
X(16)
#undef X

void __tsan_read_range(void *p, size_t size);
void __tsan_read_range(void *p, size_t size)
{
	if (size) emu_access(p, size, false, false);
}
void __tsan_write_range(void *p, size_t size);
void __tsan_write_range(void *p, size_t size)
{
	if (size) emu_access(p, size, true, false);
}
/* clang's, for copies and fills of whole objects. */
void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size)
{
	__tsan_read_range((void *)(uintptr_t)from, size);
	__tsan_write_range(to, size);
	return memmove(to, from, size);
}
void *__tsan_memset(void *to, int byte, size_t size);
void *__tsan_memset(void *to, int byte, size_t size)
{
	__tsan_write_range(to, size);
	return memset(to, byte, size);
}
void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
	(void)caller;
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
