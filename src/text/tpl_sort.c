#include "text/tpl_sort.h"

#include "text/tpl_ops.h"

/* Merges order[from..middle) and order[middle..to), both sorted, by way of `spare`. */
static enum status merge(struct tpl_run *run, const struct tpl_value *keys, bool reverse, size_t *order, size_t *spare, size_t from, size_t middle,
                         size_t to)
{
	size_t a = from, b = middle, n = from;
	while (a < middle && b < to) {
		int cmp;
		TRY(tpl_pay(run, 1));
		TRY(reverse ? tpl_order(run, keys[order[a]], keys[order[b]], &cmp) : tpl_order(run, keys[order[b]], keys[order[a]], &cmp));
		spare[n++] = cmp == -1 ? order[b++] : order[a++]; /* the right one only if it must be first */
	}
	while (a < middle) spare[n++] = order[a++];
	while (b < to) spare[n++] = order[b++];
	for (size_t i = from; i < to; i++) order[i] = spare[i];
	return STATUS_OK;
}

static enum status sort_order(struct tpl_run *run, const struct tpl_value *keys, size_t n, bool reverse, size_t **out)
{
	size_t *order, *spare;
	TRY(tpl_pay(run, n));
	TRY(TPL_NEW(run, order, n));
	TRY(TPL_NEW(run, spare, n));
	for (size_t i = 0; i < n; i++) order[i] = i;
	for (size_t width = 1; width < n; width *= 2)
		for (size_t from = 0; from + width < n; from += 2 * width) {
			size_t to = from + 2 * width < n ? from + 2 * width : n;
			TRY(merge(run, keys, reverse, order, spare, from, from + width, to));
		}
	*out = order;
	return STATUS_OK;
}

enum status tpl_sorted(struct tpl_run *run, const struct tpl_value *items, const struct tpl_value *keys, size_t n, bool reverse, struct tpl_seq **out)
{
	size_t *order;
	TRY(sort_order(run, keys, n, reverse, &order));
	TRY(tpl_seq_new(run, n, out));
	for (size_t i = 0; i < n; i++) (*out)->items[i] = items[order[i]];
	(*out)->count = n;
	return STATUS_OK;
}

enum status tpl_sorted_pairs(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_pair **out)
{
	struct tpl_value *keys;
	size_t *order;
	TRY(TPL_NEW(run, keys, dict->count));
	for (size_t i = 0; i < dict->count; i++) keys[i] = dict->pairs[i].key;
	TRY(sort_order(run, keys, dict->count, false, &order));
	TRY(TPL_NEW(run, *out, dict->count));
	for (size_t i = 0; i < dict->count; i++) (*out)[i] = dict->pairs[order[i]];
	return STATUS_OK;
}
