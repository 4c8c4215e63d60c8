/* Fuzzes the whitelist file: whatever the text, the answer is a refusal of one line with nothing left over, or a table that keeps every rule of a table
 * and is the same when it is written and read again. The seal is put right before reading, or no mutation would get past it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/whitelist.h"
#include "fuzz/standalone.h"

/* The text with the hash that its content has: what the refusal says of it in its first 12 digits is not enough, so the table is sealed by hand. */
static char *resealed(const char *text, size_t size)
{
	struct error err = {0};
	json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	char hash[WHITELIST_HASH_BYTES], *out = NULL;
	if (json_is_object(root) && whitelist_hash(root, hash, &err) == STATUS_OK && json_object_set_new(root, "hash", json_string(hash)) == 0) out = json_dumps(root, 0);
	json_decref(root);
	return out;
}

static void check_table(const struct whitelist *w)
{
	struct error err = {0};
	struct whitelist back;
	struct buf text = {0};
	check(w->shapes > 0 && w->keep >= 1);
	for (int i = 0; i < w->entries; i++) {
		const struct linear_preference *p = &w->entry[i].prefer;
		check(p->m_low >= 1 && p->m_low <= p->m_high && p->key.n >= 1 && p->key.k >= 1 && (unsigned)p->key.use < LINEAR_USE_COUNT && (unsigned)p->key.dtype < DTYPE_COUNT);
		check(w->entry[i].ratio >= w->keep && (p->variant.invariant || w->any_order));
		struct linear_key key = p->key;
		key.m = p->m_high;
		check(whitelist_find(w, &key) == &w->entry[i]);
	}
	/* ratios of more digits than a file has are rounded when it is written */
	struct whitelist again = *w;
	if (whitelist_seal(&again, "again", &err) != STATUS_OK || whitelist_format(&again, &text, &err) != STATUS_OK) abort();
	check(whitelist_parse(&back, text.data, text.size, "again", &err) == STATUS_OK && back.entries == w->entries && !strcmp(back.hash, again.hash));
	whitelist_fini(&back);
	buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct whitelist w;
	struct error err = {0};
	char *text = resealed((const char *)data, size);
	enum status st = text ? whitelist_parse(&w, text, strlen(text), "w.json", &err) : whitelist_parse(&w, (const char *)data, size, "w.json", &err);
	if (st == STATUS_OK) check_table(&w);
	else check(err.text[0] && !strchr(err.text, '\n') && !w.entry && !w.shape);
	whitelist_fini(&w);
	free(text);
	return 0;
}
