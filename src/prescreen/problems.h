/* problems.h: from a model's config to the list of questions: which linears and attentions one rank has to compute, at which degrees, with how many rows,
 * asked by which op of the back end. Equal questions of several degrees or families are one problem with several places.
 *
 * The experts of an MoE layer are one problem, router and shared expert included, as the op has them: its rows are the tokens. Biases are left out: they change
 * no kernel's choice.
 */
#ifndef TANDEM_PRESCREEN_PROBLEMS_H
#define TANDEM_PRESCREEN_PROBLEMS_H

#include "device/device.h"
#include "model/config.h"
#include "prescreen/results.h"
#include "prescreen/shapes.h"

/* Of degrees, rows and contexts no two are alike. */
struct problem_choice {
	const int32_t *degrees;
	int degree_count;
	bool decode, prefill;      /* phases that are wanted */
	const int32_t *rows;       /* NULL: the classes of shapes.h; a number up to DECODE_MAX_ROWS is decode, any other prefill */
	int row_count;
	const char *families;      /* parts of names, commas between: "mlp,attn o"; NULL: all */
	const int32_t *contexts;   /* keys of a sequence for the attention of decode */
	int context_count;
};
#define DECODE_MAX_ROWS 32

/* Which op asks for a family's product at a degree on this back end. */
enum linear_use problem_use(const struct device_ops *ops, const struct model_config *config, const struct shapes *shapes, const struct shape_family *family);

/* The experts of a layer, and the gated delta net of one, for so many rows; false: the model has none, or the back end does not compute them. */
bool problem_moe(struct moe_key *out, const struct device_ops *ops, const struct model_config *config, const struct shapes *shapes, int rows);
bool problem_gdn(struct gdn_problem *out, const struct device_ops *ops, const struct shapes *shapes, int rows);

/* Fills degrees and problems of `out` (zeroed before). USAGE: nothing is left to measure; BAD_INPUT: no degree is legal. */
enum status problems_make(struct results *out, const struct model_config *config, const struct device_ops *ops, const struct problem_choice *choice,
                          struct error *err) NODISCARD;

/* What a rank at `world_size` has to compute on this back end, in which ranks differ included: the LM head is there once for each number of rows. `degree` too, if
 * not NULL. */
void problems_shapes(struct shapes *out, struct plan_degree *degree, const struct model_config *config, const struct device_ops *ops, int world_size);

/* An attention problem as the back end knows it. */
static inline struct attention_key problem_attention_key(const struct attention_problem *p)
{
	return (struct attention_key){.prefill = p->prefill, .dtype = p->dtype, .q_heads = p->q_heads, .kv_heads = p->kv_heads, .head_dim = p->head_dim, .m = p->rows};
}

/* How the rank at `world_size` sums a row-parallel linear: its share of the model's tree, as the engine's collectives split it for rank 0. */
void problem_split(struct sum_split *out, const struct model_config *config, int world_size);

#endif
