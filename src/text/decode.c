/* Running the decoders. See decode.h. */
#include "text/decode.h"

#include <string.h>

#include "text/byte_chars.h"

static enum status stage_take(struct decoder_state *state, size_t i, const char *text, size_t n, bool last, struct buf *out, struct error *err);

/* Hands a chunk to the stage after `i`. `text` may lie in stage i's `made`. */
static enum status emit(struct decoder_state *state, size_t i, const char *text, size_t n, bool last, struct buf *out, struct error *err)
{
	return stage_take(state, i + 1, text, n, last, out, err);
}

/* False, and nothing appended, if a character is not one that stands for a byte. */
static enum status map_bytes(const char *text, size_t n, struct buf *out, bool *mapped, struct error *err)
{
	size_t kept = out->size;
	TRY(buf_reserve(out, n, err));
	*mapped = true;
	for (size_t k = 0; k < n && *mapped;) {
		uint32_t cp;
		k += utf8_decode(text + k, n - k, &cp);
		int byte = byte_of_char(cp);
		*mapped = byte >= 0;
		if (*mapped) out->data[out->size++] = (char)byte;
	}
	if (!*mapped) out->size = kept;
	return STATUS_OK;
}

static enum status take_byte_level(struct decoder_state *state, size_t i, const char *text, size_t n, struct buf *out, struct error *err)
{
	struct decoder_stage *stage = &state->stages[i];
	struct buf *open = &stage->open; /* the caller is done with it when it passes it as `text`: the bytes are never longer */
	buf_clear(&stage->run);
	bool mapped;
	TRY(map_bytes(text, n, &stage->run, &mapped, err));
	buf_clear(&stage->made);
	const char *bytes = mapped ? stage->run.data : text;
	size_t count = mapped ? stage->run.size : n;
	TRY(utf8_stream_push(&stage->utf8, bytes, count, &stage->made, err));
	buf_clear(open);
	return stage->made.size > 0 ? emit(state, i, stage->made.data, stage->made.size, false, out, err) : STATUS_OK;
}

/* The value of "<0xHH>"; -1 if `text` is something else. */
static int byte_token(const char *text, size_t n)
{
	if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
	int high = text[3] == '+' ? 0 : utf8_hex_digit(text[3]), low = utf8_hex_digit(text[4]);
	return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* The run of byte tokens ends: it is text as a whole, or one U+FFFD per byte. */
static enum status flush_run(struct decoder_state *state, size_t i, struct buf *out, struct error *err)
{
	struct buf *run = &state->stages[i].run;
	size_t n = run->size;
	if (n == 0) return STATUS_OK;
	run->size = 0;
	if (utf8_valid_prefix(run->data, n) == n) return emit(state, i, run->data, n, true, out, err);
	for (size_t k = 0; k < n; k++) TRY(emit(state, i, UTF8_REPLACEMENT, 3, true, out, err));
	return STATUS_OK;
}

static enum status take_byte_fallback(struct decoder_state *state, size_t i, const char *text, size_t n, struct buf *out, struct error *err)
{
	int byte = byte_token(text, n);
	if (byte >= 0) return buf_append(&state->stages[i].run, (char[]){(char)byte}, 1, err);
	TRY(flush_run(state, i, out, err));
	return emit(state, i, text, n, true, out, err);
}

static enum status take_replace(struct decoder_state *state, size_t i, const char *text, size_t n, struct buf *out, struct error *err)
{
	const struct decoder_step *step = &state->decoder->steps[i];
	struct buf *made = &state->stages[i].made;
	buf_clear(made);
	TRY(pattern_replace(step->pattern, state->scratch, text, n, step->text.data, step->text.size, made, err));
	return emit(state, i, made->data, made->size, true, out, err);
}

static bool next_is(const struct decoder_step *step, const char *text, size_t n)
{
	return n >= step->text.size && memcmp(text, step->text.data, step->text.size) == 0;
}

static enum status take_metaspace(struct decoder_state *state, size_t i, const char *text, size_t n, bool last, struct buf *out,
                                  struct error *err)
{
	const struct decoder_step *step = &state->decoder->steps[i];
	struct decoder_stage *stage = &state->stages[i];
	bool drop = stage->tokens == 0 && step->prepend != PREPEND_NEVER;
	buf_clear(&stage->made);
	for (size_t k = 0; k < n;) {
		if (next_is(step, text + k, n - k)) {
			if (!drop) TRY(buf_puts(&stage->made, " ", err));
			k += step->text.size;
			continue;
		}
		size_t length = utf8_length(text[k]);
		TRY(buf_append(&stage->made, text + k, length, err));
		k += length;
	}
	if (last) stage->tokens++;
	return emit(state, i, stage->made.data, stage->made.size, last, out, err);
}

/* At most `start` copies go from the front and `stop` from the back, where up to `stop` of them are always held. */
static enum status take_strip(struct decoder_state *state, size_t i, const char *text, size_t n, bool last, struct buf *out, struct error *err)
{
	const struct decoder_step *step = &state->decoder->steps[i];
	struct decoder_stage *stage = &state->stages[i];
	buf_clear(&stage->made);
	for (size_t k = 0, length; k < n; k += length) {
		length = utf8_length(text[k]);
		bool copy = next_is(step, text + k, n - k);
		if (copy && !stage->started && stage->cut < step->start) {
			stage->cut++;
			continue;
		}
		stage->started = true;
		if (copy && stage->copies < step->stop) {
			stage->copies++;
			continue;
		}
		for (; !copy && stage->copies > 0; stage->copies--) TRY(buf_append(&stage->made, step->text.data, step->text.size, err));
		TRY(buf_append(&stage->made, text + k, length, err));
	}
	if (last) {
		stage->cut = stage->copies = 0;
		stage->started = false;
	}
	return emit(state, i, stage->made.data, stage->made.size, last, out, err);
}

/* For stages that need a whole token: *text becomes it once it has ended, else *complete is false. */
static enum status collect(struct decoder_stage *stage, const char **text, size_t *n, bool last, bool *complete, struct error *err)
{
	*complete = last;
	if (last && stage->open.size == 0) return STATUS_OK; /* came in one chunk */
	TRY(buf_append(&stage->open, *text, *n, err));
	if (!last) return STATUS_OK;
	*text = stage->open.data;
	*n = stage->open.size;
	stage->open.size = 0; /* the bytes stay until the next chunk */
	return STATUS_OK;
}

/* The end of the chain. */
static enum status write_out(struct decoder_state *state, const char *text, size_t n, bool last, struct buf *out, struct error *err)
{
	if (!state->decoder->present) { /* every token comes in one chunk */
		if (state->any) TRY(buf_puts(out, " ", err));
		state->any = last;
	}
	return buf_append(out, text, n, err);
}

static enum status stage_take(struct decoder_state *state, size_t i, const char *text, size_t n, bool last, struct buf *out, struct error *err)
{
	if (i == state->decoder->count) return write_out(state, text, n, last, out, err);
	enum decoder_kind kind = state->decoder->steps[i].kind;
	if (kind == DECODER_FUSE) return n > 0 ? emit(state, i, text, n, false, out, err) : STATUS_OK;
	if (kind == DECODER_METASPACE) return take_metaspace(state, i, text, n, last, out, err);
	if (kind == DECODER_STRIP) return take_strip(state, i, text, n, last, out, err);
	bool complete;
	TRY(collect(&state->stages[i], &text, &n, last, &complete, err));
	if (!complete) return STATUS_OK;
	if (kind == DECODER_BYTE_LEVEL) return take_byte_level(state, i, text, n, out, err);
	if (kind == DECODER_BYTE_FALLBACK) return take_byte_fallback(state, i, text, n, out, err);
	return take_replace(state, i, text, n, out, err);
}

static enum status stage_finish(struct decoder_state *state, size_t i, struct buf *out, struct error *err)
{
	struct decoder_stage *stage = &state->stages[i];
	switch (state->decoder->steps[i].kind) {
	case DECODER_BYTE_LEVEL:
		buf_clear(&stage->made);
		TRY(utf8_stream_finish(&stage->utf8, &stage->made, err));
		return emit(state, i, stage->made.data, stage->made.size, true, out, err);
	case DECODER_BYTE_FALLBACK: return flush_run(state, i, out, err);
	case DECODER_FUSE: return emit(state, i, "", 0, true, out, err);
	case DECODER_METASPACE: stage->tokens = 0; return STATUS_OK;
	case DECODER_REPLACE:
	case DECODER_STRIP: return STATUS_OK;
	}
	return STATUS_OK;
}

enum status decoder_state_init(struct decoder_state *state, const struct decoder *decoder, struct error *err)
{
	*state = (struct decoder_state){.decoder = decoder};
	return pattern_scratch_create(&state->scratch, err);
}

void decoder_state_fini(struct decoder_state *state)
{
	for (size_t i = 0; i < DECODER_MAX_STEPS; i++) {
		buf_fini(&state->stages[i].open);
		buf_fini(&state->stages[i].run);
		buf_fini(&state->stages[i].made);
	}
	pattern_scratch_destroy(&state->scratch);
}

enum status decoder_push(struct decoder_state *state, const char *text, size_t n, struct buf *out, struct error *err)
{
	return stage_take(state, 0, text, n, true, out, err);
}

static enum status step_bytes(struct decoder_state *state, const struct decoder_step *step, const struct buf *in, struct buf *out, struct error *err)
{
	bool mapped = false;
	int byte;
	switch (step->kind) {
	case DECODER_BYTE_LEVEL:
		TRY(map_bytes(in->data, in->size, out, &mapped, err));
		if (mapped) return STATUS_OK;
		break;
	case DECODER_BYTE_FALLBACK:
		byte = byte_token(in->data, in->size);
		if (byte >= 0) return buf_append(out, (char[]){(char)byte}, 1, err);
		break;
	case DECODER_METASPACE:
		for (size_t k = 0, length; k < in->size; k += length) {
			bool mark = next_is(step, in->data + k, in->size - k);
			length = mark ? step->text.size : 1;
			TRY(buf_append(out, mark ? " " : in->data + k, 1, err));
		}
		return STATUS_OK;
	case DECODER_REPLACE:
		if (utf8_valid_prefix(in->data, in->size) < in->size) break; /* a byte token */
		return pattern_replace(step->pattern, state->scratch, in->data, in->size, step->text.data, step->text.size, out, err);
	case DECODER_FUSE:
	case DECODER_STRIP: break;
	}
	return buf_append(out, in->data, in->size, err);
}

enum status decoder_bytes(struct decoder_state *state, const char *text, size_t n, struct buf *bytes, struct error *err)
{
	struct buf now = {0}, next = {0};
	enum status st;
	TRY_GOTO(buf_append(&now, text, n, err), out);
	for (size_t i = 0; i < state->decoder->count; i++) {
		buf_clear(&next);
		TRY_GOTO(buf_reserve(&next, 0, err), out);
		TRY_GOTO(step_bytes(state, &state->decoder->steps[i], &now, &next, err), out);
		struct buf swap = now;
		now = next;
		next = swap;
	}
	st = buf_append(bytes, now.data, now.size, err);
out:
	buf_fini(&now);
	buf_fini(&next);
	return st;
}

enum status decoder_finish(struct decoder_state *state, struct buf *out, struct error *err)
{
	for (size_t i = 0; i < state->decoder->count; i++) TRY(stage_finish(state, i, out, err));
	state->any = false;
	return STATUS_OK;
}
