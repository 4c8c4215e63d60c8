/* ranks.h: runs one body on a thread per rank and joins them; a rank's findings are judged by the main thread, because cmocka's
 * asserts may only jump there. */
#ifndef TANDEM_TESTS_RANKS_H
#define TANDEM_TESTS_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define RANKS_MAX 64

struct rank_run {
	int rank, world_size;
	void *context;
	enum status st;      /* what the body ended with */
	struct error err;    /* zeroed at start */
	char complaint[256]; /* first failed RANK_CHECK; empty: none */
	uint64_t end_ns;     /* when the body returned */
};

typedef void rank_body(struct rank_run *run);

/* runs[world_size]; returns when all bodies did. */
void ranks_run(int world_size, rank_body *body, void *context, struct rank_run *runs);
/* Fails the test with the first complaint, if any. */
void ranks_assert_content(const struct rank_run *runs, int world_size);

/* In a body: notes the first complaint, "what: <text>"; false if `ok` is. */
PRINTF_LIKE(4, 5) bool rank_check(struct rank_run *run, bool ok, const char *what, const char *format, ...);
#define RANK_CHECK(run, cond, ...)                                    \
	do {                                                              \
		if (!rank_check((run), (cond), #cond, __VA_ARGS__)) return;   \
	} while (0)

/* Ends the program with a message if the tests hang: call first in main. */
void watchdog(unsigned seconds);

#endif
