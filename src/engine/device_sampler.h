/* device_sampler.h: what the device's `sample` op reads, made from the parameters of the sequences of a step. engine/sampler.h says what is
 * computed; this says for which rows the device can do it. Owner: the coordinator's thread. Allocates nothing after creation.
 *
 *   device_sampler_begin(s, rows);
 *   for each row: if (!device_sampler_add(s, row, params, input)) the host sampler does this row, from logits that the op leaves alone
 *   copy device_sampler_bytes_used(s) bytes of the memory to the device; OP(stream, sample, …); stream_sync
 *   for each row that was taken: device_sampler_choice(&out[row], …)
 */
#ifndef TANDEM_ENGINE_DEVICE_SAMPLER_H
#define TANDEM_ENGINE_DEVICE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/ops.h"
#include "engine/sampler.h"

struct device_sampler;

/* Rows first, adjustments behind them: the same offsets on the host and on the device. */
static inline size_t device_sampler_adjust_offset(int max_rows)
{
	return (size_t)max_rows * sizeof(struct sample_row);
}
static inline size_t device_sampler_bytes(int max_rows, int max_adjusts)
{
	return device_sampler_adjust_offset(max_rows) + (size_t)max_adjusts * sizeof(struct sample_adjust);
}

/* `memory`: device_sampler_bytes of host memory that copies to the device are fast with; the caller's, and must outlive the sampler. */
enum status device_sampler_create(struct device_sampler **out, int vocab_size, int max_rows, int max_adjusts, void *memory,
                                  struct error *err) NODISCARD;
void device_sampler_destroy(struct device_sampler **sampler);

/* All of `rows` rows are skipped until they are added. */
void device_sampler_begin(struct device_sampler *sampler, int rows);
/* False, and the row stays skipped: alternatives are wanted, a token has two biases, or the adjustments of the step have no room for this row's.
 * input->logits is not looked at. */
bool device_sampler_add(struct device_sampler *sampler, int row, const struct sampler_params *params, const struct sampler_input *input);
/* To be copied, from the beginning of the memory. */
size_t device_sampler_bytes_used(const struct device_sampler *sampler);
/* The op's result as sampler_pick gives it. DEVICE_FAULT as there. */
enum status device_sampler_choice(const struct sample_choice *choice, struct sampler_choice *out, struct error *err) NODISCARD;

#endif
