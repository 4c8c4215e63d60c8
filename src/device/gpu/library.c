#include "device/gpu/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#if defined(GPU_CUDA)
#include "device/gpu/vendor/gemm_cuda.h"
#else
#include "device/gpu/vendor/gemm_hip.h"
#endif

/* What is looked up: X(field, symbol without the vendor's prefix, parameters). */
#define FUNCTION_LIST(X)                                                                                                                       \
	X(create, "Create", (gemm_handle *))                                                                                                       \
	X(destroy, "Destroy", (gemm_handle))                                                                                                       \
	X(operation_create, "MatmulDescCreate", (gemm_operation *, gemm_compute, gemm_type))                                                       \
	X(operation_destroy, "MatmulDescDestroy", (gemm_operation))                                                                                \
	X(operation_set, "MatmulDescSetAttribute", (gemm_operation, gemm_operation_attribute, const void *, size_t))                               \
	X(layout_create, "MatrixLayoutCreate", (gemm_layout *, gemm_type, uint64_t, uint64_t, int64_t))                                            \
	X(layout_destroy, "MatrixLayoutDestroy", (gemm_layout))                                                                                    \
	X(layout_set, "MatrixLayoutSetAttribute", (gemm_layout, gemm_layout_attribute, const void *, size_t))                                      \
	X(preference_create, "MatmulPreferenceCreate", (gemm_preference *))                                                                        \
	X(preference_destroy, "MatmulPreferenceDestroy", (gemm_preference))                                                                        \
	X(preference_set, "MatmulPreferenceSetAttribute", (gemm_preference, gemm_preference_attribute, const void *, size_t))                      \
	X(heuristic, "MatmulAlgoGetHeuristic",                                                                                                     \
	  (gemm_handle, gemm_operation, gemm_layout, gemm_layout, gemm_layout, gemm_layout, gemm_preference, int, gemm_candidate *, int *))        \
	X(matmul, "Matmul",                                                                                                                        \
	  (gemm_handle, gemm_operation, const void *, const void *, gemm_layout, const void *, gemm_layout, const void *, const void *, gemm_layout, \
	   void *, gemm_layout, const gemm_vendor_algo *, void *, size_t, gpu_stream))

/* The algorithm of one kind of problem. Rows of tokens are kept by bucket: 1 to 64 exactly, then by multiples of 64, of 512 from 1024. */
struct choice_key {
	int m, n, k;
	enum dtype type, y_type;
	bool accumulate;
	uint8_t alignment[4]; /* log2, at most 8, of the addresses of W, x, y, y */
	int64_t x_stride, w_stride, y_stride;
};
struct choice {
	struct choice_key key;
	bool used, none;
	struct gemm_algo algo;
};
#define CHOICES 1024 /* a power of two: open addressing */

struct gemm_library {
	void *so;
	char name[64];
#define X(field, symbol, parameters) gemm_status(*field) parameters;
	FUNCTION_LIST(X)
#undef X
	struct gemm_algo_functions algo;
	gemm_handle handle;
	gemm_operation operation;
	gemm_layout w, x, y;
	gemm_preference preference;
	struct choice choice[CHOICES];
};

const char gemm_library_variant[] = GEMM_VARIANT;

_Static_assert(sizeof(gemm_vendor_algo) <= GEMM_ALGO_BYTES, "gemm_algo holds the vendor's algorithm");

static bool look_up(struct gemm_library *lib)
{
	bool all = true;
#define X(field, symbol, parameters) \
	*(void **)&lib->field = dlsym(lib->so, GEMM_SYMBOL(symbol)), all = all && lib->field;
	FUNCTION_LIST(X)
#undef X
#define X(field, symbol, parameters) \
	*(void **)&lib->algo.field = dlsym(lib->so, GEMM_SYMBOL(symbol)), all = all && lib->algo.field;
	GEMM_ALGO_FUNCTION_LIST(X)
#undef X
	return all;
}

static enum status check(const struct gemm_library *lib, gemm_status code, const char *what, struct error *err)
{
	if (code == GEMM_SUCCESS) return STATUS_OK;
	return FAIL(err, DEVICE_FAULT, "%s: %s failed with status %d", lib->name, what, (int)code);
}

static gemm_type vendor_type(enum dtype type)
{
	return type == DTYPE_F32 ? GEMM_F32 : type == DTYPE_F16 ? GEMM_F16 : GEMM_BF16;
}

static enum status make_descriptors(struct gemm_library *lib, struct error *err)
{
	const gemm_transpose transposed = GEMM_TRANSPOSED, plain = GEMM_PLAIN;
	TRY(check(lib, lib->create(&lib->handle), "Create", err));
	TRY(check(lib, lib->operation_create(&lib->operation, GEMM_COMPUTE_F32, GEMM_F32), "MatmulDescCreate", err));
	TRY(check(lib, lib->operation_set(lib->operation, GEMM_OPERATION_TRANSA, &transposed, sizeof transposed), "MatmulDescSetAttribute", err));
	TRY(check(lib, lib->operation_set(lib->operation, GEMM_OPERATION_TRANSB, &plain, sizeof plain), "MatmulDescSetAttribute", err));
	TRY(check(lib, lib->layout_create(&lib->w, GEMM_F32, 1, 1, 1), "MatrixLayoutCreate", err));
	TRY(check(lib, lib->layout_create(&lib->x, GEMM_F32, 1, 1, 1), "MatrixLayoutCreate", err));
	TRY(check(lib, lib->layout_create(&lib->y, GEMM_F32, 1, 1, 1), "MatrixLayoutCreate", err));
	TRY(check(lib, lib->preference_create(&lib->preference), "MatmulPreferenceCreate", err));
#define X(attribute, type, value)                                                                                                           \
	{                                                                                                                                       \
		const type set = value;                                                                                                             \
		TRY(check(lib, lib->preference_set(lib->preference, attribute, &set, sizeof set), "MatmulPreferenceSetAttribute", err));            \
	}
	GEMM_PREFERENCE_LIST(X)
#undef X
	return STATUS_OK;
}

enum status gemm_library_create(struct gemm_library **out, const struct log *log, struct error *err)
{
	static const char *const names[] = {GEMM_LIBRARY_NAMES};
	*out = NULL;
	struct gemm_library *lib = mem_zalloc(1, sizeof *lib, "matrix library", err);
	if (!lib) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	for (size_t i = 0; i < sizeof names / sizeof *names && !lib->so; i++) {
		if (!names[i]) continue;
		lib->so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (!lib->so) {
			log_write(log, LOG_DEBUG, "gpu: %s is not here: %s", names[i], dlerror());
		} else if (!look_up(lib)) {
			log_write(log, LOG_WARN, "gpu: %s lacks functions that are wanted; not used", names[i]);
			dlclose(lib->so);
			lib->so = NULL;
		} else {
			snprintf(lib->name, sizeof lib->name, "%s", names[i]);
		}
	}
	if (!lib->so) {
		free(lib);
		return STATUS_OK;
	}
	TRY_GOTO(make_descriptors(lib, err), fail);
	*out = lib;
	return STATUS_OK;
fail:
	gemm_library_destroy(&lib);
	return st;
}

void gemm_library_destroy(struct gemm_library **library)
{
	struct gemm_library *lib = *library;
	*library = NULL;
	if (!lib) return;
	if (lib->preference) (void)lib->preference_destroy(lib->preference);
	if (lib->y) (void)lib->layout_destroy(lib->y);
	if (lib->x) (void)lib->layout_destroy(lib->x);
	if (lib->w) (void)lib->layout_destroy(lib->w);
	if (lib->operation) (void)lib->operation_destroy(lib->operation);
	if (lib->handle) (void)lib->destroy(lib->handle);
	/* The library stays loaded: other streams may use it, and unloading one that has registered device code is not safe everywhere. */
	free(lib);
}

void gemm_library_version(char *text, size_t bytes)
{
	struct gemm_library *lib = NULL;
	text[0] = 0;
	if (gemm_library_create(&lib, NULL, NULL) != STATUS_OK || !lib) return;
	void *function = dlsym(lib->so, GEMM_SYMBOL("GetVersion"));
	snprintf(text, bytes, "%s %ld", gemm_library_variant, function ? gemm_version(function, lib->handle) : 0L);
	gemm_library_destroy(&lib);
}

static enum status set_layout(const struct gemm_library *lib, gemm_layout layout, enum dtype type, int rows, int cols, int64_t stride,
                              struct error *err)
{
	const gemm_type vendor = vendor_type(type);
	const uint64_t r = (uint64_t)rows, c = (uint64_t)cols;
	TRY(check(lib, lib->layout_set(layout, GEMM_LAYOUT_TYPE, &vendor, sizeof vendor), "MatrixLayoutSetAttribute", err));
	TRY(check(lib, lib->layout_set(layout, GEMM_LAYOUT_ROWS, &r, sizeof r), "MatrixLayoutSetAttribute", err));
	TRY(check(lib, lib->layout_set(layout, GEMM_LAYOUT_COLS, &c, sizeof c), "MatrixLayoutSetAttribute", err));
	return check(lib, lib->layout_set(layout, GEMM_LAYOUT_LD, &stride, sizeof stride), "MatrixLayoutSetAttribute", err);
}

/* The library is column-major: y^T [n x m] = W [k x n]^T x^T [k x m]. */
static enum status set_problem(const struct gemm_library *lib, const struct gemm_problem *p, int m, struct error *err)
{
	TRY(set_layout(lib, lib->w, p->type, p->k, p->n, p->w_stride, err));
	TRY(set_layout(lib, lib->x, p->type, p->k, m, p->x_stride, err));
	return set_layout(lib, lib->y, p->y_type, p->n, m, p->y_stride, err);
}

static uint8_t alignment_of(const void *address)
{
	uint8_t log2 = 0;
	while (log2 < 8 && !((uintptr_t)address >> log2 & 1)) log2++;
	return log2;
}

static int bucket(int m)
{
	if (m <= 64) return m;
	int step = m <= 1024 ? 64 : 512;
	return (m + step - 1) / step * step;
}

int gemm_library_rows_after(int rows)
{
	return bucket(rows + 1);
}

static struct choice_key key_of(const struct gemm_problem *p, bool accumulate)
{
	struct choice_key key;
	memset(&key, 0, sizeof key); /* compared with memcmp */
	key.m = bucket(p->m), key.n = p->n, key.k = p->k;
	key.type = p->type, key.y_type = p->y_type, key.accumulate = accumulate;
	key.x_stride = p->x_stride, key.w_stride = p->w_stride, key.y_stride = p->y_stride;
	key.alignment[0] = alignment_of(p->w), key.alignment[1] = alignment_of(p->x), key.alignment[2] = key.alignment[3] = alignment_of(p->y);
	return key;
}

/* The entry of `key`, or the free one where it goes; NULL: the table is full. */
static struct choice *find(struct gemm_library *lib, const struct choice_key *key)
{
	uint64_t hash = 14695981039346656037u;
	for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ ((const unsigned char *)key)[i]) * 1099511628211u;
	for (size_t i = 0; i < CHOICES; i++) {
		struct choice *c = &lib->choice[(hash + i) % CHOICES];
		if (!c->used || !memcmp(&c->key, key, sizeof *key)) return c;
	}
	return NULL;
}

#define MOST_FOUND 16
static int ask(struct gemm_library *lib, uint64_t workspace, const struct gemm_problem *p, int m, const struct choice_key *key, struct gemm_algo *out, int max)
{
	gemm_candidate found[MOST_FOUND];
	int count = 0;
	if (set_problem(lib, p, m, NULL) != STATUS_OK) return 0;
	if (lib->preference_set(lib->preference, GEMM_PREFERENCE_WORKSPACE, &workspace, sizeof workspace) != GEMM_SUCCESS) return 0;
	int which = 0;
#define X(attribute)                                                                                                                         \
	{                                                                                                                                        \
		const uint32_t bytes = 1u << key->alignment[which++];                                                                                \
		if (lib->preference_set(lib->preference, attribute, &bytes, sizeof bytes) != GEMM_SUCCESS) return 0;                                 \
	}
	GEMM_ALIGNMENT_LIST(X)
#undef X
	(void)which, (void)key;
	if (max > MOST_FOUND) max = MOST_FOUND;
	if (lib->heuristic(lib->handle, lib->operation, lib->w, lib->x, lib->y, lib->y, lib->preference, max, found, &count) != GEMM_SUCCESS) return 0;
	int good = 0;
	for (int i = 0; i < count; i++) {
		if (found[i].state != GEMM_SUCCESS || found[i].workspaceSize > workspace) continue;
		memset(&out[good], 0, sizeof out[good]);
		memcpy(out[good].bytes, &found[i].algo, sizeof found[i].algo);
		out[good++].workspace_bytes = found[i].workspaceSize;
	}
	return good;
}

/* The algorithm for m rows. Where few rows meet enough outputs the library is asked for one that wants no workspace: else its first choice often cuts K, and the
 * second launch and the sums' way through memory cost more than the blocks gained are worth (docs/MEASUREMENTS.md, GPU linears). */
static bool choose(struct gemm_library *lib, const struct gpu_context *context, const struct gemm_problem *p, int m, const struct choice_key *key,
                   struct gemm_algo *out)
{
	if (m <= GEMM_WHOLE_SUM_ROWS && p->n >= GEMM_WHOLE_SUM_OUTPUTS && ask(lib, 0, p, m, key, out, 1)) return true;
	return ask(lib, context->workspace_bytes, p, m, key, out, 1) > 0;
}

/* ---- algorithms by name */

static const char *const value_names[] = {
#define X(attribute, type, name) name,
	GEMM_ALGO_LIST(X)
#undef X
};
#define VALUES (sizeof value_names / sizeof *value_names)

static void algo_values(const struct gemm_library *lib, const struct gemm_algo *algo, int64_t *values)
{
	gemm_vendor_algo vendor;
	memcpy(&vendor, algo->bytes, sizeof vendor);
	gemm_algo_values(&lib->algo, &vendor, values);
}

static gemm_status make_algo(const struct gemm_library *lib, const int64_t *values, enum dtype type, enum dtype y_type, struct gemm_algo *out)
{
	gemm_vendor_algo vendor;
	gemm_status code = gemm_algo_make(&lib->algo, lib->handle, vendor_type(type), vendor_type(y_type), values, &vendor);
	memset(out, 0, sizeof *out);
	memcpy(out->bytes, &vendor, sizeof vendor);
	return code;
}

static void write_name(const int64_t *values, char text[GEMM_ALGO_NAME_BYTES])
{
	size_t used = 0;
	text[0] = 0;
	for (size_t i = 0; i < VALUES && used < GEMM_ALGO_NAME_BYTES; i++)
		if (values[i] || i == 0)
			used += (size_t)snprintf(text + used, GEMM_ALGO_NAME_BYTES - used, "%s%s %lld", used ? " " : "", value_names[i], (long long)values[i]);
}

void gemm_algo_name(const struct gemm_library *library, const struct gemm_algo *algo, char text[GEMM_ALGO_NAME_BYTES])
{
	int64_t values[VALUES];
	algo_values(library, algo, values);
	write_name(values, text);
}

/* The inverse of write_name; false: it did not write this. */
static bool read_name(const char *name, int64_t *values)
{
	char word[16], again[GEMM_ALGO_NAME_BYTES];
	const char *at = name;
	int length = 0;
	long long value = 0;
	memset(values, 0, VALUES * sizeof *values);
	for (; sscanf(at, "%15s %lld%n", word, &value, &length) == 2; at += length) {
		size_t i = 0;
		while (i < VALUES && strcmp(word, value_names[i])) i++;
		if (i == VALUES || value < INT32_MIN || value > INT32_MAX) return false;
		values[i] = value;
	}
	write_name(values, again);
	return !strcmp(name, again);
}

enum status gemm_algo_named(struct gemm_library *library, const char *name, enum dtype type, enum dtype y_type, struct gemm_algo *out, struct error *err)
{
	int64_t values[VALUES];
	if (!read_name(name, values))
		return FAIL(err, BAD_INPUT, "%s: '%s' names no algorithm; '%s N', then other attributes that are not 0, are wanted", gemm_library_variant, name,
		            value_names[0]);
	gemm_status code = make_algo(library, values, type, y_type, out);
	if (code != GEMM_SUCCESS)
		return FAIL(err, BAD_INPUT, "%s has no algorithm '%s' from %s to %s: status %d; measure again here", library->name, name, dtype_name(type), dtype_name(y_type), (int)code);
	return STATUS_OK;
}

static gemm_status legal(const struct gemm_library *lib, struct gemm_algo *algo)
{
	gemm_vendor_algo vendor;
	memcpy(&vendor, algo->bytes, sizeof vendor);
	return gemm_algo_legal(&lib->algo, lib->handle, lib->operation, lib->w, lib->x, lib->y, &vendor, &algo->workspace_bytes);
}

enum status gemm_algo_check(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem, struct gemm_algo *algo,
                            struct error *err)
{
	char name[GEMM_ALGO_NAME_BYTES];
	TRY(set_problem(library, problem, problem->m, err));
	gemm_status code = legal(library, algo);
	gemm_algo_name(library, algo, name);
	if (code != GEMM_SUCCESS)
		return FAIL(err, UNSUPPORTED, "%s: '%s' cannot compute [%d,%d] x [%d,%d]^T of %s: status %d", library->name, name, problem->m, problem->k, problem->n,
		            problem->k, dtype_name(problem->type), (int)code);
	if (algo->workspace_bytes > context->workspace_bytes)
		return FAIL(err, UNSUPPORTED, "%s: '%s' wants %zu bytes of workspace; the stream has %zu", library->name, name, algo->workspace_bytes,
		            context->workspace_bytes);
	return STATUS_OK;
}

/* ---- candidates */

#define SPLIT_MAX_ROWS 64
#define SPLIT_BASES 2 /* of the library's candidates are tried with K cut in other ways */

static bool among(const struct gemm_algo *list, int count, const struct gemm_algo *algo)
{
	for (int i = 0; i < count; i++)
		if (!memcmp(list[i].bytes, algo->bytes, sizeof algo->bytes)) return true;
	return false;
}

/* The layouts are set. */
static int add_splits(const struct gemm_library *lib, const struct gpu_context *context, const struct gemm_problem *p, struct gemm_algo *out, int count, int max)
{
	static const int splits[] = {1, 2, 3, 4, 8};
	const int bases = count < SPLIT_BASES ? count : SPLIT_BASES;
	int64_t values[VALUES];
	for (int base = 0; base < bases; base++)
		for (size_t i = 0; i < sizeof splits / sizeof *splits && count < max; i++) {
			algo_values(lib, &out[base], values);
			if (GEMM_ALGO_SPLIT < 0 || values[GEMM_ALGO_SPLIT] == splits[i]) continue;
			values[GEMM_ALGO_SPLIT] = splits[i];
			values[GEMM_ALGO_SPLIT + 1] = splits[i] > 1 ? GEMM_SPLIT_REDUCTION : 0;
			if (make_algo(lib, values, p->type, p->y_type, &out[count]) != GEMM_SUCCESS) continue;
			struct gemm_algo checked = out[count];
			if (legal(lib, &checked) != GEMM_SUCCESS || checked.workspace_bytes > context->workspace_bytes || among(out, count, &out[count])) continue;
			out[count++].workspace_bytes = checked.workspace_bytes;
		}
	return count;
}

int gemm_library_candidates(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem,
                            struct gemm_algo *out, int max)
{
	struct choice_key key = key_of(problem, problem->accumulate);
	struct gemm_algo found[MOST_FOUND];
	int count = max > 0 && choose(library, context, problem, problem->m, &key, out) ? 1 : 0;
	const int more = ask(library, context->workspace_bytes, problem, problem->m, &key, found, MOST_FOUND);
	for (int i = 0; i < more && count < max; i++)
		if (!among(out, count, &found[i])) out[count++] = found[i];
	return problem->m <= SPLIT_MAX_ROWS ? add_splits(library, context, problem, out, count, max) : count;
}

static gemm_status matmul(struct gemm_library *lib, const struct gpu_context *context, const struct gemm_problem *p, bool accumulate,
                          const struct gemm_algo *algo)
{
	const float one = 1, beta = accumulate ? 1 : 0;
	gemm_vendor_algo vendor;
	memcpy(&vendor, algo->bytes, sizeof vendor);
	return lib->matmul(lib->handle, lib->operation, &one, p->w, lib->w, p->x, lib->x, &beta, p->y, lib->y, p->y, lib->y, &vendor, context->workspace,
	                   context->workspace_bytes, context->stream);
}

enum status gemm_library_run(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem, bool accumulate,
                             const struct gemm_algo *algo, struct gemm_algo *used, bool *done, struct error *err)
{
	*done = false;
	if (algo) {
		TRY(set_problem(library, problem, problem->m, err));
		gemm_status refused = matmul(library, context, problem, accumulate, algo);
		*used = *algo;
		*done = refused == GEMM_SUCCESS;
		if (*done) return STATUS_OK;
		return FAIL(err, UNSUPPORTED, "%s: [%d,%d] x [%d,%d]^T of %s: refused with status %d", library->name, problem->m, problem->k, problem->n, problem->k,
		            dtype_name(problem->type), (int)refused);
	}
	struct choice_key key = key_of(problem, accumulate);
	struct choice *c = find(library, &key), spare = {0};
	if (!c) c = &spare;
	if (!c->used) {
		c->key = key;
		c->used = true;
		c->none = !choose(library, context, problem, key.m, &key, &c->algo);
	}
	if (c->none) return STATUS_OK;
	TRY(set_problem(library, problem, problem->m, err));
	*used = c->algo;
	gemm_status code = matmul(library, context, problem, accumulate, used);
	if (code != GEMM_SUCCESS && key.m != problem->m) { /* chosen for the bucket's size, not legal for this one */
		if (!choose(library, context, problem, problem->m, &key, used)) return STATUS_OK;
		code = matmul(library, context, problem, accumulate, used);
	}
	TRY(check(library, code, "Matmul", err));
	*done = true;
	return STATUS_OK;
}
