#include "model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/fields.h"

#define NAME_TEXT 100 /* of a tensor's name in a message */

/* Bits per element of the format's types; sub-byte ones must fill whole bytes. */
static const struct {
	const char *name;
	unsigned bits;
	enum dtype dtype;
} types[] = {
	{"F32", 32, DTYPE_F32},           {"F16", 16, DTYPE_F16},           {"BF16", 16, DTYPE_BF16},
	{"BOOL", 8, DTYPE_COUNT},         {"U8", 8, DTYPE_COUNT},           {"I8", 8, DTYPE_COUNT},
	{"F8_E5M2", 8, DTYPE_COUNT},      {"F8_E4M3", 8, DTYPE_COUNT},      {"F8_E8M0", 8, DTYPE_COUNT},
	{"F8_E4M3FNUZ", 8, DTYPE_COUNT},  {"F8_E5M2FNUZ", 8, DTYPE_COUNT},  {"F4", 4, DTYPE_COUNT},
	{"F6_E2M3", 6, DTYPE_COUNT},      {"F6_E3M2", 6, DTYPE_COUNT},      {"I16", 16, DTYPE_COUNT},
	{"U16", 16, DTYPE_COUNT},         {"I32", 32, DTYPE_COUNT},         {"U32", 32, DTYPE_COUNT},
	{"F64", 64, DTYPE_COUNT},         {"I64", 64, DTYPE_COUNT},         {"U64", 64, DTYPE_COUNT},
	{"C64", 64, DTYPE_COUNT},
};
#define TYPES (sizeof types / sizeof *types)

/* Where a message points. */
struct place {
	const char *file;
	char tensor[NAME_TEXT];
	struct error *err;
};

void safetensors_shape_text(char *out, size_t size, const struct safetensors_entry *entry)
{
	size_t n = (size_t)snprintf(out, size, "[");
	for (int i = 0; i < entry->dims && n < size; i++) {
		if (i == SAFETENSORS_MAX_DIMS) {
			n += (size_t)snprintf(out + n, size - n, ", ...");
			break;
		}
		n += (size_t)snprintf(out + n, size - n, "%s%" PRId64, i ? ", " : "", entry->shape[i]);
	}
	if (n < size) snprintf(out + n, size - n, "]");
}

static enum status refuse(const struct place *at, const char *what)
{
	return FAIL(at->err, BAD_INPUT, "%s: tensor \"%s\": %s; the file is damaged", at->file, at->tensor, what);
}

/* Elements, from the shape; a zero dimension is legal. */
static enum status read_shape(struct safetensors_entry *entry, const json_t *shape, uint64_t *elements, const struct place *at)
{
	if (!json_is_array(shape)) return refuse(at, "expected a list \"shape\"");
	size_t dims = json_array_size(shape);
	entry->dims = dims < 1000 ? (int)dims : 1000;
	*elements = 1;
	bool overflow = false, empty = false;
	for (size_t i = 0; i < dims; i++) {
		const json_t *item = json_array_get(shape, i);
		if (!json_is_integer(item) || json_integer_value(item) < 0) return refuse(at, "shape holds something other than sizes");
		int64_t extent = json_integer_value(item);
		if (i < SAFETENSORS_MAX_DIMS) entry->shape[i] = extent;
		if (extent == 0) empty = true;
		else overflow |= __builtin_mul_overflow(*elements, (uint64_t)extent, elements);
	}
	if (overflow) return refuse(at, "the product of its shape overflows");
	if (empty) *elements = 0;
	return STATUS_OK;
}

static enum status read_offsets(struct safetensors_entry *entry, const json_t *offsets, uint64_t data_size, const struct place *at)
{
	const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
	bool good = json_array_size(offsets) == 2 && json_is_integer(begin) && json_is_integer(end) && json_integer_value(begin) >= 0;
	if (!good) return refuse(at, "data_offsets: expected [begin, end] with 0 <= begin");
	if (json_integer_value(end) < json_integer_value(begin)) return refuse(at, "data_offsets: the end lies before the begin");
	entry->begin = (uint64_t)json_integer_value(begin);
	entry->end = (uint64_t)json_integer_value(end);
	if (entry->end > data_size)
		return FAIL(at->err, BAD_INPUT,
		            "%s: tensor \"%s\" ends at byte %" PRIu64 " of the data, the file holds %" PRIu64 "; the file is truncated", at->file, at->tensor,
		            entry->end, data_size);
	return STATUS_OK;
}

static enum status read_entry(struct safetensors_entry *entry, const json_t *object, uint64_t data_size, const struct place *at)
{
	if (!json_is_object(object)) return refuse(at, "expected an object");
	const char *type = json_string_value(json_object_get(object, "dtype"));
	if (!type) return refuse(at, "expected a string \"dtype\"");
	fields_text(entry->type, sizeof entry->type, type);
	uint64_t elements = 0, bits;
	TRY(read_shape(entry, json_object_get(object, "shape"), &elements, at));
	TRY(read_offsets(entry, json_object_get(object, "data_offsets"), data_size, at));

	size_t t = 0;
	while (t < TYPES && strcmp(types[t].name, type) != 0) t++;
	entry->dtype = t < TYPES ? types[t].dtype : DTYPE_COUNT;
	if (t == TYPES) return STATUS_OK; /* newer than this table: its size cannot be checked, and it cannot be read */
	bool whole = !__builtin_mul_overflow(elements, (uint64_t)types[t].bits, &bits) && bits % 8 == 0;
	if (whole && bits / 8 == entry->end - entry->begin) return STATUS_OK;
	char shape[120];
	safetensors_shape_text(shape, sizeof shape, entry);
	return FAIL(at->err, BAD_INPUT, "%s: tensor \"%s\": %s of %s does not take the %" PRIu64 " bytes of its data_offsets; the file is damaged",
	            at->file, at->tensor, shape, entry->type, entry->end - entry->begin);
}

static enum status check_metadata(const json_t *metadata, const char *file, struct error *err)
{
	if (json_is_null(metadata)) return STATUS_OK;
	if (!json_is_object(metadata)) return FAIL(err, BAD_INPUT, "%s: __metadata__: expected an object of strings; the file is damaged", file);
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)metadata, key, value) {
		char text[NAME_TEXT];
		if (!json_is_string(value))
			return FAIL(err, BAD_INPUT, "%s: __metadata__: expected a string under \"%s\"; the file is damaged", file,
			            fields_text(text, sizeof text, key));
	}
	return STATUS_OK;
}

static int compare_offsets(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;
	if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end) return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

int safetensors_compare_names(const void *a, const void *b)
{
	return strcmp(((const struct safetensors_entry *)a)->name, ((const struct safetensors_entry *)b)->name);
}

/* Tensors tile the data: no overlap, no hole, nothing behind. Reorders the entries. */
static enum status check_tiling(struct safetensors *file, uint64_t data_size, const char *name, struct error *err)
{
	uint64_t covered = 0;
	char this[NAME_TEXT], before[NAME_TEXT] = "";
	if (file->count) qsort(file->entries, file->count, sizeof *file->entries, compare_offsets);
	for (size_t i = 0; i < file->count; i++) {
		const struct safetensors_entry *e = &file->entries[i];
		fields_text(this, sizeof this, e->name);
		if (e->begin < covered)
			return FAIL(err, BAD_INPUT, "%s: tensors \"%s\" and \"%s\" overlap; the file is damaged", name, before, this);
		if (e->begin > covered)
			return FAIL(err, BAD_INPUT, "%s: %" PRIu64 " bytes before tensor \"%s\" belong to no tensor; the file is damaged", name,
			            e->begin - covered, this);
		covered = e->end;
		memcpy(before, this, sizeof before);
	}
	if (covered != data_size)
		return FAIL(err, BAD_INPUT, "%s: %" PRIu64 " bytes at the end belong to no tensor; the file is damaged", name, data_size - covered);
	return STATUS_OK;
}

static enum status read_entries(struct safetensors *file, const json_t *header, uint64_t data_size, const char *name, struct error *err)
{
	size_t capacity = json_object_size(header);
	file->entries = mem_zalloc(capacity, sizeof *file->entries, "safetensors header", err);
	if (!file->entries) return STATUS_NO_MEMORY;
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)header, key, value) {
		if (strcmp(key, "__metadata__") == 0) {
			TRY(check_metadata(value, name, err));
			continue;
		}
		struct safetensors_entry *entry = &file->entries[file->count];
		struct place at = {.file = name, .err = err};
		fields_text(at.tensor, sizeof at.tensor, key);
		TRY(read_entry(entry, value, data_size, &at));
		entry->name = mem_strdup(key, "tensor name", err);
		if (!entry->name) return STATUS_NO_MEMORY;
		file->count++;
	}
	TRY(check_tiling(file, data_size, name, err));
	if (file->count) qsort(file->entries, file->count, sizeof *file->entries, safetensors_compare_names);
	return STATUS_OK;
}

uint64_t safetensors_header_length(const unsigned char start[8])
{
	uint64_t length = 0;
	for (int i = 7; i >= 0; i--) length = length << 8 | start[i];
	return length;
}

enum status safetensors_parse(struct safetensors *out, const void *bytes, size_t size, const char *name, struct error *err)
{
	*out = (struct safetensors){0};
	const unsigned char *b = bytes;
	if (size < 8) return FAIL(err, BAD_INPUT, "%s: %zu bytes are too few for a safetensors file; the file is truncated", name, size);
	const uint64_t length = safetensors_header_length(b);
	if (length > SAFETENSORS_MAX_HEADER)
		return FAIL(err, BAD_INPUT, "%s: header length %" PRIu64 " is above the format's %d bytes; this is no safetensors file", name, length,
		            SAFETENSORS_MAX_HEADER);
	if (length > size - 8)
		return FAIL(err, BAD_INPUT, "%s: header length %" PRIu64 ", the file holds %zu bytes after it; the file is truncated", name, length,
		            size - 8);
	if (length < 2 || b[8] != '{')
		return FAIL(err, BAD_INPUT, "%s: the header does not begin with '{'; this is no safetensors file", name);
	json_t *header;
	TRY(fields_parse(&header, (const char *)b + 8, (size_t)length, name, err));
	out->data_offset = 8 + length;
	enum status st = read_entries(out, header, size - out->data_offset, name, err);
	json_decref(header);
	if (st != STATUS_OK) safetensors_fini(out);
	return st;
}

void safetensors_fini(struct safetensors *file)
{
	for (size_t i = 0; i < file->count; i++) free(file->entries[i].name);
	free(file->entries);
	*file = (struct safetensors){0};
}
