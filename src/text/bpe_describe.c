/* A BPE model from plain arrays: with its merges, or with scores as SentencePiece has them. See bpe.h.
 *
 * Scores: of all neighbours that together are a token, those with the best score are joined first, the leftmost of equals. So each way to
 * cut a token in two that are tokens themselves is a merge, and all merges that make the same token have the same rank.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/bpe.h"
#include "text/utf8.h"

static enum status describe_vocab(struct bpe *bpe, const struct tokenizer_description *d, struct error *err)
{
	TRY(vocab_reserve(&bpe->vocab, (size_t)d->count + 1, err));
	for (int32_t id = 0; id < d->count; id++) {
		const struct tokenizer_text *text = &d->tokens[id];
		if (utf8_valid_prefix(text->data, text->size) < text->size)
			return FAIL(err, BAD_INPUT, "token %d of the vocabulary is not UTF-8; the file is damaged", (int)id);
		/* of two equal texts the first counts, the other id stands for nothing */
		if (vocab_find(&bpe->vocab, text->data, text->size) < 0) TRY(vocab_add(&bpe->vocab, text->data, text->size, id, err));
	}
	if (d->model == TOKENIZER_BYTE_LEVEL) return STATUS_OK;
	for (int32_t id = 0; id < d->count; id++) bpe->byte_fallback |= d->kinds[id] == TOKEN_BYTE;
	bpe->fuse_unknown = true;
	bpe->has_unknown = d->unknown >= 0 && d->unknown < d->count;
	return STATUS_OK;
}

static enum status describe_merges(struct bpe *bpe, const struct tokenizer_description *d, struct error *err)
{
	struct buf joined = {0};
	enum status st;
	TRY_GOTO(bpe_reserve_merges(bpe, d->merge_count, err), out);
	for (size_t i = 0; i < d->merge_count; i++) {
		const struct tokenizer_text *merge = &d->merges[i];
		const char *space = merge->size > 1 ? memchr(merge->data + 1, ' ', merge->size - 1) : NULL;
		if (!space) {
			st = FAIL(err, BAD_INPUT, "merge %zu is not \"a b\"; the file is damaged", i);
			goto out;
		}
		struct tokenizer_text left = {merge->data, (size_t)(space - merge->data)}, right = {space + 1, merge->size - left.size - 1};
		TRY_GOTO(bpe_add_merge(bpe, left, right, (uint32_t)i, &joined, err), out);
	}
out:
	buf_fini(&joined);
	return st;
}

/* ---- scores ---- */

struct scored {
	float score;
	int32_t id;
};

static int by_score(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;
	if (x->score < y->score) return 1;
	if (x->score > y->score) return -1;
	return (x->id > y->id) - (x->id < y->id);
}

static bool ordinary(const struct tokenizer_description *d, int32_t id)
{
	return d->kinds[id] == TOKEN_NORMAL || d->kinds[id] == TOKEN_USER_DEFINED;
}

/* The next way to cut token `id` behind byte *at into two ordinary tokens; false if there is none. */
static bool next_cut(const struct bpe *bpe, const struct tokenizer_description *d, int32_t id, size_t *at)
{
	struct tokenizer_text text = d->tokens[id];
	while ((*at += utf8_length(text.data[*at])) < text.size) {
		int32_t left = vocab_find(&bpe->vocab, text.data, *at), right = vocab_find(&bpe->vocab, text.data + *at, text.size - *at);
		if (left >= 0 && right >= 0 && ordinary(d, left) && ordinary(d, right)) return true;
	}
	return false;
}

static enum status merges_of_scores(struct bpe *bpe, const struct tokenizer_description *d, const struct scored *list, size_t n, struct error *err)
{
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		for (size_t at = 0; next_cut(bpe, d, list[i].id, &at);) count++;
	struct buf joined = {0};
	enum status st;
	TRY_GOTO(bpe_reserve_merges(bpe, count, err), out);
	uint32_t rank = 0;
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && list[i].score < list[i - 1].score) rank++;
		struct tokenizer_text text = d->tokens[list[i].id];
		for (size_t at = 0; next_cut(bpe, d, list[i].id, &at);)
			TRY_GOTO(bpe_add_merge(bpe, (struct tokenizer_text){text.data, at}, (struct tokenizer_text){text.data + at, text.size - at}, rank, &joined, err), out);
	}
out:
	buf_fini(&joined);
	return st;
}

static enum status describe_scores(struct bpe *bpe, const struct tokenizer_description *d, struct error *err)
{
	struct scored *list = mem_zalloc((size_t)d->count, sizeof *list, "token scores", err);
	if (!list) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	size_t n = 0;
	for (int32_t id = 0; st == STATUS_OK && id < d->count; id++) {
		if (!isfinite(d->scores[id])) st = FAIL(err, BAD_INPUT, "the score of token %d is not finite; the file is damaged", (int)id);
		if (ordinary(d, id) && d->tokens[id].size > 1) list[n++] = (struct scored){.score = d->scores[id], .id = id};
	}
	if (n) qsort(list, n, sizeof *list, by_score);
	if (st == STATUS_OK) st = merges_of_scores(bpe, d, list, n, err);
	free(list);
	return st;
}

enum status bpe_describe(struct bpe *out, const struct tokenizer_description *d, bool ignore_merges, struct error *err)
{
	enum status st = STATUS_OK;
	*out = (struct bpe){.ignore_merges = ignore_merges};
	TRY_GOTO(describe_vocab(out, d, err), fail);
	TRY_GOTO(d->model == TOKENIZER_BYTE_LEVEL ? describe_merges(out, d, err) : describe_scores(out, d, err), fail);
	bpe_find_bytes(out);
	out->unknown_id = out->has_unknown ? d->unknown : -1;
	return STATUS_OK;
fail:
	bpe_fini(out);
	return st;
}
