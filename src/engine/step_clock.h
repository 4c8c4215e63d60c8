/* step_clock.h: where the time of steps goes: a clock that is read between phases, and a sum for each. One owner at a time, like what it stands in. */
#ifndef TANDEM_ENGINE_STEP_CLOCK_H
#define TANDEM_ENGINE_STEP_CLOCK_H

#include <stdint.h>

#include "base/clock.h"
#include "tandem.h"

struct step_clock {
	uint64_t ns[TANDEM_PHASES]; /* of all steps so far */
	uint64_t last;              /* when the phase that runs began */
};

static inline void step_clock_begin(struct step_clock *clock, uint64_t now_ns)
{
	clock->last = now_ns;
}

/* The phase that ran is over, and was this one. */
static inline void step_clock_end(struct step_clock *clock, enum tandem_phase which)
{
	uint64_t now = clock_ns();
	clock->ns[which] += now - clock->last;
	clock->last = now;
}

#endif
