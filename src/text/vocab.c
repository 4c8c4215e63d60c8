#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

static uint32_t hash_text(const char *text, size_t n)
{
	uint64_t h = n, word;
	for (; n >= 8; text += 8, n -= 8) {
		memcpy(&word, text, 8);
		h = (h ^ word) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	word = 0;
	for (size_t i = 0; i < n; i++) word |= (uint64_t)(uint8_t)text[i] << (8 * i);
	return (uint32_t)rng_mix(h ^ word);
}

void vocab_fini(struct vocab *vocab)
{
	buf_fini(&vocab->texts);
	free(vocab->entries);
	free(vocab->slots);
	free(vocab->by_id);
	*vocab = (struct vocab){0};
}

static void insert(struct vocab *vocab, uint32_t hash, uint32_t entry)
{
	uint32_t mask = vocab->slot_count - 1, i = hash & mask;
	while (vocab->slots[i].entry) i = (i + 1) & mask;
	vocab->slots[i] = (struct vocab_slot){.hash = hash, .entry = entry + 1};
}

enum status vocab_reserve(struct vocab *vocab, size_t count, struct error *err)
{
	if (count <= vocab->capacity) return STATUS_OK;
	if (count > (size_t)VOCAB_MAX_ID) return FAIL(err, UNSUPPORTED, "vocabulary: %zu entries; at most %d are supported", count, VOCAB_MAX_ID);
	uint32_t slots = 16;
	while (slots < count * 2) slots *= 2;
	TRY(mem_grow((void **)&vocab->entries, count, sizeof *vocab->entries, "vocabulary", err));
	struct vocab_slot *fresh = mem_zalloc(slots, sizeof *fresh, "vocabulary", err);
	if (!fresh) return STATUS_NO_MEMORY;
	free(vocab->slots);
	vocab->slots = fresh;
	vocab->slot_count = slots;
	vocab->capacity = (uint32_t)count;
	for (uint32_t i = 0; i < vocab->count; i++) {
		const struct vocab_entry *e = &vocab->entries[i];
		insert(vocab, hash_text(vocab->texts.data + e->offset, e->length), i);
	}
	return STATUS_OK;
}

static enum status reserve_id(struct vocab *vocab, int32_t id, struct error *err)
{
	if (id < 0 || id > VOCAB_MAX_ID) return FAIL(err, UNSUPPORTED, "vocabulary: id %d; ids from 0 to %d are supported", id, VOCAB_MAX_ID);
	if (id < vocab->id_capacity) return STATUS_OK;
	int32_t capacity = vocab->id_capacity ? vocab->id_capacity : 256;
	while (capacity <= id) capacity *= 2;
	TRY(mem_grow((void **)&vocab->by_id, (size_t)capacity, sizeof *vocab->by_id, "vocabulary", err));
	memset(vocab->by_id + vocab->id_capacity, 0, (size_t)(capacity - vocab->id_capacity) * sizeof *vocab->by_id);
	vocab->id_capacity = capacity;
	return STATUS_OK;
}

/* Entry of `text`, or UINT32_MAX. */
static uint32_t lookup(const struct vocab *vocab, const char *text, size_t n, uint32_t hash)
{
	if (vocab->slot_count == 0) return UINT32_MAX;
	uint32_t mask = vocab->slot_count - 1;
	for (uint32_t i = hash & mask; vocab->slots[i].entry; i = (i + 1) & mask) {
		if (vocab->slots[i].hash != hash) continue;
		const struct vocab_entry *e = &vocab->entries[vocab->slots[i].entry - 1];
		if (e->length == n && (n == 0 || memcmp(vocab->texts.data + e->offset, text, n) == 0)) return vocab->slots[i].entry - 1;
	}
	return UINT32_MAX;
}

enum status vocab_add(struct vocab *vocab, const char *text, size_t n, int32_t id, struct error *err)
{
	TRY(reserve_id(vocab, id, err));
	uint32_t hash = hash_text(text, n), entry = lookup(vocab, text, n, hash);
	if (entry == UINT32_MAX) {
		if (vocab->count == vocab->capacity) TRY(vocab_reserve(vocab, vocab->capacity ? (size_t)vocab->capacity * 2 : 64, err));
		entry = vocab->count;
		if (vocab->texts.size > UINT32_MAX - n - 1) return FAIL(err, UNSUPPORTED, "vocabulary: more than 4 GiB of text");
		vocab->entries[entry] = (struct vocab_entry){.offset = (uint32_t)vocab->texts.size, .length = (uint32_t)n};
		TRY(buf_append(&vocab->texts, text, n, err));
		TRY(buf_append(&vocab->texts, "", 1, err));
		vocab->count++;
		insert(vocab, hash, entry);
	}
	vocab->entries[entry].id = id;
	if (vocab->by_id[id] != 0 && vocab->by_id[id] != entry + 1) vocab->shared_ids = true;
	vocab->by_id[id] = entry + 1;
	if (id >= vocab->id_end) vocab->id_end = id + 1;
	return STATUS_OK;
}

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t n)
{
	uint32_t entry = lookup(vocab, text, n, hash_text(text, n));
	return entry == UINT32_MAX ? -1 : vocab->entries[entry].id;
}

const char *vocab_text(const struct vocab *vocab, int32_t id, size_t *n)
{
	if (id < 0 || id >= vocab->id_end || vocab->by_id[id] == 0) return NULL;
	const struct vocab_entry *e = &vocab->entries[vocab->by_id[id] - 1];
	*n = e->length;
	return vocab->texts.data + e->offset;
}
