#include "engine/step.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

enum status step_plan_init(struct step_plan *p, const struct step_limits *limits, struct error *err)
{
	*p = (struct step_plan){.limits = *limits};
	size_t rows = (size_t)limits->max_rows, seqs = (size_t)limits->max_seqs + (size_t)limits->max_tails, outputs = (size_t)limits->max_outputs;
	int32_t **const ints[] = {&p->token, &p->position, &p->seq_of_row, &p->row_start, &p->slot, &p->kv_len, &p->output_row, &p->output_seq};
	const size_t sizes[] = {rows, rows, rows, seqs + 1, seqs, seqs, outputs, outputs};
	enum status st = STATUS_OK;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		*ints[i] = mem_zalloc(sizes[i], sizeof(int32_t), "step plan", err);
		if (!*ints[i]) st = STATUS_NO_MEMORY;
	}
	p->sequence = mem_zalloc(seqs, sizeof *p->sequence, "step plan", err);
	p->goes_on = mem_zalloc(seqs, sizeof *p->goes_on, "step plan", err);
	p->to_host = mem_zalloc(outputs, sizeof *p->to_host, "step plan", err);
	if (!p->sequence || !p->goes_on || !p->to_host) st = STATUS_NO_MEMORY;
	if (st != STATUS_OK) step_plan_fini(p);
	return st;
}

void step_plan_fini(struct step_plan *p)
{
	free(p->token);
	free(p->position);
	free(p->seq_of_row);
	free(p->row_start);
	free(p->slot);
	free(p->kv_len);
	free(p->output_row);
	free(p->output_seq);
	free(p->sequence);
	free(p->goes_on);
	free(p->to_host);
	*p = (struct step_plan){0};
}

void step_plan_clear(struct step_plan *p)
{
	p->rows = p->seqs = p->outputs = p->tails = 0;
	p->row_start[0] = 0;
}

void step_plan_add(struct step_plan *p, struct sequence *sequence, int slot, const int32_t *tokens, int begin, int end, int want_logits)
{
	assert(begin < end && p->rows + (end - begin) <= p->limits.max_rows && p->seqs - p->tails < p->limits.max_seqs);
	int seq = p->seqs++;
	for (int i = begin; i < end; i++) {
		p->token[p->rows] = tokens[i];
		p->position[p->rows] = i;
		p->seq_of_row[p->rows++] = seq;
	}
	p->row_start[p->seqs] = p->rows;
	p->slot[seq] = slot;
	p->kv_len[seq] = end;
	p->sequence[seq] = sequence;
	p->goes_on[seq] = false;
	if (!want_logits) return;
	assert(p->outputs < p->limits.max_outputs);
	p->output_row[p->outputs] = p->rows - 1;
	p->output_seq[p->outputs++] = seq;
}

void step_plan_add_tail(struct step_plan *p, struct sequence *sequence, int slot, const int32_t *tokens, int begin, int end, int want_logits)
{
	int first = 0;
	while (first < p->seqs && p->slot[first] != slot) first++;
	assert(first < p->seqs - p->tails && p->kv_len[first] == begin && p->tails < p->limits.max_tails);
	p->goes_on[first] = true;
	p->tails++;
	step_plan_add(p, sequence, slot, tokens, begin, end, want_logits);
}
