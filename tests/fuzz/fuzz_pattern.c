/* Fuzzes the patterns of tokenizer.json: the first line of an input is an expression, the rest a text. The expression is refused with a
 * reason, or its matches come in order and on character boundaries, and the walk ends. */
#include <stdbool.h>
#include <string.h>

#include "text/pattern.h"
#include "text/utf8.h"
#include "fuzz/standalone.h"

static bool on_boundary(const struct buf *text, size_t at)
{
	return at == text->size || ((uint8_t)text->data[at] & 0xC0) != 0x80;
}

static void walk_all(const struct pattern *pattern, const struct buf *text)
{
	struct pattern_scratch *scratch;
	struct error err = {0};
	check(pattern_scratch_create(&scratch, &err) == STATUS_OK);
	struct pattern_walk walk = {.text = text->data, .n = text->size};
	size_t done = 0;
	for (size_t count = 0;; count++) {
		bool found;
		size_t start = 0, end = 0;
		enum status st = pattern_next(pattern, scratch, &walk, &found, &start, &end, &err);
		check(st == STATUS_OK || err.text[0]);
		if (st != STATUS_OK || !found) break;
		check(start >= done && end >= start && end <= text->size && count <= 2 * text->size + 2);
		check(on_boundary(text, start) && on_boundary(text, end));
		done = end;
	}
	pattern_scratch_destroy(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct buf regex = {0}, text = {0};
	struct error err = {0};
	struct pattern *pattern;
	const char *begin = (const char *)data, *end = size ? memchr(begin, '\n', size) : NULL;
	size_t n = end ? (size_t)(end - begin) : size;
	check(buf_reserve(&regex, n, &err) == STATUS_OK && utf8_append_lossy(&regex, begin, n, &err) == STATUS_OK);
	check(buf_reserve(&text, 1, &err) == STATUS_OK && utf8_append_lossy(&text, end ? end + 1 : "", end ? size - n - 1 : 0, &err) == STATUS_OK);
	if (pattern_regex(&pattern, regex.data, regex.size, &err) == STATUS_OK) walk_all(pattern, &text);
	else check(err.text[0]);
	pattern_destroy(&pattern);
	buf_fini(&regex);
	buf_fini(&text);
	return 0;
}
