/* bench.h: what a plan costs. Prints medians for 1 to 256 sequences; measures nothing in a test. */
#ifndef TANDEM_TESTS_SIM_BENCH_H
#define TANDEM_TESTS_SIM_BENCH_H

int bench_run(void); /* exit status */

#endif
