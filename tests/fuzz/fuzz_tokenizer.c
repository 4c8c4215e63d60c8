/* Fuzzes the tokenizer: the first line of an input is a tokenizer.json, the rest a text. Whatever they are, the file is refused with a
 * reason or it works: every id has a text, decoding gives valid UTF-8, and the streamed pieces joined are the whole. */
#include <stdbool.h>
#include <string.h>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "fuzz/standalone.h"

static void check_decoding(const struct tokenizer *t, const struct token_list *ids, bool skip)
{
	struct buf whole = {0}, streamed = {0};
	struct error err = {0};
	struct detokenizer *d;
	enum status st = tokenizer_decode(t, ids->ids, ids->count, skip, &whole, &err);
	check(st == STATUS_OK || err.text[0]);
	check(utf8_valid_prefix(whole.data ? whole.data : "", whole.size) == whole.size);
	check(detokenizer_create(&d, t, skip, &err) == STATUS_OK);
	for (size_t i = 0; st == STATUS_OK && i <= ids->count; i++) {
		size_t before = streamed.size;
		st = i < ids->count ? detokenizer_push(d, ids->ids[i], &streamed, &err) : detokenizer_finish(d, &streamed, &err);
		check(utf8_valid_prefix(streamed.data ? streamed.data + before : "", streamed.size - before) == streamed.size - before);
	}
	check(st != STATUS_OK || (whole.size == streamed.size && (!whole.size || !memcmp(whole.data, streamed.data, whole.size))));
	detokenizer_destroy(&d);
	buf_fini(&whole);
	buf_fini(&streamed);
}

static void check_text(const struct tokenizer *t, const char *text, size_t n)
{
	struct token_list ids = {0};
	struct error err = {0};
	if (tokenizer_encode(t, text, n, true, &ids, &err) != STATUS_OK) check(err.text[0] && ids.count == 0);
	for (size_t i = 0; i < ids.count; i++) check(ids.ids[i] >= 0);
	for (int32_t id = -1; id < 40; id++) check(token_list_push(&ids, id, &err) == STATUS_OK);
	check_decoding(t, &ids, false);
	check_decoding(t, &ids, true);
	token_list_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *json = (const char *)data, *end = size ? memchr(json, '\n', size) : NULL;
	size_t n = end ? (size_t)(end - json) : size;
	struct tokenizer *t;
	struct error err = {0};
	if (tokenizer_parse(&t, json, n, "input", NULL, &err) != STATUS_OK) {
		check(t == NULL && err.text[0]);
		return 0;
	}
	check(tokenizer_vocab_size(t) >= 0);
	check_text(t, end ? end + 1 : "", end ? size - n - 1 : 0);
	check_text(t, "<s>The cat's 12 \xE2\x96\x81\xC3\xA9\xFF\n  </s>", 28);
	tokenizer_destroy(&t);
	return 0;
}
