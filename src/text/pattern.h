/* pattern.h: what Split and Replace look for: a literal text or a regular expression of tokenizer.json.
 *
 * A pattern is immutable once made and may be shared by threads; a `pattern_scratch` belongs to one call. Expressions run in
 * PCRE2's compiled code; when that runs out of its stack, the same match is repeated by the interpreter, which uses the heap.
 * A match that exceeds the limits fails: it is never taken as "no match". Subjects are well-formed UTF-8, validated once at the
 * door, since PCRE2's own check would make a scan quadratic.
 */
#ifndef TANDEM_TEXT_PATTERN_H
#define TANDEM_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct pattern;

enum status pattern_literal(struct pattern **out, const char *text, size_t n, struct error *err) NODISCARD;
enum status pattern_regex(struct pattern **out, const char *text, size_t n, struct error *err) NODISCARD;
struct json_t;
/* From the member "pattern" of a component: {"String": text} or {"Regex": text}. */
enum status pattern_parse(struct pattern **out, const struct json_t *component, const char *where, struct error *err) NODISCARD;
void pattern_destroy(struct pattern **pattern);

struct pattern_scratch;
enum status pattern_scratch_create(struct pattern_scratch **out, struct error *err) NODISCARD;
void pattern_scratch_destroy(struct pattern_scratch **scratch);

/* A walk over all matches in text[0..n), left to right, not overlapping. Start from {.text, .n}. */
struct pattern_walk {
	const char *text;
	size_t n;
	size_t next;     /* where the next search starts */
	size_t last_end; /* end of the match before, + 1; 0 if there was none */
};
/* *found: there was a match and it is text[*start..*end), possibly empty, but never empty at the end of the one before. */
enum status pattern_next(const struct pattern *pattern, struct pattern_scratch *scratch, struct pattern_walk *walk, bool *found,
                         size_t *start, size_t *end, struct error *err) NODISCARD;

/* Appends text[0..n) with every match replaced by the `m` bytes at `with`. */
enum status pattern_replace(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text, size_t n, const char *with,
                            size_t m, struct buf *out, struct error *err) NODISCARD;

#endif
