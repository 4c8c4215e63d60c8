/* standalone.h: lets a fuzz target run without libFuzzer, on any compiler.
 *
 * A target defines LLVMFuzzerTestOneInput and includes this header once, last. Under `-fsanitize=fuzzer` the header only
 * declares the entry point and `check`. Otherwise it brings a main:
 *
 *     fuzz_x [-seconds S] [-seed N] [-keep FILE] corpus...
 *
 * Every corpus file (folders are walked one level) is first run as it is, so naming one file replays it; then seeded random
 * mutations of the corpus run until S seconds have passed (default 5; 0: no mutations). The same seed gives the same
 * sequence of inputs. A failure ends the program at once, as under libFuzzer. -keep writes each input to FILE before it runs, so that a crash leaves its cause behind.
 */
#ifndef TANDEM_TESTS_FUZZ_STANDALONE_H
#define TANDEM_TESTS_FUZZ_STANDALONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void check(bool ok)
{
	if (!ok) abort();
}

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/rng.h"

#define FUZZ_MAX_CORPUS 4096
#define FUZZ_MAX_INPUT ((size_t)1 << 20)

struct fuzz_run {
	struct buf corpus[FUZZ_MAX_CORPUS];
	size_t count;
	uint64_t seed, drawn; /* the generator: values drawn so far */
	const char *keep;
};

static void fuzz_die(const char *what, const char *why)
{
	fprintf(stderr, "fuzz: %s: %s\n", what, why);
	exit(2);
}

static uint64_t fuzz_next(struct fuzz_run *run)
{
	return rng_u64(run->seed, 0, run->drawn++);
}

static size_t fuzz_below(struct fuzz_run *run, size_t n)
{
	return n ? (size_t)(fuzz_next(run) % n) : 0;
}

static void fuzz_add_file(struct fuzz_run *run, const char *path)
{
	struct error err = {0};
	if (run->count == FUZZ_MAX_CORPUS) fuzz_die(path, "too many corpus files");
	if (buf_read_file(&run->corpus[run->count], path, FUZZ_MAX_INPUT, &err) != STATUS_OK) fuzz_die(path, err.text);
	run->count++;
}

static void fuzz_add(struct fuzz_run *run, const char *path)
{
	struct stat info;
	if (stat(path, &info) != 0) fuzz_die(path, "cannot be read");
	if (!S_ISDIR(info.st_mode)) {
		fuzz_add_file(run, path);
		return;
	}
	struct dirent **entries;
	int n = scandir(path, &entries, NULL, alphasort); /* sorted: the sequence must not depend on the file system */
	if (n < 0) fuzz_die(path, "cannot be listed");
	for (int i = 0; i < n; i++) {
		char name[4096];
		int length = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
		if (length > 0 && (size_t)length < sizeof name && stat(name, &info) == 0 && S_ISREG(info.st_mode)) fuzz_add_file(run, name);
		free(entries[i]);
	}
	free(entries);
}

static void fuzz_one(const struct fuzz_run *run, const char *data, size_t size)
{
	if (run->keep) {
		FILE *file = fopen(run->keep, "wb");
		if (!file) fuzz_die(run->keep, "cannot be written");
		fwrite(data, 1, size, file);
		fclose(file);
	}
	uint8_t *exact = malloc(size ? size : 1); /* exact size: the sanitizer sees the first byte read past the end */
	if (!exact) fuzz_die("input", "out of memory");
	if (size) memcpy(exact, data, size);
	(void)LLVMFuzzerTestOneInput(exact, size);
	free(exact);
}

/* Replaces input[at..at+cut) by `n` bytes. Inputs that would grow too long stay as they are. */
static void fuzz_splice(struct buf *input, size_t at, size_t cut, const char *bytes, size_t n)
{
	struct error err = {0};
	if (input->size - cut + n > FUZZ_MAX_INPUT) return;
	struct buf made = {0};
	if (buf_reserve(input, 0, &err) != STATUS_OK || buf_append(&made, input->data, at, &err) != STATUS_OK || buf_append(&made, bytes, n, &err) != STATUS_OK ||
	    buf_append(&made, input->data + at + cut, input->size - at - cut, &err) != STATUS_OK)
		fuzz_die("input", err.text);
	buf_fini(input);
	*input = made;
}

static void fuzz_mutate_once(struct fuzz_run *run, struct buf *input)
{
	static const char *const odd[] = {"0",  "-1",  "4294967296", "1e999", "\"",         "\\",           "{",   "[[",      "}",    ",",
	                                  "\n", "%",   "null",       "true",  "\xff",       "\xc0\x80",     "\\ud800", "\xf4\x90\x80\x80"};
	size_t at = fuzz_below(run, input->size + 1);
	size_t rest = input->size - at;
	size_t span = fuzz_below(run, (rest < 64 ? rest : 64) + 1);
	char byte = (char)fuzz_next(run);
	switch (fuzz_below(run, 7)) {
	case 0:
		if (rest) input->data[at] = (char)(input->data[at] ^ (1 << fuzz_below(run, 8)));
		return;
	case 1:
		if (rest) input->data[at] = byte;
		return;
	case 2: fuzz_splice(input, at, span, "", 0); return;
	case 3: fuzz_splice(input, at, 0, &byte, 1); return;
	case 4: { /* an odd token in place of what stands there */
		const char *token = odd[fuzz_below(run, sizeof odd / sizeof *odd)];
		fuzz_splice(input, at, span % 8 <= rest ? span % 8 : 0, token, strlen(token));
		return;
	}
	case 5: { /* a stretch of another corpus file */
		const struct buf *other = &run->corpus[fuzz_below(run, run->count)];
		size_t from = fuzz_below(run, other->size + 1);
		size_t n = fuzz_below(run, (other->size - from < 256 ? other->size - from : 256) + 1);
		if (n) fuzz_splice(input, at, span, other->data + from, n);
		return;
	}
	default:
		if (fuzz_below(run, 16) == 0) fuzz_splice(input, at, rest, "", 0); /* cut the tail, seldom */
		return;
	}
}

static void fuzz_mutated(struct fuzz_run *run)
{
	struct error err = {0};
	struct buf input = {0};
	const struct buf *from = &run->corpus[fuzz_below(run, run->count)];
	if (buf_reserve(&input, from->size, &err) != STATUS_OK || buf_append(&input, from->data, from->size, &err) != STATUS_OK) fuzz_die("input", err.text);
	for (size_t i = 0, n = 1 + fuzz_below(run, 8); i < n; i++) fuzz_mutate_once(run, &input);
	fuzz_one(run, input.data, input.size);
	buf_fini(&input);
}

static uint64_t fuzz_number(const char *option, const char *text)
{
	char *end;
	if (!text || !*text) fuzz_die(option, "needs a number");
	uint64_t value = strtoull(text, &end, 10);
	if (*end) fuzz_die(option, "needs a whole number");
	return value;
}

int main(int argc, char **argv)
{
	static struct fuzz_run run;
	uint64_t seconds = 5, seed = 1, runs = 0;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-seconds") == 0) seconds = fuzz_number("-seconds", argv[++i]);
		else if (strcmp(argv[i], "-seed") == 0) seed = fuzz_number("-seed", argv[++i]);
		else if (strcmp(argv[i], "-keep") == 0) run.keep = argv[++i];
		else fuzz_add(&run, argv[i]);
	}
	if (run.count == 0) run.count = 1; /* no corpus: mutate the empty input */
	run.seed = seed;
	for (size_t i = 0; i < run.count; i++) fuzz_one(&run, run.corpus[i].data, run.corpus[i].size);
	for (uint64_t end = clock_ns() + seconds * 1000000000u; clock_ns() < end; runs++) fuzz_mutated(&run);
	printf("fuzz: %zu corpus inputs, %llu mutations, seed %llu\n1 passed, 0 failed\n", run.count, (unsigned long long)runs, (unsigned long long)seed);
	for (size_t i = 0; i < run.count; i++) buf_fini(&run.corpus[i]);
	return 0;
}

#endif
#endif
