#include "text/tpl_value.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "text/tpl_ops.h"
#include "text/utf8.h"

const char *tpl_kind_name(struct tpl_value v)
{
	switch (v.kind) {
#define X(code, name) \
	case TPL_##code: return name;
		TPL_KIND_LIST(X)
#undef X
	}
	return "?";
}

enum status tpl_fail_undefined(struct tpl_run *run, struct tpl_value v)
{
	if (!v.missing) return FAIL(run->err, BAD_INPUT, "a value is undefined");
	return FAIL(run->err, BAD_INPUT, "'%.*s' is undefined", v.missing->size < 64 ? (int)v.missing->size : 64, v.missing->data);
}

/* ---- strings ---- */

static size_t count_chars(const char *data, size_t n)
{
	size_t chars = 0;
	for (size_t i = 0; i < n; i++) chars += ((unsigned char)data[i] & 0xC0) != 0x80;
	return chars;
}

enum status tpl_string_new(struct tpl_run *run, const char *data, size_t n, bool user, struct tpl_value *out)
{
	struct tpl_string *s;
	TRY(tpl_pay_bytes(run, n));
	TRY(TPL_NEW(run, s, 1));
	*s = (struct tpl_string){.data = data, .size = n, .chars = count_chars(data, n)};
	if (user && n > 0) {
		struct tpl_mark *mark;
		TRY(TPL_NEW(run, mark, 1));
		*mark = (struct tpl_mark){.start = 0, .end = n};
		s->marks = mark;
		s->mark_count = 1;
	}
	*out = tpl_string(s);
	return STATUS_OK;
}

/* The marks of [from, to), counted from `from`. */
static enum status cut_marks(struct tpl_run *run, const struct tpl_string *s, size_t from, size_t to, struct tpl_string *out)
{
	size_t first = 0, count = 0;
	while (first < s->mark_count && s->marks[first].end <= from) first++;
	while (first + count < s->mark_count && s->marks[first + count].start < to) count++;
	if (count == 0) return STATUS_OK;
	struct tpl_mark *marks;
	TRY(tpl_pay(run, s->mark_count));
	TRY(TPL_NEW(run, marks, count));
	for (size_t i = 0; i < count; i++) {
		const struct tpl_mark *mark = &s->marks[first + i];
		marks[i].start = mark->start > from ? mark->start - from : 0;
		marks[i].end = (mark->end < to ? mark->end : to) - from;
	}
	out->marks = marks;
	out->mark_count = count;
	return STATUS_OK;
}

enum status tpl_string_cut(struct tpl_run *run, const struct tpl_string *s, size_t from, size_t to, struct tpl_value *out)
{
	if (from == 0 && to == s->size) {
		*out = tpl_string(s);
		return STATUS_OK;
	}
	struct tpl_string *made;
	TRY(TPL_NEW(run, made, 1));
	made->data = s->data + from;
	made->size = to > from ? to - from : 0;
	made->markup = s->markup;
	if (s->chars != s->size) TRY(tpl_pay_bytes(run, made->size));
	made->chars = s->chars == s->size ? made->size : count_chars(made->data, made->size);
	if (made->size > 0) TRY(cut_marks(run, s, from, to, made));
	*out = tpl_string(made);
	return STATUS_OK;
}

enum status tpl_string_offset(struct tpl_run *run, const struct tpl_string *s, size_t index, size_t *out)
{
	*out = index;
	if (s->chars == s->size) return STATUS_OK;
	if (index == s->chars) {
		*out = s->size;
		return STATUS_OK;
	}
	size_t at = 0;
	for (size_t i = 0; i < index; i++) at += utf8_length(s->data[at]);
	*out = at;
	return tpl_pay_bytes(run, at);
}

bool tpl_string_is(const struct tpl_string *s, const char *literal)
{
	return s->size == strlen(literal) && memcmp(s->data, literal, s->size) == 0;
}

/* ---- sequences ---- */

enum status tpl_seq_new(struct tpl_run *run, size_t capacity, struct tpl_seq **out)
{
	TRY(TPL_NEW(run, *out, 1));
	if (capacity > 0) TRY(TPL_NEW(run, (*out)->items, capacity));
	(*out)->capacity = capacity;
	return STATUS_OK;
}

enum status tpl_seq_push(struct tpl_run *run, struct tpl_seq *seq, struct tpl_value v)
{
	if (seq->count == seq->capacity) {
		size_t capacity = seq->capacity ? seq->capacity * 2 : 8;
		struct tpl_value *items;
		TRY(TPL_NEW(run, items, capacity));
		if (seq->count) memcpy(items, seq->items, seq->count * sizeof *items);
		seq->items = items;
		seq->capacity = capacity;
	}
	seq->items[seq->count++] = v;
	return tpl_pay(run, 1);
}

enum status tpl_pair_tuple(struct tpl_run *run, struct tpl_value a, struct tpl_value b, struct tpl_value *out)
{
	struct tpl_seq *seq;
	TRY(tpl_seq_new(run, 2, &seq));
	seq->items[0] = a;
	seq->items[1] = b;
	seq->count = 2;
	*out = tpl_seq(TPL_TUPLE, seq);
	return STATUS_OK;
}

/* ---- dicts ---- */

#define SMALL_DICT 8

bool tpl_hashable(struct tpl_value v)
{
	if (v.kind != TPL_TUPLE) return v.kind != TPL_LIST && v.kind != TPL_DICT && v.kind != TPL_VIEW;
	for (size_t i = 0; i < v.seq->count; i++)
		if (v.seq->items[i].kind == TPL_TUPLE || !tpl_hashable(v.seq->items[i])) return false; /* tuples in tuples: refused, it bounds this */
	return true;
}

/* Equal values have equal hashes, so a whole float hashes as its int. */
static enum status hash_value(struct tpl_run *run, struct tpl_value v, uint64_t *out)
{
	uint64_t hash = 0xcbf29ce484222325u;
	switch (v.kind) {
	case TPL_BOOL: hash = rng_mix(v.boolean); break;
	case TPL_INT: hash = rng_mix((uint64_t)v.integer); break;
	case TPL_FLOAT:
		if (v.real >= -0x1p62 && v.real <= 0x1p62 && v.real == floor(v.real)) hash = rng_mix((uint64_t)(int64_t)v.real);
		else memcpy(&hash, &v.real, sizeof hash);
		break;
	case TPL_STRING:
		TRY(tpl_pay_bytes(run, v.string->size));
		for (size_t i = 0; i < v.string->size; i++) hash = (hash ^ (unsigned char)v.string->data[i]) * 0x100000001b3u;
		hash = rng_mix(hash);
		break;
	case TPL_TUPLE:
		TRY(tpl_pay(run, v.seq->count));
		for (size_t i = 0; i < v.seq->count; i++) {
			uint64_t item;
			TRY(hash_value(run, v.seq->items[i], &item));
			hash = rng_mix(hash + item);
		}
		break;
	default: hash = v.kind; break;
	}
	*out = hash;
	return STATUS_OK;
}

enum status tpl_dict_new(struct tpl_run *run, struct tpl_dict **out)
{
	return TPL_NEW(run, *out, 1);
}

/* The pair with this key, or NULL; *slot is then the free slot of the index, if there is one. */
static enum status find(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_value key, uint64_t hash, struct tpl_pair **out, size_t *slot)
{
	*out = NULL;
	bool equal;
	if (!dict->index) {
		for (size_t i = 0; i < dict->count; i++) {
			if (dict->pairs[i].hash != hash) continue;
			TRY(tpl_equal(run, dict->pairs[i].key, key, &equal));
			if (equal) *out = &dict->pairs[i];
			if (equal) return STATUS_OK;
		}
		return STATUS_OK;
	}
	size_t at = hash & (dict->index_size - 1);
	for (; dict->index[at]; at = (at + 1) & (dict->index_size - 1)) {
		struct tpl_pair *pair = &dict->pairs[dict->index[at] - 1];
		TRY(tpl_pay(run, 1));
		if (pair->hash != hash) continue;
		TRY(tpl_equal(run, pair->key, key, &equal));
		if (equal) *out = pair;
		if (equal) return STATUS_OK;
	}
	*slot = at;
	return STATUS_OK;
}

static enum status check_key(struct tpl_run *run, struct tpl_value key)
{
	return tpl_hashable(key) ? STATUS_OK : FAIL(run->err, BAD_INPUT, "a %s cannot be the key of a dict", tpl_kind_name(key));
}

enum status tpl_dict_get(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_value key, struct tpl_value **out)
{
	uint64_t hash;
	size_t slot;
	struct tpl_pair *pair;
	*out = NULL;
	TRY(check_key(run, key));
	TRY(hash_value(run, key, &hash));
	TRY(find(run, dict, key, hash, &pair, &slot));
	if (pair) *out = &pair->value;
	return STATUS_OK;
}

static enum status grow(struct tpl_run *run, struct tpl_dict *dict)
{
	size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
	struct tpl_pair *pairs;
	if (capacity > UINT32_MAX / 4) return tpl_out_of(run, "memory");
	TRY(tpl_pay(run, capacity));
	TRY(TPL_NEW(run, pairs, capacity));
	if (dict->count) memcpy(pairs, dict->pairs, dict->count * sizeof *pairs);
	dict->pairs = pairs;
	dict->capacity = capacity;
	if (capacity <= SMALL_DICT) return STATUS_OK;
	dict->index_size = capacity * 2;
	TRY(TPL_NEW(run, dict->index, dict->index_size));
	for (size_t i = 0; i < dict->count; i++) {
		size_t at = pairs[i].hash & (dict->index_size - 1);
		while (dict->index[at]) at = (at + 1) & (dict->index_size - 1);
		dict->index[at] = (uint32_t)i + 1;
	}
	return STATUS_OK;
}

enum status tpl_dict_set(struct tpl_run *run, struct tpl_dict *dict, struct tpl_value key, struct tpl_value v)
{
	uint64_t hash;
	size_t slot = 0;
	struct tpl_pair *pair;
	TRY(check_key(run, key));
	TRY(hash_value(run, key, &hash));
	TRY(find(run, dict, key, hash, &pair, &slot));
	if (pair) {
		pair->value = v;
		return STATUS_OK;
	}
	if (dict->count == dict->capacity) {
		TRY(grow(run, dict));
		TRY(find(run, dict, key, hash, &pair, &slot));
	}
	dict->pairs[dict->count++] = (struct tpl_pair){.key = key, .value = v, .hash = hash};
	if (dict->index) dict->index[slot] = (uint32_t)dict->count;
	return tpl_pay(run, 1);
}

/* ---- iteration ---- */

bool tpl_length(struct tpl_value v, size_t *out)
{
	switch (v.kind) {
	case TPL_UNDEFINED: *out = 0; return true;
	case TPL_STRING: *out = v.string->chars; return true;
	case TPL_LIST:
	case TPL_TUPLE:
	case TPL_VIEW: *out = v.seq->count; return true;
	case TPL_DICT: *out = v.dict->count; return true;
	case TPL_RANGE: *out = v.range->count; return true;
	default: return false;
	}
}

bool tpl_iterable(struct tpl_value v)
{
	size_t n;
	return v.kind == TPL_GENERATOR || v.kind == TPL_LOOP || tpl_length(v, &n);
}

enum status tpl_iter_init(struct tpl_run *run, struct tpl_value v, struct tpl_iter *it)
{
	*it = (struct tpl_iter){.of = v};
	if (v.kind == TPL_LOOP) return FAIL(run->err, UNSUPPORTED, "iterating over 'loop' is not implemented");
	if (!tpl_iterable(v)) return FAIL(run->err, BAD_INPUT, "a %s cannot be iterated over", tpl_kind_name(v));
	return STATUS_OK;
}

enum status tpl_iter_next(struct tpl_run *run, struct tpl_iter *it, bool *more, struct tpl_value *out)
{
	struct tpl_value v = it->of;
	size_t n = 0;
	*more = false;
	if (v.kind == TPL_STRING) {
		size_t at = it->at;
		if (at == v.string->size) return STATUS_OK;
		*more = true;
		it->at += utf8_length(v.string->data[at]);
		TRY(tpl_pay(run, 1));
		struct tpl_string plain = *v.string;
		plain.markup = false; /* the characters of a `safe` string are plain ones */
		if (plain.chars > 1) return tpl_string_cut(run, &plain, at, it->at, out);
		struct tpl_string *only;
		TRY(TPL_NEW(run, only, 1));
		*only = plain;
		*out = tpl_string(only);
		return STATUS_OK;
	}
	if (v.kind == TPL_GENERATOR) {
		if (v.seq->taken == v.seq->count) return STATUS_OK;
		*out = v.seq->items[v.seq->taken++];
		*more = true;
		return tpl_pay(run, 1);
	}
	(void)tpl_length(v, &n);
	if (it->at >= n) return STATUS_OK;
	size_t at = it->at++;
	*more = true;
	if (v.kind == TPL_DICT) *out = v.dict->pairs[at].key;
	else if (v.kind == TPL_RANGE) *out = tpl_int(v.range->start + (int64_t)at * v.range->step);
	else *out = v.seq->items[at];
	return tpl_pay(run, 1);
}

enum status tpl_collect(struct tpl_run *run, struct tpl_value v, struct tpl_seq **out)
{
	if (v.kind == TPL_LIST || v.kind == TPL_TUPLE) {
		*out = v.seq;
		return STATUS_OK;
	}
	struct tpl_iter it;
	size_t n = 0;
	TRY(tpl_iter_init(run, v, &it));
	(void)tpl_length(v, &n);
	TRY(tpl_seq_new(run, n, out));
	for (;;) {
		bool more;
		struct tpl_value item;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) return STATUS_OK;
		TRY(tpl_seq_push(run, *out, item));
	}
}
