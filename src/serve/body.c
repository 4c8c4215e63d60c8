#include "serve/body.h"

#include <math.h>
#include <string.h>

#include "text/utf8.h"

/* The deepest nesting of brackets outside strings; bytes that are no JSON do not matter, the parser finds them. */
static int depth_of(const char *bytes, size_t n)
{
	int depth = 0, deepest = 0;
	bool quoted = false;
	for (size_t i = 0; i < n; i++) {
		char c = bytes[i];
		if (quoted) {
			if (c == '\\') i++;
			else if (c == '"') quoted = false;
		} else if (c == '"') {
			quoted = true;
		} else if (c == '[' || c == '{') {
			if (++depth > deepest) deepest = depth;
		} else if (c == ']' || c == '}') {
			depth--;
		}
		if (deepest > BODY_MAX_DEPTH) break;
	}
	return deepest;
}

enum status body_parse(json_t **out, const char *bytes, size_t n, struct refusal *r)
{
	json_error_t why;
	*out = NULL;
	if (!n) return refuse(r, 400, NULL, "the body is empty; send a JSON object");
	size_t valid = utf8_valid_prefix(bytes, n);
	if (valid < n) return refuse(r, 400, NULL, "the body is not valid UTF-8 at byte %zu; encode it as UTF-8", valid);
	if (depth_of(bytes, n) > BODY_MAX_DEPTH)
		return refuse(r, 400, NULL, "the body is nested deeper than %d levels; flatten it", BODY_MAX_DEPTH);
	json_t *root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (!root) {
		/* jansson's own text quotes the body. */
		enum json_error_code code = json_error_code(&why);
		if (code == json_error_out_of_memory) return refuse_memory(r);
		return refuse(r, 400, NULL, "the body is not a valid JSON object: %s at line %d, column %d",
		              code == json_error_duplicate_key ? "a key is given twice" : code == json_error_numeric_overflow ? "a number is out of range"
		                                                                         : code == json_error_end_of_input_expected ? "something follows the object"
		                                                                                                                    : "syntax error",
		              why.line, why.column);
	}
	if (!json_is_object(root)) {
		json_decref(root);
		return refuse(r, 400, NULL, "the body is not a JSON object; send one");
	}
	*out = root;
	return STATUS_OK;
}

const json_t *body_get(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	return json_is_null(value) ? NULL : value;
}

const char *body_type_name(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "an array";
	case JSON_STRING: return "a string";
	case JSON_INTEGER:
	case JSON_REAL: return "a number";
	case JSON_TRUE:
	case JSON_FALSE: return "a boolean";
	case JSON_NULL: break;
	}
	return "null";
}

enum status body_whole(const json_t *value, const char *name, int64_t min, int64_t max, int64_t *out, struct refusal *r)
{
	int64_t number;
	if (json_is_integer(value)) {
		number = json_integer_value(value);
	} else if (json_is_real(value)) {
		double real = json_real_value(value);
		if (real != floor(real) || fabs(real) > 9007199254740992.0)
			return refuse(r, 400, name, "%s must be a whole number from %lld to %lld", name, (long long)min, (long long)max);
		number = (int64_t)real;
	} else {
		return refuse(r, 400, name, "%s must be a whole number, not %s", name, body_type_name(value));
	}
	if (number < min || number > max)
		return refuse(r, 400, name, "%s is %lld; it must be from %lld to %lld", name, (long long)number, (long long)min, (long long)max);
	*out = number;
	return STATUS_OK;
}

static enum status read_real(const json_t *value, const struct field *f, double *out, struct refusal *r)
{
	if (!json_is_number(value)) return refuse(r, 400, f->name, "%s must be a number, not %s", f->name, body_type_name(value));
	double number = json_number_value(value);
	if (!(number >= f->min && number <= f->max)) return refuse(r, 400, f->name, "%s is %.9g; it must be at least %g and at most %g", f->name, number, f->min, f->max);
	*out = number;
	return STATUS_OK;
}

enum status body_bool(const json_t *object, const char *name, bool *out, struct refusal *r)
{
	const json_t *value = body_get(object, name);
	if (!value) return STATUS_OK;
	if (!json_is_boolean(value)) return refuse(r, 400, name, "%s must be a boolean, not %s", name, body_type_name(value));
	*out = json_is_true(value);
	return STATUS_OK;
}

static enum status read_field(const json_t *object, const struct field *f, void *place, struct refusal *r)
{
	const json_t *value = body_get(object, f->name);
	int64_t number;
	if (!value) return STATUS_OK;
	switch (f->kind) {
	case FIELD_BOOL: return body_bool(object, f->name, place, r);
	case FIELD_REAL: return read_real(value, f, place, r);
	case FIELD_INT:
		TRY(body_whole(value, f->name, (int64_t)f->min, (int64_t)f->max, &number, r));
		*(int *)place = (int)number;
		break;
	case FIELD_INT64:
		TRY(body_whole(value, f->name, f->min <= -0x1p63 ? INT64_MIN : (int64_t)f->min, f->max >= 0x1p63 ? INT64_MAX : (int64_t)f->max, &number, r));
		*(int64_t *)place = number;
		break;
	}
	return STATUS_OK;
}

enum status body_read(const json_t *object, const struct field *table, int count, unsigned where, void *out, struct refusal *r)
{
	for (int i = 0; i < count; i++)
		if (table[i].where & where) TRY(read_field(object, &table[i], (char *)out + table[i].offset, r));
	return STATUS_OK;
}
