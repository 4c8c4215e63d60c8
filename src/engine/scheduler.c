#include "engine/scheduler.h"

#include <stdlib.h>

#include "base/mem.h"

struct scheduler {
	struct scheduler_options options;
	struct sequence *queue_head, *queue_tail;
	struct sequence **running; /* [max_seqs] by slot */
	struct sequence **order;   /* [max_seqs] running ones, oldest first */
	int running_count;
	int promised_blocks; /* that the running sequences can ever need */
};

enum status scheduler_create(struct scheduler **out, const struct scheduler_options *options, struct error *err)
{
	*out = NULL;
	struct scheduler *s = mem_zalloc(1, sizeof *s, "scheduler", err);
	if (!s) return STATUS_NO_MEMORY;
	s->options = *options;
	s->running = mem_zalloc((size_t)options->max_seqs, sizeof *s->running, "scheduler", err);
	s->order = mem_zalloc((size_t)options->max_seqs, sizeof *s->order, "scheduler", err);
	if (!s->running || !s->order) {
		scheduler_destroy(&s);
		return STATUS_NO_MEMORY;
	}
	*out = s;
	return STATUS_OK;
}

void scheduler_destroy(struct scheduler **scheduler)
{
	struct scheduler *s = *scheduler;
	if (!s) return;
	for (struct sequence *q = s->queue_head, *next; q; q = next) {
		next = q->next;
		sequence_destroy(&q);
	}
	for (int i = 0; i < s->running_count; i++) sequence_destroy(&s->order[i]);
	free(s->running);
	free(s->order);
	free(s);
	*scheduler = NULL;
}

void scheduler_submit(struct scheduler *s, struct sequence *q)
{
	q->next = NULL;
	if (s->queue_tail) s->queue_tail->next = q;
	else s->queue_head = q;
	s->queue_tail = q;
}

struct sequence *scheduler_find(struct scheduler *s, uint64_t id)
{
	for (int i = 0; i < s->running_count; i++)
		if (s->order[i]->id == id) return s->order[i];
	for (struct sequence *q = s->queue_head; q; q = q->next)
		if (q->id == id) return q;
	return NULL;
}

struct sequence *scheduler_next_cancelled(struct scheduler *s, bool all)
{
	for (int i = 0; i < s->running_count; i++)
		if (all || s->order[i]->cancelled) return s->order[i];
	for (struct sequence *q = s->queue_head; q; q = q->next)
		if (all || q->cancelled) return q;
	return NULL;
}

/* The last token is sampled but never read by the model, hence - 1. */
static int blocks_at_most(const struct scheduler *s, const struct sequence *q)
{
	int tokens = q->prompt_count + q->max_tokens - 1;
	return (tokens + s->options.block_tokens - 1) / s->options.block_tokens;
}

static void dequeue(struct scheduler *s, struct sequence *q)
{
	struct sequence **link = &s->queue_head, *before = NULL;
	while (*link != q) {
		before = *link;
		link = &before->next;
	}
	*link = q->next;
	if (s->queue_tail == q) s->queue_tail = before;
	q->next = NULL;
}

static void admit(struct scheduler *s)
{
	while (s->queue_head && s->running_count < s->options.max_seqs) {
		struct sequence *q = s->queue_head;
		int need = blocks_at_most(s, q);
		if (q->cancelled || s->promised_blocks + need > s->options.kv_blocks) return;
		dequeue(s, q);
		int slot = 0;
		while (s->running[slot]) slot++;
		q->slot = slot;
		q->state = SEQUENCE_RUNNING;
		s->running[slot] = s->order[s->running_count++] = q;
		s->promised_blocks += need;
	}
}

void scheduler_remove(struct scheduler *s, struct sequence *q)
{
	if (q->state == SEQUENCE_QUEUED) {
		dequeue(s, q);
	} else {
		s->promised_blocks -= blocks_at_most(s, q);
		s->running[q->slot] = NULL;
		int i = 0;
		while (s->order[i] != q) i++;
		for (s->running_count--; i < s->running_count; i++) s->order[i] = s->order[i + 1];
	}
	q->state = SEQUENCE_DONE;
}

void scheduler_plan(struct scheduler *s, struct step_plan *plan)
{
	admit(s);
	step_plan_clear(plan);
	int budget = s->options.max_rows;
	for (int pass = 0; pass < 2; pass++) { /* decode rows first: a long prompt must not stall running answers */
		for (int i = 0; i < s->running_count && budget > 0; i++) {
			struct sequence *q = s->order[i];
			int left = q->count - q->computed;
			if (q->cancelled || (left == 1) != (pass == 0)) continue;
			int take = left < budget ? left : budget;
			step_plan_add(plan, q, q->slot, q->tokens, q->computed, q->computed + take, take == left);
			budget -= take;
		}
	}
}

void scheduler_committed(struct scheduler *s, const struct step_plan *plan)
{
	(void)s;
	for (int i = 0; i < plan->seqs; i++) plan->sequence[i]->computed = plan->kv_len[i];
}
