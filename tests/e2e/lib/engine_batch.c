/* engine_batch MODEL DEVICE TP BATCH [graphs|no-graphs] [SHUFFLE] [argmax|scored] [FAULT]: BATCH requests of different lengths at once on random
 * weights; "TOKENS HASH" a request, in order: the hash is of the bits of all log-probabilities (scored) and tells runs apart that differ
 * anywhere. With a FAULT (as --fault) a step must fail, and what is printed is a second try on the rebuilt group. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem.h"

#define TOKENS 5
#define MOST 64

static int32_t tokens[MOST][TOKENS];
static int counts[MOST];
static uint64_t hashes[MOST];

static int fail(const struct tandem_error *err)
{
	fprintf(stderr, "engine_batch: %s\n", err->text);
	return tandem_exit_code(err->code);
}

static uint64_t first_id;

static void note(const struct tandem_event *e)
{
	uint32_t bits;
	int at = (int)(e->id - first_id);
	memcpy(&bits, &e->logprob, sizeof bits);
	hashes[at] = (hashes[at] ^ bits) * UINT64_C(0x100000001b3);
	if (counts[at] < TOKENS) tokens[at][counts[at]++] = e->token;
}

static int run(struct tandem *engine, int batch, bool scored)
{
	struct tandem_error err = {0};
	for (int i = 0; i < batch; i++) {
		int32_t prompt[MOST + 3];
		int n = 3 + i * 2 % 7;
		for (int t = 0; t < n; t++) prompt[t] = (i * 31 + t * 7) % 100 + 1;
		struct tandem_request request = {.prompt = prompt, .prompt_count = n, .max_tokens = TOKENS, .ignore_eos = true,
		                                 .sampling = {.logprobs = scored ? 2 : 0}};
		uint64_t id;
		if (tandem_submit(engine, &request, &id, &err)) return fail(&err);
		if (i == 0) first_id = id;
		counts[i] = 0;
		hashes[i] = 0;
	}
	for (bool idle = false; !idle;) {
		struct tandem_event events[MOST];
		int count;
		if (tandem_step(engine, events, MOST, &count, &idle, &err)) return fail(&err);
		for (int i = 0; i < count; i++) note(&events[i]);
	}
	return 0;
}

static void print(int batch)
{
	for (int i = 0; i < batch; i++) {
		for (int t = 0; t < counts[i]; t++) printf("%d,", tokens[i][t]);
		printf(" %016llx\n", (unsigned long long)hashes[i]);
	}
}

int main(int argc, char **argv)
{
	if (argc < 5) return fprintf(stderr, "engine_batch: see its head\n"), 2;
	int batch = atoi(argv[4]);
	if (batch < 1 || batch > MOST) return 2;
	struct tandem *engine;
	struct tandem_error err = {0};
	struct tandem_options options = {.model = argv[1], .device = argv[2], .world_size = atoi(argv[3]), .max_sequences = batch, .context = 48,
	                                 .kv_tokens = batch * 64, .kv_block_tokens = 16, .random_weights = true, .random_seed = 5,
	                                 .no_graphs = argc > 5 && !strcmp(argv[5], "no-graphs"), .kv_shuffle = argc > 6 ? strtoull(argv[6], NULL, 10) : 0,
	                                 .fault = argc > 8 ? argv[8] : NULL, .timeout_ms = 20000};
	if (tandem_open(&engine, &options, &err)) return fail(&err);
	bool scored = argc <= 7 || strcmp(argv[7], "argmax") != 0;
	int rc = run(engine, batch, scored);
	if (options.fault) {
		if (!rc) fprintf(stderr, "engine_batch: the fault did not happen\n"), rc = 1;
		else rc = tandem_rebuild(engine, &err) ? fail(&err) : run(engine, batch, scored);
	}
	if (!rc) print(batch);
	tandem_close(&engine);
	return rc;
}
