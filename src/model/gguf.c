#include "model/gguf.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/fields.h"

#define MAX_FIELDS 65536
#define MAX_TENSORS ((uint64_t)1 << 20)
#define MAX_DEPTH 8     /* arrays in arrays; none is known to use two */
#define NAME_TEXT 100   /* of a name from the file in a message */
#define DEFAULT_ALIGNMENT 32
#define FIRST_BYTES ((size_t)1 << 20)    /* of a file, read at once: the metadata of a small vocabulary */
#define MAX_METADATA ((size_t)256 << 20) /* bytes; large vocabularies take 20 MB */

static const struct {
	const char *name;
	size_t bytes;
} types[GGUF_TYPE_COUNT] = {
#define X(code, name, bytes) {name, bytes},
	GGUF_TYPE_LIST(X)
#undef X
};

/* By the format's number; gaps are types that no longer exist. */
static const struct {
	const char *name;
	enum dtype dtype;
} tensor_types[] = {
	[0] = {"F32", DTYPE_F32},    [1] = {"F16", DTYPE_F16},     [2] = {"Q4_0", DTYPE_Q4_0},   [3] = {"Q4_1", DTYPE_Q4_1},
	[6] = {"Q5_0", DTYPE_Q5_0},  [7] = {"Q5_1", DTYPE_Q5_1},   [8] = {"Q8_0", DTYPE_Q8_0},   [9] = {"Q8_1", DTYPE_COUNT},
	[10] = {"Q2_K", DTYPE_COUNT}, [11] = {"Q3_K", DTYPE_COUNT}, [12] = {"Q4_K", DTYPE_Q4_K},  [13] = {"Q5_K", DTYPE_Q5_K},
	[14] = {"Q6_K", DTYPE_Q6_K}, [15] = {"Q8_K", DTYPE_COUNT}, [16] = {"IQ2_XXS", DTYPE_COUNT}, [17] = {"IQ2_XS", DTYPE_COUNT},
	[18] = {"IQ3_XXS", DTYPE_COUNT}, [19] = {"IQ1_S", DTYPE_COUNT}, [20] = {"IQ4_NL", DTYPE_COUNT}, [21] = {"IQ3_S", DTYPE_COUNT},
	[22] = {"IQ2_S", DTYPE_COUNT}, [23] = {"IQ4_XS", DTYPE_COUNT}, [24] = {"I8", DTYPE_COUNT}, [25] = {"I16", DTYPE_COUNT},
	[26] = {"I32", DTYPE_COUNT}, [27] = {"I64", DTYPE_COUNT},  [28] = {"F64", DTYPE_COUNT},  [29] = {"IQ1_M", DTYPE_COUNT},
	[30] = {"BF16", DTYPE_BF16}, [34] = {"TQ1_0", DTYPE_COUNT}, [35] = {"TQ2_0", DTYPE_COUNT}, [39] = {"MXFP4", DTYPE_COUNT},
};

const char *gguf_type_name(uint32_t type, char text[24])
{
	if (type < sizeof tensor_types / sizeof *tensor_types && tensor_types[type].name) return tensor_types[type].name;
	snprintf(text, 24, "type %" PRIu32, type);
	return text;
}

/* ---- a bounded reader ---- */

struct cursor {
	const unsigned char *at, *end; /* of the file: only what lies before `stop` is at hand */
	const unsigned char *stop;
	bool *stopped;
	const char *file;
	struct error *err;
};

static size_t left(const struct cursor *c)
{
	return (size_t)(c->end - c->at);
}

static enum status truncated(const struct cursor *c, const char *what)
{
	return FAIL(c->err, BAD_INPUT, "%s: ends inside %s; the file is truncated", c->file, what);
}

/* Moves on over what was compared with left(). */
static enum status pass(struct cursor *c, size_t bytes)
{
	*c->stopped = bytes > (size_t)(c->stop - c->at);
	if (*c->stopped) return FAIL(c->err, BAD_INPUT, "%s: its metadata takes more than %zu bytes; the file is damaged", c->file, MAX_METADATA);
	c->at += bytes;
	return STATUS_OK;
}

static uint64_t little(const unsigned char *p, size_t bytes)
{
	uint64_t value = 0;
	for (size_t i = bytes; i-- > 0;) value = value << 8 | p[i];
	return value;
}

static enum status read_uint(struct cursor *c, size_t bytes, const char *what, uint64_t *value)
{
	*value = 0;
	if (left(c) < bytes) return truncated(c, what);
	TRY(pass(c, bytes));
	*value = little(c->at - bytes, bytes);
	return STATUS_OK;
}

static enum status read_text(struct cursor *c, const char *what, struct gguf_text *text)
{
	uint64_t n;
	TRY(read_uint(c, 8, what, &n));
	if (n > left(c))
		return FAIL(c->err, BAD_INPUT, "%s: %s: a string of %" PRIu64 " bytes where the file holds %zu more; the file is damaged", c->file, what, n,
		            left(c));
	*text = (struct gguf_text){.data = (const char *)c->at, .size = (size_t)n};
	return pass(c, (size_t)n);
}

/* `text` for a message. */
static const char *shown(struct gguf_text text, char out[NAME_TEXT])
{
	char copy[NAME_TEXT];
	size_t n = text.size < sizeof copy - 1 ? text.size : sizeof copy - 1;
	memcpy(copy, text.data, n);
	copy[n] = 0;
	return fields_text(out, NAME_TEXT, copy);
}

/* ---- fields ---- */

static enum status skip_value(struct cursor *c, enum gguf_type type, int depth, const char *key);

static enum status read_type(struct cursor *c, const char *key, enum gguf_type *type)
{
	uint64_t number;
	*type = GGUF_U8;
	TRY(read_uint(c, 4, key, &number));
	if (number >= GGUF_TYPE_COUNT) return FAIL(c->err, BAD_INPUT, "%s: %s: value type %" PRIu64 " does not exist; the file is damaged", c->file, key, number);
	*type = (enum gguf_type)number;
	return STATUS_OK;
}

static enum status skip_items(struct cursor *c, enum gguf_type item, uint64_t count, int depth, const char *key)
{
	size_t each = types[item].bytes, least = each ? each : item == GGUF_TEXT ? 8 : 12;
	if (count > left(c) / least)
		return FAIL(c->err, BAD_INPUT, "%s: %s: an array of %" PRIu64 " where the file holds %zu more bytes; the file is damaged", c->file, key, count,
		            left(c));
	if (each && item != GGUF_BOOL) return pass(c, (size_t)count * each);
	for (uint64_t i = 0; i < count; i++) TRY(skip_value(c, item, depth, key));
	return STATUS_OK;
}

static enum status skip_value(struct cursor *c, enum gguf_type type, int depth, const char *key)
{
	struct gguf_text text;
	enum gguf_type item;
	uint64_t value;
	if (depth > MAX_DEPTH) return FAIL(c->err, BAD_INPUT, "%s: %s: arrays are nested deeper than %d; the file is damaged", c->file, key, MAX_DEPTH);
	if (type == GGUF_TEXT) return read_text(c, key, &text);
	if (type != GGUF_ARRAY) {
		TRY(read_uint(c, types[type].bytes, key, &value));
		if (type == GGUF_BOOL && value > 1) return FAIL(c->err, BAD_INPUT, "%s: %s: a bool of value %" PRIu64 "; the file is damaged", c->file, key, value);
		return STATUS_OK;
	}
	TRY(read_type(c, key, &item));
	TRY(read_uint(c, 8, key, &value));
	return skip_items(c, item, value, depth + 1, key);
}

static enum status read_field(struct cursor *c, struct gguf_field *field)
{
	char key[NAME_TEXT];
	TRY(read_text(c, "a metadata key", &field->key));
	if (!field->key.size || memchr(field->key.data, 0, field->key.size))
		return FAIL(c->err, BAD_INPUT, "%s: a metadata key is empty or holds a NUL; the file is damaged", c->file);
	shown(field->key, key);
	TRY(read_type(c, key, &field->type));
	field->count = 1;
	field->data = c->at;
	TRY(skip_value(c, field->type, 0, key));
	if (field->type != GGUF_ARRAY) return STATUS_OK;
	field->item = (enum gguf_type)little(field->data, 4);
	field->count = little(field->data + 4, 8);
	field->data += 12;
	return STATUS_OK;
}

static int compare_texts(struct gguf_text a, struct gguf_text b)
{
	int order = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
	return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare_fields(const void *a, const void *b)
{
	return compare_texts(((const struct gguf_field *)a)->key, ((const struct gguf_field *)b)->key);
}

static enum status read_fields(struct gguf *file, struct cursor *c, uint64_t count)
{
	/* a key of one byte, a type and a value of one byte are the least that a field takes */
	if (count > MAX_FIELDS || count > left(c) / 14)
		return FAIL(c->err, BAD_INPUT, "%s: %" PRIu64 " metadata fields in a file of %zu bytes; the file is damaged", c->file, count, file->size);
	file->fields = mem_zalloc((size_t)count, sizeof *file->fields, "GGUF metadata", c->err);
	if (!file->fields) return STATUS_NO_MEMORY;
	for (; file->field_count < count; file->field_count++) TRY(read_field(c, &file->fields[file->field_count]));
	if (count) qsort(file->fields, file->field_count, sizeof *file->fields, compare_fields);
	for (size_t i = 1; i < file->field_count; i++) {
		char key[NAME_TEXT];
		if (compare_fields(&file->fields[i - 1], &file->fields[i]) == 0)
			return FAIL(c->err, BAD_INPUT, "%s: metadata key %s is there twice; the file is damaged", c->file, shown(file->fields[i].key, key));
	}
	return STATUS_OK;
}

/* ---- tensors ---- */

static enum status bad_tensor(const struct cursor *c, const char *name, const char *why)
{
	return FAIL(c->err, BAD_INPUT, "%s: tensor \"%s\": %s; the file is damaged", c->file, name, why);
}

static enum status read_shape(struct cursor *c, struct gguf_tensor *t, const char *name)
{
	uint64_t dims, extent, elements = 1;
	TRY(read_uint(c, 4, name, &dims));
	if (dims < 1 || dims > GGUF_MAX_DIMS) return bad_tensor(c, name, "has no or too many dimensions");
	t->dims = (int)dims;
	for (int i = t->dims - 1; i >= 0; i--) {
		TRY(read_uint(c, 8, name, &extent));
		if (!extent || extent > INT64_MAX || __builtin_mul_overflow(elements, extent, &elements) || elements > INT64_MAX / 8)
			return bad_tensor(c, name, "its dimensions are zero or their product overflows");
		t->shape[i] = (int64_t)extent;
	}
	uint64_t type;
	TRY(read_uint(c, 4, name, &type));
	t->type = (uint32_t)type;
	bool known = type < sizeof tensor_types / sizeof *tensor_types && tensor_types[type].name;
	t->dtype = known ? tensor_types[type].dtype : DTYPE_COUNT;
	if (t->dtype == DTYPE_COUNT) return STATUS_OK; /* its size is not known, and it cannot be read */
	if (t->shape[t->dims - 1] % dtype_block(t->dtype))
		return FAIL(c->err, BAD_INPUT, "%s: tensor \"%s\": rows of %" PRId64 " elements are no whole blocks of %d (%s); the file is damaged", c->file,
		            name, t->shape[t->dims - 1], dtype_block(t->dtype), dtype_name(t->dtype));
	t->bytes = dtype_size(t->dtype, (size_t)elements);
	return STATUS_OK;
}

static enum status read_tensor(struct gguf *file, struct cursor *c)
{
	struct gguf_text text;
	char name[NAME_TEXT];
	struct gguf_tensor *t = &file->tensors[file->tensor_count];
	TRY(read_text(c, "a tensor name", &text));
	shown(text, name);
	if (!text.size || memchr(text.data, 0, text.size)) return bad_tensor(c, name, "its name is empty or holds a NUL");
	t->name = mem_zalloc(text.size + 1, 1, "tensor name", c->err);
	if (!t->name) return STATUS_NO_MEMORY;
	memcpy(t->name, text.data, text.size);
	file->tensor_count++;
	TRY(read_shape(c, t, name));
	return read_uint(c, 8, name, &t->begin);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int compare_offsets(const void *a, const void *b)
{
	const struct gguf_tensor *x = a, *y = b;
	if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static enum status check_places(struct gguf *file, uint64_t alignment, const struct cursor *c)
{
	uint64_t data = file->size > file->data_offset ? file->size - file->data_offset : 0, covered = 0;
	char name[NAME_TEXT], before[NAME_TEXT] = "";
	if (file->tensor_count) qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_offsets);
	for (size_t i = 0; i < file->tensor_count; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		fields_text(name, sizeof name, t->name);
		if (t->begin % alignment) return bad_tensor(c, name, "its offset is not aligned");
		if (t->begin > data || t->bytes > data - t->begin)
			return FAIL(c->err, BAD_INPUT, "%s: tensor \"%s\" takes %" PRIu64 " bytes from byte %" PRIu64 " of the data, the file holds %" PRIu64 "; the file is truncated",
			            c->file, name, t->bytes, t->begin, data);
		if (t->begin < covered)
			return FAIL(c->err, BAD_INPUT, "%s: tensors \"%s\" and \"%s\" overlap; the file is damaged", c->file, before, name);
		covered = t->begin + t->bytes;
		memcpy(before, name, sizeof before);
	}
	return STATUS_OK;
}

static enum status read_tensors(struct gguf *file, struct cursor *c, uint64_t count)
{
	uint64_t alignment;
	int64_t wanted = DEFAULT_ALIGNMENT;
	/* a name of one byte, one dimension, type and offset */
	if (count > MAX_TENSORS || count > left(c) / 33)
		return FAIL(c->err, BAD_INPUT, "%s: %" PRIu64 " tensors in a file of %zu bytes; the file is damaged", c->file, count, file->size);
	TRY(gguf_int(file, "general.alignment", 1, 1 << 20, &wanted, c->err));
	alignment = (uint64_t)wanted;
	if (alignment & (alignment - 1))
		return FAIL(c->err, BAD_INPUT, "%s: general.alignment: expected a power of two, found %" PRIu64 "; the file is damaged", c->file, alignment);
	file->tensors = mem_zalloc((size_t)count, sizeof *file->tensors, "GGUF tensors", c->err);
	if (!file->tensors) return STATUS_NO_MEMORY;
	while (file->tensor_count < count) TRY(read_tensor(file, c));
	file->data_offset = ((uint64_t)(c->at - file->bytes) + alignment - 1) & ~(alignment - 1);
	TRY(check_places(file, alignment, c));
	if (count) qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_names);
	for (size_t i = 1; i < file->tensor_count; i++) {
		char name[NAME_TEXT];
		if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
			return bad_tensor(c, fields_text(name, sizeof name, file->tensors[i].name), "is there twice");
	}
	return STATUS_OK;
}

/* ---- the file ---- */

static enum status check_split(const struct gguf *file, struct error *err)
{
	int64_t parts = 1;
	TRY(gguf_int(file, "split.count", 0, INT32_MAX, &parts, err));
	if (parts <= 1) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "%s: is one of the %" PRId64 " files of a model; merge them into one (gguf-split --merge)", file->path, parts);
}

/* *stopped: it failed because there are more bytes of the file to be read. */
static enum status read_all(struct gguf *file, bool *stopped, struct error *err)
{
	struct cursor c = {.at = file->bytes, .end = file->bytes + file->size, .stop = file->bytes + file->at_hand, .stopped = stopped, .file = file->path, .err = err};
	*stopped = false;
	uint64_t magic, version, tensors, fields;
	TRY(read_uint(&c, 4, "the header", &magic));
	if (memcmp(file->bytes, "GGUF", 4) != 0) return FAIL(err, BAD_INPUT, "%s: does not begin with \"GGUF\"; this is no GGUF file", file->path);
	TRY(read_uint(&c, 4, "the header", &version));
	if (version != 2 && version != 3) {
		bool swapped = version && !(version & 0xffff);
		return FAIL(err, UNSUPPORTED, "%s: GGUF version %" PRIu64 "%s is not implemented; versions 2 and 3 are", file->path,
		            swapped ? (uint64_t)__builtin_bswap32((uint32_t)version) : version, swapped ? " in big-endian order" : "");
	}
	TRY(read_uint(&c, 8, "the header", &tensors));
	TRY(read_uint(&c, 8, "the header", &fields));
	TRY(read_fields(file, &c, fields));
	TRY(check_split(file, err));
	return read_tensors(file, &c, tensors);
}

enum status gguf_parse(struct gguf *out, const void *bytes, size_t size, const char *name, struct error *err)
{
	bool stopped;
	*out = (struct gguf){.bytes = bytes, .at_hand = size, .size = size, .path = mem_strdup(name, "path", err)};
	enum status st = out->path ? read_all(out, &stopped, err) : STATUS_NO_MEMORY;
	if (st != STATUS_OK) gguf_close(out);
	return st;
}

static void forget_parsed(struct gguf *file)
{
	for (size_t i = 0; i < file->tensor_count; i++) free(file->tensors[i].name);
	free(file->tensors);
	free(file->fields);
	file->tensors = NULL;
	file->fields = NULL;
	file->tensor_count = file->field_count = 0;
}

/* Nothing says how long the metadata is, and it is little beside the data: the file's start, twice as much of it as long as that is not all. */
static enum status read_head(struct gguf *file, struct error *err)
{
	bool stopped;
	for (size_t n = FIRST_BYTES;; n *= 2) {
		const size_t have = file->head.size, want = n < file->size ? n : file->size;
		TRY(buf_reserve(&file->head, want - have, err));
		TRY(weight_file_read(&file->file, have, file->head.data + have, want - have, err));
		file->head.size = want;
		file->bytes = (const unsigned char *)file->head.data;
		file->at_hand = want;
		struct error why = {0};
		enum status st = read_all(file, &stopped, &why);
		if (st == STATUS_OK) return st;
		if (!stopped || n >= MAX_METADATA) {
			if (err) *err = why;
			return st;
		}
		forget_parsed(file);
	}
}

enum status gguf_open(struct gguf *out, const char *path, struct error *err)
{
	*out = (struct gguf){0};
	TRY(weight_file_open(&out->file, path, "GGUF", err));
	out->size = out->file.size;
	out->path = mem_strdup(path, "path", err);
	enum status st = out->path ? read_head(out, err) : STATUS_NO_MEMORY;
	if (st != STATUS_OK) gguf_close(out);
	return st;
}

void gguf_close(struct gguf *file)
{
	forget_parsed(file);
	free(file->path);
	buf_fini(&file->head);
	weight_file_close(&file->file);
	*file = (struct gguf){0};
}

bool gguf_is_file(const char *path)
{
	char magic[4];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) return false;
	bool is = read(fd, magic, sizeof magic) == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
	close(fd);
	return is;
}

enum status gguf_read(const struct gguf *file, const struct gguf_tensor *tensor, void *into, size_t bytes, struct error *err)
{
	const size_t begin = (size_t)(file->data_offset + tensor->begin);
	if (begin > file->at_hand || bytes > file->at_hand - begin) return weight_file_read(&file->file, begin, into, bytes, err);
	memcpy(into, file->bytes + begin, bytes);
	return STATUS_OK;
}

/* ---- asking ---- */

const struct gguf_field *gguf_find(const struct gguf *file, const char *key)
{
	const struct gguf_field wanted = {.key = {.data = key, .size = strlen(key)}};
	return file->field_count ? bsearch(&wanted, file->fields, file->field_count, sizeof wanted, compare_fields) : NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name)
{
	const struct gguf_tensor wanted = {.name = (char *)name};
	return file->tensor_count ? bsearch(&wanted, file->tensors, file->tensor_count, sizeof wanted, compare_names) : NULL;
}

static enum status wrong_kind(const struct gguf *file, const struct gguf_field *field, const char *key, const char *expected, struct error *err)
{
	return FAIL(err, BAD_INPUT, "%s: %s: expected %s, found %s %s; the file is damaged", file->path, key, expected,
	            field->type == GGUF_ARRAY ? "an array of" : "a value of type", types[field->type == GGUF_ARRAY ? field->item : field->type].name);
}

static bool integer(enum gguf_type type, const unsigned char *p, int64_t *value)
{
	uint64_t bits = little(p, types[type].bytes);
	switch (type) {
	case GGUF_U8:
	case GGUF_U16:
	case GGUF_U32: *value = (int64_t)bits; return true;
	case GGUF_I8: *value = (int8_t)bits; return true;
	case GGUF_I16: *value = (int16_t)bits; return true;
	case GGUF_I32: *value = (int32_t)bits; return true;
	case GGUF_I64: *value = (int64_t)bits; return true;
	case GGUF_U64: *value = bits > INT64_MAX ? INT64_MAX : (int64_t)bits; return true; /* far out of any range that is asked for */
	default: return false;
	}
}

enum status gguf_int(const struct gguf *file, const char *key, int64_t lo, int64_t hi, int64_t *value, struct error *err)
{
	const struct gguf_field *field = gguf_find(file, key);
	int64_t found;
	if (!field) return STATUS_OK;
	if (!integer(field->type, field->data, &found)) return wrong_kind(file, field, key, "an integer", err);
	if (found < lo || found > hi)
		return FAIL(err, BAD_INPUT, "%s: %s: expected %" PRId64 " to %" PRId64 ", found %" PRId64 "; the file is damaged", file->path, key, lo, hi, found);
	*value = found;
	return STATUS_OK;
}

static double number_f64(const unsigned char *p)
{
	uint64_t bits = little(p, 8);
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

enum status gguf_number(const struct gguf *file, const char *key, double *value, struct error *err)
{
	const struct gguf_field *field = gguf_find(file, key);
	int64_t whole;
	if (!field) return STATUS_OK;
	double found;
	if (field->type == GGUF_F32) found = (double)f32_from_bits((uint32_t)little(field->data, 4));
	else if (field->type == GGUF_F64) found = number_f64(field->data);
	else if (integer(field->type, field->data, &whole)) found = (double)whole;
	else return wrong_kind(file, field, key, "a number", err);
	if (!isfinite(found)) return FAIL(err, BAD_INPUT, "%s: %s: is not finite; the file is damaged", file->path, key);
	*value = found;
	return STATUS_OK;
}

enum status gguf_bool(const struct gguf *file, const char *key, bool *value, struct error *err)
{
	const struct gguf_field *field = gguf_find(file, key);
	if (!field) return STATUS_OK;
	if (field->type != GGUF_BOOL) return wrong_kind(file, field, key, "a bool", err);
	*value = field->data[0];
	return STATUS_OK;
}

bool gguf_text_is(struct gguf_text text, const char *literal)
{
	return text.size == strlen(literal) && memcmp(text.data, literal, text.size) == 0;
}

struct gguf_text gguf_next_text(const unsigned char **at)
{
	struct gguf_text text = {.data = (const char *)*at + 8, .size = (size_t)little(*at, 8)};
	*at += 8 + text.size;
	return text;
}

enum status gguf_string(const struct gguf *file, const char *key, struct gguf_text *value, struct error *err)
{
	const struct gguf_field *field = gguf_find(file, key);
	if (!field) return STATUS_OK;
	if (field->type != GGUF_TEXT) return wrong_kind(file, field, key, "a string", err);
	const unsigned char *at = field->data;
	*value = gguf_next_text(&at);
	return STATUS_OK;
}

enum status gguf_array(const struct gguf *file, const char *key, enum gguf_type item, const struct gguf_field **value, struct error *err)
{
	const struct gguf_field *field = gguf_find(file, key);
	char expected[40];
	*value = NULL;
	if (!field) return STATUS_OK;
	snprintf(expected, sizeof expected, "an array of %s", types[item].name);
	if (field->type != GGUF_ARRAY || field->item != item) return wrong_kind(file, field, key, expected, err);
	*value = field;
	return STATUS_OK;
}

int64_t gguf_item_int(const struct gguf_field *array, uint64_t i)
{
	int64_t value = 0;
	(void)integer(array->item, array->data + i * types[array->item].bytes, &value);
	return value;
}

float gguf_item_f32(const struct gguf_field *array, uint64_t i)
{
	return f32_from_bits((uint32_t)little(array->data + i * 4, 4));
}
