#include "unit/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "text/utf8.h"

struct tokenizer *tokens_open(const char *name)
{
	char path[256];
	struct tokenizer *t;
	struct error err = {0};
	snprintf(path, sizeof path, TOKENS_FOLDER "/%s.json", name);
	if (tokenizer_open(&t, path, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	return t;
}

struct token_list tokens_encode(const struct tokenizer *t, const char *text, size_t n, bool special)
{
	struct token_list ids = {0};
	struct error err = {0};
	if (tokenizer_encode(t, text, n, special, &ids, &err) != STATUS_OK) fail_msg("%s", err.text);
	return ids;
}

struct buf tokens_decode(const struct tokenizer *t, const struct token_list *ids, bool skip)
{
	struct buf text = {0};
	struct error err = {0};
	if (tokenizer_decode(t, ids->ids, ids->count, skip, &text, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(utf8_valid_prefix(text.data, text.size), text.size);
	return text;
}

void tokens_assert_text(const char *what, const struct buf *got, const char *want, size_t n)
{
	if (got->size != n || (n && memcmp(got->data, want, n) != 0))
		fail_msg("%s: got \"%.*s\", expected \"%.*s\"", what, (int)got->size, got->data, (int)n, want);
}
