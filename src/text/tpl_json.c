#include "text/tpl_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/tpl_format.h"
#include "text/tpl_sort.h"
#include "text/utf8.h"

/* ---- in ---- */

static enum status string_in(struct tpl_run *run, const char *data, size_t n, const struct tpl_json_in *how, struct tpl_value *out)
{
	if (utf8_valid_prefix(data, n) < n) return FAIL(run->err, BAD_INPUT, "a string of the request is not UTF-8");
	if (how->copy && n > 0) {
		char *bytes;
		TRY(TPL_NEW(run, bytes, n));
		memcpy(bytes, data, n);
		data = bytes;
	}
	return tpl_string_new(run, data, n, how->user, out);
}

static enum status object_in(struct tpl_run *run, const json_t *json, const struct tpl_json_in *how, struct tpl_value *out)
{
	struct tpl_dict *dict;
	TRY(tpl_dict_new(run, &dict));
	json_t *object = (json_t *)json; /* the iterators of jansson take no const; nothing is changed */
	for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
		struct tpl_value key, value;
		const char *name = json_object_iter_key(it); /* jansson refuses keys with U+0000 */
		TRY(string_in(run, name, strlen(name), how, &key));
		TRY(tpl_from_json(run, json_object_iter_value(it), how, &value));
		TRY(tpl_dict_set(run, dict, key, value));
	}
	*out = (struct tpl_value){.kind = TPL_DICT, .dict = dict};
	return STATUS_OK;
}

static enum status array_in(struct tpl_run *run, const json_t *json, const struct tpl_json_in *how, struct tpl_value *out)
{
	struct tpl_seq *seq;
	TRY(tpl_seq_new(run, json_array_size(json), &seq));
	for (size_t i = 0; i < json_array_size(json); i++) {
		struct tpl_value item;
		TRY(tpl_from_json(run, json_array_get(json, i), how, &item));
		TRY(tpl_seq_push(run, seq, item));
	}
	*out = tpl_seq(TPL_LIST, seq);
	return STATUS_OK;
}

enum status tpl_from_json(struct tpl_run *run, const json_t *json, const struct tpl_json_in *how, struct tpl_value *out)
{
	enum status st = STATUS_OK;
	TRY(tpl_descend(run));
	switch (json ? json_typeof(json) : JSON_NULL) {
	case JSON_OBJECT: st = object_in(run, json, how, out); break;
	case JSON_ARRAY: st = array_in(run, json, how, out); break;
	case JSON_STRING: st = string_in(run, json_string_value(json), json_string_length(json), how, out); break;
	case JSON_INTEGER: *out = tpl_int(json_integer_value(json)); break;
	case JSON_REAL: *out = tpl_float(json_real_value(json)); break;
	case JSON_TRUE: *out = tpl_bool(true); break;
	case JSON_FALSE: *out = tpl_bool(false); break;
	case JSON_NULL: *out = tpl_none(); break;
	}
	run->depth++;
	return st;
}

enum status tpl_parse_json(struct tpl_run *run, const struct tpl_string *text, struct tpl_value *out)
{
	json_error_t why;
	TRY(tpl_pay_bytes(run, text->size));
	json_t *json = text->size ? json_loadb(text->data, text->size, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why) : NULL;
	if (!json) return FAIL(run->err, BAD_INPUT, "a text is not JSON");
	struct tpl_json_in how = {.user = text->mark_count > 0, .copy = true};
	enum status st = tpl_from_json(run, json, &how, out);
	json_decref(json);
	return st;
}

/* ---- out ---- */

static enum status dump_char(struct tpl_run *run, struct tpl_text *t, uint32_t cp, bool user)
{
	static const char named[] = "\"\"\\\\\nn\rr\tt\bb\ff";
	char text[16];
	int n = 0;
	for (const char *p = named; cp < 0x80 && *p && n == 0; p += 2)
		if (cp == (unsigned char)*p) n = snprintf(text, sizeof text, "\\%c", p[1]);
	if (n == 0 && cp < 0x10000) n = snprintf(text, sizeof text, "\\u%04x", cp);
	else if (n == 0) n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
	return tpl_text_bytes(run, t, text, (size_t)n, user);
}

static bool plain(unsigned char c, bool ascii)
{
	return c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7F);
}

static enum status dump_string(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, bool ascii)
{
	size_t cursor = 0;
	TRY(tpl_text_puts(run, t, "\""));
	for (size_t i = 0; i < s->size;) {
		size_t from = i;
		while (i < s->size && plain((unsigned char)s->data[i], ascii)) i++;
		TRY(tpl_text_cut(run, t, s, from, i));
		if (i == s->size) break;
		uint32_t cp;
		bool user = tpl_marked(s, i, &cursor);
		i += utf8_decode(s->data + i, s->size - i, &cp);
		TRY(dump_char(run, t, cp, user));
	}
	return tpl_text_puts(run, t, "\"");
}

static enum status dump_scalar(struct tpl_run *run, struct tpl_text *t, struct tpl_value v)
{
	char text[TPL_NUMBER_BYTES];
	switch (v.kind) {
	case TPL_NONE: return tpl_text_puts(run, t, "null");
	case TPL_BOOL: return tpl_text_puts(run, t, v.boolean ? "true" : "false");
	case TPL_INT: return tpl_text_str(run, t, v);
	case TPL_FLOAT:
		if (isnan(v.real)) return tpl_text_puts(run, t, "NaN");
		if (isinf(v.real)) return tpl_text_puts(run, t, v.real < 0 ? "-Infinity" : "Infinity");
		return tpl_text_bytes(run, t, text, tpl_float_repr(v.real, text), false);
	default: break;
	}
	return FAIL(run->err, BAD_INPUT, "a %s cannot be written as JSON", tpl_kind_name(v));
}

static enum status dump(struct tpl_run *run, struct tpl_text *t, struct tpl_value v, const struct tpl_json_out *how, size_t level);

static enum status new_line(struct tpl_run *run, struct tpl_text *t, const struct tpl_json_out *how, size_t level)
{
	if (!how->indented) return STATUS_OK;
	TRY(tpl_text_puts(run, t, "\n"));
	return tpl_text_repeat(run, t, how->indent, level);
}

static enum status dump_key(struct tpl_run *run, struct tpl_text *t, struct tpl_value key, const struct tpl_json_out *how)
{
	if (key.kind == TPL_STRING) return dump_string(run, t, key.string, how->ensure_ascii);
	TRY(tpl_text_puts(run, t, "\""));
	TRY(dump_scalar(run, t, key));
	return tpl_text_puts(run, t, "\"");
}

static enum status dump_dict(struct tpl_run *run, struct tpl_text *t, const struct tpl_dict *dict, const struct tpl_json_out *how, size_t level)
{
	struct tpl_pair *pairs = dict->pairs;
	if (dict->count == 0) return tpl_text_puts(run, t, "{}");
	if (how->sort_keys) TRY(tpl_sorted_pairs(run, dict, &pairs));
	TRY(tpl_text_puts(run, t, "{"));
	for (size_t i = 0; i < dict->count; i++) {
		if (i) TRY(tpl_text_string(run, t, how->item_separator));
		TRY(new_line(run, t, how, level + 1));
		TRY(dump_key(run, t, pairs[i].key, how));
		TRY(tpl_text_string(run, t, how->key_separator));
		TRY(dump(run, t, pairs[i].value, how, level + 1));
	}
	TRY(new_line(run, t, how, level));
	return tpl_text_puts(run, t, "}");
}

static enum status dump_seq(struct tpl_run *run, struct tpl_text *t, const struct tpl_seq *seq, const struct tpl_json_out *how, size_t level)
{
	if (seq->count == 0) return tpl_text_puts(run, t, "[]");
	TRY(tpl_text_puts(run, t, "["));
	for (size_t i = 0; i < seq->count; i++) {
		if (i) TRY(tpl_text_string(run, t, how->item_separator));
		TRY(new_line(run, t, how, level + 1));
		TRY(dump(run, t, seq->items[i], how, level + 1));
	}
	TRY(new_line(run, t, how, level));
	return tpl_text_puts(run, t, "]");
}

static enum status dump(struct tpl_run *run, struct tpl_text *t, struct tpl_value v, const struct tpl_json_out *how, size_t level)
{
	enum status st;
	TRY(tpl_descend(run));
	if (v.kind == TPL_STRING) st = dump_string(run, t, v.string, how->ensure_ascii);
	else if (v.kind == TPL_DICT) st = dump_dict(run, t, v.dict, how, level);
	else if (v.kind == TPL_LIST || v.kind == TPL_TUPLE) st = dump_seq(run, t, v.seq, how, level);
	else st = dump_scalar(run, t, v);
	run->depth++;
	return st;
}

enum status tpl_dump_json(struct tpl_run *run, struct tpl_text *t, struct tpl_value v, const struct tpl_json_out *how)
{
	return dump(run, t, v, how, 0);
}
