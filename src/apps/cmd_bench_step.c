/* `tandem bench step`: median time of one decode step of B sequences, and of one prefill of T tokens, against the bytes and the
 * arithmetic that they cannot avoid; where the time of the decode step goes; or, with --requests, the throughput of the engine. Prompts are
 * invented, so that random weights will do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench_steps.h"
#include "apps/bench_trace.h"
#include "apps/explain.h"
#include "apps/measure.h"
#include "apps/session.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/shard.h"

#define WARM_STEPS 3
#define DEVICE_REPEATS 8 /* of a recorded step, to time it without the host */
#define MOST_RUNNING 256 /* requests that a throughput run has in a step at most */

struct bench {
	const struct settings *settings;
	struct session session;
	struct tandem_event *events; /* [sequences] */
	int sequences;
	int32_t *prompt;
	double *times; /* ms */
	double decode_ms, prefill_ms; /* medians */
	double decode_most_ms;
	double device_ms; /* a decode step without the host; 0: not known */
	struct bench_split split, prefill_split;
	double throughput_s; /* of all requests */
	uint64_t generated, computed; /* tokens in it */
	struct bench_steps mixed, decode; /* steps with prompt rows in them, and those without */
	/* of the whole model */
	double linear_bytes;    /* weights that one decode step reads: linears and LM head; of experts as many as rows choose that choose at random */
	double prefill_flops;   /* 2 N K for each row of each linear, the LM head once */
};

/* Other tokens for every `stream`, so that no prefix is shared and no cache helps. */
static void invent_prompt(const struct bench *b, int tokens, uint64_t stream)
{
	for (int i = 0; i < tokens; i++)
		b->prompt[i] = (int32_t)(rng_u64(2, stream, (uint64_t)i) % (uint64_t)b->session.info.vocab_size);
}

static enum status submit(struct bench *b, int tokens, uint64_t stream, int max_tokens, uint64_t *id, struct error *err)
{
	invent_prompt(b, tokens, stream);
	struct tandem_request request = {.prompt = b->prompt, .prompt_count = tokens, .max_tokens = max_tokens, .ignore_eos = true};
	struct tandem_error from = {0};
	return session_error(tandem_submit(b->session.engine, &request, id, &from), &from, err);
}

static enum status step(struct bench *b, int *count, bool *idle, struct error *err)
{
	struct tandem_error from = {0};
	*count = 0;
	return session_error(tandem_step(b->session.engine, b->events, b->sequences, count, idle, &from), &from, err);
}

static enum status drain(struct bench *b, struct error *err)
{
	bool idle = false;
	int count;
	while (!idle) TRY(step(b, &count, &idle, err));
	return STATUS_OK;
}

/* Once more, op by op: its last step. */
static enum status look_into_prefill(struct bench *b, struct error *err)
{
	uint64_t id;
	int count = 0;
	bool idle = false;
	TRY(submit(b, b->settings->prefill, (uint64_t)b->settings->repeat + 1, 1, &id, err)); /* no prompt that the cache knows */
	while (!count && !idle) TRY(step(b, &count, &idle, err));
	TRY(bench_trace(b->session.engine, b->session.info.world_size, NULL, &b->prefill_split, err));
	return drain(b, err);
}

/* First run untimed: it touches the memory. */
static enum status time_prefill(struct bench *b, struct error *err)
{
	for (int run = -1; run < b->settings->repeat; run++) {
		uint64_t id, start = clock_ns();
		TRY(submit(b, b->settings->prefill, (uint64_t)(run + 1), 1, &id, err));
		TRY(drain(b, err));
		if (run >= 0) b->times[run] = (double)(clock_ns() - start) / 1e6;
	}
	b->prefill_ms = percentile(b->times, b->settings->repeat, 0.5);
	return look_into_prefill(b, err);
}

/* The decode step just run, once more: without the host, if it is a recorded one; and op by op. */
static enum status look_into_step(struct bench *b, struct error *err)
{
	struct tandem_error from = {0};
	int code = tandem_time_step(b->session.engine, DEVICE_REPEATS, &b->device_ms, &from);
	if (code) b->device_ms = 0;
	if (code != STATUS_UNSUPPORTED) TRY(session_error(code, &from, err));
	return bench_trace(b->session.engine, b->session.info.world_size, b->settings->trace, &b->split, err);
}

/* A step counts once every sequence decodes: it then gives one token of each. */
static enum status time_decode(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	uint64_t ids[1024];
	for (int i = 0; i < s->batch; i++)
		TRY(submit(b, s->bench_context, 1000 + (uint64_t)i, b->session.info.context - s->bench_context, &ids[i], err));
	int warm = 0, timed = 0;
	bool idle = false;
	while (timed < s->steps && !idle) {
		int count;
		uint64_t start = clock_ns();
		TRY(step(b, &count, &idle, err));
		if (count < s->batch) continue;
		if (warm++ >= WARM_STEPS) b->times[timed++] = (double)(clock_ns() - start) / 1e6;
	}
	if (timed == s->steps) TRY(look_into_step(b, err));
	for (int i = 0; i < s->batch; i++) (void)tandem_cancel(b->session.engine, ids[i]);
	TRY(drain(b, err));
	if (timed < s->steps)
		return FAIL(err, NO_ROOM, "bench step: only %d of %d steps had all %d sequences running; use a smaller --batch", timed, s->steps, s->batch);
	b->decode_ms = percentile(b->times, timed, 0.5);
	b->decode_most_ms = percentile(b->times, timed, 1);
	return STATUS_OK;
}

/* One step of a throughput run. */
static enum status step_of_many(struct bench *b, bool *idle, struct error *err)
{
	struct tandem_stats before, after;
	struct bench_phases from = {0}, to = {0};
	int tokens;
	tandem_get_stats(b->session.engine, &before);
	bench_phases_get(&from, b->session.engine, b->session.info.world_size);
	uint64_t start = clock_ns();
	TRY(step(b, &tokens, idle, err));
	double ms = (double)(clock_ns() - start) / 1e6;
	bench_phases_get(&to, b->session.engine, b->session.info.world_size);
	tandem_get_stats(b->session.engine, &after);
	bool mixed = after.computed_tokens - before.computed_tokens > (uint64_t)tokens;
	if (!*idle) bench_steps_add(mixed ? &b->mixed : &b->decode, ms, &from, &to);
	return STATUS_OK;
}

/* All requests at once; every step's time counts, prefill and decode alike. */
static enum status run_requests(struct bench *b, int first, int count, struct error *err)
{
	const struct settings *s = b->settings;
	b->mixed = b->decode = (struct bench_steps){0};
	for (int i = 0; i < count; i++) {
		uint64_t id;
		TRY(submit(b, s->bench_input, 5000 + (uint64_t)(first + i), s->bench_output, &id, err));
	}
	for (bool idle = false; !idle;) TRY(step_of_many(b, &idle, err));
	return STATUS_OK;
}

/* The first ones warm up. */
static enum status time_requests(struct bench *b, struct error *err)
{
	struct tandem_stats before, after;
	int warm = b->settings->requests < 4 ? b->settings->requests : 4;
	TRY(run_requests(b, 0, warm, err));
	tandem_get_stats(b->session.engine, &before);
	uint64_t start = clock_ns();
	TRY(run_requests(b, warm, b->settings->requests, err));
	b->throughput_s = clock_seconds_since(start);
	tandem_get_stats(b->session.engine, &after);
	b->generated = after.generated_tokens - before.generated_tokens;
	b->computed = after.computed_tokens - before.computed_tokens;
	return STATUS_OK;
}

static enum status count_work(struct bench *b, struct error *err)
{
	struct model_config config;
	struct manifest manifest = {0};
	TRY(model_config_load(&config, b->settings->model, NULL, err));
	enum status st = manifest_init(&manifest, &config, err);
	for (int i = 0; i < manifest.count; i++) {
		const struct weight *w = &manifest.weights[i];
		bool head = w->role == WEIGHT_LM_HEAD || (w->role == WEIGHT_EMBED && !manifest_find(&manifest, WEIGHT_LM_HEAD, -1));
		if (w->dims != 2 || (w->role == WEIGHT_EMBED && !head)) continue;
		double elements = (double)w->rows * (double)w->cols;
		double share = w->experts > 1 ? (double)config.moe.experts_per_token / w->experts : 1; /* of the experts that a row reads */
		b->linear_bytes += (double)weight_stored_bytes(&config, w) * (1 - pow(1 - share, b->settings->batch));
		b->prefill_flops += 2 * elements * w->experts * share * (head ? 1 : b->settings->prefill);
	}
	manifest_fini(&manifest);
	return st;
}

static enum status throughput_json(const struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	const int ranks = b->session.info.world_size;
	json_t *object = json_pack("{s:o,s:i,s:i,s:i,s:i,s:f,s:I,s:I,s:f,s:f,s:i,s:f,s:f,s:o,s:i,s:f,s:f,s:o}", "model", json_path(s->model), "requests", s->requests, "input", s->bench_input,
	                           "output", s->bench_output, "running", b->sequences, "seconds", b->throughput_s, "generated_tokens",
	                           (json_int_t)b->generated, "computed_tokens", (json_int_t)b->computed, "throughput_tokens_per_s",
	                           (double)b->generated / b->throughput_s, "requests_per_s", s->requests / b->throughput_s,
	                           "mixed_steps", b->mixed.steps, "mixed_ms", bench_steps_mean(&b->mixed), "mixed_most_ms", b->mixed.most_ms,
	                           "mixed_us", bench_steps_json(&b->mixed, ranks), "decode_steps", b->decode.steps,
	                           "decode_ms", bench_steps_mean(&b->decode), "decode_most_ms", b->decode.most_ms,
	                           "decode_us", bench_steps_json(&b->decode, ranks));
	return session_output(&b->session, object, err);
}

static enum status throughput_table(const struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	const int ranks = b->session.info.world_size;
	struct buf out = {0};
	enum status st = buf_printf(&out, err, "%s (%s), %d rank%s: %d requests of %d in and %d out, %d at a time: %.2f s, %.1f output tok/s, %.1f tok/s of both;\n"
	                            "%d steps with prompt rows, %.2f ms each (at most %.2f), and %d without, %.2f ms (at most %.2f)\n",
	                            b->session.info.device, b->session.info.isa, ranks, ranks == 1 ? "" : "s",
	                            s->requests, s->bench_input, s->bench_output, b->sequences, b->throughput_s, (double)b->generated / b->throughput_s,
	                            ((double)b->computed + s->requests) / b->throughput_s, b->mixed.steps, bench_steps_mean(&b->mixed),
	                            b->mixed.most_ms, b->decode.steps, bench_steps_mean(&b->decode), b->decode.most_ms);
	if (st == STATUS_OK) st = bench_steps_text(&b->mixed, "a step with prompt rows", ranks, &out, err);
	if (st == STATUS_OK) st = bench_steps_text(&b->decode, "a step without", ranks, &out, err);
	if (st == STATUS_OK && b->session.explain) st = explain_text(&b->session, false, &out, err);
	if (st == STATUS_OK) st = output_write(out.data, out.size, err);
	buf_fini(&out);
	return st;
}

static enum status print_json(const struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	json_t *object = json_pack("{s:o,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "model", json_path(s->model), "batch", s->batch, "bench_context",
	                           s->bench_context, "steps", s->steps, "prefill", s->prefill, "decode_ms", b->decode_ms, "decode_most_ms",
	                           b->decode_most_ms, "prefill_ms",
	                           b->prefill_ms, "tokens_per_s", per_second(s->batch, b->decode_ms), "prefill_tokens_per_s",
	                           per_second(s->prefill, b->prefill_ms), "linear_bytes", b->linear_bytes, "decode_gb_per_s",
	                           per_second(b->linear_bytes / 1e9, b->decode_ms), "prefill_gflop_per_s",
	                           per_second(b->prefill_flops / 1e9, b->prefill_ms));
	if (object) json_object_set_new(object, "split_us", bench_split_json(&b->split));
	if (object) json_object_set_new(object, "prefill_split_us", bench_split_json(&b->prefill_split));
	if (object && b->device_ms > 0) json_object_update_missing_new(object, json_pack("{s:f,s:f}", "device_ms", b->device_ms, "host_gap_us", (b->decode_ms - b->device_ms) * 1000));
	return session_output(&b->session, object, err);
}

static enum status print_table(const struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	const struct tandem_info *info = &b->session.info;
	struct buf out = {0};
	char bytes[24];
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "%s (%s), %d rank%s, %d thread%s, weights %s, %d collectives a step\n", info->device, info->isa,
	                    info->world_size, info->world_size == 1 ? "" : "s", info->threads, info->threads == 1 ? "" : "s",
	                    format_bytes((double)info->weight_bytes, bytes), info->collectives_per_step), end);
	TRY_GOTO(buf_printf(&out, err, "decode  %d x 1 token after %d: %9.3f ms  %8.1f tok/s  %7.2f GB/s of linear weights\n", s->batch,
	                    s->bench_context, b->decode_ms, per_second(s->batch, b->decode_ms), per_second(b->linear_bytes / 1e9, b->decode_ms)), end);
	TRY_GOTO(buf_printf(&out, err, "prefill %d tokens:        %9.3f ms  %8.1f tok/s  %7.1f GFLOP/s in linears\n", s->prefill, b->prefill_ms,
	                    per_second(s->prefill, b->prefill_ms), per_second(b->prefill_flops / 1e9, b->prefill_ms)), end);
	if (b->device_ms > 0)
		TRY_GOTO(buf_printf(&out, err, "the decode step without the host: %.3f ms; between two of them %.0f us\n", b->device_ms,
		                    (b->decode_ms - b->device_ms) * 1000), end);
	TRY_GOTO(bench_split_text(&b->split, "a decode step", &out, err), end);
	TRY_GOTO(bench_split_text(&b->prefill_split, "the last step of a prefill", &out, err), end);
	if (b->session.explain) TRY_GOTO(explain_text(&b->session, false, &out, err), end);
	TRY_GOTO(buf_puts(&out, "Medians. The bounds of this machine: tandem bench peak\n", err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

static enum status open_engine(struct bench *b, const struct session_needs *needs, struct error *err)
{
	const struct settings *s = b->settings;
	b->sequences = needs->max_sequences;
	TRY(session_open(&b->session, s, needs, err));
	b->events = mem_zalloc((size_t)b->sequences, sizeof *b->events, "events", err);
	b->prompt = mem_zalloc((size_t)needs->context, sizeof *b->prompt, "prompt", err);
	b->times = mem_zalloc((size_t)(s->steps > s->repeat ? s->steps : s->repeat), sizeof *b->times, "times", err);
	return b->events && b->prompt && b->times ? STATUS_OK : STATUS_NO_MEMORY;
}

static enum status run_throughput(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	int64_t context = (int64_t)s->bench_input + s->bench_output;
	if (context > INT32_MAX) return FAIL(err, USAGE, "bench step: --input and --output ask for too many tokens; use less");
	TRY(open_engine(b, &(struct session_needs){.context = (int)context, .max_sequences = s->requests < MOST_RUNNING ? s->requests : MOST_RUNNING}, err));
	TRY(time_requests(b, err));
	tandem_get_info(b->session.engine, &b->session.info);
	return s->json ? throughput_json(b, err) : throughput_table(b, err);
}

static enum status run_steps(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	/* While the last sequence is prefilled, the first ones already decode. */
	int64_t lead = (int64_t)s->batch * (s->bench_context / (s->prefill_chunk ? s->prefill_chunk : 512) + 1);
	int64_t context = s->bench_context + s->steps + WARM_STEPS + lead + 1, block = session_block_tokens(s);
	int64_t tokens = s->batch * ((context + block - 1) / block + 1) * block;
	if (context < s->prefill + 1) context = s->prefill + 1;
	if (tokens < context + block) tokens = context + block;
	if (context > INT32_MAX) return FAIL(err, USAGE, "bench step: --batch, --context and --steps ask for too many tokens; use less");
	TRY(count_work(b, err));
	/* One slot for a snapshot, so that a prompt is one step, as it is in a server. */
	TRY(open_engine(b, &(struct session_needs){.context = (int)context, .max_sequences = s->batch, .kv_tokens = tokens, .state_snapshots = 1}, err));
	TRY(time_prefill(b, err));
	TRY(time_decode(b, err));
	tandem_get_info(b->session.engine, &b->session.info);
	return s->json ? print_json(b, err) : print_table(b, err);
}

enum status cmd_bench_step(const struct settings *settings, struct error *err)
{
	struct bench bench = {.settings = settings};
	enum status st = settings->requests ? run_throughput(&bench, err) : run_steps(&bench, err);
	session_close(&bench.session);
	free(bench.events);
	free(bench.prompt);
	free(bench.times);
	return st;
}
