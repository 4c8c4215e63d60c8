/* Fuzzes safetensors headers: every input once as a whole file and once as the text of a header with 48 bytes of data behind it, so
 * that mutations need not guess the length. What is accepted must be sound. Corpus: tests/fuzz/corpus/safetensors, golden models. */
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

#define DATA_BYTES 48
#include "fuzz/standalone.h"

static void run(const uint8_t *file, size_t size)
{
	struct safetensors parsed;
	struct error err = {0};
	if (safetensors_parse(&parsed, file, size, "f", &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n') && !parsed.entries);
		return;
	}
	uint64_t data_size = size - parsed.data_offset, covered = 0;
	for (size_t i = 0; i < parsed.count; i++) {
		const struct safetensors_entry *e = &parsed.entries[i];
		check(e->begin <= e->end && e->end <= data_size);
		check(i == 0 || strcmp(parsed.entries[i - 1].name, e->name) < 0);
		covered += e->end - e->begin;
		uint64_t elements = 1;
		for (int d = 0; d < e->dims && d < SAFETENSORS_MAX_DIMS; d++) elements *= (uint64_t)e->shape[d];
		if (e->dtype != DTYPE_COUNT && e->dims <= SAFETENSORS_MAX_DIMS) check(elements * dtype_bytes(e->dtype) == e->end - e->begin);
	}
	check(covered == data_size);
	safetensors_fini(&parsed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	run(data, size);
	uint8_t *file = calloc(1, 8 + size + DATA_BYTES);
	if (!file) return 0;
	for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)size >> 8 * i);
	if (size) memcpy(file + 8, data, size);
	run(file, 8 + size + DATA_BYTES);
	free(file);
	return 0;
}
