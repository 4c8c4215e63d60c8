#include "engine/dispatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* An entry that would change the order of summation is no choice where the bits must not depend on the world size. */
static bool applies(const struct rank *rank, const struct whitelist_entry *entry)
{
	return entry->prefer.variant.invariant || !rank->options.invariant;
}

enum status dispatch_apply(struct rank *rank, struct error *err)
{
	const struct whitelist *w = rank->options.whitelist;
	int count = 0;
	if (rank->options.explain) {
		rank->notes = mem_zalloc(1, sizeof *rank->notes, "dispatch notes", err);
		if (!rank->notes) return STATUS_NO_MEMORY;
		if (!rank->device->vt->linear_ran)
			return FAIL(err, UNSUPPORTED, "--explain-dispatch: device %s cannot tell what it takes; leave it out", rank->device->vt->name);
	}
	if (!w) return STATUS_OK;
	TRY(whitelist_check_device(w, rank->device, err));
	struct linear_preference *list = mem_zalloc((size_t)w->entries + 1, sizeof *list, "whitelist", err);
	if (!list) return STATUS_NO_MEMORY;
	for (int i = 0; i < w->entries; i++)
		if (applies(rank, &w->entry[i])) list[count++] = w->entry[i].prefer;
	enum status st = rank->device->vt->linear_prefer(rank->stream, list, count, err);
	free(list);
	if (st != STATUS_OK) error_prefix(err, "whitelist");
	return st;
}

enum status dispatch_agree(struct group *group, int rank, uint64_t sequence, const char hash[WHITELIST_HASH_BYTES], struct error *err)
{
	char all[GROUP_MAX_RANKS][WHITELIST_HASH_BYTES];
	const struct collective_desc desc = {.sequence = sequence, .op = COLLECTIVE_SETUP, .count = WHITELIST_HASH_BYTES};
	TRY(group_exchange(group, rank, &desc, hash, all, err));
	for (int r = 1; r < group_world_size(group); r++)
		if (memcmp(all[r], all[0], WHITELIST_HASH_BYTES))
			return FAIL(err, MISMATCH, "whitelist: rank %d has the table %.12s, rank 0 has %.12s; all ranks must be given the same file", r, all[r], all[0]);
	return STATUS_OK;
}

bool dispatch_prefers(const struct rank *rank, enum linear_use use, const struct linear_weight *weight, int rows)
{
	const struct linear_key key = {.use = use, .dtype = weight->dtype, .n = weight->n, .k = weight->k, .m = rows};
	if (!rank->options.whitelist) return false;
	const struct whitelist_entry *entry = whitelist_find(rank->options.whitelist, &key);
	return entry && applies(rank, entry);
}

void dispatch_record(struct rank *rank, enum linear_use use, const struct linear_weight *weight, int rows)
{
	struct dispatch_notes *notes = rank->notes;
	const struct linear_key key = {.use = use, .dtype = weight->dtype, .n = weight->n, .k = weight->k, .m = rows};
	int i = 0;
	while (i < notes->count && !linear_key_equal(&notes->item[i].key, &key)) i++;
	if (i == DISPATCH_MAX_NOTES) {
		notes->missed++;
		return;
	}
	struct dispatch_note *note = &notes->item[i];
	if (i == notes->count) {
		notes->count++;
		note->key = key;
	}
	rank->device->vt->linear_ran(rank->stream, &note->ran);
	note->calls += !notes->rehearsal;
}

void dispatch_replayed(struct rank *rank, int rows)
{
	struct dispatch_notes *notes = rank->notes;
	if (!notes || notes->rehearsal) return;
	for (int i = 0; i < notes->count; i++) notes->item[i].calls += notes->item[i].key.m == rows;
}

const struct whitelist_entry *dispatch_describe(const struct rank *rank, const struct dispatch_note *note, char why[DISPATCH_WHY_BYTES])
{
	const struct whitelist *w = rank->options.whitelist;
	const struct whitelist_entry *entry = w ? whitelist_find(w, &note->key) : NULL;
	if (!w) {
		snprintf(why, DISPATCH_WHY_BYTES, "default");
		return NULL;
	}
	if (!entry) {
		snprintf(why, DISPATCH_WHY_BYTES, "default: no entry of the whitelist is for it");
		return NULL;
	}
	const struct variant *asked = &entry->prefer.variant;
	if (!applies(rank, entry)) {
		snprintf(why, DISPATCH_WHY_BYTES, "default: the whitelist's %s %s (%.2fx) is refused, it has not the order of summation of --tp-invariant", asked->kernel,
		         asked->mode, entry->ratio);
		return NULL;
	}
	snprintf(why, DISPATCH_WHY_BYTES, "whitelist, %.2fx", entry->ratio);
	return entry;
}
