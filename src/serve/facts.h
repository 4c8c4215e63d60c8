/* facts.h: what is known about the served model. Set once before the server starts, then read by every thread. */
#ifndef TANDEM_SERVE_FACTS_H
#define TANDEM_SERVE_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tandem.h"
#include "text/tokenizer.h"

struct chat_template;

#define FACTS_MAX_NAMES 8

struct facts {
	const char *names[FACTS_MAX_NAMES]; /* the first is the one that answers carry */
	int name_count;
	const char *root;                         /* path of the model, for /v1/models */
	int64_t created;                          /* Unix time of the start */
	struct tandem_info info;                  /* as it was at the start: sizes, eos, sampling defaults */
	const struct tokenizer *tokenizer;        /* NULL: token ids only */
	const struct chat_template *chat_template; /* NULL: none; its own problem is the answer where it has one */
	bool ignore_eos;     /* of a request that does not say */
	bool model_defaults; /* generation_config.json fills in what a request leaves open */
};

#endif
