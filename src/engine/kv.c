#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/kv_states.h"
#include "engine/kv_windows.h"

struct kv_seq {
	int length;   /* committed tokens */
	int reserved; /* tokens of the open reservation */
	int tail;     /* tokens of the second one */
	int blocks;   /* held, reservations included */
	int32_t read;  /* state slot of the committed length; 0: none yet */
	int32_t write; /* state slot of the open reservation; 0: none */
	int32_t tail_write; /* of the second one */
	int window_from; /* first of its blocks that its window reaches */
	int32_t rolled; /* held block whose snapshot rolls with this sequence; 0: none */
};

struct kv_block {
	uint64_t hash;       /* the three of a cached block */
	int32_t before;      /* the block it follows; 0: it is the first of its text */
	int32_t bucket_next; /* 0: last */
	int32_t older, newer; /* ring of idle blocks through block 0 */
	int32_t refs;
	int32_t state;       /* slot of the snapshot at the end of a cached block; 0: none */
	bool cached;
};

struct kv_pool {
	struct kv_options options;
	int32_t *free_list; /* stack of empty blocks: the last entry is handed out next */
	int free_count, idle_count;
	struct kv_block *blocks; /* [blocks + 1]; block 0's newer is the idle block to evict first */
	int32_t *contents;       /* [blocks + 1][block_tokens] tokens of cached blocks */
	int32_t *buckets;        /* [bucket_mask + 1] first cached block, 0: none */
	uint64_t bucket_mask;
	uint64_t evictions;
	struct kv_states states;
	struct kv_windows windows;
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

static int32_t *contents_of(const struct kv_pool *pool, int32_t block)
{
	return pool->contents + (size_t)block * pool->options.block_tokens;
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

static enum status alloc_arrays(struct kv_pool *pool, struct error *err)
{
	const struct kv_options *o = &pool->options;
	size_t blocks = (size_t)o->blocks + 1, buckets = 1;
	while (buckets < 2 * blocks) buckets *= 2;
	pool->bucket_mask = buckets - 1;
	pool->free_list = mem_zalloc(blocks, sizeof *pool->free_list, "kv free list", err);
	pool->blocks = mem_zalloc(blocks, sizeof *pool->blocks, "kv blocks", err);
	pool->contents = mem_zalloc(o->prefix_cache ? blocks * (size_t)o->block_tokens : 0, sizeof *pool->contents, "kv prefix cache", err);
	pool->buckets = mem_zalloc(buckets, sizeof *pool->buckets, "kv prefix cache", err);
	pool->seqs = mem_zalloc((size_t)o->max_seqs, sizeof *pool->seqs, "kv sequences", err);
	pool->tables = mem_zalloc((size_t)o->max_seqs * (size_t)o->max_blocks, sizeof *pool->tables, "kv block tables", err);
	TRY(kv_states_init(&pool->states, o->states, o->shuffle, err));
	TRY(kv_windows_init(&pool->windows, o->blocks, o->windows, o->shuffle, err));
	bool all = pool->free_list && pool->blocks && pool->contents && pool->buckets && pool->seqs && pool->tables;
	return all ? STATUS_OK : STATUS_NO_MEMORY;
}

enum status kv_create(struct kv_pool **out, const struct kv_options *options, struct error *err)
{
	*out = NULL;
	if (options->blocks < 1 || options->block_tokens < 1 || options->max_seqs < 1 || options->max_blocks < 1 || options->states < 0 ||
	    options->windows < 0 || (options->windows && options->window_tokens < 1))
		return FAIL(err, BAD_INPUT, "kv pool: %d blocks of %d tokens, %d state slots, %d window blocks for windows of %d tokens, for %d sequences of %d blocks; all must be positive",
		            options->blocks, options->block_tokens, options->states, options->windows, options->window_tokens, options->max_seqs, options->max_blocks);
	struct kv_pool *pool = mem_zalloc(1, sizeof *pool, "kv pool", err);
	if (!pool) return STATUS_NO_MEMORY;
	pool->options = *options;
	enum status st = alloc_arrays(pool, err);
	if (st != STATUS_OK) {
		kv_destroy(&pool);
		return st;
	}
	kv_fill_stack(pool->free_list, options->blocks, options->shuffle);
	pool->free_count = options->blocks;
	*out = pool;
	return STATUS_OK;
}

void kv_destroy(struct kv_pool **pool)
{
	if (!*pool) return;
	free((*pool)->free_list);
	free((*pool)->blocks);
	free((*pool)->contents);
	free((*pool)->buckets);
	kv_states_fini(&(*pool)->states);
	kv_windows_fini(&(*pool)->windows);
	free((*pool)->seqs);
	free((*pool)->tables);
	free(*pool);
	*pool = NULL;
}

void kv_reset(struct kv_pool *pool)
{
	memset(pool->blocks, 0, ((size_t)pool->options.blocks + 1) * sizeof *pool->blocks);
	memset(pool->buckets, 0, ((size_t)pool->bucket_mask + 1) * sizeof *pool->buckets);
	memset(pool->seqs, 0, (size_t)pool->options.max_seqs * sizeof *pool->seqs);
	pool->idle_count = 0;
	kv_fill_stack(pool->free_list, pool->options.blocks, pool->options.shuffle);
	pool->free_count = pool->options.blocks;
	kv_states_reset(&pool->states);
	kv_windows_reset(&pool->windows);
}

/* --- the index -------------------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct kv_pool *pool, uint64_t hash)
{
	return &pool->buckets[hash & pool->bucket_mask];
}

/* The cached block that holds block `i` of the text and follows `before`; 0: none. */
static int32_t find(const struct kv_pool *pool, const struct kv_text *text, int i, int32_t before)
{
	size_t n = (size_t)pool->options.block_tokens;
	for (int32_t b = *bucket_of(pool, text->hashes[i]); b; b = pool->blocks[b].bucket_next)
		if (pool->blocks[b].hash == text->hashes[i] && pool->blocks[b].before == before &&
		    !memcmp(contents_of(pool, b), text->tokens + (size_t)i * n, n * sizeof(int32_t)))
			return b;
	return 0;
}

static void index_block(struct kv_pool *pool, int32_t b, const struct kv_text *text, int i, int32_t before)
{
	size_t n = (size_t)pool->options.block_tokens;
	int32_t *bucket = bucket_of(pool, text->hashes[i]);
	struct kv_block *block = &pool->blocks[b];
	block->hash = text->hashes[i];
	block->before = before;
	block->cached = true;
	block->bucket_next = *bucket;
	*bucket = b;
	memcpy(contents_of(pool, b), text->tokens + (size_t)i * n, n * sizeof(int32_t));
}

/* A block without a snapshot: nothing. */
static void drop_snapshot(struct kv_pool *pool, int32_t b)
{
	if (pool->blocks[b].state) kv_states_forget(&pool->states, pool->blocks[b].state);
	pool->blocks[b].state = 0;
}

static void unindex_block(struct kv_pool *pool, int32_t b)
{
	int32_t *link = bucket_of(pool, pool->blocks[b].hash);
	while (*link != b) link = &pool->blocks[*link].bucket_next;
	*link = pool->blocks[b].bucket_next;
	pool->blocks[b].cached = false;
	drop_snapshot(pool, b);
	kv_windows_drop(&pool->windows, b);
}

/* --- holding and letting go ------------------------------------------------------------------------------------------------- */

static void unlink_idle(struct kv_pool *pool, int32_t b)
{
	struct kv_block *block = &pool->blocks[b];
	pool->blocks[block->older].newer = block->newer;
	pool->blocks[block->newer].older = block->older;
	pool->idle_count--;
}

static void hold(struct kv_pool *pool, int32_t b)
{
	if (pool->blocks[b].refs++ == 0) unlink_idle(pool, b);
}

static void let_go(struct kv_pool *pool, int32_t b)
{
	struct kv_block *block = &pool->blocks[b], *ring = &pool->blocks[0];
	if (--block->refs > 0) return;
	if (!block->cached) {
		pool->free_list[pool->free_count++] = b;
		return;
	}
	block->older = ring->older;
	block->newer = 0;
	pool->blocks[ring->older].newer = b;
	ring->older = b;
	pool->idle_count++;
}

/* An empty block, for one holder. There must be one or an idle one. */
static int32_t hand_out(struct kv_pool *pool)
{
	int32_t b;
	if (pool->free_count) {
		b = pool->free_list[--pool->free_count];
	} else {
		b = pool->blocks[0].newer;
		unlink_idle(pool, b);
		unindex_block(pool, b);
		pool->evictions++;
	}
	pool->blocks[b].refs = 1;
	return b;
}

/* Last block first: a block is idle before the one that it follows, and is evicted before it. */
static void give_back(struct kv_pool *pool, int seq, int keep)
{
	struct kv_seq *s = &pool->seqs[seq];
	while (s->blocks > keep) {
		int32_t b = table_of(pool, seq)[--s->blocks];
		if (pool->options.windows && s->blocks >= s->window_from) kv_windows_unwant(&pool->windows, b, pool->blocks[b].cached);
		let_go(pool, b);
	}
}

enum status kv_reserve(struct kv_pool *pool, int seq, int tokens, struct error *err)
{
	struct kv_seq *s = &pool->seqs[seq];
	const bool tail = s->reserved > 0;
	assert(seq >= 0 && seq < pool->options.max_seqs && tokens > 0 && (!tail || (pool->options.states && !s->tail)));
	int need = blocks_for(pool, s->length + s->reserved + tokens) - s->blocks;
	if (s->blocks + need > pool->options.max_blocks)
		return FAIL(err, NO_ROOM, "kv: sequence of %d + %d tokens is longer than the context of %d; shorten it or raise --context", s->length,
		            s->reserved + tokens, pool->options.max_blocks * pool->options.block_tokens);
	if (need > kv_free_blocks(pool))
		return FAIL(err, NO_ROOM, "kv: %d blocks wanted, %d free; wait for other requests or raise the KV size", need, kv_free_blocks(pool));
	if (pool->options.states && !kv_free_states(pool))
		return FAIL(err, NO_ROOM, "kv: all %d state slots are in use; wait for other requests or run fewer at once", pool->options.states);
	if (pool->options.windows && need > kv_windows_free(&pool->windows))
		return FAIL(err, NO_ROOM, "kv: %d blocks wanted for sliding layers, %d free; wait for other requests or run fewer at once", need,
		            kv_windows_free(&pool->windows));
	for (int i = 0; i < need; i++) {
		int32_t b = table_of(pool, seq)[s->blocks++] = hand_out(pool);
		if (pool->options.windows) kv_windows_attach(&pool->windows, b);
	}
	if (pool->options.states) {
		int32_t block;
		*(tail ? &s->tail_write : &s->write) = kv_states_take(&pool->states, &block);
		pool->blocks[block].state = 0;
	}
	*(tail ? &s->tail : &s->reserved) = tokens;
	return STATUS_OK;
}

/* Block i of the sequence is full: it becomes findable, or its twin takes its place. */
static void share(struct kv_pool *pool, int seq, const struct kv_text *text, int i)
{
	int32_t *table = table_of(pool, seq), before = i ? table[i - 1] : 0, own = table[i];
	assert(!before || pool->blocks[before].cached);
	int32_t twin = find(pool, text, i, before);
	if (!twin) {
		index_block(pool, own, text, i, before);
		return;
	}
	hold(pool, twin);
	table[i] = twin;
	if (pool->options.windows && pool->windows.of[twin].at) {
		kv_windows_want(&pool->windows, twin);
		kv_windows_unwant(&pool->windows, own, false);
	} else if (pool->options.windows) kv_windows_move(&pool->windows, own, twin);
	let_go(pool, own);
}

/* The first block that the window of a sequence of `length` tokens reaches: the next token sees itself and window_tokens - 1 before it. */
static int window_from(const struct kv_pool *pool, int length)
{
	int from = length + 1 - pool->options.window_tokens;
	return pool->options.windows && from > 0 ? from / pool->options.block_tokens : 0;
}

/* The sequence's window has moved to where its length says; of its blocks the first `held` were in its hands before. */
static void slide(struct kv_pool *pool, int seq, int held)
{
	struct kv_seq *s = &pool->seqs[seq];
	const int32_t *table = table_of(pool, seq);
	int from = window_from(pool, s->length);
	if (!pool->options.windows) return;
	for (int i = from > held ? from : held; i < s->blocks; i++) kv_windows_want(&pool->windows, table[i]);
	for (int i = s->window_from; i < from && i < held; i++) kv_windows_unwant(&pool->windows, table[i], pool->blocks[table[i]].cached);
	s->window_from = from;
}

void kv_commit(struct kv_pool *pool, int seq, const struct kv_text *text)
{
	struct kv_seq *s = &pool->seqs[seq];
	int full = s->length / pool->options.block_tokens;
	const bool more = s->tail > 0;
	s->length += s->reserved;
	s->reserved = s->tail;
	s->tail = 0;
	if (s->write) { /* the flip: what was read is over */
		kv_states_let_go(&pool->states, s->read);
		s->read = s->write;
		s->write = s->tail_write;
		s->tail_write = 0;
	}
	if (text && pool->options.prefix_cache)
		for (; full < s->length / pool->options.block_tokens; full++) share(pool, seq, text, full);
	slide(pool, seq, s->blocks);
	if (more) kv_snapshot(pool, seq, false);
}

void kv_rollback(struct kv_pool *pool, int seq)
{
	struct kv_seq *s = &pool->seqs[seq];
	s->reserved = s->tail = 0;
	kv_states_let_go(&pool->states, s->write);
	kv_states_let_go(&pool->states, s->tail_write);
	s->write = s->tail_write = 0;
	give_back(pool, seq, blocks_for(pool, s->length));
}

void kv_snapshot(struct kv_pool *pool, int seq, bool rolling)
{
	struct kv_seq *s = &pool->seqs[seq];
	struct kv_states *states = &pool->states;
	const bool whole = s->length && s->length % pool->options.block_tokens == 0;
	int32_t b = whole ? table_of(pool, seq)[s->length / pool->options.block_tokens - 1] : 0, last = s->rolled;
	struct kv_block *block = &pool->blocks[b];
	assert(s->tail == 0);
	if (!s->read || !block->cached) return;
	if (block->state != s->read && block->state) { /* somebody else's: one copy is enough */
		kv_states_hold(states, block->state);
		kv_states_let_go(states, s->read);
		s->read = block->state;
	}
	if (!block->state) {
		kv_states_keep(states, s->read, b, rolling);
		block->state = s->read;
	} else if (!rolling) kv_states_settle(states, block->state);
	const struct kv_state *before = &states->slots[last ? pool->blocks[last].state : 0];
	if (last != b && before->rolling && !before->refs) drop_snapshot(pool, last); /* held: another sequence's last one too */
	s->rolled = states->slots[block->state].rolling ? b : 0;
}

void kv_release(struct kv_pool *pool, int seq)
{
	const struct kv_seq *s = &pool->seqs[seq];
	if (s->rolled && pool->blocks[s->rolled].state) kv_states_settle(&pool->states, pool->blocks[s->rolled].state);
	give_back(pool, seq, 0);
	kv_states_let_go(&pool->states, s->read);
	kv_states_let_go(&pool->states, s->write);
	kv_states_let_go(&pool->states, s->tail_write);
	pool->seqs[seq] = (struct kv_seq){0};
}

/* Walks the cached blocks that follow what `seq` holds, up to block `limit` of the text. Returns how many there are; *usable: how many of them
 * up to the last one where a sequence can go on: with a snapshot, if the model has state, and with the window before it, if it has sliding layers; *idle: how many of the usable ones nobody holds. */
static int walk(const struct kv_pool *pool, int seq, const struct kv_text *text, int limit, int *usable, int *idle)
{
	int have = pool->seqs[seq].blocks, n = have, unheld = 0, gap = pool->seqs[seq].window_from; /* blocks before `gap` may have no window block */
	*usable = *idle = 0;
	if (!pool->options.prefix_cache) return 0;
	for (int32_t before = have ? table_of(pool, seq)[have - 1] : 0; n < limit;) {
		before = find(pool, text, n, before);
		if (!before) break;
		n++;
		unheld += pool->blocks[before].refs == 0;
		if (pool->options.windows && !pool->windows.of[before].at) gap = n;
		if (pool->options.states && !pool->blocks[before].state) continue;
		if (window_from(pool, n * pool->options.block_tokens) < gap) continue;
		*usable = n - have;
		*idle = unheld;
	}
	return n - have;
}

int kv_match(const struct kv_pool *pool, int seq, const struct kv_text *text, int limit, int *idle)
{
	int usable;
	walk(pool, seq, text, limit, &usable, idle);
	return usable;
}

int kv_known(const struct kv_pool *pool, int seq, const struct kv_text *text, int limit)
{
	int usable, idle;
	return walk(pool, seq, text, limit, &usable, &idle);
}

int kv_adopt(struct kv_pool *pool, int seq, const struct kv_text *text, int blocks)
{
	struct kv_seq *s = &pool->seqs[seq];
	int32_t *table = table_of(pool, seq);
	int idle;
	assert(s->reserved == 0 && s->length == s->blocks * pool->options.block_tokens && s->blocks + blocks <= pool->options.max_blocks);
	int held = s->blocks;
	blocks = kv_match(pool, seq, text, s->blocks + blocks, &idle);
	for (int i = 0; i < blocks; i++, s->blocks++) {
		table[s->blocks] = find(pool, text, s->blocks, s->blocks ? table[s->blocks - 1] : 0);
		hold(pool, table[s->blocks]);
	}
	s->length = s->blocks * pool->options.block_tokens;
	slide(pool, seq, held);
	if (blocks && pool->options.states) {
		int32_t state = pool->blocks[table[s->blocks - 1]].state;
		kv_states_hold(&pool->states, state);
		kv_states_let_go(&pool->states, s->read);
		s->read = state;
	}
	return blocks;
}

/* --- views ------------------------------------------------------------------------------------------------------------------ */

int kv_length(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].length;
}

int kv_free_blocks(const struct kv_pool *pool)
{
	return pool->free_count + pool->idle_count;
}

int kv_idle_blocks(const struct kv_pool *pool)
{
	return pool->idle_count;
}

int kv_free_states(const struct kv_pool *pool)
{
	return kv_states_free(&pool->states);
}

int kv_snapshots(const struct kv_pool *pool)
{
	return pool->states.snapshots;
}

int kv_free_windows(const struct kv_pool *pool)
{
	return kv_windows_free(&pool->windows);
}

int32_t kv_window_block(const struct kv_pool *pool, int seq, int block)
{
	return block < pool->seqs[seq].window_from ? 0 : pool->windows.of[table_of(pool, seq)[block]].at;
}

int kv_window_wants(const struct kv_pool *pool, int32_t block)
{
	return pool->windows.of[block].wants;
}

uint64_t kv_snapshot_evictions(const struct kv_pool *pool)
{
	return pool->states.evictions;
}

bool kv_is_snapshot(const struct kv_pool *pool, int32_t state)
{
	return pool->states.slots[state].block != 0;
}

int kv_state_refs(const struct kv_pool *pool, int32_t state)
{
	return pool->states.slots[state].refs;
}

int32_t kv_state_read(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].read ? pool->seqs[seq].read : -1;
}

int32_t kv_state_write(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].write ? pool->seqs[seq].write : -1;
}

int32_t kv_state_tail(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].tail_write ? pool->seqs[seq].tail_write : -1;
}

uint64_t kv_evictions(const struct kv_pool *pool)
{
	return pool->evictions;
}

int kv_seq_blocks(const struct kv_pool *pool, int seq)
{
	return pool->seqs[seq].blocks;
}

int kv_refs(const struct kv_pool *pool, int32_t block)
{
	return pool->blocks[block].refs;
}

bool kv_cached(const struct kv_pool *pool, int32_t block)
{
	return pool->blocks[block].cached;
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

/* --- integrity -------------------------------------------------------------------------------------------------------------- */

enum { IN_FREE_LIST = 1, IN_IDLE_RING = 2, IN_INDEX = 4 };
struct seen {
	int held;     /* by tables */
	int where;    /* IN_* */
};

static enum status check_seqs(const struct kv_pool *pool, struct seen *seen, struct error *err)
{
	for (int seq = 0; seq < pool->options.max_seqs; seq++) {
		const struct kv_seq *s = &pool->seqs[seq];
		const int32_t *table = table_of(pool, seq);
		if (s->blocks != blocks_for(pool, s->length + s->reserved + s->tail))
			return FAIL(err, BAD_INPUT, "kv check: sequence %d holds %d blocks for %d + %d + %d tokens", seq, s->blocks, s->length, s->reserved, s->tail);
		for (int i = 0; i < s->blocks; i++) {
			const struct kv_block *block = &pool->blocks[table[i]];
			seen[table[i]].held++;
			if (block->cached && block->before != (i ? table[i - 1] : 0))
				return FAIL(err, BAD_INPUT, "kv check: block %d of sequence %d does not follow the block before it", i, seq);
			if (block->cached && i >= s->length / pool->options.block_tokens)
				return FAIL(err, BAD_INPUT, "kv check: block %d of sequence %d is cached but not full", i, seq);
		}
	}
	return STATUS_OK;
}

/* Walks the lists, each with a bound, so that a broken one ends too. */
static enum status check_lists(const struct kv_pool *pool, struct seen *seen, struct error *err)
{
	int idle = 0, n = pool->options.blocks;
	for (int i = 0; i < pool->free_count; i++) seen[pool->free_list[i]].where |= IN_FREE_LIST;
	for (int32_t b = pool->blocks[0].newer; b && idle <= n; b = pool->blocks[b].newer, idle++) {
		if (pool->blocks[b].before && seen[pool->blocks[b].before].where & IN_IDLE_RING)
			return FAIL(err, BAD_INPUT, "kv check: block %d would be evicted before %d, which follows it", pool->blocks[b].before, b);
		seen[b].where |= IN_IDLE_RING;
	}
	if (idle != pool->idle_count) return FAIL(err, BAD_INPUT, "kv check: %d idle blocks in the ring, %d counted", idle, pool->idle_count);
	for (uint64_t i = 0; i <= pool->bucket_mask; i++) {
		int steps = 0;
		for (int32_t b = pool->buckets[i]; b; b = pool->blocks[b].bucket_next) {
			if (seen[b].where & IN_INDEX || ++steps > n) return FAIL(err, BAD_INPUT, "kv check: block %d is in the index twice", b);
			seen[b].where |= IN_INDEX;
		}
	}
	return STATUS_OK;
}

static enum status check_block(const struct kv_pool *pool, const struct seen *seen, int32_t b, struct error *err)
{
	const struct kv_block *block = &pool->blocks[b];
	int where = block->refs ? 0 : block->cached ? IN_IDLE_RING : IN_FREE_LIST;
	if (block->cached) where |= IN_INDEX;
	if (seen[b].held != block->refs)
		return FAIL(err, BAD_INPUT, "kv check: block %d is held %d times and counts %d", b, seen[b].held, block->refs);
	if (seen[b].where != where)
		return FAIL(err, BAD_INPUT, "kv check: block %d (refs %d, cached %d) is in lists %d, want %d", b, block->refs, block->cached,
		            seen[b].where, where);
	if (block->refs > 1 && !block->cached) return FAIL(err, BAD_INPUT, "kv check: block %d is shared but can still be written", b);
	if (block->state && (!block->cached || pool->states.slots[block->state].block != b))
		return FAIL(err, BAD_INPUT, "kv check: block %d (cached %d) has state slot %d, which is the snapshot of block %d", b, block->cached,
		            block->state, pool->states.slots[block->state].block);
	const struct kv_block *before = &pool->blocks[block->before];
	if (block->cached && block->before && (!before->cached || before->refs < block->refs))
		return FAIL(err, BAD_INPUT, "kv check: block %d (refs %d) follows block %d (refs %d, cached %d)", b, block->refs, block->before,
		            before->refs, before->cached);
	return STATUS_OK;
}

static enum status check_states(const struct kv_pool *pool, struct error *err)
{
	int *held = mem_zalloc((size_t)pool->states.count + 1, sizeof *held, "kv check", err);
	enum status st = held ? STATUS_OK : STATUS_NO_MEMORY;
	for (int seq = 0; seq < pool->options.max_seqs && st == STATUS_OK; seq++) {
		const struct kv_seq *s = &pool->seqs[seq];
		bool has = pool->states.count > 0;
		if ((s->read > 0) != (has && s->length > 0) || (s->write > 0) != (has && s->reserved > 0) || (s->tail_write > 0) != (s->tail > 0) ||
		    (s->read && s->read == s->write))
			st = FAIL(err, BAD_INPUT, "kv check: sequence %d of %d + %d + %d tokens reads state slot %d and writes %d and %d", seq, s->length, s->reserved, s->tail,
			          s->read, s->write, s->tail_write);
		if (s->read) held[s->read]++;
		if (s->write) held[s->write]++;
		if (s->tail_write) held[s->tail_write]++;
	}
	if (st == STATUS_OK) st = kv_states_check(&pool->states, held, err);
	free(held);
	return st;
}

static enum status check_windows(const struct kv_pool *pool, struct error *err)
{
	int *wants = mem_zalloc((size_t)pool->options.blocks + 1, sizeof *wants, "kv check", err);
	enum status st = wants ? STATUS_OK : STATUS_NO_MEMORY;
	for (int seq = 0; seq < pool->options.max_seqs && st == STATUS_OK && pool->options.windows; seq++) {
		const struct kv_seq *s = &pool->seqs[seq];
		if (s->window_from != window_from(pool, s->length))
			st = FAIL(err, BAD_INPUT, "kv check: the window of sequence %d of %d tokens begins at block %d", seq, s->length, s->window_from);
		for (int i = s->window_from; i < s->blocks; i++) wants[table_of(pool, seq)[i]]++;
	}
	for (int32_t b = 1; b <= pool->options.blocks && st == STATUS_OK; b++)
		if (pool->windows.of[b].at && !pool->windows.of[b].wants && !pool->blocks[b].cached)
			st = FAIL(err, BAD_INPUT, "kv check: block %d has a window block, is not cached and in no window", b);
	if (st == STATUS_OK) st = kv_windows_check(&pool->windows, wants, err);
	free(wants);
	return st;
}

enum status kv_check(const struct kv_pool *pool, struct error *err)
{
	int n = pool->options.blocks;
	struct seen *seen = mem_zalloc((size_t)n + 1, sizeof *seen, "kv check", err);
	if (!seen) return STATUS_NO_MEMORY;
	int held = 0;
	enum status st;
	TRY_GOTO(check_seqs(pool, seen, err), end);
	TRY_GOTO(check_lists(pool, seen, err), end);
	TRY_GOTO(check_states(pool, err), end);
	TRY_GOTO(check_windows(pool, err), end);
	if (seen[0].held || seen[0].where || pool->blocks[0].state) {
		st = FAIL(err, BAD_INPUT, "kv check: the sink block was given away");
		goto end;
	}
	int snapshots = 0;
	for (int32_t b = 1; b <= n; b++) snapshots += pool->blocks[b].state > 0;
	if (snapshots != pool->states.snapshots) {
		st = FAIL(err, BAD_INPUT, "kv check: blocks have %d snapshots, %d are counted", snapshots, pool->states.snapshots);
		goto end;
	}
	for (int32_t b = 1; b <= n; b++) {
		TRY_GOTO(check_block(pool, seen, b, err), end);
		held += seen[b].held > 0;
	}
	if (held + pool->free_count + pool->idle_count != n)
		st = FAIL(err, BAD_INPUT, "kv check: %d held + %d empty + %d idle are not %d blocks", held, pool->free_count, pool->idle_count, n);
end:
	free(seen);
	return st;
}
