/* Running the pre-tokenizer; its reading is in pretokenize_parse.c. See pretokenize.h. */
#include "text/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/byte_chars.h"
#include "text/utf8.h"

void pieces_fini(struct pieces *pieces)
{
	free(pieces->now.list);
	free(pieces->made.list);
	buf_fini(&pieces->texts[0]);
	buf_fini(&pieces->texts[1]);
	*pieces = (struct pieces){0};
}

static enum status push_span(struct span_list *spans, size_t start, size_t end, struct error *err)
{
	if (spans->count == spans->capacity) {
		size_t capacity = spans->capacity ? spans->capacity * 2 : 64;
		TRY(mem_grow((void **)&spans->list, capacity, sizeof *spans->list, "text pieces", err));
		spans->capacity = capacity;
	}
	spans->list[spans->count++] = (struct span){.start = start, .end = end};
	return STATUS_OK;
}

/* What a split has seen of the piece so far. Stretches come in order, matches and the gaps between them in turn. */
struct splitter {
	enum split_behavior behavior;
	struct span_list *out;
	size_t base; /* first span of this piece in `out` */
	bool before; /* the stretch before was a match */
};

static bool is_joined(const struct splitter *s, bool match)
{
	if (s->out->count == s->base) return false;
	if (s->behavior == SPLIT_CONTIGUOUS) return match == s->before;
	if (s->behavior == SPLIT_WITH_PREVIOUS) return match && !s->before;
	return false;
}

/* MergedWithNext mirrors MergedWithPrevious: of a run of matches only the last joins the stretch after it. */
static bool joins_next(const struct splitter *s, bool match)
{
	return s->behavior == SPLIT_WITH_NEXT && s->out->count > s->base && !match && s->before;
}

static enum status stretch(struct splitter *s, size_t start, size_t end, bool match, struct error *err)
{
	if (s->behavior == SPLIT_REMOVED && match) return STATUS_OK;
	bool join = is_joined(s, match) || joins_next(s, match);
	s->before = match;
	if (!join) return push_span(s->out, start, end, err);
	s->out->list[s->out->count - 1].end = end;
	return STATUS_OK;
}

/* Empty spans take part in the joining rules above but are no pieces. */
static void drop_empty(struct span_list *spans, size_t base)
{
	size_t kept = base;
	for (size_t i = base; i < spans->count; i++)
		if (spans->list[i].start < spans->list[i].end) spans->list[kept++] = spans->list[i];
	spans->count = kept;
}

static enum status split_piece(const struct pretokenizer_step *step, struct pattern_scratch *scratch, const char *text, struct span piece,
                               struct span_list *out, struct error *err)
{
	struct splitter s = {.behavior = step->behavior, .out = out, .base = out->count};
	struct pattern_walk walk = {.text = text + piece.start, .n = piece.end - piece.start};
	size_t done = 0;
	for (;;) {
		bool found;
		size_t start = 0, end = 0;
		TRY(pattern_next(step->pattern, scratch, &walk, &found, &start, &end, err));
		if (!found) break;
		if (start > done) TRY(stretch(&s, piece.start + done, piece.start + start, step->invert, err));
		TRY(stretch(&s, piece.start + start, piece.start + end, !step->invert, err));
		done = end;
	}
	if (done < walk.n) TRY(stretch(&s, piece.start + done, piece.end, step->invert, err));
	drop_empty(out, s.base);
	return STATUS_OK;
}

static bool starts_with(const char *text, struct span piece, const char *prefix, size_t n)
{
	return piece.end - piece.start >= n && memcmp(text + piece.start, prefix, n) == 0;
}

static enum status append_marked(const struct pretokenizer_step *step, struct buf *out, const char *text, size_t n, struct error *err)
{
	while (n > 0) {
		const char *space = memchr(text, ' ', n);
		size_t plain = space ? (size_t)(space - text) : n;
		TRY(buf_append(out, text, plain, err));
		text += plain;
		n -= plain;
		if (!space) continue;
		TRY(buf_append(out, step->mark.data, step->mark.size, err));
		text++;
		n--;
	}
	return STATUS_OK;
}

/* The new text of one piece. */
static enum status rewrite_piece(const struct pretokenizer_step *step, const char *text, struct span piece, bool first, struct buf *out,
                                 struct error *err)
{
	const char *p = text + piece.start;
	size_t n = piece.end - piece.start;
	if (step->kind == PRETOKENIZER_BYTE_CHARS) return byte_chars_append(out, p, n, err);
	if (step->kind == PRETOKENIZER_PREFIX_SPACE) {
		if (!starts_with(text, piece, " ", 1)) TRY(buf_puts(out, " ", err));
		return buf_append(out, p, n, err);
	}
	bool marked = starts_with(text, piece, " ", 1) || starts_with(text, piece, step->mark.data, step->mark.size);
	if (!marked && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first)))
		TRY(buf_append(out, step->mark.data, step->mark.size, err));
	return append_marked(step, out, p, n, err);
}

/* Rewrites all pieces into the other text buffer. */
static enum status rewrite_pieces(const struct pretokenizer_step *step, bool first, struct pieces *pieces, struct error *err)
{
	struct buf *out = &pieces->texts[pieces->turn];
	buf_clear(out);
	TRY(buf_reserve(out, 1, err));
	for (size_t i = 0; i < pieces->now.count; i++) {
		struct span piece = pieces->now.list[i];
		size_t start = out->size;
		TRY(rewrite_piece(step, pieces->text, piece, first && piece.start == 0, out, err));
		TRY(push_span(&pieces->made, start, out->size, err));
	}
	pieces->text = out->data;
	pieces->turn = !pieces->turn;
	return STATUS_OK;
}

enum status pretokenizer_run(const struct pretokenizer *pretokenizer, struct pattern_scratch *scratch, const char *text, size_t n,
                             bool first, struct pieces *pieces, struct error *err)
{
	pieces->text = text;
	pieces->now.count = 0;
	TRY(push_span(&pieces->now, 0, n, err));
	for (size_t i = 0; i < pretokenizer->count; i++) {
		const struct pretokenizer_step *step = &pretokenizer->steps[i];
		pieces->made.count = 0;
		if (step->kind == PRETOKENIZER_SPLIT) {
			for (size_t k = 0; k < pieces->now.count; k++)
				TRY(split_piece(step, scratch, pieces->text, pieces->now.list[k], &pieces->made, err));
		} else {
			TRY(rewrite_pieces(step, first, pieces, err));
		}
		struct span_list swap = pieces->now;
		pieces->now = pieces->made;
		pieces->made = swap;
	}
	return STATUS_OK;
}
