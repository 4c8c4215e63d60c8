/* check_wait_emu.c: waits for a stream of an emulated device, whose work begins only when the check says so. Built for the emulated device alone (Makefile). */
#include "base/clock.h"
#include "device/gpu/device.h"
#include "gpu/harness.h"

#define LONG_MS 10000

static void expect(struct gpu_check *c, bool right, const char *what)
{
	if (!right) gpu_fail(c, "%s", what);
	c->compared++;
}

/* Looks until the wait is over. */
static gpu_error look_to_end(struct gpu_check *c, struct gpu_wait *wait)
{
	gpu_error code = GPU_OK;
	const uint64_t deadline = clock_deadline_ms(LONG_MS);
	while (gpu_wait_look(wait, &code))
		if (clock_ns() >= deadline) {
			gpu_fail(c, "a wait does not end");
			break;
		}
	return code;
}

/* Long enough for the runtime to be asked too. */
static bool is_busy(struct gpu_wait *wait)
{
	gpu_error code;
	for (int i = 0; i < 200; i++)
		if (!gpu_wait_look(wait, &code)) return false;
	return true;
}

static void put(struct gpu_check *c, void *to, const int32_t *from)
{
	gpu_ok(c, c->ops->copy(c->stream, to, from, sizeof *from, COPY_TO_DEVICE, &c->err));
}

/* Two waits one after the other: the second is not ended by what the first one's work has written. word: whether the device writes how far it got. */
static void check_waits(struct gpu_check *c, bool word)
{
	const struct gpu_stream_object *object = gpu_stream_object(c->stream);
	const int32_t seven = 7;
	void *to;
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "waits, %s", word ? "by the word" : "by the runtime");
	gpu_ok(c, c->ops->alloc(c->device, sizeof seven, MEM_SCRATCH, "a word", &to, &c->err));
	for (int i = 0; i < 2; i++) {
		struct gpu_wait wait;
		emu_together_begin(&(struct emu_together){.seed = c->seed});
		put(c, to, &seven);
		gpu_wait_begin(&wait, c->stream);
		expect(c, wait.word != NULL, "the device does not say how far it got");
		if (!word) wait.word = NULL, wait.ask_ns = 0;
		expect(c, is_busy(&wait), "a wait is over before its work has begun");
		expect(c, emu_together_run() == GPU_OK, "the work fails");
		if (word) wait.ask_ns = UINT64_MAX;
		expect(c, look_to_end(c, &wait) == GPU_OK, "a wait for work that was done fails");
		expect(c, atomic_load(object->word) == object->marks, "the device has not said that it got there");
	}
	c->ops->free(c->device, to);
	gpu_case_end(c);
}

/* behind: the failure comes after the word was written; else before, and it never is. */
static void check_failure(struct gpu_check *c, bool behind)
{
	const int32_t seven = 7;
	struct gpu_wait wait;
	char *to;
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "a wait for work %s", behind ? "behind which the device fails" : "that fails");
	gpu_ok(c, c->ops->alloc(c->device, sizeof seven, MEM_SCRATCH, "a word", (void **)&to, &c->err));
	emu_together_begin(&(struct emu_together){.seed = c->seed});
	if (behind) gpu_wait_begin(&wait, c->stream);
	put(c, to + 1, &seven); /* its last byte is outside */
	if (!behind) gpu_wait_begin(&wait, c->stream);
	expect(c, emu_together_run() != GPU_OK, "the work does not fail");
	expect(c, (atomic_load(wait.word) == wait.mark) == behind, "the device says that it got where it did not, or does not say where it did");
	expect(c, look_to_end(c, &wait) != GPU_OK, "a wait for work that failed says nothing of it");
	emu_reset();
	gpu_ok(c, c->ops->stream_sync(c->stream, clock_deadline_ms(LONG_MS), NULL, &c->err));
	c->ops->free(c->device, to);
	gpu_case_end(c);
}

void gpu_check_wait_emu(struct gpu_check *c)
{
	check_waits(c, true);
	check_waits(c, false);
	check_failure(c, false);
	check_failure(c, true);
}
