#include "text/json_field.h"

#include <stdio.h>
#include <string.h>

#define MAX_DEPTH 8 /* of sequences */

bool json_text_is(struct json_text text, const char *literal)
{
	return text.size == strlen(literal) && memcmp(text.data, literal, text.size) == 0;
}

const json_t *json_field(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	return json_is_null(value) ? NULL : value;
}

static enum status wrong(const char *where, const char *key, const char *expected, struct error *err)
{
	return FAIL(err, BAD_INPUT, "%s: \"%s\" is missing or not %s; check the file", where, key, expected);
}

enum status json_field_text(const json_t *object, const char *where, const char *key, struct json_text *out, struct error *err)
{
	const json_t *value = json_field(object, key);
	if (!json_is_string(value)) return wrong(where, key, "a string", err);
	*out = (struct json_text){.data = json_string_value(value), .size = json_string_length(value)};
	return STATUS_OK;
}

enum status json_field_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out, struct error *err)
{
	const json_t *value = json_field(object, key);
	if (value && !json_is_boolean(value)) return wrong(where, key, "true or false", err);
	*out = value ? json_is_true(value) : fallback;
	return STATUS_OK;
}

enum status json_field_size(const json_t *object, const char *where, const char *key, size_t fallback, size_t *out, struct error *err)
{
	const json_t *value = json_field(object, key);
	if (value && (!json_is_integer(value) || json_integer_value(value) < 0)) return wrong(where, key, "a number from 0 up", err);
	*out = value ? (size_t)json_integer_value(value) : fallback;
	return STATUS_OK;
}

enum status json_field_array(const json_t *object, const char *where, const char *key, const json_t **out, struct error *err)
{
	*out = json_field(object, key);
	return json_is_array(*out) ? STATUS_OK : wrong(where, key, "an array", err);
}

enum status json_field_sequence(const struct json_sequence *s, const json_t *node, int depth, void *context, struct error *err)
{
	struct json_text type;
	const json_t *list;
	char where[40];
	if (depth > MAX_DEPTH) return FAIL(err, BAD_INPUT, "%s: sequences are nested deeper than %d", s->what, MAX_DEPTH);
	TRY(json_field_text(node, s->what, "type", &type, err));
	if (!json_text_is(type, "Sequence")) return s->parse(context, node, type, err);
	snprintf(where, sizeof where, "%s Sequence", s->what);
	TRY(json_field_array(node, where, s->list_key, &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) TRY(json_field_sequence(s, json_array_get(list, i), depth + 1, context, err));
	return STATUS_OK;
}
