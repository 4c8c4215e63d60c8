/* clock.h: monotonic time and deadlines, in nanoseconds. A deadline is an absolute clock_ns() value. */
#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);
static inline double clock_seconds_since(uint64_t start_ns)
{
	return (double)(clock_ns() - start_ns) / 1e9;
}
/* Now + ms, saturating. */
uint64_t clock_deadline_ms(uint64_t ms);

#endif
