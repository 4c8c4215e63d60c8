/* Formulas and their rounding follow HF transformers (modeling_rope_utils.py) as torch runs them: a Python number is a double until
 * it meets an f32 tensor and is rounded to f32 then; every tensor operation rounds to f32. Powers, cosines and sines are computed in
 * double and rounded once, which is within one unit in the last place of torch's vector library.
 */
#include "model/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* theta ** (2i / d), as an f32 tensor. */
static float frequency_base(float theta, int i, int dim)
{
	float exponent = (float)(2 * i) / (float)dim;
	return (float)pow((double)theta, (double)exponent);
}

static float llama3(const struct rope_config *c, float inv)
{
	float original = (float)c->original_max_position, factor = (float)c->factor;
	float low = (float)c->low_freq_factor;
	float wavelength = (float)(2 * pi) / inv;
	if (wavelength < (float)((double)c->original_max_position / c->high_freq_factor)) return inv;
	if (wavelength > (float)((double)c->original_max_position / c->low_freq_factor)) return inv / factor;
	float smooth = (original / wavelength - low) / (float)(c->high_freq_factor - c->low_freq_factor);
	return (1.0f - smooth) * inv / factor + smooth * inv;
}

/* The dimension whose wave makes `rotations` turns within the original length. */
static double yarn_correction(const struct rope_config *c, double rotations, int dim)
{
	return dim * log((double)c->original_max_position / (rotations * 2 * pi)) / (2 * log(c->theta));
}

static float yarn(const struct rope_config *c, int i, int dim)
{
	double low = yarn_correction(c, c->beta_fast, dim), high = yarn_correction(c, c->beta_slow, dim);
	if (c->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, dim - 1);
	if (low == high) high += 0.001;
	float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0.0f), 1.0f);
	float base = frequency_base((float)c->theta, i, dim), keep = 1.0f - ramp;
	return 1.0f / ((float)c->factor * base) * (1.0f - keep) + 1.0f / base * keep;
}

static double yarn_mscale(double factor, double mscale)
{
	return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention(const struct rope_config *c)
{
	if (c->attention_factor > 0) return c->attention_factor;
	if (c->mscale > 0 && c->mscale_all_dim > 0) return yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
	return yarn_mscale(c->factor, 1);
}

static enum status init(struct rope_table *out, const struct model_config *config, const struct rope_config *rope, struct error *err)
{
	*out = (struct rope_table){.rotary_dim = config->rotary_dim, .scale = 1, .config = *rope};
	if (config->rotary_dim < 2 || config->rotary_dim > ROPE_MAX_DIM || config->rotary_dim % 2)
		return FAIL(err, UNSUPPORTED, "rope: expected an even rotary dimension from 2 to %d, found %d", ROPE_MAX_DIM, config->rotary_dim);
	const struct rope_config *c = &out->config;
	if (c->type == ROPE_YARN) out->scale = (float)yarn_attention(c);
	for (int i = 0; i < out->rotary_dim / 2; i++) {
		float inv = 1.0f / frequency_base((float)c->theta, i, out->rotary_dim);
		switch (c->type) {
		case ROPE_DEFAULT:
		case ROPE_DYNAMIC: break; /* within the original length dynamic is the default */
		case ROPE_LINEAR: inv /= (float)c->factor; break;
		case ROPE_LLAMA3: inv = llama3(c, inv); break;
		case ROPE_YARN: inv = yarn(c, i, out->rotary_dim); break;
		case ROPE_FACTORS: inv /= c->factors[i]; break;
		}
		if (!isfinite(inv)) return FAIL(err, BAD_INPUT, "rope: frequency %d is not finite; check rope_theta and factor", i);
		out->inv_freq[i] = inv;
	}
	return STATUS_OK;
}

enum status rope_init(struct rope_table *out, const struct model_config *config, struct error *err)
{
	return init(out, config, &config->rope, err);
}

enum status rope_init_local(struct rope_table *out, const struct model_config *config, struct error *err)
{
	return init(out, config, &config->rope_local, err);
}

/* theta' of dynamic scaling for a sequence of `length` > original tokens. */
static float dynamic_theta(const struct rope_table *table, int64_t length)
{
	const struct rope_config *c = &table->config;
	float stretch = (float)length * (float)c->factor / (float)c->original_max_position - (float)(c->factor - 1);
	float exponent = (float)((double)table->rotary_dim / (table->rotary_dim - 2));
	return (float)c->theta * (float)pow((double)stretch, (double)exponent);
}

void rope_row(const struct rope_table *table, int64_t position, float *row)
{
	int half = table->rotary_dim / 2;
	bool stretched = table->config.type == ROPE_DYNAMIC && position >= table->config.original_max_position;
	float theta = stretched ? dynamic_theta(table, position + 1) : 0;
	for (int i = 0; i < half; i++) {
		float inv = stretched ? 1.0f / frequency_base(theta, i, table->rotary_dim) : table->inv_freq[i];
		float angle = (float)position * inv;
		row[i] = (float)cos((double)angle) * table->scale;
		row[half + i] = (float)sin((double)angle) * table->scale;
	}
}
