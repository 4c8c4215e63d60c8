#include "unit/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"

struct start {
	rank_body *body;
	struct rank_run *run;
};

static void *thread_main(void *arg)
{
	struct start *start = arg;
	start->body(start->run);
	start->run->end_ns = clock_ns();
	return NULL;
}

void ranks_run(int world_size, rank_body *body, void *context, struct rank_run *runs)
{
	pthread_t threads[RANKS_MAX];
	struct start starts[RANKS_MAX];
	for (int r = 0; r < world_size; r++) {
		runs[r] = (struct rank_run){.rank = r, .world_size = world_size, .context = context};
		starts[r] = (struct start){body, &runs[r]};
		if (pthread_create(&threads[r], NULL, thread_main, &starts[r]) != 0) {
			fprintf(stderr, "cannot start thread %d\n", r);
			_exit(1);
		}
	}
	for (int r = 0; r < world_size; r++) pthread_join(threads[r], NULL);
}

void ranks_assert_content(const struct rank_run *runs, int world_size)
{
	for (int r = 0; r < world_size; r++)
		if (runs[r].complaint[0]) fail_msg("rank %d of %d: %s (%s)", r, world_size, runs[r].complaint, runs[r].err.text);
}

bool rank_check(struct rank_run *run, bool ok, const char *what, const char *format, ...)
{
	if (ok || run->complaint[0]) return ok;
	int n = snprintf(run->complaint, sizeof run->complaint, "%.100s: ", what);
	va_list args;
	va_start(args, format);
	vsnprintf(run->complaint + n, sizeof run->complaint - (size_t)n, format, args);
	va_end(args);
	return false;
}

static void bark(int signal)
{
	(void)signal;
	static const char text[] = "watchdog: the test program hangs\n";
	if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(98);
	_exit(99);
}

void watchdog(unsigned seconds)
{
	signal(SIGALRM, bark);
	alarm(seconds);
}
