#include "apps/measure.h"

#include <stdlib.h>

#include "base/mem.h"

double per_second(double amount, double ms)
{
	return ms > 0 ? amount / ms * 1000 : 0;
}

enum status fleet_init(struct fleet *fleet, const struct settings *settings, int world_size, struct error *err)
{
	*fleet = (struct fleet){.ops = device_find(settings->device)};
	if (!fleet->ops)
		return FAIL(err, USAGE, "--device '%.40s': not in this build; give one of %s", settings->device, device_names());
	if (settings->devices.items && settings->devices.count < world_size)
		return FAIL(err, USAGE, "--devices: %d devices for %d ranks; name one for each rank", settings->devices.count, world_size);
	fleet->options = mem_zalloc((size_t)world_size, sizeof *fleet->options, "devices", err);
	if (!fleet->options) return STATUS_NO_MEMORY;
	enum status st = fleet->ops->partition(world_size, settings->threads, settings->devices.items, fleet->options, &fleet->storage, err);
	for (int r = 0; r < world_size && st == STATUS_OK; r++) fleet->options[r].isa = settings->isa;
	if (st != STATUS_OK) fleet_fini(fleet);
	return st;
}

enum status fleet_init_alone(struct fleet *fleet, const struct settings *settings, int world_size, struct error *err)
{
	struct settings s = *settings;
	TRY(fleet_init(fleet, &s, 1, err));
	int cores = fleet->options[0].core_count;
	if (cores < 2 || world_size < 2) return STATUS_OK;
	s.threads = cores / world_size > 1 ? cores / world_size : 1;
	fleet_fini(fleet);
	return fleet_init(fleet, &s, 1, err);
}

void fleet_fini(struct fleet *fleet)
{
	free(fleet->options);
	free(fleet->storage);
	*fleet = (struct fleet){0};
}
