#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

struct kv_seq {
	int length;   /* committed tokens */
	int reserved; /* tokens of the open reservation */
	int blocks;   /* held, reservation included */
};

struct kv_pool {
	struct kv_options options;
	int32_t *free_list; /* stack: the last entry is handed out next */
	int free_count;
	struct kv_seq *seqs;
	int32_t *tables; /* [max_seqs][max_blocks] */
};

static int blocks_for(const struct kv_pool *pool, int tokens)
{
	return (tokens + pool->options.block_tokens - 1) / pool->options.block_tokens;
}

static int32_t *table_of(const struct kv_pool *pool, int seq)
{
	return pool->tables + (size_t)seq * pool->options.max_blocks;
}

static void fill_free_list(struct kv_pool *pool)
{
	int n = pool->options.blocks;
	for (int i = 0; i < n; i++) pool->free_list[i] = n - i; /* block 1 on top; block 0 is the sink */
	for (int i = n - 1; pool->options.shuffle && i > 0; i--) {
		int j = (int)(rng_u64(pool->options.shuffle, 0, (uint64_t)i) % (uint64_t)(i + 1));
		int32_t swap = pool->free_list[i];
		pool->free_list[i] = pool->free_list[j];
		pool->free_list[j] = swap;
	}
	pool->free_count = n;
}

enum status kv_create(struct kv_pool **out, const struct kv_options *options, struct error *err)
{
	*out = NULL;
	if (options->blocks < 1 || options->block_tokens < 1 || options->max_seqs < 1 || options->max_blocks < 1)
		return FAIL(err, BAD_INPUT, "kv pool: %d blocks of %d tokens for %d sequences of %d blocks; all must be positive", options->blocks,
		            options->block_tokens, options->max_seqs, options->max_blocks);
	struct kv_pool *pool = mem_zalloc(1, sizeof *pool, "kv pool", err);
	if (!pool) return STATUS_NO_MEMORY;
	pool->options = *options;
	pool->free_list = mem_zalloc((size_t)options->blocks, sizeof *pool->free_list, "kv free list", err);
	pool->seqs = mem_zalloc((size_t)options->max_seqs, sizeof *pool->seqs, "kv sequences", err);
	pool->tables = mem_zalloc((size_t)options->max_seqs * (size_t)options->max_blocks, sizeof *pool->tables, "kv block tables", err);
	if (!pool->free_list || !pool->seqs || !pool->tables) {
		kv_destroy(&pool);
		return STATUS_NO_MEMORY;
	}
	fill_free_list(pool);
	*out = pool;
	return STATUS_OK;
}

void kv_destroy(struct kv_pool **pool)
{
	if (!*pool) return;
	free((*pool)->free_list);
	free((*pool)->seqs);
	free((*pool)->tables);
	free(*pool);
	*pool = NULL;
}

enum status kv_reserve(struct kv_pool *pool, int seq, int tokens, struct error *err)
{
	struct kv_seq *s = &pool->seqs[seq];
	assert(seq >= 0 && seq < pool->options.max_seqs && tokens > 0 && s->reserved == 0);
	int need = blocks_for(pool, s->length + tokens) - s->blocks;
	if (s->blocks + need > pool->options.max_blocks)
		return FAIL(err, NO_ROOM, "kv: sequence of %d + %d tokens is longer than the context of %d; shorten it or raise --context", s->length,
		            tokens, pool->options.max_blocks * pool->options.block_tokens);
	if (need > pool->free_count)
		return FAIL(err, NO_ROOM, "kv: %d blocks wanted, %d free; wait for other requests or raise the KV size", need, pool->free_count);
	for (int i = 0; i < need; i++) table_of(pool, seq)[s->blocks++] = pool->free_list[--pool->free_count];
	s->reserved = tokens;
	return STATUS_OK;
}

void kv_commit(struct kv_pool *pool, int seq)
{
	pool->seqs[seq].length += pool->seqs[seq].reserved;
	pool->seqs[seq].reserved = 0;
}

static void give_back(struct kv_pool *pool, int seq, int keep)
{
	struct kv_seq *s = &pool->seqs[seq];
	while (s->blocks > keep) pool->free_list[pool->free_count++] = table_of(pool, seq)[--s->blocks];
}

void kv_rollback(struct kv_pool *pool, int seq)
{
	struct kv_seq *s = &pool->seqs[seq];
	s->reserved = 0;
	give_back(pool, seq, blocks_for(pool, s->length));
}

void kv_release(struct kv_pool *pool, int seq)
{
	give_back(pool, seq, 0);
	pool->seqs[seq] = (struct kv_seq){0};
}

void kv_release_all(struct kv_pool *pool)
{
	for (int seq = 0; seq < pool->options.max_seqs; seq++) kv_release(pool, seq);
}

int kv_length(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].length;
}

int kv_free_blocks(const struct kv_pool *pool)
{
	return pool->free_count;
}

int kv_seq_blocks(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].blocks;
}

const int32_t *kv_table(const struct kv_pool *pool, int seq)
{
	return table_of(pool, seq);
}

int32_t kv_slot(const struct kv_pool *pool, int seq, int position)
{
	int block = position / pool->options.block_tokens;
	assert(block < pool->seqs[seq].blocks);
	return table_of(pool, seq)[block] * pool->options.block_tokens + position % pool->options.block_tokens;
}

enum status kv_check(const struct kv_pool *pool, struct error *err)
{
	uint8_t *seen = mem_zalloc((size_t)pool->options.blocks + 1, 1, "kv check", err);
	if (!seen) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	int held = 0;
	for (int i = 0; i < pool->free_count; i++) seen[pool->free_list[i]]++;
	for (int seq = 0; seq < pool->options.max_seqs && st == STATUS_OK; seq++) {
		const struct kv_seq *s = &pool->seqs[seq];
		if (s->blocks != blocks_for(pool, s->length + s->reserved))
			st = FAIL(err, BAD_INPUT, "kv check: sequence %d holds %d blocks for %d + %d tokens", seq, s->blocks, s->length, s->reserved);
		for (int i = 0; i < s->blocks; i++) seen[table_of(pool, seq)[i]]++;
		held += s->blocks;
	}
	if (st == STATUS_OK && seen[0]) st = FAIL(err, BAD_INPUT, "kv check: the sink block was given away");
	for (int b = 1; b <= pool->options.blocks && st == STATUS_OK; b++)
		if (seen[b] != 1) st = FAIL(err, BAD_INPUT, "kv check: block %d is held %d times", b, seen[b]);
	if (st == STATUS_OK && held + pool->free_count != pool->options.blocks)
		st = FAIL(err, BAD_INPUT, "kv check: %d held + %d free are not %d blocks", held, pool->free_count, pool->options.blocks);
	free(seen);
	return st;
}
