/* fake_device.h: a device for tests of what sits above devices: memory, streams, copy and tree_sum in plain C, with
 * injected failures and delays.
 *
 * A *lazy* stream runs nothing until stream_sync: the latest that the contract allows. So a caller that forgets to synchronise
 * before it tells a peer that data is there, or that it has read, gives wrong results on every run and not once in a million.
 */
#ifndef TANDEM_TESTS_FAKE_DEVICE_H
#define TANDEM_TESTS_FAKE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

struct fake_options {
	bool lazy;
	unsigned delay_us; /* each job sleeps a random time up to this, before it and half way; 0: never */
	uint64_t seed;
	/* The n-th call (from 1) fails; 0: never. */
	int fail_alloc, fail_tree_sum, fail_copy, fail_sync;
	int hang_sync; /* the n-th sync waits for its deadline or the abort flag */
};

struct fake_counts {
	int allocs, frees, tree_sums, copies, syncs;
	size_t scratch_bytes; /* allocated as MEM_SCRATCH, in all */
};

struct device *fake_open(const struct fake_options *options);
void fake_close(struct device *device); /* fails hard if memory is still allocated */
struct stream *fake_stream(struct device *device);
struct fake_counts fake_counts(const struct device *device);
/* Puts `fn(context)` on the stream. `context` must live until it ran. */
void fake_call(struct stream *stream, void (*fn)(void *context), void *context);

#endif
