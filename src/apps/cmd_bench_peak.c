/* `tandem bench peak`: what this machine can do at most, so that every other figure can be shown against it. */
#include <stdio.h>
#include <string.h>

#include "apps/console.h"
#include "apps/device_peak.h"
#include "apps/measure.h"
#include "device/cpu/peak.h"

static enum status print_json(const struct cpu_peak *peak, const char *isa, struct error *err)
{
	json_t *results = json_array();
	for (int i = 0; i < peak->counts; i++)
		json_array_append_new(results, json_pack("{s:i,s:f,s:f}", "threads", peak->threads[i], "read_gb_per_s", peak->read_gbps[i],
		                                         "fma_gflop_per_s", peak->fma_gflops[i]));
	int last = peak->counts - 1;
	return output_json(json_pack("{s:s,s:s,s:i,s:f,s:f,s:o}", "device", "cpu", "isa", isa, "threads", peak->threads[last], "read_gb_per_s",
	                             peak->read_gbps[last], "fma_gflop_per_s", peak->fma_gflops[last], "results", results), err);
}

static enum status print_table(const struct cpu_peak *peak, const char *isa, struct error *err)
{
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "cpu, isa %s\nthreads  read GB/s  f32 FMA GFLOP/s\n", isa), end);
	for (int i = 0; i < peak->counts; i++)
		TRY_GOTO(buf_printf(&out, err, "%7d  %9.2f  %15.1f\n", peak->threads[i], peak->read_gbps[i], peak->fma_gflops[i]), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

static enum status print_device(const struct fleet *fleet, const struct device_peak *peak, bool json, struct error *err)
{
	if (json)
		return output_json(json_pack("{s:s,s:s,s:f,s:f,s:i,s:f}", "device", fleet->ops->name, "flavour", peak->flavour, "read_gb_per_s",
		                             peak->read_gb_per_s, "matrix_tflops", peak->matrix_tflops, "matrix", peak->matrix, "read_bytes",
		                             peak->read_bytes), err);
	struct buf out = {0};
	enum status st = buf_printf(&out, err, "%s, %s: reads %.1f GB/s, multiplies %.1f TFLOP/s (bf16, %d x %d)\n", fleet->ops->name, peak->flavour,
	                            peak->read_gb_per_s, peak->matrix_tflops, peak->matrix, peak->matrix);
	if (st == STATUS_OK) st = output_write(out.data, out.size, err);
	buf_fini(&out);
	return st;
}

static enum status measure_device(const struct settings *settings, const struct fleet *fleet, struct error *err)
{
	struct device_peak peak;
	TRY(device_peak(fleet->ops, &fleet->options[0], settings->matrix, &peak, err));
	return print_device(fleet, &peak, settings->json, err);
}

enum status cmd_bench_peak(const struct settings *settings, struct error *err)
{
	struct fleet fleet;
	struct cpu_peak peak = {0};
	struct device *device = NULL; /* only to learn which instruction set "auto" is */
	const char *isa = "";
	TRY(fleet_init(&fleet, settings, 1, err));
	enum status st;
	if (strcmp(settings->device, "cpu") != 0) {
		st = measure_device(settings, &fleet, err);
		goto end;
	}
	TRY_GOTO(fleet.ops->open(&device, &fleet.options[0], err), end);
	isa = fleet.ops->flavour(device);
	fleet.ops->close(device);
	TRY_GOTO(cpu_peak(&fleet.options[0], &peak, err), end);
	st = settings->json ? print_json(&peak, isa, err) : print_table(&peak, isa, err);
end:
	fleet_fini(&fleet);
	return st;
}
