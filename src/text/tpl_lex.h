/* tpl_lex.h: template source to tokens, with Jinja's whitespace control (trim_blocks and lstrip_blocks on, the final newline
 * dropped, CR and CRLF read as LF). Comments and raw blocks are gone afterwards. */
#ifndef TANDEM_TEXT_TPL_LEX_H
#define TANDEM_TEXT_TPL_LEX_H

#include "text/tpl_value.h"

enum tpl_token_kind {
	TPL_TOKEN_DATA,
	TPL_TOKEN_VARIABLE_BEGIN,
	TPL_TOKEN_VARIABLE_END,
	TPL_TOKEN_BLOCK_BEGIN,
	TPL_TOKEN_BLOCK_END,
	TPL_TOKEN_NAME,
	TPL_TOKEN_CONSTANT, /* a string, an int, a float */
	TPL_TOKEN_OPERATOR,
	TPL_TOKEN_END,
};

struct tpl_token {
	enum tpl_token_kind kind;
	int line;
	int op;                /* OPERATOR: one or two characters, TPL_OP */
	struct tpl_value text; /* DATA, NAME: a string; CONSTANT: the value */
};

/* tokens[0..count), the last one END, in the run's memory. Errors have the line in run->line. */
enum status tpl_lex(struct tpl_run *run, const char *source, size_t n, struct tpl_token **tokens, size_t *count) NODISCARD;

#endif
