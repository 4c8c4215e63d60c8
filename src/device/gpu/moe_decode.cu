/* moe_decode.cu: the experts of one to four rows: every wave reads rows of the matrices that its row chose. Bound by the rate at which those are read.
 *
 * up: a block routes its row for itself, which costs less than a kernel between two launches, and takes some inner columns of one of its experts. down: a wave
 * takes an output and goes through the row's experts one behind the other, without a pause between them.
 */
#include "device/gpu/moe_device.h"

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

/* Block (b, s): slot s % slots of row s / slots (slots: its experts, then the shared one); wave w: inner columns b * DECODE_WAVES + w, and every
 * gridDim.x * DECODE_WAVES-th after it. Rows of W and x aligned to 16 bytes, hidden a multiple of a piece. Shared: routing, x. */
template <typename T> GPU_KERNEL(ROUTE_THREADS) moe_decode_up_kernel(moe_problem p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(moe_route, route, 1);
	T *x = (T *)dynamic;
	const int slots = p.top_k + p.shared, row = (int)blockIdx.y / slots, slot = (int)blockIdx.y % slots, wave = (int)threadIdx.x / GPU_WARP;
	gpu_wait_previous();
	gpu_start_next();
	const gpu_vec16 *from = (const gpu_vec16 *)((const T *)p.x + row * p.x_stride);
	for (int i = (int)threadIdx.x; i < p.hidden / gpu_lanes<T>::count; i += ROUTE_THREADS) ((gpu_vec16 *)x)[i] = from[i];
	route_row(p, row, route);
	if (blockIdx.x == 0 && slot == 0) put_route(p, row, route);
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

/* The wave's walk over the pieces of one output: (source, k0 of this lane). */
struct down_walk {
	int source, k0;
};
template <typename T> GPU_TEMPLATE void down_step(down_walk &at, const down_source<T> *source, int lane_k0)
{
	at.k0 += GPU_WARP * gpu_lanes<T>::count;
	if (at.k0 - lane_k0 >= source[at.source].k) at.source++, at.k0 = lane_k0; /* the same for all lanes */
}

template <typename T> GPU_TEMPLATE float down_output(const down_source<T> *source, int sources, int output)
{
	constexpr int vec = gpu_lanes<T>::count;
	const int lane_k0 = (int)threadIdx.x % GPU_WARP * vec;
	down_walk load = {0, lane_k0}, use = load;
	float acc = 0;
	while (use.source < sources) {
		gpu_vec16 piece[DOWN_DEPTH];
		GPU_UNROLL for (int d = 0; d < DOWN_DEPTH; d++) {
			if (load.source < sources) {
				const down_source<T> &s = source[load.source];
				if (load.k0 < s.k) piece[d] = gpu_load16_stream(s.w + output * s.stride + load.k0);
				down_step<T>(load, source, lane_k0);
			}
		}
		GPU_UNROLL for (int d = 0; d < DOWN_DEPTH; d++) {
			if (use.source < sources) {
				const down_source<T> &s = source[use.source];
				if (use.k0 < s.k) {
					float a[vec], b[vec], dot = 0;
					gpu_widen16<T>(*(const gpu_vec16 *)(s.act + use.k0), a);
					gpu_widen16<T>(piece[d], b);
					GPU_UNROLL for (int i = 0; i < vec; i++) dot = gpu_fma(a[i], b[i], dot);
					acc = gpu_fma(s.weight, dot, acc);
				}
				down_step<T>(use, source, lane_k0);
			}
		}
	}
	return gpu_warp_sum(acc);
}

/* Block (b, t): row t; wave w: outputs b * DECODE_WAVES + w, and every gridDim.x * DECODE_WAVES-th. The span's columns begin and end with a piece of 16 bytes.
 * Shared: sources, act of the row's experts. */
template <typename T, typename Y> GPU_KERNEL(ROUTE_THREADS) moe_decode_down_kernel(moe_problem p, moe_span span)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(down_source<T>, source, MOE_MAX_TOP_K + 1);
	constexpr int vec = gpu_lanes<T>::count;
	T *act = (T *)dynamic;
	const int row = (int)blockIdx.y, sources = p.top_k + p.shared, wave = (int)threadIdx.x / GPU_WARP;
	gpu_wait_previous();
	gpu_start_next();
	if ((int)threadIdx.x < sources) {
		const int i = (int)threadIdx.x;
		down_source<T> s;
		s.weight = p.weight[row * (p.top_k + 1) + i];
		s.k = i < p.top_k ? span.k : span.shared_k;
		s.act = act + i * span.k;
		s.stride = i < p.top_k ? p.inner : p.shared_inner;
		s.w = i < p.top_k ? (const T *)p.down + p.chosen[row * p.top_k + i] * p.down_step + span.k0 : (const T *)p.shared_down + span.shared_k0;
		source[i] = s;
	}
	for (int i = (int)threadIdx.x * vec; i < p.top_k * span.k; i += ROUTE_THREADS * vec) {
		const int slot = i / span.k;
		*(gpu_vec16 *)(act + i) = *(const gpu_vec16 *)((const T *)p.act + (int64_t)(row * p.top_k + slot) * p.inner + span.k0 + i - slot * span.k);
	}
	for (int i = (int)threadIdx.x * vec; p.shared && i < span.shared_k; i += ROUTE_THREADS * vec)
		*(gpu_vec16 *)(act + p.top_k * span.k + i) = *(const gpu_vec16 *)((const T *)p.shared_act + (int64_t)row * p.shared_inner + span.shared_k0 + i);
	gpu_sync();
	for (int j = (int)blockIdx.x * DECODE_WAVES + wave; j < p.hidden; j += (int)gridDim.x * DECODE_WAVES) {
		Y *y = (Y *)p.y + row * p.y_stride + j;
		const float before = p.accumulate ? gpu_widen(*y) : 0, sum = down_output<T>(source, sources, j);
		if (threadIdx.x % GPU_WARP == 0) *y = gpu_narrow<Y>(before + sum);
	}
}

/* ---- launchers */

bool moe_decode_can(const struct gpu_context *context, const struct moe_problem *p)
{
	const int piece = 16 / (int)dtype_bytes(p->type);
	const uintptr_t pointers = (uintptr_t)p->x | (uintptr_t)p->gate_up | (uintptr_t)p->down | (uintptr_t)p->shared_gate_up | (uintptr_t)p->shared_down;
	const size_t act = ((size_t)p->top_k * (size_t)p->inner + (size_t)p->shared_inner) * dtype_bytes(p->type), x = (size_t)p->hidden * dtype_bytes(p->type);
	return p->rows <= MOE_DECODE_ROWS && pointers % 16 == 0 && p->x_stride % piece == 0 && p->hidden % piece == 0 && p->inner % piece == 0 &&
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
