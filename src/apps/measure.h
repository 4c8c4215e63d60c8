/* measure.h: what the benchmarks share: rates, and the devices of a group without an engine. */
#ifndef TANDEM_APPS_MEASURE_H
#define TANDEM_APPS_MEASURE_H

#include "apps/settings.h"
#include "base/stats.h"
#include "device/device.h"

/* amount in ms milliseconds, as amount per second; 0 for no time. */
double per_second(double amount, double ms);

/* How `world_size` ranks share the machine by the settings' device, threads, devices and isa. */
struct fleet {
	const struct device_ops *ops;
	struct device_options *options; /* [world_size] */
	void *storage;
};
enum status fleet_init(struct fleet *fleet, const struct settings *settings, int world_size, struct error *err) NODISCARD;
/* One rank, with the CPU threads and the device that it would have among `world_size`, rank 0's: for what one rank does without others. */
enum status fleet_init_alone(struct fleet *fleet, const struct settings *settings, int world_size, struct error *err) NODISCARD;
void fleet_fini(struct fleet *fleet);

#endif
