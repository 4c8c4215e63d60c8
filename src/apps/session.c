#include "apps/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/explain.h"
#include "apps/gguf_text.h"
#include "device/device.h"
#include "model/config.h"
#include "model/gguf.h"
#include "text/utf8.h"

enum status session_error(int code, const struct tandem_error *from, struct error *err)
{
	if (!code) return STATUS_OK;
	return error_set(err, (enum status)code, __FILE__, __LINE__, "%s", from->text[0] ? from->text : tandem_status_name(code));
}

static enum status check_settings(const struct settings *settings, int world_size, struct error *err)
{
	if (settings->devices.items && settings->devices.count < world_size)
		return FAIL(err, USAGE, "--devices: %d devices for %d ranks; name one for each rank", settings->devices.count, world_size);
	return STATUS_OK;
}

int session_block_tokens(const struct settings *settings)
{
	const struct device_ops *ops = device_find(settings->device);
	if (settings->kv_block) return settings->kv_block;
	return ops ? device_kv_block_tokens(ops) : DEVICE_KV_BLOCK_TOKENS;
}

enum status session_open(struct session *session, const struct settings *settings, const struct session_needs *needs, struct error *err)
{
	*session = (struct session){.explain = settings->explain_dispatch};
	int world_size = needs->world_size ? needs->world_size : settings->tp;
	TRY(check_settings(settings, world_size, err));
	console_init(&session->console, settings->verbose);
	int context = needs->context ? needs->context : settings->context, sequences = needs->max_sequences ? needs->max_sequences : 1;
	int64_t block = session_block_tokens(settings), blocks = (context + block - 1) / block;
	struct tandem_options options = {
		.model = settings->model,
		.world_size = world_size,
		.device = settings->device,
		.devices = settings->devices.items,
		.threads = settings->threads,
		.isa = settings->isa,
		.context = context,
		.prefill_chunk = settings->prefill_chunk,
		.max_sequences = sequences,
		.kv_tokens = needs->kv_tokens ? needs->kv_tokens : sequences > 1 ? sequences * blocks * block : 0,
		.kv_block_tokens = settings->kv_block,
		.state_snapshots = needs->state_snapshots,
		.state_every = needs->state_every,
		.no_graphs = settings->no_graphs,
		.lm_head = settings->lm_head,
		.embedding = settings->embedding,
		.tp_invariant = settings->tp_invariant,
		.random_weights = settings->random_weights.given,
		.random_seed = settings->random_weights.value,
		.timeout_ms = (uint32_t)settings->timeout_ms,
		.fault = needs->no_fault ? NULL : settings->fault,
		.whitelist = settings->whitelist,
		.explain_dispatch = settings->explain_dispatch,
		.log = console_log,
		.progress = console_progress,
		.context_pointer = &session->console,
	};
	struct tandem_error from = {0};
	int code = tandem_open(&session->engine, &options, &from);
	console_clear(&session->console);
	TRY(session_error(code, &from, err));
	tandem_get_info(session->engine, &session->info);
	signals_watch(session->engine);
	return STATUS_OK;
}

void session_close(struct session *session)
{
	signals_watch(NULL);
	tandem_close(&session->engine);
}

enum status model_folder(const char *model, struct buf *out, struct error *err)
{
	size_t n = strlen(model);
	const char *slash = strrchr(model, '/');
	bool file = n > 5 && !strcmp(model + n - 5, ".json");
	if (!file) return buf_puts(out, model, err);
	return slash ? buf_append(out, model, (size_t)(slash - model) + 1, err) : buf_puts(out, ".", err);
}

enum status model_name(const char *model, struct buf *out, struct error *err)
{
	struct buf path = {0};
	enum status st = model_folder(model, &path, err);
	char *real = st == STATUS_OK ? realpath(path.data, NULL) : NULL;
	const char *whole = real ? real : path.data, *slash = whole ? strrchr(whole, '/') : NULL, *part = slash && slash[1] ? slash + 1 : whole;
	if (st == STATUS_OK) st = utf8_append_lossy(out, part, strlen(part), err);
	if (st == STATUS_OK) st = buf_puts(out, "", err);
	free(real);
	buf_fini(&path);
	return st;
}

enum status model_tokenizer(struct tokenizer **out, const char *model, struct console *console, struct error *err)
{
	*out = NULL;
	struct log log = console_sink(console);
	struct buf path = {0};
	struct model_config config;
	enum status st;
	TRY_GOTO(model_config_load(&config, model, NULL, err), end); /* its warnings come from the engine, once */
	if (gguf_is_file(model)) {
		TRY_GOTO(buf_puts(&path, model, err), end);
		TRY_GOTO(gguf_tokenizer(out, model, &log, err), end);
	} else {
		TRY_GOTO(model_folder(model, &path, err), end);
		TRY_GOTO(buf_puts(&path, "/tokenizer.json", err), end);
		if (access(path.data, F_OK) != 0) goto end;
		TRY_GOTO(tokenizer_open(out, path.data, &log, err), end);
	}
	if (*out) st = tokenizer_limit(*out, config.vocab_size, path.data, &log, err);
end:
	if (st != STATUS_OK) tokenizer_destroy(out);
	buf_fini(&path);
	return st;
}

static json_t *rank_bytes(const struct session *session)
{
	json_t *ranks = json_array();
	for (int r = 0; r < session->info.world_size; r++) {
		struct tandem_rank_bytes b;
		tandem_get_rank_bytes(session->engine, r, &b);
		json_array_append_new(ranks, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "sharded", (json_int_t)b.sharded, "replicated",
		                                       (json_int_t)b.replicated, "kv", (json_int_t)b.kv, "state", (json_int_t)b.state, "scratch", (json_int_t)b.scratch,
		                                       "workspace", (json_int_t)b.workspace, "runtime", (json_int_t)b.runtime, "peak", (json_int_t)b.peak));
	}
	return ranks;
}

static enum status add_facts(const struct session *session, json_t *object, struct error *err)
{
	const struct tandem_info *info = &session->info;
	json_t *facts = json_pack("{s:i,s:i,s:s,s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:f,s:o}", "world_size", info->world_size, "threads", info->threads,
	                          "device", info->device, "isa", info->isa, "lm_head", info->lm_head, "embedding", info->embedding, "context", info->context,
	                          "collectives_per_step", info->collectives_per_step, "weight_bytes", (json_int_t)info->weight_bytes,
	                          "checkpoint_bytes_read", (json_int_t)info->checkpoint_bytes_read, "kv_tokens", (json_int_t)info->kv_tokens,
	                          "load_ms", info->load_ms, "rank_bytes", rank_bytes(session));
	bool ok = facts && object && json_object_update_missing(object, facts) == 0;
	json_decref(facts);
	if (ok && session->explain) {
		json_t *dispatch;
		TRY(explain_json(session, &dispatch, err));
		ok = json_object_set_new(object, "dispatch", dispatch) == 0;
	}
	return ok ? STATUS_OK : FAIL(err, NO_MEMORY, "JSON output: no memory; use a machine with more");
}

enum status session_output(const struct session *session, json_t *object, struct error *err)
{
	enum status st = add_facts(session, object, err);
	if (st == STATUS_OK) return output_json(object, err);
	json_decref(object);
	return st;
}

enum status session_generate(struct session *session, const struct tandem_request *request,
                             enum status (*each)(void *context, const struct tandem_event *event, struct error *err), void *context,
                             struct error *err)
{
	struct tandem_error from = {0};
	uint64_t id;
	TRY(session_error(tandem_submit(session->engine, request, &id, &from), &from, err));
	bool idle = false, done = false;
	while (!idle && !done) {
		struct tandem_event events[8];
		int count = 0;
		int code = tandem_step(session->engine, events, 8, &count, &idle, &from);
		for (int i = 0; i < count; i++) {
			if (events[i].id != id) continue;
			enum status st = each(context, &events[i], err);
			if (st != STATUS_OK) {
				(void)tandem_cancel(session->engine, id);
				return st;
			}
			done |= events[i].finish != TANDEM_RUNNING;
		}
		TRY(session_error(code, &from, err));
	}
	tandem_get_info(session->engine, &session->info); /* collectives of the last step */
	return STATUS_OK;
}
