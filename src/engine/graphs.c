#include "engine/graphs.h"

#include "base/clock.h"
#include "engine/dispatch.h"
#include "engine/forward.h"

static bool can_record(const struct rank *rank)
{
	const struct device_ops *vt = rank->device->vt;
	return rank->options.graphs && vt->graph_begin && (rank->adds || rank->comm->vt->replayed);
}

/* Whether decode steps of so many rows may be asked for this result. */
static bool gives(const struct rank *rank, int rows, enum step_result result)
{
	const bool samples = rows <= rank_sample_rows(&rank->options) && rank->peers[0]->sample_host;
	switch (result) {
	case RESULT_LOGITS: return !samples;
	case RESULT_BEST: return rank->device->vt->ops.argmax != NULL;
	case RESULT_SAMPLED: return samples;
	case RESULT_COUNT: break;
	}
	return false;
}

static enum status forward(struct rank *rank, int rows, enum step_result result, struct error *err)
{
	TRY(forward_layers(rank, err));
	return forward_head(rank, rows, result, err);
}

/* Records what forward puts on the stream. */
static enum status record(struct rank *rank, int rows, enum step_result result, struct recorded_step *out, struct error *err)
{
	struct comm *comm = rank->comm;
	const uint64_t sequence = comm->sequence, all_reduces = comm->all_reduces;
	TRY(rank->device->vt->graph_begin(rank->stream, err));
	enum status st = device_graph_end(rank->stream, forward(rank, rows, result, err), &out->graph, err);
	out->collectives = comm->sequence - sequence;
	out->all_reduces = comm->all_reduces - all_reduces;
	return st;
}

/* Runs a step of padding rows, so that every kernel is loaded, then records the same. The ranks meet before and after: making a recorded graph takes device
 * memory, and the runtime may want a quiet device for that, so no kernel of a peer may spin meanwhile for one that this rank has yet to launch. */
static enum status prepare(struct rank *rank, int index, struct error *err)
{
	int32_t zero = 0;
	const struct step_plan nothing = {.token = &zero, .position = &zero, .row_start = &zero, .kv_len = &zero, .output_row = &zero};
	const int rows = step_bucket_rows(index);
	TRY(rank_assemble(rank, &nothing, rows, err));
	for (int result = 0; result < RESULT_COUNT; result++) {
		struct recorded_step *step = &rank->recorded[index][result];
		if (!gives(rank, rows, (enum step_result)result)) continue;
		TRY(forward(rank, rows, (enum step_result)result, err));
		TRY(comm_sync(rank->comm, rank->stream, err));
		TRY(rank->comm->vt->barrier(rank->comm, err));
		TRY(record(rank, rows, (enum step_result)result, step, err));
		TRY(rank->comm->vt->barrier(rank->comm, err));
	}
	return STATUS_OK;
}

enum status graphs_record(struct rank *rank, struct error *err)
{
	int last = step_bucket(rank->options.limits.max_seqs);
	if (!can_record(rank) || last == STEP_BUCKETS) return STATUS_OK;
	if (rank->notes) rank->notes->rehearsal = true;
	for (int i = last; i >= 0; i--) TRY(prepare(rank, i, err));
	if (rank->notes) rank->notes->rehearsal = false;
	return STATUS_OK;
}

int graphs_bucket(const struct rank *rank, const struct step_plan *plan)
{
	int index = step_bucket(plan->rows);
	return step_plan_decodes(plan) && index < STEP_BUCKETS && rank->recorded[index][plan->result].graph ? step_bucket_rows(index) : 0;
}

enum status graphs_meet(struct rank *rank, int bucket, enum step_result result, struct error *err)
{
	rank->replays = bucket * RESULT_COUNT + (int)result;
	TRY(rank->comm->vt->barrier(rank->comm, err));
	int first = rank->peers[0]->replays; /* of this step: nobody comes to the next one before all have reported */
	if (first == rank->replays) return STATUS_OK;
	return FAIL(err, MISMATCH, "step: rank %d would run the recorded step %d of %d rows, rank 0 step %d of %d", rank->index,
	            rank->replays % RESULT_COUNT, bucket, first % RESULT_COUNT, first / RESULT_COUNT);
}

enum status graphs_replay(struct rank *rank, int bucket, enum step_result result, struct error *err)
{
	const struct recorded_step *step = &rank->recorded[step_bucket(bucket)][result];
	TRY(rank_moves(rank, err));
	TRY(rank->device->vt->graph_launch(step->graph, rank->stream, err));
	dispatch_replayed(rank, bucket);
	if (rank->comm->vt->replayed) rank->comm->vt->replayed(rank->comm, step->collectives, step->all_reduces);
	return STATUS_OK;
}

void graphs_forget(struct rank *rank)
{
	for (int i = 0; i < STEP_BUCKETS; i++)
		for (int result = 0; result < RESULT_COUNT; result++) {
			struct recorded_step *step = &rank->recorded[i][result];
			if (step->graph) rank->device->vt->graph_destroy(step->graph);
			*step = (struct recorded_step){0};
		}
}
