/* take_kernel MODEL DEVICE KERNEL MOST TP...: a whitelist, on stdout, as if KERNEL had won for every linear of the model at 1 to MOST rows at these world
 * sizes: in its first mode that DEVICE lists, where it lists one. For trying an engine with a table whose content is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prescreen/choose.h"
#include "prescreen/problems.h"
#include "prescreen/screen.h"
#include "tandem.h"

#define MOST_VARIANTS 256
#define MOST_ROWS 16

static enum status win(struct result_problem *problem, const struct variant *variant, struct error *err)
{
	struct result_candidate *c = result_add_candidate(problem, err);
	if (!c) return STATUS_NO_MEMORY;
	c->requested = *variant;
	c->outcome = OUTCOME_KEEP;
	c->timing = (struct result_timing){.pairs = 1, .speedup = 1.5, .low = 1.5, .high = 1.5};
	return STATUS_OK;
}

static enum status decide(struct results *r, struct stream *stream, const char *kernel, struct error *err)
{
	static struct variant list[MOST_VARIANTS];
	for (int i = 0; i < r->problems; i++) {
		struct result_problem *problem = &r->problem[i];
		int count = problem->op == PROBLEM_LINEAR ? stream->vt->linear_variants(stream, &problem->linear, list, MOST_VARIANTS) : 0;
		problem->done = true;
		for (int v = 0; v < count; v++) {
			if (strcmp(list[v].kernel, kernel)) continue;
			TRY(win(problem, &list[v], err));
			break;
		}
	}
	return STATUS_OK;
}

static enum status open_and_decide(struct results *r, const struct device_ops *ops, const char *kernel, struct error *err)
{
	struct device_options options = {.core_count = 1, .isa = "auto"};
	struct device *device;
	struct stream *stream;
	void *storage = NULL;
	TRY(ops->partition(1, 1, NULL, &options, &storage, err));
	options.isa = "auto";
	TRY(ops->open(&device, &options, err));
	TRY(ops->stream_create(device, &(struct stream_options){.max_rows = 16, .max_k = 4096, .max_n = 4096, .max_q_heads = 8, .max_head_dim = 64, .max_context = 64,
	                                                         .max_seqs = 16}, &stream, err));
	snprintf(r->device, sizeof r->device, "%s", ops->name);
	snprintf(r->flavour, sizeof r->flavour, "%s", ops->flavour(device));
	if (ops->versions) ops->versions(device, r->versions, sizeof r->versions);
	enum status st = decide(r, stream, kernel, err);
	ops->stream_destroy(stream);
	ops->close(device);
	free(storage);
	return st;
}

static enum status make(int argc, char **argv, struct buf *out, struct error *err)
{
	struct model_config config;
	struct results r = {.program = TANDEM_VERSION, .model = "test", .keep = 1.05, .reject = 1};
	struct whitelist w;
	int32_t degrees[8], rows[MOST_ROWS], count = 0, row_count = 0;
	const int32_t context = 64;
	const struct device_ops *ops = device_find(argv[2]);
	if (!ops || !ops->linear_variants) return FAIL(err, USAGE, "%s: no such device here, or it has one way only; give another", argv[2]);
	for (int i = 5; i < argc && count < 8; i++) degrees[count++] = atoi(argv[i]);
	for (int m = 1; m <= atoi(argv[4]) && row_count < MOST_ROWS; m *= 2) rows[row_count++] = m;
	TRY(model_config_load(&config, argv[1], NULL, err));
	snprintf(r.model_type, sizeof r.model_type, "%.31s", config.model_type);
	r.dtype = config.dtype;
	TRY(problems_make(&r, &config, ops, &(struct problem_choice){.degrees = degrees, .degree_count = count, .decode = true, .prefill = true, .rows = rows,
	                                                             .row_count = row_count, .contexts = &context, .context_count = 1}, err));
	TRY(open_and_decide(&r, ops, argv[3], err));
	TRY(choose_whitelist(&w, &r, true, err));
	enum status st = whitelist_format(&w, out, err);
	whitelist_fini(&w);
	results_fini(&r);
	return st;
}

int main(int argc, char **argv)
{
	struct buf out = {0};
	struct error err = {0};
	if (argc < 6) {
		fprintf(stderr, "usage: take_kernel MODEL DEVICE KERNEL MOST TP...\n");
		return 2;
	}
	if (make(argc, argv, &out, &err) != STATUS_OK) {
		fprintf(stderr, "take_kernel: %s\n", err.text);
		return 3;
	}
	fputs(out.data, stdout);
	buf_fini(&out);
	return 0;
}
