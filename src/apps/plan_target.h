/* plan_target.h: how `tandem plan --target` shows the static verdicts on kernels, for each number of token rows in `rows`. */
#ifndef TANDEM_APPS_PLAN_TARGET_H
#define TANDEM_APPS_PLAN_TARGET_H

#include <jansson.h>

#include "apps/options.h"
#include "base/buf.h"
#include "prescreen/shapes.h"

/* [{"kernel","mode","m","verdict","rule","detail"}] of entry `plan_index` of plan_degree.family; empty if `shapes` is NULL or it does not run. */
json_t *plan_target_json(const struct target *target, const struct shapes *shapes, int plan_index, const struct int_list *rows);
/* [{"kernel","m","query","kv","head_dim","block_tokens","softcap","verdict","rule","detail"}] of the attention kernels for so many rows; empty if `shapes` is NULL. */
json_t *plan_target_attention_json(const struct target *target, const struct shapes *shapes, const struct int_list *rows);
/* Appends for each entry of `rows` a table of families and kernels against the degrees shapes[count], then the reasons of what is not legal. */
enum status plan_target_table(const struct target *target, const struct shapes *shapes, int count, const struct int_list *rows, struct buf *out, struct error *err) NODISCARD;

#endif
