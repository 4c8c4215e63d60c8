/* pattern_rewrite.h: from the regular expressions of tokenizer.json (Oniguruma, Ruby syntax) to PCRE2.
 *
 * The two agree on the core. They differ, and are rewritten, here: \s \w \d \b \h \v \uHHHH and \p{Script}; a bracket inside
 * a class opens a nested class, `&&` intersects; `(?m)` lets the dot match a newline; `(?i)` inside a group lasts to the
 * group's end, alternatives included; `X{2,3}+` repeats the repetition and is not possessive; `{,n}` counts from 0. Every
 * property gets the code points of newer Unicode versions (unicode.h). What is not known to mean the same is refused by
 * name, never passed on. The result is compiled with UTF, UCP and MULTILINE and a newline of LF.
 *
 * Recursion is bounded by PATTERN_MAX_DEPTH. Thread: any; nothing is kept.
 */
#ifndef TANDEM_TEXT_PATTERN_REWRITE_H
#define TANDEM_TEXT_PATTERN_REWRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define PATTERN_MAX_DEPTH 64

/* Appends the PCRE2 form of the n bytes (valid UTF-8) at `text` to `out`. BAD_INPUT or UNSUPPORTED name what is wrong. */
enum status pattern_rewrite(struct buf *out, const char *text, size_t n, struct error *err) NODISCARD;

/* ---- shared by pattern_rewrite.c and pattern_class.c ---- */

struct rewrite {
	const char *p, *end; /* what is left */
	const char *text;    /* the whole pattern, for messages */
	int depth;           /* of brackets */
	struct error *err;
};

/* One code point is in the class if an item of `items` (inside of a bracket) or one of the alternatives in `others` ("|x|y",
 * each matching exactly one code point) matches it. */
struct char_class {
	struct buf items, others;
};
void char_class_fini(struct char_class *class);
/* Appends an expression for the class. */
enum status char_class_write(const struct char_class *class, struct buf *out, struct error *err) NODISCARD;

/* At '[': adds the bracket expression's members. */
enum status rewrite_bracket(struct rewrite *rw, struct char_class *into) NODISCARD;
/* At '\': if it is a set like \s or \P{L}, consumes it and adds its members; otherwise *is_set is false and nothing happened. */
enum status rewrite_set(struct rewrite *rw, struct char_class *into, bool *is_set) NODISCARD;
/* At '\': one escaped character. Consumes it. UNSUPPORTED if it is anything else. */
enum status rewrite_escaped(struct rewrite *rw, bool in_class, uint32_t *cp) NODISCARD;

#endif
