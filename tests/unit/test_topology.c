/* Dividing hardware threads among ranks, on machines that this one is not; reading this one. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "device/cpu/topology.h"
#include "device/device.h"

#define MOST 512

/* nodes x cores x siblings; os index = node * 100 + core + 50 * sibling. */
static struct cpu_topology machine(struct cpu_pu *pu, int nodes, int cores, int siblings)
{
	struct cpu_topology t = {.pu = pu, .nodes = nodes, .threads = nodes * cores};
	for (int n = 0; n < nodes; n++)
		for (int c = 0; c < cores; c++)
			for (int s = 0; s < siblings; s++) pu[t.count++] = (struct cpu_pu){.os_index = n * 100 + c + 50 * s, .node = n, .sibling = s};
	return t;
}

static void expect(const struct cpu_topology *t, int world, int threads, const char *want)
{
	int cores[MOST], start[MOST], uses[MOST];
	cpu_topology_divide(t, world, threads, cores, start, uses);
	char got[1024] = "";
	int used = 0;
	for (int r = 0; r < world; r++) {
		if (r) used += snprintf(got + used, sizeof got - (size_t)used, " |");
		for (int i = start[r]; i < start[r + 1]; i++) used += snprintf(got + used, sizeof got - (size_t)used, "%s%d", used ? " " : "", cores[i]);
	}
	assert_string_equal(got, want);
}

static void divides(void **state)
{
	(void)state;
	struct cpu_pu pu[MOST];
	struct cpu_topology two = machine(pu, 1, 2, 1);
	expect(&two, 1, 2, "0 1");
	expect(&two, 2, 2, "0 | 1");
	expect(&two, 2, 3, "0 0 | 1"); /* more threads than cores: shared from the least used on */
	expect(&two, 4, 2, "0 | 1 | 0 | 1"); /* at least one each */
	struct cpu_pu pu2[MOST];
	struct cpu_topology server = machine(pu2, 2, 4, 2);
	expect(&server, 1, 8, "0 1 2 3 100 101 102 103"); /* cores before siblings, own nodes = all */
	expect(&server, 2, 8, "0 1 2 3 | 100 101 102 103");
	expect(&server, 2, 12, "0 1 2 3 50 51 | 100 101 102 103 150 151");
	expect(&server, 4, 8, "0 2 | 1 3 | 100 102 | 101 103");
	expect(&server, 3, 8, "0 2 102 | 1 3 103 | 100 101"); /* an odd split spills over only when the own node is used up */
	struct cpu_pu pu3[MOST];
	struct cpu_topology four = machine(pu3, 4, 2, 1);
	expect(&four, 2, 8, "0 1 100 101 | 200 201 300 301"); /* more nodes than ranks: a range each */
}

static void never_shares_while_there_are_enough(void **state)
{
	(void)state;
	for (int nodes = 1; nodes <= 4; nodes++)
		for (int siblings = 1; siblings <= 2; siblings++)
			for (int world = 1; world <= 8; world++) {
				struct cpu_pu pu[MOST];
				struct cpu_topology t = machine(pu, nodes, 6, siblings);
				int cores[MOST], start[MOST], uses[MOST];
				for (int threads = world; threads <= t.count; threads++) {
					cpu_topology_divide(&t, world, threads, cores, start, uses);
					assert_int_equal(start[world], threads);
					for (int i = 0; i < threads; i++) {
						for (int j = 0; j < i; j++) assert_int_not_equal(cores[i], cores[j]);
						if (threads <= nodes * 6) assert_true(cores[i] % 100 < 50); /* no sibling while cores are free */
					}
				}
			}
}

static void reads_this_machine(void **state)
{
	(void)state;
	struct cpu_topology t;
	struct error err = {0};
	if (cpu_topology_init(&t, &err) != STATUS_OK) fail_msg("%s", err.text);
	cpu_set_t mask;
	assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
	assert_int_equal(t.count, CPU_COUNT(&mask));
	assert_true(t.nodes >= 1 && t.threads >= 1 && t.threads <= t.count);
	for (int i = 0; i < t.count; i++) assert_true(CPU_ISSET(t.pu[i].os_index, &mask));
	cpu_topology_fini(&t);
	cpu_topology_fini(&t);

	/* one core allowed: one thread */
	int first = -1;
	for (int i = 0; first < 0; i++)
		if (CPU_ISSET(i, &mask)) first = i;
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	if (cpu_topology_init(&t, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(t.count, 1);
	assert_int_equal(t.pu[0].os_index, first);
	cpu_topology_fini(&t);
	sched_setaffinity(0, sizeof mask, &mask);
}

static void partitions(void **state)
{
	(void)state;
	const struct device_ops *ops = device_find("cpu");
	struct device_options options[4] = {{0}};
	void *storage;
	struct error err = {0};
	if (ops->partition(4, 6, NULL, options, &storage, &err) != STATUS_OK) fail_msg("%s", err.text);
	int total = 0;
	for (int r = 0; r < 4; r++) total += options[r].core_count;
	assert_int_equal(total, 6);
	assert_int_equal(options[0].core_count, 2);
	assert_int_equal(options[3].core_count, 1);
	free(storage);
	if (ops->partition(2, 0, NULL, options, &storage, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_true(options[0].core_count >= 1 && options[1].core_count >= 1);
	free(storage);
	assert_int_equal(ops->partition(0, 1, NULL, options, &storage, &err), STATUS_BAD_INPUT);
	assert_null(storage);
}

/* Memory by tag, isa names: what of cpu.c has no numbers. */
static void accounts_memory(void **state)
{
	(void)state;
	const struct device_ops *ops = device_find("cpu");
	struct error err = {0};
	struct device *device;
	if (ops->open(&device, &(struct device_options){.isa = "c"}, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_string_equal(ops->flavour(device), "c");
	void *a, *b;
	struct mem_report report;
	if (ops->alloc(device, 1000, MEM_KV, "a", &a, &err) != STATUS_OK) fail_msg("%s", err.text);
	if (ops->alloc(device, 5000, MEM_SHARDED, "b", &b, &err) != STATUS_OK) fail_msg("%s", err.text);
	for (int i = 0; i < 1000; i++) assert_int_equal(((char *)a)[i], 0);
	assert_int_equal((uintptr_t)a % 64, 0);
	ops->free(device, a);
	ops->free(device, NULL);
	ops->report(device, &report);
	assert_int_equal(report.now[MEM_KV], 0);
	assert_int_equal(report.now[MEM_SHARDED], 5000);
	assert_int_equal(report.peak, 6000);
	assert_int_equal(ops->alloc(device, SIZE_MAX / 2, MEM_KV, "too much", &a, &err), STATUS_NO_MEMORY);
	assert_null(a);
	ops->free(device, b);
	ops->close(device);
	err = (struct error){0};
	assert_int_equal(ops->open(&device, &(struct device_options){.isa = "sse9"}, &err), STATUS_UNSUPPORTED);
	assert_null(device);
	assert_null(device_find("tpu"));
	assert_non_null(device_names());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(divides),    cmocka_unit_test(never_shares_while_there_are_enough), cmocka_unit_test(reads_this_machine),
		cmocka_unit_test(partitions), cmocka_unit_test(accounts_memory),
	};
	return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
