/* rope.h: rotary position embedding as numbers: inverse frequencies per rope type, and the cos/sin row of a position.
 * The formulas stand in rope.c; HF transformers decides. Pure functions. */
#ifndef TANDEM_MODEL_ROPE_H
#define TANDEM_MODEL_ROPE_H

#include "model/config.h"

#define ROPE_MAX_DIM 512

struct rope_table {
	int rotary_dim;
	float inv_freq[ROPE_MAX_DIM / 2]; /* for positions within the original length */
	float scale;                      /* multiplies cos and sin (yarn), else 1 */
	struct rope_config config;
};

enum status rope_init(struct rope_table *out, const struct model_config *config, struct error *err) NODISCARD;
/* That of sliding layers, where they have one of their own (config->two_ropes). */
enum status rope_init_local(struct rope_table *out, const struct model_config *config, struct error *err) NODISCARD;
/* row[0..d/2) = cos, row[d/2..d) = sin for `position`, times scale. Depends on nothing but the position (dynamic rope: theta
 * for max(position + 1, original length)), so that results do not depend on how a prompt is cut into chunks. */
void rope_row(const struct rope_table *table, int64_t position, float *row);

#endif
