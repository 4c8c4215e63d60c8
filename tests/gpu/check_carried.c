/* check_carried.c: an all-reduce that the ops around it carry (device/ops.h): a linear that sends its partial, and mlp_in, which receives the sum. Weights pick
 * inputs, so the partial is known to the bit, and so is the residual afterwards. check_comm.c checks the halves as kernels of their own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "gpu/comm_world.h"

#define LONG_MS 60000
#define ROUNDS 3
#define EPS 1e-5f

struct carried_case {
	int hidden, k, inner; /* k: inputs of the linear that sends */
	bool bias;
	enum dtype dtype;
};

/* Host copies, and device memory, of one rank. */
struct carried_rank {
	unsigned char *pick, *gate_up; /* [hidden][k], [2 inner][hidden] of dtype */
	unsigned char *x;              /* [k] of dtype */
	float *residual, *norm, *bias, *sum; /* [hidden] */
	unsigned char *out;            /* [inner] of dtype */
	void *device[8];
	int devices;
};

static void put(enum dtype dtype, void *to, size_t at, float v)
{
	const _Float16 half = (_Float16)v;
	const uint16_t brain = bf16_from_f32(v);
	if (dtype == DTYPE_F32) ((float *)to)[at] = v;
	else memcpy((uint16_t *)to + at, dtype == DTYPE_F16 ? (const void *)&half : (const void *)&brain, 2);
}

static float get(enum dtype dtype, const void *from, size_t at)
{
	uint16_t bits;
	if (dtype == DTYPE_F32) return ((const float *)from)[at];
	memcpy(&bits, (const uint16_t *)from + at, 2);
	return dtype == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

static float rounded(enum dtype dtype, float v)
{
	float room[1];
	put(dtype, room, 0, v);
	return get(dtype, room, 0);
}

/* Input i of rank `owner` in a round. */
static float input(const struct world *w, const struct carried_case *c, int owner, int round, int i)
{
	return rounded(c->dtype, (float)(rng_unit(w->seed + 17, (uint64_t)(owner * ROUNDS + round), (uint64_t)i) * 2 - 1));
}
static float vector(const struct world *w, int what, int i)
{
	return (float)(rng_unit(w->seed + 18, (uint64_t)what, (uint64_t)i) * 2 - 1);
}
static int picked(int output, int inputs)
{
	return (output * 7 + 3) % inputs;
}
static int picked_gate(int output, int inputs)
{
	return (output * 5 + 1) % inputs;
}

static void *host(size_t bytes)
{
	void *p = calloc(1, bytes);
	if (!p) abort();
	return p;
}

static void make_host(struct carried_rank *r, const struct world *w, const struct carried_case *c)
{
	const size_t e = dtype_bytes(c->dtype), hidden = (size_t)c->hidden, k = (size_t)c->k, inner = (size_t)c->inner;
	*r = (struct carried_rank){.pick = host(hidden * k * e), .gate_up = host(2 * inner * hidden * e), .x = host(k * e), .residual = host(hidden * 4), .norm = host(hidden * 4),
	                           .bias = host(hidden * 4), .sum = host(hidden * 4), .out = host(inner * e)};
	for (int i = 0; i < c->hidden; i++) {
		put(c->dtype, r->pick, (size_t)i * k + (size_t)picked(i, c->k), 1);
		r->residual[i] = vector(w, 0, i), r->norm[i] = vector(w, 1, i) + 2, r->bias[i] = vector(w, 2, i);
	}
	for (int i = 0; i < c->inner; i++) {
		put(c->dtype, r->gate_up, (size_t)i * hidden + (size_t)picked_gate(i, c->hidden), 1);
		put(c->dtype, r->gate_up, (size_t)(c->inner + i) * hidden + (size_t)picked(i, c->hidden), 1);
	}
}

static void free_all(struct carried_rank *r, struct world_rank *rank)
{
	void *const hosts[] = {r->pick, r->gate_up, r->x, r->residual, r->norm, r->bias, r->sum, r->out};
	for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) free(hosts[i]);
	for (int i = 0; i < r->devices; i++) rank->world->ops->free(rank->device, r->device[i]);
}

/* Device memory with a copy of `from`, or zeros. */
static enum status place(struct carried_rank *r, struct world_rank *rank, const void *from, size_t bytes, void **out)
{
	TRY(rank->world->ops->alloc(rank->device, bytes, MEM_WORKSPACE, "check", out, &rank->err));
	r->device[r->devices++] = *out;
	return from ? rank->world->ops->copy(rank->stream, *out, from, bytes, COPY_TO_DEVICE, &rank->err) : STATUS_OK;
}

static void compare(struct carried_rank *r, struct world_rank *rank, const struct carried_case *c, int round)
{
	const struct world *w = rank->world;
	const double unit = gpu_unit(c->dtype);
	double squares = 0;
	for (int i = 0; i < c->hidden; i++) {
		float sum = input(w, c, 0, round, picked(i, c->k));
		for (int p = 1; p < w->P; p++) sum += input(w, c, p, round, picked(i, c->k));
		if (c->bias) sum += r->bias[i];
		const float want = r->residual[i] + sum;
		if (memcmp(&want, &r->sum[i], 4)) world_complain(rank, "round %d: residual %d is %.9g, expected %.9g", round, i, (double)r->sum[i], (double)want);
		squares += (double)want * (double)want;
	}
	const double scale = 1 / sqrt(squares / c->hidden + (double)EPS);
	for (int i = 0; i < c->inner; i++) {
		const int a = picked_gate(i, c->hidden), b = picked(i, c->hidden);
		const double gate = r->sum[a] * scale * (double)r->norm[a], up = r->sum[b] * scale * (double)r->norm[b], want = gate / (1 + exp(-gate)) * up;
		const double got = (double)get(c->dtype, r->out, (size_t)i), bound = (8 * unit + 1e-5) * (fabs(gate) + 1) * fabs(up) + 1e-6;
		if (!(fabs(got - want) <= bound)) world_complain(rank, "round %d: output %d is %.9g, expected %.9g within %.3g", round, i, got, want, bound);
	}
}

static enum status run(struct carried_rank *r, struct world_rank *rank, const struct carried_case *c)
{
	const size_t e = dtype_bytes(c->dtype), hidden = (size_t)c->hidden, k = (size_t)c->k, inner = (size_t)c->inner;
	struct linear_weight pick = {.dtype = c->dtype, .n = c->hidden, .k = c->k}, gate_up = {.dtype = c->dtype, .n = 2 * c->inner, .k = c->hidden};
	void *x, *norm, *bias, *streams[2], *rest; /* the residual, and the sum */
	const struct carried_sum *sum;
	struct tensor partial;
	TRY(place(r, rank, r->pick, hidden * k * e, &pick.data));
	TRY(place(r, rank, r->gate_up, 2 * inner * hidden * e, &gate_up.data));
	TRY(place(r, rank, NULL, k * e, &x));
	TRY(place(r, rank, r->norm, hidden * 4, &norm));
	TRY(place(r, rank, r->bias, hidden * 4, &bias));
	TRY(place(r, rank, r->residual, hidden * 4, &streams[0]));
	TRY(place(r, rank, NULL, hidden * 4, &streams[1]));
	TRY(place(r, rank, NULL, hidden * e + 3 * inner * e, &rest));
	const struct tensor out = tensor_view((char *)rest + hidden * e + 2 * inner * e, c->dtype, TENSOR_SHARDED, 1, c->inner);
	for (int round = 0; round < ROUNDS && !rank->complaint[0]; round++) {
		for (int i = 0; i < c->k; i++) put(c->dtype, r->x, (size_t)i, input(rank->world, c, rank->index, round, i));
		TRY(rank->world->ops->copy(rank->stream, x, r->x, k * e, COPY_TO_DEVICE, &rank->err));
		TRY(COMM(rank->comm, partial, 1, &partial, &rank->err));
		TRY(COMM(rank->comm, carry, rank->stream, &partial, c->bias ? bias : NULL, &sum, &rank->err));
		TRY(OP(rank->stream, linear, (&(struct linear_args){.x = tensor_view(x, c->dtype, TENSOR_SHARDED, 1, c->k), .weight = &pick, .split = &rank->comm->split, .y = partial,
		                                                    .send = sum}), &rank->err));
		TRY(OP(rank->stream, mlp_in, (&(struct mlp_in_args){
			.in = {.x = tensor_view(streams[0], DTYPE_F32, TENSOR_REPLICATED, 1, c->hidden), .weight = norm, .eps = EPS, .receive = sum,
			       .h = tensor_view(rest, c->dtype, TENSOR_REPLICATED, 1, c->hidden), .sum = tensor_view(streams[1], DTYPE_F32, TENSOR_REPLICATED, 1, c->hidden)},
			.weight = &gate_up, .gate_up = tensor_view((char *)rest + hidden * e, c->dtype, TENSOR_SHARDED, 1, 2 * c->inner), .out = out}), &rank->err));
		TRY(rank->world->ops->copy(rank->stream, r->sum, streams[1], hidden * 4, COPY_TO_HOST, &rank->err));
		TRY(rank->world->ops->copy(rank->stream, r->out, out.data, inner * e, COPY_TO_HOST, &rank->err));
		TRY(comm_sync(rank->comm, rank->stream, &rank->err));
		compare(r, rank, c, round);
	}
	return STATUS_OK;
}

static void body(struct world_rank *rank)
{
	const struct carried_case *c = rank->world->context;
	struct carried_rank r;
	if (rank->comm->carried_rows < 1) {
		world_complain(rank, "%s carries no sums of %d columns", rank->comm->vt->name, c->hidden);
		return;
	}
	make_host(&r, rank->world, c);
	rank->st = run(&r, rank, c);
	free_all(&r, rank);
}

void gpu_check_carried(struct gpu_check *c, int P)
{
	/* The last: what the tensor-core kernel sends and receives; before it: packets that no tile's kernel makes, and rows too wide to be received in it. */
	static const int shapes[][3] = {{16, 8, 16}, {80, 24, 40}, {5632, 64, 32}, {256, 128, 96}};
	struct world w;
	if (!world_open(&w, c, P, 64, 64)) {
		c->failed++;
		return;
	}
	for (int s = 0; s < 4; s++)
		for (int dtype = 0; dtype < 3; dtype++) {
			struct carried_case one = {shapes[s][0], shapes[s][1], shapes[s][2], s % 2 == dtype % 2, (enum dtype)dtype};
			const struct comm_options o = {.max_rows = 2, .cols = one.hidden, .dtype = one.dtype, .tree_leaves = P, .transport = "p2p"};
			if (c->quick && (s == 2 || (P > 2 && s != dtype))) continue;
			gpu_case(c, one.dtype, FILL_RANDOM, "%d ranks, carried by ops, [1,%d] from %d inputs%s", P, one.hidden, one.k, one.bias ? ", bias" : "");
			world_group(&w, LONG_MS, NULL);
			w.context = &one;
			world_run(&w, &o, body);
			if (world_report(&w, c)) c->compared += ROUNDS * (one.hidden + one.inner);
			gpu_case_end(c);
		}
	world_close(&w);
}
