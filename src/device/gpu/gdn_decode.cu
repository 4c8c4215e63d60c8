/* gdn_decode.cu: the gated delta net of one row a sequence: decode steps, which are bound by the bytes of S, read once and written once.
 *
 * A block has a value head of a sequence. Four neighbouring lanes share a column of S, as in gdn.cu; a thread has its share of UNITS columns in registers, asked for
 * before the kernel waits: so the memory has requests while the projections before end. With many heads blocks are small, so that one's stores and arithmetic
 * overlap with others' loads; with few all of a head's columns are worked on at once. The lengths of q and k are not divided by element by element, but taken
 * into the sums: a barrier less.
 */
#include "device/gpu/gdn.h"
#include "device/gpu/rows.h"

#define DECODE_PARTS 4 /* lanes that share a column */
#define DECODE_PACK 4  /* neighbouring rows of S that a lane has: 16 bytes */
#define DECODE_TAPS 4
#define DECODE_THREADS 512 /* of a block whose threads have one column each */
#define DECODE_MAX_V (DECODE_THREADS / DECODE_PARTS)
#define DECODE_MANY 8 /* with more blocks for each multiprocessor, other blocks' loads do what a thread's next columns would: fewer registers, more blocks at a time */

/* A channel's taps, and the inputs of the steps before; then its value. */
struct decode_channel {
	float weight[DECODE_TAPS], input[DECODE_TAPS];
};

template <typename T> GPU_TEMPLATE void decode_earlier(decode_channel &c, const gdn_params &p, const T *before, int channels, int channel)
{
	GPU_UNROLL for (int i = 0; i < DECODE_TAPS; i++) {
		c.weight[i] = p.conv[i * channels + channel];
		if (i < DECODE_TAPS - 1) c.input[i] = before ? gpu_widen(before[i * channels + channel]) : 0.0f;
	}
}

GPU_DEVICE float decode_convolve(const decode_channel &c)
{
	float sum = 0;
	GPU_UNROLL for (int i = 0; i < DECODE_TAPS; i++) sum = gpu_fma(c.weight[i], c.input[i], sum);
	return sum / (1.0f + expf(-sum));
}

/* The inputs that the next step finds. */
template <typename T> GPU_TEMPLATE void decode_keep(const decode_channel &c, T *out, int channels, int channel)
{
	GPU_UNROLL for (int i = 1; i < DECODE_TAPS; i++) out[(i - 1) * channels + channel] = gpu_narrow<T>(c.input[i]);
}

struct decode_rates {
	float beta, decay;
};
template <typename T> GPU_TEMPLATE decode_rates decode_rates_of(const gdn_params &p, const T *ba, int head)
{
	const float a = gpu_widen(ba[p.v_heads + head]) + p.dt_bias[head], soft = fmaxf(a, 0.0f) + log1pf(expf(-fabsf(a)));
	decode_rates r = {1.0f / (1.0f + expf(-gpu_widen(ba[head]))), expf(-expf(p.a_log[head]) * soft)};
	return r;
}

/* The delta rule for a lane's share of a column; q and k begin with its rows. Of k and q the lengths are r_k and r_q times what is there. */
template <int PACKS>
GPU_TEMPLATE float decode_column(float s[PACKS][DECODE_PACK], const float *q, const float *k, float v, float r_q, float r_k, const decode_rates &rates)
{
	float found = 0, o = 0;
	GPU_UNROLL for (int j = 0; j < PACKS; j++)
		GPU_UNROLL for (int e = 0; e < DECODE_PACK; e++) {
			s[j][e] *= rates.decay;
			found = gpu_fma(k[j * DECODE_PACK * DECODE_PARTS + e], s[j][e], found);
		}
	found += gpu_shfl_xor(found, 1);
	found += gpu_shfl_xor(found, 2);
	const float change = (v - found * r_k) * rates.beta * r_k;
	GPU_UNROLL for (int j = 0; j < PACKS; j++)
		GPU_UNROLL for (int e = 0; e < DECODE_PACK; e++) {
			s[j][e] = gpu_fma(k[j * DECODE_PACK * DECODE_PARTS + e], change, s[j][e]);
			o = gpu_fma(q[j * DECODE_PACK * DECODE_PARTS + e], s[j][e], o);
		}
	o += gpu_shfl_xor(o, 1);
	return (o + gpu_shfl_xor(o, 2)) * r_q;
}

/* A lane's share of the column that begins at `at`. */
template <int PACKS> GPU_TEMPLATE void decode_load(float s[PACKS][DECODE_PACK], const float *at)
{
	GPU_UNROLL for (int j = 0; j < PACKS; j++) gpu_load<DECODE_PACK>(at + j * DECODE_PACK * DECODE_PARTS, s[j]);
}
template <int PACKS> GPU_TEMPLATE void decode_clear(float s[PACKS][DECODE_PACK])
{
	GPU_UNROLL for (int j = 0; j < PACKS; j++)
		GPU_UNROLL for (int e = 0; e < DECODE_PACK; e++) s[j][e] = 0;
}
template <int PACKS> GPU_TEMPLATE void decode_store(float *at, const float s[PACKS][DECODE_PACK])
{
	GPU_UNROLL for (int j = 0; j < PACKS; j++) gpu_store<DECODE_PACK>(at + j * DECODE_PACK * DECODE_PARTS, s[j]);
}

/* Block (h, s): value head h of sequence first_seq + s; thread: lane part t % 4 of columns t / 4 + i v_dim / UNITS, DEPTH of which it has at a time, and channel t of
 * q, k and v of the head. k_dim is 16 PACKS, v_dim UNITS / 4 of the threads. The sink, slot 0, is not written: many padding rows would at once. Bound: S read and
 * written once. */
template <typename T, int PACKS, int UNITS, int DEPTH> GPU_KERNEL(DECODE_THREADS / UNITS) gdn_decode_kernel(GPU_PARAMETER gdn_params p)
{
	constexpr int keys = PACKS * DECODE_PACK * DECODE_PARTS;
	GPU_SHARED(float, q, keys);
	GPU_SHARED(float, k, keys);
	GPU_SHARED(float, v, DECODE_MAX_V);
	GPU_SHARED(float, squares, 2 * (DECODE_THREADS / GPU_WARP));
	GPU_SHARED(float, o, DECODE_MAX_V);
	GPU_SHARED(float, o_squares, DECODE_THREADS / GPU_WARP);
	const int t = (int)threadIdx.x, wave = t / GPU_WARP, lane = t % GPU_WARP, waves = (int)blockDim.x / GPU_WARP, part = t % DECODE_PARTS;
	const int seq = p.first_seq + (int)blockIdx.y, head = (int)blockIdx.x, group = p.v_heads / p.k_heads, k_head = head / group;
	const int all_keys = p.k_heads * keys, channels = 2 * all_keys + p.v_heads * p.v_dim;
	const int q_at = k_head * keys + t, k_at = all_keys + q_at, v_at = 2 * all_keys + head * p.v_dim + t;
	const int read = p.read[seq], write = p.write[seq], first = p.row_start[seq];
	const bool has_key = t < keys, has_value = t < p.v_dim;
	const int step = (int)blockDim.x / DECODE_PARTS, at = (head * p.v_dim + t / DECODE_PARTS) * keys + part * DECODE_PACK;
	const char *old = p.state + (read < 0 ? 0 : read) * p.slot_bytes;
	char *next = p.state + write * p.slot_bytes;
	const T *before = read < 0 ? NULL : (const T *)(old + p.inputs_at);
	decode_channel cq = {}, ck = {}, cv = {};
	float state[DEPTH][PACKS][DECODE_PACK] = {};
	/* What an earlier step left is as old as weights. */
	if (read >= 0)
		GPU_UNROLL for (int i = 0; i < DEPTH; i++) decode_load<PACKS>(state[i], (const float *)old + at + i * step * keys);
	if (has_key) decode_earlier(cq, p, before, channels, q_at), decode_earlier(ck, p, before, channels, k_at);
	if (has_value) decode_earlier(cv, p, before, channels, v_at);
	gpu_wait_previous();
	gpu_start_next();
	const T *x = (const T *)p.qkvz + first * p.stride;
	float q_square = 0, k_square = 0, z = 0, square = 0;
	if (has_value) cv.input[DECODE_TAPS - 1] = gpu_widen(x[v_at]), z = gpu_widen(x[channels + head * p.v_dim + t]);
	if (has_key) {
		cq.input[DECODE_TAPS - 1] = gpu_widen(x[q_at]), ck.input[DECODE_TAPS - 1] = gpu_widen(x[k_at]);
		const float q_value = decode_convolve(cq), k_value = decode_convolve(ck);
		q[t] = q_value, k[t] = k_value;
		q_square = q_value * q_value, k_square = k_value * k_value;
	}
	if (has_value) v[t] = decode_convolve(cv);
	const decode_rates rates = decode_rates_of(p, (const T *)p.ba + first * p.ba_stride, head);
	q_square = gpu_warp_sum(q_square), k_square = gpu_warp_sum(k_square);
	if (lane == 0) squares[2 * wave] = q_square, squares[2 * wave + 1] = k_square;
	gpu_sync();
	q_square = k_square = 0;
	for (int w = 0; w < waves; w++) q_square += squares[2 * w], k_square += squares[2 * w + 1];
	const float r_q = 1.0f / sqrtf((float)keys) / sqrtf(q_square + GDN_L2_EPS), r_k = 1.0f / sqrtf(k_square + GDN_L2_EPS);
	GPU_UNROLL for (int i = 0; i < UNITS; i++) {
		const int column = t / DECODE_PARTS + i * step;
		const float value = decode_column<PACKS>(state[i % DEPTH], q + part * DECODE_PACK, k + part * DECODE_PACK, v[column], r_q, r_k, rates);
		if (part == 0) o[column] = value, square = gpu_fma(value, value, square);
		if (write != 0) decode_store<PACKS>((float *)next + at + i * step * keys, state[i % DEPTH]);
		if (i + DEPTH < UNITS && read >= 0) decode_load<PACKS>(state[i % DEPTH], (const float *)old + at + (i + DEPTH) * step * keys);
		else if (i + DEPTH < UNITS) decode_clear<PACKS>(state[i % DEPTH]);
	}
	square = gpu_warp_sum(square);
	if (lane == 0) o_squares[wave] = square;
	gpu_sync();
	square = 0;
	for (int w = 0; w < waves; w++) square += o_squares[w];
	if (has_value) {
		const float r = 1.0f / sqrtf(square / (float)p.v_dim + p.eps);
		((T *)p.out)[first * p.out_stride + head * p.v_dim + t] = gpu_narrow<T>(z / (1.0f + expf(-z)) * (o[t] * r * p.norm[t]));
	}
	if (write == 0) return;
	if (has_value) decode_keep(cv, (T *)(next + p.inputs_at), channels, v_at);
	if (has_key && head % group == 0) decode_keep(cq, (T *)(next + p.inputs_at), channels, q_at), decode_keep(ck, (T *)(next + p.inputs_at), channels, k_at);
}

bool gdn_decode_can(const struct gpu_context *context, const struct gdn_params *p)
{
	const int threads = p->v_dim * DECODE_PARTS;
	return p->taps == DECODE_TAPS && (p->k_dim == 128 || p->k_dim == 32) && p->v_dim <= DECODE_MAX_V && p->k_dim <= threads && threads % context->props.warp == 0;
}

template <typename T, int PACKS, int UNITS, int DEPTH> static gpu_error decode_run(const struct gpu_context *context, const gdn_params *p, int seqs)
{
	return GPU_LAUNCH((gdn_decode_kernel<T, PACKS, UNITS, DEPTH>), dim3((unsigned)p->v_heads, (unsigned)seqs), dim3((unsigned)(p->v_dim * DECODE_PARTS / UNITS)), 0,
	                  context->stream, *p);
}

template <typename T> static gpu_error decode_typed(const struct gpu_context *context, const gdn_params *p, int seqs)
{
	const int blocks = p->v_heads * seqs, sms = context->props.multiprocessors;
	if (p->k_dim == 32) return decode_run<T, 2, 1, 1>(context, p, seqs);
	if (p->v_dim != DECODE_MAX_V) return decode_run<T, 8, 1, 1>(context, p, seqs);
	if (blocks <= sms) return decode_run<T, 8, 2, 2>(context, p, seqs);
	return blocks <= DECODE_MANY * sms ? decode_run<T, 8, 4, 2>(context, p, seqs) : decode_run<T, 8, 4, 1>(context, p, seqs);
}

gpu_error gdn_decode_launch(const struct gpu_context *context, const struct gdn_params *p, enum dtype dtype, int seqs)
{
	return dtype == DTYPE_F32 ? decode_typed<float>(context, p, seqs) : dtype == DTYPE_F16 ? decode_typed<f16>(context, p, seqs) : decode_typed<bf16>(context, p, seqs);
}
