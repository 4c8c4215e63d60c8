#include "text/utf8.h"

#include <string.h>

/* Bounds of the second byte by lead byte (table 3-7): they exclude overlong forms, surrogates and values over 10FFFF. */
static void second_byte_bounds(unsigned char lead, unsigned char *low, unsigned char *high)
{
	*low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
	*high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
}

size_t utf8_decode(const char *p, size_t n, uint32_t *cp)
{
	const unsigned char *s = (const unsigned char *)p;
	if (s[0] < 0x80) {
		*cp = s[0];
		return 1;
	}
	*cp = UTF8_BAD;
	if (s[0] < 0xC2 || s[0] > 0xF4) return 1;
	size_t need = utf8_length(p[0]);
	unsigned char low, high;
	second_byte_bounds(s[0], &low, &high);
	uint32_t value = s[0] & (0xFFu >> (need + 1));
	for (size_t i = 1; i < need; i++) {
		if (i == n || s[i] < low || s[i] > high) return i;
		value = value << 6 | (s[i] & 0x3F);
		low = 0x80;
		high = 0xBF;
	}
	*cp = value;
	return need;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
	for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
	out[0] = (char)((0xF0u << (4 - n) & 0xFFu) | cp);
	return n;
}

size_t utf8_valid_prefix(const char *text, size_t n)
{
	size_t i = 0;
	while (i < n) {
		uint64_t word;
		while (n - i >= sizeof word) { /* eight ASCII bytes at a time */
			memcpy(&word, text + i, sizeof word);
			if (word & 0x8080808080808080u) break;
			i += sizeof word;
		}
		if (i == n) break;
		uint32_t cp;
		size_t length = utf8_decode(text + i, n - i, &cp);
		if (cp == UTF8_BAD) return i;
		i += length;
	}
	return n;
}

enum status utf8_append_lossy(struct buf *out, const char *text, size_t n, struct error *err)
{
	while (n > 0) {
		size_t good = utf8_valid_prefix(text, n);
		TRY(buf_append(out, text, good, err));
		text += good;
		n -= good;
		if (n == 0) break;
		uint32_t cp;
		size_t bad = utf8_decode(text, n, &cp);
		TRY(buf_puts(out, UTF8_REPLACEMENT, err));
		text += bad;
		n -= bad;
	}
	return STATUS_OK;
}

/* How many bytes at the end of bytes[0..n) are a proper prefix of a well-formed sequence. */
static size_t incomplete_tail(const char *bytes, size_t n)
{
	for (size_t k = 1; k <= 3 && k <= n; k++) {
		unsigned char lead = (unsigned char)bytes[n - k];
		if (lead < 0x80) return 0;
		if (lead < 0xC0) continue;
		uint32_t cp;
		size_t subpart = utf8_decode(bytes + n - k, k, &cp);
		return cp == UTF8_BAD && subpart == k && lead >= 0xC2 && lead <= 0xF4 ? k : 0;
	}
	return 0;
}

enum status utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t n, struct buf *out, struct error *err)
{
	/* The held bytes need at most three more: join them in a small window until they are decided. */
	while (stream->count > 0 && n > 0) {
		stream->held[stream->count++] = *bytes++;
		n--;
		if (incomplete_tail(stream->held, stream->count) == stream->count) continue;
		size_t tail = incomplete_tail(stream->held, stream->count);
		TRY(utf8_append_lossy(out, stream->held, stream->count - tail, err));
		memmove(stream->held, stream->held + stream->count - tail, tail);
		stream->count = tail;
	}
	if (n == 0) return STATUS_OK;
	size_t tail = incomplete_tail(bytes, n);
	TRY(utf8_append_lossy(out, bytes, n - tail, err));
	memcpy(stream->held, bytes + n - tail, tail);
	stream->count = tail;
	return STATUS_OK;
}

enum status utf8_stream_finish(struct utf8_stream *stream, struct buf *out, struct error *err)
{
	size_t n = stream->count;
	stream->count = 0;
	return utf8_append_lossy(out, stream->held, n, err);
}
