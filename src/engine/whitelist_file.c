/* whitelist_file.c: the whitelist as JSON. The hash is over the object without its "hash" in canonical form: keys sorted, no blanks. */
#include <math.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/whitelist.h"
#include "model/fields.h"

static enum status read_int(const struct fields *f, const char *key, int most, int *out, struct error *err)
{
	TRY(fields_need(f, key, "an integer", err));
	return fields_int(f, key, 1, most, out, err);
}

static enum status read_dtype(const struct fields *f, enum dtype *out, struct error *err)
{
	char name[16];
	TRY(fields_copy(f, "dtype", name, sizeof name, err));
	for (int i = 0; i < DTYPE_COUNT; i++) {
		*out = (enum dtype)i;
		if (!strcmp(dtype_name(*out), name)) return STATUS_OK;
	}
	return fields_refuse(f, "dtype", "the name of an element type, as BF16", fields_get(f, "dtype"), err);
}

static enum status read_object(struct fields *out, const struct fields *f, const char *key, const char *section, struct error *err)
{
	*out = (struct fields){.object = fields_get(f, key), .file = f->file, .section = section};
	return json_is_object(out->object) ? STATUS_OK : fields_refuse(f, key, "an object", out->object, err);
}

static enum status read_shape(struct whitelist *w, const struct fields *f, struct error *err)
{
	struct whitelist_shape shape = {0};
	if (!json_is_object(f->object)) return FAIL(err, BAD_INPUT, "%s: model.shapes: an item is not an object; correct the file", f->file);
	TRY(fields_only(f, "world_size, family, n, k", "here", err));
	TRY(read_int(f, "world_size", 1 << 16, &shape.world_size, err));
	TRY(fields_copy(f, "family", shape.family, sizeof shape.family, err));
	TRY(read_int(f, "n", INT32_MAX, &shape.n, err));
	TRY(read_int(f, "k", INT32_MAX, &shape.k, err));
	return whitelist_add_shape(w, &shape, err);
}

static enum status read_model(struct whitelist *w, const struct fields *top, struct error *err)
{
	struct fields f;
	TRY(read_object(&f, top, "model", "model.", err));
	TRY(fields_only(&f, "name, type, dtype, shapes", "here", err));
	TRY(fields_copy(&f, "name", w->model, sizeof w->model, err));
	TRY(fields_copy(&f, "type", w->model_type, sizeof w->model_type, err));
	TRY(read_dtype(&f, &w->dtype, err));
	const json_t *list = fields_get(&f, "shapes");
	if (!json_is_array(list)) return fields_refuse(&f, "shapes", "a list", list, err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		char section[40];
		snprintf(section, sizeof section, "model.shapes[%zu].", i);
		TRY(read_shape(w, &(struct fields){.object = json_array_get(list, i), .file = f.file, .section = section}, err));
	}
	return STATUS_OK;
}

static enum status read_device(struct whitelist *w, const struct fields *top, struct error *err)
{
	struct fields f;
	TRY(read_object(&f, top, "device", "device.", err));
	TRY(fields_only(&f, "kind, flavour, versions", "here", err));
	TRY(fields_copy(&f, "kind", w->device, sizeof w->device, err));
	TRY(fields_copy(&f, "flavour", w->flavour, sizeof w->flavour, err));
	return fields_copy(&f, "versions", w->versions, sizeof w->versions, err);
}

static enum status read_use(const struct fields *f, enum linear_use *out, struct error *err)
{
	char name[24];
	TRY(fields_copy(f, "use", name, sizeof name, err));
	for (int i = 0; i < LINEAR_USE_COUNT; i++) {
		*out = (enum linear_use)i;
		if (!strcmp(linear_use_name(*out), name)) return STATUS_OK;
	}
	return fields_refuse(f, "use", "linear, linear +=, linear partial, attention_in or mlp_in", fields_get(f, "use"), err);
}

static enum status read_entry(struct whitelist *w, const struct fields *f, struct error *err)
{
	struct whitelist_entry e = {0};
	struct linear_preference *p = &e.prefer;
	if (!json_is_object(f->object)) return FAIL(err, BAD_INPUT, "%s: entries: an item is not an object; correct the file", f->file);
	TRY(fields_only(f, "use, dtype, n, k, m_low, m_high, kernel, mode, invariant, ratio, where", "here", err));
	TRY(read_use(f, &p->key.use, err));
	TRY(read_dtype(f, &p->key.dtype, err));
	TRY(read_int(f, "n", INT32_MAX, &p->key.n, err));
	TRY(read_int(f, "k", INT32_MAX, &p->key.k, err));
	TRY(read_int(f, "m_low", INT32_MAX, &p->m_low, err));
	TRY(read_int(f, "m_high", INT32_MAX, &p->m_high, err));
	TRY(fields_copy(f, "kernel", p->variant.kernel, sizeof p->variant.kernel, err));
	TRY(fields_copy(f, "mode", p->variant.mode, sizeof p->variant.mode, err));
	TRY(fields_need(f, "invariant", "true or false", err));
	TRY(fields_bool(f, "invariant", &p->variant.invariant, err));
	TRY(fields_need(f, "ratio", "a number", err));
	TRY(fields_number(f, "ratio", 0, true, 1e6, &e.ratio, err));
	TRY(fields_copy(f, "where", e.where, sizeof e.where, err));
	return whitelist_add_entry(w, &e, err);
}

/* Format and version first: what follows may be another version's. */
static enum status read_format(const struct fields *f, struct error *err)
{
	const char *format = NULL;
	int version = 0;
	TRY(fields_string(f, "format", &format, err));
	if (!format || strcmp(format, WHITELIST_FORMAT)) return fields_refuse(f, "format", "\"" WHITELIST_FORMAT "\"", fields_get(f, "format"), err);
	TRY(read_int(f, "version", INT32_MAX, &version, err));
	if (version == WHITELIST_VERSION) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "%s: whitelist version %d, this program reads version %d; write it with this program's prescreen", f->file, version, WHITELIST_VERSION);
}

enum status whitelist_hash(const json_t *root, char out[WHITELIST_HASH_BYTES], struct error *err)
{
	json_t *copy = json_copy((json_t *)root);
	if (copy) json_object_del(copy, "hash");
	char *text = copy ? json_dumps(copy, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
	json_decref(copy);
	if (!text) return FAIL(err, NO_MEMORY, "whitelist: no memory for its hash");
	uint8_t digest[SHA256_DIGEST_LENGTH];
	SHA2_CTX sha;
	SHA256Init(&sha);
	SHA256Update(&sha, (const uint8_t *)text, strlen(text));
	SHA256Final(digest, &sha);
	free(text);
	for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
	return STATUS_OK;
}

static enum status read_entries(struct whitelist *w, const struct fields *f, struct error *err)
{
	const json_t *list = fields_get(f, "entries");
	if (!json_is_array(list)) return fields_refuse(f, "entries", "a list", list, err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		char section[40];
		snprintf(section, sizeof section, "entries[%zu].", i);
		TRY(read_entry(w, &(struct fields){.object = json_array_get(list, i), .file = f->file, .section = section}, err));
	}
	return STATUS_OK;
}

static enum status read_all(struct whitelist *w, const struct fields *f, struct error *err)
{
	char hash[WHITELIST_HASH_BYTES];
	TRY(read_format(f, err));
	TRY(fields_only(f, "format, version, program, device, model, keep, any_order, entries, hash", "here", err));
	TRY(fields_copy(f, "program", w->program, sizeof w->program, err));
	TRY(read_device(w, f, err));
	TRY(read_model(w, f, err));
	TRY(fields_need(f, "keep", "a number", err));
	TRY(fields_number(f, "keep", 0, true, 1e6, &w->keep, err));
	TRY(fields_need(f, "any_order", "true or false", err));
	TRY(fields_bool(f, "any_order", &w->any_order, err));
	TRY(read_entries(w, f, err));
	TRY(fields_copy(f, "hash", w->hash, sizeof w->hash, err));
	TRY(whitelist_hash(f->object, hash, err));
	if (strcmp(hash, w->hash))
		return FAIL(err, BAD_INPUT, "%s: hash: the content has %.12s..., the file says %.12s...; it was changed after it was measured: write it anew", f->file, hash, w->hash);
	return whitelist_check(w, f->file, err);
}

static enum status from_root(struct whitelist *out, json_t *root, const char *file, struct error *err)
{
	enum status st = read_all(out, &(struct fields){.object = root, .file = file, .section = ""}, err);
	json_decref(root);
	if (st != STATUS_OK) whitelist_fini(out);
	return st;
}

enum status whitelist_parse(struct whitelist *out, const char *text, size_t n, const char *file, struct error *err)
{
	json_t *root;
	*out = (struct whitelist){0};
	TRY(fields_parse(&root, text, n, file, err));
	return from_root(out, root, file, err);
}

enum status whitelist_load(struct whitelist *out, const char *path, struct error *err)
{
	json_t *root;
	*out = (struct whitelist){0};
	TRY(fields_load(&root, path, WHITELIST_MAX_FILE, err));
	return from_root(out, root, path, err);
}

/* Four digits behind the point: what a file says and what it is hashed as are the same. */
static json_t *ratio_json(double ratio)
{
	return json_real(round(ratio * 1e4) / 1e4);
}

static json_t *shapes_json(const struct whitelist *w)
{
	json_t *list = json_array();
	for (int i = 0; list && i < w->shapes; i++) {
		const struct whitelist_shape *s = &w->shape[i];
		json_array_append_new(list, json_pack("{s:i,s:s,s:i,s:i}", "world_size", s->world_size, "family", s->family, "n", s->n, "k", s->k));
	}
	return list;
}

static json_t *entries_json(const struct whitelist *w)
{
	json_t *list = json_array();
	for (int i = 0; list && i < w->entries; i++) {
		const struct whitelist_entry *e = &w->entry[i];
		const struct linear_preference *p = &e->prefer;
		json_array_append_new(list, json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:s,s:s,s:b,s:o,s:s}", "use", linear_use_name(p->key.use), "dtype",
		                                      dtype_name(p->key.dtype), "n", p->key.n, "k", p->key.k, "m_low", p->m_low, "m_high", p->m_high, "kernel",
		                                      p->variant.kernel, "mode", p->variant.mode, "invariant", p->variant.invariant, "ratio", ratio_json(e->ratio),
		                                      "where", e->where));
	}
	return list;
}

/* NULL: no memory, or a text that is not UTF-8. */
static json_t *to_json(const struct whitelist *w)
{
	json_t *shapes = shapes_json(w), *entries = entries_json(w);
	if ((int)json_array_size(shapes) != w->shapes || (int)json_array_size(entries) != w->entries) {
		json_decref(shapes);
		json_decref(entries);
		return NULL;
	}
	return json_pack("{s:s,s:i,s:s,s:{s:s,s:s,s:s},s:{s:s,s:s,s:s,s:o},s:o,s:b,s:o,s:s}", "format", WHITELIST_FORMAT, "version", WHITELIST_VERSION, "program",
	                 w->program, "device", "kind", w->device, "flavour", w->flavour, "versions", w->versions, "model", "name", w->model, "type",
	                 w->model_type, "dtype", dtype_name(w->dtype), "shapes", shapes, "keep", ratio_json(w->keep), "any_order", w->any_order, "entries",
	                 entries, "hash", w->hash);
}

enum status whitelist_seal(struct whitelist *w, const char *whose, struct error *err)
{
	TRY(whitelist_check(w, whose, err));
	json_t *root = to_json(w);
	if (!root) return FAIL(err, BAD_INPUT, "%s: no memory, or a name in it that is not UTF-8; rename the model's folder", whose);
	enum status st = whitelist_hash(root, w->hash, err);
	json_decref(root);
	return st;
}

enum status whitelist_format(const struct whitelist *w, struct buf *out, struct error *err)
{
	json_t *root = to_json(w);
	char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(10)) : NULL;
	json_decref(root);
	if (!text) return FAIL(err, NO_MEMORY, "whitelist: no memory to write it");
	enum status st = buf_puts(out, text, err);
	if (st == STATUS_OK) st = buf_puts(out, "\n", err);
	free(text);
	return st;
}
