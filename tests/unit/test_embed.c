/* What a program that embeds the engine may count on (tandem.h): its signals and its floating-point mode stay its own, and nothing that it does meanwhile ends the process. */
#define X 7 /* the program's own names stay, too */
#include "tandem.h"
#if X != 7
#error "tandem.h took a name from the program that includes it"
#endif
#undef X

#include <fenv.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "base/status.h"
#include "unit/files.h"
#include "unit/golden.h"

#define MODEL GOLDEN_DIR "llama"

static struct tandem *open_with(struct tandem_options o)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	o.model = MODEL;
	o.context = 128;
	if (tandem_open(&engine, &o, &err)) fail_msg("open: %s", err.text);
	return engine;
}

/* Runs `body` in a process of its own; its status as waitpid has it. */
static int in_child(void (*body)(void))
{
	pid_t child = fork();
	if (!child) {
		alarm(20);
		body();
		_exit(0);
	}
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

/* A signal that is blocked only after the threads of the engine are there. */
static void await_sigterm(void)
{
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .threads = 4});
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	struct pollfd wait = {.fd = signalfd(-1, &set, SFD_CLOEXEC), .events = POLLIN};
	kill(getpid(), SIGTERM);
	if (poll(&wait, 1, 10000) != 1) _exit(2);
	tandem_close(&engine);
}

static void test_a_blocked_signal_waits_for_the_program(void **state)
{
	(void)state;
	assert_int_equal(in_child(await_sigterm), 0);
}

static void mask_of(sigset_t *mask)
{
	sigemptyset(mask);
	pthread_sigmask(SIG_SETMASK, NULL, mask);
}

static void test_open_leaves_the_mask_of_its_caller(void **state)
{
	(void)state;
	sigset_t before, after;
	mask_of(&before);
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2});
	mask_of(&after);
	for (int number = 1; number < NSIG; number++) assert_int_equal(sigismember(&before, number), sigismember(&after, number));
	tandem_close(&engine);
}

static int ignore_row(void *context, int position, const float *logits, int vocab_size)
{
	(void)context;
	(void)position;
	(void)logits;
	(void)vocab_size;
	return 0;
}

static int interrupt_at(void *engine, int position, const float *logits, int vocab_size)
{
	(void)logits;
	(void)vocab_size;
	if (position == 3) tandem_interrupt(engine, true);
	return position > 20;
}

static void test_logits_are_interrupted_between_steps(void **state)
{
	(void)state;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .max_sequences = 1, .prefill_chunk = 4});
	struct tandem_error err = {0};
	int32_t tokens[100] = {0};
	assert_int_equal(tandem_logits(engine, tokens, 100, interrupt_at, engine, &err), STATUS_CANCELLED);
	assert_string_equal(err.text, "interrupted");
	tandem_interrupt(engine, false);
	assert_int_equal(tandem_logits(engine, tokens, 20, ignore_row, NULL, &err), 0);
	tandem_close(&engine);
}

static void call_inside(struct tandem *engine)
{
	struct tandem *same = engine;
	struct tandem_error err = {0};
	struct tandem_event events[8];
	int count;
	bool idle;
	double ms;
	assert_int_equal(tandem_step(engine, events, 8, &count, &idle, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "callback")) fail_msg("%s", err.text);
	assert_int_equal(tandem_logits(engine, (int32_t[]){1, 2}, 2, ignore_row, NULL, NULL), STATUS_BAD_INPUT);
	assert_int_equal(tandem_rebuild(engine, NULL), STATUS_BAD_INPUT);
	assert_int_equal(tandem_trace_step(engine, NULL, NULL, NULL), STATUS_BAD_INPUT);
	assert_int_equal(tandem_time_step(engine, 1, &ms, NULL), STATUS_BAD_INPUT);
	tandem_close(&same);
	assert_ptr_equal(same, engine);
}

static int call_from_row(void *engine, int position, const float *logits, int vocab_size)
{
	(void)logits;
	(void)vocab_size;
	if (position == 1) call_inside(engine);
	return 0;
}

static void call_from_span(void *engine, int rank, const char *section, const char *op, double begin_us, double us)
{
	(void)rank;
	(void)section;
	(void)op;
	(void)begin_us;
	(void)us;
	call_inside(engine);
}

static void test_a_callback_may_not_run_the_ranks(void **state)
{
	(void)state;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2});
	struct tandem_error err = {0};
	struct tandem_event events[8];
	int32_t tokens[50] = {0};
	int count;
	bool idle;
	uint64_t id;
	if (tandem_logits(engine, tokens, 50, call_from_row, engine, &err)) fail_msg("%s", err.text);
	assert_int_equal(tandem_submit(engine, &(struct tandem_request){.prompt = tokens, .prompt_count = 5, .max_tokens = 2}, &id, &err), 0);
	assert_int_equal(tandem_step(engine, events, 8, &count, &idle, &err), 0);
	assert_int_equal(count, 1);
	if (tandem_trace_step(engine, call_from_span, engine, &err)) fail_msg("%s", err.text);
	assert_int_equal(tandem_step(engine, events, 8, &count, &idle, &err), 0);
	assert_int_equal(events[0].finish, TANDEM_LENGTH);
	tandem_close(&engine);
	assert_null(engine);
}

#ifdef __SSE__
static void flush_subnormals(void)
{
	_mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ and DAZ */
}
#else
static void flush_subnormals(void)
{
}
#endif

struct answer {
	float logits[50][160];
	struct tandem_event events[12];
	int count;
};

static int keep_row(void *context, int position, const float *logits, int vocab_size)
{
	struct answer *answer = context;
	memcpy(answer->logits[position], logits, (size_t)vocab_size * sizeof *logits);
	return 0;
}

static void ask(struct answer *answer)
{
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .threads = 4});
	struct tandem_error err = {0};
	int32_t tokens[50];
	bool idle = false;
	uint64_t id;
	for (int i = 0; i < 50; i++) tokens[i] = 3 * i;
	if (tandem_logits(engine, tokens, 50, keep_row, answer, &err)) fail_msg("%s", err.text);
	const struct tandem_request request = {.prompt = tokens, .prompt_count = 9, .max_tokens = 12, .ignore_eos = true,
	                                       .sampling = {.temperature = 0.8, .top_p = 0.9, .logprobs = 5}};
	assert_int_equal(tandem_submit(engine, &request, &id, &err), 0);
	for (answer->count = 0; !idle;) {
		struct tandem_event events[8];
		int count;
		assert_int_equal(tandem_step(engine, events, 8, &count, &idle, &err), 0);
		for (int i = 0; i < count; i++) {
			events[i].queue_ms = 0;
			answer->events[answer->count++] = events[i];
		}
	}
	tandem_close(&engine);
}

static void test_the_callers_floating_point_mode_is_its_own(void **state)
{
	(void)state;
	static struct answer want, got;
	fenv_t mode;
	ask(&want);
	assert_int_equal(want.count, 12);
	fegetenv(&mode);
	fesetround(FE_UPWARD);
	flush_subnormals();
	ask(&got);
	int round = fegetround();
	fesetenv(&mode);
	assert_int_equal(round, FE_UPWARD);
	assert_memory_equal(&want, &got, sizeof want);
}

static struct tandem *parents;

static void use_in_fork(void)
{
	struct tandem_error err = {0};
	struct tandem_event events[8];
	int count;
	bool idle;
	if (tandem_step(parents, events, 8, &count, &idle, &err) != STATUS_BAD_INPUT || !strstr(err.text, "fork")) _exit(2);
	if (tandem_logits(parents, (int32_t[]){1, 2}, 2, ignore_row, NULL, &err) != STATUS_BAD_INPUT) _exit(3);
	if (tandem_rebuild(parents, &err) != STATUS_BAD_INPUT) _exit(4);
	tandem_close(&parents);
	if (parents) _exit(5);
}

/* With threads beside each rank's own, which a fork does not have. */
static void test_a_fork_may_close(void **state)
{
	(void)state;
	parents = open_with((struct tandem_options){.world_size = 2, .threads = 4});
	struct tandem_error err = {0};
	assert_int_equal(in_child(use_in_fork), 0);
	assert_int_equal(tandem_logits(parents, (int32_t[]){1, 2}, 2, ignore_row, NULL, &err), 0);
	tandem_close(&parents);
}

static void copy_model(char folder[256])
{
	static const char *const names[] = {"config.json", "model.safetensors"};
	files_make(folder);
	for (int i = 0; i < 2; i++) {
		struct buf bytes = {0};
		char path[512];
		snprintf(path, sizeof path, MODEL "/%s", names[i]);
		assert_int_equal(buf_read_file(&bytes, path, 1 << 20, NULL), STATUS_OK);
		files_write(path, folder, names[i], bytes.data, bytes.size);
		buf_fini(&bytes);
	}
}

static void shorten(void *path, int level, const char *line)
{
	(void)level;
	(void)line;
	if (truncate(path, 4096)) abort();
}

/* A download that begins anew, say: while the engine reads. */
static void test_a_file_that_is_shortened_is_an_error(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct tandem *engine;
	struct tandem_error err = {0};
	copy_model(folder);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	struct tandem_options o = {.model = folder, .world_size = 2, .context = 128, .log = shorten, .context_pointer = path};
	assert_int_equal(tandem_open(&engine, &o, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "model.safetensors: no byte ")) fail_msg("%s", err.text);
	files_remove(folder);
}

static char with_pipe[256];

static void open_with_pipe(void)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	if (tandem_open(&engine, &(struct tandem_options){.model = with_pipe, .context = 128}, &err) != STATUS_BAD_INPUT) _exit(2);
	if (!strstr(err.text, "is not a regular file")) _exit(3);
}

static void test_a_pipe_in_a_models_folder_is_no_wait(void **state)
{
	(void)state;
	static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors"};
	for (int i = 0; i < 3; i++) {
		char path[300];
		copy_model(with_pipe);
		snprintf(path, sizeof path, "%s/%s", with_pipe, names[i]);
		(void)unlink(path);
		assert_int_equal(mkfifo(path, 0600), 0);
		assert_int_equal(in_child(open_with_pipe), 0);
		files_remove(with_pipe);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_blocked_signal_waits_for_the_program),
		cmocka_unit_test(test_open_leaves_the_mask_of_its_caller),
		cmocka_unit_test(test_logits_are_interrupted_between_steps),
		cmocka_unit_test(test_a_callback_may_not_run_the_ranks),
		cmocka_unit_test(test_the_callers_floating_point_mode_is_its_own),
		cmocka_unit_test(test_a_fork_may_close),
		cmocka_unit_test(test_a_file_that_is_shortened_is_an_error),
		cmocka_unit_test(test_a_pipe_in_a_models_folder_is_no_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
