/* `tandem plan`: what each rank would hold at each world size, from config.json alone; with --target also which kernels
 * would be legal there. Also for models that cannot run yet. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/console.h"
#include "apps/plan_target.h"
#include "apps/settings.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/loader.h"
#include "engine/rank.h"
#include "model/plan.h"

struct plan {
	const struct settings *settings;
	struct model_config config;
	struct plan_degree *degree; /* [count] */
	struct shapes *shapes;      /* [count] */
	struct target target;       /* settings->target */
	int count;
};

static uint64_t weight_bytes(const struct plan_degree *d)
{
	return d->sharded_bytes + d->replicated_bytes;
}

static json_t *family_json(const struct plan_family *f, json_t *verdicts)
{
	return json_pack("{s:s,s:s,s:[I,I],s:[I,I],s:i,s:b,s:b,s:o}", "family", f->family, "kind", f->kind, "global", (json_int_t)f->global_n,
	                 (json_int_t)f->global_k, "local", (json_int_t)f->local_n, (json_int_t)f->local_k, "count", f->count, "stored", f->stored, "runs",
	                 f->runs, "static", verdicts);
}

/* Local heads, and the state of one sequence in one layer; null without such layers. */
static json_t *gdn_json(const struct shape_gdn *g)
{
	if (!g->layers) return json_null();
	return json_pack("{s:i,s:i,s:i,s:[i,i,i],s:s,s:[i,i]}", "layers", g->layers, "k_heads", g->k_heads, "v_heads", g->v_heads, "state", g->v_heads,
	                 g->k_dim, g->v_dim, "state_dtype", dtype_name(g->state_dtype), "conv_state", g->conv_kernel - 1, g->conv_channels);
}

/* The experts of a layer, local; null without any. */
static json_t *moe_json(const struct shape_moe *m)
{
	if (!m->layers) return json_null();
	return json_pack("{s:i,s:i,s:i,s:[i,i],s:[i,i],s:i,s:b}", "layers", m->layers, "experts", m->experts, "experts_per_token", m->experts_per_token, "gate_up",
	                 m->gate_up_n, m->gate_up_k, "down", m->down_n, m->down_k, "shared_inner", m->shared_down_k, "norm_topk", m->norm_topk);
}

static json_t *degree_json(const struct plan *plan, int index)
{
	const struct plan_degree *d = &plan->degree[index];
	const struct shapes *judged = plan->settings->target ? &plan->shapes[index] : NULL;
	json_t *reasons = json_array(), *families = json_array();
	for (int i = 0; i < d->reasons; i++) json_array_append_new(reasons, json_string(d->reason[i]));
	for (int i = 0; i < d->families; i++) json_array_append_new(families, family_json(&d->family[i], plan_target_json(&plan->target, judged, i, &plan->settings->classes)));
	json_t *heads = json_pack("{s:i,s:i,s:i}", "query", d->q_heads, "kv", d->kv_heads, "kv_replicated", d->kv_replicated);
	json_t *bytes = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "weights", (json_int_t)weight_bytes(d), "sharded", (json_int_t)d->sharded_bytes, "replicated",
	                          (json_int_t)d->replicated_bytes, "kv_per_token", (json_int_t)d->kv_per_token, "windows", (json_int_t)d->window_bytes,
	                          "state_per_sequence", (json_int_t)d->state_per_sequence, "scratch", (json_int_t)d->scratch_bytes, "workspace",
	                          (json_int_t)d->workspace_bytes);
	json_t *tokens = d->kv_tokens < 0 ? json_null() : json_integer(d->kv_tokens);
	json_t *object = json_pack("{s:i,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "world_size", d->world_size, "legal", d->legal, "reasons", reasons, "local_heads", heads,
	                 "gdn", gdn_json(&plan->shapes[index].gdn), "moe", moe_json(&plan->shapes[index].moe), "families", families, "bytes", bytes, "kv_tokens", tokens);
	if (judged && object) json_object_set_new(object, "attention_static", plan_target_attention_json(&plan->target, judged, &plan->settings->classes));
	return object;
}

/* As `tandem serve` would have them with these settings, besides the sink's. */
static int state_slots(const struct plan *plan)
{
	const struct settings *s = plan->settings;
	return plan->config.gdn.k_heads ? plan_state_slots(s->max_running, s->state_snapshots ? s->state_snapshots : s->max_running) : 0;
}

/* As `tandem serve` would have them with these settings. */
static struct step_limits limits_of(const struct settings *s, const struct device_ops *ops)
{
	return step_limits_of(s->prefill_chunk ? s->prefill_chunk : device_prefill_chunk(ops), s->max_running);
}

/* As `tandem serve` would have them where KV is plenty, the sink's included. */
static int window_slots(const struct plan *plan, const struct device_ops *ops)
{
	const struct model_config *c = &plan->config;
	const struct settings *s = plan->settings;
	int block = s->kv_block ? s->kv_block : device_kv_block_tokens(ops);
	int rows = limits_of(s, ops).max_rows;
	if (!memchr(c->layer_kind, LAYER_SLIDING, (size_t)c->layers)) return 0;
	return (plan_window_blocks(INT_MAX / block - 1, block, s->max_running, rows, c->sliding_window, s->max_running) + 1) * block;
}

static enum status print_json(const struct plan *plan, struct error *err)
{
	const struct model_config *c = &plan->config;
	json_t *degrees = json_array();
	for (int i = 0; i < plan->count; i++) json_array_append_new(degrees, degree_json(plan, i));
	json_t *object = json_pack("{s:s,s:b,s:s?,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:o}", "model_type", c->model_type, "runs",
	                           c->cannot_run[0] == 0, "cannot_run", c->cannot_run[0] ? c->cannot_run : NULL, "layers", c->layers,
	                           "hidden_size", c->hidden_size, "intermediate_size", c->intermediate_size, "query_heads", c->q_heads,
	                           "kv_heads", c->kv_heads, "head_dim", c->head_dim, "vocab_size", c->vocab_size, "max_position",
	                           c->max_position, "dtype", dtype_name(c->dtype), "state_slots", state_slots(plan), "degrees", degrees);
	if (plan->settings->target && object) json_object_set_new(object, "target", json_string(plan->target.name));
	return output_json(object, err);
}

static const char *shape(int64_t n, int64_t k, char text[32])
{
	snprintf(text, 32, "%lld x %lld", (long long)n, (long long)k);
	return text;
}

static const char *tp_name(const struct plan_degree *d, char text[32])
{
	snprintf(text, 32, "TP%d", d->world_size);
	return text;
}

#define CELL 17

static enum status family_table(const struct plan *plan, struct buf *out, struct error *err)
{
	char text[32];
	const struct plan_degree *first = &plan->degree[0];
	TRY(buf_printf(out, err, "\n%-18s %-11s %5s%*s", "tensor [N x K]", "kind", "count", CELL, "global"));
	for (int d = 0; d < plan->count; d++) TRY(buf_printf(out, err, "%*s", CELL, tp_name(&plan->degree[d], text)));
	for (int i = 0; i < first->families; i++) {
		const struct plan_family *f = &first->family[i];
		if (!f->runs) continue;
		TRY(buf_printf(out, err, "\n%-18s %-11s %5d%*s", f->family, f->kind, f->count, CELL, shape(f->global_n, f->global_k, text)));
		for (int d = 0; d < plan->count; d++) {
			const struct plan_degree *degree = &plan->degree[d];
			bool known = degree->legal && i < degree->families;
			TRY(buf_printf(out, err, "%*s", CELL, known ? shape(degree->family[i].local_n, degree->family[i].local_k, text) : "-"));
		}
	}
	return buf_puts(out, "\n", err);
}

enum plan_line {
	LINE_LEGAL, LINE_HEADS, LINE_GDN_HEADS, LINE_GDN_STATE, LINE_EXPERTS, LINE_EXPERT, LINE_WEIGHTS, LINE_KV, LINE_WINDOWS, LINE_STATE, LINE_SLOTS, LINE_SCRATCH,
	LINE_WORKSPACE, LINE_TOKENS, LINE_COUNT
};

static const char *const line_names[LINE_COUNT] = {
	"legal", "query + KV heads", "GDN K + V heads", "GDN state, a layer", "experts, a token", "width of one", "weights", "KV a token",
	"KV of sliding layers", "state a slot", "state slots", "scratch", "workspace", "KV tokens that fit",
};

static const char *line_cell(const struct plan *plan, int index, enum plan_line line, char text[32])
{
	const struct plan_degree *d = &plan->degree[index];
	const struct shape_gdn *g = &plan->shapes[index].gdn;
	const struct shape_moe *m = &plan->shapes[index].moe;
	char bytes[24];
	if (line != LINE_LEGAL && !d->legal) return "-";
	uint64_t value = 0;
	switch (line) {
	case LINE_LEGAL: return d->legal ? "yes" : "no";
	case LINE_HEADS:
		snprintf(text, 32, d->kv_replicated > 1 ? "%d + %d (1 in %d)" : "%d + %d", d->q_heads, d->kv_heads, d->kv_replicated);
		return text;
	case LINE_GDN_HEADS:
		snprintf(text, 32, "%d + %d", g->k_heads, g->v_heads);
		return text;
	case LINE_GDN_STATE:
		snprintf(text, 32, "%d x %d x %d", g->v_heads, g->k_dim, g->v_dim);
		return text;
	case LINE_EXPERTS:
		snprintf(text, 32, "%d, %d%s", m->experts, m->experts_per_token, m->shared_down_k ? " + 1" : "");
		return text;
	case LINE_EXPERT:
		snprintf(text, 32, m->shared_down_k && m->shared_down_k != m->down_k ? "%d; shared %d" : "%d", m->down_k, m->shared_down_k);
		return text;
	case LINE_SLOTS:
		snprintf(text, 32, "%d", state_slots(plan));
		return text;
	case LINE_TOKENS:
		if (d->kv_tokens < 0) return "-";
		snprintf(text, 32, "%lld", (long long)d->kv_tokens);
		return text;
	case LINE_WEIGHTS: value = weight_bytes(d); break;
	case LINE_KV: value = d->kv_per_token; break;
	case LINE_WINDOWS: value = d->window_bytes; break;
	case LINE_STATE: value = d->state_per_sequence; break;
	case LINE_SCRATCH: value = d->scratch_bytes; break;
	case LINE_WORKSPACE: value = d->workspace_bytes; break;
	case LINE_COUNT: break;
	}
	snprintf(text, 32, "%s", format_bytes((double)value, bytes));
	return text;
}

static enum status rank_table(const struct plan *plan, struct buf *out, struct error *err)
{
	char text[32];
	bool windows = false;
	for (int d = 0; d < plan->count; d++) windows |= plan->degree[d].window_bytes > 0;
	TRY(buf_printf(out, err, "\n%-20s", "one rank"));
	for (int d = 0; d < plan->count; d++) TRY(buf_printf(out, err, "%*s", CELL, tp_name(&plan->degree[d], text)));
	for (int line = 0; line < LINE_COUNT; line++) {
		bool of_gdn = line == LINE_STATE || line == LINE_SLOTS || line == LINE_GDN_HEADS || line == LINE_GDN_STATE;
		if (of_gdn && !plan->config.gdn.k_heads) continue;
		if (line == LINE_WINDOWS && !windows) continue;
		if ((line == LINE_EXPERTS || line == LINE_EXPERT) && !plan->config.moe.layers) continue;
		TRY(buf_printf(out, err, "\n%-20s", line_names[line]));
		for (int d = 0; d < plan->count; d++)
			TRY(buf_printf(out, err, "%*s", CELL, line_cell(plan, d, (enum plan_line)line, text)));
	}
	TRY(buf_puts(out, "\n", err));
	for (int d = 0; d < plan->count; d++)
		for (int i = 0; i < plan->degree[d].reasons; i++)
			TRY(buf_printf(out, err, "TP%d: %s\n", plan->degree[d].world_size, plan->degree[d].reason[i]));
	return STATUS_OK;
}

static enum status print_table(const struct plan *plan, struct error *err)
{
	const struct model_config *c = &plan->config;
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "%s, %s: %d layers, hidden %d, intermediate %d, %d query and %d KV heads of %d, vocabulary %d\n",
	                    c->model_type, dtype_name(c->dtype), c->layers, c->hidden_size, c->intermediate_size, c->q_heads, c->kv_heads,
	                    c->head_dim, c->vocab_size), end);
	if (c->cannot_run[0]) TRY_GOTO(buf_printf(&out, err, "planned only: %s\n", c->cannot_run), end);
	TRY_GOTO(family_table(plan, &out, err), end);
	TRY_GOTO(rank_table(plan, &out, err), end);
	if (plan->settings->target) TRY_GOTO(plan_target_table(&plan->target, plan->shapes, plan->count, &plan->settings->classes, &out, err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

static enum status make_shapes(struct plan *plan, struct error *err)
{
	plan->shapes = mem_zalloc((size_t)plan->count, sizeof *plan->shapes, "shapes", err);
	if (!plan->shapes) return STATUS_NO_MEMORY;
	for (int i = 0; i < plan->count; i++) shapes_of(&plan->shapes[i], &plan->config, &plan->degree[i]);
	return STATUS_OK;
}

/* What opening would refuse for the device's sake is planned only, as what the config itself says cannot run. */
static void note_unfit(struct model_config *config, const struct device_ops *ops)
{
	struct error unfit = {0};
	if (config->cannot_run[0] || loader_fits(config, ops, &unfit) == STATUS_OK) return;
	snprintf(config->cannot_run, sizeof config->cannot_run, "%.*s", (int)sizeof config->cannot_run - 1, unfit.text);
}

enum status cmd_plan(const struct settings *settings, struct error *err)
{
	struct console console;
	console_init(&console, settings->verbose);
	struct log log = console_sink(&console);
	struct plan plan = {.settings = settings, .count = settings->degrees.count};
	const struct device_ops *ops = device_find(settings->device);
	if (!ops) return FAIL(err, USAGE, "--device '%.40s': not in this build; give one of %s", settings->device, device_names());
	if (!plan.count) return FAIL(err, USAGE, "--tp: has no world size; give some such as 1,2,4");
	if (settings->target) TRY(target_open(&plan.target, settings->target, err));
	TRY(model_config_load(&plan.config, settings->model, &log, err));
	note_unfit(&plan.config, ops);
	plan.degree = mem_zalloc((size_t)plan.count, sizeof *plan.degree, "plan", err);
	if (!plan.degree) return STATUS_NO_MEMORY;
	enum dtype activation = device_activation(ops, plan.config.dtype);
	const struct step_limits limits = rank_limits(&(struct rank_options){.limits = limits_of(settings, ops), .graphs = ops->graph_begin});
	struct plan_options options = {.device_memory = settings->device_memory,
	                               .state_slots = state_slots(&plan),
	                               .window_slots = window_slots(&plan, ops),
	                               .max_rows = limits.max_rows,
	                               .max_outputs = limits.max_outputs,
	                               .activation = activation, .kv = activation};
	const struct comm_options sums = {.max_rows = options.max_rows, .cols = plan.config.hidden_size, .dtype = settings->tp_invariant ? DTYPE_F32 : activation,
	                                  .invariant = settings->tp_invariant, .tree_leaves = shard_tree_leaves(&plan.config)};
	for (int i = 0; i < plan.count; i++) {
		options.scratch_bytes = comm_scratch_bytes(ops, settings->degrees.items[i], &sums);
		options.embedding_split = shard_embedding(&plan.config, settings->degrees.items[i], settings->embedding, ops->one_memory);
		plan_degree(&plan.degree[i], &plan.config, settings->degrees.items[i], &options);
	}
	enum status st;
	TRY_GOTO(make_shapes(&plan, err), end);
	st = settings->json ? print_json(&plan, err) : print_table(&plan, err);
end:
	free(plan.shapes);
	free(plan.degree);
	return st;
}
