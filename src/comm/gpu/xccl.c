/* xccl.c: collectives by the vendor's library (NCCL, or RCCL, which has the same interface), loaded at run time, for devices that cannot use each
 * other's memory and for comparison. Nothing of its headers is needed here: what is called stands below.
 *
 * The library sums the partials, in their own type and in an order of its choice, into a second buffer; a kernel adds that to x. So there is no
 * invariant mode. Ranks meet on the host before each collective (contract C1), while a graph is recorded too; what is replayed was checked then.
 *
 * Waits. The library's communicator is made non-blocking, so that every call can be left at an abort or a deadline. Its kernels know nothing of our
 * abort word: on an abort the communicator is aborted, which ends them, and it is no more.
 *
 * Multicast. The library may use the switch's multicast between devices; whether it may is said by its own environment (NCCL_NVLS_ENABLE=0 forbids
 * it), which nothing here reads or writes: its configuration struct has no such field.
 */
#include "comm/gpu/xccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/transport.h"
#include "device/gpu/device.h"

/* ---- the interface, as of version 2.14 */
typedef struct xccl_handle *xccl_handle;
typedef int xccl_result;
enum { XCCL_SUCCESS = 0, XCCL_IN_PROGRESS = 7 };
enum { XCCL_INT8 = 0, XCCL_F16 = 6, XCCL_F32 = 7, XCCL_BF16 = 9 };
enum { XCCL_SUM = 0 };
struct xccl_id {
	char bytes[128];
};
_Static_assert(sizeof(struct xccl_id) <= GROUP_EXCHANGE_BYTES, "an id must fit into one exchange");
struct xccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
#define XCCL_CONFIG {.size = sizeof(struct xccl_config), .magic = 0xcafebeef, .version = 21400, .blocking = 0}

/* X(field, symbol, parameters) */
#define XCCL_FUNCTIONS(X)                                                                                         \
	X(version, "ncclGetVersion", (int *))                                                                         \
	X(text, "ncclGetLastError", (xccl_handle))                                                                    \
	X(unique_id, "ncclGetUniqueId", (struct xccl_id *))                                                           \
	X(init, "ncclCommInitRankConfig", (xccl_handle *, int, struct xccl_id, int, struct xccl_config *))            \
	X(abort, "ncclCommAbort", (xccl_handle))                                                                      \
	X(async, "ncclCommGetAsyncError", (xccl_handle, xccl_result *))                                               \
	X(all_reduce, "ncclAllReduce", (const void *, void *, size_t, int, int, xccl_handle, gpu_stream))             \
	X(broadcast, "ncclBroadcast", (const void *, void *, size_t, int, int, xccl_handle, gpu_stream))

struct xccl_library {
#define X(field, symbol, parameters) xccl_result(*field) parameters;
	XCCL_FUNCTIONS(X)
#undef X
};

struct xccl_comm {
	struct comm base;
	struct device *device;
	struct stream *stream; /* borrowed */
	struct xccl_library lib;
	xccl_handle handle; /* NULL once aborted */
	struct comm_options options;
	void *partial, *sum; /* [max_rows][stride] each */
	int64_t stride;
	int partial_rows; /* of the partial that was given out and not reduced yet; 0: none */
};

/* The library stays loaded once it was used: it has threads of its own. */
static bool load(struct xccl_library *lib, char why[TRANSPORT_WHY_BYTES])
{
	const char *name = GPU_COLLECTIVES_LIBRARY;
	if (!name) {
		snprintf(why, TRANSPORT_WHY_BYTES, "%s has no collective library", GPU_NAME_TEXT);
		return false;
	}
	void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		snprintf(why, TRANSPORT_WHY_BYTES, "%s cannot be loaded", name);
		return false;
	}
#define X(field, symbol, parameters)                                                 \
	if (!(*(void **)&lib->field = dlsym(so, symbol))) {                              \
		snprintf(why, TRANSPORT_WHY_BYTES, "%s has no %s; too old", name, symbol);   \
		return false;                                                                \
	}
	XCCL_FUNCTIONS(X)
#undef X
	return true;
}

/* ---- calls that may be in progress */

static enum status failed(const struct xccl_comm *x, const char *what, xccl_result code, struct error *err)
{
	const char *(*text)(xccl_handle) = NULL;
	memcpy(&text, &x->lib.text, sizeof text);
	return FAIL(err, DEVICE_FAULT, "%s: %s: result %d: %s", GPU_COLLECTIVES_LIBRARY ? GPU_COLLECTIVES_LIBRARY : "", what, code, text(x->handle));
}

/* Waits until the call before is through. */
static enum status settle_call(struct xccl_comm *x, const char *what, xccl_result code, struct error *err)
{
	struct group *group = x->base.group;
	const uint64_t deadline = group_deadline(group);
	while (code == XCCL_IN_PROGRESS) {
		if (group_aborted(group)) return group_error(group, err);
		if (clock_ns() >= deadline) return FAIL(err, TIMEOUT, "%s: seq %llu: not done by the deadline", what, (unsigned long long)x->base.sequence);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		xccl_result now = x->lib.async(x->handle, &code);
		if (now != XCCL_SUCCESS) code = now;
	}
	return code == XCCL_SUCCESS ? STATUS_OK : failed(x, what, code, err);
}

static enum status meet(struct xccl_comm *x, const struct stream *stream, const struct collective_desc *desc, struct error *err)
{
	if (stream != x->stream)
		return FAIL(err, BAD_INPUT, "collective seq %llu: on another stream than the comm was made with", (unsigned long long)x->base.sequence);
	TRY(group_meet(x->base.group, x->base.rank, desc, err));
	if (!x->handle) return FAIL(err, ABORTED, "collective seq %llu: the communicator was aborted", (unsigned long long)x->base.sequence);
	return STATUS_OK;
}

/* ---- all-reduce */

static int xccl_type(enum dtype dtype)
{
	return dtype == DTYPE_F32 ? XCCL_F32 : dtype == DTYPE_F16 ? XCCL_F16 : XCCL_BF16;
}

static enum status give_partial(struct xccl_comm *x, int rows, struct tensor *out, struct error *err)
{
	TRY(comm_check_rows(rows, x->options.max_rows, err));
	*out = tensor_view(x->partial, x->options.dtype, TENSOR_PARTIAL, rows, x->options.cols);
	out->row_stride = x->stride;
	out->slot_stride = rows * x->stride;
	x->partial_rows = rows;
	return STATUS_OK;
}

static enum status xccl_partial(struct comm *comm, int rows, struct tensor *out, struct error *err)
{
	struct error why = {0};
	*out = (struct tensor){0};
	return comm_settle(comm, give_partial((struct xccl_comm *)comm, rows, out, &why), &why, err);
}

static enum status check_args(const struct xccl_comm *x, const struct all_reduce_args *args, struct error *err)
{
	TRY(tensor_expect(&args->partial, TENSOR_PARTIAL, "all_reduce: partial", err));
	TRY(tensor_expect(&args->x, TENSOR_REPLICATED, "all_reduce: x", err));
	const struct tensor *t = &args->x;
	if (args->partial.data == x->partial && args->partial.rows == x->partial_rows && t->data && t->dtype == DTYPE_F32 && t->rows == x->partial_rows &&
	    t->cols == x->options.cols && t->row_stride >= t->cols)
		return STATUS_OK;
	return FAIL(err, BAD_INPUT, "all_reduce: partial [%d,%d], x [%d,%d] %s; expected the partial given out, of %d rows, and x [%d,%d] F32",
	            args->partial.rows, args->partial.cols, t->rows, t->cols, dtype_name(t->dtype), x->partial_rows, x->partial_rows, x->options.cols);
}

static bool pairs(const void *p, int64_t stride)
{
	return (uintptr_t)p % 8 == 0 && stride % 2 == 0;
}

static enum status reduce(struct xccl_comm *x, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct comm *comm = &x->base;
	TRY(check_args(x, args, err));
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_ALL_REDUCE, .dtype = x->options.dtype,
	                               .count = (int64_t)args->x.rows * args->x.cols};
	TRY(meet(x, stream, &desc, err));
	gpu_stream raw = gpu_context(stream)->stream;
	const size_t count = (size_t)args->x.rows * (size_t)x->stride;
	TRY(settle_call(x, "all_reduce", x->lib.all_reduce(x->partial, x->sum, count, xccl_type(x->options.dtype), XCCL_SUM, x->handle, raw), err));
	const struct p2p_sum sum = {.partial = {x->sum}, .stride = x->stride, .x = args->x.data, .x_stride = args->x.row_stride, .bias = args->bias,
	                            .rows = args->x.rows, .cols = args->x.cols, .add = args->add_residual,
	                            .pairs = pairs(args->x.data, args->x.row_stride) && pairs(args->bias, 0)};
	TRY(gpu_check(xccl_launch_add(&sum, x->options.dtype, raw), "residual add", err));
	x->partial_rows = 0;
	comm->sequence++;
	comm->all_reduces++;
	if (!args->norm_weight) return STATUS_OK;
	return OP(stream, rms_norm, &((struct rms_norm_args){.x = args->x, .weight = args->norm_weight, .eps = args->norm_eps, .out = args->h}), err);
}

static enum status xccl_all_reduce(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, reduce((struct xccl_comm *)comm, stream, args, &why), &why, err);
}

/* ---- broadcast, waiting */

static enum status send(struct xccl_comm *x, struct stream *stream, void *data, size_t bytes, int root, struct error *err)
{
	if (root < 0 || root >= x->base.world_size) return FAIL(err, BAD_INPUT, "broadcast: root %d; expected 0..%d", root, x->base.world_size - 1);
	if (bytes > INT64_MAX || (bytes && !data)) return FAIL(err, BAD_INPUT, "broadcast: %zu bytes at %p", bytes, data);
	struct collective_desc desc = {.sequence = x->base.sequence, .op = COLLECTIVE_BROADCAST, .count = (int64_t)bytes, .root = root};
	TRY(meet(x, stream, &desc, err));
	if (bytes) TRY(settle_call(x, "broadcast", x->lib.broadcast(data, data, bytes, XCCL_INT8, root, x->handle, gpu_context(stream)->stream), err));
	x->base.sequence++;
	return STATUS_OK;
}

static enum status xccl_broadcast(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, send((struct xccl_comm *)comm, stream, data, bytes, root, &why), &why, err);
}

static void abandon(struct xccl_comm *x)
{
	if (x->handle) (void)x->lib.abort(x->handle);
	x->handle = NULL;
}

static enum status xccl_sync(struct comm *comm, struct stream *stream, struct error *err)
{
	struct xccl_comm *x = (struct xccl_comm *)comm;
	const uint64_t deadline = group_deadline(comm->group);
	struct gpu_wait wait;
	gpu_error code;
	gpu_wait_begin(&wait, stream);
	while (gpu_wait_look(&wait, &code)) {
		xccl_result result = XCCL_SUCCESS;
		enum status st = STATUS_OK;
		if (group_aborted(comm->group)) st = group_error(comm->group, err);
		else if (clock_ns() >= deadline) st = FAIL(err, TIMEOUT, "collective seq %llu: not done by the deadline", (unsigned long long)comm->sequence);
		else if (x->handle && x->lib.async(x->handle, &result) == XCCL_SUCCESS && result != XCCL_SUCCESS && result != XCCL_IN_PROGRESS)
			st = failed(x, "collective", result, err);
		if (st != STATUS_OK) {
			abandon(x);
			return st;
		}
	}
	return gpu_check(code, "collective", err);
}

static void xccl_replayed(struct comm *comm, uint64_t collectives, uint64_t all_reduces)
{
	comm->sequence += collectives;
	comm->all_reduces += all_reduces;
}

/* ---- life */

/* Aborted, not destroyed: destroying may wait for peers, and one thread may destroy all ranks' one after the other. */
static void xccl_destroy(struct comm *comm)
{
	struct xccl_comm *x = (struct xccl_comm *)comm;
	abandon(x);
	if (x->partial) x->device->vt->free(x->device, x->partial);
	free(x);
}

static const struct comm_ops xccl_ops = {
	.name = "xccl",
	.norms = true,
	.partial = xccl_partial,
	.all_reduce = xccl_all_reduce,
	.broadcast = xccl_broadcast,
	.barrier = comm_barrier,
	.sync = xccl_sync,
	.replayed = xccl_replayed,
	.destroy = xccl_destroy,
};

static bool xccl_suits(const struct device_ops *ops, int world_size, const struct comm_options *options)
{
	return ops == device_find(GPU_NAME_TEXT) && world_size > 1 && !options->invariant && GPU_COLLECTIVES_LIBRARY;
}

static enum status xccl_can_connect(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	struct xccl_library lib;
	*yes = false;
	if (link->device->vt != device_find(GPU_NAME_TEXT)) snprintf(why, TRANSPORT_WHY_BYTES, "not for %s", link->device->vt->name);
	else if (link->world_size < 2) snprintf(why, TRANSPORT_WHY_BYTES, "%d rank", link->world_size);
	else if (link->options->invariant) snprintf(why, TRANSPORT_WHY_BYTES, "its sums have no fixed order");
	else if (gpu_device((struct device *)link->device)->sharers > 1)
		snprintf(why, TRANSPORT_WHY_BYTES, "ranks share device %d; the library wants one for each", gpu_context(link->stream)->ordinal);
	else *yes = load(&lib, why);
	return transport_agree(link, yes, why, err);
}

static enum status connect_library(struct xccl_comm *x, struct error *err)
{
	struct comm *comm = &x->base;
	struct xccl_id mine = {{0}}, all[GROUP_MAX_RANKS];
	char why[TRANSPORT_WHY_BYTES];
	if (!load(&x->lib, why)) return FAIL(err, UNSUPPORTED, "%s", why);
	if (comm->rank == 0) {
		xccl_result code = x->lib.unique_id(&mine);
		if (code != XCCL_SUCCESS) return failed(x, "unique id", code, err);
	}
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_SETUP, .count = sizeof mine};
	TRY(group_exchange(comm->group, comm->rank, &desc, &mine, all, err));
	struct xccl_config config = XCCL_CONFIG;
	TRY(settle_call(x, "init", x->lib.init(&x->handle, comm->world_size, all[0], comm->rank, &config), err));
	/* its first collective makes connections and allocates: not while a graph is recorded */
	const size_t few = 16 / dtype_bytes(x->options.dtype);
	TRY(settle_call(x, "first all_reduce", x->lib.all_reduce(x->partial, x->sum, few, xccl_type(x->options.dtype), XCCL_SUM, x->handle,
	                                                        gpu_context(x->stream)->stream), err));
	return xccl_sync(comm, x->stream, err);
}

static size_t row_bytes(const struct comm_options *o)
{
	return size_round_up((size_t)o->cols * dtype_bytes(o->dtype), 16);
}

static size_t xccl_scratch_bytes(int rank, int world_size, const struct comm_options *o)
{
	(void)rank, (void)world_size;
	return 2 * (size_t)o->max_rows * row_bytes(o);
}

static enum status build(struct xccl_comm *x, const struct link *link, struct error *err)
{
	const struct comm_options *o = link->options;
	TRY(comm_check_options(o, link->world_size, err));
	if (!dtype_is_plain(o->dtype)) return FAIL(err, BAD_INPUT, "collective: partials of %s; expected F32, F16 or BF16", dtype_name(o->dtype));
	if ((int64_t)o->max_rows * ((int64_t)o->cols / 4 + 1) > INT_MAX)
		return FAIL(err, UNSUPPORTED, "collective: [%d,%d]; its vectors must be numbered in 32 bits", o->max_rows, o->cols);
	const size_t bytes = xccl_scratch_bytes(link->rank, link->world_size, o);
	TRY(link->device->vt->alloc(link->device, bytes, MEM_SCRATCH, "collective scratch", &x->partial, err));
	x->sum = (char *)x->partial + bytes / 2;
	x->stride = (int64_t)(row_bytes(o) / dtype_bytes(o->dtype));
	comm_split_tree(&x->base.split, link->world_size, link->rank, link->world_size);
	TRY(connect_library(x, err));
	x->base.sequence++;
	return STATUS_OK;
}

static enum status xccl_create(struct comm **out, const struct link *link, struct error *err)
{
	struct xccl_comm *x = mem_zalloc(1, sizeof *x, "collective", err);
	if (!x) return STATUS_NO_MEMORY;
	x->base = (struct comm){.vt = &xccl_ops, .group = link->group, .rank = link->rank, .world_size = link->world_size};
	x->device = link->device;
	x->stream = link->stream;
	x->options = *link->options;
	enum status st = build(x, link, err);
	if (st == STATUS_OK) *out = &x->base;
	else xccl_destroy(&x->base);
	return st;
}

const struct transport transport_xccl = {"xccl", xccl_suits, xccl_can_connect, xccl_create, xccl_scratch_bytes};
