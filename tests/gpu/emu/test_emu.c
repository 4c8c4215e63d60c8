/* test_emu.c: the emulated device on kernels whose faults are planted, and its runtime. What passes here is why a kernel that passes on the
 * emulated device says something. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "gpu/emu/kernels.h"

#define SEEDS 12

static void ok(gpu_error code)
{
	if (code != GPU_OK) fail_msg("%s", gpu_error_text(code));
}

static gpu_stream stream_on(int device)
{
	gpu_stream stream;
	ok(gpu_set_device(device));
	ok(gpu_stream_create(&stream));
	return stream;
}

static void *room(size_t bytes)
{
	void *p;
	ok(gpu_malloc(&p, bytes));
	return p;
}

static void *zeroed(size_t bytes, gpu_stream stream)
{
	void *p = room(bytes);
	ok(gpu_memset_async(p, 0, bytes, stream));
	return p;
}

static void get(void *host, const void *device, size_t bytes, gpu_stream stream)
{
	ok(gpu_copy_async(host, device, bytes, stream));
}

static int setup(void **state)
{
	(void)state;
	emu_reset();
	emu_seed(1);
	return 0;
}

/* ---- faults */

static const char *const planted_names[] = {
#define X(name, text) #name,
	PLANTED_LIST(X)
#undef X
};
static const char *const planted_texts[] = {
#define X(name, text) text,
	PLANTED_LIST(X)
#undef X
};

struct planted_case {
	gpu_stream stream;
	float *x, *out;
	float host[1000];
};

static void planted_make(struct planted_case *c)
{
	c->stream = stream_on(0);
	c->x = room(sizeof c->host);
	c->out = room(256 * sizeof *c->out);
	for (int i = 0; i < 1000; i++) c->host[i] = (float)i;
	ok(gpu_copy_async(c->x, c->host, sizeof c->host, c->stream));
}

static void planted_free(struct planted_case *c)
{
	ok(gpu_free(c->x));
	ok(gpu_free(c->out));
	ok(gpu_stream_destroy(c->stream));
}

static void test_right_kernels_pass(void **state)
{
	(void)state;
	struct planted_case c;
	planted_make(&c);
	for (int which = 0; which < PLANTED_COUNT; which++)
		for (int seed = 0; seed < SEEDS; seed++) {
			emu_seed((uint64_t)seed);
			gpu_error code = planted_launch((enum planted)which, false, c.x, c.out, c.host, c.stream);
			if (code != GPU_OK) fail_msg("%s, seed %d: %s", planted_names[which], seed, gpu_error_text(code));
			float out[256];
			get(out, c.out, sizeof out, c.stream);
			for (int i = 0; i < 256; i++) {
				float want = (float)(i + i / 128 * 128 + (i + 1) % 128);
				if (out[i] != want) fail_msg("%s, seed %d: out[%d] is %g, not %g", planted_names[which], seed, i, (double)out[i], (double)want);
			}
		}
	planted_free(&c);
}

static void test_planted_faults_are_found(void **state)
{
	(void)state;
	struct planted_case c;
	planted_make(&c);
	for (int which = 0; which < PLANTED_COUNT; which++)
		for (int seed = 0; seed < SEEDS; seed++) {
			emu_seed((uint64_t)seed);
			gpu_error code = planted_launch((enum planted)which, true, c.x, c.out, c.host, c.stream);
			const char *text = gpu_error_text(code);
			if (code != EMU_FAULT) fail_msg("%s, seed %d: not found", planted_names[which], seed);
			if (!strstr(text, planted_texts[which]) || !strstr(text, "_kernel, block (") || !strstr(text, "thread"))
				fail_msg("%s, seed %d: '%s' lacks '%s', kernel, block or thread", planted_names[which], seed, text, planted_texts[which]);
			emu_reset();
		}
	planted_free(&c);
}

static void test_width_32_is_no_assumption(void **state)
{
	(void)state;
	struct planted_case c;
	planted_make(&c);
	float out[2];
	gpu_error code = width_half_wave(c.x, c.out, c.stream);
	if (GPU_WARP == 32) {
		ok(code);
		get(out, c.out, sizeof out, c.stream);
		assert_true(out[0] == 127 * 64 && out[1] == 127 * 64 + 128 * 128);
	} else {
		assert_int_equal(code, EMU_FAULT);
		assert_non_null(strstr(gpu_error_text(code), "gpu_shfl_xor"));
	}
	emu_reset();
	ok(width_wrong_sum(c.x, c.out, c.stream));
	get(out, c.out, sizeof out, c.stream);
	assert_true((out[0] == 127 * 64) == (GPU_WARP == 32));
	planted_free(&c);
}

static void test_seeds_change_the_order(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	uint32_t *words = room(8), host[2];
	int waves[2] = {0}, first[5] = {0};
	for (int seed = 0; seed < 60; seed++) {
		emu_seed((uint64_t)seed);
		ok(gpu_memset_async(words, 0, 8, stream));
		ok(order_of_waves(words, words + 1, stream));
		get(host, words, 8, stream);
		assert_true(host[1] <= 1);
		waves[host[1]]++;
		ok(gpu_memset_async(words, 0, 8, stream));
		ok(order_of_blocks(words, words + 1, 5, stream));
		get(host, words, 8, stream);
		assert_int_equal(host[0], 5);
		first[host[1]]++;
	}
	assert_true(waves[0] > 5 && waves[1] > 5);
	for (int b = 0; b < 5; b++) assert_true(first[b] > 0);
	uint64_t switches[2], again[2];
	for (int i = 0; i < 2; i++) { /* a seed replays */
		emu_seed(7);
		switches[i] = emu_switches();
		ok(gpu_memset_async(words, 0, 8, stream));
		ok(order_of_blocks(words, words + 1, 5, stream));
		ok(order_of_waves(words, words + 1, stream));
		switches[i] = emu_switches() - switches[i];
		get(host, words, 8, stream);
		again[i] = host[1];
	}
	assert_int_equal(switches[0], switches[1]);
	assert_int_equal(again[0], again[1]);
	ok(gpu_free(words));
	ok(gpu_stream_destroy(stream));
}

static void test_a_fault_is_sticky(void **state)
{
	(void)state;
	struct planted_case c;
	planted_make(&c);
	assert_int_equal(planted_launch(PLANTED_HOST_MEMORY, true, c.x, c.out, c.host, c.stream), EMU_FAULT);
	char text[400];
	snprintf(text, sizeof text, "%s", gpu_error_text(EMU_FAULT));
	void *p;
	assert_int_equal(gpu_stream_query(c.stream), EMU_FAULT);
	assert_int_equal(gpu_malloc(&p, 16), EMU_FAULT);
	assert_null(p);
	assert_int_equal(planted_launch(PLANTED_NO_BARRIER, true, c.x, c.out, c.host, c.stream), EMU_FAULT);
	assert_string_equal(gpu_error_text(EMU_FAULT), text); /* the first */
	assert_int_equal(gpu_last_error(), EMU_FAULT);
	assert_int_equal(gpu_last_error(), GPU_OK);
	gpu_stream other = stream_on(1); /* another device works */
	assert_int_equal(gpu_stream_query(other), GPU_OK);
	ok(gpu_stream_destroy(other));
	ok(gpu_set_device(0));
	emu_reset();
	ok(gpu_stream_query(c.stream));
	planted_free(&c);
}

static void test_a_peer_must_be_enabled(void **state)
{
	(void)state;
	gpu_stream second = stream_on(1);
	float *x = zeroed(64, second), host[16];
	gpu_stream first = stream_on(0);
	gpu_error code = words_add(x, 2, 16, first);
	assert_int_equal(code, EMU_FAULT);
	assert_non_null(strstr(gpu_error_text(code), "memory of device 1, whose peer access is not enabled"));
	emu_reset();
	int can = 0;
	ok(gpu_peer_can(&can, 0, 1));
	assert_int_equal(can, 1);
	ok(gpu_peer_enable(1));
	assert_int_equal(gpu_peer_enable(1), GPU_PEER_ALREADY);
	assert_int_equal(gpu_peer_enable(0), EMU_BAD_VALUE);
	ok(words_add(x, 2, 16, first));
	get(host, x, 64, first);
	assert_true(host[15] == 2);
	assert_int_equal(words_add(x, 2, 16, second), EMU_BAD_VALUE); /* a stream of another device than the current one */
	ok(gpu_free(x));
	assert_int_equal(words_add(x, 2, 16, first), EMU_FAULT); /* after its end */
	assert_non_null(strstr(gpu_error_text(EMU_FAULT), "where nothing is allocated"));
	ok(gpu_stream_destroy(first));
	ok(gpu_stream_destroy(second));
}

/* ---- words */

static void test_indices(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	unsigned grid[3] = {3, 2, 2}, block[3] = {5, 3, 4};
	const unsigned threads = 60, blocks = 12;
	uint32_t *out = room(threads * blocks * 40), *host = malloc(threads * blocks * 40);
	ok(words_index(out, grid, block, stream));
	get(host, out, threads * blocks * 40, stream);
	for (unsigned i = 0; i < threads * blocks; i++) {
		const unsigned t = i % threads, b = i / threads;
		const uint32_t want[10] = {t % 5, t / 5 % 3, t / 15, b % 3, b / 3 % 2, b / 6, 5, 3, 3, 2};
		assert_memory_equal(host + i * 10, want, sizeof want);
	}
	free(host);
	ok(gpu_free(out));
	ok(gpu_stream_destroy(stream));
}

static void check_wave_words(const uint32_t *o, int t, int threads)
{
	const int base = t / GPU_WARP * GPU_WARP, lanes = threads - base < GPU_WARP ? threads - base : GPU_WARP, lane = t - base;
	const int from[5] = {lane ^ 1, lane ^ (GPU_WARP / 2), lane + 1 < GPU_WARP ? lane + 1 : lane, lane + GPU_WARP - 1 < GPU_WARP ? lane + GPU_WARP - 1 : lane, 2};
	for (int i = 0; i < 5; i++) {
		const uint32_t want = from[i] < lanes ? (uint32_t)(base + from[i]) : 0xffffffffu; /* a lane that is not there */
		if (o[i] != want) fail_msg("%d threads, thread %d, word %d: %u, not %u", threads, t, i, o[i], want);
	}
	uint64_t odd = 0;
	for (int l = 1; l < lanes; l += 2) odd |= 1ull << l;
	assert_true((o[5] | (uint64_t)o[6] << 32) == odd);
	assert_true(o[7] == o[0]);
}

static void test_waves(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	const int sizes[] = {1, 2, 31, 32, 33, 64, 65, 100, 256, 1000, 1024};
	uint32_t *out = room(1024 * 32), *host = malloc(1024 * 32);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		ok(words_waves(out, sizes[s], stream));
		get(host, out, (size_t)sizes[s] * 32, stream);
		for (int t = 0; t < sizes[s]; t++) check_wave_words(host + t * 8, t, sizes[s]);
	}
	free(host);
	ok(gpu_free(out));
	ok(gpu_stream_destroy(stream));
}

static void test_atomics(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	uint32_t *sums = room(32), host[8] = {0};
	host[4] = (uint32_t)-1000;
	ok(gpu_copy_async(sums, host, 32, stream));
	ok(words_atomics(sums, stream));
	get(host, sums, 32, stream);
	assert_int_equal(host[0], 383 * 384 / 2);
	assert_int_equal((int32_t)host[1], -383 * 384 / 2);
	assert_true(f32_from_bits(host[2]) == 192);
	assert_int_equal(host[3], 383);
	assert_int_equal((int32_t)host[4], -5);
	assert_int_equal(host[6] | (uint64_t)host[7] << 32, 384ull << 31);
	ok(gpu_free(sums));
	ok(gpu_stream_destroy(stream));
}

/* All of f16, all points halfway between two of it, and their neighbours. */
static void test_conversions(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	const int n = 4 * 0x7c00;
	float *in = malloc((size_t)n * 4), *back = malloc((size_t)n * 4);
	uint16_t *got = malloc((size_t)n * 2), *bf = malloc((size_t)n * 2);
	for (int h = 0; h < 0x7c00; h++) {
		const float a = f16_to_f32((uint16_t)h), b = h == 0x7bff ? 65536 : f16_to_f32((uint16_t)(h + 1));
		const float middle = (a + b) / 2, sign = h % 3 ? 1.0f : -1.0f;
		in[4 * h] = sign * a, in[4 * h + 1] = sign * middle;
		in[4 * h + 2] = sign * nextafterf(middle, 0), in[4 * h + 3] = sign * nextafterf(middle, INFINITY);
	}
	float *d_in = room((size_t)n * 4), *d_back = room((size_t)n * 4);
	uint16_t *d_out = room((size_t)n * 2), *d_bf = room((size_t)n * 2);
	ok(gpu_copy_async(d_in, in, (size_t)n * 4, stream));
	ok(words_convert(d_in, d_out, d_back, d_bf, n, stream));
	get(got, d_out, (size_t)n * 2, stream);
	get(back, d_back, (size_t)n * 4, stream);
	get(bf, d_bf, (size_t)n * 2, stream);
	for (int i = 0; i < n; i++) {
		const int h = i / 4;
		int want = i % 4 == 3 ? h + 1 : i % 4 == 1 ? h + (h & 1) : h;
		want |= h % 3 ? 0 : 0x8000;
		if (got[i] != want) fail_msg("%a: f16 %04x, not %04x", (double)in[i], got[i], want);
		assert_true(back[i] == f16_to_f32((uint16_t)want));
		assert_int_equal(bf[i], bf16_from_f32(in[i]));
	}
	free(in), free(back), free(got), free(bf);
	ok(gpu_free(d_in));
	ok(gpu_free(d_back));
	ok(gpu_free(d_out));
	ok(gpu_free(d_bf));
	ok(gpu_stream_destroy(stream));
}

/* ---- launches */

static void test_impossible_launches(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	uint32_t *out = zeroed(4, stream), host;
	static const unsigned bad[][6] = {{0, 1, 1, 32, 1, 1}, {1, 0, 1, 32, 1, 1}, {1, 1, 0, 32, 1, 1}, {1, 1, 1, 0, 1, 1}, {1, 1, 1, 1025, 1, 1},
	                                  {1, 1, 1, 32, 33, 1}, {1, 1, 1, 1, 1, 65}, {1, 65536, 1, 32, 1, 1}, {1, 1, 65536, 32, 1, 1}, {1u << 31, 1, 1, 32, 1, 1}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		unsigned grid[3] = {bad[i][0], bad[i][1], bad[i][2]}, block[3] = {bad[i][3], bad[i][4], bad[i][5]};
		assert_int_equal(words_sized(out, grid, block, stream), EMU_BAD_LAUNCH);
	}
	struct gpu_props props;
	ok(gpu_props_get(&props, 0));
	assert_int_equal(props.warp, GPU_WARP);
	assert_int_equal(words_dynamic(out, props.max_shared + 4, false, stream), EMU_BAD_LAUNCH);
	assert_int_equal(words_dynamic(out, 49156, false, stream), EMU_BAD_LAUNCH); /* more than the default, not asked for */
	get(&host, out, 4, stream);
	assert_int_equal(host, 0);
	ok(words_dynamic(out, 49152, false, stream));
	assert_int_equal(words_dynamic(out, props.max_shared + 4, true, stream), EMU_BAD_VALUE);
	ok(words_dynamic(out, props.max_shared, true, stream));
	get(&host, out, 4, stream);
	assert_int_equal(host, 17);
	ok(gpu_stream_query(stream));
	ok(gpu_free(out));
	ok(gpu_stream_destroy(stream));
}

static void test_blocks_that_wait_for_each_other(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	uint32_t *count = zeroed(4, stream), *out = room(40), host[10];
	ok(words_grid_barrier(count, out, 10, stream));
	get(host, out, 40, stream);
	for (int b = 0; b < 10; b++) assert_int_equal(host[b], 10);
	ok(gpu_free(count));
	ok(gpu_free(out));
	ok(gpu_stream_destroy(stream));
}

static void test_memory(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	size_t before, total, now;
	ok(gpu_mem_info(&before, &total));
	unsigned char *p = room(5000), host[5000], *none;
	get(host, p, 5000, stream);
	for (int i = 0; i < 5000; i++) assert_int_equal(host[i], 0xff);
	ok(gpu_mem_info(&now, &total));
	assert_int_equal(before - now, 8192);
	assert_int_equal(gpu_malloc(&none, total + 1), GPU_NO_MEMORY);
	assert_null(none);
	assert_int_equal(gpu_free(p + 8), EMU_BAD_VALUE);
	assert_int_equal(gpu_host_free(p), EMU_BAD_VALUE);
	ok(gpu_free(p));
	assert_int_equal(gpu_free(p), EMU_BAD_VALUE);
	ok(gpu_free(NULL));
	ok(gpu_host_alloc(&p, 100));
	p[99] = 1;
	ok(gpu_host_free(p));
	p = room(100);
	assert_int_equal(gpu_copy_async(p + 50, host, 51, stream), EMU_FAULT);
	emu_reset();
	assert_int_equal(gpu_memset_async(p, 0, 101, stream), EMU_FAULT);
	emu_reset();
	ok(gpu_free(p));
	ok(gpu_mem_info(&now, &total));
	assert_int_equal(now, before);
	int count;
	ok(gpu_device_count(&count));
	assert_int_equal(count, 8);
	assert_int_equal(gpu_set_device(8), EMU_BAD_VALUE);
	ok(gpu_stream_destroy(stream));
}

static void test_arguments_are_copied(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	struct words_large large;
	for (uint32_t i = 0; i < 60; i++) large.value[i] = i * i;
	uint32_t *out = room(240), host[60];
	gpu_graph graph;
	gpu_graph_exec exec;
	ok(gpu_capture_begin(stream));
	ok(words_arguments(large, out, stream));
	ok(gpu_capture_end(stream, &graph));
	memset(&large, 0, sizeof large);
	ok(gpu_graph_instantiate(&exec, graph));
	ok(gpu_graph_destroy(graph));
	ok(gpu_graph_launch(exec, stream));
	get(host, out, 240, stream);
	for (uint32_t i = 0; i < 60; i++) assert_int_equal(host[i], i * i);
	ok(gpu_graph_exec_destroy(exec));
	ok(gpu_free(out));
	ok(gpu_stream_destroy(stream));
}

/* x = 1; x += 2; y = x; x += 4: recorded on two streams that an event joins, replayed three times. */
static void test_graphs(void **state)
{
	(void)state;
	gpu_stream first = stream_on(0), second = stream_on(0);
	gpu_event fork, join;
	ok(gpu_event_create(&fork));
	ok(gpu_event_create(&join));
	float *x = room(4), *y = zeroed(4, first), start = 1, got;
	gpu_graph graph;
	gpu_graph_exec exec;
	void *p;
	ok(gpu_capture_begin(first));
	assert_int_equal(gpu_capture_begin(first), EMU_BAD_CAPTURE);
	ok(gpu_copy_async(x, &start, 4, first));
	ok(gpu_event_record(fork, first));
	ok(gpu_stream_wait_event(second, fork));
	ok(words_add(x, 2, 1, second));
	ok(gpu_copy_async(y, x, 4, second));
	ok(gpu_event_record(join, second));
	ok(gpu_stream_wait_event(first, join));
	ok(words_add(x, 4, 1, first));
	assert_int_equal(gpu_malloc(&p, 4), EMU_BAD_CAPTURE);
	assert_int_equal(gpu_stream_query(first), EMU_BAD_CAPTURE);
	ok(gpu_capture_end(first, &graph));
	assert_int_equal(gpu_capture_end(first, &(gpu_graph){NULL}), EMU_BAD_CAPTURE);
	get(&got, y, 4, first);
	assert_true(got == 0); /* nothing ran */
	ok(gpu_graph_instantiate(&exec, graph));
	for (int i = 0; i < 3; i++) {
		start = (float)(i + 1);
		ok(gpu_graph_launch(exec, first));
		get(&got, y, 4, first);
		assert_true(got == start + 2);
		get(&got, x, 4, second);
		assert_true(got == start + 6);
	}
	ok(gpu_graph_exec_destroy(exec));
	ok(gpu_graph_destroy(graph));
	ok(gpu_event_destroy(fork));
	ok(gpu_event_destroy(join));
	ok(gpu_free(x));
	ok(gpu_free(y));
	ok(gpu_stream_destroy(first));
	ok(gpu_stream_destroy(second));
}

static void test_events(void **state)
{
	(void)state;
	gpu_stream stream = stream_on(0);
	gpu_event plain, from, to;
	ok(gpu_event_create(&plain));
	ok(gpu_event_create_timing(&from));
	ok(gpu_event_create_timing(&to));
	float ms = -1;
	ok(gpu_event_query(plain)); /* never recorded: nothing to wait for */
	assert_int_equal(gpu_event_elapsed_ms(&ms, from, to), EMU_BAD_VALUE);
	ok(gpu_event_record(from, stream));
	ok(gpu_event_record(to, stream));
	ok(gpu_event_record(plain, stream));
	ok(gpu_event_elapsed_ms(&ms, from, to));
	assert_true(ms >= 0);
	assert_int_equal(gpu_event_elapsed_ms(&ms, plain, to), EMU_BAD_VALUE);
	ok(gpu_stream_wait_event(stream, plain));
	ok(gpu_event_destroy(plain));
	ok(gpu_event_destroy(from));
	ok(gpu_event_destroy(to));
	ok(gpu_stream_destroy(stream));
}

/* ---- several devices */

struct ranks_case {
	int ranks;
	gpu_stream stream[RANKS_MAX];
	struct ranks_view view[RANKS_MAX];
	uint32_t *abort;
};

/* Rank r gives (r + 1) * (i + 1). */
static void ranks_make(struct ranks_case *c, int ranks, int count, int blocks)
{
	*c = (struct ranks_case){.ranks = ranks};
	void *pinned;
	ok(gpu_host_alloc(&pinned, 4));
	c->abort = pinned;
	*c->abort = 0;
	for (int r = 0; r < ranks; r++) {
		c->stream[r] = stream_on(r);
		for (int p = 0; p < ranks; p++)
			if (p != r) ok(gpu_peer_enable(p));
		struct ranks_view *v = &c->view[r];
		*v = (struct ranks_view){.ranks = ranks, .rank = r, .count = count, .blocks = blocks, .abort = c->abort, .generation = 1};
		float *own = room((size_t)count * 4), *host = malloc((size_t)count * 4);
		for (int i = 0; i < count; i++) host[i] = (float)((r + 1) * (i + 1));
		ok(gpu_copy_async(own, host, (size_t)count * 4, c->stream[r]));
		free(host);
		v->own = own;
		v->sum = room((size_t)count * 4);
		v->gave_up = zeroed(4, c->stream[r]);
		float *inbox = room((size_t)(ranks * count) * 4);
		uint32_t *flags = zeroed((size_t)(ranks * blocks) * 4, c->stream[r]);
		for (int p = 0; p < ranks; p++) c->view[p].inbox[r] = inbox, c->view[p].flags[r] = flags;
		/* Those of lower ranks were written before *v was set. */
		for (int p = 0; p < r; p++) v->inbox[p] = c->view[p].inbox[p], v->flags[p] = c->view[p].flags[p];
	}
}

static void ranks_free(struct ranks_case *c)
{
	for (int r = 0; r < c->ranks; r++) {
		ok(gpu_set_device(r));
		ok(gpu_free((void *)(uintptr_t)c->view[r].own));
		ok(gpu_free(c->view[r].sum));
		ok(gpu_free(c->view[r].gave_up));
		ok(gpu_free(c->view[r].inbox[r]));
		ok(gpu_free(c->view[r].flags[r]));
		ok(gpu_stream_destroy(c->stream[r]));
	}
	ok(gpu_host_free(c->abort));
	emu_reset();
}

/* Elements of rank r's sum that are wrong; NaN is. */
static int ranks_wrong(const struct ranks_case *c, int r)
{
	const int count = c->view[r].count;
	float *sum = malloc((size_t)count * 4);
	ok(gpu_set_device(r));
	get(sum, c->view[r].sum, (size_t)count * 4, c->stream[r]);
	int wrong = 0;
	for (int i = 0; i < count; i++) wrong += sum[i] != (float)((i + 1) * (c->ranks * (c->ranks + 1) / 2));
	free(sum);
	return wrong;
}

static void ranks_launch(struct ranks_case *c, int r)
{
	ok(gpu_set_device(r));
	ok(ranks_sum(c->view[r], c->stream[r]));
}

static void test_together(void **state)
{
	(void)state;
	for (int ranks = 2; ranks <= RANKS_MAX; ranks += ranks == 4 ? 4 : 1) {
		struct ranks_case c;
		ranks_make(&c, ranks, 200, 3);
		for (uint32_t round = 1; round <= 4; round++) {
			emu_together_begin(&(struct emu_together){.seed = round});
			for (int r = 0; r < ranks; r++) {
				c.view[r].generation = round;
				ranks_launch(&c, r);
				assert_int_equal(gpu_stream_query(c.stream[r]), GPU_NOT_READY);
			}
			ok(emu_together_run());
			for (int r = 0; r < ranks; r++) {
				ok(gpu_set_device(r));
				ok(gpu_stream_query(c.stream[r]));
				assert_int_equal(ranks_wrong(&c, r), 0);
				ok(gpu_memset_async(c.view[r].sum, 0xff, 800, c.stream[r]));
			}
			/* As inboxes are written again at once, a rank must have read what it got: the next round begins after this run. */
		}
		ranks_free(&c);
	}
}

static void test_together_shows_a_missing_wait(void **state)
{
	(void)state;
	struct ranks_case c;
	ranks_make(&c, 3, 200, 2);
	int runs_wrong = 0;
	for (uint32_t seed = 0; seed < 10; seed++) {
		emu_together_begin(&(struct emu_together){.seed = seed});
		for (int r = 0; r < 3; r++) {
			c.view[r].generation = seed + 1;
			c.view[r].forgets_to_wait = true;
			ok(gpu_set_device(r));
			ok(gpu_memset_async(c.view[r].inbox[r], 0xff, 3 * 200 * 4, c.stream[r]));
			ranks_launch(&c, r);
		}
		ok(emu_together_run());
		int wrong = 0;
		for (int r = 0; r < 3; r++) wrong += ranks_wrong(&c, r);
		runs_wrong += wrong > 0;
	}
	if (runs_wrong <= 5) fail_msg("%d of 10 seeds show it", runs_wrong);
	ranks_free(&c);
}

static void test_together_deadlock(void **state)
{
	(void)state;
	struct ranks_case c;
	ranks_make(&c, 3, 50, 2);
	emu_together_begin(&(struct emu_together){.seed = 3});
	ranks_launch(&c, 0);
	ranks_launch(&c, 2); /* rank 1 never comes */
	gpu_error code = emu_together_run();
	assert_int_equal(code, EMU_FAULT);
	assert_non_null(strstr(gpu_error_text(code), "deadlock"));
	assert_non_null(strstr(gpu_error_text(code), "sum_kernel on device 2 (2 of 2 blocks unfinished)"));
	ok(gpu_set_device(1));
	ok(gpu_stream_query(c.stream[1]));
	emu_reset();
	ranks_free(&c);
}

static void write_abort(void *arg, uint64_t switches)
{
	if (switches > 20000) __atomic_store_n((uint32_t *)arg, 1, __ATOMIC_RELAXED);
}

static void test_together_abort(void **state)
{
	(void)state;
	struct ranks_case c;
	ranks_make(&c, 3, 50, 2);
	emu_together_begin(&(struct emu_together){.seed = 3, .tick = write_abort, .arg = c.abort, .tick_every = 1000});
	ranks_launch(&c, 0);
	ranks_launch(&c, 2);
	ok(emu_together_run());
	for (int r = 0; r < 3; r += 2) {
		uint32_t threads;
		ok(gpu_set_device(r));
		get(&threads, c.view[r].gave_up, 4, c.stream[r]);
		assert_int_equal(threads, 2 * 64);
	}
	ranks_free(&c);
}

/* Two streams: the second's copy waits for the first's kernel by an event; graphs are queued too. */
static void test_together_events(void **state)
{
	(void)state;
	gpu_stream first = stream_on(0), second = stream_on(0);
	float *x = zeroed(400, first), got[100] = {0};
	gpu_event event;
	gpu_graph graph;
	ok(gpu_event_create(&event));
	ok(gpu_capture_begin(first));
	for (int i = 0; i < 3; i++) ok(words_add(x, 1, 100, first));
	ok(gpu_capture_end(first, &graph));
	for (uint64_t seed = 0; seed < 8; seed++) {
		ok(gpu_memset_async(x, 0, 400, first));
		emu_together_begin(&(struct emu_together){.seed = seed});
		ok(gpu_graph_launch(graph, first));
		ok(gpu_event_record(event, first));
		ok(gpu_stream_wait_event(second, event));
		ok(gpu_copy_async(got, x, 400, second));
		assert_int_equal(gpu_event_query(event), GPU_NOT_READY);
		ok(emu_together_run());
		ok(gpu_event_query(event));
		for (int i = 0; i < 100; i++) assert_true(got[i] == 3);
	}
	/* A fault among them is told, and the rest is dropped. */
	emu_together_begin(&(struct emu_together){.seed = 1});
	ok(words_add(x, 1, 101, first));
	ok(words_add(x, 1, 100, second));
	assert_int_equal(emu_together_run(), EMU_FAULT);
	emu_reset();
	ok(gpu_stream_query(second));
	ok(gpu_graph_destroy(graph));
	ok(gpu_event_destroy(event));
	ok(gpu_free(x));
	ok(gpu_stream_destroy(first));
	ok(gpu_stream_destroy(second));
}

struct rank_thread {
	struct ranks_case *c;
	int rank;
	gpu_error code;
};

static void *rank_main(void *arg)
{
	struct rank_thread *t = arg;
	emu_seed((uint64_t)t->rank);
	gpu_set_device(t->rank);
	for (uint32_t round = 1; round <= 20 && t->code == GPU_OK; round++) {
		struct ranks_view view = t->c->view[t->rank];
		view.generation = round;
		t->code = ranks_sum(view, t->c->stream[t->rank]);
	}
	return NULL;
}

/* Each rank on an OS thread of its own, with kernels that wait for each other. All rounds send the same values, so that a fast rank harms nobody. */
static void test_rank_threads(void **state)
{
	(void)state;
	struct ranks_case c;
	struct rank_thread threads[4];
	pthread_t ids[4];
	ranks_make(&c, 4, 300, 2);
	for (int r = 0; r < 4; r++) {
		threads[r] = (struct rank_thread){&c, r, GPU_OK};
		assert_int_equal(pthread_create(&ids[r], NULL, rank_main, &threads[r]), 0);
	}
	for (int r = 0; r < 4; r++) pthread_join(ids[r], NULL);
	for (int r = 0; r < 4; r++) {
		ok(threads[r].code);
		assert_int_equal(ranks_wrong(&c, r), 0);
	}
	ranks_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_right_kernels_pass, setup),
		cmocka_unit_test_setup(test_planted_faults_are_found, setup),
		cmocka_unit_test_setup(test_width_32_is_no_assumption, setup),
		cmocka_unit_test_setup(test_seeds_change_the_order, setup),
		cmocka_unit_test_setup(test_a_fault_is_sticky, setup),
		cmocka_unit_test_setup(test_a_peer_must_be_enabled, setup),
		cmocka_unit_test_setup(test_indices, setup),
		cmocka_unit_test_setup(test_waves, setup),
		cmocka_unit_test_setup(test_atomics, setup),
		cmocka_unit_test_setup(test_conversions, setup),
		cmocka_unit_test_setup(test_impossible_launches, setup),
		cmocka_unit_test_setup(test_blocks_that_wait_for_each_other, setup),
		cmocka_unit_test_setup(test_memory, setup),
		cmocka_unit_test_setup(test_arguments_are_copied, setup),
		cmocka_unit_test_setup(test_graphs, setup),
		cmocka_unit_test_setup(test_events, setup),
		cmocka_unit_test_setup(test_together, setup),
		cmocka_unit_test_setup(test_together_shows_a_missing_wait, setup),
		cmocka_unit_test_setup(test_together_deadlock, setup),
		cmocka_unit_test_setup(test_together_abort, setup),
		cmocka_unit_test_setup(test_together_events, setup),
		cmocka_unit_test_setup(test_rank_threads, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
