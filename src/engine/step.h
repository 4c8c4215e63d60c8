/* step.h: what one step computes, the same for all ranks (contract E1). It names sequences by slot and logical lengths, never by
 * block or pointer: each rank finds its own blocks. Made by the scheduler, read by every rank worker, owned by the coordinator.
 * All arrays are made once for the largest step. */
#ifndef TANDEM_ENGINE_STEP_H
#define TANDEM_ENGINE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sequence;

struct step_limits {
	int max_rows;    /* token rows of a step */
	int max_seqs;    /* sequences of a step */
	int max_tails;   /* of these that may have two parts in one step; 0 but for models with state */
	int max_outputs; /* rows whose logits a step returns */
};

#define LOGIT_ROWS 32 /* rows of one head pass over a prompt */

/* For `sequences` that run at once and up to `chunk` rows of a prompt: a decode row for every sequence, and still rows for a prompt. No tails. */
static inline struct step_limits step_limits_of(int chunk, int sequences)
{
	const int least = sequences + sequences / 4;
	return (struct step_limits){.max_rows = chunk > least ? chunk : least, .max_seqs = sequences, .max_outputs = sequences > LOGIT_ROWS ? sequences : LOGIT_ROWS};
}

/* What a step gives for its output rows. */
enum step_result {
	RESULT_LOGITS,  /* the rows of logits, in host memory */
	RESULT_BEST,    /* the likeliest token of each, found on the devices: no logits leave them */
	RESULT_SAMPLED, /* a token of each, drawn on rank 0's device; logits in host memory of those that it leaves alone (`to_host`) */
	RESULT_COUNT
};

struct step_plan {
	struct step_limits limits;
	uint64_t generation; /* 1, 2, … */
	int rows, seqs, outputs; /* seqs: parts of sequences, tails included */
	int tails;               /* the last so many parts go on where an earlier one ends, between whose states the device keeps one */
	int32_t *token;       /* [rows] */
	int32_t *position;    /* [rows] */
	int32_t *seq_of_row;  /* [rows] index into the seq arrays */
	int32_t *row_start;   /* [seqs + 1] */
	int32_t *slot;        /* [seqs] KV sequence number */
	int32_t *kv_len;      /* [seqs] keys once this step is committed */
	int32_t *output_row;  /* [outputs] rows whose logits are wanted, ascending */
	int32_t *output_seq;  /* [outputs] index into the seq arrays */
	bool *goes_on;        /* [seqs] a later part of this step has the sequence's next rows */
	struct sequence **sequence; /* [seqs]; the coordinator's, ranks do not look at it */
	enum step_result result;
	bool *to_host;        /* [outputs] RESULT_SAMPLED: the host draws this one */
	size_t sample_bytes;  /* RESULT_SAMPLED: of what the device's sampler reads, from the beginning of rank 0's sample_host */
};

/* Whether every row is a sequence's only one and an output. */
static inline bool step_plan_decodes(const struct step_plan *plan)
{
	return plan->rows > 0 && plan->seqs == plan->rows && plan->outputs == plan->rows;
}

/* Decode steps like these may be padded to a bucket of 1, 2, 4, 8, 16, 24, 32, ... 256 rows. */
#define STEP_BUCKETS 35
/* Rows of bucket i. */
static inline int step_bucket_rows(int i)
{
	return i < 4 ? 1 << i : 8 * (i - 2);
}
/* The smallest bucket for `rows`; STEP_BUCKETS: none is large enough. */
static inline int step_bucket(int rows)
{
	int i = 0;
	while (i < STEP_BUCKETS && step_bucket_rows(i) < rows) i++;
	return i;
}

enum status step_plan_init(struct step_plan *out, const struct step_limits *limits, struct error *err) NODISCARD;
void step_plan_fini(struct step_plan *plan);
void step_plan_clear(struct step_plan *plan);
/* Rows for tokens[begin, end) of a sequence in `slot`, positions begin.. . want_logits: of the last row. The caller has checked the limits. */
void step_plan_add(struct step_plan *plan, struct sequence *sequence, int slot, const int32_t *tokens, int begin, int end, int want_logits);
/* The next rows of a sequence that is in the plan already. Behind all others. */
void step_plan_add_tail(struct step_plan *plan, struct sequence *sequence, int slot, const int32_t *tokens, int begin, int end, int want_logits);

#endif
