/* Steps beside everything else: they allocate nothing, and other threads may cancel and look at any time. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "base/status.h"
#include "tandem.h"
#include "unit/golden.h"

enum { EVENTS = 64 };

/* --- counting allocations: of all threads, while `counting` is set; not under sanitizers, which have their own allocator --------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *ptr, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *ptr);

static _Atomic bool counting;
static _Atomic int allocations, frees;

static void count_one(_Atomic int *counter)
{
	if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(counter, 1);
}

void *malloc(size_t bytes)
{
	count_one(&allocations);
	return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	count_one(&allocations);
	return __libc_calloc(count, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
	count_one(&allocations);
	return __libc_realloc(ptr, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	count_one(&allocations);
	return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	count_one(&allocations);
	*out = __libc_memalign(alignment, bytes);
	return *out ? 0 : 12; /* ENOMEM */
}

void free(void *ptr)
{
	if (ptr) count_one(&frees);
	__libc_free(ptr);
}
#endif

/* ---------------------------------------------------------------------------------------------------------------------------- */

static struct tandem *open_with(struct tandem_options o)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	if (!o.model) o.model = GOLDEN_DIR "llama";
	o.context = 256;
	o.threads = o.world_size;
	o.kv_block_tokens = 16;
	if (tandem_open(&engine, &o, &err)) fail_msg("open: %s", err.text);
	return engine;
}

static uint64_t submit(struct tandem *engine, int variant, int prompt, int max_tokens)
{
	int32_t text[256];
	uint64_t id;
	struct tandem_error err = {0};
	for (int i = 0; i < prompt; i++) text[i] = (variant * 31 + i * 17 + i * i) % 160;
	struct tandem_request r = {.prompt = text, .prompt_count = prompt, .max_tokens = max_tokens, .ignore_eos = true};
	if (variant % 2)
		r.sampling = (struct tandem_sampling){.temperature = 0.9, .top_k = 40, .seed = 1, .repetition_penalty = 1.1, .presence_penalty = 0.1,
		                                      .logprobs = 5};
	if (tandem_submit(engine, &r, &id, &err)) fail_msg("submit: %s", err.text);
	return id;
}

static struct tandem_event events[EVENTS];

static int step(struct tandem *engine, bool *idle)
{
	struct tandem_error err = {0};
	int count;
	if (tandem_step(engine, events, EVENTS, &count, idle, &err)) fail_msg("step: %s", err.text);
	return count;
}

#if COUNTS_ALLOCATIONS
/* Decode of all, over many block edges, with state and without; then with KV so small that blocks are evicted, sequences preempted and computed again. */
static void test_steps_allocate_nothing(void **state)
{
	(void)state;
	static const char *const models[] = {GOLDEN_DIR "llama", GOLDEN_DIR "qwen3_5", GOLDEN_DIR "qwen3_5"};
	for (int m = 0; m < 3; m++) {
		for (int small = 0; small < 2; small++) {
			const int P = 1 << m;
			struct tandem *engine = open_with((struct tandem_options){.model = models[m], .world_size = P, .max_sequences = 4, .prefill_chunk = 32, .kv_tokens = small ? 400 : 1024});
			bool idle;
			int tokens = 0;
			atomic_store(&counting, true);
			for (int i = 0; i < 4; i++) submit(engine, i, 40 + i, 200);
			assert_true(atomic_load(&allocations) > 0); /* requests do; so the count works */
			atomic_store(&counting, false);
			for (int i = 0; i < 10; i++) step(engine, &idle);
			atomic_store(&allocations, 0);
			atomic_store(&frees, 0);
			atomic_store(&counting, true);
			for (int i = 0; i < 180; i++) tokens += step(engine, &idle);
			atomic_store(&counting, false);
			struct tandem_stats s;
			tandem_get_stats(engine, &s);
			assert_int_equal(atomic_load(&allocations), 0);
			assert_int_equal(atomic_load(&frees), 0);
			assert_true(tokens > 200);
			if (small) assert_true(s.preemptions > 0 && s.evictions > 0);
			tandem_close(&engine);
		}
	}
}
#endif

struct others {
	struct tandem *engine;
	uint64_t first;
	int requests;
	_Atomic bool stop;
	_Atomic int cancelled, looks;
};

static void *cancel_all(void *context)
{
	struct others *o = context;
	for (int i = 0; i < o->requests; i += 2) {
		nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
		if (tandem_cancel(o->engine, o->first + (uint64_t)i) == 0) atomic_fetch_add(&o->cancelled, 1);
	}
	return NULL;
}

static void *look(void *context)
{
	struct others *o = context;
	uint64_t commands = 0;
	while (!atomic_load(&o->stop)) {
		for (int r = 0; r < 2; r++) {
			struct tandem_health h;
			tandem_get_health(o->engine, r, &h);
			if (!h.usable || (r == 0 && h.commands < commands)) return NULL;
			if (r == 0) commands = h.commands;
		}
		atomic_fetch_add(&o->looks, 1);
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	}
	return o;
}

static void test_other_threads_cancel_and_look(void **state)
{
	(void)state;
	enum { REQUESTS = 40 };
	struct others o = {.engine = open_with((struct tandem_options){.world_size = 2, .max_sequences = 3, .kv_tokens = 512}), .requests = REQUESTS};
	int ends[REQUESTS] = {0}, cancelled = 0;
	pthread_t canceller, looker;
	for (int i = 0; i < REQUESTS; i++) {
		uint64_t id = submit(o.engine, i, 20 + i, 30);
		if (!i) o.first = id;
	}
	assert_int_equal(pthread_create(&canceller, NULL, cancel_all, &o), 0);
	assert_int_equal(pthread_create(&looker, NULL, look, &o), 0);
	/* Both are there before the first step, behind which the requests could end without them. */
	for (int i = 0; i < 60000 && !(atomic_load(&o.cancelled) && atomic_load(&o.looks)); i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	for (bool idle = false; !idle;) {
		int count = step(o.engine, &idle);
		for (int i = 0; i < count; i++) {
			assert_int_equal(ends[events[i].id - o.first], 0);
			ends[events[i].id - o.first] += events[i].finish != TANDEM_RUNNING;
			cancelled += events[i].finish == TANDEM_CANCELLED;
		}
	}
	void *whole;
	pthread_join(canceller, NULL);
	atomic_store(&o.stop, true);
	pthread_join(looker, &whole);
	assert_ptr_equal(whole, &o);
	for (int i = 0; i < REQUESTS; i++) assert_int_equal(ends[i], 1);
	assert_true(cancelled > 0);
	assert_true(cancelled <= atomic_load(&o.cancelled)); /* one may have ended just then */
	assert_true(atomic_load(&o.looks) > 0);
	assert_int_equal(tandem_cancel(o.engine, o.first), STATUS_BAD_INPUT);
	tandem_close(&o.engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#if COUNTS_ALLOCATIONS
		cmocka_unit_test(test_steps_allocate_nothing),
#endif
		cmocka_unit_test(test_other_threads_cancel_and_look),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
