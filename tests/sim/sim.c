/* sim: the scheduler and the KV pools of a simulated group under random workloads, invariants checked after every step. Usage:
 *   sim [--workloads N] [--steps N] [--first SEED] [--seed SEED] [--bench]
 * Each workload is a function of its seed; a failure names it, --seed runs that one alone. Ends with "N passed, N failed". */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/bench.h"
#include "sim/workload.h"

struct options {
	unsigned long long first, workloads, steps;
	bool one, bench;
};

static bool number(const char *text, unsigned long long *out)
{
	char *end;
	*out = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end;
}

static bool parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){.first = 1, .workloads = 500, .steps = 300};
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--bench")) {
			o->bench = true;
			continue;
		}
		o->one |= !strcmp(argv[i], "--seed");
		unsigned long long *value = !strcmp(argv[i], "--workloads")                              ? &o->workloads
		                            : !strcmp(argv[i], "--steps")                                ? &o->steps
		                            : !strcmp(argv[i], "--first") || !strcmp(argv[i], "--seed") ? &o->first
		                                                                                         : NULL;
		if (!value || ++i == argc || !number(argv[i], value)) return false;
	}
	if (o->one) o->workloads = 1;
	return o->steps < 1000000000u;
}

static void add(struct sim_counts *sum, const struct sim_counts *one)
{
#define X(name) sum->name += one->name;
	SIM_COUNT_LIST(X)
#undef X
}

/* A run that did not meet everything it is there for proves less than it says. */
static int print_counts(const struct sim_counts *c, bool need_all)
{
	int missing = 0;
#define X(name)                                            \
	printf("%-20s %llu\n", #name, c->name);                \
	if (need_all && !c->name) {                            \
		printf("NOT MET: %s\n", #name);                    \
		missing++;                                         \
	}
	SIM_COUNT_LIST(X)
#undef X
	return missing;
}

int main(int argc, char **argv)
{
	struct options o;
	struct sim_counts counts = {0};
	unsigned long long passed = 0, failed = 0;
	if (!parse(argc, argv, &o)) {
		fprintf(stderr, "usage: sim [--workloads N] [--steps N] [--first SEED] [--seed SEED] [--bench]\n");
		return 2;
	}
	if (o.bench) return bench_run();
	for (unsigned long long i = 0; i < o.workloads; i++) {
		struct error err = {0};
		struct sim_counts one = {0};
		if (workload_run(o.first + i, (int)o.steps, &one, &err) == STATUS_OK) passed++;
		else {
			failed++;
			printf("FAILED: %s (step %llu; replay: sim --seed %llu --steps %llu)\n", err.text, one.steps, o.first + i, o.steps);
		}
		add(&counts, &one);
	}
	int missing = print_counts(&counts, o.workloads >= 100);
	failed += (unsigned long long)missing;
	passed += !missing; /* coverage */
	printf("%llu passed, %llu failed\n", passed, failed);
	return failed != 0;
}
