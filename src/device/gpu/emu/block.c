/* block.c: one block of threads: its barriers, its waves, its shared memory, and the accesses that have an order.
 *
 * All here runs on the fiber of the thread that calls it. A thread that must wait leaves the executor's list and switches out; the last one
 * to arrive puts the others back and goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/dtype.h"
#include "device/gpu/emu/internal.h"

#define POISON 0xffffffffffffffffull

const struct emu_index *emu_index(void)
{
	return &emu_self->index;
}

/* ---- life of a block */

static struct emu_block *block_new(struct emu_executor *ex)
{
	struct emu_block *block = ex->free_blocks;
	if (block) {
		ex->free_blocks = block->next_free;
		return block;
	}
	block = calloc(1, sizeof *block);
	if (!block) return NULL;
	block->lanes = calloc(EMU_MAX_THREADS, sizeof(struct emu_lane *));
	void *shared = mmap(NULL, EMU_SHARED_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *cells = mmap(NULL, EMU_SHARED_ROOM / 2 * sizeof(struct emu_cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	block->shared = shared == MAP_FAILED ? NULL : shared;
	block->cells = cells == MAP_FAILED ? NULL : cells;
	block->ex = ex;
	if (block->lanes && block->shared && block->cells) return block;
	emu_block_destroy(block);
	return NULL;
}

void emu_block_destroy(struct emu_block *block)
{
	if (block->shared) munmap(block->shared, EMU_SHARED_ROOM);
	if (block->cells) munmap(block->cells, EMU_SHARED_ROOM / 2 * sizeof(struct emu_cell));
	free(block->lanes);
	free(block);
}

void emu_stamps_restart(struct emu_executor *ex)
{
	for (struct emu_block *b = ex->free_blocks; b; b = b->next_free) madvise(b->cells, EMU_SHARED_ROOM / 2 * sizeof(struct emu_cell), MADV_DONTNEED);
	ex->stamp = 0;
}

static void lane_main(void)
{
	struct emu_lane *me = emu_self;
	emu_fiber_entered(me->fiber);
	const struct emu_launch *launch = &me->block->grid->op->launch;
	launch->invoke((void *)(uintptr_t)launch->args);
	me->state = EMU_LEFT;
	emu_switch_out(me);
}

static struct emu_dim3 unfold(uint64_t linear, struct emu_dim3 dim)
{
	return (struct emu_dim3){(unsigned)(linear % dim.x), (unsigned)(linear / dim.x % dim.y), (unsigned)(linear / dim.x / dim.y)};
}

static bool lane_start(struct emu_block *block, int thread)
{
	struct emu_executor *ex = block->ex;
	struct emu_fiber *fiber = ex->free_fibers;
	if (fiber) ex->free_fibers = fiber->next_free;
	else fiber = emu_fiber_create(ex->fibers_made++);
	if (!fiber) return false;
	emu_fiber_reset(fiber, lane_main, sizeof(struct emu_lane));
	struct emu_lane *lane = (struct emu_lane *)(void *)(fiber->top - (sizeof *lane + 15) / 16 * 16);
	const struct emu_launch *launch = &block->grid->op->launch;
	*lane = (struct emu_lane){
		.index = {unfold((uint64_t)thread, launch->block), block->index, launch->block, launch->grid},
		.fiber = fiber, .block = block, .thread = thread, .runnable = -1, .state = EMU_RUNS,
	};
	block->lanes[thread] = lane;
	return true;
}

struct emu_block *emu_block_start(struct emu_executor *ex, struct emu_grid *grid, uint64_t number)
{
	struct emu_block *block = block_new(ex);
	if (!block) return NULL;
	const struct emu_launch *launch = &grid->op->launch;
	block->grid = grid;
	block->number = ex->blocks_made++;
	block->index = unfold(number, launch->grid);
	block->threads = (int)(launch->block.x * launch->block.y * launch->block.z);
	block->waves = (block->threads + GPU_WARP - 1) / GPU_WARP;
	block->alive = block->runnable = block->arrived = block->site_count = 0;
	block->shared_used = block->shared_asked = 0;
	block->born = block->last_sync = ++ex->stamp;
	for (int w = 0; w < block->waves; w++) {
		const int left = block->threads - w * GPU_WARP;
		block->wave[w].lanes = left < GPU_WARP ? left : GPU_WARP;
		block->wave[w].arrived = 0;
		block->wave[w].turn = 0;
		block->wave[w].last_sync = block->born;
	}
	for (; block->alive < block->threads; block->alive++)
		if (!lane_start(block, block->alive)) {
			block->threads = block->alive;
			emu_block_end(block);
			return NULL;
		}
	for (int t = 0; t < block->threads; t++) emu_lane_wakes(block->lanes[t]);
	return block;
}

void emu_block_end(struct emu_block *block)
{
	struct emu_executor *ex = block->ex;
	for (int t = 0; t < block->threads; t++) {
		struct emu_fiber *fiber = block->lanes[t]->fiber;
		fiber->next_free = ex->free_fibers;
		ex->free_fibers = fiber;
	}
	block->next_free = ex->free_blocks;
	ex->free_blocks = block;
}

/* ---- shared memory */

static void *site_add(struct emu_block *block, const void *site, size_t bytes)
{
	if (block->site_count == EMU_SHARED_SITES) emu_lane_fault("has more than %d shared arrays", EMU_SHARED_SITES);
	if (block->shared_asked + bytes > EMU_MAX_SHARED)
		emu_lane_fault("has more than %u bytes of shared memory: %u and %zu more", EMU_MAX_SHARED, block->shared_asked, bytes);
	struct emu_site *s = &block->sites[block->site_count++];
	/* The gap keeps an index that is a little too large from meeting the next array. */
	*s = (struct emu_site){site, block->shared_used + 64, (uint32_t)bytes};
	block->shared_used = (s->offset + s->bytes + 15) / 16 * 16;
	block->shared_asked += (uint32_t)bytes;
	memset(block->shared + s->offset, 0xff, bytes);
	return block->shared + s->offset;
}

void *emu_shared(const void *site, size_t bytes)
{
	struct emu_block *block = emu_self->block;
	for (int i = 0; i < block->site_count; i++)
		if (block->sites[i].site == site) return block->shared + block->sites[i].offset;
	return site_add(block, site, bytes);
}

void *emu_dynamic_shared(void)
{
	return emu_shared(NULL, emu_self->block->grid->op->launch.shared);
}

/* ---- meeting the others */

static const char *meeting_name(enum emu_meeting kind)
{
	static const char *const names[EMU_MEETINGS] = {"gpu_sync", "gpu_warp_sync", "gpu_shfl_xor", "gpu_shfl_down", "gpu_shfl", "gpu_ballot"};
	return names[kind];
}

static uint32_t next_stamp(struct emu_executor *ex)
{
	ex->idle = 0;
	return ++ex->stamp;
}

void emu_sync(int line)
{
	struct emu_lane *me = emu_self;
	struct emu_block *block = me->block;
	if (!block->arrived) block->sync_line = line;
	if (line != block->sync_line) emu_lane_fault("meets the others at the gpu_sync of line %d, but they wait at that of line %d", line, block->sync_line);
	me->line = line;
	if (++block->arrived < block->threads) {
		me->state = EMU_WAITS_SYNC;
		emu_switch_out(me);
		return;
	}
	block->arrived = 0;
	block->last_sync = next_stamp(block->ex);
	for (int t = 0; t < block->threads; t++)
		if (block->lanes[t] != me) emu_lane_wakes(block->lanes[t]);
}

static uint64_t answer(const struct emu_wave *wave, enum emu_meeting kind, const uint64_t *given, int lane, int argument)
{
	int from = lane;
	uint64_t votes = 0;
	switch (kind) {
	case EMU_BALLOT:
		for (int l = 0; l < wave->lanes; l++) votes |= given[l] << l;
		return votes;
	case EMU_SHUFFLE_XOR: from = lane ^ argument; break;
	case EMU_SHUFFLE_DOWN: from = lane + argument < GPU_WARP ? lane + argument : lane; break;
	case EMU_SHUFFLE: from = argument & (GPU_WARP - 1); break;
	case EMU_SYNC: case EMU_WAVE_SYNC: case EMU_MEETINGS: break;
	}
	/* A lane that is not there (the block's last wave may be short) gives what nobody can want. */
	return from >= 0 && from < wave->lanes ? given[from] : POISON;
}

uint64_t emu_wave(enum emu_meeting kind, int line, uint64_t value, int argument)
{
	struct emu_lane *me = emu_self;
	struct emu_block *block = me->block;
	const int index = me->thread / GPU_WARP, lane = me->thread % GPU_WARP;
	struct emu_wave *wave = &block->wave[index];
	if (!wave->arrived) wave->kind = kind, wave->line = line;
	if (kind != wave->kind || line != wave->line)
		emu_lane_fault("enters the %s of line %d, but its wave waits in the %s of line %d", meeting_name(kind), line, meeting_name(wave->kind), wave->line);
	me->line = line;
	uint64_t *given = wave->given[wave->turn];
	given[lane] = value;
	if (++wave->arrived < wave->lanes) {
		me->state = EMU_WAITS_WAVE;
		emu_switch_out(me);
		return answer(wave, kind, given, lane, argument);
	}
	/* The others read this half while some of them may already fill the other one. */
	wave->arrived = 0;
	wave->turn ^= 1;
	const uint32_t stamp = next_stamp(block->ex);
	if (kind == EMU_WAVE_SYNC) wave->last_sync = stamp;
	for (int l = 0; l < wave->lanes; l++)
		if (l != lane) emu_lane_wakes(block->lanes[index * GPU_WARP + l]);
	return answer(wave, kind, given, lane, argument);
}

void emu_block_stuck(struct emu_block *block)
{
	const struct emu_lane *waits = NULL, *other = NULL;
	for (int t = 0; t < block->threads; t++) {
		const struct emu_lane *lane = block->lanes[t];
		if (lane->state == EMU_WAITS_WAVE || (lane->state == EMU_WAITS_SYNC && !waits)) waits = lane;
	}
	const int first = waits->state == EMU_WAITS_WAVE ? waits->thread / GPU_WARP * GPU_WARP : 0;
	const int last = waits->state == EMU_WAITS_WAVE ? first + block->wave[first / GPU_WARP].lanes : block->threads;
	for (int t = first; t < last && !other; t++)
		if (block->lanes[t]->state != waits->state) other = block->lanes[t];
	const struct emu_wave *wave = &block->wave[waits->thread / GPU_WARP];
	const char *where = waits->state == EMU_WAITS_WAVE ? meeting_name(wave->kind) : meeting_name(EMU_SYNC);
	char why[64];
	if (other->state == EMU_LEFT) snprintf(why, sizeof why, "has left the kernel");
	else snprintf(why, sizeof why, "waits in line %d", other->line);
	emu_fault(block->grid->device, "kernel %s, block (%u,%u,%u): thread %d waits in the %s of line %d, but thread %d %s", block->grid->op->launch.name,
	          block->index.x, block->index.y, block->index.z, waits->thread, where, waits->line, other->thread, why);
}

/* ---- accesses that have an order; each is a point where other fibers may run */

static void step(enum emu_state state)
{
	struct emu_lane *me = emu_self;
	if (state == EMU_RUNS) me->block->ex->idle = 0;
	me->state = state;
	emu_switch_out(me);
}

/* 16 bytes in one piece, between OS threads too. */
static char piece_locks[64];

static char *piece_lock(const void *p)
{
	char *lock = &piece_locks[(uintptr_t)p / 16 % sizeof piece_locks];
	while (__atomic_test_and_set(lock, __ATOMIC_ACQUIRE)) continue;
	return lock;
}

static void aligned(const void *p, size_t size, bool write, bool atomic)
{
	if ((uintptr_t)p % size) emu_lane_fault("%s %zu bytes at %p, which is not aligned to them", write ? "writes" : "reads", size, p);
	emu_access(p, size, write, atomic);
}

uint64_t emu_load(const void *p, size_t size)
{
	step(EMU_SPINS);
	aligned(p, size, false, false);
	return size == 8 ? __atomic_load_n((const uint64_t *)p, __ATOMIC_SEQ_CST) : __atomic_load_n((const uint32_t *)p, __ATOMIC_SEQ_CST);
}

void emu_store(void *p, uint64_t value, size_t size)
{
	step(EMU_RUNS);
	aligned(p, size, true, false);
	if (size == 8) __atomic_store_n((uint64_t *)p, value, __ATOMIC_SEQ_CST);
	else __atomic_store_n((uint32_t *)p, (uint32_t)value, __ATOMIC_SEQ_CST);
}

void emu_load16(const void *p, void *out, bool is_volatile)
{
	if (!is_volatile) {
		aligned(p, 16, false, false);
		memcpy(out, p, 16);
		return;
	}
	step(EMU_SPINS);
	aligned(p, 16, false, false);
	char *lock = piece_lock(p);
	memcpy(out, p, 16);
	__atomic_clear(lock, __ATOMIC_RELEASE);
}

void emu_store16(void *p, const void *in)
{
	step(EMU_RUNS);
	aligned(p, 16, true, false);
	char *lock = piece_lock(p);
	memcpy(p, in, 16);
	__atomic_clear(lock, __ATOMIC_RELEASE);
}

uint32_t emu_atomic_add_u32(uint32_t *p, uint32_t v)
{
	step(EMU_RUNS);
	aligned(p, sizeof *p, true, true);
	return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

uint64_t emu_atomic_add_u64(uint64_t *p, uint64_t v)
{
	step(EMU_RUNS);
	aligned(p, sizeof *p, true, true);
	return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

float emu_atomic_add_f32(float *p, float v)
{
	step(EMU_RUNS);
	aligned(p, sizeof *p, true, true);
	float old, sum;
	__atomic_load(p, &old, __ATOMIC_RELAXED);
	do sum = old + v;
	while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	return old;
}

#define MAX(name, type)                                                                                               \
	type name(type *p, type v)                                                                                        \
	{                                                                                                                 \
		step(EMU_RUNS);                                                                                               \
		aligned(p, sizeof *p, true, true);                                                                            \
		type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                              \
		while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) continue; \
		return old;                                                                                                   \
	}
MAX(emu_atomic_max_u32, uint32_t)
MAX(emu_atomic_max_u64, uint64_t)
MAX(emu_atomic_max_i32, int32_t)

void emu_fence(void)
{
	step(EMU_RUNS);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void emu_trap(void)
{
	emu_lane_fault("gives up: gpu_trap");
}

void emu_pause(void)
{
	step(EMU_SPINS);
}

uint64_t emu_clock_ns(void)
{
	const struct emu_executor *ex = emu_self->block->ex;
	if (ex->together) return ex->switches * ex->options.ns_per_switch;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint16_t emu_f32_to_f16(float v)
{
	const uint32_t bits = f32_to_bits(v), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
	if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
	if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
	if (rest < 0x38800000) {
		/* Subnormal in f16: adding 0.5 leaves the multiples of 2^-24 in the low bits, rounded to nearest even by the addition. */
		const float shifted = f32_from_bits(rest) + 0.5f;
		return (uint16_t)(sign | (f32_to_bits(shifted) - 0x3f000000));
	}
	return (uint16_t)(sign | ((rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13));
}
