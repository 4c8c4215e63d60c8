/* NFC, NFD, NFKC, NFKD by utf8proc's data, see normalize.h.
 *
 * Why not utf8proc_map: it sorts combining marks by exchanges, which is quadratic for a long run of them, and it knows
 * whatever Unicode version is installed. Here each code point is decomposed by utf8proc, runs of marks are sorted by counting
 * classes, and utf8proc composes. Code points that the reference does not know (unicode_is_inert) are cut out before and
 * treated as class 0.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/normalize.h"
#include "text/unicode.h"
#include "text/utf8.h"

struct codes {
	utf8proc_int32_t *list;
	size_t count, capacity;
};

static enum status reserve(struct codes *codes, size_t extra, struct error *err)
{
	size_t need = codes->count + extra;
	if (need <= codes->capacity) return STATUS_OK;
	size_t capacity = codes->capacity * 2 > need ? codes->capacity * 2 : need;
	TRY(mem_grow((void **)&codes->list, capacity + 1, sizeof *codes->list, "normalizer", err)); /* + 1: utf8proc ends with a 0 */
	codes->capacity = capacity;
	return STATUS_OK;
}

static enum status decompose(uint32_t cp, utf8proc_option_t options, struct codes *codes, struct error *err)
{
	int last_class = 0;
	TRY(reserve(codes, 20, err)); /* the longest decomposition has 18 code points (U+FDFA) */
	utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, codes->list + codes->count,
	                                             (utf8proc_ssize_t)(codes->capacity - codes->count), options, &last_class);
	if (n < 0 || (size_t)n > codes->capacity - codes->count)
		return FAIL(err, BAD_INPUT, "normalizer: U+%04X cannot be decomposed: %s", (unsigned)cp, utf8proc_errmsg(n));
	codes->count += (size_t)n;
	return STATUS_OK;
}

static unsigned combining_class(utf8proc_int32_t cp)
{
	return (unsigned)utf8proc_get_property(cp)->combining_class & 255u;
}

/* Stable sort of list[0..n) by combining class, `spare` has room for n. */
static void sort_marks(utf8proc_int32_t *list, size_t n, utf8proc_int32_t *spare)
{
	size_t start[257] = {0};
	for (size_t i = 0; i < n; i++) start[combining_class(list[i]) + 1]++;
	for (size_t c = 1; c < 257; c++) start[c] += start[c - 1];
	for (size_t i = 0; i < n; i++) spare[start[combining_class(list[i])]++] = list[i];
	memcpy(list, spare, n * sizeof *list);
}

/* Canonical order: each maximal run of marks (class > 0) sorted by class. */
static enum status order_marks(struct codes *codes, struct error *err)
{
	utf8proc_int32_t *spare = NULL;
	size_t i = 0;
	while (i < codes->count) {
		size_t from = i;
		bool sorted = true;
		unsigned last = 0;
		for (unsigned c; i < codes->count && (c = combining_class(codes->list[i])) > 0; i++) {
			sorted = sorted && c >= last;
			last = c;
		}
		if (!sorted && !spare) {
			spare = mem_zalloc(codes->count, sizeof *spare, "normalizer", err);
			if (!spare) return STATUS_NO_MEMORY;
		}
		if (!sorted) sort_marks(codes->list + from, i - from, spare);
		if (i == from) i++;
	}
	free(spare);
	return STATUS_OK;
}

/* Writes out what was collected and empties it. */
static enum status flush(struct codes *codes, utf8proc_option_t options, struct buf *out, struct error *err)
{
	if (codes->count == 0) return STATUS_OK;
	TRY(order_marks(codes, err));
	utf8proc_ssize_t n = utf8proc_normalize_utf32(codes->list, (utf8proc_ssize_t)codes->count, options);
	if (n < 0) return FAIL(err, BAD_INPUT, "normalizer: %s", utf8proc_errmsg(n));
	TRY(buf_reserve(out, (size_t)n * 4, err));
	for (utf8proc_ssize_t i = 0; i < n; i++) out->size += utf8_encode((uint32_t)codes->list[i], out->data + out->size);
	out->data[out->size] = 0;
	codes->count = 0;
	return STATUS_OK;
}

/* Length of the ASCII run at text[0..n) that no neighbour can change: the last character may take a mark and stays out. */
static size_t untouched(const char *text, size_t n)
{
	size_t i = 0;
	while (i < n && (unsigned char)text[i] < 0x80) i++;
	return i == n || i == 0 ? i : i - 1;
}

static enum status normalize_into(enum normalizer_kind form, const char *text, size_t n, struct codes *codes, struct buf *out,
                                  struct error *err)
{
	utf8proc_option_t decomposition = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, whole = UTF8PROC_STABLE;
	if (form == NORMALIZER_NFKC || form == NORMALIZER_NFKD) decomposition |= UTF8PROC_COMPAT;
	if (form == NORMALIZER_NFC || form == NORMALIZER_NFKC) whole |= UTF8PROC_COMPOSE;
	size_t i = 0;
	while (i < n) {
		size_t plain = untouched(text + i, n - i);
		if (plain > 0) {
			TRY(flush(codes, whole, out, err));
			TRY(buf_append(out, text + i, plain, err));
			i += plain;
			if (i == n) break;
		}
		uint32_t cp;
		size_t length = utf8_decode(text + i, n - i, &cp);
		if (cp >= 0x7FD && unicode_is_inert(cp)) {
			TRY(flush(codes, whole, out, err));
			TRY(buf_append(out, text + i, length, err));
		} else {
			TRY(decompose(cp, decomposition, codes, err));
		}
		i += length;
	}
	return flush(codes, whole, out, err);
}

enum status unicode_normalize(enum normalizer_kind form, const char *text, size_t n, struct buf *out, struct error *err)
{
	struct codes codes = {0};
	enum status st = normalize_into(form, text, n, &codes, out, err);
	free(codes.list);
	return st;
}
