/* tpl_text.h: building text piece by piece, marks included, and the questions about characters that Python's str answers. */
#ifndef TANDEM_TEXT_TPL_TEXT_H
#define TANDEM_TEXT_TPL_TEXT_H

#include "text/tpl_value.h"

/* `{0}` is empty. Memory is the run's. */
struct tpl_text {
	char *data;
	size_t size, capacity;
	struct tpl_mark *marks;
	size_t mark_count, mark_capacity;
};

/* Well-formed UTF-8; `user` marks it. */
enum status tpl_text_bytes(struct tpl_run *run, struct tpl_text *t, const char *data, size_t n, bool user) NODISCARD;
enum status tpl_text_puts(struct tpl_run *run, struct tpl_text *t, const char *text) NODISCARD;
enum status tpl_text_string(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s) NODISCARD;
/* The bytes [from, to) of `s` with their marks. */
enum status tpl_text_cut(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t from, size_t to) NODISCARD;
enum status tpl_text_repeat(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t times) NODISCARD;
/* The string that was built; `t` must not be used again. */
enum status tpl_text_finish(struct tpl_run *run, struct tpl_text *t, bool markup, struct tpl_value *out) NODISCARD;

/* Is byte `at` of `s` marked? *cursor starts at 0 and moves on with growing `at`. */
bool tpl_marked(const struct tpl_string *s, size_t at, size_t *cursor);

/* str.isspace() of one character: White_Space and the four separators U+001C to U+001F. */
bool tpl_is_space(uint32_t cp);
/* str.isdigit(), isalpha(), isalnum() of one character. */
bool tpl_is_digit(uint32_t cp);
bool tpl_is_alpha(uint32_t cp);
bool tpl_is_alnum(uint32_t cp);
/* Characters that repr() shows as they are. */
bool tpl_is_printable(uint32_t cp);

enum tpl_case { TPL_UPPER, TPL_LOWER, TPL_CAPITALIZE, TPL_TITLE };
/* TITLE is str.title(). Case mappings are those of utf8proc, with the usual expansions (sharp s, ligatures, final sigma). */
enum status tpl_change_case(struct tpl_run *run, const struct tpl_string *s, enum tpl_case to, struct tpl_value *out) NODISCARD;
enum status tpl_text_cased(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t from, size_t to, enum tpl_case how) NODISCARD;
/* Upper, lower (or title) case letter, or neither. */
enum tpl_letter { TPL_LETTER_NONE, TPL_LETTER_UPPER, TPL_LETTER_LOWER };
enum tpl_letter tpl_letter_case(uint32_t cp);

#endif
