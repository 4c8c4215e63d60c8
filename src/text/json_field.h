/* json_field.h: typed access to the members of a parsed JSON object, with errors that say where. Borrowed values only. */
#ifndef TANDEM_TEXT_JSON_FIELD_H
#define TANDEM_TEXT_JSON_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* A JSON string; may hold U+0000. */
struct json_text {
	const char *data; /* NUL follows */
	size_t size;
};

bool json_text_is(struct json_text text, const char *literal);

/* `where` names the object in messages. A member that is null counts as absent. */
const json_t *json_field(const json_t *object, const char *key);
enum status json_field_text(const json_t *object, const char *where, const char *key, struct json_text *out, struct error *err) NODISCARD;
/* Absent: *out = fallback. */
enum status json_field_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out, struct error *err) NODISCARD;
enum status json_field_size(const json_t *object, const char *where, const char *key, size_t fallback, size_t *out, struct error *err) NODISCARD;
/* An array; BAD_INPUT if it is absent or something else. */
enum status json_field_array(const json_t *object, const char *where, const char *key, const json_t **out, struct error *err) NODISCARD;

/* A part of a tokenizer: one step or, of the type Sequence, a list of such. `parse` gets every step in order, with its type. */
struct json_sequence {
	const char *what, *list_key; /* its name in messages; the field with the list */
	enum status (*parse)(void *context, const json_t *node, struct json_text type, struct error *err);
};
/* `depth` is 0. BAD_INPUT where they are nested too deep. */
enum status json_field_sequence(const struct json_sequence *sequence, const json_t *node, int depth, void *context, struct error *err) NODISCARD;

#endif
