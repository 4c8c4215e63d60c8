/* tokens.h: the tokenizers of tests/data/tokenizer, and what they make of texts and ids; each ends the test on failure. The caller frees what it gets. */
#ifndef TANDEM_TESTS_TOKENS_H
#define TANDEM_TESTS_TOKENS_H

#include "text/tokenizer.h"

#define TOKENS_FOLDER "tests/data/tokenizer"

struct tokenizer *tokens_open(const char *name);
struct token_list tokens_encode(const struct tokenizer *t, const char *text, size_t n, bool special);
struct buf tokens_decode(const struct tokenizer *t, const struct token_list *ids, bool skip);
void tokens_assert_text(const char *what, const struct buf *got, const char *want, size_t n);

#endif
