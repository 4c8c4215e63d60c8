/* fields.h: typed, strict reading of JSON objects (config.json, index files, safetensors headers, prescreen's files). Internal.
 *
 * Every getter refuses a value of the wrong type or out of range with one line: file, key, expected, found. Integers must be written
 * as integers: 4096.0, "4096", true and 2^62 are errors, not 4096. Absent and null are the same unless a caller asks.
 */
#ifndef TANDEM_MODEL_FIELDS_H
#define TANDEM_MODEL_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* The object that fields are read from, and how to call it in a message: `file: section.key`. All borrowed. */
struct fields {
	const json_t *object;
	const char *file;
	const char *section; /* "" for the top level, else "text_config." */
};

/* Duplicate keys are refused; the top level must be an object. The caller drops *out with json_decref. */
enum status fields_parse(json_t **out, const char *text, size_t n, const char *file, struct error *err) NODISCARD;
/* The same from a file of at most `limit` bytes; or from one of a model's (buf_read_regular). */
enum status fields_load(json_t **out, const char *path, size_t limit, struct error *err) NODISCARD;
enum status fields_load_regular(json_t **out, const char *path, size_t limit, struct error *err) NODISCARD;

/* NULL when absent or null. */
const json_t *fields_get(const struct fields *f, const char *key);

/* On absence *value keeps what the caller put there (its default). */
enum status fields_int(const struct fields *f, const char *key, int64_t lo, int64_t hi, int *value, struct error *err) NODISCARD;
enum status fields_int64(const struct fields *f, const char *key, int64_t lo, int64_t hi, int64_t *value, struct error *err) NODISCARD;
/* Finite, lo < value <= hi (open_lo) or lo <= value <= hi. */
enum status fields_number(const struct fields *f, const char *key, double lo, bool open_lo, double hi, double *value,
                          struct error *err) NODISCARD;
enum status fields_bool(const struct fields *f, const char *key, bool *value, struct error *err) NODISCARD;
/* Borrowed from the object. */
enum status fields_string(const struct fields *f, const char *key, const char **value, struct error *err) NODISCARD;
/* A string that must be there and fit: `bytes` with its end. */
enum status fields_copy(const struct fields *f, const char *key, char *out, size_t bytes, struct error *err) NODISCARD;
/* BAD_INPUT for a key that is none of `known` ("a, b, c"); `whose` says in the message what they are fields of: "of a target", "here". */
enum status fields_only(const struct fields *f, const char *known, const char *whose, struct error *err) NODISCARD;
/* BAD_INPUT if absent or null. */
enum status fields_need(const struct fields *f, const char *key, const char *expected, struct error *err) NODISCARD;

/* Names and values come from a file: whatever could break the one line of a message becomes '?', in place; a UTF-8
 * character that was cut at the end goes. Returns text. */
char *fields_one_line(char *text);
/* `text` for use in a message: at most size - 1 bytes, no control characters. Returns out. */
const char *fields_text(char *out, size_t size, const char *text);
/* `file: section.key: expected E, found F`, where F is the value as JSON, shortened. */
enum status fields_refuse(const struct fields *f, const char *key, const char *expected, const json_t *found, struct error *err);

#endif
