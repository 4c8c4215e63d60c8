#include "sim/bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sim/world.h"

enum { BLOCK = 32, STEPS = 400 };

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static double median_us(uint64_t *ns, int n)
{
	qsort(ns, (size_t)n, sizeof *ns, compare);
	return (double)ns[n / 2] / 1e3;
}

static enum status submit_all(struct scheduler *s, int seqs, int waiting, int prompt, struct error *err)
{
	int32_t *tokens = calloc((size_t)prompt, sizeof *tokens);
	if (!tokens) return STATUS_NO_MEMORY;
	for (int i = 0; i < seqs + waiting; i++) {
		struct sequence *q;
		for (int t = 0; t < prompt; t++) tokens[t] = (int32_t)(rng_u64(1, (uint64_t)i, (uint64_t)t) % 1000);
		struct sequence_options o = {.prompt = tokens, .prompt_count = prompt, .max_tokens = 4 * STEPS, .block_tokens = BLOCK, .salt = 1};
		enum status st = sequence_create(&q, (uint64_t)i + 1, &o, err);
		if (st == STATUS_OK) st = scheduler_submit(s, q, err);
		if (st != STATUS_OK) return st;
	}
	free(tokens);
	return STATUS_OK;
}

/* Until the last has been prefilled, then timed: all decode, `waiting` more than there are slots for wait. */
static enum status run(int seqs, int waiting, int prompt, struct error *err)
{
	struct world world;
	struct scheduler *s;
	struct step_plan plan;
	int per_seq = (prompt + 8 * STEPS) / BLOCK, rows = seqs + 512;
	static uint64_t plan_ns[STEPS], settle_ns[STEPS];
	struct world_options w = {.ranks = 2, .blocks = per_seq * seqs, .block_tokens = BLOCK, .max_seqs = seqs, .max_blocks = per_seq,
	                          .prefix_cache = true, .seed = 1};
	TRY(world_create(&world, &w, err));
	TRY(scheduler_create(&s, &(struct scheduler_options){.max_seqs = seqs, .max_rows = rows, .kv_blocks = w.blocks, .block_tokens = BLOCK,
	                                                     .kv = &world.kv}, err));
	TRY(step_plan_init(&plan, &(struct step_limits){.max_rows = rows, .max_seqs = seqs, .max_outputs = seqs}, err));
	TRY(submit_all(s, seqs, waiting, prompt, err));
	for (int timed = 0; timed < STEPS;) {
		uint64_t start = clock_ns();
		TRY(scheduler_plan(s, &plan, start, err));
		uint64_t planned = clock_ns();
		for (int r = 0; r < w.ranks; r++)
			for (int i = 0; i < plan.seqs; i++) TRY(kv_reserve(world.pools[r], plan.slot[i], plan.row_start[i + 1] - plan.row_start[i], err));
		uint64_t reserved = clock_ns();
		world_settle(&world, &plan, true);
		scheduler_committed(s, &plan);
		for (int i = 0; i < plan.outputs; i++) (void)sequence_append(plan.sequence[plan.output_seq[i]], (int32_t)(start % 1000));
		uint64_t end = clock_ns();
		if (plan.rows != seqs) continue;
		plan_ns[timed] = planned - start;
		settle_ns[timed++] = end - reserved;
	}
	printf("%4d decoding, %5d waiting: plan %6.1f us, commit on 2 ranks and append %6.1f us\n", seqs, waiting, median_us(plan_ns, STEPS),
	       median_us(settle_ns, STEPS));
	step_plan_fini(&plan);
	scheduler_destroy(&s);
	world_destroy(&world);
	return STATUS_OK;
}

int bench_run(void)
{
	struct error err = {0};
	const int seqs[] = {1, 16, 64, 256};
	for (int i = 0; i < 4; i++) {
		for (int waiting = 0; waiting <= 1000; waiting += 1000) {
			if (run(seqs[i], waiting, 200, &err) == STATUS_OK) continue;
			fprintf(stderr, "sim: %s\n", err.text);
			return 1;
		}
	}
	return 0;
}
