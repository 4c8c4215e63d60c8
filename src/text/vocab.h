/* vocab.h: texts <-> ids, both ways, for the model's vocabulary and for the added tokens.
 *
 * All texts lie in one block, each followed by a NUL. Owner: the tokenizer; read-only once it is open. `{0}` is empty.
 */
#ifndef TANDEM_TEXT_VOCAB_H
#define TANDEM_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Ids are indices into tables; the largest known vocabulary has 262,144. */
#define VOCAB_MAX_ID (((int32_t)1 << 22) - 1)

struct vocab_entry {
	uint32_t offset, length; /* in `texts` */
	int32_t id;
};

struct vocab_slot {
	uint32_t hash;
	uint32_t entry; /* + 1; 0 is free */
};

struct vocab {
	struct buf texts;
	struct vocab_entry *entries; /* in order of vocab_add */
	uint32_t count, capacity;
	struct vocab_slot *slots; /* open addressing; a power of two of them */
	uint32_t slot_count;
	uint32_t *by_id; /* entry + 1; 0 is none */
	int32_t id_end;  /* one more than the largest id */
	int32_t id_capacity;
	bool shared_ids; /* two texts have the same id */
};

void vocab_fini(struct vocab *vocab);
/* Room for `count` entries in one step. */
enum status vocab_reserve(struct vocab *vocab, size_t count, struct error *err) NODISCARD;
/* A text that is there already gets the new id; of two texts with one id the later is the id's text. */
enum status vocab_add(struct vocab *vocab, const char *text, size_t n, int32_t id, struct error *err) NODISCARD;
/* -1 if there is none. */
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t n);
/* NULL if the id is not there. */
const char *vocab_text(const struct vocab *vocab, int32_t id, size_t *n);

#endif
