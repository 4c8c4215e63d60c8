#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/json_field.h"
#include "text/pattern_rewrite.h"
#include "text/utf8.h"

/* The interpreter keeps its backtracking frames on the heap; this is the most that one match may take. */
#define HEAP_LIMIT_KIB (256u << 10)
#define MATCH_LIMIT 200000000u
#define SHORT_LITERAL 8

struct pattern {
	char *text; /* literal; NULL for an expression */
	size_t size;
	pcre2_code *code;
	bool jit;
};

struct pattern_scratch {
	pcre2_match_data *data;
	pcre2_match_context *context;
};

enum status pattern_literal(struct pattern **out, const char *text, size_t n, struct error *err)
{
	*out = NULL;
	if (n == 0) return FAIL(err, UNSUPPORTED, "pattern: an empty literal matches everywhere; name what to look for");
	struct pattern *made = mem_zalloc(1, sizeof *made, "pattern", err);
	if (!made) return STATUS_NO_MEMORY;
	made->text = mem_zalloc(n, 1, "pattern", err);
	if (!made->text) {
		pattern_destroy(&made);
		return STATUS_NO_MEMORY;
	}
	memcpy(made->text, text, n);
	made->size = n;
	*out = made;
	return STATUS_OK;
}

static enum status compile(struct pattern *made, const struct buf *source, const char *original, struct error *err)
{
	int code;
	PCRE2_SIZE offset;
	enum status st = STATUS_OK;
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	if (!context) return FAIL(err, NO_MEMORY, "pattern: no memory for a compile context");
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	made->code = pcre2_compile((PCRE2_SPTR)source->data, source->size, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, context);
	pcre2_compile_context_free(context);
	if (!made->code) {
		PCRE2_UCHAR message[128] = {0};
		pcre2_get_error_message(code, message, sizeof message);
		st = FAIL(err, UNSUPPORTED, "pattern: %s, in %.200s", (const char *)message, original);
	} else {
		made->jit = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;
	}
	return st;
}

enum status pattern_regex(struct pattern **out, const char *text, size_t n, struct error *err)
{
	enum status st;
	struct buf source = {0};
	*out = NULL;
	struct pattern *made = mem_zalloc(1, sizeof *made, "pattern", err);
	if (!made) return STATUS_NO_MEMORY;
	TRY_GOTO(pattern_rewrite(&source, text, n, err), out);
	TRY_GOTO(compile(made, &source, text, err), out);
	*out = made;
	made = NULL;
out:
	pattern_destroy(&made);
	buf_fini(&source);
	return st;
}

enum status pattern_parse(struct pattern **out, const struct json_t *component, const char *where, struct error *err)
{
	struct json_text text;
	*out = NULL;
	const json_t *node = json_field(component, "pattern");
	if (!json_is_object(node)) return FAIL(err, BAD_INPUT, "%s: \"pattern\" is missing or not an object; check the file", where);
	if (json_field(node, "String")) {
		TRY(json_field_text(node, where, "String", &text, err));
		return pattern_literal(out, text.data, text.size, err);
	}
	TRY(json_field_text(node, where, "Regex", &text, err));
	return pattern_regex(out, text.data, text.size, err);
}

void pattern_destroy(struct pattern **pattern)
{
	if (!*pattern) return;
	pcre2_code_free((*pattern)->code);
	free((*pattern)->text);
	free(*pattern);
	*pattern = NULL;
}

enum status pattern_scratch_create(struct pattern_scratch **out, struct error *err)
{
	*out = NULL;
	struct pattern_scratch *made = mem_zalloc(1, sizeof *made, "pattern scratch", err);
	if (!made) return STATUS_NO_MEMORY;
	made->data = pcre2_match_data_create(1, NULL);
	made->context = pcre2_match_context_create(NULL);
	if (!made->data || !made->context) {
		pattern_scratch_destroy(&made);
		return FAIL(err, NO_MEMORY, "pattern scratch: no memory for match data");
	}
	pcre2_set_match_limit(made->context, MATCH_LIMIT);
	pcre2_set_depth_limit(made->context, MATCH_LIMIT);
	pcre2_set_heap_limit(made->context, HEAP_LIMIT_KIB);
	*out = made;
	return STATUS_OK;
}

void pattern_scratch_destroy(struct pattern_scratch **scratch)
{
	if (!*scratch) return;
	pcre2_match_data_free((*scratch)->data);
	pcre2_match_context_free((*scratch)->context);
	free(*scratch);
	*scratch = NULL;
}

/* memmem has to look at a short pattern anew for each call, and these are many: here are marks of one to three bytes. */
static const char *find_literal(const struct pattern *pattern, const char *text, size_t n)
{
	if (pattern->size > SHORT_LITERAL) return memmem(text, n, pattern->text, pattern->size);
	while (n >= pattern->size) {
		const char *hit = memchr(text, pattern->text[0], n - pattern->size + 1);
		if (!hit || memcmp(hit, pattern->text, pattern->size) == 0) return hit;
		n -= (size_t)(hit + 1 - text);
		text = hit + 1;
	}
	return NULL;
}

/* One search from walk->next on. */
static enum status search(const struct pattern *pattern, struct pattern_scratch *scratch, const struct pattern_walk *walk, bool *found,
                          size_t *start, size_t *end, struct error *err)
{
	PCRE2_SPTR text = (PCRE2_SPTR)walk->text;
	*found = false;
	if (pattern->text) {
		const char *hit = find_literal(pattern, walk->text + walk->next, walk->n - walk->next);
		*found = hit != NULL;
		if (!hit) return STATUS_OK;
		*start = (size_t)(hit - walk->text);
		*end = *start + pattern->size;
		return STATUS_OK;
	}
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;
	if (pattern->jit) rc = pcre2_jit_match(pattern->code, text, walk->n, walk->next, 0, scratch->data, scratch->context);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(pattern->code, text, walk->n, walk->next, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->data, scratch->context);
	if (rc == PCRE2_ERROR_NOMATCH) return STATUS_OK;
	if (rc < 0) {
		PCRE2_UCHAR message[128] = {0};
		pcre2_get_error_message(rc, message, sizeof message);
		return FAIL(err, BAD_INPUT, "tokenizer: the text is too much for its split pattern (%s at byte %zu); send a shorter text",
		            (const char *)message, walk->next);
	}
	const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(scratch->data);
	*found = true;
	*start = pair[0];
	*end = pair[1];
	return STATUS_OK;
}

enum status pattern_next(const struct pattern *pattern, struct pattern_scratch *scratch, struct pattern_walk *walk, bool *found,
                         size_t *start, size_t *end, struct error *err)
{
	*found = false;
	while (walk->next <= walk->n) {
		TRY(search(pattern, scratch, walk, found, start, end, err));
		if (!*found) {
			walk->next = walk->n + 1;
			return STATUS_OK;
		}
		if (*start != *end || walk->last_end != *end + 1) {
			walk->next = *end;
			walk->last_end = *end + 1;
			return STATUS_OK;
		}
		/* Empty right after a match: look again one character on. */
		walk->next += walk->next < walk->n ? utf8_length(walk->text[walk->next]) : 1;
		*found = false;
	}
	return STATUS_OK;
}

enum status pattern_replace(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text, size_t n, const char *with,
                            size_t m, struct buf *out, struct error *err)
{
	struct pattern_walk walk = {.text = text, .n = n};
	size_t done = 0;
	while (n > 0) { /* nothing matches in an empty text, not even an empty match */
		bool found;
		size_t start = 0, end = 0;
		TRY(pattern_next(pattern, scratch, &walk, &found, &start, &end, err));
		if (!found) break;
		TRY(buf_append(out, text + done, start - done, err));
		TRY(buf_append(out, with, m, err));
		done = end;
	}
	return buf_append(out, text + done, n - done, err);
}
