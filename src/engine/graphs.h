/* graphs.h: decode steps of one rank, recorded once for each bucket of rows and replayed with one launch.
 *
 * What changes from step to step lies at fixed addresses that depend on the bucket alone (rank_assemble), so nothing is recorded anew. All
 * ranks record and replay the same buckets in the same order; graphs_meet shows it before anything is launched. A graph holds addresses of
 * the comm: a new comm needs new graphs. Prefill and mixed steps are not recorded. Worker thread.
 */
#ifndef TANDEM_ENGINE_GRAPHS_H
#define TANDEM_ENGINE_GRAPHS_H

#include "engine/rank.h"

/* Records every bucket up to the most sequences that may run, after running each once; all ranks at once. Nothing where steps run eagerly:
 * the back end or the collectives cannot record, or --no-graphs. */
enum status graphs_record(struct rank *rank, struct error *err) NODISCARD;
/* Rows of the recorded step that computes `plan`, padding included; 0: there is none. */
int graphs_bucket(const struct rank *rank, const struct step_plan *plan);
/* The step's rendezvous (E2), after which all ranks run the same: MISMATCH if they would replay different steps. */
enum status graphs_meet(struct rank *rank, int bucket, enum step_result result, struct error *err) NODISCARD;
/* The assembled step of `bucket` rows: layers and head, in one launch. */
enum status graphs_replay(struct rank *rank, int bucket, enum step_result result, struct error *err) NODISCARD;
/* The stream must be idle. */
void graphs_forget(struct rank *rank);

#endif
