/* wait.h: waiting on a 32-bit word: spin briefly, then sleep in the kernel (futex), always with a deadline.
 *
 * Why both: a rank's peer usually arrives within microseconds, where a sleep would cost more than the wait; but when a
 * neighbour process holds the peer's core for milliseconds, spinning burns the time that the peer needs. The spin
 * budget is about 20 us, and after 2 us of it the spinner yields its core between looks. The waker changes what the
 * caller waits for first, then calls wait_bump. A change of the word says no more than that: the caller looks at its own
 * predicate, which always includes abort.
 */
#ifndef TANDEM_BASE_WAIT_H
#define TANDEM_BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A word with a count of sleepers, so that a waker without sleepers makes no system call. On its own cache line. */
struct wait_word {
	_Alignas(64) _Atomic uint32_t value;
	_Atomic uint32_t sleepers;
};

/* Returns when word->value != seen (true) or the deadline passed (false). */
bool wait_change(struct wait_word *word, uint32_t seen, uint64_t deadline_ns);
/* As wait_change with a spin of its own length: for waits of a known scale, where the core is free. */
bool wait_change_spin(struct wait_word *word, uint32_t seen, uint64_t spin_ns, uint64_t deadline_ns);
#define WAIT_SPIN_NS 20000 /* of wait_change */
/* Adds one to the word (release) and wakes all sleepers. */
void wait_bump(struct wait_word *word);
/* One pause instruction. */
void wait_relax(void);

#endif
