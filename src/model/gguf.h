/* gguf.h: one GGUF file, checked: metadata fields, tensors, and what a model config and a weight source make of them.
 *
 * Layout (versions 2 and 3, little endian): "GGUF", u32 version, u64 tensor count, u64 field count; fields (key, type, value); tensor
 * entries (name, dimensions from the innermost outwards, type, offset); padding to general.alignment; data. Strings are a u64 length
 * and bytes without a NUL. Everything is untrusted: counts and lengths are compared with what the file holds before anything is
 * allocated or read, nested arrays have a depth limit, names and keys are unique, tensors lie inside the data, aligned, and do not
 * overlap. Version 1 (32-bit lengths) and big-endian files are refused by name; so is one file of a model split into several.
 *
 * Owner: whoever opened it. Immutable after that: any thread may read. Texts point into the file.
 */
#ifndef TANDEM_MODEL_GGUF_H
#define TANDEM_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/dtype.h"
#include "base/log.h"
#include "model/config.h"
#include "model/weight_file.h"
#include "model/shard.h"

#define GGUF_MAX_DIMS 4

/* X(enumerator, name in messages, bytes of a value; 0: not fixed), in the order of the format's numbers */
#define GGUF_TYPE_LIST(X) \
	X(U8, "u8", 1)       \
	X(I8, "i8", 1)       \
	X(U16, "u16", 2)     \
	X(I16, "i16", 2)     \
	X(U32, "u32", 4)     \
	X(I32, "i32", 4)     \
	X(F32, "f32", 4)     \
	X(BOOL, "bool", 1)   \
	X(TEXT, "string", 0) \
	X(ARRAY, "array", 0) \
	X(U64, "u64", 8)     \
	X(I64, "i64", 8)     \
	X(F64, "f64", 8)

enum gguf_type {
#define X(code, name, bytes) GGUF_##code,
	GGUF_TYPE_LIST(X)
#undef X
	GGUF_TYPE_COUNT
};

struct gguf_text {
	const char *data; /* no NUL behind it */
	size_t size;
};

struct gguf_field {
	struct gguf_text key;
	enum gguf_type type;
	enum gguf_type item; /* ARRAY: of its values */
	uint64_t count;      /* ARRAY: how many; else 1 */
	const unsigned char *data; /* the value, or the first of the array; for TEXT its length */
};

struct gguf_tensor {
	char *name;
	uint32_t type;    /* the format's number */
	enum dtype dtype; /* DTYPE_COUNT: a type that tandem does not read */
	int dims;
	int64_t shape[GGUF_MAX_DIMS]; /* from the outermost inwards, as everywhere else in tandem */
	uint64_t begin, bytes;        /* in the data; bytes is 0 where the type's size is not known */
};

struct gguf {
	struct weight_file file; /* not open after gguf_parse */
	struct buf head;         /* what was read of it: fields point into it; empty after gguf_parse */
	const unsigned char *bytes; /* the file's first ones */
	size_t at_hand, size;       /* how many are there, and how many the file has */
	char *path;
	struct gguf_field *fields; /* ascending by key */
	size_t field_count;
	struct gguf_tensor *tensors; /* ascending by name */
	size_t tensor_count;
	uint64_t data_offset; /* of the data in the file */
};

/* Does the file begin as a GGUF file does? False for anything that cannot be read. */
bool gguf_is_file(const char *path);
/* On failure *out is empty. */
enum status gguf_open(struct gguf *out, const char *path, struct error *err) NODISCARD;
/* The same from memory, which must outlive *out (fuzzing). */
enum status gguf_parse(struct gguf *out, const void *bytes, size_t size, const char *name, struct error *err) NODISCARD;
void gguf_close(struct gguf *file);
/* The first `bytes` of a tensor, which has as many. */
enum status gguf_read(const struct gguf *file, const struct gguf_tensor *tensor, void *into, size_t bytes, struct error *err) NODISCARD;

/* ---- metadata ---- */

/* NULL if absent. */
const struct gguf_field *gguf_find(const struct gguf *file, const char *key);
/* On absence *value keeps what the caller put there; a value of another kind or out of range is BAD_INPUT, naming the key. Integers of any
 * width are taken; gguf_number takes floats and integers. */
enum status gguf_int(const struct gguf *file, const char *key, int64_t lo, int64_t hi, int64_t *value, struct error *err) NODISCARD;
enum status gguf_number(const struct gguf *file, const char *key, double *value, struct error *err) NODISCARD;
enum status gguf_bool(const struct gguf *file, const char *key, bool *value, struct error *err) NODISCARD;
enum status gguf_string(const struct gguf *file, const char *key, struct gguf_text *value, struct error *err) NODISCARD;
/* *value is NULL on absence. */
enum status gguf_array(const struct gguf *file, const char *key, enum gguf_type item, const struct gguf_field **value, struct error *err) NODISCARD;
bool gguf_text_is(struct gguf_text text, const char *literal);
/* Item i of an array of texts, in order from i = 0: *at starts as array->data and moves on. */
struct gguf_text gguf_next_text(const unsigned char **at);
int64_t gguf_item_int(const struct gguf_field *array, uint64_t i); /* any integer type */
float gguf_item_f32(const struct gguf_field *array, uint64_t i);

/* ---- tensors ---- */

/* NULL if absent. */
const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name);
/* "Q4_1", or "type 39" for a number that has no name here. */
const char *gguf_type_name(uint32_t type, char text[24]);

/* ---- the model (gguf_model.c) ---- */

/* Llama's converter stores the rows of q and k for interleaved rope: (head, pair, half) in place of (head, half, pair). */
enum gguf_order { GGUF_PLAIN, GGUF_Q_HEADS, GGUF_KV_HEADS };

/* The GGUF name of the parameter that checkpoints of Hugging Face style call `name` (its prefix "model."); false if there is none. */
bool gguf_name_of(const struct gguf *file, const char *name, char *out, size_t size, enum gguf_order *order);

/* The config that the metadata amounts to: read as the config.json that it was made from, so that both have the same meaning, bounds and
 * refusals. Types and bytes of the tensors come with it. `architecture`: as general.architecture says. */
enum status gguf_config(struct model_config *out, const struct gguf *file, const struct log *log, struct error *err) NODISCARD;
/* Are q and k of this architecture stored in the order above? */
bool gguf_interleaves(const struct gguf *file);

#endif
