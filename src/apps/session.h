/* session.h: an open engine as the commands use it: settings in, errors in this program's form out. Main thread only. */
#ifndef TANDEM_APPS_SESSION_H
#define TANDEM_APPS_SESSION_H

#include <jansson.h>

#include "apps/console.h"
#include "apps/settings.h"
#include "tandem.h"
#include "text/tokenizer.h"

struct session {
	struct tandem *engine;
	struct tandem_info info;
	struct console console;
	bool explain; /* --explain-dispatch */
};

/* What a command wants that has no option of its own. Zero: as the settings say. */
struct session_needs {
	int world_size;    /* in place of --tp */
	int context;       /* in place of --context */
	int max_sequences; /* each may fill the context, unless kv_tokens says how much there is */
	int64_t kv_tokens;
	int state_snapshots, state_every; /* as in tandem_options */
	bool no_fault;     /* --fault is for another engine of this command */
};

/* Opens the engine with a progress bar, and lets signals interrupt it. On failure nothing is left open. */
enum status session_open(struct session *session, const struct settings *settings, const struct session_needs *needs,
                         struct error *err) NODISCARD;
void session_close(struct session *session);
/* Tokens of a KV block, as the engine will have it. */
int session_block_tokens(const struct settings *settings);
/* What the engine reported, as ours. OK for code 0. */
enum status session_error(int code, const struct tandem_error *from, struct error *err) NODISCARD;

/* The folder of a MODEL that may be the folder or its config.json. */
enum status model_folder(const char *model, struct buf *out, struct error *err) NODISCARD;
/* Appends the name of that folder, or of the GGUF file, however the path is written ("." in the folder too), as UTF-8. */
enum status model_name(const char *model, struct buf *out, struct error *err) NODISCARD;
/* *out is NULL, without an error, if the folder has no tokenizer.json (the GGUF file no tokenizer). tokenizer_limit is at the model's
 * vocabulary. (A larger model is fine: embedding rows are often padded.) */
enum status model_tokenizer(struct tokenizer **out, const char *model, struct console *console, struct error *err) NODISCARD;

/* output_json of `object` with the fields that every answer about a session has. */
enum status session_output(const struct session *session, json_t *object, struct error *err) NODISCARD;

/* Requests of one session, one after the other; used where only token ids matter. `each` gets every event. */
enum status session_generate(struct session *session, const struct tandem_request *request,
                             enum status (*each)(void *context, const struct tandem_event *event, struct error *err), void *context,
                             struct error *err) NODISCARD;

#endif
