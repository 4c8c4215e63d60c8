/* tpl_run.h: what one parse or one render carries through the interpreter: its memory, its budgets and its error.
 *
 * All memory comes from an arena and goes at once when the run ends; there is nothing to free on the way. Every loop over data
 * that a template or a request chose pays steps, every recursion pays depth: so time, memory and C stack are bounded whatever
 * the template says. The error lives here too, which is why functions of tpl_* take the run first and no `err` last; the line
 * of the construct that failed is put before the text once, where the run ends.
 */
#ifndef TANDEM_TEXT_TPL_RUN_H
#define TANDEM_TEXT_TPL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

struct tpl_chunk;
struct tpl_text;
struct tpl_dict;

enum tpl_flow { TPL_FLOW_NEXT, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE };

struct tpl_run {
	struct tpl_chunk *chunks; /* newest first; owned */
	size_t memory_bytes;      /* left of the budget */
	size_t output_bytes;      /* the most that `root` may hold */
	uint64_t steps;           /* left */
	int depth;                /* levels of recursion left */
	int line;                 /* of the construct at work */
	bool raised;              /* the error is the text of raise_exception */
	bool exhausted;           /* the error is a budget */
	enum tpl_flow flow;       /* a break or continue on its way to its loop */
	enum status memory_status;
	struct error *err;
	struct tpl_text *root, *out;    /* the output; where text goes now (a capture, or root) */
	const struct tpl_dict *context; /* the variables that the caller gave */
	const struct tm *now;           /* for strftime_now; NULL: not known */
};

/* Zeroed and aligned for anything; NULL when the budget or the machine has no more, with the error set. */
void *tpl_alloc(struct tpl_run *run, size_t count, size_t size) NODISCARD;
#define TPL_NEW(run, ptr, count) (((ptr) = tpl_alloc((run), (count), sizeof *(ptr))) ? STATUS_OK : (run)->memory_status)
void tpl_chunks_free(struct tpl_chunk **chunks);

enum status tpl_out_of(struct tpl_run *run, const char *what) NODISCARD;

/* Pays for `n` units of work: a node evaluated, an element visited, some bytes copied or compared. */
static inline enum status tpl_pay(struct tpl_run *run, size_t n)
{
	if (run->steps < n) return tpl_out_of(run, "steps");
	run->steps -= n;
	return STATUS_OK;
}

#define TPL_BYTES_PER_STEP 64
static inline enum status tpl_pay_bytes(struct tpl_run *run, size_t bytes)
{
	return tpl_pay(run, bytes / TPL_BYTES_PER_STEP + 1);
}

/* One level down; `run->depth++` comes back up. A run that failed need not come back up. */
static inline enum status tpl_descend(struct tpl_run *run)
{
	if (run->depth <= 0) return tpl_out_of(run, "levels of nesting");
	run->depth--;
	return tpl_pay(run, 1);
}

#endif
