/* tpl_sort.h: stable sorting of template values. */
#ifndef TANDEM_TEXT_TPL_SORT_H
#define TANDEM_TEXT_TPL_SORT_H

#include "text/tpl_value.h"

/* A new list: `items` in the order of `keys` (one for each). Stable, also when reversed. BAD_INPUT if two keys have no order. */
enum status tpl_sorted(struct tpl_run *run, const struct tpl_value *items, const struct tpl_value *keys, size_t n, bool reverse,
                       struct tpl_seq **out) NODISCARD;
/* A copy of the pairs in the order of their keys. */
enum status tpl_sorted_pairs(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_pair **out) NODISCARD;

#endif
