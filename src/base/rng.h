/* rng.h: counter-based random numbers: value(seed, stream, counter) has no state, so that a draw depends on what it is
 * for and never on what was drawn before it. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
#ifndef TANDEM_BASE_RNG_H
#define TANDEM_BASE_RNG_H

#include <stdint.h>

static inline uint64_t rng_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static inline uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
	return rng_mix(rng_mix(rng_mix(seed + 0x9e3779b97f4a7c15u) ^ (stream + 0x9e3779b97f4a7c15u)) + counter * 0x9e3779b97f4a7c15u);
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_unit(uint64_t seed, uint64_t stream, uint64_t counter)
{
	return (double)(rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

/* FNV-1a, for naming a random stream by text. */
static inline uint64_t rng_name(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325u;
	for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
	return hash;
}

#endif
