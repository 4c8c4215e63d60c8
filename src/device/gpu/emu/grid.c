/* grid.c: which fiber runs next. The executor of an OS thread holds the launches that run, their blocks that have started, and a list of
 * the fibers that can run; it picks one by a seeded choice, runs it to its next switch point, and looks at why it came back.
 *
 * Eager: one launch; one block at a time, in a seeded order. When the fibers do nothing but spin, they may wait for a block of the same launch
 * that has not started (the next one starts), or for another OS thread (this one yields).
 * Together: the heads of all streams, all their blocks at once as far as fibers go. When all spin for long, it is a deadlock.
 */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/gpu/emu/internal.h"

#define MAX_FIBERS 12000 /* each has a stack and a guard page, and the host's kernel allows some 65 000 mappings */

_Thread_local struct emu_lane *emu_self;

/* ---- faults: one per device, the first; and the text of the first of all */

static struct {
	pthread_mutex_t lock;
	bool faulted[EMU_DEVICES];
	char text[400];
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER, .text = "fault in a kernel"};

const char *emu_fault_text(void)
{
	return faults.text;
}

void emu_faults_reset(void)
{
	pthread_mutex_lock(&faults.lock);
	memset(faults.faulted, 0, sizeof faults.faulted);
	snprintf(faults.text, sizeof faults.text, "fault in a kernel");
	pthread_mutex_unlock(&faults.lock);
}

void emu_fault(int device, const char *format, ...)
{
	pthread_mutex_lock(&faults.lock);
	bool first = true;
	for (int d = 0; d < EMU_DEVICES; d++) first &= !faults.faulted[d];
	faults.faulted[device] = true;
	if (first) {
		va_list args;
		va_start(args, format);
		vsnprintf(faults.text, sizeof faults.text, format, args);
		va_end(args);
	}
	pthread_mutex_unlock(&faults.lock);
}

gpu_error emu_device_state(int device)
{
	pthread_mutex_lock(&faults.lock);
	const gpu_error code = faults.faulted[device] ? EMU_FAULT : GPU_OK;
	pthread_mutex_unlock(&faults.lock);
	return code;
}

void emu_lane_fault(const char *format, ...)
{
	struct emu_lane *me = emu_self;
	char what[256];
	va_list args;
	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	const struct emu_index *at = &me->index;
	emu_fault(me->block->grid->device, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s", me->block->grid->op->launch.name, at->block.x,
	          at->block.y, at->block.z, at->thread.x, at->thread.y, at->thread.z, what);
	me->state = EMU_FAULTED;
	emu_switch_out(me);
	abort(); /* nothing runs a fiber again whose block was given up */
}

/* ---- the executor */

static pthread_key_t executor_key;
static pthread_once_t executor_once = PTHREAD_ONCE_INIT;

static void executor_free(void *p)
{
	struct emu_executor *ex = p;
	for (struct emu_fiber *f = ex->free_fibers, *next; f; f = next) {
		next = f->next_free;
		emu_fiber_destroy(f);
	}
	for (struct emu_block *b = ex->free_blocks, *next; b; b = next) {
		next = b->next_free;
		emu_block_destroy(b);
	}
	free(ex->runnable);
	free(ex->active);
	free(ex);
}

static void executor_setup(void)
{
	pthread_key_create(&executor_key, executor_free);
}

struct emu_executor *emu_executor(void)
{
	pthread_once(&executor_once, executor_setup);
	struct emu_executor *ex = pthread_getspecific(executor_key);
	if (ex) return ex;
	ex = calloc(1, sizeof *ex);
	if (!ex) return NULL;
	ex->runnable = calloc(MAX_FIBERS + EMU_MAX_THREADS, sizeof(struct emu_lane *));
	ex->active = calloc(MAX_FIBERS + EMU_MAX_THREADS, sizeof(struct emu_block *));
	ex->random = 0x9e3779b97f4a7c15u;
	emu_fiber_main(&ex->main);
	if (!ex->runnable || !ex->active || pthread_setspecific(executor_key, ex)) {
		executor_free(ex);
		return NULL;
	}
	return ex;
}

void emu_seed(uint64_t seed)
{
	struct emu_executor *ex = emu_executor();
	if (!ex) return;
	ex->random = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
	ex->slow_until = ex->switches;
	ex->blocks_made = 0;
}

uint64_t emu_switches(void)
{
	const struct emu_executor *ex = emu_executor();
	return ex ? ex->switches : 0;
}

uint64_t emu_random(struct emu_executor *ex) /* xorshift64* */
{
	ex->random ^= ex->random >> 12;
	ex->random ^= ex->random << 25;
	ex->random ^= ex->random >> 27;
	return ex->random * 0x2545f4914f6cdd1du >> 16;
}

void emu_lane_wakes(struct emu_lane *lane)
{
	struct emu_executor *ex = lane->block->ex;
	lane->state = EMU_RUNS;
	lane->runnable = ex->runnable_count;
	ex->runnable[ex->runnable_count++] = lane;
	lane->block->runnable++;
}

static void sleeps(struct emu_lane *lane)
{
	struct emu_executor *ex = lane->block->ex;
	struct emu_lane *last = ex->runnable[--ex->runnable_count];
	ex->runnable[lane->runnable] = last;
	last->runnable = lane->runnable;
	lane->runnable = -1;
	lane->block->runnable--;
}

void emu_switch_out(struct emu_lane *lane)
{
	struct emu_executor *ex = lane->block->ex;
	emu_self = NULL;
	emu_fiber_switch(lane->fiber, &ex->main, lane->state == EMU_LEFT);
	/* Woken or picked again: the executor has set emu_self. */
}

/* ---- launches */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b) {
		const uint64_t r = a % b;
		a = b, b = r;
	}
	return a;
}

static void grid_init(struct emu_executor *ex, struct emu_grid *grid, const struct emu_op *op, int device)
{
	const struct emu_dim3 dim = op->launch.grid;
	*grid = (struct emu_grid){.op = op, .device = device, .blocks = (uint64_t)dim.x * dim.y * dim.z};
	grid->first = emu_random(ex) % grid->blocks;
	do grid->step = emu_random(ex) % grid->blocks + 1;
	while (common_divisor(grid->step, grid->blocks) != 1);
	grid->next = ex->grids;
	ex->grids = grid;
	if (ex->stamp > 0xf0000000u && !ex->active_count) emu_stamps_restart(ex);
}

/* Starts the next block of a launch that has one left. False: there is none, or no room for it now. */
static bool start_block(struct emu_executor *ex, struct emu_grid *grid)
{
	const struct emu_dim3 dim = grid->op->launch.block;
	const int threads = (int)(dim.x * dim.y * dim.z);
	if (grid->started == grid->blocks) return false;
	if (ex->active_count && ex->fibers + threads > MAX_FIBERS) return false;
	struct emu_block *block = emu_block_start(ex, grid, (grid->first + grid->started * grid->step) % grid->blocks);
	if (!block) {
		if (!ex->active_count) {
			emu_fault(grid->device, "kernel %s: no host memory for a block of %d threads", grid->op->launch.name, threads);
			ex->faulted = true;
		}
		return false;
	}
	grid->started++;
	grid->alive++;
	ex->fibers += threads;
	ex->active[ex->active_count++] = block;
	ex->idle = 0;
	return true;
}

static void end_block(struct emu_executor *ex, struct emu_block *block)
{
	for (int i = 0; i < ex->active_count; i++)
		if (ex->active[i] == block) ex->active[i] = ex->active[--ex->active_count];
	ex->fibers -= block->threads;
	block->grid->alive--;
	ex->idle = 0;
	emu_block_end(block);
}

static void grid_remove(struct emu_executor *ex, struct emu_grid *grid)
{
	struct emu_grid **at = &ex->grids;
	while (*at != grid) at = &(*at)->next;
	*at = grid->next;
}

/* After a fault: every fiber that runs is given up where it is. */
static void give_up(struct emu_executor *ex)
{
	while (ex->active_count) end_block(ex, ex->active[0]);
	ex->runnable_count = 0;
	ex->grids = NULL;
}

static void describe_deadlock(struct emu_executor *ex)
{
	char text[256];
	int used = 0;
	text[0] = 0;
	for (const struct emu_grid *g = ex->grids; g && used < (int)sizeof text; g = g->next)
		used += snprintf(text + used, sizeof text - (size_t)used, "%s%s on device %d (%llu of %llu blocks unfinished)", used ? ", " : "", g->op->launch.name, g->device,
		                 (unsigned long long)(g->alive + g->blocks - g->started), (unsigned long long)g->blocks);
	for (const struct emu_grid *g = ex->grids; g; g = g->next)
		emu_fault(g->device, "deadlock: for %llu switches nothing but spinning in %s", (unsigned long long)ex->idle, text);
	ex->faulted = true;
}

/* All that can run spins. */
static void idle(struct emu_executor *ex)
{
	const uint64_t limit = 4 * (uint64_t)ex->runnable_count + 64;
	if (ex->idle < limit) return;
	if (ex->idle % limit == 0)
		for (struct emu_grid *g = ex->grids; g; g = g->next)
			if (start_block(ex, g)) return;
	if (ex->together) {
		if (ex->idle > ex->options.stall) describe_deadlock(ex);
		return;
	}
	if (ex->idle % 64) return;
	if (ex->idle < 8 * limit) sched_yield();
	else nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* A fair choice would let all waves get on alike, and what needs one to be far behind would not be seen. So the way of choosing changes at
 * random after some switches: whoever woke last, so that one wave runs ahead (and the cache is warm); all in turn; a random fiber; a random one,
 * where a half of the devices, of the blocks or of the waves is picked only if six tries in a row found no other. */
enum choice { LAST_WOKEN, IN_TURN, RANDOM, RANDOM_HELD_BACK, CHOICES };

static bool held_back(const struct emu_executor *ex, const struct emu_lane *lane)
{
	uint64_t who = (uint64_t)lane->block->grid->device;
	if (ex->slow & 12) who = lane->block->number;
	if (ex->slow & 8) who = who * EMU_MAX_WAVES + (uint64_t)(lane->thread / GPU_WARP);
	return (((who + 1) * 0x9e3779b97f4a7c15u ^ ex->slow) * 0xbf58476d1ce4e5b9u >> 63) != 0;
}

static struct emu_lane *random_lane(struct emu_executor *ex)
{
	return ex->runnable[(emu_random(ex) & 0xffffffff) * (uint64_t)ex->runnable_count >> 32];
}

static struct emu_lane *choose(struct emu_executor *ex)
{
	if (ex->switches >= ex->slow_until) {
		ex->slow = emu_random(ex);
		ex->slow_until = ex->switches + 30 + emu_random(ex) % 600;
	}
	struct emu_lane *lane;
	int tries = 6;
	switch ((enum choice)(ex->slow % CHOICES)) {
	case LAST_WOKEN: return ex->runnable[ex->runnable_count - 1];
	case IN_TURN: return ex->runnable[ex->switches % (uint64_t)ex->runnable_count];
	case RANDOM: case CHOICES: return random_lane(ex);
	case RANDOM_HELD_BACK: break;
	}
	do lane = random_lane(ex);
	while (tries-- && held_back(ex, lane));
	return lane;
}

/* One fiber to its next switch point. */
static void step(struct emu_executor *ex)
{
	struct emu_lane *lane = choose(ex);
	struct emu_block *block = lane->block;
	ex->switches++;
	ex->idle++; /* whatever moves something sets it to 0 */
	emu_self = lane;
	emu_fiber_switch(&ex->main, lane->fiber, false);
	switch (lane->state) {
	case EMU_RUNS: return;
	case EMU_SPINS: idle(ex); return;
	case EMU_FAULTED: ex->faulted = true; return;
	case EMU_LEFT: block->alive--; ex->idle = 0; break;
	case EMU_WAITS_SYNC: case EMU_WAITS_WAVE: break;
	}
	sleeps(lane);
	if (block->runnable) return;
	if (block->alive) {
		emu_block_stuck(block);
		ex->faulted = true;
		return;
	}
	end_block(ex, block);
}

gpu_error emu_grid_run(struct emu_executor *ex, const struct emu_op *op, int device)
{
	struct emu_grid grid;
	grid_init(ex, &grid, op, device);
	while (!ex->faulted && (grid.started < grid.blocks || grid.alive)) {
		if (!ex->active_count) start_block(ex, &grid);
		else step(ex);
	}
	grid_remove(ex, &grid);
	if (ex->faulted) give_up(ex);
	ex->faulted = false;
	return emu_device_state(device);
}

/* ---- together */

void emu_together_begin(const struct emu_together *options)
{
	struct emu_executor *ex = emu_executor();
	if (!ex) return;
	emu_seed(options->seed);
	ex->options = *options;
	if (!ex->options.stall) ex->options.stall = 200000;
	if (!ex->options.ns_per_switch) ex->options.ns_per_switch = 100;
	ex->queueing = true;
}

static void stream_pop(struct emu_stream *stream)
{
	struct emu_op *op = stream->head;
	stream->head = op->next;
	if (!stream->head) stream->tail = &stream->head;
	emu_op_free(op);
}

/* Does or starts what heads a stream; a device that has failed does nothing more. False: it must wait. */
static bool stream_step(struct emu_executor *ex, struct emu_stream *stream)
{
	struct emu_op *op = stream->head;
	if (emu_device_state(stream->device) != GPU_OK) {
		stream_pop(stream);
		return true;
	}
	if (op->kind != EMU_OP_KERNEL) {
		if (!emu_op_do(op, stream->device)) return false;
		stream_pop(stream);
		return true;
	}
	grid_init(ex, &stream->grid, op, stream->device);
	stream->running = true;
	while (start_block(ex, &stream->grid)) continue;
	return true;
}

/* Gives the streams whose kernel has ended their next op, and starts blocks that had no room. True: something moved. */
static bool advance(struct emu_executor *ex)
{
	bool moved = false;
	for (struct emu_stream *s = ex->streams; s && !ex->faulted; s = s->next_queued) {
		if (s->running && !s->grid.alive && s->grid.started == s->grid.blocks) {
			grid_remove(ex, &s->grid);
			s->running = false;
			stream_pop(s);
			moved = true;
		}
		while (s->running && start_block(ex, &s->grid)) moved = true;
		while (!s->running && s->head && stream_step(ex, s)) moved = true;
	}
	return moved;
}

static bool anything_queued(const struct emu_executor *ex)
{
	for (const struct emu_stream *s = ex->streams; s; s = s->next_queued)
		if (s->head) return true;
	return false;
}

static gpu_error queue_drop(struct emu_executor *ex)
{
	gpu_error code = GPU_OK;
	while (ex->streams) {
		struct emu_stream *s = ex->streams;
		ex->streams = s->next_queued;
		s->listed = s->running = false;
		while (s->head) stream_pop(s);
		if (emu_device_state(s->device) != GPU_OK) code = EMU_FAULT;
	}
	return code;
}

gpu_error emu_together_run(void)
{
	struct emu_executor *ex = emu_executor();
	if (!ex || !ex->queueing) return EMU_BAD_VALUE;
	ex->queueing = false;
	ex->together = true;
	ex->idle = 0;
	const uint64_t begin = ex->switches;
	int blocks = -1;
	while (!ex->faulted) {
		/* A block has ended: perhaps a launch has. */
		if (ex->active_count != blocks) advance(ex);
		blocks = ex->active_count;
		if (!ex->runnable_count) {
			if (!anything_queued(ex)) break;
			if (!advance(ex) && !ex->runnable_count) {
				emu_fault(ex->streams->device, "deadlock: streams wait for events that nothing on a stream will record");
				ex->faulted = true;
			}
			continue;
		}
		step(ex);
		if (ex->options.tick && ex->options.tick_every && (ex->switches - begin) % ex->options.tick_every == 0)
			ex->options.tick(ex->options.arg, ex->switches - begin);
	}
	if (ex->faulted) give_up(ex);
	ex->faulted = ex->together = false;
	return queue_drop(ex);
}
