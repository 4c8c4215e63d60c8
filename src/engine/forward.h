/* forward.h: one step of a dense decoder on one rank. Reads as the equation; two all-reduces a layer (contract E3). */
#ifndef TANDEM_ENGINE_FORWARD_H
#define TANDEM_ENGINE_FORWARD_H

#include "engine/rank.h"

/* Runs the assembled step (rank_assemble) through all layers: rank->buffers.x holds the last residual stream afterwards, KV of the new
 * rows is written. Everything is put on the rank's stream; nothing is waited for but peers. */
enum status forward_layers(struct rank *rank, struct error *err) NODISCARD;
/* Logits of the rows in rank->output_row[0..outputs): this rank's vocabulary slice goes to its columns of rank->host_logits. */
enum status forward_head(struct rank *rank, int outputs, struct error *err) NODISCARD;

#endif
