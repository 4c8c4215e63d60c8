/* base/: status, memory, buffers, clock, waiting, fault plans, dtype conversions, random numbers. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/out_file.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/wait.h"
#include "unit/ranks.h"

/* ---- status ---- */

static void test_status_table(void **state)
{
	(void)state;
	/* Exit codes of the command line: 0 ok, 2 usage, 3 bad input, 4 no room, 5 group aborted, 6 device fault. */
	static const struct {
		enum status code;
		int exit;
		enum status_scope scope;
	} rows[] = {
		{STATUS_OK, 0, STATUS_SCOPE_NONE},           {STATUS_USAGE, 2, STATUS_SCOPE_REQUEST}, {STATUS_BAD_INPUT, 3, STATUS_SCOPE_REQUEST},
		{STATUS_NO_ROOM, 4, STATUS_SCOPE_RETRY},     {STATUS_ABORTED, 5, STATUS_SCOPE_FATAL}, {STATUS_TIMEOUT, 5, STATUS_SCOPE_FATAL},
		{STATUS_DEVICE_FAULT, 6, STATUS_SCOPE_FATAL},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		assert_int_equal(status_exit_code(rows[i].code), rows[i].exit);
		assert_int_equal(status_scope(rows[i].code), rows[i].scope);
	}
	assert_string_equal(status_name(STATUS_OK), "ok");
	assert_string_equal(status_name((enum status)999), "unknown status");
	assert_int_equal(status_exit_code((enum status)999), 6);
	assert_int_equal(status_scope((enum status)999), STATUS_SCOPE_FATAL);
}

static enum status fails(struct error *err)
{
	return FAIL(err, IO, "file %d: %s", 7, "gone");
}

static enum status propagates(struct error *err)
{
	TRY(fails(err));
	return STATUS_OK;
}

static void test_error_keeps_the_first(void **state)
{
	(void)state;
	struct error err = {0};
	assert_int_equal(propagates(&err), STATUS_IO);
	assert_int_equal(err.code, STATUS_IO);
	assert_string_equal(err.text, "file 7: gone");
	assert_non_null(strstr(err.file, "test_base.c"));
	assert_true(err.line > 0);
	assert_int_equal(FAIL(&err, USAGE, "second"), STATUS_USAGE);
	assert_string_equal(err.text, "file 7: gone");
	assert_int_equal(FAIL(NULL, USAGE, "nowhere"), STATUS_USAGE);
}

static void test_error_text_is_bounded(void **state)
{
	(void)state;
	char lengthy[2000];
	memset(lengthy, 'x', sizeof lengthy - 1);
	lengthy[sizeof lengthy - 1] = 0;
	struct error err = {0};
	(void)FAIL(&err, IO, "%s", lengthy);
	assert_int_equal(strlen(err.text), sizeof err.text - 1);
	error_prefix(&err, "rank %d", 3);
	assert_int_equal(strncmp(err.text, "rank 3: xxx", 11), 0);
	assert_int_equal(strlen(err.text), sizeof err.text - 1);
	error_prefix(&err, "%s", lengthy); /* too long to be useful: left out */
	assert_int_equal(strncmp(err.text, "rank 3: xxx", 11), 0);
	error_prefix(NULL, "nobody");
	struct error small = {0};
	(void)FAIL(&small, IO, "why");
	error_prefix(&small, "model");
	assert_string_equal(small.text, "model: why");
	/* Every length around the end of the text. */
	for (size_t n = sizeof small.text - 12; n < sizeof small.text + 4; n++) {
		struct error edge = {0};
		(void)FAIL(&edge, IO, "why");
		error_prefix(&edge, "%.*s", (int)n, lengthy);
		assert_true(strlen(edge.text) < sizeof edge.text);
	}
}

/* ---- memory ---- */

static void test_sizes_overflow(void **state)
{
	(void)state;
	size_t out = 5;
	assert_true(size_mul(SIZE_MAX / 2, 2, &out));
	assert_int_equal(out, SIZE_MAX - 1);
	out = 5;
	assert_false(size_mul(SIZE_MAX / 2 + 1, 2, &out));
	assert_int_equal(out, 5);
	assert_true(size_add(SIZE_MAX, 0, &out));
	out = 5;
	assert_false(size_add(SIZE_MAX, 1, &out));
	assert_int_equal(out, 5);
}

static void test_allocation(void **state)
{
	(void)state;
	struct error err = {0};
	char *zero = mem_zalloc(0, 8, "nothing", &err), *some = mem_zalloc(3, 5, "some", &err);
	assert_non_null(zero);
	assert_non_null(some);
	for (int i = 0; i < 15; i++) assert_int_equal(some[i], 0);
	memcpy(some, "abc", 4);
	assert_int_equal(mem_grow((void **)&some, 1000, 4, "some", &err), STATUS_OK);
	assert_string_equal(some, "abc");
	assert_int_equal(mem_grow((void **)&some, SIZE_MAX, 2, "the great table", &err), STATUS_NO_MEMORY);
	assert_string_equal(some, "abc"); /* still valid */
	assert_non_null(strstr(err.text, "the great table"));
	free(zero);
	free(some);

	err = (struct error){0};
	assert_null(mem_zalloc(SIZE_MAX, 2, "weights", &err));
	assert_int_equal(err.code, STATUS_NO_MEMORY);
	assert_non_null(strstr(err.text, "weights"));
	char *copy = mem_strdup("text", "copy", &err);
	assert_string_equal(copy, "text");
	free(copy);

	err = (struct error){0};
	unsigned char *pages = mem_map(100000, "pages", &err);
	assert_non_null(pages);
	assert_int_equal((uintptr_t)pages % 4096, 0);
	for (int i = 0; i < 100000; i += 777) assert_int_equal(pages[i], 0);
	pages[99999] = 1;
	mem_unmap(pages, 100000);
	mem_unmap(NULL, 5);
	void *empty = mem_map(0, "pages", &err);
	assert_non_null(empty);
	mem_unmap(empty, 0);
	assert_null(mem_map(SIZE_MAX - 4096, "pages", &err));
	assert_int_equal(err.code, STATUS_NO_MEMORY);
}

/* ---- buf ---- */

static void test_buf(void **state)
{
	(void)state;
	struct buf b = {0};
	struct error err = {0};
	buf_clear(&b);
	assert_int_equal(buf_append(&b, NULL, 0, &err), STATUS_OK);
	assert_string_equal(b.data, "");
	for (int i = 0; i < 1000; i++) assert_int_equal(buf_printf(&b, &err, "%d,", i), STATUS_OK);
	assert_int_equal(b.size, 10 * 2 + 90 * 3 + 900 * 4);
	assert_int_equal(strlen(b.data), b.size);
	assert_int_equal(strncmp(b.data, "0,1,2,", 6), 0);
	assert_string_equal(b.data + b.size - 4, "999,");
	size_t capacity = b.capacity;
	buf_clear(&b);
	assert_int_equal(b.size, 0);
	assert_int_equal(b.capacity, capacity);
	assert_int_equal(buf_puts(&b, "a", &err), STATUS_OK);
	assert_int_equal(buf_append(&b, "\0b", 2, &err), STATUS_OK);
	assert_int_equal(b.size, 3);
	assert_memory_equal(b.data, "a\0b", 4);
	assert_int_equal(buf_reserve(&b, SIZE_MAX, &err), STATUS_NO_MEMORY);
	err = (struct error){0};
	assert_int_equal(buf_reserve(&b, SIZE_MAX - 3, &err), STATUS_NO_MEMORY);
	assert_memory_equal(b.data, "a\0b", 4);
	buf_fini(&b);
	assert_null(b.data);
	buf_fini(&b);
}

static void test_buf_read_file(void **state)
{
	(void)state;
	char path[] = "/tmp/tandem_test_base_XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	char block[70000];
	memset(block, 'q', sizeof block);
	assert_int_equal(write(fd, block, sizeof block), sizeof block);
	close(fd);
	struct buf b = {0};
	struct error err = {0};
	assert_int_equal(buf_puts(&b, "head", &err), STATUS_OK);
	assert_int_equal(buf_read_file(&b, path, sizeof block, &err), STATUS_OK);
	assert_int_equal(b.size, 4 + sizeof block);
	assert_memory_equal(b.data + 4, block, sizeof block);
	buf_clear(&b);
	assert_int_equal(buf_read_file(&b, path, sizeof block - 1, &err), STATUS_BAD_INPUT);
	err = (struct error){0};
	unlink(path);
	assert_int_equal(buf_read_file(&b, path, 10, &err), STATUS_IO);
	assert_non_null(strstr(err.text, path));
	err = (struct error){0};
	assert_int_equal(buf_read_file(&b, "/tmp", 10, &err), STATUS_IO);
	int through[2];
	char name[64];
	assert_int_equal(pipe(through), 0);
	assert_int_equal(write(through[1], "text", 4), 4);
	close(through[1]);
	snprintf(name, sizeof name, "/dev/fd/%d", through[0]);
	assert_int_equal(buf_read_regular(&b, name, 10, &err), STATUS_BAD_INPUT);
	buf_clear(&b);
	assert_int_equal(buf_read_file(&b, name, 10, &err), STATUS_OK);
	assert_string_equal(b.data, "text");
	close(through[0]);
	buf_fini(&b);
}

static void expect_file(const char *path, const char *text)
{
	struct buf back = {0};
	struct error err = {0};
	assert_int_equal(buf_read_file(&back, path, 100, &err), STATUS_OK);
	assert_string_equal(back.data, text);
	buf_fini(&back);
}

static enum status write_text(const char *path, const char *text, struct error *err)
{
	return out_file_write(path, text, strlen(text), err);
}

static int entries_of(const char *folder)
{
	int count = 0;
	DIR *dir = opendir(folder);
	assert_non_null(dir);
	for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	closedir(dir);
	return count;
}

static void test_out_file_write(void **state)
{
	(void)state;
	char folder[] = "/tmp/tandem_test_base_XXXXXX", path[64], part[80], missing[80];
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/file", folder);
	snprintf(part, sizeof part, "%s.part", path);
	snprintf(missing, sizeof missing, "%s/none/file", folder);
	struct error err = {0};
	struct stat info;
	const mode_t mask = umask(022);
	assert_int_equal(write_text(part, "mine", &err), STATUS_OK); /* a file of somebody's */
	assert_int_equal(write_text(path, "text 0", &err), STATUS_OK);
	assert_true(stat(path, &info) == 0 && (info.st_mode & 07777) == 0644);
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(write_text(path, "text 1", &err), STATUS_OK);
	assert_true(stat(path, &info) == 0 && (info.st_mode & 07777) == 0640);
	umask(mask);
	expect_file(path, "text 1");
	expect_file(part, "mine");
	assert_int_equal(write_text(missing, "lost", &err), STATUS_IO);
	assert_non_null(strstr(err.text, "cannot be written: No such file"));
	/* There is no room: what was there stays. */
	struct rlimit limit, small;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	small = limit;
	small.rlim_cur = 2;
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	err = (struct error){0};
	const enum status st = write_text(path, "lost", &err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	signal(SIGXFSZ, handler);
	assert_int_equal(st, STATUS_IO);
	assert_non_null(strstr(err.text, "too large"));
	expect_file(path, "text 1");
	assert_int_equal(entries_of(folder), 2);
	unlink(part);
	unlink(path);
	rmdir(folder);
}

/* What is no regular file stays what it is. */
static void test_write_in_place(void **state)
{
	(void)state;
	char folder[] = "/tmp/tandem_test_base_XXXXXX", file[64], link[64], nowhere[64], fifo[64], target[64], text[8] = "";
	assert_non_null(mkdtemp(folder));
	snprintf(file, sizeof file, "%s/file", folder);
	snprintf(link, sizeof link, "%s/link", folder);
	snprintf(nowhere, sizeof nowhere, "%s/nowhere", folder);
	snprintf(target, sizeof target, "%s/target", folder);
	snprintf(fifo, sizeof fifo, "%s/fifo", folder);
	struct error err = {0};
	struct stat info;
	assert_int_equal(write_text(file, "old", &err), STATUS_OK);
	assert_int_equal(symlink("file", link), 0);
	assert_int_equal(symlink("target", nowhere), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(write_text(link, "new", &err), STATUS_OK);
	assert_int_equal(write_text(nowhere, "born", &err), STATUS_OK);
	const int reader = open(fifo, O_RDONLY | O_NONBLOCK);
	assert_int_equal(write_text(fifo, "through", &err), STATUS_OK);
	assert_int_equal(read(reader, text, sizeof text), 7);
	close(reader);
	assert_memory_equal(text, "through", 7);
	assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
	assert_true(lstat(nowhere, &info) == 0 && S_ISLNK(info.st_mode));
	assert_true(lstat(fifo, &info) == 0 && S_ISFIFO(info.st_mode));
	expect_file(file, "new");
	expect_file(target, "born");
	assert_int_equal(entries_of(folder), 5);
	assert_int_equal(write_text(folder, "lost", &err), STATUS_IO);
	const char *all[] = {file, link, nowhere, target, fifo};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) unlink(all[i]);
	rmdir(folder);
}

/* ---- clock, wait ---- */

static void test_clock(void **state)
{
	(void)state;
	uint64_t a = clock_ns(), b = clock_ns();
	assert_true(b >= a);
	uint64_t d = clock_deadline_ms(1000);
	assert_true(d >= b + 1000000000u && d < b + 60000000000u);
	assert_true(clock_deadline_ms(UINT64_MAX) == UINT64_MAX);
	assert_true(clock_deadline_ms(UINT64_MAX / 1000000) == UINT64_MAX);
}

static void test_wait_word(void **state)
{
	(void)state;
	struct wait_word word = {0};
	assert_int_equal(_Alignof(struct wait_word), 64);
	assert_int_equal(sizeof word, 64);
	assert_true(wait_change(&word, 1, 0)); /* already another value, whatever the deadline */
	assert_true(wait_change_spin(&word, 1, 0, 0));
	assert_false(wait_change(&word, 0, 0)); /* long past */
	assert_false(wait_change_spin(&word, 0, 0, 0));
	uint64_t start = clock_ns();
	assert_false(wait_change(&word, 0, clock_deadline_ms(20)));
	assert_true(clock_ns() - start >= 20000000);
	start = clock_ns();
	assert_false(wait_change_spin(&word, 0, 0, clock_deadline_ms(20)));
	assert_true(clock_ns() - start >= 20000000);
	wait_bump(&word);
	assert_true(wait_change(&word, 0, UINT64_MAX));
	assert_int_equal(word.value, 1);
	assert_int_equal(word.sleepers, 0);
	atomic_store(&word.value, UINT32_MAX);
	wait_bump(&word);
	assert_int_equal(word.value, 0); /* wraps */
}

struct ball {
	struct wait_word word[2];
	int turns;
	uint64_t spin_ns;
	uint64_t rest_us;
};

/* Two players; each waits for its word and bumps the other's. Rests make the partner fall asleep now and then. */
static void body_ball(struct rank_run *run)
{
	struct ball *ball = run->context;
	for (int i = 0; i < ball->turns; i++) {
		if (run->rank == 0) wait_bump(&ball->word[1]);
		uint64_t deadline = clock_deadline_ms(30000);
		struct wait_word *mine = &ball->word[run->rank];
		bool came = wait_change_spin(mine, (uint32_t)i, ball->spin_ns, deadline);
		RANK_CHECK(run, came, "turn %d", i);
		if (ball->rest_us && i % 3 == 0) nanosleep(&(struct timespec){.tv_nsec = (long)ball->rest_us * 1000}, NULL);
		if (run->rank == 1) wait_bump(&ball->word[0]);
	}
}

static void test_ping_pong(void **state)
{
	(void)state;
	static const struct ball kinds[] = {{.turns = 20000, .spin_ns = WAIT_SPIN_NS}, {.turns = 5000}, {.turns = 600, .spin_ns = WAIT_SPIN_NS, .rest_us = 60}};
	for (int i = 0; i < 3; i++) {
		struct ball ball = kinds[i];
		struct rank_run runs[2];
		uint64_t start = clock_ns();
		ranks_run(2, body_ball, &ball, runs);
		ranks_assert_content(runs, 2);
		print_message("there and back: %.2f us (%s)\n", (double)(clock_ns() - start) / 1e3 / ball.turns,
		              i == 0 ? "spin" : i == 1 ? "sleep" : "with rests");
	}
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void test_waiting_burns_no_cpu(void **state)
{
	(void)state;
	struct wait_word word = {0};
	uint64_t before = thread_cpu_ns();
	assert_false(wait_change(&word, 0, clock_deadline_ms(300)));
	assert_true(thread_cpu_ns() - before < 30000000);
}

/* ---- fault plans ---- */

static void test_fault_parse(void **state)
{
	(void)state;
	struct fault_plan plan;
	struct error err = {0};
	assert_int_equal(fault_parse(&plan, "rank=1,at=barrier,seq=3", &err), STATUS_OK);
	assert_int_equal(plan.count, 1);
	assert_int_equal(plan.entries[0].rank, 1);
	assert_int_equal(plan.entries[0].at, FAULT_BARRIER);
	assert_int_equal(plan.entries[0].seq, 3);
	assert_int_equal(plan.entries[0].kind, FAULT_KIND_ERROR);
	assert_int_equal(fault_parse(&plan, "at=load,rank=0;seq=18446744073709551615,kind=stall:250,rank=63,at=sample;rank=2,at=shutdown,kind=exit", &err),
	                 STATUS_OK);
	assert_int_equal(plan.count, 3);
	assert_int_equal(plan.entries[0].seq, 0);
	assert_int_equal(plan.entries[1].kind, FAULT_KIND_STALL);
	assert_int_equal(plan.entries[1].stall_ms, 250);
	assert_true(plan.entries[1].seq == UINT64_MAX);
	assert_int_equal(plan.entries[2].kind, FAULT_KIND_EXIT);
	static const char *const names[] = {
#define X(code, name, counts) name,
		FAULT_POINT_LIST(X)
#undef X
	};
	for (int i = 0; i < FAULT_POINT_COUNT; i++) {
		char text[64];
		snprintf(text, sizeof text, "rank=0,at=%s,kind=oom", names[i]);
		assert_int_equal(fault_parse(&plan, text, &err), STATUS_OK);
		assert_int_equal(plan.entries[0].at, i);
	}
}

static void test_fault_parse_refuses(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"", ";", "rank=1", "at=load", "rank=1,at=load,", "rank=1,at=nowhere", "rank=-1,at=load", "rank=1x,at=load", "rank= 1,at=load",
		"rank=,at=load", "rank=1,at=load,seq=-1", "rank=1,at=load,seq=18446744073709551616", "rank=1,at=load,kind=bang", "rank=1,at=load,kind=stall",
		"rank=1,at=load,kind=stall:", "rank=1,at=load,kind=stall:1s", "rank=1,at=load;", "rank=1,at=load,color=red", "rank=1,at=load,seq",
		"rank=1024,at=load", "rank=99999999999999999999,at=load",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct fault_plan plan;
		struct error err = {0};
		if (fault_parse(&plan, bad[i], &err) != STATUS_USAGE) fail_msg("'%s' was accepted", bad[i]);
		assert_non_null(strstr(err.text, "--fault"));
	}
	char many[512] = "rank=1,at=load", lengthy[700];
	for (int i = 0; i < FAULT_MAX_ENTRIES - 1; i++) strcat(many, ";rank=1,at=load");
	struct fault_plan plan;
	struct error err = {0};
	assert_int_equal(fault_parse(&plan, many, &err), STATUS_OK);
	strcat(many, ";rank=1,at=load");
	assert_int_equal(fault_parse(&plan, many, &err), STATUS_USAGE);
	memset(lengthy, '1', sizeof lengthy - 1);
	lengthy[sizeof lengthy - 1] = 0;
	assert_int_equal(fault_parse(&plan, lengthy, &err), STATUS_USAGE);
}

static void test_fault_check(void **state)
{
	(void)state;
	struct fault_plan plan;
	struct error err = {0};
	assert_int_equal(fault_check(NULL, 0, FAULT_LOAD, 0, NULL, &err), STATUS_OK);
	assert_int_equal(fault_parse(&plan, "rank=1,at=kernel,seq=3,kind=oom;rank=1,at=kernel,seq=3,kind=exit;rank=0,at=load", &err), STATUS_OK);
	assert_int_equal(fault_check(&plan, 1, FAULT_KERNEL, 2, NULL, &err), STATUS_OK);
	assert_int_equal(fault_check(&plan, 0, FAULT_KERNEL, 3, NULL, &err), STATUS_OK);
	assert_int_equal(fault_check(&plan, 1, FAULT_SAMPLE, 3, NULL, &err), STATUS_OK);
	assert_int_equal(fault_check(&plan, 1, FAULT_KERNEL, 5, NULL, &err), STATUS_NO_MEMORY); /* first visit with seq >= 3 */
	assert_non_null(strstr(err.text, "kernel, seq 5"));
	assert_int_equal(fault_check(&plan, 1, FAULT_KERNEL, 6, NULL, NULL), STATUS_RANK_LOST); /* the next entry */
	assert_int_equal(fault_check(&plan, 1, FAULT_KERNEL, 7, NULL, NULL), STATUS_OK);        /* each fires once */
	assert_int_equal(fault_check(&plan, 0, FAULT_LOAD, 0, NULL, NULL), STATUS_ABORTED);

	assert_int_equal(fault_parse(&plan, "rank=0,at=load,kind=stall:40;rank=0,at=load,seq=1,kind=stall:60000", &err), STATUS_OK);
	uint64_t start = clock_ns();
	assert_int_equal(fault_check(&plan, 0, FAULT_LOAD, 0, NULL, NULL), STATUS_OK);
	assert_true(clock_ns() - start >= 40000000);
	_Atomic int stop = 1;
	start = clock_ns();
	assert_int_equal(fault_check(&plan, 0, FAULT_LOAD, 1, &stop, NULL), STATUS_OK);
	assert_true(clock_ns() - start < UINT64_C(30000000000));
}

/* ---- dtype ---- */

static void test_bf16(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 65536; bits++) { /* exact there and back */
		float f = bf16_to_f32((uint16_t)bits);
		uint16_t back = bf16_from_f32(f);
		if (isnan(f)) assert_true(isnan(bf16_to_f32(back)));
		else assert_int_equal(back, bits);
	}
	/* The nearest of the two neighbours, ties to the even one: by distance in double. */
	for (uint64_t i = 0; i < 300000; i++) {
		float f = f32_from_bits((uint32_t)rng_u64(5, 0, i));
		if (isnan(f) || isinf(f)) continue;
		uint16_t low = (uint16_t)(f32_to_bits(f) >> 16), got = bf16_from_f32(f);
		double down = fabs((double)f - (double)bf16_to_f32(low));
		float high = bf16_to_f32((uint16_t)(low + 1));
		double up = isinf(high) ? ldexp(1, 128) - fabs((double)f) : fabs((double)f - (double)high);
		uint16_t want = down < up ? low : up < down ? (uint16_t)(low + 1) : low & 1 ? (uint16_t)(low + 1) : low;
		if (got != want) fail_msg("%a: %04x, expected %04x", (double)f, got, want);
	}
	assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808000)), 0x3f80); /* tie, even below */
	assert_int_equal(bf16_from_f32(f32_from_bits(0x3f818000)), 0x3f82); /* tie, even above */
	assert_int_equal(bf16_from_f32(3.4e38f), 0x7f80);                   /* rounds to infinity */
	assert_true(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7f800001))))); /* payload in the low half only */
	assert_true(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0xffffffff)))));
}

/* Against the definition: sign, exponent, mantissa. */
static void test_f16(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 65536; bits++) {
		int exponent = bits >> 10 & 31, mantissa = bits & 1023;
		float got = f16_to_f32((uint16_t)bits);
		assert_int_equal(f32_to_bits(got) >> 31, bits >> 15);
		if (exponent == 31) {
			assert_true(mantissa ? isnan(got) : isinf(got));
			continue;
		}
		double want = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
		assert_true((double)fabsf(got) == want);
	}
	assert_int_equal(f32_to_bits(f16_to_f32(0x7c01)), 0x7fc02000); /* signalling comes out quiet, payload kept */
	assert_int_equal(dtype_bytes(DTYPE_F32), 4);
	assert_int_equal(dtype_bytes(DTYPE_F16), 2);
	assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
	assert_string_equal(dtype_name(DTYPE_BF16), "BF16");
	assert_string_equal(dtype_name(DTYPE_COUNT), "?");
}

/* ---- rng ---- */

static void test_rng(void **state)
{
	(void)state;
	double sum = 0, least = 1, most = 0;
	int ones[64] = {0};
	enum { N = 100000 };
	for (uint64_t i = 0; i < N; i++) {
		double u = rng_unit(42, 7, i);
		assert_true(u >= 0 && u < 1);
		sum += u;
		least = fmin(least, u);
		most = fmax(most, u);
		uint64_t v = rng_u64(1, 2, i);
		for (int b = 0; b < 64; b++) ones[b] += (int)(v >> b & 1);
	}
	assert_true(fabs(sum / N - 0.5) < 0.005); /* 5 sigma of the mean: 0.0046 */
	assert_true(least < 0.001 && most > 0.999);
	for (int b = 0; b < 64; b++) assert_true(abs(ones[b] - N / 2) < 1000); /* sigma 158 */
	/* No state: the same arguments, the same value; each argument matters. */
	assert_true(rng_u64(1, 2, 3) == rng_u64(1, 2, 3));
	assert_true(rng_u64(1, 2, 3) != rng_u64(2, 2, 3));
	assert_true(rng_u64(1, 2, 3) != rng_u64(1, 3, 3));
	assert_true(rng_u64(1, 2, 3) != rng_u64(1, 2, 4));
	assert_true(rng_u64(1, 2, 3) != rng_u64(2, 1, 3));
	assert_true(rng_name("") == 0xcbf29ce484222325u); /* FNV-1a's published values */
	assert_true(rng_name("a") == 0xaf63dc4c8601ec8cu);
	assert_true(rng_name("foobar") == 0x85944171f73967e8u);
}

/* ---- log ---- */

static void keep_line(void *context, enum log_level level, const char *line)
{
	snprintf(context, 64, "%d %s", (int)level, line);
}

static void test_log(void **state)
{
	(void)state;
	char line[64] = "";
	struct log log = {.write = keep_line, .context = line};
	log_write(&log, LOG_WARN, "rank %d", 3);
	assert_string_equal(line, "2 rank 3");
	log_write(&(struct log){0}, LOG_INFO, "nobody hears %d", 1);
	log_write(NULL, LOG_INFO, "nobody hears %d", 2);
}

int main(void)
{
	watchdog(240);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_status_table),     cmocka_unit_test(test_error_keeps_the_first), cmocka_unit_test(test_error_text_is_bounded),
		cmocka_unit_test(test_sizes_overflow),   cmocka_unit_test(test_allocation),            cmocka_unit_test(test_buf),
		cmocka_unit_test(test_buf_read_file),    cmocka_unit_test(test_out_file_write), cmocka_unit_test(test_write_in_place),
		   cmocka_unit_test(test_clock),                 cmocka_unit_test(test_wait_word),
		cmocka_unit_test(test_ping_pong),        cmocka_unit_test(test_waiting_burns_no_cpu),  cmocka_unit_test(test_fault_parse),
		cmocka_unit_test(test_fault_parse_refuses), cmocka_unit_test(test_fault_check),        cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_f16),              cmocka_unit_test(test_rng),                   cmocka_unit_test(test_log),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
