/* attention_cudnn.c: the fused attention of cuDNN, loaded at run time, as a way of prefill that is taken only where it is preferred (attention.h).
 *
 * The library is given a graph of operations and makes a plan of it: queries times keys, scaled, masked to the diagonal,
 * softmax, times values; keys and values come through a table of pages, rows and results lie behind one another. Scores and sums are f32, weights the
 * cache's type. A plan is for a number of sequences, and for so many rows and keys of each at most; one is kept for each class of these numbers, made by the
 * first op of its class that is not recorded into a graph, as the matrix library chooses its algorithm. Later ones launch. Lengths, offsets and pages are
 * on the device: a kernel writes them into the workspace in the library's form (attention_pages.cu), so that a recorded op can be replayed with others.
 *
 * The statistics of the softmax, log(sum) + maximum, are part of the graph although nobody reads them. Without them the library makes a plan too, whose
 * kernel writes them where one of the numbers lies that are passed by value: in memory of the host (cuDNN 9.19 on an H200: an illegal access).
 *
 * What it takes: BF16 and F16, heads that are a multiple of 16 up to 256, blocks of a power of two, up to 64 sequences. No window, no invariant mode. All
 * else, and what the library has no plan for, goes to the kernel that the dispatch takes by itself.
 * Values behind a sequence's last key in its last block, and in block 0, are read and weighed with 0: they must be finite, as a cache's are (its memory is
 * zeroed), or the sequence's results are NaN. Keys there may be anything.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/gpu/attention.h"
#include "device/gpu/vendor/sdpa.h"
#include "device/gpu/ways.h"

#define PLANS 64
#define DESCRIPTORS 80 /* of a graph */
#define OPERATIONS 20
#define CONFIGS 4 /* that the library proposes */
#define MAX_SEQS 64
#define ALIGNMENT 256 /* of the library's own workspace */

/* Tensors of the graph that lie in memory. The others are numbered from VIRTUAL on. */
enum tensor_id { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_ROWS, ID_KEYS, ID_Q_START, ID_OUT_START, ID_TABLE, ID_SCALE, ID_LOWEST, ID_COUNT, ID_VIRTUAL = 100 };

struct plan_key {
	enum dtype dtype;
	int q_heads, kv_heads, head_dim, block_tokens, blocks;
	int seqs, rows, keys; /* at most */
	int64_t q_stride, out_stride;
};

struct plan {
	struct plan_key key;
	sdpa_descriptor plan; /* NULL: the library has none; why, the log has said */
	int64_t workspace_bytes;
};

struct attention_library {
	void *so;
#define X(field, symbol, result, parameters) result(*field) parameters;
	SDPA_FUNCTION_LIST(X)
#undef X
	sdpa_handle handle;
	int plans;
	struct plan plan[PLANS];
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

static enum status check(const struct attention_library *lib, sdpa_status code, const char *what, int number, struct error *err)
{
	if (code == SDPA_SUCCESS) return STATUS_OK;
	char text[256] = "";
	lib->last_error(text, sizeof text);
	return FAIL(err, DEVICE_FAULT, SDPA_VARIANT ": %s %d failed with status %d: %s", what, number, code, text);
}

void attention_library_destroy(struct attention_library **library)
{
	struct attention_library *lib = *library;
	*library = NULL;
	if (!lib) return;
	while (lib->plans--)
		if (lib->plan[lib->plans].plan) (void)lib->descriptor_destroy(lib->plan[lib->plans].plan);
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
	TRY(check(lib, lib->create(&lib->handle), "handle", 0, err));
	return check(lib, lib->set_stream(lib->handle, ctx->stream), "stream", 0, err);
}

/* The stream's, opened when first asked for; NULL where it is not here. */
static struct attention_library *library_of(const struct gpu_context *ctx, struct error *err)
{
	struct dispatch *d = ctx->dispatch;
	if (d->attention_library) return d->attention_library;
	if (d->attention_library_sought) {
		(void)FAIL(err, UNSUPPORTED, "attention: " SDPA_VARIANT " was sought and could not be used");
		return NULL;
	}
	d->attention_library_sought = true;
	struct attention_library *lib = mem_zalloc(1, sizeof *lib, "attention library", err);
	if (lib && open_library(lib, ctx, err) != STATUS_OK) attention_library_destroy(&lib);
	d->attention_library = lib;
	return lib;
}

/* ---- descriptors. After a failure nothing more is made, and st tells the first one. */

struct shape4 {
	int64_t dims[4], strides[4];
};

struct builder {
	struct attention_library *lib;
	const struct plan_key *key;
	struct shape4 scores, row; /* of each head: all scores, and one number for each row */
	sdpa_descriptor made[DESCRIPTORS], operation[OPERATIONS];
	int made_count, operations, next_virtual;
	enum status st;
	struct error *err;
};

struct attribute {
	enum sdpa_attribute name;
	enum sdpa_type type;
	int64_t count; /* 0: left out */
	const void *value;
};
#define ONE(name, type, variable) {(name), (type), 1, &(variable)}
#define LINK(name, descriptor) {(name), SDPA_TYPE_DESCRIPTOR, (descriptor) != NULL, &(descriptor)}
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static sdpa_descriptor describe(struct builder *b, enum sdpa_kind kind, const struct attribute *list, int count)
{
	const struct attention_library *lib = b->lib;
	sdpa_descriptor made = NULL;
	if (b->st == STATUS_OK && b->made_count == DESCRIPTORS) b->st = FAIL(b->err, DEVICE_FAULT, "attention: a graph of more than %d descriptors", DESCRIPTORS);
	if (b->st == STATUS_OK) b->st = check(lib, lib->descriptor_create((int)kind, &made), "descriptor", (int)kind, b->err);
	if (made) b->made[b->made_count++] = made;
	for (int i = 0; i < count && b->st == STATUS_OK; i++)
		if (list[i].count) b->st = check(lib, lib->set(made, (int)list[i].name, (int)list[i].type, list[i].count, list[i].value), "attribute", (int)list[i].name, b->err);
	if (b->st == STATUS_OK && count) b->st = check(lib, lib->descriptor_finish(made), "finishing descriptor", (int)kind, b->err);
	return made;
}

static void operation(struct builder *b, enum sdpa_kind kind, const struct attribute *list, int count)
{
	sdpa_descriptor made = describe(b, kind, list, count);
	if (b->st == STATUS_OK && b->operations == OPERATIONS) b->st = FAIL(b->err, DEVICE_FAULT, "attention: a graph of more than %d operations", OPERATIONS);
	if (b->st == STATUS_OK) b->operation[b->operations++] = made;
}

/* start: offset of each sequence in elements, or NULL. */
static sdpa_descriptor tensor(struct builder *b, int64_t id, enum sdpa_data data, const struct shape4 *shape, sdpa_descriptor start)
{
	const bool virtual = id >= ID_VIRTUAL, by_value = id == ID_SCALE || id == ID_LOWEST;
	const int64_t alignment = data == SDPA_HALF || data == SDPA_BFLOAT16 ? 16 : 4;
	const struct attribute list[] = {ONE(SDPA_TENSOR_DATA, SDPA_TYPE_DATA, data),        {SDPA_TENSOR_DIMENSIONS, SDPA_TYPE_INT64, 4, shape->dims},
	                                 {SDPA_TENSOR_STRIDES, SDPA_TYPE_INT64, 4, shape->strides}, ONE(SDPA_TENSOR_ID, SDPA_TYPE_INT64, id),
	                                 ONE(SDPA_TENSOR_ALIGNMENT, SDPA_TYPE_INT64, alignment), ONE(SDPA_TENSOR_VIRTUAL, SDPA_TYPE_BOOLEAN, virtual),
	                                 ONE(SDPA_TENSOR_BY_VALUE, SDPA_TYPE_BOOLEAN, by_value), LINK(SDPA_TENSOR_START, start)};
	return describe(b, SDPA_TENSOR, list, LENGTH(list));
}

static sdpa_descriptor virtual_tensor(struct builder *b, enum sdpa_data data, const struct shape4 *shape)
{
	return tensor(b, ID_VIRTUAL + b->next_virtual++, data, shape, NULL);
}

/* n numbers of 32 bits, one for each sequence. */
static sdpa_descriptor numbers(struct builder *b, enum tensor_id id, enum sdpa_data data, int n)
{
	return tensor(b, id, data, &(struct shape4){{n, 1, 1, 1}, {1, 1, 1, 1}}, NULL);
}

struct operands {
	sdpa_descriptor x, b, t;
	int64_t axis; /* of SDPA_INDEX */
};
/* y = mode(x, b, t) */
static sdpa_descriptor pointwise(struct builder *b, enum sdpa_pointwise mode, enum sdpa_data precision, struct operands in, sdpa_descriptor y)
{
	const struct attribute what[] = {ONE(SDPA_POINTWISE_MODE, SDPA_TYPE_POINTWISE, mode), ONE(SDPA_POINTWISE_PRECISION, SDPA_TYPE_DATA, precision),
	                                 {SDPA_POINTWISE_AXIS, SDPA_TYPE_INT64, mode == SDPA_INDEX, &in.axis}};
	sdpa_descriptor how = describe(b, SDPA_POINTWISE, what, LENGTH(what));
	const struct attribute op[] = {LINK(SDPA_POINTWISE_OP_WHAT, how), LINK(SDPA_POINTWISE_OP_X, in.x), LINK(SDPA_POINTWISE_OP_B, in.b), LINK(SDPA_POINTWISE_OP_T, in.t),
	                               LINK(SDPA_POINTWISE_OP_Y, y)};
	operation(b, SDPA_POINTWISE_OP, op, LENGTH(op));
	return y;
}

static sdpa_descriptor on_scores(struct builder *b, enum sdpa_pointwise mode, enum sdpa_data data, struct operands in)
{
	return pointwise(b, mode, data, in, virtual_tensor(b, data, &b->scores));
}

static sdpa_descriptor on_rows(struct builder *b, enum sdpa_pointwise mode, struct operands in)
{
	return pointwise(b, mode, SDPA_FLOAT, in, virtual_tensor(b, SDPA_FLOAT, &b->row));
}

static sdpa_descriptor reduce(struct builder *b, enum sdpa_reduction mode, sdpa_descriptor x)
{
	const enum sdpa_data precision = SDPA_FLOAT;
	const struct attribute what[] = {ONE(SDPA_REDUCTION_MODE, SDPA_TYPE_REDUCTION, mode), ONE(SDPA_REDUCTION_PRECISION, SDPA_TYPE_DATA, precision)};
	sdpa_descriptor how = describe(b, SDPA_REDUCTION, what, LENGTH(what)), y = virtual_tensor(b, SDPA_FLOAT, &b->row);
	const struct attribute op[] = {LINK(SDPA_REDUCTION_OP_WHAT, how), LINK(SDPA_REDUCTION_OP_X, x), LINK(SDPA_REDUCTION_OP_Y, y)};
	operation(b, SDPA_REDUCTION_OP, op, LENGTH(op));
	return y;
}

/* c = a b, of which only the sequence's rows and keys count: those are m, n or k of the product. */
struct product {
	sdpa_descriptor a, b, c, m, n, k;
};
static sdpa_descriptor multiply(struct builder *b, const struct product *p)
{
	const enum sdpa_data precision = SDPA_FLOAT;
	const struct attribute what[] = {ONE(SDPA_MATMUL_PRECISION, SDPA_TYPE_DATA, precision)};
	sdpa_descriptor how = describe(b, SDPA_MATMUL, what, LENGTH(what));
	const struct attribute op[] = {LINK(SDPA_MATMUL_OP_WHAT, how), LINK(SDPA_MATMUL_OP_A, p->a), LINK(SDPA_MATMUL_OP_B, p->b), LINK(SDPA_MATMUL_OP_C, p->c),
	                               LINK(SDPA_MATMUL_OP_M, p->m),   LINK(SDPA_MATMUL_OP_N, p->n), LINK(SDPA_MATMUL_OP_K, p->k)};
	operation(b, SDPA_MATMUL_OP, op, LENGTH(op));
	return p->c;
}

/* ---- the graph */

struct paged {
	sdpa_descriptor keys, table;
	struct shape4 pages;
};
/* What lies in a sequence's pages of `container`, as one tensor. */
static sdpa_descriptor load_pages(struct builder *b, const struct paged *p, enum tensor_id container, enum sdpa_data data, struct shape4 shape)
{
	sdpa_descriptor y = virtual_tensor(b, data, &shape), pages = tensor(b, container, data, &p->pages, NULL);
	const struct attribute op[] = {LINK(SDPA_PAGES_OP_CONTAINER, pages), LINK(SDPA_PAGES_OP_TABLE, p->table), LINK(SDPA_PAGES_OP_LENGTH, p->keys), LINK(SDPA_PAGES_OP_Y, y)};
	operation(b, SDPA_PAGES_OP, op, LENGTH(op));
	return y;
}

/* Of a sequence's rows and keys, those up to the row's own: key <= row + keys - rows. The rest becomes the lowest; so does what is behind the sequence's last
 * key, and what is behind its last row the products leave out. */
static sdpa_descriptor mask(struct builder *b, sdpa_descriptor scores, sdpa_descriptor rows, sdpa_descriptor keys)
{
	sdpa_descriptor row = on_scores(b, SDPA_INDEX, SDPA_INT32, (struct operands){.x = scores, .axis = 2});
	row = on_scores(b, SDPA_ADD, SDPA_INT32, (struct operands){.x = row, .b = keys});
	row = on_scores(b, SDPA_SUB, SDPA_INT32, (struct operands){.x = row, .b = rows});
	sdpa_descriptor key = on_scores(b, SDPA_INDEX, SDPA_INT32, (struct operands){.x = scores, .axis = 3});
	sdpa_descriptor seen = on_scores(b, SDPA_GE, SDPA_BOOLEAN, (struct operands){.x = row, .b = key});
	return on_scores(b, SDPA_SELECT, SDPA_FLOAT, (struct operands){.x = scores, .b = numbers(b, ID_LOWEST, SDPA_FLOAT, 1), .t = seen});
}

static sdpa_descriptor softmax(struct builder *b, enum sdpa_data data, sdpa_descriptor scores)
{
	sdpa_descriptor top = reduce(b, SDPA_REDUCE_MAX, scores);
	sdpa_descriptor below = on_scores(b, SDPA_SUB, SDPA_FLOAT, (struct operands){.x = scores, .b = top});
	sdpa_descriptor weights = on_scores(b, SDPA_EXP, SDPA_FLOAT, (struct operands){.x = below});
	sdpa_descriptor sum = reduce(b, SDPA_REDUCE_ADD, weights);
	sdpa_descriptor log_sum = on_rows(b, SDPA_LOG, (struct operands){.x = sum});
	on_rows(b, SDPA_ADD, (struct operands){.x = top, .b = log_sum}); /* the statistics (file top) */
	return pointwise(b, SDPA_DIV, SDPA_FLOAT, (struct operands){.x = weights, .b = sum}, virtual_tensor(b, data, &b->scores));
}

static int64_t table_blocks(const struct plan_key *k)
{
	return (k->keys + k->block_tokens - 1) / k->block_tokens;
}

/* Rows of sequences that lie behind one another. */
static sdpa_descriptor row_tensor(struct builder *b, enum tensor_id id, enum tensor_id start_id, enum sdpa_data data, int64_t stride)
{
	const struct plan_key *k = b->key;
	const struct shape4 shape = {{k->seqs, k->q_heads, k->rows, k->head_dim}, {k->rows * stride, k->head_dim, stride, 1}};
	return tensor(b, id, data, &shape, numbers(b, start_id, SDPA_INT32, k->seqs + 1));
}

static void build_operations(struct builder *b)
{
	const struct plan_key *k = b->key;
	const enum sdpa_data data = k->dtype == DTYPE_BF16 ? SDPA_BFLOAT16 : SDPA_HALF;
	const int64_t seqs = k->seqs, q_heads = k->q_heads, heads = k->kv_heads, rows = k->rows, keys = k->keys, dim = k->head_dim;
	const int64_t page = k->block_tokens * dim, table = table_blocks(k);
	b->scores = (struct shape4){{seqs, q_heads, rows, keys}, {q_heads * rows * keys, rows * keys, keys, 1}};
	b->row = (struct shape4){{seqs, q_heads, rows, 1}, {q_heads * rows, rows, 1, 1}};
	sdpa_descriptor row_count = numbers(b, ID_ROWS, SDPA_INT32, k->seqs), key_count = numbers(b, ID_KEYS, SDPA_INT32, k->seqs);
	const struct paged p = {key_count, tensor(b, ID_TABLE, SDPA_INT32, &(struct shape4){{seqs, 1, table, 1}, {table, table, 1, 1}}, NULL),
	                        {{k->blocks, heads, k->block_tokens, dim}, {2 * heads * page, page, dim, 1}}};
	sdpa_descriptor key_t = load_pages(b, &p, ID_K, data, (struct shape4){{seqs, heads, dim, keys}, {heads * dim * keys, dim * keys, 1, dim}});
	sdpa_descriptor scores = multiply(b, &(struct product){.a = row_tensor(b, ID_Q, ID_Q_START, data, k->q_stride), .b = key_t,
	                                                       .c = virtual_tensor(b, SDPA_FLOAT, &b->scores), .m = row_count, .n = key_count});
	scores = on_scores(b, SDPA_MUL, SDPA_FLOAT, (struct operands){.x = scores, .b = numbers(b, ID_SCALE, SDPA_FLOAT, 1)});
	sdpa_descriptor weights = softmax(b, data, mask(b, scores, row_count, key_count));
	sdpa_descriptor values = load_pages(b, &p, ID_V, data, (struct shape4){{seqs, heads, keys, dim}, {heads * dim * keys, dim * keys, dim, 1}});
	multiply(b, &(struct product){.a = weights, .b = values, .c = row_tensor(b, ID_OUT, ID_OUT_START, data, k->out_stride), .m = row_count, .k = key_count});
}

/* ---- plans */

static size_t header_bytes(const struct plan_key *k)
{
	const size_t bytes = ATTENTION_PAGES_INTS((size_t)k->seqs, (size_t)table_blocks(k)) * sizeof(int32_t);
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The first of the library's proposals that it makes a plan of and that has room in the workspace. */
static enum status choose(struct builder *b, sdpa_descriptor heuristic, size_t room, struct plan *plan, struct error *err)
{
	struct attention_library *lib = b->lib;
	sdpa_descriptor config[CONFIGS];
	int64_t count = 0, got, bytes = 0;
	for (int i = 0; i < CONFIGS; i++) config[i] = describe(b, SDPA_CONFIG, NULL, 0);
	TRY(b->st);
	TRY(check(lib, lib->get(heuristic, SDPA_HEURISTIC_RESULTS, SDPA_TYPE_DESCRIPTOR, CONFIGS, &count, config), "proposals", CONFIGS, err));
	for (int64_t i = 0; i < count && i < CONFIGS; i++) {
		const struct attribute list[] = {ONE(SDPA_PLAN_HANDLE, SDPA_TYPE_HANDLE, lib->handle), LINK(SDPA_PLAN_CONFIG, config[i])};
		sdpa_descriptor made = describe(b, SDPA_PLAN, list, LENGTH(list));
		if (b->st == STATUS_OK) b->st = check(lib, lib->get(made, SDPA_PLAN_WORKSPACE, SDPA_TYPE_INT64, 1, &got, &bytes), "a plan's workspace", (int)i, err);
		if (b->st == STATUS_OK && (bytes < 0 || (size_t)bytes > room))
			b->st = FAIL(err, UNSUPPORTED, "attention: the library's plan wants %lld bytes of workspace; there are %zu", (long long)bytes, room);
		if (b->st != STATUS_OK) continue;
		plan->plan = made, plan->workspace_bytes = bytes;
		b->made_count--; /* the plan is kept */
		return STATUS_OK;
	}
	TRY(b->st);
	return FAIL(err, UNSUPPORTED, "attention: the library proposes nothing for this graph");
}

static enum status make_plan(struct attention_library *lib, const struct gpu_context *ctx, struct plan *plan, struct error *err)
{
	struct builder b = {.lib = lib, .key = &plan->key, .err = err};
	const size_t header = header_bytes(&plan->key);
	if (header > ctx->workspace_bytes) return FAIL(err, UNSUPPORTED, "attention: pages of %d keys want %zu bytes of workspace; there are %zu", plan->key.keys, header, ctx->workspace_bytes);
	build_operations(&b);
	const struct attribute graph_list[] = {ONE(SDPA_GRAPH_HANDLE, SDPA_TYPE_HANDLE, lib->handle), {SDPA_GRAPH_OPS, SDPA_TYPE_DESCRIPTOR, b.operations, b.operation}};
	sdpa_descriptor graph = describe(&b, SDPA_GRAPH, graph_list, LENGTH(graph_list));
	const enum sdpa_heuristic mode = SDPA_HEURISTIC_A;
	const struct attribute heuristic_list[] = {LINK(SDPA_HEURISTIC_GRAPH, graph), ONE(SDPA_HEURISTIC_MODE, SDPA_TYPE_HEURISTIC, mode)};
	sdpa_descriptor heuristic = describe(&b, SDPA_HEURISTIC, heuristic_list, LENGTH(heuristic_list));
	const enum status st = b.st == STATUS_OK ? choose(&b, heuristic, ctx->workspace_bytes - header, plan, err) : b.st;
	while (b.made_count) (void)lib->descriptor_destroy(b.made[--b.made_count]);
	return st;
}

/* The smallest least * step^i that is no less than n. */
static int class_of(int n, int least, int step)
{
	int class = least;
	while (class < n && class <= INT32_MAX / step) class *= step;
	return class;
}

static struct plan_key key_of(const struct attention_params *p, enum dtype dtype)
{
	struct plan_key key;
	memset(&key, 0, sizeof key); /* compared with memcmp */
	key.dtype = dtype, key.q_heads = p->q_heads, key.kv_heads = p->kv_heads, key.head_dim = p->head_dim, key.block_tokens = p->block_tokens, key.blocks = p->blocks;
	key.seqs = class_of(p->seqs - p->first_seq, 1, 4), key.rows = class_of(p->max_seq_rows, 64, 2), key.keys = class_of(p->max_kv_len, 1024, 4);
	key.q_stride = p->q_stride, key.out_stride = p->out_stride;
	return key;
}

/* The plan for this problem, made if there is none yet. */
static enum status plan_for(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct plan **out, struct error *err)
{
	struct attention_library *lib = library_of(ctx, err);
	const struct plan_key key = key_of(p, dtype);
	int i = 0;
	if (!lib) return STATUS_UNSUPPORTED;
	while (i < lib->plans && memcmp(&lib->plan[i].key, &key, sizeof key)) i++;
	*out = &lib->plan[i];
	if (i < lib->plans && lib->plan[i].plan) return STATUS_OK;
	if (i < lib->plans) return FAIL(err, UNSUPPORTED, "attention: " SDPA_VARIANT " has no plan for %d/%d heads of %d", p->q_heads, p->kv_heads, p->head_dim);
	if (i == PLANS) return FAIL(err, UNSUPPORTED, "attention: %d plans of " SDPA_VARIANT " are there, no more are kept", PLANS);
	if (*ctx->recording) return FAIL(err, UNSUPPORTED, "attention: a plan of " SDPA_VARIANT " is not made while a graph is recorded");
	lib->plan[lib->plans++].key = key;
	return make_plan(lib, ctx, *out, err);
}

enum status attention_cudnn_ready(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err)
{
	struct plan *plan;
	return plan_for(ctx, p, dtype, &plan, err);
}

/* ---- the kernel */

static bool can_cudnn(const struct attention_params *p, enum dtype dtype)
{
	const int64_t stride = p->q_stride > p->out_stride ? p->q_stride : p->out_stride;
	return GPU_ATTENTION_LIBRARY && (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 16 == 0 && p->head_dim <= 256 && !p->window && !p->invariant &&
	       p->block_shift >= 0 && p->seqs - p->first_seq <= MAX_SEQS && p->rows * stride <= INT32_MAX;
}

static enum status launch_cudnn(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err)
{
	struct plan *plan;
	TRY(plan_for(ctx, p, dtype, &plan, err));
	const struct attention_library *lib = ctx->dispatch->attention_library;
	const struct plan_key *k = &plan->key;
	const struct attention_pages at = attention_pages_at(ctx->workspace, k->seqs, (int)table_blocks(k));
	const float scale = p->scale_log2 / 1.44269504f, lowest = -INFINITY;
	const char *values = (const char *)p->kv + (size_t)k->kv_heads * (size_t)k->block_tokens * (size_t)k->head_dim * dtype_bytes(dtype);
	const int64_t ids[] = {ID_Q, ID_K, ID_V, ID_OUT, ID_ROWS, ID_KEYS, ID_Q_START, ID_OUT_START, ID_TABLE, ID_SCALE, ID_LOWEST};
	const void *pointers[] = {p->q, p->kv, values, p->out, at.rows, at.keys, at.q_start, at.out_start, at.table, &scale, &lowest};
	const void *room = (char *)ctx->workspace + header_bytes(k);
	_Static_assert(LENGTH(ids) == ID_COUNT - 1 && LENGTH(pointers) == ID_COUNT - 1, "every tensor in memory has its place");
	TRY(attention_pages_write(ctx, p, &at, err));
	struct builder b = {.lib = ctx->dispatch->attention_library, .err = err};
	const struct attribute list[] = {{SDPA_PACK_IDS, SDPA_TYPE_INT64, LENGTH(ids), ids}, {SDPA_PACK_POINTERS, SDPA_TYPE_POINTER, LENGTH(pointers), pointers},
	                                 ONE(SDPA_PACK_WORKSPACE, SDPA_TYPE_POINTER, room)};
	sdpa_descriptor pack = describe(&b, SDPA_PACK, list, LENGTH(list));
	if (b.st == STATUS_OK) b.st = check(lib, lib->execute(lib->handle, plan->plan, pack), "executing", p->rows, err);
	if (pack) (void)lib->descriptor_destroy(pack);
	return b.st;
}

const struct attention_kernel attention_cudnn = {SDPA_VARIANT, can_cudnn, launch_cudnn, false};
