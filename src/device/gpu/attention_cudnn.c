/* attention_cudnn.c: the fused attention of cuDNN, loaded at run time, as a way of prefill that is taken only where it is preferred (attention.h).
 *
 * The library is given a graph of operations and makes a plan of it, for fixed maximal numbers of rows and keys: queries times keys, scaled, masked to the
 * sequence's lengths and to the diagonal, softmax, times values; keys and values come through a table of pages. Scores and sums are f32, weights the
 * cache's type. A plan is kept for each class of problem (rows and keys rounded up to powers of two) and made by the first op of its class that is not
 * recorded into a graph, as the matrix library chooses its algorithm; every later one only launches. Lengths and pages are on the device: a kernel writes
 * them into the workspace in the library's form (attention_pages.cu), so that a recorded step can be replayed with others.
 *
 * What it takes: BF16 and F16, heads that are a multiple of 16 up to 256, blocks of a power of two of tokens, one sequence of several rows, alone or behind sequences of one row. No window, no
 * invariant mode. All else, and what the library has no plan for, goes to the kernel that the dispatch takes by itself.
 * Keys and values behind a sequence's last in its last block, and in block 0, are read, weighed with 0: they must be finite, as a cache's are.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/gpu/attention.h"
#include "device/gpu/vendor/sdpa.h"
#include "device/gpu/ways.h"

#define PLANS 64
#define PACKS 128       /* of a plan: one for each place that it was run on, so a layer's cache each */
#define DESCRIPTORS 112 /* of a plan's graph */
#define OPERATIONS 24
#define CONFIGS 8       /* that the library proposes */
#define HEADER_BYTES 256 /* of the workspace: lengths; the table of pages follows */
#define ALIGNMENT 16

/* Tensors of the graph that lie in memory. The others are numbered from VIRTUAL on. */
enum tensor_id { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_ROWS, ID_KEYS, ID_TABLE, ID_SCALE, ID_LOWEST, ID_COUNT, ID_VIRTUAL = 100 };

struct plan_key {
	enum dtype dtype;
	int q_heads, kv_heads, head_dim, block_tokens, blocks;
	int rows, keys; /* at most */
	int64_t q_stride, out_stride;
	float scale;
};

struct pack {
	const void *q, *kv;
	void *out;
	sdpa_descriptor descriptor;
};

struct plan {
	struct plan_key key;
	bool none; /* the library has no plan: why, the log has said */
	sdpa_descriptor made[DESCRIPTORS];
	int made_count;
	sdpa_descriptor plan;
	int64_t workspace_bytes;
	struct pack pack[PACKS];
	int packs, next_pack; /* next_pack: which is replaced when all are there */
};

struct attention_library {
	void *so;
#define X(field, symbol, result, parameters) result(*field) parameters;
	SDPA_FUNCTION_LIST(X)
#undef X
	sdpa_handle handle;
	float lowest; /* what a masked score is */
	int plans;
	struct plan *plan[PLANS];
};

/* ---- the library */

static bool look_up(struct attention_library *lib)
{
	bool all = true;
#define X(field, symbol, result, parameters) *(void **)&lib->field = dlsym(lib->so, SDPA_SYMBOL(symbol)), all = all && lib->field;
	SDPA_FUNCTION_LIST(X)
#undef X
	return all;
}

static enum status check(const struct attention_library *lib, sdpa_status code, const char *what, struct error *err)
{
	if (code == SDPA_SUCCESS) return STATUS_OK;
	char text[256] = "";
	lib->last_error(text, sizeof text);
	return FAIL(err, DEVICE_FAULT, "%s: %s failed with status %d: %s", GPU_ATTENTION_LIBRARY ? GPU_ATTENTION_LIBRARY : "", what, code, text);
}

static void destroy_plan(const struct attention_library *lib, struct plan *plan)
{
	for (int i = 0; i < plan->packs; i++) (void)lib->descriptor_destroy(plan->pack[i].descriptor);
	if (plan->plan) (void)lib->descriptor_destroy(plan->plan);
	while (plan->made_count) (void)lib->descriptor_destroy(plan->made[--plan->made_count]);
	free(plan);
}

void attention_library_destroy(struct attention_library **library)
{
	struct attention_library *lib = *library;
	*library = NULL;
	if (!lib) return;
	while (lib->plans) destroy_plan(lib, lib->plan[--lib->plans]);
	if (lib->handle) (void)lib->destroy(lib->handle);
	/* The library stays loaded: other streams may use it. */
	free(lib);
}

static enum status open_library(struct attention_library *lib, const struct gpu_context *ctx, struct error *err)
{
	const char *name = GPU_ATTENTION_LIBRARY;
	if (!name) return FAIL(err, UNSUPPORTED, "attention: this back end knows no library of fused attention");
	lib->so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!lib->so) return FAIL(err, UNSUPPORTED, "attention: %s is not here: %s", name, dlerror());
	if (!look_up(lib)) return FAIL(err, UNSUPPORTED, "attention: %s lacks functions that are wanted", name);
	const long version = (long)lib->version();
	if (version < SDPA_VERSION_FIRST) return FAIL(err, UNSUPPORTED, "attention: %s is of version %ld; %ld or later is wanted", name, version, SDPA_VERSION_FIRST);
	lib->lowest = -INFINITY;
	TRY(check(lib, lib->create(&lib->handle), "Create", err));
	return check(lib, lib->set_stream(lib->handle, ctx->stream), "SetStream", err);
}

/* The stream's, opened when first asked for; NULL where it is not here. */
static struct attention_library *library_of(const struct gpu_context *ctx, struct error *err)
{
	struct dispatch *d = ctx->dispatch;
	if (d->attention_library) return d->attention_library;
	if (d->attention_library_sought) {
		(void)FAIL(err, UNSUPPORTED, "attention: %s was sought and could not be used", GPU_ATTENTION_LIBRARY ? GPU_ATTENTION_LIBRARY : SDPA_VARIANT);
		return NULL;
	}
	d->attention_library_sought = true;
	struct attention_library *lib = mem_zalloc(1, sizeof *lib, "attention library", err);
	if (lib && open_library(lib, ctx, err) != STATUS_OK) attention_library_destroy(&lib);
	d->attention_library = lib;
	return lib;
}

/* ---- descriptors: each is the plan's as soon as it is made. After a failure nothing more is made, and *st tells the first one. */

struct builder {
	struct attention_library *lib;
	struct plan *plan;
	sdpa_descriptor operation[OPERATIONS];
	int operations, next_virtual;
	enum status st;
	struct error *err;
};

static void note(struct builder *b, sdpa_status code, const char *what)
{
	if (b->st == STATUS_OK) b->st = check(b->lib, code, what, b->err);
}

static sdpa_descriptor begin(struct builder *b, enum sdpa_kind kind, const char *what)
{
	sdpa_descriptor made = NULL;
	if (b->st != STATUS_OK) return NULL;
	if (b->plan->made_count == DESCRIPTORS) {
		b->st = FAIL(b->err, DEVICE_FAULT, "attention: a graph of more than %d descriptors", DESCRIPTORS);
		return NULL;
	}
	note(b, b->lib->descriptor_create((int)kind, &made), what);
	if (made) b->plan->made[b->plan->made_count++] = made;
	return made;
}

static void set(struct builder *b, sdpa_descriptor d, enum sdpa_attribute attribute, enum sdpa_type type, int64_t count, const void *value)
{
	char what[48];
	if (b->st != STATUS_OK) return;
	snprintf(what, sizeof what, "setting attribute %d", (int)attribute);
	note(b, b->lib->set(d, (int)attribute, (int)type, count, value), what);
}

static void set_word(struct builder *b, sdpa_descriptor d, enum sdpa_attribute attribute, enum sdpa_type type, int value)
{
	set(b, d, attribute, type, 1, &value);
}

static void link_to(struct builder *b, sdpa_descriptor d, enum sdpa_attribute attribute, sdpa_descriptor other)
{
	if (other) set(b, d, attribute, SDPA_TYPE_DESCRIPTOR, 1, &other);
}

static sdpa_descriptor finish(struct builder *b, sdpa_descriptor d, const char *what)
{
	if (b->st == STATUS_OK) note(b, b->lib->descriptor_finish(d), what);
	return d;
}

static void add_operation(struct builder *b, sdpa_descriptor d, const char *what)
{
	finish(b, d, what);
	if (b->st == STATUS_OK && b->operations == OPERATIONS) b->st = FAIL(b->err, DEVICE_FAULT, "attention: a graph of more than %d operations", OPERATIONS);
	if (b->st == STATUS_OK) b->operation[b->operations++] = d;
}

struct shape4 {
	int64_t dims[4], strides[4];
};

static sdpa_descriptor tensor(struct builder *b, int64_t id, enum sdpa_data data, struct shape4 shape)
{
	sdpa_descriptor d = begin(b, SDPA_TENSOR, "a tensor");
	const int64_t alignment = ALIGNMENT;
	const bool yes = true;
	set_word(b, d, SDPA_TENSOR_DATA, SDPA_TYPE_DATA, (int)data);
	set(b, d, SDPA_TENSOR_DIMENSIONS, SDPA_TYPE_INT64, 4, shape.dims);
	set(b, d, SDPA_TENSOR_STRIDES, SDPA_TYPE_INT64, 4, shape.strides);
	set(b, d, SDPA_TENSOR_ID, SDPA_TYPE_INT64, 1, &id);
	set(b, d, SDPA_TENSOR_ALIGNMENT, SDPA_TYPE_INT64, 1, &alignment);
	if (id >= ID_VIRTUAL) set(b, d, SDPA_TENSOR_VIRTUAL, SDPA_TYPE_BOOLEAN, 1, &yes);
	if (id == ID_SCALE || id == ID_LOWEST) set(b, d, SDPA_TENSOR_BY_VALUE, SDPA_TYPE_BOOLEAN, 1, &yes);
	return finish(b, d, "a tensor");
}

static sdpa_descriptor virtual_tensor(struct builder *b, enum sdpa_data data, struct shape4 shape)
{
	return tensor(b, ID_VIRTUAL + b->next_virtual++, data, shape);
}

static struct shape4 one(void)
{
	return (struct shape4){{1, 1, 1, 1}, {1, 1, 1, 1}};
}

/* y = mode(x, b, t); axis: of SDPA_INDEX. */
static sdpa_descriptor pointwise(struct builder *b, enum sdpa_pointwise mode, enum sdpa_data precision, int64_t axis, const sdpa_descriptor in[3], sdpa_descriptor y)
{
	sdpa_descriptor what = begin(b, SDPA_POINTWISE, "a pointwise mode");
	set_word(b, what, SDPA_POINTWISE_MODE, SDPA_TYPE_POINTWISE, (int)mode);
	set_word(b, what, SDPA_POINTWISE_PRECISION, SDPA_TYPE_DATA, (int)precision);
	if (mode == SDPA_INDEX) set(b, what, SDPA_POINTWISE_AXIS, SDPA_TYPE_INT64, 1, &axis);
	finish(b, what, "a pointwise mode");
	sdpa_descriptor op = begin(b, SDPA_POINTWISE_OP, "a pointwise operation");
	link_to(b, op, SDPA_POINTWISE_OP_WHAT, what);
	link_to(b, op, SDPA_POINTWISE_OP_X, in[0]);
	link_to(b, op, SDPA_POINTWISE_OP_B, in[1]);
	link_to(b, op, SDPA_POINTWISE_OP_T, in[2]);
	link_to(b, op, SDPA_POINTWISE_OP_Y, y);
	add_operation(b, op, "a pointwise operation");
	return y;
}

static sdpa_descriptor reduce(struct builder *b, enum sdpa_reduction mode, sdpa_descriptor x, sdpa_descriptor y)
{
	sdpa_descriptor what = begin(b, SDPA_REDUCTION, "a reduction");
	set_word(b, what, SDPA_REDUCTION_MODE, SDPA_TYPE_REDUCTION, (int)mode);
	set_word(b, what, SDPA_REDUCTION_PRECISION, SDPA_TYPE_DATA, SDPA_FLOAT);
	finish(b, what, "a reduction");
	sdpa_descriptor op = begin(b, SDPA_REDUCTION_OP, "a reduction");
	link_to(b, op, SDPA_REDUCTION_OP_WHAT, what);
	link_to(b, op, SDPA_REDUCTION_OP_X, x);
	link_to(b, op, SDPA_REDUCTION_OP_Y, y);
	add_operation(b, op, "a reduction");
	return y;
}

/* c = a b, of which only the sequence's rows and keys count: those are m, n or k of the product. */
struct product {
	sdpa_descriptor a, b, c, m, n, k;
};
static sdpa_descriptor matmul(struct builder *b, const struct product *p)
{
	sdpa_descriptor what = begin(b, SDPA_MATMUL, "a product");
	set_word(b, what, SDPA_MATMUL_PRECISION, SDPA_TYPE_DATA, SDPA_FLOAT);
	finish(b, what, "a product");
	sdpa_descriptor op = begin(b, SDPA_MATMUL_OP, "a product");
	link_to(b, op, SDPA_MATMUL_OP_A, p->a);
	link_to(b, op, SDPA_MATMUL_OP_B, p->b);
	link_to(b, op, SDPA_MATMUL_OP_C, p->c);
	link_to(b, op, SDPA_MATMUL_OP_WHAT, what);
	link_to(b, op, SDPA_MATMUL_OP_M, p->m);
	link_to(b, op, SDPA_MATMUL_OP_N, p->n);
	link_to(b, op, SDPA_MATMUL_OP_K, p->k);
	add_operation(b, op, "a product");
	return p->c;
}

static sdpa_descriptor load_pages(struct builder *b, sdpa_descriptor container, sdpa_descriptor keys, sdpa_descriptor table, sdpa_descriptor y)
{
	sdpa_descriptor op = begin(b, SDPA_PAGES_OP, "a load of pages");
	link_to(b, op, SDPA_PAGES_OP_CONTAINER, container);
	link_to(b, op, SDPA_PAGES_OP_TABLE, table);
	link_to(b, op, SDPA_PAGES_OP_LENGTH, keys);
	link_to(b, op, SDPA_PAGES_OP_Y, y);
	add_operation(b, op, "a load of pages");
	return y;
}

/* ---- the graph */

static enum sdpa_data data_of(enum dtype dtype)
{
	return dtype == DTYPE_BF16 ? SDPA_BFLOAT16 : SDPA_HALF;
}

static int64_t table_blocks(const struct plan_key *k)
{
	return (k->keys + k->block_tokens - 1) / k->block_tokens;
}

static struct shape4 score_shape(const struct plan_key *k)
{
	const int64_t rows = k->rows, keys = k->keys;
	return (struct shape4){{1, k->q_heads, rows, keys}, {k->q_heads * rows * keys, rows * keys, keys, 1}};
}

static sdpa_descriptor index_of(struct builder *b, enum sdpa_data precision, int axis, sdpa_descriptor scores)
{
	return pointwise(b, SDPA_INDEX, precision, axis, (sdpa_descriptor[3]){scores}, virtual_tensor(b, SDPA_INT32, score_shape(&b->plan->key)));
}

/* Scores whose condition does not hold become the lowest. */
static sdpa_descriptor select_scores(struct builder *b, sdpa_descriptor scores, sdpa_descriptor lowest, sdpa_descriptor condition)
{
	return pointwise(b, SDPA_SELECT, SDPA_FLOAT, 0, (sdpa_descriptor[3]){scores, lowest, condition}, virtual_tensor(b, SDPA_FLOAT, score_shape(&b->plan->key)));
}

/* Rows and keys of the sequence, and of those, keys up to the row's own: key <= row + keys - rows. */
static sdpa_descriptor mask(struct builder *b, sdpa_descriptor scores, sdpa_descriptor rows, sdpa_descriptor keys)
{
	const struct shape4 shape = score_shape(&b->plan->key);
	sdpa_descriptor lowest = tensor(b, ID_LOWEST, SDPA_FLOAT, one());
	sdpa_descriptor row = index_of(b, SDPA_INT32, 2, scores), key = index_of(b, SDPA_INT32, 3, scores);
	sdpa_descriptor row_is = pointwise(b, SDPA_LT, SDPA_BOOLEAN, 0, (sdpa_descriptor[3]){row, rows}, virtual_tensor(b, SDPA_BOOLEAN, shape));
	sdpa_descriptor key_is = pointwise(b, SDPA_LT, SDPA_BOOLEAN, 0, (sdpa_descriptor[3]){key, keys}, virtual_tensor(b, SDPA_BOOLEAN, shape));
	sdpa_descriptor both = pointwise(b, SDPA_AND, SDPA_BOOLEAN, 0, (sdpa_descriptor[3]){row_is, key_is}, virtual_tensor(b, SDPA_BOOLEAN, shape));
	scores = select_scores(b, scores, lowest, both);
	row = index_of(b, SDPA_FLOAT, 2, scores), key = index_of(b, SDPA_FLOAT, 3, scores);
	row = pointwise(b, SDPA_ADD, SDPA_INT32, 0, (sdpa_descriptor[3]){row, keys}, virtual_tensor(b, SDPA_INT32, shape));
	row = pointwise(b, SDPA_SUB, SDPA_INT32, 0, (sdpa_descriptor[3]){row, rows}, virtual_tensor(b, SDPA_INT32, shape));
	sdpa_descriptor seen = pointwise(b, SDPA_GE, SDPA_BOOLEAN, 0, (sdpa_descriptor[3]){row, key}, virtual_tensor(b, SDPA_BOOLEAN, shape));
	return select_scores(b, scores, lowest, seen);
}

static sdpa_descriptor softmax(struct builder *b, sdpa_descriptor scores)
{
	const struct plan_key *k = &b->plan->key;
	const struct shape4 shape = score_shape(k), row = {{1, k->q_heads, k->rows, 1}, {(int64_t)k->q_heads * k->rows, k->rows, 1, 1}};
	sdpa_descriptor top = reduce(b, SDPA_REDUCE_MAX, scores, virtual_tensor(b, SDPA_FLOAT, row));
	sdpa_descriptor below = pointwise(b, SDPA_SUB, SDPA_FLOAT, 0, (sdpa_descriptor[3]){scores, top}, virtual_tensor(b, SDPA_FLOAT, shape));
	sdpa_descriptor weights = pointwise(b, SDPA_EXP, SDPA_FLOAT, 0, (sdpa_descriptor[3]){below}, virtual_tensor(b, SDPA_FLOAT, shape));
	sdpa_descriptor sum = reduce(b, SDPA_REDUCE_ADD, weights, virtual_tensor(b, SDPA_FLOAT, row));
	return pointwise(b, SDPA_DIV, SDPA_FLOAT, 0, (sdpa_descriptor[3]){weights, sum}, virtual_tensor(b, data_of(k->dtype), shape));
}

static void build_operations(struct builder *b)
{
	const struct plan_key *k = &b->plan->key;
	const enum sdpa_data data = data_of(k->dtype);
	const int64_t dim = k->head_dim, heads = k->kv_heads, page = (int64_t)k->block_tokens * dim, table = table_blocks(k);
	const struct shape4 pages = {{k->blocks, heads, k->block_tokens, dim}, {2 * heads * page, page, dim, 1}};
	sdpa_descriptor rows = tensor(b, ID_ROWS, SDPA_INT32, one()), keys = tensor(b, ID_KEYS, SDPA_INT32, one());
	sdpa_descriptor pages_of = tensor(b, ID_TABLE, SDPA_INT32, (struct shape4){{1, 1, table, 1}, {table, table, 1, 1}});
	sdpa_descriptor q = tensor(b, ID_Q, data, (struct shape4){{1, k->q_heads, k->rows, dim}, {k->rows * k->q_stride, dim, k->q_stride, 1}});
	sdpa_descriptor key_pages = tensor(b, ID_K, data, pages);
	sdpa_descriptor key_t = load_pages(b, key_pages, keys, pages_of, virtual_tensor(b, data, (struct shape4){{1, heads, dim, k->keys}, {heads * dim * k->keys, dim * k->keys, 1, dim}}));
	sdpa_descriptor scores = matmul(b, &(struct product){.a = q, .b = key_t, .c = virtual_tensor(b, SDPA_FLOAT, score_shape(k)), .m = rows, .n = keys});
	sdpa_descriptor scale = tensor(b, ID_SCALE, SDPA_FLOAT, one());
	scores = pointwise(b, SDPA_MUL, SDPA_FLOAT, 0, (sdpa_descriptor[3]){scores, scale}, virtual_tensor(b, SDPA_FLOAT, score_shape(k)));
	scores = mask(b, scores, rows, keys);
	sdpa_descriptor weights = softmax(b, scores);
	sdpa_descriptor value_pages = tensor(b, ID_V, data, pages);
	sdpa_descriptor values = load_pages(b, value_pages, keys, pages_of, virtual_tensor(b, data, (struct shape4){{1, heads, k->keys, dim}, {heads * dim * k->keys, dim * k->keys, dim, 1}}));
	sdpa_descriptor out = tensor(b, ID_OUT, data, (struct shape4){{1, k->q_heads, k->rows, dim}, {k->rows * k->out_stride, dim, k->out_stride, 1}});
	matmul(b, &(struct product){.a = weights, .b = values, .c = out, .m = rows, .k = keys});
}

/* ---- plans */

/* The first of the library's proposals that it makes a plan of and that has room in the workspace. */
static enum status choose(struct builder *b, sdpa_descriptor heuristic, size_t room, struct error *err)
{
	struct attention_library *lib = b->lib;
	sdpa_descriptor config[CONFIGS] = {0};
	int64_t count = 0, bytes = 0, got = 0, smallest = -1;
	for (int i = 0; i < CONFIGS; i++) config[i] = begin(b, SDPA_CONFIG, "a proposal");
	if (b->st == STATUS_OK) note(b, lib->get(heuristic, SDPA_HEURISTIC_RESULTS, SDPA_TYPE_DESCRIPTOR, CONFIGS, &count, config), "proposals");
	TRY(b->st);
	for (int64_t i = 0; i < count && i < CONFIGS; i++) {
		sdpa_descriptor plan = NULL;
		b->st = STATUS_OK;
		note(b, lib->descriptor_create(SDPA_PLAN, &plan), "a plan");
		set(b, plan, SDPA_PLAN_HANDLE, SDPA_TYPE_HANDLE, 1, &lib->handle);
		link_to(b, plan, SDPA_PLAN_CONFIG, config[i]);
		finish(b, plan, "a plan");
		if (b->st == STATUS_OK) note(b, lib->get(plan, SDPA_PLAN_WORKSPACE, SDPA_TYPE_INT64, 1, &got, &bytes), "a plan's workspace");
		if (b->st == STATUS_OK && bytes >= 0 && (size_t)bytes <= room) {
			b->plan->plan = plan, b->plan->workspace_bytes = bytes;
			return STATUS_OK;
		}
		if (b->st == STATUS_OK && (smallest < 0 || bytes < smallest)) smallest = bytes;
		if (plan) (void)lib->descriptor_destroy(plan);
	}
	if (smallest >= 0) return FAIL(err, UNSUPPORTED, "attention: the library's plans want %lld bytes of workspace and more; there are %zu", (long long)smallest, room);
	TRY(b->st);
	return FAIL(err, UNSUPPORTED, "attention: the library proposes nothing for this graph");
}

static size_t header_bytes(const struct plan_key *k)
{
	return HEADER_BYTES + ((size_t)table_blocks(k) * sizeof(int32_t) + 255) / 256 * 256;
}

static enum status make_plan(struct attention_library *lib, const struct gpu_context *ctx, struct plan *plan, struct error *err)
{
	struct builder b = {.lib = lib, .plan = plan, .err = err};
	const size_t header = header_bytes(&plan->key);
	if (header > ctx->workspace_bytes) return FAIL(err, UNSUPPORTED, "attention: pages of %d keys want %zu bytes of workspace; there are %zu", plan->key.keys, header, ctx->workspace_bytes);
	build_operations(&b);
	sdpa_descriptor graph = begin(&b, SDPA_GRAPH, "the graph");
	set(&b, graph, SDPA_GRAPH_HANDLE, SDPA_TYPE_HANDLE, 1, &lib->handle);
	set(&b, graph, SDPA_GRAPH_OPS, SDPA_TYPE_DESCRIPTOR, b.operations, b.operation);
	finish(&b, graph, "the graph");
	sdpa_descriptor heuristic = begin(&b, SDPA_HEURISTIC, "the heuristic");
	link_to(&b, heuristic, SDPA_HEURISTIC_GRAPH, graph);
	set_word(&b, heuristic, SDPA_HEURISTIC_MODE, SDPA_TYPE_HEURISTIC, SDPA_HEURISTIC_A);
	finish(&b, heuristic, "the heuristic");
	TRY(b.st);
	return choose(&b, heuristic, ctx->workspace_bytes - header, err);
}

static int class_of(int n)
{
	int class = 64;
	while (class < n && class <= INT32_MAX / 2) class *= 2;
	return class;
}

/* What nobody has said (variants are asked for by heads and rows alone) is as the engine has it for a prompt from its start. */
static struct plan_key key_of(const struct attention_params *p, enum dtype dtype)
{
	struct plan_key key;
	memset(&key, 0, sizeof key); /* compared with memcmp */
	const int rows = p->rows - p->first_seq, keys = p->max_kv_len > rows ? p->max_kv_len : rows;
	const bool told = p->kv != NULL;
	key.dtype = dtype, key.q_heads = p->q_heads, key.kv_heads = p->kv_heads, key.head_dim = p->head_dim;
	key.block_tokens = told ? p->block_tokens : 64, key.blocks = told ? p->blocks : class_of(keys) / 64 + 1;
	key.rows = class_of(rows), key.keys = class_of(keys);
	key.q_stride = told ? p->q_stride : (int64_t)(p->q_heads + 2 * p->kv_heads) * p->head_dim;
	key.out_stride = told ? p->out_stride : (int64_t)p->q_heads * p->head_dim;
	key.scale = told ? p->scale_log2 / 1.44269504f : 1 / sqrtf((float)p->head_dim);
	return key;
}

static struct plan *find_plan(const struct attention_library *lib, const struct plan_key *key)
{
	for (int i = 0; i < lib->plans; i++)
		if (!memcmp(&lib->plan[i]->key, key, sizeof *key)) return lib->plan[i];
	return NULL;
}

/* The plan for this problem, made if there is none yet. */
static enum status plan_for(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct plan **out, struct error *err)
{
	struct attention_library *lib = library_of(ctx, err);
	const struct plan_key key = key_of(p, dtype);
	*out = NULL;
	if (!lib) return STATUS_UNSUPPORTED;
	struct plan *plan = find_plan(lib, &key);
	if (plan && plan->none) return FAIL(err, UNSUPPORTED, "attention: %s has no plan for %d/%d heads of %d", SDPA_VARIANT, p->q_heads, p->kv_heads, p->head_dim);
	if (!plan) {
		if (*ctx->recording) return FAIL(err, UNSUPPORTED, "attention: a plan of %s is not made while a graph is recorded", SDPA_VARIANT);
		if (lib->plans == PLANS) return FAIL(err, UNSUPPORTED, "attention: %d plans of %s are there, no more are kept", PLANS, SDPA_VARIANT);
		plan = mem_zalloc(1, sizeof *plan, "attention plan", err);
		if (!plan) return STATUS_NO_MEMORY;
		plan->key = key;
		lib->plan[lib->plans++] = plan;
		const enum status st = make_plan(lib, ctx, plan, err);
		plan->none = st != STATUS_OK;
		if (st != STATUS_OK) return st;
	}
	*out = plan;
	return STATUS_OK;
}

enum status attention_cudnn_ready(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err)
{
	struct plan *plan;
	return plan_for(ctx, p, dtype, &plan, err);
}

/* ---- the kernel */

static enum status make_pack(struct attention_library *lib, const struct gpu_context *ctx, struct plan *plan, const struct pack *want, struct pack **out, struct error *err)
{
	const struct plan_key *k = &plan->key;
	char *workspace = ctx->workspace;
	const size_t values = (size_t)k->kv_heads * (size_t)k->block_tokens * (size_t)k->head_dim * dtype_bytes(k->dtype);
	const int64_t ids[] = {ID_Q, ID_K, ID_V, ID_OUT, ID_ROWS, ID_KEYS, ID_TABLE, ID_SCALE, ID_LOWEST};
	const void *pointers[] = {want->q, want->kv, (const char *)want->kv + values, want->out, workspace, workspace + ATTENTION_PAGES_KEYS,
	                          workspace + HEADER_BYTES, &k->scale, &lib->lowest};
	const void *room = workspace + header_bytes(k);
	struct pack made = *want;
	enum status st;
	_Static_assert(sizeof ids / sizeof *ids == ID_COUNT - 1 && sizeof pointers / sizeof *pointers == ID_COUNT - 1, "every tensor in memory has its place");
	TRY(check(lib, lib->descriptor_create(SDPA_PACK, &made.descriptor), "a pack", err));
	TRY_GOTO(check(lib, lib->set(made.descriptor, SDPA_PACK_IDS, SDPA_TYPE_INT64, ID_COUNT - 1, ids), "a pack's tensors", err), fail);
	TRY_GOTO(check(lib, lib->set(made.descriptor, SDPA_PACK_POINTERS, SDPA_TYPE_POINTER, ID_COUNT - 1, pointers), "a pack's addresses", err), fail);
	TRY_GOTO(check(lib, lib->set(made.descriptor, SDPA_PACK_WORKSPACE, SDPA_TYPE_POINTER, 1, &room), "a pack's workspace", err), fail);
	TRY_GOTO(check(lib, lib->descriptor_finish(made.descriptor), "a pack", err), fail);
	struct pack *slot = &plan->pack[plan->packs < PACKS ? plan->packs : plan->next_pack];
	if (plan->packs < PACKS) plan->packs++;
	else (void)lib->descriptor_destroy(slot->descriptor), plan->next_pack = (plan->next_pack + 1) % PACKS;
	*slot = made;
	*out = slot;
	return STATUS_OK;
fail:
	(void)lib->descriptor_destroy(made.descriptor);
	return st;
}

static enum status pack_for(struct attention_library *lib, const struct gpu_context *ctx, struct plan *plan, const struct pack *want, struct pack **out, struct error *err)
{
	for (int i = 0; i < plan->packs; i++) {
		struct pack *p = &plan->pack[i];
		if (p->q != want->q || p->kv != want->kv || p->out != want->out) continue;
		*out = p;
		return STATUS_OK;
	}
	return make_pack(lib, ctx, plan, want, out, err);
}

static bool can_cudnn(const struct attention_params *p, enum dtype dtype)
{
	return GPU_ATTENTION_LIBRARY && (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 16 == 0 && p->head_dim <= 256 && !p->window && !p->invariant &&
	       !(p->block_tokens & (p->block_tokens - 1)) &&
	       p->seqs - p->first_seq == 1 && p->rows - p->first_seq > 1;
}

static enum status launch_cudnn(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err)
{
	struct plan *plan;
	struct pack *pack;
	TRY(plan_for(ctx, p, dtype, &plan, err));
	struct attention_library *lib = ctx->dispatch->attention_library;
	const int64_t bytes = (int64_t)dtype_bytes(dtype), row = p->first_seq;
	const struct pack want = {.q = (const char *)p->q + row * p->q_stride * bytes, .kv = p->kv, .out = (char *)p->out + row * p->out_stride * bytes};
	TRY(pack_for(lib, ctx, plan, &want, &pack, err));
	char *workspace = ctx->workspace;
	TRY(attention_pages(ctx, p, (int32_t *)workspace, (int32_t *)(workspace + HEADER_BYTES), (int)table_blocks(&plan->key), err));
	return check(lib, lib->execute(lib->handle, plan->plan, pack->descriptor), "Execute", err);
}

const struct attention_kernel attention_cudnn = {SDPA_VARIANT, can_cudnn, launch_cudnn, false};
