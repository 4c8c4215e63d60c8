/* body.h: reading a request body: bytes to JSON, strictly, and typed members of an object.
 *
 * Refused: ill-formed UTF-8, nesting deeper than BODY_MAX_DEPTH (before the parser recurses), a key given twice, anything after the
 * object, anything but an object. A member that is null counts as absent. U+0000 inside strings is text like any other.
 */
#ifndef TANDEM_SERVE_BODY_H
#define TANDEM_SERVE_BODY_H

#include <jansson.h>
#include <stdint.h>

#include "serve/refusal.h"

#define BODY_MAX_DEPTH 128

/* *out is owned by the caller; NULL on failure. 400. */
enum status body_parse(json_t **out, const char *bytes, size_t n, struct refusal *r) NODISCARD;

/* The member, or NULL if it is absent or null. */
const json_t *body_get(const json_t *object, const char *key);

/* What a member may be and where it goes in a struct. */
enum field_kind { FIELD_BOOL, FIELD_INT, FIELD_INT64, FIELD_REAL };
struct field {
	const char *name;
	enum field_kind kind; /* the type at `offset`: bool, int, int64_t, double */
	size_t offset;
	double min, max;      /* of a number */
	unsigned where;       /* bit mask that the caller gives a meaning */
};
/* Reads those rows of the table that have a bit of `where`; what is absent keeps its value. 400 naming the field. A whole number may be
 * written as 5.0; a string is never a number. */
enum status body_read(const json_t *object, const struct field *table, int count, unsigned where, void *out, struct refusal *r) NODISCARD;
/* One value of the kind INT64 with bounds. */
enum status body_whole(const json_t *value, const char *name, int64_t min, int64_t max, int64_t *out, struct refusal *r) NODISCARD;
enum status body_bool(const json_t *object, const char *name, bool *out, struct refusal *r) NODISCARD;
const char *body_type_name(const json_t *value);

#endif
