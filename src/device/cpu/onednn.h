/* onednn.h: linears by oneDNN's f32 matrix product, where the system has that library: a variant that the prescreen can compare ours with, and that a
 * whitelist may name (its order of summation is its own, so only with --any-order). Loaded at run time and by request; without it nothing is missing.
 *
 * The weights stay the panels that linear.c made of them: a work item widens ONEDNN_STEP_K steps of a few panels to f32, multiplies, and goes on. That pays
 * with many rows; with few the default is faster. Plain types only.
 */
#ifndef TANDEM_DEVICE_CPU_ONEDNN_H
#define TANDEM_DEVICE_CPU_ONEDNN_H

#include "device/cpu/cpu.h"

#define ONEDNN_PANELS 4   /* of a work item: 128 outputs */
#define ONEDNN_STEP_K 256 /* 128 KiB of widened weights: stays in the second-level cache */
#define ONEDNN_ROWS 17    /* fewer are not worth listing */

struct onednn;

/* *out NULL: this system has none, or one that is not understood. Only lack of memory is an error. */
enum status onednn_open(struct onednn **out, int members, struct error *err) NODISCARD;
void onednn_close(struct onednn **onednn);
/* "sgemm 2.6.3" */
const char *onednn_mode(const struct onednn *onednn);
/* args and plan were checked; at least one row. DEVICE_FAULT: the library refused. */
enum status onednn_linear(struct onednn *onednn, struct cpu_stream *stream, const struct linear_args *args, const struct cpu_sum_plan *plan, struct error *err) NODISCARD;

#endif
