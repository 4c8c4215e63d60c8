#include "model/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

char *fields_one_line(char *text)
{
	char *lead = text; /* of the last character */
	for (char *c = text; *c; c++) {
		if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
		if (((unsigned char)*c & 0xc0) != 0x80) lead = c;
	}
	unsigned char first = (unsigned char)*lead;
	size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : first ? 1 : 0;
	if (strlen(lead) < length) *lead = 0;
	return text;
}

const char *fields_text(char *out, size_t size, const char *text)
{
	snprintf(out, size, "%s", text);
	return fields_one_line(out);
}

enum status fields_parse(json_t **out, const char *text, size_t n, const char *file, struct error *err)
{
	*out = NULL;
	json_error_t error;
	json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	if (!root) {
		if (json_error_code(&error) == json_error_out_of_memory) return FAIL(err, NO_MEMORY, "%s: no memory to read it", file);
		return FAIL(err, BAD_INPUT, "%s: not valid JSON at line %d: %.160s; the file is damaged or incomplete", file, error.line,
		            fields_one_line(error.text));
	}
	if (!json_is_object(root)) {
		json_decref(root);
		return FAIL(err, BAD_INPUT, "%s: expected a JSON object; this is not the file it is taken for", file);
	}
	*out = root;
	return STATUS_OK;
}

static enum status load(json_t **out, const char *path, bool regular, size_t limit, struct error *err)
{
	*out = NULL;
	struct buf text = {0};
	enum status st = regular ? buf_read_regular(&text, path, limit, err) : buf_read_file(&text, path, limit, err);
	if (st == STATUS_OK) st = fields_parse(out, text.data, text.size, path, err);
	buf_fini(&text);
	return st;
}

enum status fields_load(json_t **out, const char *path, size_t limit, struct error *err)
{
	return load(out, path, false, limit, err);
}

enum status fields_load_regular(json_t **out, const char *path, size_t limit, struct error *err)
{
	return load(out, path, true, limit, err);
}

const json_t *fields_get(const struct fields *f, const char *key)
{
	const json_t *value = json_object_get(f->object, key);
	return json_is_null(value) ? NULL : value;
}

/* 2.0 is not 2 to a reader: it keeps its point. */
static void describe_real(char *text, size_t size, double value)
{
	int n = snprintf(text, size, "%.17g", value);
	if (!strpbrk(text, ".e")) snprintf(text + n, size - (size_t)n, ".0");
}

/* The value as JSON in at most `size` bytes. A composite may be huge, so only its kind is told. */
static void describe(char *text, size_t size, const json_t *value)
{
	if (!value) snprintf(text, size, "nothing");
	else if (json_is_object(value)) snprintf(text, size, "an object");
	else if (json_is_array(value)) snprintf(text, size, "a list of %zu", json_array_size(value));
	else if (json_is_integer(value)) snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	else if (json_is_real(value)) describe_real(text, size, json_real_value(value));
	else if (json_is_string(value)) snprintf(text, size, "\"%.60s\"", json_string_value(value));
	else snprintf(text, size, "%s", json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
}

enum status fields_refuse(const struct fields *f, const char *key, const char *expected, const json_t *found, struct error *err)
{
	char text[80];
	describe(text, sizeof text, found);
	return FAIL(err, BAD_INPUT, "%s: %s%s: expected %s, found %s; correct the file", f->file, f->section, key, expected,
	            fields_one_line(text));
}

enum status fields_need(const struct fields *f, const char *key, const char *expected, struct error *err)
{
	return fields_get(f, key) ? STATUS_OK : fields_refuse(f, key, expected, NULL, err);
}

enum status fields_int64(const struct fields *f, const char *key, int64_t lo, int64_t hi, int64_t *value, struct error *err)
{
	const json_t *found = fields_get(f, key);
	if (!found) return STATUS_OK;
	if (!json_is_integer(found) || json_integer_value(found) < lo || json_integer_value(found) > hi) {
		char expected[80];
		snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, lo, hi);
		return fields_refuse(f, key, expected, found, err);
	}
	*value = json_integer_value(found);
	return STATUS_OK;
}

enum status fields_int(const struct fields *f, const char *key, int64_t lo, int64_t hi, int *value, struct error *err)
{
	int64_t wide = *value;
	TRY(fields_int64(f, key, lo, hi, &wide, err));
	*value = (int)wide;
	return STATUS_OK;
}

enum status fields_number(const struct fields *f, const char *key, double lo, bool open_lo, double hi, double *value, struct error *err)
{
	const json_t *found = fields_get(f, key);
	if (!found) return STATUS_OK;
	double number = json_is_number(found) ? json_number_value(found) : NAN;
	if (!(open_lo ? number > lo : number >= lo) || !(number <= hi)) {
		char expected[80];
		snprintf(expected, sizeof expected, "a number %s %g and up to %g", open_lo ? "above" : "from", lo, hi);
		return fields_refuse(f, key, expected, found, err);
	}
	*value = number;
	return STATUS_OK;
}

enum status fields_bool(const struct fields *f, const char *key, bool *value, struct error *err)
{
	const json_t *found = fields_get(f, key);
	if (!found) return STATUS_OK;
	if (!json_is_boolean(found)) return fields_refuse(f, key, "true or false", found, err);
	*value = json_is_true(found);
	return STATUS_OK;
}

enum status fields_string(const struct fields *f, const char *key, const char **value, struct error *err)
{
	const json_t *found = fields_get(f, key);
	if (!found) return STATUS_OK;
	if (!json_is_string(found)) return fields_refuse(f, key, "a string", found, err);
	*value = json_string_value(found);
	return STATUS_OK;
}

enum status fields_copy(const struct fields *f, const char *key, char *out, size_t bytes, struct error *err)
{
	const char *text = NULL;
	char expected[48];
	snprintf(expected, sizeof expected, "a text of at most %zu bytes", bytes - 1);
	TRY(fields_need(f, key, expected, err));
	TRY(fields_string(f, key, &text, err));
	if (strlen(text) >= bytes) return fields_refuse(f, key, expected, fields_get(f, key), err);
	memcpy(out, text, strlen(text) + 1);
	return STATUS_OK;
}

static bool is_listed(const char *key, const char *list)
{
	const size_t n = strlen(key);
	for (const char *at = list; *at; at += strspn(at, ", ")) {
		const size_t length = strcspn(at, ",");
		if (length == n && !strncmp(at, key, n)) return true;
		at += length;
	}
	return false;
}

enum status fields_only(const struct fields *f, const char *known, const char *whose, struct error *err)
{
	const char *key;
	json_t *value;
	char text[64];
	json_object_foreach((json_t *)f->object, key, value)
		if (!is_listed(key, known))
			return FAIL(err, BAD_INPUT, "%s: %s%s: not a field %s; the fields are %s", f->file, f->section, fields_text(text, sizeof text, key), whose, known);
	return STATUS_OK;
}
