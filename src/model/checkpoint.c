/* A checkpoint of safetensors: one file, or the files of an index. What a rank asks for is read into its scratch, so that the resident size
 * stays that of the weights plus the loader's windows, not twice the weights. Immutable after open: any
 * thread may read. source_open_checkpoint stands here too and hands GGUF files on.
 */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mem.h"
#include "model/fields.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model/source_impl.h"
#include "model/weight_file.h"

#define TEXT_BYTES 120                     /* of a path or name in a message that lists several */

struct part_file {
	struct weight_file file;
	uint64_t data_offset;
};

struct checkpoint {
	struct source base;
	char *path; /* as given, for messages */
	struct part_file *files;
	size_t file_count;
	struct safetensors_entry *entries; /* ascending by name; .file indexes files; names are ours */
	size_t count, capacity;
};

static void checkpoint_close(struct source *source)
{
	struct checkpoint *c = (struct checkpoint *)source;
	for (size_t i = 0; i < c->file_count; i++) weight_file_close(&c->files[i].file);
	for (size_t i = 0; i < c->count; i++) free(c->entries[i].name);
	free(c->entries);
	free(c->files);
	free(c->path);
	free(c);
}

/* Takes the entries of one file over into the checkpoint; with `map` only those that it places in `file_name`. */
static enum status add_entries(struct checkpoint *c, struct safetensors *file, const json_t *map, const char *file_name, struct error *err)
{
	if (c->count + file->count > c->capacity) {
		size_t capacity = (c->count + file->count) * 2;
		TRY(mem_grow((void **)&c->entries, capacity, sizeof *c->entries, "tensor index", err));
		c->capacity = capacity;
	}
	for (size_t i = 0; i < file->count; i++) {
		struct safetensors_entry *e = &file->entries[i];
		const char *home = map ? json_string_value(json_object_get(map, e->name)) : file_name;
		if (!home || strcmp(home, file_name) != 0) continue;
		c->entries[c->count] = *e;
		c->entries[c->count++].file = (uint32_t)(c->file_count - 1);
		c->base.bytes_total += e->end - e->begin;
		e->name = NULL; /* moved */
	}
	return STATUS_OK;
}

/* The header alone, which holds all that there is to parse. */
static enum status read_header(const struct weight_file *file, struct safetensors *out, struct error *err)
{
	unsigned char start[8];
	struct buf bytes = {0};
	enum status st;
	TRY(weight_file_read(file, 0, start, sizeof start, err));
	const uint64_t length = safetensors_header_length(start), rest = file->size - sizeof start;
	const size_t n = sizeof start + (size_t)(length > SAFETENSORS_MAX_HEADER || length > rest ? 0 : length); /* else it is refused by its length */
	TRY_GOTO(buf_reserve(&bytes, n, err), out);
	TRY_GOTO(weight_file_read(file, 0, bytes.data, n, err), out);
	st = safetensors_parse(out, bytes.data, file->size, file->path, err);
out:
	buf_fini(&bytes);
	return st;
}

static enum status add_file(struct checkpoint *c, const char *path, const json_t *map, const char *file_name, struct error *err)
{
	struct part_file *part = &c->files[c->file_count];
	TRY(weight_file_open(&part->file, path, "safetensors", err));
	c->file_count++;
	struct safetensors header;
	TRY(read_header(&part->file, &header, err));
	part->data_offset = header.data_offset;
	enum status st = add_entries(c, &header, map, file_name, err);
	safetensors_fini(&header);
	return st;
}

/* A name in an index must name a file in the folder or below it. */
static bool leaves_folder(const char *name)
{
	if (!*name || *name == '/') return true;
	for (const char *part = name; part; part = strchr(part, '/')) {
		if (*part == '/') part++;
		if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || !part[2])) return true;
	}
	return false;
}

/* Collects up to a few names for one message. */
struct listing {
	char text[320];
	size_t length, count;
	bool full;
};

static void list_name(struct listing *list, const char *name)
{
	char text[TEXT_BYTES];
	list->count++;
	if (list->full) return;
	fields_text(text, sizeof text, name);
	list->full = list->length + strlen(text) + sizeof ", , ..." > sizeof list->text;
	list->length += (size_t)snprintf(list->text + list->length, sizeof list->text - list->length, "%s%s", list->length ? ", " : "",
	                                 list->full ? "..." : text);
}

/* The distinct file names of the map, as keys of *names; all exist and stay in the folder. */
static enum status distinct_files(json_t *names, const json_t *map, const char *index, const char *folder, struct error *err)
{
	const char *tensor;
	json_t *value;
	struct listing missing = {0};
	struct buf path = {0};
	enum status st = STATUS_OK;
	json_object_foreach((json_t *)map, tensor, value) {
		char text[TEXT_BYTES], where[TEXT_BYTES];
		const char *name = json_string_value(value);
		fields_text(text, sizeof text, tensor);
		if (!name) {
			st = FAIL(err, BAD_INPUT, "%s: weight_map: expected a file name for \"%s\"; the file is damaged", index, text);
			goto out;
		}
		if (leaves_folder(name)) {
			st = FAIL(err, BAD_INPUT, "%s: weight_map: \"%s\" is in \"%s\", outside the folder; such an index is not trusted", index, text,
			          fields_text(where, sizeof where, name));
			goto out;
		}
		if (json_object_get(names, name)) continue;
		if (json_object_set_new(names, name, json_true()) != 0) {
			st = FAIL(err, NO_MEMORY, "%s: no memory for the list of files", index);
			goto out;
		}
		struct stat info;
		buf_clear(&path);
		TRY_GOTO(buf_printf(&path, err, "%s/%s", folder, name), out);
		if (stat(path.data, &info) != 0) list_name(&missing, name);
	}
	if (missing.count)
		st = FAIL(err, BAD_INPUT, "%.140s: files missing: %zu (%s); fetch the whole checkpoint", index, missing.count, missing.text);
out:
	buf_fini(&path);
	return st;
}

static const struct safetensors_entry *find_entry(const struct checkpoint *c, const char *name)
{
	const struct safetensors_entry key = {.name = (char *)name};
	return c->count ? bsearch(&key, c->entries, c->count, sizeof key, safetensors_compare_names) : NULL;
}

static void sort_entries(struct checkpoint *c)
{
	if (c->count) qsort(c->entries, c->count, sizeof *c->entries, safetensors_compare_names);
}

static enum status all_present(const struct checkpoint *c, const json_t *map, const char *index, struct error *err)
{
	struct listing missing = {0};
	const char *tensor;
	json_t *value;
	json_object_foreach((json_t *)map, tensor, value) {
		if (!find_entry(c, tensor)) list_name(&missing, tensor);
	}
	if (!missing.count) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%.140s: tensors not in the file that it names for them: %zu (%s); fetch the checkpoint again", index,
	            missing.count, missing.text);
}

static enum status open_index(struct checkpoint *c, const char *index, const char *folder, struct error *err)
{
	json_t *root = NULL, *names = NULL;
	struct buf path = {0};
	enum status st;
	TRY_GOTO(fields_load_regular(&root, index, SAFETENSORS_MAX_HEADER, err), out);
	const json_t *map = json_object_get(root, "weight_map");
	if (!json_is_object(map) || json_object_size(map) == 0) {
		st = FAIL(err, BAD_INPUT, "%s: expected a weight_map from tensor to file; this is no safetensors index", index);
		goto out;
	}
	names = json_object();
	if (!names) {
		st = FAIL(err, NO_MEMORY, "%s: no memory for the list of files", index);
		goto out;
	}
	TRY_GOTO(distinct_files(names, map, index, folder, err), out);
	c->files = mem_zalloc(json_object_size(names), sizeof *c->files, "checkpoint files", err);
	if (!c->files) {
		st = STATUS_NO_MEMORY;
		goto out;
	}
	const char *name;
	json_t *value;
	json_object_foreach(names, name, value) {
		buf_clear(&path);
		TRY_GOTO(buf_printf(&path, err, "%s/%s", folder, name), out);
		TRY_GOTO(add_file(c, path.data, map, name, err), out);
	}
	sort_entries(c);
	st = all_present(c, map, index, err);
out:
	buf_fini(&path);
	json_decref(names);
	json_decref(root);
	return st;
}

static enum status open_single(struct checkpoint *c, const char *path, struct error *err)
{
	c->files = mem_zalloc(1, sizeof *c->files, "checkpoint files", err);
	if (!c->files) return STATUS_NO_MEMORY;
	TRY(add_file(c, path, NULL, path, err));
	sort_entries(c);
	return STATUS_OK;
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && strcmp(text + n - m, end) == 0;
}

static enum status open_path(struct checkpoint *c, const char *path, struct error *err)
{
	struct stat info;
	struct buf name = {0};
	enum status st;
	if (stat(path, &info) != 0) return FAIL(err, IO, "%s: %s; check the path", path, strerror(errno));
	if (!S_ISDIR(info.st_mode)) {
		if (!ends_with(path, ".index.json")) return open_single(c, path, err);
		TRY_GOTO(buf_puts(&name, path, err), out);
		st = open_index(c, path, dirname(name.data), err);
		goto out;
	}
	/* The single file first, as HF does. */
	TRY_GOTO(buf_printf(&name, err, "%s/model.safetensors", path), out);
	if (stat(name.data, &info) == 0) {
		st = open_single(c, name.data, err);
		goto out;
	}
	TRY_GOTO(buf_puts(&name, ".index.json", err), out);
	if (stat(name.data, &info) == 0) st = open_index(c, name.data, path, err);
	else st = FAIL(err, BAD_INPUT, "%s: no model.safetensors and no model.safetensors.index.json; name a folder with a safetensors checkpoint", path);
out:
	buf_fini(&name);
	return st;
}

static bool checkpoint_has(const struct source *source, const char *name)
{
	return find_entry((const struct checkpoint *)source, name) != NULL;
}

static const char *checkpoint_at(const struct source *source, size_t i, uint64_t *bytes)
{
	const struct checkpoint *c = (const struct checkpoint *)source;
	if (i >= c->count) return NULL;
	*bytes = c->entries[i].end - c->entries[i].begin;
	return c->entries[i].name;
}

static enum status checkpoint_find(struct source *source, const char *name, struct source_tensor *out, int dims, const int64_t *shape, struct error *err)
{
	const struct checkpoint *c = (const struct checkpoint *)source;
	const struct safetensors_entry *e = find_entry(c, name);
	char expected[64], found[120];
	if (dims == 1) snprintf(expected, sizeof expected, "[%" PRId64 "]", shape[0]);
	else if (dims == 2) snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "]", shape[0], shape[1]);
	else snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 ", %" PRId64 "]", shape[0], shape[1], shape[2]);
	if (!e) return FAIL(err, BAD_INPUT, "%s: tensor \"%s\" of shape %s is missing; the checkpoint does not fit its config.json", c->path, name, expected);
	if (e->dims != dims || memcmp(e->shape, shape, (size_t)dims * sizeof *shape)) {
		safetensors_shape_text(found, sizeof found, e);
		return FAIL(err, BAD_INPUT, "%s: tensor \"%s\": expected shape %s, found %s; the checkpoint does not fit its config.json", c->path, name,
		            expected, found);
	}
	if (e->dtype == DTYPE_COUNT)
		return FAIL(err, UNSUPPORTED, "%s: tensor \"%s\": dtype %s is not implemented; F32, F16 and BF16 are", c->path, name, e->type);
	*out = (struct source_tensor){.name = e->name, .dtype = e->dtype, .dims = dims, .shape = {source_rows(dims, shape), source_cols(dims, shape)}, .internal = e};
	return STATUS_OK;
}

static size_t row_bytes(const struct source_tensor *tensor)
{
	return (size_t)source_row_elements(tensor) * dtype_bytes(tensor->dtype);
}

static enum status checkpoint_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols, struct source_scratch *scratch, const void **data, size_t *stride, struct error *err)
{
	const struct checkpoint *c = (const struct checkpoint *)source;
	const struct safetensors_entry *e = tensor->internal;
	const struct part_file *part = &c->files[e->file];
	const size_t line = row_bytes(tensor), element = dtype_bytes(tensor->dtype);
	const struct weight_lines lines = {.begin = (size_t)(part->data_offset + e->begin) + (size_t)row * line, .line = line, .skip = (size_t)col * element,
	                                   .bytes = (size_t)cols * element, .rows = rows};
	return weight_file_lines(&part->file, &lines, scratch, data, stride, err);
}

static const struct source_ops checkpoint_ops = {
	.close = checkpoint_close, .find = checkpoint_find, .has = checkpoint_has, .at = checkpoint_at, .read = checkpoint_read};

enum status source_open_checkpoint(struct source **out, const char *path, const struct log *log, struct error *err)
{
	*out = NULL;
	if (gguf_is_file(path)) return source_open_gguf(out, path, log, err);
	struct checkpoint *c = mem_zalloc(1, sizeof *c, "checkpoint", err);
	if (!c) return STATUS_NO_MEMORY;
	c->base.ops = &checkpoint_ops;
	enum status st = STATUS_NO_MEMORY;
	c->path = mem_strdup(path, "checkpoint path", err);
	if (!c->path) goto fail;
	TRY_GOTO(open_path(c, path, err), fail);
	log_write(log, LOG_DEBUG, "%s: %zu tensors in %zu files, %" PRIu64 " bytes", path, c->count, c->file_count, c->base.bytes_total);
	*out = &c->base;
	return STATUS_OK;
fail:
	checkpoint_close(&c->base);
	return st;
}
