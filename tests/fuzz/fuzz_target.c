/* Fuzzes the description of a device: whatever the text, the answer is a refusal of one line or a target on which every kernel of every mode
 * gets a verdict that says why, and is legal only where the numbers that were described allow it. */
#include <string.h>

#include "prescreen/kernels.h"
#include "fuzz/standalone.h"

static void check_verdict(const struct target *t, enum kernel_id id, const struct kernel_mode *mode, const struct linear_shape *s)
{
	struct verdict v;
	kernel_judge(&v, t, id, mode, s);
	check(v.rule && !strchr(v.detail, '\n') && strlen(v.detail) < sizeof v.detail);
	check(v.kind == VERDICT_LEGAL || v.detail[0]);
	if (v.kind != VERDICT_LEGAL || id == KERNEL_LINEAR) return;
	check(t->kernels & 1u << id && t->max_threads != TARGET_UNKNOWN && s->k % 8 == 0 && s->m <= 4);
	check(id == KERNEL_GEMV_STRIDED || id == KERNEL_WVSPLITK || s->k / 8 <= t->max_threads);
	check(t->shared_bytes != TARGET_UNKNOWN || t->shared_floor > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct linear_shape shapes[] = {{5120, 8704, 1, DTYPE_BF16, false}, {24, 5120, 2, DTYPE_F16, false}, {8, 13, 1, DTYPE_BF16, true},
	                                             {1, 1, 8192, DTYPE_F32, false}, {INT64_C(1) << 40, INT64_C(1) << 40, 1, DTYPE_BF16, false}};
	struct target t;
	struct error err = {0};
	char why[VERDICT_DETAIL_BYTES];
	if (target_parse(&t, (const char *)data, size, "target.json", &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n'));
		return 0;
	}
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		(void)kernel_dispatch(&t, &shapes[i], why);
		for (int id = 0; id < KERNEL_COUNT; id++)
			for (int m = 0; m < kernel_family((enum kernel_id)id)->modes; m++)
				check_verdict(&t, (enum kernel_id)id, &kernel_family((enum kernel_id)id)->mode[m], &shapes[i]);
	}
	return 0;
}
