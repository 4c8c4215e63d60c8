/* trial_parts.h: inside a trial: what the files of its kinds of problems share. trial.c: memory, values, regions, linears; trial_attention.c: rows and caches,
 * attention and attention_in; trial_moe.c: experts; trial_gdn.c: the gated delta net; trial_reference.c: samples, and the linears' reference. */
#ifndef TANDEM_PRESCREEN_TRIAL_PARTS_H
#define TANDEM_PRESCREEN_TRIAL_PARTS_H

#include "prescreen/problems.h"
#include "prescreen/trial.h"

#define TRIAL_START 0x1p-10f /* what an output that is added to holds before */

/* ---- memory: of the trial, freed by trial_close */
enum status trial_take(struct trial *t, size_t bytes, const char *what, void **out, struct error *err) NODISCARD;
enum status trial_send(struct trial *t, void *to, const void *from, size_t bytes, struct error *err) NODISCARD;
enum status trial_put(struct trial *t, const void *from, size_t bytes, const char *what, void **out, struct error *err) NODISCARD;
/* n f32 values as `dtype`, on the device; exact for those of trial_values. */
enum status trial_put_values(struct trial *t, const float *values, size_t n, enum dtype dtype, const char *what, void **out, struct error *err) NODISCARD;
enum status trial_add_region(struct trial *t, struct trial_region region, const char *what, void **out, struct error *err) NODISCARD;

/* What a run left in a region, against the baseline's if that is wanted and there. Waits. */
enum status trial_look(struct trial *t, int region, bool baseline, struct compare_result *out, struct error *err) NODISCARD;

/* ---- values: multiples of 1/128 in [-1, 1), those of one stream from index `from` on */
uint16_t trial_half(float value, enum dtype dtype); /* exact for these, and for whole numbers up to 128 */
void trial_pack(void *out, const float *values, size_t n, enum dtype dtype);
void trial_values(float *out, size_t from, size_t n, uint64_t stream);
float *trial_make_values(size_t n, uint64_t stream, const char *what, struct error *err);
/* The weight of a norm: 1 +- 1/8. */
float *trial_make_norm(size_t n, uint64_t stream, const char *what, struct error *err);

static inline void *trial_output(const struct trial *t)
{
	return t->region[0].device + TRIAL_GUARD_BYTES;
}
/* Input of an op that makes its own norm. */
struct norm_input trial_norm_input(const struct trial *t, int rows, int cols);

/* ---- kinds */
enum status trial_open_attention(struct trial *t, struct error *err) NODISCARD;
enum status trial_open_qkv(struct trial *t, struct error *err) NODISCARD;
enum status trial_issue_attention(struct trial *t, struct error *err) NODISCARD;
enum status trial_issue_qkv(struct trial *t, const struct linear_weight *w, struct error *err) NODISCARD;
enum status trial_attention_reference(struct trial *t, struct error *err) NODISCARD;
enum status trial_qkv_reference(struct trial *t, struct error *err) NODISCARD;
enum status trial_open_moe(struct trial *t, struct error *err) NODISCARD;
enum status trial_issue_moe(struct trial *t, int copy, struct error *err) NODISCARD;
enum status trial_moe_reference(struct trial *t, struct error *err) NODISCARD;
enum status trial_open_gdn(struct trial *t, struct error *err) NODISCARD;
enum status trial_issue_gdn(struct trial *t, struct error *err) NODISCARD;
enum status trial_gdn_reference(struct trial *t, struct error *err) NODISCARD;
void trial_gdn_fini(struct trial *t);

/* ---- reference */
/* `want` of 0..n-1, ascending: both ends, and one somewhere in each of the stretches between. */
int64_t *trial_choose(int64_t n, int64_t *want, uint64_t stream, struct error *err);
double trial_dot(const float *a, const float *b, int from, int to);
/* Row `row` of a tensor of made-up weights, widened. */
enum status trial_weight_row(struct source *source, const struct source_tensor *tensor, struct source_scratch *scratch, int64_t row, int cols, float *out,
                             struct error *err) NODISCARD;
/* x of the product in row `row` of the op: the input, or its norm in `scratch`. */
const float *trial_input_row(const struct trial *t, int64_t row, int cols, float *scratch);
enum status trial_make_reference(struct trial *t, struct error *err) NODISCARD;

#endif
