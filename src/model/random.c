/* Random weights. A value is a function of (seed, tensor name, row, column): a 64-bit mix of the first three gives a row key, a 32-bit
 * mix of its low half and the column pair, xor its high half, gives two 16-bit integers, one per column. So any region can be made by itself, by any thread, and the
 * inner loop is plain 32-bit arithmetic that the compiler vectorises. 16 bits are plenty for weights that nobody trained.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "model/source_impl.h"

struct random_source {
	struct source base;
	uint64_t seed;
	enum dtype dtype;
};

/* value = offset + (v + 1/2) * scale for v in [-2^15, 2^15): symmetric around the offset. */
struct range {
	float offset, scale;
};

static void random_close(struct source *source)
{
	free(source);
}

static enum status random_find(struct source *source, const char *name, struct source_tensor *out, int dims, const int64_t *shape, struct error *err)
{
	(void)err;
	const struct random_source *r = (const struct random_source *)source;
	*out = (struct source_tensor){.name = name, .dtype = r->dtype, .dims = dims, .shape = {source_rows(dims, shape), source_cols(dims, shape)}, .stream = rng_name(name)};
	return STATUS_OK;
}

static struct range range_of(const struct source_tensor *tensor)
{
	static const char norm[] = "norm.weight";
	size_t n = strlen(tensor->name);
	if (tensor->dims > 1) return (struct range){0, (float)(sqrt(3.0 / (double)tensor->shape[1]) / 32768)};
	bool is_norm = n >= sizeof norm - 1 && strcmp(tensor->name + n - (sizeof norm - 1), norm) == 0;
	return is_norm ? (struct range){1, 0.1f / 32768} : (struct range){0, 0.05f / 32768};
}

/* The finaliser "lowbias32" of Ettinger's hash prospector. */
static inline uint32_t mix32(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

/* Columns 2 * pair (low half) and 2 * pair + 1 (high half). */
static inline uint32_t two_columns(uint64_t key, uint32_t pair)
{
	return mix32((uint32_t)key + pair * 0x9e3779b9u) ^ (uint32_t)(key >> 32);
}

static inline float value_of(uint32_t half, struct range range)
{
	return range.offset + ((float)(int16_t)half + 0.5f) * range.scale;
}

/* The values are finite, so that the NaN branch of bf16_from_f32 is not needed, and the loop stays one of vectors. */
static inline uint32_t bf16_bits(float value)
{
	uint32_t bits = f32_to_bits(value);
	return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* Round to nearest even; |value| < 2, so no overflow. Below 2^-14 the result is subnormal with unit 2^-24: the unit of an f32 in
 * [0.5, 1), so adding 0.5 rounds to it. Both ways are computed and one chosen, for the sake of vectors. */
static inline uint32_t f16_bits(float value)
{
	uint32_t bits = f32_to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	uint32_t subnormal = f32_to_bits(f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
	uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
	return sign | (magnitude < 0x38800000u ? subnormal : normal);
}

static inline void store(void *out, int64_t i, enum dtype dtype, float value)
{
	uint16_t half = (uint16_t)(dtype == DTYPE_F16 ? f16_bits(value) : bf16_bits(value));
	if (dtype == DTYPE_F32) ((float *)out)[i] = value;
	else ((uint16_t *)out)[i] = half;
}

static void pairs_f32(float *restrict out, uint64_t key, uint32_t pair, int64_t pairs, struct range range)
{
	for (int64_t i = 0; i < pairs; i++) {
		uint32_t h = two_columns(key, pair + (uint32_t)i);
		out[2 * i] = value_of(h & 0xffff, range);
		out[2 * i + 1] = value_of(h >> 16, range);
	}
}

/* Two values per 32-bit store, in little-endian order as the rest of the files and tensors. */
static void pairs_bf16(uint16_t *restrict out, uint64_t key, uint32_t pair, int64_t pairs, struct range range)
{
	for (int64_t i = 0; i < pairs; i++) {
		uint32_t h = two_columns(key, pair + (uint32_t)i);
		uint32_t two = bf16_bits(value_of(h & 0xffff, range)) | bf16_bits(value_of(h >> 16, range)) << 16;
		memcpy(out + 2 * i, &two, sizeof two);
	}
}

static void pairs_f16(uint16_t *restrict out, uint64_t key, uint32_t pair, int64_t pairs, struct range range)
{
	for (int64_t i = 0; i < pairs; i++) {
		uint32_t h = two_columns(key, pair + (uint32_t)i);
		uint32_t two = f16_bits(value_of(h & 0xffff, range)) | f16_bits(value_of(h >> 16, range)) << 16;
		memcpy(out + 2 * i, &two, sizeof two);
	}
}

/* Columns [col, col + cols) of one row. Only the 16 bits of `half` count. */
static void fill_row(char *out, enum dtype dtype, uint64_t key, int64_t col, int64_t cols, struct range range)
{
	if (col & 1) {
		store(out, 0, dtype, value_of(two_columns(key, (uint32_t)(col / 2)) >> 16, range));
		out += dtype_bytes(dtype);
		col++;
		cols--;
	}
	int64_t pairs = cols / 2;
	uint32_t pair = (uint32_t)(col / 2);
	switch (dtype) {
	case DTYPE_F32: pairs_f32((float *)(void *)out, key, pair, pairs, range); break;
	case DTYPE_BF16: pairs_bf16((uint16_t *)(void *)out, key, pair, pairs, range); break;
	default: pairs_f16((uint16_t *)(void *)out, key, pair, pairs, range); break;
	}
	if (cols & 1) store(out, cols - 1, dtype, value_of(two_columns(key, pair + (uint32_t)pairs) & 0xffff, range));
}

static enum status random_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col,
                               int64_t cols, struct source_scratch *scratch, const void **data, size_t *stride, struct error *err)
{
	const struct random_source *r = (const struct random_source *)source;
	size_t line, bytes;
	if (!size_mul((size_t)cols, dtype_bytes(tensor->dtype), &line) || !size_mul(line, (size_t)rows, &bytes))
		return FAIL(err, NO_MEMORY, "%s: a region of %lld x %lld does not fit in memory; ask for less", tensor->name, (long long)rows,
		            (long long)cols);
	TRY(source_scratch_reserve(scratch, bytes, 1, err));
	struct range range = range_of(tensor);
	*data = scratch->memory;
	*stride = line;
	/* A vector is one row that the caller sees as a column. */
	if (tensor->dims == 1) {
		fill_row(scratch->memory, tensor->dtype, rng_u64(r->seed, tensor->stream, 0), row, rows, range);
		return STATUS_OK;
	}
	for (int64_t i = 0; i < rows; i++)
		fill_row((char *)scratch->memory + (size_t)i * line, tensor->dtype, rng_u64(r->seed, tensor->stream, (uint64_t)(row + i)), col,
		         cols, range);
	return STATUS_OK;
}

static void random_recipe(const struct source *source, const struct source_tensor *tensor, struct source_recipe *out)
{
	struct range range = range_of(tensor);
	*out = (struct source_recipe){.seed = ((const struct random_source *)source)->seed, .stream = tensor->stream, .offset = range.offset,
	                              .scale = range.scale};
}

static const struct source_ops random_ops = {.close = random_close, .find = random_find, .read = random_read, .recipe = random_recipe};

enum status source_open_random(struct source **out, uint64_t seed, enum dtype dtype, struct error *err)
{
	*out = NULL;
	if (!dtype_is_plain(dtype))
		return FAIL(err, UNSUPPORTED, "random weights: are F32, F16 or BF16, this model is %s; name its config.json", dtype_name(dtype));
	struct random_source *r = mem_zalloc(1, sizeof *r, "random weights", err);
	if (!r) return STATUS_NO_MEMORY;
	r->base.ops = &random_ops;
	r->seed = seed;
	r->dtype = dtype;
	*out = &r->base;
	return STATUS_OK;
}
