/* moe_decode.cu: the experts of one to four rows: every wave reads rows of the matrices that its row chose. Bound by the rate at which those are read.
 *
 * logits: a block makes one output; its row of the router is on its way before the kernel waits. up: a block routes its row for itself, which costs less than a
 * kernel between two launches, and takes some inner columns of one of its experts. down: a wave takes an output and goes through the row's experts one behind the
 * other, without a pause between them. It routes, and asks for its first weights, before it waits for up: logits are older than up, whose blocks let down start
 * only after they have waited for them.
 */
#include "device/gpu/moe_device.h"
#include "device/gpu/rows.h"

#define DECODE_WAVES (ROUTE_THREADS / GPU_WARP)
#define UP_DEPTH 4   /* pieces of 16 bytes of gate and of up that a lane has on their way */
#define DOWN_DEPTH 8

/* x in shared memory against a row of W: lane l has pieces l, l + GPU_WARP, ... */
template <typename T, int ROWS> GPU_TEMPLATE void dot_rows(float acc[ROWS], const T *w, int64_t apart, const T *x, int k)
{
	constexpr int vec = gpu_lanes<T>::count, step = GPU_WARP * vec;
	for (int k0 = (int)threadIdx.x % GPU_WARP * vec; k0 < k; k0 += UP_DEPTH * step) {
		gpu_vec16 piece[ROWS][UP_DEPTH];
		GPU_UNROLL for (int r = 0; r < ROWS; r++)
			GPU_UNROLL for (int d = 0; d < UP_DEPTH; d++)
				if (k0 + d * step < k) piece[r][d] = gpu_load16_stream(w + r * apart + k0 + d * step);
		GPU_UNROLL for (int d = 0; d < UP_DEPTH; d++) {
			if (k0 + d * step >= k) break;
			float a[vec], b[vec];
			gpu_widen16<T>(*(const gpu_vec16 *)(x + k0 + d * step), a);
			GPU_UNROLL for (int r = 0; r < ROWS; r++) {
				gpu_widen16<T>(piece[r][d], b);
				GPU_UNROLL for (int i = 0; i < vec; i++) acc[r] = gpu_fma(a[i], b[i], acc[r]);
			}
		}
	}
}

/* N elements of the row's norm from element k on, not yet narrowed. */
template <int N> GPU_TEMPLATE void norm_piece(float *out, const moe_problem &p, const float *x, int k, float scale)
{
	float w[N];
	gpu_load<N>(x + k, out);
	gpu_load<N>(p.norm_weight + k, w);
	GPU_UNROLL for (int i = 0; i < N; i++) out[i] = out[i] * scale * w[i];
}

/* Block (o, t): output o of row t; where x is to be made, every block makes the row for itself and the first one stores it. Rows of W and x aligned to 16 bytes,
 * hidden a multiple of a piece. */
template <typename T, bool NORM> GPU_KERNEL(ROUTE_THREADS) moe_decode_logits_kernel(moe_problem p)
{
	GPU_SHARED(float, scratch, 32);
	constexpr int vec = gpu_lanes<T>::count, step = ROUTE_THREADS * vec;
	const int begin = (int)threadIdx.x * vec, row = (int)blockIdx.y;
	const T *w = (const T *)p.router + (int64_t)blockIdx.x * p.hidden;
	const float *from = p.norm_x + row * p.norm_stride;
	T *x = (T *)p.x + row * p.x_stride;
	gpu_vec16 piece;
	if (begin < p.hidden) piece = *(const gpu_vec16 *)(w + begin);
	gpu_wait_previous();
	gpu_start_next();
	float sum = 0, scale = 0, a[vec], b[vec];
	if (NORM) {
		float squares = 0;
		for (int k = begin; k < p.hidden; k += step) {
			gpu_load<vec>(from + k, a);
			GPU_UNROLL for (int i = 0; i < vec; i++) squares = gpu_fma(a[i], a[i], squares);
		}
		scale = 1.0f / sqrtf(gpu_block_sum(squares, scratch) / (float)p.hidden + p.eps);
	}
	for (int k = begin; k < p.hidden; k += step) {
		if (k != begin) piece = *(const gpu_vec16 *)(w + k);
		if (NORM) {
			norm_piece<vec>(a, p, from, k, scale);
			if (blockIdx.x == 0) gpu_store<vec>(x + k, a);
			GPU_UNROLL for (int i = 0; i < vec; i++) a[i] = gpu_widen(gpu_narrow<T>(a[i]));
		} else {
			gpu_widen16<T>(*(const gpu_vec16 *)(x + k), a);
		}
		gpu_widen16<T>(piece, b);
		GPU_UNROLL for (int i = 0; i < vec; i++) sum = gpu_fma(a[i], b[i], sum);
	}
	sum = gpu_block_sum(sum, scratch);
	if (threadIdx.x == 0) p.logits[(int64_t)row * (p.experts + p.shared) + blockIdx.x] = sum;
}

/* Block (b, s): slot s % slots of row s / slots (slots: its experts, then the shared one); wave w: inner columns b * DECODE_WAVES + w, and every
 * gridDim.x * DECODE_WAVES-th after it. Rows of W and x aligned to 16 bytes, hidden a multiple of a piece. Shared: routing, x. */
template <typename T> GPU_KERNEL(ROUTE_THREADS) moe_decode_up_kernel(moe_problem p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(moe_route, route, 1);
	T *x = (T *)dynamic;
	const int slots = p.top_k + p.shared, row = (int)blockIdx.y / slots, slot = (int)blockIdx.y % slots, wave = (int)threadIdx.x / GPU_WARP;
	gpu_wait_previous();
	gpu_start_next(); /* not before: down reads the logits before it waits for this kernel */
	const gpu_vec16 *from = (const gpu_vec16 *)((const T *)p.x + row * p.x_stride);
	for (int i = (int)threadIdx.x; i < p.hidden / gpu_lanes<T>::count; i += ROUTE_THREADS) ((gpu_vec16 *)x)[i] = from[i];
	route_row(p, row, route);
	const bool shared = slot == p.top_k;
	const int inner = shared ? p.shared_inner : p.inner;
	const T *w = shared ? (const T *)p.shared_gate_up : (const T *)p.gate_up + route->chosen[shared ? 0 : slot] * p.gate_up_step;
	T *act = shared ? (T *)p.shared_act + (int64_t)row * inner : (T *)p.act + (int64_t)(row * p.top_k + slot) * inner;
	for (int i = (int)blockIdx.x * DECODE_WAVES + wave; i < inner; i += (int)gridDim.x * DECODE_WAVES) {
		float acc[2] = {};
		dot_rows<T, 2>(acc, w + (int64_t)i * p.hidden, (int64_t)inner * p.hidden, x, p.hidden);
		const float gate = gpu_warp_sum(acc[0]), up = gpu_warp_sum(acc[1]);
		if (threadIdx.x % GPU_WARP == 0) act[i] = gpu_narrow<T>(gate / (1.0f + expf(-gate)) * up);
	}
}

/* One row's experts as down sees them, in shared memory. */
template <typename T> struct down_source {
	const T *w;    /* of output 0, from the span's first column */
	const T *act;  /* in shared memory */
	int64_t stride; /* of w, from output to output */
	float weight;
	int k;
};

/* The wave's walk over the pieces of its outputs, source after source. */
struct down_walk {
	int output, source, k0; /* k0: this lane's */
};
/* True when the output is complete; the same for all lanes. */
template <typename T> GPU_TEMPLATE bool down_step(down_walk &at, const down_source<T> *source, int sources, int lane_k0, int stride)
{
	at.k0 += GPU_WARP * gpu_lanes<T>::count;
	if (at.k0 - lane_k0 < source[at.source].k) return false;
	at.k0 = lane_k0;
	if (++at.source < sources) return false;
	at.source = 0;
	at.output += stride;
	return true;
}

template <typename T>
GPU_TEMPLATE void down_load(gpu_vec16 piece[DOWN_DEPTH], down_walk &at, const down_source<T> *source, int sources, int outputs, int lane_k0, int stride)
{
	GPU_UNROLL for (int d = 0; d < DOWN_DEPTH; d++) {
		if (at.output < outputs) {
			const down_source<T> &s = source[at.source];
			if (at.k0 < s.k) piece[d] = gpu_load16_stream(s.w + at.output * s.stride + at.k0);
			down_step<T>(at, source, sources, lane_k0, stride);
		}
	}
}

template <typename T> GPU_TEMPLATE float down_dot(const down_source<T> &s, int k0, gpu_vec16 piece)
{
	constexpr int vec = gpu_lanes<T>::count;
	float a[vec], b[vec], dot = 0;
	gpu_widen16<T>(*(const gpu_vec16 *)(s.act + k0), a);
	gpu_widen16<T>(piece, b);
	GPU_UNROLL for (int i = 0; i < vec; i++) dot = gpu_fma(a[i], b[i], dot);
	return dot;
}

/* The row's sources, from its route. */
template <typename T> GPU_TEMPLATE void down_sources(const moe_problem &p, const moe_span &span, const moe_route *route, T *act, down_source<T> *source)
{
	const int i = (int)threadIdx.x;
	if (i >= p.top_k + p.shared) return;
	down_source<T> s;
	s.weight = route->weight[i];
	s.k = i < p.top_k ? span.k : span.shared_k;
	s.act = act + i * span.k;
	s.stride = i < p.top_k ? p.inner : p.shared_inner;
	s.w = i < p.top_k ? (const T *)p.down + route->chosen[i] * p.down_step + span.k0 : (const T *)p.shared_down + span.shared_k0;
	source[i] = s;
}

/* act of the row's experts, and of the shared one behind them, to shared memory. */
template <typename T> GPU_TEMPLATE void down_stage(const moe_problem &p, const moe_span &span, int row, T *act)
{
	constexpr int vec = gpu_lanes<T>::count;
	for (int i = (int)threadIdx.x * vec; i < p.top_k * span.k; i += ROUTE_THREADS * vec) {
		const int slot = i / span.k;
		*(gpu_vec16 *)(act + i) = *(const gpu_vec16 *)((const T *)p.act + (int64_t)(row * p.top_k + slot) * p.inner + span.k0 + i - slot * span.k);
	}
	for (int i = (int)threadIdx.x * vec; p.shared && i < span.shared_k; i += ROUTE_THREADS * vec)
		*(gpu_vec16 *)(act + p.top_k * span.k + i) = *(const gpu_vec16 *)((const T *)p.shared_act + (int64_t)row * p.shared_inner + span.shared_k0 + i);
}

/* Block (b, t): row t; wave w: outputs b * DECODE_WAVES + w, and every gridDim.x * DECODE_WAVES-th. The span's columns begin and end with a piece of 16 bytes.
 * Shared: routing, sources, act of the row's experts. */
template <typename T, typename Y> GPU_KERNEL(ROUTE_THREADS) moe_decode_down_kernel(moe_problem p, moe_span span)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(moe_route, route, 1);
	GPU_SHARED(down_source<T>, source, MOE_MAX_TOP_K + 1);
	T *act = (T *)dynamic;
	const int row = (int)blockIdx.y, sources = p.top_k + p.shared, lane = (int)threadIdx.x % GPU_WARP, lane_k0 = lane * gpu_lanes<T>::count;
	const int stride = (int)gridDim.x * DECODE_WAVES;
	down_walk use = {(int)blockIdx.x * DECODE_WAVES + (int)threadIdx.x / GPU_WARP, 0, lane_k0}, load = use;
	gpu_vec16 piece[DOWN_DEPTH], next[DOWN_DEPTH];
	route_row(p, row, route);
	down_sources<T>(p, span, route, act, source);
	gpu_sync();
	down_load<T>(piece, load, source, sources, p.hidden, lane_k0, stride);
	gpu_wait_previous();
	gpu_start_next();
	down_stage<T>(p, span, row, act);
	gpu_sync();
	Y *y = (Y *)p.y + row * p.y_stride;
	float acc = 0, before = p.accumulate && use.output < p.hidden ? gpu_widen(y[use.output]) : 0;
	while (use.output < p.hidden) {
		down_load<T>(next, load, source, sources, p.hidden, lane_k0, stride);
		GPU_UNROLL for (int d = 0; d < DOWN_DEPTH; d++) {
			if (use.output < p.hidden) {
				const down_source<T> &s = source[use.source];
				const int output = use.output;
				if (use.k0 < s.k) acc = gpu_fma(s.weight, down_dot<T>(s, use.k0, piece[d]), acc);
				if (down_step<T>(use, source, sources, lane_k0, stride)) {
					acc = gpu_warp_sum(acc);
					if (lane == 0) y[output] = gpu_narrow<Y>(before + acc);
					acc = 0;
					before = p.accumulate && use.output < p.hidden ? gpu_widen(y[use.output]) : 0;
				}
			}
		}
		GPU_UNROLL for (int d = 0; d < DOWN_DEPTH; d++) piece[d] = next[d];
	}
}

/* ---- launchers */

bool moe_decode_can(const struct gpu_context *context, const struct moe_problem *p)
{
	const int piece = 16 / (int)dtype_bytes(p->type);
	const uintptr_t pointers = (uintptr_t)p->x | (uintptr_t)p->router | (uintptr_t)p->gate_up | (uintptr_t)p->down | (uintptr_t)p->shared_gate_up | (uintptr_t)p->shared_down;
	const size_t act = ((size_t)p->top_k * (size_t)p->inner + (size_t)p->shared_inner) * dtype_bytes(p->type), x = (size_t)p->hidden * dtype_bytes(p->type);
	const bool norm = !p->norm_x || (((uintptr_t)p->norm_x | (uintptr_t)p->norm_weight) % 16 == 0 && p->norm_stride % 4 == 0);
	return norm && p->rows <= MOE_DECODE_ROWS && pointers % 16 == 0 && p->x_stride % piece == 0 && p->hidden % piece == 0 && p->inner % piece == 0 &&
	       p->shared_inner % piece == 0 && (act > x ? act : x) + 8192 <= context->props.max_shared;
}

/* Blocks along an axis of `units` waves' work so that the device is full, and no wave has more than its share. */
static unsigned blocks_for(const struct gpu_context *context, int units, int others)
{
	const int waves = ROUTE_THREADS / context->props.warp, least = (units + waves - 1) / waves, room = 4 * context->props.multiprocessors / others;
	if (least <= room || room < 1) return (unsigned)least;
	const int rounds = (least + room - 1) / room;
	return (unsigned)((least + rounds - 1) / rounds);
}

template <typename T> static gpu_error up_run(const struct gpu_context *context, const moe_problem &p)
{
	const size_t shared = (size_t)p.hidden * sizeof(T);
	const int widest = p.inner > p.shared_inner ? p.inner : p.shared_inner, slots = p.rows * (p.top_k + p.shared);
	gpu_error code = shared > 32 * 1024 ? gpu_allow_shared(moe_decode_up_kernel<T>, context->props.max_shared - 8192) : GPU_OK;
	if (code != GPU_OK) return code;
	return GPU_LAUNCH(moe_decode_up_kernel<T>, dim3(blocks_for(context, widest, slots), (unsigned)slots), dim3(ROUTE_THREADS), shared, context->stream, p);
}

template <typename T, typename Y> static gpu_error down_run(const struct gpu_context *context, const moe_problem &p, const moe_span &span)
{
	const size_t shared = ((size_t)p.top_k * (size_t)span.k + (size_t)span.shared_k) * sizeof(T);
	gpu_error code = shared > 32 * 1024 ? gpu_allow_shared((moe_decode_down_kernel<T, Y>), context->props.max_shared - 8192) : GPU_OK;
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((moe_decode_down_kernel<T, Y>), dim3(blocks_for(context, p.hidden, p.rows), (unsigned)p.rows), dim3(ROUTE_THREADS), shared, context->stream, p,
	                  span);
}

template <typename T> static gpu_error logits_run(const struct gpu_context *context, const moe_problem &p)
{
	const dim3 grid((unsigned)(p.experts + p.shared), (unsigned)p.rows);
	if (p.norm_x) return GPU_LAUNCH((moe_decode_logits_kernel<T, true>), grid, dim3(ROUTE_THREADS), 0, context->stream, p);
	return GPU_LAUNCH((moe_decode_logits_kernel<T, false>), grid, dim3(ROUTE_THREADS), 0, context->stream, p);
}

enum status moe_decode_logits(const struct gpu_context *context, const struct moe_problem *p, struct error *err)
{
	gpu_error code = p->type == DTYPE_F32 ? logits_run<float>(context, *p) : p->type == DTYPE_F16 ? logits_run<f16>(context, *p) : logits_run<bf16>(context, *p);
	return gpu_check(code, "launch of moe_decode_logits", err);
}

enum status moe_decode_up(const struct gpu_context *context, const struct moe_problem *p, struct error *err)
{
	gpu_error code = p->type == DTYPE_F32 ? up_run<float>(context, *p) : p->type == DTYPE_F16 ? up_run<f16>(context, *p) : up_run<bf16>(context, *p);
	return gpu_check(code, "launch of moe_decode_up", err);
}

enum status moe_decode_down(const struct gpu_context *context, const struct moe_problem *p, const struct moe_span *span, struct error *err)
{
	const bool wide = p->y_type == DTYPE_F32;
	gpu_error code = p->type == DTYPE_F32   ? down_run<float, float>(context, *p, *span)
	                 : p->type == DTYPE_F16 ? (wide ? down_run<f16, float>(context, *p, *span) : down_run<f16, f16>(context, *p, *span))
	                                        : (wide ? down_run<bf16, float>(context, *p, *span) : down_run<bf16, bf16>(context, *p, *span));
	return gpu_check(code, "launch of moe_decode_down", err);
}
