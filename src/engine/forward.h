/* forward.h: one step of a decoder on one rank. Reads as the equation; two all-reduces a layer (contract E3). */
#ifndef TANDEM_ENGINE_FORWARD_H
#define TANDEM_ENGINE_FORWARD_H

#include "engine/rank.h"

/* Runs the assembled step (rank_assemble) through all layers: rank->buffers.x holds the last residual stream afterwards, KV of the new
 * rows is written. Everything is put on the rank's stream; nothing is waited for but peers. */
enum status forward_layers(struct rank *rank, struct error *err) NODISCARD;
/* What is wanted of the rows in rank->output_row[0..outputs), for this rank's vocabulary slice: logits on the device (rank_fetch_logits takes them
 * to the host), or the best token of each in rank->best. */
enum status forward_head(struct rank *rank, int outputs, enum step_result result, struct error *err) NODISCARD;
/* Where this rank's vocabulary slice of the logits goes: where whole rows are wanted, into rank 0's memory if the comm can order that. */
struct tensor forward_logits(const struct rank *rank, int outputs, enum step_result result);

#endif
