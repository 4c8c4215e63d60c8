/* isa.c: which kernel tables this build has and which of them this processor can run. Best first. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu.h"

struct isa {
	const struct cpu_kernels *kernels;
	bool (*usable)(void);
};

static bool always(void)
{
	return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* Not among the names that every compiler's __builtin_cpu_supports knows. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;
	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

/* The processor's own name for itself, blanks around it taken off. */
static void processor_name(char text[49])
{
	unsigned words[12] = {0};
	for (unsigned i = 0; i < 3; i++)
		if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3])) words[0] = 0;
	char raw[49] = {0};
	memcpy(raw, words, sizeof words);
	size_t from = strspn(raw, " "), to = strlen(raw);
	while (to > from && raw[to - 1] == ' ') to--;
	memcpy(text, raw + from, to - from);
	text[to - from] = 0;
}

static const struct isa isas[] = {{&cpu_kernels_avx512, has_avx512}, {&cpu_kernels_avx2, has_avx2}, {&cpu_kernels_c, always}};
#else
static void processor_name(char text[49])
{
	text[0] = 0;
}

static const struct isa isas[] = {{&cpu_kernels_c, always}};
#endif

const struct cpu_kernels *cpu_isa_usable(int i)
{
	for (size_t n = 0; n < sizeof isas / sizeof *isas; n++)
		if (isas[n].usable() && i-- == 0) return isas[n].kernels;
	return NULL;
}

enum status cpu_isa_find(const struct cpu_kernels **out, const char *name, struct error *err)
{
	*out = NULL;
	bool automatic = !name || !strcmp(name, "auto");
	for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
		if (!automatic && strcmp(name, isas[i].kernels->name)) continue;
		if (isas[i].usable()) {
			*out = isas[i].kernels;
			return STATUS_OK;
		}
		if (!automatic) return FAIL(err, UNSUPPORTED, "isa %s: this processor lacks it; use auto", name);
	}
	return FAIL(err, UNSUPPORTED, "isa %s: not in this build; use auto, avx512, avx2 (both x86-64 only) or c", name);
}

void cpu_versions(const struct device *device, char *text, size_t bytes)
{
	char name[49];
	(void)device;
	processor_name(name);
	snprintf(text, bytes, "%s", name[0] ? name : "a processor without a name");
}
