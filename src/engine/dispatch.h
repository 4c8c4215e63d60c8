/* dispatch.h: which variant of a linear a rank takes: the whitelist given to its device, agreed with the other ranks; and what it took, for those who
 * ask (--explain-dispatch). Worker thread, but for dispatch_describe.
 */
#ifndef TANDEM_ENGINE_DISPATCH_H
#define TANDEM_ENGINE_DISPATCH_H

#include "engine/rank.h"
#include "engine/whitelist.h"

#define DISPATCH_MAX_NOTES 1024
#define DISPATCH_WHY_BYTES 256

/* A problem that came up, and what was taken for it. */
struct dispatch_note {
	struct linear_key key;
	struct variant ran;
	uint64_t calls; /* in steps; those that were only recorded into a graph do not count until it is replayed */
};

struct dispatch_notes {
	struct dispatch_note item[DISPATCH_MAX_NOTES];
	int count;
	uint64_t missed; /* calls for problems beyond the maximum */
	bool rehearsal;  /* a step that gives nobody a token: its calls do not count */
};

/* Gives the rank's device its table, all of it but what --tp-invariant excludes. Once, after the stream exists. Nothing without a whitelist. */
enum status dispatch_apply(struct rank *rank, struct error *err) NODISCARD;
/* Meets all ranks: MISMATCH, naming the rank, unless each has the table with this hash. */
enum status dispatch_agree(struct group *group, int rank, uint64_t sequence, const char hash[WHITELIST_HASH_BYTES], struct error *err) NODISCARD;

/* Whether the table has a variant for this linear: then it is to run by itself. */
bool dispatch_prefers(const struct rank *rank, enum linear_use use, const struct linear_weight *weight, int rows);
/* After a linear or fused op of `rows` rows. */
void dispatch_record(struct rank *rank, enum linear_use use, const struct linear_weight *weight, int rows);
static inline void dispatch_ran(struct rank *rank, enum linear_use use, const struct linear_weight *weight, int rows)
{
	if (rank->notes) dispatch_record(rank, use, weight, rows);
}
/* A recorded step of `rows` rows was replayed. */
void dispatch_replayed(struct rank *rank, int rows);

/* Why `note` came about, as text: the whitelist's entry with its ratio, or the default and what speaks for it. Between commands. */
const struct whitelist_entry *dispatch_describe(const struct rank *rank, const struct dispatch_note *note, char why[DISPATCH_WHY_BYTES]);

#endif
