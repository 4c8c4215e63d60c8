/* The tokenizer as a whole: opening, encoding, decoding. The parts are in the files named after them. See tokenizer.h. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/describe.h"
#include "text/json_field.h"
#include "text/normalize.h"
#include "text/postprocess.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

/* The largest known file has 33 MB. */
#define FILE_LIMIT ((size_t)512 << 20)
#define TEXT_LIMIT ((size_t)1 << 30)
#define FOLLOWED_TOKENS ((size_t)8)

struct tokenizer {
	struct normalizer normalizer;
	struct pretokenizer pretokenizer;
	struct bpe bpe;
	struct added added;
	struct postprocessor postprocessor;
	struct decoder decoder;
	int32_t rows; /* ids from here on are refused; 0: none */
};

/* ---- opening ---- */

static enum status parse_parts(struct tokenizer *t, const json_t *root, const struct log *log, struct error *err)
{
	if (!json_is_object(root)) return FAIL(err, BAD_INPUT, "not a JSON object; check the file");
	TRY(normalizer_parse(&t->normalizer, json_field(root, "normalizer"), err));
	TRY(pretokenizer_parse(&t->pretokenizer, json_field(root, "pre_tokenizer"), err));
	TRY(bpe_parse(&t->bpe, json_field(root, "model"), log, err));
	TRY(added_parse(&t->added, json_field(root, "added_tokens"), &t->bpe.vocab, &t->normalizer, log, err));
	TRY(postprocessor_parse(&t->postprocessor, json_field(root, "post_processor"), err));
	return decoder_parse(&t->decoder, json_field(root, "decoder"), err);
}

enum status tokenizer_parse(struct tokenizer **out, const char *json, size_t n, const char *name, const struct log *log, struct error *err)
{
	enum status st;
	json_error_t why;
	*out = NULL;
	struct tokenizer *made = mem_zalloc(1, sizeof *made, "tokenizer", err);
	if (!made) return STATUS_NO_MEMORY;
	json_t *root = json_loadb(json, n, JSON_ALLOW_NUL, &why);
	if (root) st = parse_parts(made, root, log, err);
	else st = FAIL(err, BAD_INPUT, "line %d: %s; check the file", why.line, why.text);
	json_decref(root);
	if (st != STATUS_OK) {
		error_prefix(err, "%s", name);
		tokenizer_destroy(&made);
	}
	*out = made;
	return st;
}

static enum status describe_parts(struct tokenizer *t, const struct tokenizer_description *d, const struct log *log, struct error *err)
{
	if (d->count < 1 || d->count > VOCAB_MAX_ID) return FAIL(err, UNSUPPORTED, "%d tokens; 1 to %d are supported", (int)d->count, VOCAB_MAX_ID);
	TRY(described_normalizer(&t->normalizer, d, err));
	TRY(described_pretokenizer(&t->pretokenizer, d, err));
	TRY(bpe_describe(&t->bpe, d, described_ignore_merges(d), err));
	TRY(described_added(&t->added, d, &t->bpe.vocab, &t->normalizer, log, err));
	TRY(described_postprocessor(&t->postprocessor, d, err));
	return described_decoder(&t->decoder, d, err);
}

enum status tokenizer_create(struct tokenizer **out, const struct tokenizer_description *description, const char *name, const struct log *log,
                             struct error *err)
{
	*out = NULL;
	struct tokenizer *made = mem_zalloc(1, sizeof *made, "tokenizer", err);
	if (!made) return STATUS_NO_MEMORY;
	enum status st = describe_parts(made, description, log, err);
	if (st != STATUS_OK) {
		error_prefix(err, "%s: tokenizer", name);
		tokenizer_destroy(&made);
	}
	*out = made;
	return st;
}

enum status tokenizer_open(struct tokenizer **out, const char *path, const struct log *log, struct error *err)
{
	struct buf name = {0}, json = {0};
	struct stat info;
	enum status st;
	*out = NULL;
	bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
	TRY_GOTO(buf_printf(&name, err, folder ? "%s/tokenizer.json" : "%s", path), out);
	TRY_GOTO(folder ? buf_read_regular(&json, name.data, FILE_LIMIT, err) : buf_read_file(&json, name.data, FILE_LIMIT, err), out);
	st = tokenizer_parse(out, json.data, json.size, name.data, log, err);
out:
	buf_fini(&name);
	buf_fini(&json);
	return st;
}

void tokenizer_destroy(struct tokenizer **tokenizer)
{
	struct tokenizer *t = *tokenizer;
	if (!t) return;
	normalizer_fini(&t->normalizer);
	pretokenizer_fini(&t->pretokenizer);
	bpe_fini(&t->bpe);
	added_fini(&t->added);
	postprocessor_fini(&t->postprocessor);
	decoder_fini(&t->decoder);
	free(t);
	*tokenizer = NULL;
}

/* The largest id of an entry of `vocab`, of those whose text `besides` (may be NULL) does not have. */
static int32_t largest_id(const struct vocab *vocab, const struct vocab *besides)
{
	int32_t largest = -1;
	for (uint32_t i = 0; i < vocab->count; i++) {
		const struct vocab_entry *e = &vocab->entries[i];
		if (e->id > largest && (!besides || vocab_find(besides, vocab->texts.data + e->offset, e->length) < 0)) largest = e->id;
	}
	return largest;
}

enum status tokenizer_limit(struct tokenizer *tokenizer, int32_t rows, const char *name, const struct log *log, struct error *err)
{
	const struct vocab *added = &tokenizer->added.vocab;
	const int32_t largest = largest_id(&tokenizer->bpe.vocab, added), beyond = largest_id(added, NULL);
	if (largest >= rows)
		return FAIL(err, BAD_INPUT, "%s: its largest token id is %d, but the model has vocab_size %d; use the tokenizer of this model", name, largest, rows);
	if (beyond < rows) return STATUS_OK;
	tokenizer->rows = rows;
	log_write(log, LOG_WARN, "%s: added token '%.64s' has id %d, but the model has vocab_size %d; a prompt with a token beyond it is refused", name,
	          tokenizer_text(tokenizer, beyond), beyond, rows);
	return STATUS_OK;
}

/* ---- asking ---- */

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
	int32_t model = tokenizer->bpe.vocab.id_end, added = tokenizer->added.vocab.id_end;
	return model > added ? model : added;
}

int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *text)
{
	size_t n = strlen(text);
	int32_t id = vocab_find(&tokenizer->added.vocab, text, n);
	return id >= 0 ? id : vocab_find(&tokenizer->bpe.vocab, text, n);
}

const char *tokenizer_text(const struct tokenizer *tokenizer, int32_t id)
{
	size_t n;
	const char *text = vocab_text(&tokenizer->added.vocab, id, &n);
	return text ? text : vocab_text(&tokenizer->bpe.vocab, id, &n);
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
	return added_is_special(&tokenizer->added, id);
}

/* ---- encoding ---- */

/* What one call needs besides the tokenizer. */
struct encoding {
	const struct tokenizer *tokenizer;
	struct token_list *out;
	struct pattern_scratch *patterns;
	struct bpe_scratch *bpe;
	struct pieces pieces;
	struct buf normal[2];
	const struct text_range *user; /* see tokenizer_encode_marked */
	size_t user_count;
	struct buf parts; /* of normalize_parts */
	struct text_range *parts_user;
};

static void encoding_fini(struct encoding *e)
{
	pattern_scratch_destroy(&e->patterns);
	bpe_scratch_destroy(&e->bpe);
	pieces_fini(&e->pieces);
	buf_fini(&e->normal[0]);
	buf_fini(&e->normal[1]);
	buf_fini(&e->parts);
	free(e->parts_user);
}

/* Normalized text without added tokens. `first`: it starts where the input starts. */
static enum status encode_segment(struct encoding *e, const char *text, size_t n, bool first, struct error *err)
{
	const struct tokenizer *t = e->tokenizer;
	TRY(pretokenizer_run(&t->pretokenizer, e->patterns, text, n, first, &e->pieces, err));
	for (size_t i = 0; i < e->pieces.now.count; i++) {
		struct span piece = e->pieces.now.list[i];
		TRY(bpe_encode(&t->bpe, e->bpe, e->pieces.text + piece.start, piece.end - piece.start, t->pretokenizer.bytes, err));
	}
	return STATUS_OK;
}

/* The first of the user's ranges that ends behind `start`. */
static size_t first_user(const struct encoding *e, size_t start)
{
	size_t lo = 0, hi = e->user_count;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (e->user[mid].end <= start) lo = mid + 1;
		else hi = mid;
	}
	return lo;
}

/* The user's text and the template's are normalized each by itself: what the template's becomes does not depend on the user, and in the
 * result, too, it is known whose a byte is. `range`: the first that reaches into the stretch. */
static enum status normalize_parts(struct encoding *e, const char *text, size_t n, size_t start_at, size_t range, struct added_walk *walk,
                                   struct error *err)
{
	size_t count = 0;
	if (!e->parts_user) TRY(mem_grow((void **)&e->parts_user, e->user_count, sizeof *e->parts_user, "ranges of a text", err));
	buf_clear(&e->parts);
	for (size_t at = 0, end; at < n; at = end) {
		const bool users = range < e->user_count && e->user[range].start <= start_at + at;
		const char *normal;
		size_t size, before = e->parts.size;
		end = range == e->user_count ? n : (users ? e->user[range].end : e->user[range].start) - start_at;
		if (end > n) end = n;
		TRY(normalizer_run(&e->tokenizer->normalizer, e->patterns, text + at, end - at, at == 0, e->normal, &normal, &size, err));
		TRY(buf_append(&e->parts, normal, size, err));
		if (!users) continue;
		e->parts_user[count++] = (struct text_range){before, e->parts.size};
		range++;
	}
	walk->text = e->parts.data;
	walk->n = e->parts.size;
	walk->user = e->parts_user;
	walk->user_count = count;
	return STATUS_OK;
}

/* Text between two added tokens of the first pass: normalized, and searched for those of the second. Whose a byte is matters only where
 * special tokens are among these. */
static enum status encode_stretch(struct encoding *e, const char *text, size_t n, size_t start_at, struct error *err)
{
	const struct tokenizer *t = e->tokenizer;
	bool first = start_at == 0;
	const size_t range = first_user(e, start_at);
	struct added_walk walk = {.trie = &t->added.normal};
	if (t->added.normal_special && range < e->user_count && e->user[range].start < start_at + n)
		TRY(normalize_parts(e, text, n, start_at, range, &walk, err));
	else TRY(normalizer_run(&t->normalizer, e->patterns, text, n, true, e->normal, &walk.text, &walk.n, err));
	for (;;) {
		bool more;
		int32_t id;
		size_t start, end;
		TRY(added_next(&t->added, e->patterns, &walk, &more, &id, &start, &end, err));
		if (!more) return STATUS_OK;
		if (id >= 0) TRY(token_list_push(e->out, id, err));
		else TRY(encode_segment(e, walk.text + start, end - start, first && start == 0, err));
	}
}

static enum status encode_text(struct encoding *e, const char *text, size_t n, struct error *err)
{
	const struct added *added = &e->tokenizer->added;
	struct added_walk walk = {.trie = &added->raw, .text = text, .n = n, .user = e->user, .user_count = e->user_count};
	for (;;) {
		bool more;
		int32_t id;
		size_t start, end;
		TRY(added_next(added, e->patterns, &walk, &more, &id, &start, &end, err));
		if (!more) return STATUS_OK;
		if (id >= 0) TRY(token_list_push(e->out, id, err));
		else TRY(encode_stretch(e, text + start, end - start, start, err));
	}
}

/* Of the ids from `first` on. */
static enum status check_rows(const struct tokenizer *t, const struct token_list *list, size_t first, struct error *err)
{
	for (size_t i = first; t->rows && i < list->count; i++)
		if (list->ids[i] >= t->rows)
			return FAIL(err, BAD_INPUT, "prompt: has the token '%.64s', for whose id %d the model has no embedding (vocab_size %d); leave it out",
			            tokenizer_text(t, list->ids[i]), list->ids[i], t->rows);
	return STATUS_OK;
}

static enum status encode_whole(struct encoding *e, const char *text, size_t n, bool add_special, struct error *err)
{
	const struct postprocessor *around = &e->tokenizer->postprocessor;
	const size_t first = e->out->count;
	if (add_special) TRY(token_list_append(e->out, around->before.ids, around->before.count, err));
	TRY(encode_text(e, text, n, err));
	if (add_special) TRY(token_list_append(e->out, around->after.ids, around->after.count, err));
	return check_rows(e->tokenizer, e->out, first, err);
}

enum status tokenizer_encode_marked(const struct tokenizer *tokenizer, const char *text, size_t n, bool add_special,
                                    const struct text_range *user, size_t user_count, struct token_list *out, struct error *err)
{
	struct encoding e = {.tokenizer = tokenizer, .out = out, .user = user, .user_count = user_count};
	struct buf mended = {0};
	struct text_range whole = {0, SIZE_MAX};
	size_t kept = out->count;
	enum status st;
	if (n > TEXT_LIMIT) return FAIL(err, BAD_INPUT, "tokenizer: a text of %zu bytes; at most %zu are taken, send it in parts", n, TEXT_LIMIT);
	if (utf8_valid_prefix(text, n) < n) {
		TRY_GOTO(utf8_append_lossy(&mended, text, n, err), out);
		text = mended.data;
		n = mended.size;
		if (user_count) e.user = &whole, e.user_count = 1; /* the ranges were those of other bytes */
	}
	TRY_GOTO(pattern_scratch_create(&e.patterns, err), out);
	TRY_GOTO(bpe_scratch_create(&e.bpe, out, n, err), out);
	st = encode_whole(&e, text, n, add_special, err);
out:
	if (st != STATUS_OK) out->count = kept;
	encoding_fini(&e);
	buf_fini(&mended);
	return st;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n, bool add_special, struct token_list *out,
                             struct error *err)
{
	return tokenizer_encode_marked(tokenizer, text, n, add_special, NULL, 0, out, err);
}

/* ---- decoding ---- */

struct detokenizer {
	const struct tokenizer *tokenizer;
	bool skip_special;
	struct decoder_state state;
	struct buf shown[2]; /* what the text that it follows shows of what is still held back: if it ended there; up to an open code point */
};

static enum status detokenizer_init(struct detokenizer *d, const struct tokenizer *tokenizer, bool skip_special, struct error *err)
{
	*d = (struct detokenizer){.tokenizer = tokenizer, .skip_special = skip_special};
	return decoder_state_init(&d->state, &tokenizer->decoder, err);
}

enum status detokenizer_create(struct detokenizer **out, const struct tokenizer *tokenizer, bool skip_special, struct error *err)
{
	*out = NULL;
	struct detokenizer *made = mem_zalloc(1, sizeof *made, "detokenizer", err);
	if (!made) return STATUS_NO_MEMORY;
	enum status st = detokenizer_init(made, tokenizer, skip_special, err);
	if (st != STATUS_OK) detokenizer_destroy(&made);
	*out = made;
	return st;
}

const struct tokenizer *detokenizer_of(const struct detokenizer *detokenizer)
{
	return detokenizer->tokenizer;
}

void detokenizer_destroy(struct detokenizer **detokenizer)
{
	if (!*detokenizer) return;
	decoder_state_fini(&(*detokenizer)->state);
	for (size_t i = 0; i < 2; i++) buf_fini(&(*detokenizer)->shown[i]);
	free(*detokenizer);
	*detokenizer = NULL;
}

/* As it is to be decoded. */
static const char *decoded_text(const struct tokenizer *t, int32_t id, size_t *n)
{
	const char *text = added_text(&t->added, id, n);
	return text ? text : vocab_text(&t->bpe.vocab, id, n);
}

/* How much of text[0..n) is as the text shown, in whole code points. */
static size_t count_shown(const struct buf *shown, const char *text, size_t n)
{
	size_t same = 0;
	while (same < n && same < shown->size && text[same] == shown->data[same]) same++;
	while (same > 0 && same < n && ((unsigned char)text[same] & 0xC0) == 0x80) same--;
	return same;
}

/* Of the first text that comes, what was shown before does not come again. */
static void drop_shown(struct detokenizer *d, struct buf *piece, size_t from)
{
	size_t n = piece->size - from;
	if (n == 0) return;
	char *text = piece->data + from;
	size_t ended = count_shown(&d->shown[0], text, n), open = count_shown(&d->shown[1], text, n), drop = ended > open ? ended : open;
	memmove(text, text + drop, n - drop + 1);
	piece->size -= drop;
	for (size_t i = 0; i < 2; i++) buf_clear(&d->shown[i]);
}

enum status detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct buf *piece, struct error *err)
{
	size_t n, from = piece->size;
	const char *text = decoded_text(detokenizer->tokenizer, id, &n);
	if (!text || (detokenizer->skip_special && tokenizer_is_special(detokenizer->tokenizer, id))) return STATUS_OK;
	TRY(decoder_push(&detokenizer->state, text, n, piece, err));
	drop_shown(detokenizer, piece, from);
	return STATUS_OK;
}

enum status detokenizer_bytes(struct detokenizer *detokenizer, int32_t id, struct buf *bytes, struct error *err)
{
	size_t n;
	const char *text = decoded_text(detokenizer->tokenizer, id, &n);
	return text ? decoder_bytes(&detokenizer->state, text, n, bytes, err) : STATUS_OK;
}

enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *piece, struct error *err)
{
	size_t from = piece->size;
	TRY(decoder_finish(&detokenizer->state, piece, err));
	drop_shown(detokenizer, piece, from);
	for (size_t i = 0; i < 2; i++) buf_clear(&detokenizer->shown[i]);
	return STATUS_OK;
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                             struct error *err)
{
	struct detokenizer d;
	enum status st = detokenizer_init(&d, tokenizer, skip_special, err);
	for (size_t i = 0; st == STATUS_OK && i < n; i++) st = detokenizer_push(&d, ids[i], out, err);
	if (st == STATUS_OK) st = detokenizer_finish(&d, out, err);
	decoder_state_fini(&d.state);
	return st;
}

static bool holds_replacement(const struct buf *text)
{
	return text->size > 0 && memmem(text->data, text->size, UTF8_REPLACEMENT, 3);
}

/* Of ids[0..n), so many from the end that what follows them decodes as it does behind all: they give some text and no part of a code point. `text` is
 * theirs. */
static enum status decode_tail(const struct detokenizer *d, const int32_t *ids, size_t n, size_t *count, struct buf *text, struct error *err)
{
	for (*count = FOLLOWED_TOKENS; *count < n; *count *= 2) {
		buf_clear(text);
		TRY(tokenizer_decode(d->tokenizer, ids + (n - *count), *count, d->skip_special, text, err));
		if (text->size > 0 && !holds_replacement(text)) return STATUS_OK;
	}
	*count = n;
	buf_clear(text);
	return tokenizer_decode(d->tokenizer, ids, n, d->skip_special, text, err);
}

/* Takes from ids[0..n) the tokens that begin a code point at their end, if there is one. */
static enum status decode_closed(const struct detokenizer *d, const int32_t *ids, size_t n, struct buf *text, struct error *err)
{
	for (size_t cut = 0; cut < 4 && cut < n; cut++) {
		buf_clear(text);
		TRY(tokenizer_decode(d->tokenizer, ids, n - cut, d->skip_special, text, err));
		if (text->size < 3 || memcmp(text->data + text->size - 3, UTF8_REPLACEMENT, 3) != 0) return STATUS_OK;
	}
	return STATUS_OK;
}

static enum status keep_shown(struct buf *shown, const struct buf *text, const struct buf *certain, struct error *err)
{
	return text->size > certain->size ? buf_append(shown, text->data + certain->size, text->size - certain->size, err) : STATUS_OK;
}

enum status detokenizer_follow(struct detokenizer *detokenizer, const int32_t *ids, size_t n, struct error *err)
{
	struct buf text = {0}, certain = {0};
	size_t count;
	enum status st;
	TRY_GOTO(decode_tail(detokenizer, ids, n, &count, &text, err), out);
	ids += n - count;
	for (size_t i = 0; i < count; i++) TRY_GOTO(detokenizer_push(detokenizer, ids[i], &certain, err), out);
	TRY_GOTO(keep_shown(&detokenizer->shown[0], &text, &certain, err), out);
	if (holds_replacement(&text)) TRY_GOTO(decode_closed(detokenizer, ids, count, &text, err), out);
	st = keep_shown(&detokenizer->shown[1], &text, &certain, err);
out:
	buf_fini(&text);
	buf_fini(&certain);
	return st;
}
