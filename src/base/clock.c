#include "base/clock.h"

#include <time.h>

uint64_t clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_deadline_ms(uint64_t ms)
{
	uint64_t now = clock_ns(), span;
	if (__builtin_mul_overflow(ms, (uint64_t)1000000, &span)) return UINT64_MAX;
	return span > UINT64_MAX - now ? UINT64_MAX : now + span;
}
