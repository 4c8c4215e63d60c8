#include "prescreen/target.h"

#include <stdio.h>
#include <string.h>

#include "model/fields.h"
#include "prescreen/attention_rules.h"

#define TARGET_MAX_FILE 65536

/* vLLM's kernels exist in its ROCm build only; on CUDA it calls the framework's linear. Their dispatched form goes with them. */
#define UPSTREAM (1u << KERNEL_LLMM1 | 1u << KERNEL_LLMM1_DISPATCHED)
#define OWN (1u << KERNEL_GEMV_LLMM1 | 1u << KERNEL_GEMV_STRIDED)
#define LINEAR (1u << KERNEL_LINEAR)
#define ATTENTION_ANY (1u << ATTENTION_DECODE | 1u << ATTENTION_TILE)
#define ATTENTION_ALL ((1u << ATTENTION_COUNT) - 1)

/* What is not in these rows has not been verified.
 * Threads: 1024 is the limit of a block on every GPU here. Shared memory: LLMM1's largest use, 16 rows * 64 lanes * 4 bytes, is there
 * wherever it runs, hence the floor of 4096; wvSplitK declares 64 KiB, which is there wherever its body is compiled: gfx90a, gfx942. On other
 * devices its body is an assert(false) stub, gfx936 among them. h200 and a100: what a block may ask for at most, 227 and 163 KiB by the vendor's table of
 * compute capabilities 9.0 and 8.0. 16: bytes of one vector load. */
#define ROW(id, ...) [TARGET_##id] = {.name = #id, __VA_ARGS__}
static const struct target targets[] = {
	ROW(gfx936, .wave = 64, .max_threads = 1024, .shared_bytes = TARGET_UNKNOWN, .shared_floor = 4096, .compute_units = TARGET_UNKNOWN,
	 .align_bytes = 16, .skinny = KNOWN_NOT, .kernels = UPSTREAM | OWN | LINEAR, .attention = ATTENTION_ANY),
	ROW(gfx90a, .wave = 64, .max_threads = 1024, .shared_bytes = 65536, .compute_units = TARGET_UNKNOWN, .align_bytes = 16,
	 .skinny = KNOWN_YES, .kernels = UPSTREAM | 1u << KERNEL_WVSPLITK | OWN | LINEAR, .attention = ATTENTION_ANY),
	ROW(gfx942, .wave = 64, .max_threads = 1024, .shared_bytes = 65536, .compute_units = TARGET_UNKNOWN, .align_bytes = 16,
	 .skinny = KNOWN_YES, .kernels = UPSTREAM | 1u << KERNEL_WVSPLITK | OWN | LINEAR, .attention = ATTENTION_ANY),
	ROW(h200, .wave = 32, .max_threads = 1024, .shared_bytes = 227 * 1024, .compute_units = TARGET_UNKNOWN, .align_bytes = 16, .skinny = KNOWN_NO,
	 .kernels = OWN | LINEAR, .attention = ATTENTION_ALL, .sm = 90),
	ROW(a100, .wave = 32, .max_threads = 1024, .shared_bytes = 163 * 1024, .compute_units = TARGET_UNKNOWN, .align_bytes = 16, .skinny = KNOWN_NO,
	 .kernels = OWN | LINEAR, .attention = ATTENTION_ALL, .sm = 80),
	ROW(cpu, .wave = 1, .max_threads = TARGET_UNKNOWN, .shared_bytes = TARGET_UNKNOWN, .compute_units = TARGET_UNKNOWN, .align_bytes = 1,
	 .skinny = KNOWN_NO, .kernels = LINEAR),
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *kernel_name(enum kernel_id id)
{
	static const char *const names[KERNEL_COUNT] = {
#define X(code, name) name,
		KERNEL_LIST(X)
#undef X
	};
	return names[id];
}

const struct target *target_find(const char *name)
{
	for (size_t i = 0; i < COUNT(targets); i++)
		if (strcmp(targets[i].name, name) == 0) return &targets[i];
	return NULL;
}

const char *target_names(void)
{
#define X(name) ", " #name
	static const char names[] = TARGET_LIST(X);
#undef X
	return names + 2;
}

static enum status parse_name(struct target *out, const struct fields *f, struct error *err)
{
	static const char expected[] = "a name of 1 to 47 letters, digits, '-', '_' or '.'";
	const char *name = NULL;
	TRY(fields_need(f, "name", expected, err));
	TRY(fields_string(f, "name", &name, err));
	size_t n = strlen(name);
	if (!n || n >= sizeof out->name || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != n)
		return fields_refuse(f, "name", expected, fields_get(f, "name"), err);
	memcpy(out->name, name, n + 1);
	return STATUS_OK;
}

/* The names of the list `key`, as bits of `*out`. name_of(i): NULL for one that a file does not give. */
static enum status parse_names(unsigned *out, const struct fields *f, const char *key, const char *(*name_of)(int), int count, struct error *err)
{
	const json_t *list = fields_get(f, key), *item;
	char expected[128] = "a list of";
	size_t used = strlen(expected), i;
	for (int id = 0; id < count; id++)
		if (name_of(id) && used < sizeof expected) used += (size_t)snprintf(expected + used, sizeof expected - used, "%s %s", id ? "," : "", name_of(id));
	if (!json_is_array(list)) return fields_refuse(f, key, expected, list, err);
	json_array_foreach((json_t *)list, i, item) {
		const char *name = json_string_value(item);
		int id = 0;
		while (id < count && (!name || !name_of(id) || strcmp(name, name_of(id)) != 0)) id++;
		if (id == count) return fields_refuse(f, key, expected, item, err);
		*out |= 1u << id;
	}
	return STATUS_OK;
}

static const char *kernel_in_file(int id)
{
	return id == KERNEL_LLMM1_DISPATCHED ? NULL : kernel_name((enum kernel_id)id);
}

static const char *attention_in_file(int id)
{
	return attention_name((enum attention_id)id);
}

static enum status parse_fields(struct target *out, const struct fields *f, struct error *err)
{
	bool skinny = false;
	TRY(fields_only(f, "name, wave, max_threads, shared_bytes, shared_floor, compute_units, align_bytes, skinny, sm, kernels, attention", "of a target", err));
	TRY(parse_name(out, f, err));
	TRY(fields_need(f, "wave", "an integer from 1 to 128", err));
	TRY(fields_int(f, "wave", 1, 128, &out->wave, err));
	TRY(fields_int(f, "max_threads", 1, 65536, &out->max_threads, err));
	TRY(fields_int64(f, "shared_bytes", 0, INT64_C(1) << 30, &out->shared_bytes, err));
	TRY(fields_int64(f, "shared_floor", 0, INT64_C(1) << 30, &out->shared_floor, err));
	TRY(fields_int(f, "compute_units", 1, 65536, &out->compute_units, err));
	TRY(fields_need(f, "align_bytes", "an integer from 1 to 4096", err));
	TRY(fields_int(f, "align_bytes", 1, 4096, &out->align_bytes, err));
	TRY(fields_bool(f, "skinny", &skinny, err));
	if (fields_get(f, "skinny")) out->skinny = skinny ? KNOWN_YES : KNOWN_NO;
	TRY(fields_int(f, "sm", 0, 999, &out->sm, err));
	TRY(parse_names(&out->kernels, f, "kernels", kernel_in_file, KERNEL_COUNT, err));
	if (out->kernels & 1u << KERNEL_LLMM1) out->kernels |= 1u << KERNEL_LLMM1_DISPATCHED;
	if (!fields_get(f, "attention")) return STATUS_OK; /* its build has none */
	return parse_names(&out->attention, f, "attention", attention_in_file, ATTENTION_COUNT, err);
}

static enum status from_object(struct target *out, const json_t *object, const char *file, struct error *err)
{
	struct fields f = {.object = object, .file = file, .section = ""};
	struct target made = {.max_threads = TARGET_UNKNOWN, .shared_bytes = TARGET_UNKNOWN, .compute_units = TARGET_UNKNOWN, .skinny = KNOWN_NOT, .sm = TARGET_UNKNOWN};
	TRY(parse_fields(&made, &f, err));
	*out = made;
	return STATUS_OK;
}

enum status target_parse(struct target *out, const char *json, size_t n, const char *file, struct error *err)
{
	*out = (struct target){0};
	json_t *root;
	TRY(fields_parse(&root, json, n, file, err));
	enum status st = from_object(out, root, file, err);
	json_decref(root);
	return st;
}

static enum status load(struct target *out, const char *path, struct error *err)
{
	*out = (struct target){0};
	json_t *root;
	TRY(fields_load(&root, path, TARGET_MAX_FILE, err));
	enum status st = from_object(out, root, path, err);
	json_decref(root);
	return st;
}

enum status target_open(struct target *out, const char *name_or_file, struct error *err)
{
	const struct target *known = target_find(name_or_file);
	*out = (struct target){0};
	if (!known && strpbrk(name_or_file, "/.")) return load(out, name_or_file, err);
	if (!known) return FAIL(err, USAGE, "--target '%.40s': no such target; give one of %s, or a JSON file", name_or_file, target_names());
	*out = *known;
	return STATUS_OK;
}
