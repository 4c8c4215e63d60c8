/* moe_flow.cu: the experts of one or two rows as one kernel, from the residual stream to y, so that the weights flow without a pause.
 *
 * A block for each multiprocessor stays for the whole kernel. It makes the norm for itself, and some of the router's logits; blocks tell each other logits as
 * packets, a value and the launch's number in one store, so that who reads one needs no other word; then each routes all rows for itself. From there on every wave
 * walks its own units: of gate and up an inner column of one of a row's experts, then of down an output of a row. Its lanes ask for the pieces that they will
 * multiply DEPTH steps ahead, into places in shared memory that are theirs alone, so a wave needs no barrier between copy and use; and the copies go on from gate and
 * up to down while the blocks meet, once, between the two. act holds the experts' weights already, so that an output of down is one dot product over all experts' columns.
 *
 * Blocks wait for blocks, which is right because all of them run at once: there are no more than multiprocessors, nobody else is on the device, and who comes after them in
 * the stream waits for them. Who has waited for PATIENCE_NS in vain ends the process's work on the device with a fault.
 *
 * Launches are numbered by a word that block 0 raises when the blocks have met: by then each has read it. The number comes again after 2^32 launches.
 */
#include "device/gpu/moe_device.h"
#include "device/gpu/rows.h"

#define FLOW_THREADS 512
#define FLOW_WAVES (FLOW_THREADS / GPU_WARP)
#define FLOW_PIECES 8 /* of 16 bytes of a lane and step: 4 KB of a row at once for a wave of 32, so that memory is read in long runs */
#define FLOW_DEPTH 3  /* steps ahead, where shared memory has room for them */
#define FLOW_TASKS 4  /* router rows that a block multiplies between two barriers */
#define FLOW_STATIC 8192 /* bytes: the most that the kernel's arrays of fixed size take */
#define PATIENCE_NS 10000000000ull

struct flow_words {
	uint32_t launches, gap0[31], arrived, gap1[31];
	unsigned long long logit[MOE_FLOW_ROWS][MOE_MAX_EXPERTS + 1]; /* value, number of the launch */
};
static_assert(sizeof(flow_words) <= GPU_MEETING_BYTES, "the stream has room for the words");

/* What the rows chose, for all threads. */
struct flow_routes {
	int32_t chosen[MOE_FLOW_ROWS][MOE_MAX_TOP_K];
	float weight[MOE_FLOW_ROWS][MOE_MAX_TOP_K + 1];
};

/* ---- waiting */

GPU_DEVICE void flow_patience(unsigned &turns, unsigned long long &since)
{
	gpu_spin_pause();
	if (++turns % 4096) return;
	const unsigned long long now = gpu_clock_ns();
	if (!since) since = now;
	else if (now - since > PATIENCE_NS) gpu_trap();
}

GPU_DEVICE float flow_logit(const unsigned long long *packet, uint32_t number)
{
	unsigned turns = 0;
	unsigned long long since = 0, v;
	while ((uint32_t)((v = gpu_load8_volatile(packet)) >> 32) != number) flow_patience(turns, since);
	return gpu_bits_to_f32((uint32_t)v);
}

/* All blocks: what any of them wrote before is visible to all threads afterwards. */
GPU_DEVICE void flow_meet(flow_words *words, uint32_t number)
{
	gpu_sync();
	if (threadIdx.x == 0) {
		unsigned turns = 0;
		unsigned long long since = 0;
		gpu_fence_device();
		gpu_atomic_add(&words->arrived, 1u);
		while ((int32_t)(gpu_load_acquire(&words->arrived) - number * gridDim.x) < 0) flow_patience(turns, since);
		if (blockIdx.x == 0) words->launches = number;
	}
	gpu_sync();
}

/* ---- input and logits */

/* Rows of x, or their norms, to shared memory; block 0 stores norms. Thread: elements 4 threadIdx.x, + 4 FLOW_THREADS, ... `ahead`: the first four of the
 * norm's weight. */
template <typename T, bool NORM> GPU_TEMPLATE void flow_stage_x(const moe_problem &p, const float *ahead, T *x, float *scratch)
{
	const int begin = (int)threadIdx.x * 4, step = FLOW_THREADS * 4;
	for (int row = 0; row < p.rows; row++) {
		T *to = (T *)p.x + row * p.x_stride;
		const float *from = p.norm_x + row * p.norm_stride;
		float first[4] = {}, a[4], w[4], squares = 0;
		if (!NORM) {
			for (int k = begin; k < p.hidden; k += step) gpu_load<4>(to + k, a), gpu_store<4>(x + row * p.hidden + k, a);
			continue;
		}
		if (begin < p.hidden) gpu_load<4>(from + begin, first);
		GPU_UNROLL for (int i = 0; i < 4; i++) squares = gpu_fma(first[i], first[i], squares);
		for (int k = begin + step; k < p.hidden; k += step) {
			gpu_load<4>(from + k, a);
			GPU_UNROLL for (int i = 0; i < 4; i++) squares = gpu_fma(a[i], a[i], squares);
		}
		const float scale = 1.0f / sqrtf(gpu_block_sum(squares, scratch) / (float)p.hidden + p.eps);
		for (int k = begin; k < p.hidden; k += step) {
			if (k != begin) gpu_load<4>(from + k, first), gpu_load<4>(p.norm_weight + k, w);
			GPU_UNROLL for (int i = 0; i < 4; i++) a[i] = first[i] * scale * (k == begin ? ahead[i] : w[i]);
			gpu_store<4>(x + row * p.hidden + k, a);
			if (blockIdx.x == 0) gpu_store<4>(to + k, a);
		}
	}
	gpu_sync();
}

/* Logits of the router's rows blockIdx.x, + gridDim.x, ... of all rows of x, as packets. Thread: pieces threadIdx.x, + FLOW_THREADS, ... of each. `ahead`: its first
 * piece of the first FLOW_TASKS of them. partial: [MOE_FLOW_ROWS][FLOW_TASKS][FLOW_WAVES]. */
template <typename T> GPU_TEMPLATE void flow_logits(const moe_problem &p, const gpu_vec16 *ahead, const T *x, float *partial, flow_words *words, uint32_t number)
{
	constexpr int vec = gpu_lanes<T>::count;
	const int outputs = p.experts + p.shared, begin = (int)threadIdx.x * vec, blocks = (int)gridDim.x;
	for (int first = (int)blockIdx.x; first < outputs; first += FLOW_TASKS * blocks) {
		GPU_UNROLL for (int task = 0; task < FLOW_TASKS; task++) {
			const int e = first + task * blocks;
			if (e >= outputs) break;
			for (int row = 0; row < p.rows; row++) {
				float sum = 0, a[vec], b[vec];
				for (int k = begin; k < p.hidden; k += FLOW_THREADS * vec) {
					const bool here = k == begin && first == (int)blockIdx.x;
					gpu_widen16<T>(here ? ahead[task] : *(const gpu_vec16 *)((const T *)p.router + (int64_t)e * p.hidden + k), b);
					gpu_widen16<T>(*(const gpu_vec16 *)(x + row * p.hidden + k), a);
					GPU_UNROLL for (int i = 0; i < vec; i++) sum = gpu_fma(a[i], b[i], sum);
				}
				sum = gpu_warp_sum(sum);
				if (threadIdx.x % GPU_WARP == 0) partial[(row * FLOW_TASKS + task) * FLOW_WAVES + (int)threadIdx.x / GPU_WARP] = sum;
			}
		}
		gpu_sync();
		const int row = (int)threadIdx.x / FLOW_TASKS, e = first + (int)threadIdx.x % FLOW_TASKS * blocks;
		if (row < p.rows && e < outputs) {
			float sum = 0;
			GPU_UNROLL for (int w = 0; w < FLOW_WAVES; w++) sum += partial[(int)threadIdx.x * FLOW_WAVES + w];
			gpu_store8_volatile(&words->logit[row][e], (unsigned long long)number << 32 | gpu_f32_to_bits(sum));
		}
		gpu_sync();
	}
}

GPU_DEVICE void flow_route(const moe_problem &p, const flow_words *words, uint32_t number, moe_route *route, flow_routes *routes)
{
	const int t = (int)threadIdx.x;
	for (int row = 0; row < p.rows; row++) {
		route_logits<FLOW_THREADS> own;
		GPU_UNROLL for (int i = 0; i < own.count; i++) {
			const int e = t + i * FLOW_THREADS;
			own.v[i] = e < p.experts ? flow_logit(&words->logit[row][e], number) : -INFINITY;
		}
		route_values<FLOW_THREADS>(p, own, p.shared && t == 0 ? flow_logit(&words->logit[row][p.experts], number) : 0, route);
		if (t < p.top_k) routes->chosen[row][t] = route->chosen[t];
		if (t < p.top_k + p.shared) routes->weight[row][t] = route->weight[t];
	}
	gpu_sync();
}

/* ---- units: what a wave walks. Of up: unit u of rows * (top_k * inner + shared_inner), slot after slot, row after row; of down: output u % hidden of row u / hidden. */

struct flow_sizes {
	int per_row, up_units, down_units, stride; /* stride: from a wave's unit to its next */
	int up_steps;                              /* of a unit: runs of its gate row and of its up row by turns */
	int pieces, shared_pieces, row_pieces;     /* of an expert's columns, the shared one's, a row's */
};
template <typename T> GPU_TEMPLATE flow_sizes flow_sizes_of(const moe_problem &p)
{
	flow_sizes s;
	s.per_row = p.top_k * p.inner + p.shared_inner;
	s.up_units = p.rows * s.per_row;
	s.down_units = p.rows * p.hidden;
	s.stride = (int)gridDim.x * FLOW_WAVES;
	s.up_steps = 2 * ((p.hidden / gpu_lanes<T>::count + FLOW_PIECES * GPU_WARP - 1) / (FLOW_PIECES * GPU_WARP));
	s.pieces = p.inner / gpu_lanes<T>::count;
	s.shared_pieces = p.shared_inner / gpu_lanes<T>::count;
	s.row_pieces = p.top_k * s.pieces + s.shared_pieces;
	return s;
}

struct flow_unit {
	int row, slot, column; /* slot top_k: the shared expert */
};
GPU_DEVICE flow_unit flow_unit_of(const moe_problem &p, const flow_sizes &s, int unit)
{
	flow_unit u;
	u.row = unit / s.per_row;
	const int rest = unit - u.row * s.per_row;
	u.slot = rest / p.inner < p.top_k ? rest / p.inner : p.top_k;
	u.column = rest - u.slot * p.inner;
	return u;
}

/* Where a lane's next copies come from: step `step` of `unit`, counted through up's units and then down's. Down: the lane's next piece is number `piece` of
 * slot `slot`. */
template <typename T> struct flow_reader {
	bool down;
	int unit, step, row, output, slot, piece;
	const T *gate, *up;
};

template <typename T> GPU_TEMPLATE void flow_down_restart(flow_reader<T> &r, const moe_problem &p, const flow_sizes &s)
{
	r.row = r.unit / p.hidden;
	r.output = r.unit - r.row * p.hidden;
	r.slot = 0;
	r.piece = (int)threadIdx.x % GPU_WARP;
	while (r.slot < p.top_k && r.piece >= s.pieces) r.piece -= s.pieces, r.slot++;
}

/* At `unit` of up, or, behind up's last, at the wave's first unit of down. */
template <typename T> GPU_TEMPLATE void flow_up_at(flow_reader<T> &r, const moe_problem &p, const flow_sizes &s, const flow_routes *routes, int unit)
{
	r.down = unit >= s.up_units;
	r.unit = unit;
	r.step = 0;
	if (r.down) {
		r.unit = (int)blockIdx.x + (int)threadIdx.x / GPU_WARP * (int)gridDim.x;
		flow_down_restart<T>(r, p, s);
		return;
	}
	const flow_unit u = flow_unit_of(p, s, unit);
	const T *w = u.slot == p.top_k ? (const T *)p.shared_gate_up : (const T *)p.gate_up + routes->chosen[u.row][u.slot] * p.gate_up_step;
	r.gate = w + (int64_t)u.column * p.hidden;
	r.up = r.gate + (int64_t)(u.slot == p.top_k ? p.shared_inner : p.inner) * p.hidden;
}

/* One step's copies of a lane, to `to` and every GPU_WARP-th place behind it; a group, also where nothing is left to copy. */
template <typename T> GPU_TEMPLATE void flow_copy(flow_reader<T> &r, const moe_problem &p, const flow_sizes &s, const flow_routes *routes, gpu_vec16 *to)
{
	constexpr int vec = gpu_lanes<T>::count;
	if (!r.down) {
		const T *row = r.step % 2 ? r.up : r.gate;
		const int k0 = (r.step / 2 * FLOW_PIECES * GPU_WARP + (int)threadIdx.x % GPU_WARP) * vec;
		GPU_UNROLL for (int j = 0; j < FLOW_PIECES; j++)
			if (k0 + j * GPU_WARP * vec < p.hidden) gpu_copy16(to + j * GPU_WARP, row + k0 + j * GPU_WARP * vec);
		if (++r.step == s.up_steps) flow_up_at<T>(r, p, s, routes, r.unit + s.stride);
	} else if (r.unit < s.down_units) {
		GPU_UNROLL for (int j = 0; j < FLOW_PIECES; j++) {
			const bool shared = r.slot == p.top_k;
			if (r.piece >= (shared ? s.shared_pieces : s.pieces)) break;
			const T *w = shared ? (const T *)p.shared_down + (int64_t)r.output * p.shared_inner
			                    : (const T *)p.down + routes->chosen[r.row][r.slot] * p.down_step + (int64_t)r.output * p.inner;
			gpu_copy16(to + j * GPU_WARP, w + r.piece * vec);
			r.piece += GPU_WARP;
			while (r.slot < p.top_k && r.piece >= s.pieces) r.piece -= s.pieces, r.slot++;
		}
		if (++r.step * FLOW_PIECES * GPU_WARP >= s.row_pieces) {
			r.unit += s.stride, r.step = 0;
			flow_down_restart<T>(r, p, s);
		}
	}
	gpu_copy_commit();
}

/* sum + a step's pieces, at `place` and every GPU_WARP-th behind it, times pieces `piece`, + GPU_WARP, ... of x, of which there are `pieces`. */
template <typename T> GPU_TEMPLATE float flow_run_dot(const gpu_vec16 *place, const gpu_vec16 *x, int piece, int pieces, float sum)
{
	constexpr int vec = gpu_lanes<T>::count;
	GPU_UNROLL for (int j = 0; j < FLOW_PIECES; j++) {
		if (piece + j * GPU_WARP >= pieces) break;
		float a[vec], b[vec];
		gpu_widen16<T>(x[piece + j * GPU_WARP], a);
		gpu_widen16<T>(place[j * GPU_WARP], b);
		GPU_UNROLL for (int i = 0; i < vec; i++) sum = gpu_fma(a[i], b[i], sum);
	}
	return sum;
}

/* act of the unit: by its lanes' sums. */
template <typename T> GPU_TEMPLATE void flow_put_act(const moe_problem &p, const flow_sizes &s, const flow_routes *routes, int unit, float gate, float up)
{
	gate = gpu_warp_sum(gate), up = gpu_warp_sum(up);
	if (threadIdx.x % GPU_WARP) return;
	const flow_unit u = flow_unit_of(p, s, unit);
	T *act = u.slot == p.top_k ? (T *)p.shared_act + (int64_t)u.row * p.shared_inner : (T *)p.act + (int64_t)(u.row * p.top_k + u.slot) * p.inner;
	act[u.column] = gpu_narrow<T>(gate / (1.0f + expf(-gate)) * up * routes->weight[u.row][u.slot]);
}

/* act of all rows to shared memory: a row's experts, and the shared one behind them. */
template <typename T> GPU_TEMPLATE void flow_stage_act(const moe_problem &p, const flow_sizes &s, gpu_vec16 *to)
{
	const int pieces = p.top_k * s.pieces;
	for (int row = 0; row < p.rows; row++) {
		const gpu_vec16 *act = (const gpu_vec16 *)p.act + (int64_t)row * pieces, *shared = (const gpu_vec16 *)p.shared_act + (int64_t)row * s.shared_pieces;
		for (int i = (int)threadIdx.x; i < s.row_pieces; i += FLOW_THREADS) to[row * s.row_pieces + i] = i < pieces ? act[i] : shared[i - pieces];
	}
	gpu_sync();
}

/* Block b, wave w: units b + gridDim.x * w, + gridDim.x * FLOW_WAVES, ... of up and of down. Lane l of a step: pieces l, l + GPU_WARP, ... Rows of all matrices, x and
 * act aligned to 16 bytes and whole pieces. gridDim.x: the same in every launch on these words. Dynamic shared memory: places of the copies
 * [wave][DEPTH][FLOW_PIECES][lane], then x [rows][hidden], later act [rows][row_pieces]. Bound: reading the weights of what was chosen. */
template <typename T, bool NORM, int DEPTH> GPU_KERNEL_ALONE(FLOW_THREADS) moe_flow_kernel(GPU_PARAMETER moe_problem p, flow_words *words)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(moe_route, route, 1);
	GPU_SHARED(flow_routes, routes, 1);
	GPU_SHARED(float, scratch, 32);
	constexpr int vec = gpu_lanes<T>::count;
	const int wave = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
	gpu_vec16 *ring = (gpu_vec16 *)dynamic + wave * DEPTH * FLOW_PIECES * GPU_WARP + lane, *operand = (gpu_vec16 *)dynamic + DEPTH * FLOW_PIECES * FLOW_THREADS;
	float weight[4] = {};
	gpu_vec16 router[FLOW_TASKS] = {};
	GPU_UNROLL for (int i = 0; i < FLOW_TASKS; i++) {
		const int e = (int)blockIdx.x + i * (int)gridDim.x;
		if (e < p.experts + p.shared && (int)threadIdx.x * vec < p.hidden) router[i] = ((const gpu_vec16 *)((const T *)p.router + (int64_t)e * p.hidden))[threadIdx.x];
	}
	if (NORM && (int)threadIdx.x * 4 < p.hidden) gpu_load<4>(p.norm_weight + threadIdx.x * 4, weight);
	gpu_wait_previous();
	gpu_start_next();
	const uint32_t number = gpu_load_volatile(&words->launches) + 1;
	flow_stage_x<T, NORM>(p, weight, (T *)operand, scratch);
	flow_logits<T>(p, router, (const T *)operand, (float *)dynamic, words, number);
	flow_route(p, words, number, route, routes);
	const flow_sizes s = flow_sizes_of<T>(p);
	const int first = (int)blockIdx.x + wave * (int)gridDim.x;
	flow_reader<T> reader;
	flow_up_at<T>(reader, p, s, routes, first);
	for (int d = 0; d < DEPTH; d++) flow_copy<T>(reader, p, s, routes, ring + d * FLOW_PIECES * GPU_WARP);
	int slot = 0;
	for (int unit = first; unit < s.up_units; unit += s.stride) {
		const gpu_vec16 *x = operand + flow_unit_of(p, s, unit).row * (p.hidden / vec);
		float sum = 0, other = 0; /* of the row that this step is of, and of the one that the last was */
		for (int step = 0; step < s.up_steps; step++) {
			gpu_copy_wait<DEPTH - 1>();
			const float now = flow_run_dot<T>(ring + slot * FLOW_PIECES * GPU_WARP, x, step / 2 * FLOW_PIECES * GPU_WARP + lane, p.hidden / vec, other);
			other = sum, sum = now;
			flow_copy<T>(reader, p, s, routes, ring + slot * FLOW_PIECES * GPU_WARP);
			if (++slot == DEPTH) slot = 0;
		}
		flow_put_act<T>(p, s, routes, unit, other, sum);
	}
	flow_meet(words, number);
	flow_stage_act<T>(p, s, operand);
	for (int unit = first; unit < s.down_units; unit += s.stride) {
		const int row = unit / p.hidden;
		const int64_t at = row * p.y_stride + unit - row * p.hidden;
		float sum = 0, before = p.accumulate ? ((const float *)p.y)[at] : 0;
		for (int step = 0; step * FLOW_PIECES * GPU_WARP < s.row_pieces; step++) {
			gpu_copy_wait<DEPTH - 1>();
			sum = flow_run_dot<T>(ring + slot * FLOW_PIECES * GPU_WARP, operand + row * s.row_pieces, step * FLOW_PIECES * GPU_WARP + lane, s.row_pieces, sum);
			flow_copy<T>(reader, p, s, routes, ring + slot * FLOW_PIECES * GPU_WARP);
			if (++slot == DEPTH) slot = 0;
		}
		sum = gpu_warp_sum(sum);
		if (lane) continue;
		if (p.y_type == DTYPE_F32) ((float *)p.y)[at] = before + sum;
		else ((T *)p.y)[at] = gpu_narrow<T>(sum);
	}
}

/* ---- launcher */

static size_t flow_operand(const struct moe_problem *p)
{
	const size_t columns = (size_t)p->top_k * (size_t)p->inner + (size_t)p->shared_inner, widest = columns > (size_t)p->hidden ? columns : (size_t)p->hidden;
	return (size_t)p->rows * widest * dtype_bytes(p->type);
}

/* Of FLOW_DEPTH and 1 the most steps ahead for which there is shared memory; 0: there is for none. */
static int flow_depth(const struct gpu_context *context, const struct moe_problem *p)
{
	for (int depth = FLOW_DEPTH; depth > 0; depth = depth > 1 ? 1 : 0)
		if ((size_t)depth * FLOW_PIECES * FLOW_THREADS * 16 + flow_operand(p) + FLOW_STATIC <= context->props.max_shared) return depth;
	return 0;
}

bool moe_flow_can(const struct gpu_context *context, const struct moe_problem *p)
{
	const int piece = 16 / (int)dtype_bytes(p->type);
	const uintptr_t pointers = (uintptr_t)p->x | (uintptr_t)p->router | (uintptr_t)p->gate_up | (uintptr_t)p->down | (uintptr_t)p->shared_gate_up | (uintptr_t)p->shared_down;
	const bool norm = !p->norm_x || (((uintptr_t)p->norm_x | (uintptr_t)p->norm_weight) % 16 == 0 && p->norm_stride % 4 == 0);
	return context->alone && norm && p->rows <= MOE_FLOW_ROWS && pointers % 16 == 0 && (p->x_stride | p->hidden | p->inner | p->shared_inner) % piece == 0 &&
	       (p->gate_up_step | p->down_step) % piece == 0 && flow_depth(context, p) > 0;
}

template <typename T, bool NORM, int DEPTH> static gpu_error flow_run(const struct gpu_context *context, const moe_problem &p)
{
	const size_t shared = (size_t)DEPTH * FLOW_PIECES * FLOW_THREADS * 16 + flow_operand(&p);
	gpu_error code = gpu_allow_shared((moe_flow_kernel<T, NORM, DEPTH>), context->props.max_shared - FLOW_STATIC);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((moe_flow_kernel<T, NORM, DEPTH>), dim3((unsigned)context->props.multiprocessors), dim3(FLOW_THREADS), shared, context->stream, p,
	                  (flow_words *)context->meeting);
}

template <typename T> static gpu_error flow_typed(const struct gpu_context *context, const moe_problem &p)
{
	switch (flow_depth(context, &p)) {
	case FLOW_DEPTH: return p.norm_x ? flow_run<T, true, FLOW_DEPTH>(context, p) : flow_run<T, false, FLOW_DEPTH>(context, p);
	default: return p.norm_x ? flow_run<T, true, 1>(context, p) : flow_run<T, false, 1>(context, p);
	}
}

enum status moe_flow_launch(const struct gpu_context *context, const struct moe_problem *p, struct error *err)
{
	gpu_error code = p->type == DTYPE_F32 ? flow_typed<float>(context, *p) : p->type == DTYPE_F16 ? flow_typed<f16>(context, *p) : flow_typed<bf16>(context, *p);
	return gpu_check(code, "launch of moe_flow", err);
}
