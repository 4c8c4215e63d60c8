/* golden.h: reading the golden models of tests/golden and running the engine on them, for the tests that do. */
#ifndef TANDEM_TESTS_GOLDEN_H
#define TANDEM_TESTS_GOLDEN_H

#include <jansson.h>
#include <stdint.h>

#include "tandem.h"

#define GOLDEN_DIR "tests/golden/"

/* tests/golden/INDEX.json's list of models; caller json_decrefs. Fails the process if it cannot be read. */
json_t *golden_index(void);
json_t *golden_load(const char *model, const char *file);
/* A folder like tests/golden/MODEL, but with `config` as its config.json; removed by golden_variant_remove. */
void golden_variant(char path[256], const char *model, const char *config);
void golden_variant_remove(const char *path);

/* ids of a JSON array; returns how many. */
int golden_ids(const json_t *array, int32_t *ids, int max);
/* f32 file of the model; caller frees. */
float *golden_floats(const char *model, const char *file, size_t count);

/* Logits [count][vocab] of tokens under `options`, by caller freed; NULL with *err filled. */
float *golden_logits(const struct tandem_options *options, const int32_t *tokens, int count, int *vocab, struct tandem_error *err);
/* Greedy tokens into out[0..n); returns 0 or the status code. */
int golden_greedy(struct tandem *engine, const int32_t *tokens, int count, int n, bool ignore_eos, int32_t *out, int *got, struct tandem_error *err);

#endif
