#include "engine/kv_windows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/kv_states.h"

enum status kv_windows_init(struct kv_windows *out, int blocks, int count, uint64_t shuffle, struct error *err)
{
	*out = (struct kv_windows){.blocks = blocks, .count = count, .shuffle = shuffle};
	out->of = mem_zalloc((size_t)blocks + 1, sizeof *out->of, "window blocks", err);
	out->free_list = mem_zalloc((size_t)count, sizeof *out->free_list, "window blocks", err);
	if (!out->of || !out->free_list) {
		kv_windows_fini(out);
		return STATUS_NO_MEMORY;
	}
	kv_windows_reset(out);
	return STATUS_OK;
}

void kv_windows_fini(struct kv_windows *windows)
{
	free(windows->of);
	free(windows->free_list);
	*windows = (struct kv_windows){0};
}

void kv_windows_reset(struct kv_windows *windows)
{
	memset(windows->of, 0, ((size_t)windows->blocks + 1) * sizeof *windows->of);
	kv_fill_stack(windows->free_list, windows->count, windows->shuffle);
	windows->free_count = windows->count;
	windows->idle_count = 0;
}

static void unlink_idle(struct kv_windows *windows, int32_t block)
{
	const struct kv_window *w = &windows->of[block];
	windows->of[w->older].newer = w->newer;
	windows->of[w->newer].older = w->older;
	windows->idle_count--;
}

void kv_windows_drop(struct kv_windows *windows, int32_t block)
{
	struct kv_window *w = &windows->of[block];
	if (!w->at) return;
	if (!w->wants) unlink_idle(windows, block);
	windows->free_list[windows->free_count++] = w->at;
	*w = (struct kv_window){0};
}

void kv_windows_attach(struct kv_windows *windows, int32_t block)
{
	assert(!windows->of[block].at);
	if (!windows->free_count) kv_windows_drop(windows, windows->of[0].newer);
	windows->of[block] = (struct kv_window){.at = windows->free_list[--windows->free_count], .wants = 1};
}

void kv_windows_want(struct kv_windows *windows, int32_t block)
{
	assert(windows->of[block].at);
	if (windows->of[block].wants++ == 0) unlink_idle(windows, block);
}

void kv_windows_unwant(struct kv_windows *windows, int32_t block, bool keep)
{
	struct kv_window *w = &windows->of[block], *ring = &windows->of[0];
	if (--w->wants > 0) return;
	w->older = ring->older;
	w->newer = 0;
	windows->of[ring->older].newer = block;
	ring->older = block;
	windows->idle_count++;
	if (!keep) kv_windows_drop(windows, block);
}

void kv_windows_move(struct kv_windows *windows, int32_t from, int32_t to)
{
	assert(windows->of[from].wants == 1 && !windows->of[to].at);
	windows->of[to] = windows->of[from];
	windows->of[from] = (struct kv_window){0};
}

enum status kv_windows_check(const struct kv_windows *windows, int *wants, struct error *err)
{
	int n = windows->blocks, idle = 0, wanted = 0;
	for (int32_t b = 1; b <= n; b++) {
		const struct kv_window *w = &windows->of[b];
		if (wants[b] != w->wants || (w->wants && !w->at))
			return FAIL(err, BAD_INPUT, "kv check: the window of block %d (window block %d) is wanted %d times and counts %d", b, w->at, wants[b], w->wants);
		wanted += w->wants > 0;
	}
	for (int32_t b = windows->of[0].newer; b && idle <= n; b = windows->of[b].newer, idle++)
		if (windows->of[b].wants || !windows->of[b].at || wants[b]++)
			return FAIL(err, BAD_INPUT, "kv check: window block %d (wants %d) is in the idle ring wrongly", windows->of[b].at, windows->of[b].wants);
	if (windows->of[0].at || windows->of[0].wants) return FAIL(err, BAD_INPUT, "kv check: the sink has a window block");
	if (idle != windows->idle_count || wanted + idle + windows->free_count != windows->count)
		return FAIL(err, BAD_INPUT, "kv check: %d wanted + %d idle (counted %d) + %d empty are not %d window blocks", wanted, idle, windows->idle_count,
		            windows->free_count, windows->count);
	return STATUS_OK;
}
