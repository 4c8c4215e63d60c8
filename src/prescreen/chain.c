#include "prescreen/chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "prescreen/choose.h"

#define LAYERS_LEAST 8 /* so many that the first launch of a graph, which nothing precedes, is one of many; two periods of a hybrid model */
#define LAYERS_MOST 32
#define PAIRS_LEAST 8
#define PAIRS_MOST 100
#define QUICK_PAIRS_LEAST 4
#define QUICK_PAIRS_MOST 8
#define COMPARE_S 0.3 /* pairs go on for so long, the least number apart */
#define CLEAR 3        /* half widths of its interval that a ratio is away from 1, or its interval from a better one: more pairs would not change it */
#define QUICK_COMPARE_S 0.03

/* The ops of a layer, in the order of their families, and the heads behind them: one for each number of rows that ranks have. X(enumerator, family) */
#define PART_LIST(X)           \
	X(QKV, "attn qkv")         \
	X(ATTENTION, "attention")  \
	X(O, "attn o")             \
	X(QKVZ, "gdn qkvz")        \
	X(BA, "gdn ba")            \
	X(GDN, "gdn state")        \
	X(OUT, "gdn out")          \
	X(GATE_UP, "mlp gate_up")  \
	X(DOWN, "mlp down")        \
	X(MOE, "moe experts")      \
	X(HEAD, "lm_head")         \
	X(HEAD_2, "lm_head")       \
	X(HEAD_3, "lm_head")

enum part {
#define X(code, family) PART_##code,
	PART_LIST(X)
#undef X
		PART_COUNT
};
_Static_assert(PART_COUNT - PART_HEAD == SHARD_VOCAB_SIZES, "a part for each head");

struct chain_op {
	bool there;
	struct result_place place;
	struct result_problem problem;   /* of this rank; place[0] is `place` */
	struct result_problem *measured; /* the same one in the results; NULL: it was not asked for, or is no linear */
	struct bench bench;              /* the screen's, with as much memory to go around in as the chain has layers for */
	struct trial_weights weights;
	struct trial_experts experts;
	struct trial trial;
	int calls; /* of the last walk */
};

/* A candidate that a chain is timed with. */
struct entry {
	struct result_problem *problem;
	struct result_candidate *candidate;
	double gain_us; /* of the whole chain, alone */
};

/* What was said of a candidate before this chain. */
struct earlier {
	struct result_candidate *candidate;
	struct result_confirm confirm;
};

struct chain {
	struct screen *s;
	struct result_chain out;
	struct chain_op op[PART_COUNT];
	struct trial_weights gdn_in; /* both projections of a delta net, one behind the other; copies 0: no op makes both */
	void *gdn_in_out;
	bool apart; /* one of them is preferred: they are to run by themselves, as in engine/forward.c */
	struct graph *defaults; /* NULL where nothing is recorded */
	void *x, *norm, *h, *act; /* the residual stream, its norm's weight, its norm; what comes out of SwiGLU: where no op fuses them */
	bool cut; /* the budget ended it */
	struct earlier earlier[PART_COUNT * CHAIN_CANDIDATES]; /* of all that it tries */
	int earlier_count;
};

/* ---- which chains there are */

static bool has_place(const struct result_problem *p, int world_size)
{
	for (int i = 0; i < p->places; i++)
		if (p->place[i].world_size == world_size) return true;
	return false;
}

/* Is problem i the first of its chain in the list? */
static bool opens_chain(const struct results *r, int i, int world_size)
{
	const struct result_problem *p = &r->problem[i];
	if (!result_problem_chained(p) || !has_place(p, world_size)) return false;
	for (int j = 0; j < i; j++)
		if (result_problem_chained(&r->problem[j]) && r->problem[j].linear.m == p->linear.m && has_place(&r->problem[j], world_size)) return false;
	return true;
}

void chain_count(const struct results *r, int *wanted, int *done)
{
	*wanted = *done = 0;
	for (int d = 0; d < r->degrees; d++)
		for (int i = 0; r->degree[d].legal && i < r->problems; i++) {
			if (!opens_chain(r, i, r->degree[d].world_size)) continue;
			++*wanted;
			*done += results_find_chain(r, r->degree[d].world_size, r->problem[i].linear.m) != NULL;
		}
}

bool chain_measured(const struct results *r, int world_size, int rows)
{
	bool any = false;
	for (int i = 0; i < r->problems; i++) {
		const struct result_problem *p = &r->problem[i];
		if (!result_problem_chained(p) || p->linear.m != rows || !has_place(p, world_size)) continue;
		if (!p->done) return false;
		any = true;
	}
	return any;
}

static int context_of(const struct screen_options *o)
{
	return o->quick ? CHAIN_QUICK_CONTEXT : CHAIN_CONTEXT;
}

static int larger(int64_t a, int b)
{
	return a > b ? (int)a : b;
}

void chain_widen(struct stream_options *stream, const struct results *r, const struct screen_options *o)
{
	struct shapes shapes;
	for (int d = 0; d < r->degrees; d++) {
		problems_shapes(&shapes, NULL, o->config, o->ops, r->degree[d].world_size);
		for (int i = 0; shapes.legal && i < shapes.families; i++) {
			stream->max_n = larger(shapes.family[i].n, stream->max_n);
			stream->max_k = larger(shapes.family[i].k, stream->max_k);
		}
	}
	stream->max_rows = larger(context_of(o) < 512 ? context_of(o) : 512, stream->max_rows); /* the cache is filled so many at a time */
	stream->max_q_heads = larger(o->config->q_heads, stream->max_q_heads);
	stream->max_context = larger(context_of(o), stream->max_context);
	stream->max_seqs = larger(DECODE_MAX_ROWS, stream->max_seqs);
}

/* ---- one chain: set up */

static const char *const families[] = {
#define X(code, family) family,
	PART_LIST(X)
#undef X
};

/* The next part of that family; NULL: the chain has none. */
static struct chain_op *part_of(struct chain *c, const char *family)
{
	for (int p = 0; p < PART_COUNT; p++)
		if (!c->op[p].there && strcmp(families[p], family) == 0) return &c->op[p];
	return NULL;
}

static void describe(struct chain *c, const struct shapes *shapes)
{
	const struct screen *s = c->s;
	for (int p = 0; p < PART_COUNT; p++) {
		struct chain_op *op = &c->op[p];
		op->place.world_size = shapes->world_size;
		snprintf(op->place.family, sizeof op->place.family, "%s", families[p]);
		snprintf(op->problem.phase, sizeof op->problem.phase, "decode");
		op->problem.place = &op->place;
		op->problem.places = 1;
	}
	for (int f = 0; f < shapes->families; f++) {
		const struct shape_family *family = &shapes->family[f];
		struct chain_op *op = part_of(c, family->family);
		if (!op) continue;
		op->there = true;
		op->problem.linear = (struct linear_key){.use = problem_use(s->bench.ops, s->bench.config, shapes, family), .dtype = shapes->dtype, .n = (int)family->n,
		                                         .k = (int)family->k, .m = c->out.rows};
		op->measured = results_find(s->results, &op->problem);
	}
	const struct shape_attention *a = &shapes->attention;
	struct chain_op *attention = &c->op[PART_ATTENTION], *gdn = &c->op[PART_GDN], *moe = &c->op[PART_MOE];
	attention->there = a->layers > 0;
	attention->problem.op = PROBLEM_ATTENTION;
	attention->problem.attention = (struct attention_problem){.dtype = device_activation(s->bench.ops, shapes->dtype),
	                                                          .q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .rows = c->out.rows,
	                                                          .context = c->out.context, .block_tokens = device_kv_block_tokens(s->bench.ops),
	                                                          .softcap = (double)a->softcap};
	gdn->problem.op = PROBLEM_GDN;
	gdn->there = problem_gdn(&gdn->problem.gdn, s->bench.ops, shapes, c->out.rows);
	moe->problem.op = PROBLEM_MOE;
	moe->there = problem_moe(&moe->problem.moe, s->bench.ops, s->bench.config, shapes, c->out.rows);
}

static bool is_linear(const struct chain_op *op)
{
	return op->problem.op == PROBLEM_LINEAR;
}

static size_t bytes_of(const struct chain *c, const struct chain_op *op)
{
	const struct linear_key *key = &op->problem.linear;
	return c->s->bench.ops->linear_bytes(key->dtype, key->n, key->k);
}

/* Best first; those that may enter the whitelist and are not refused. One that another degree's chain has confirmed is the only one that can still be. */
static int candidates_of(const struct screen *s, struct result_problem *p, struct result_candidate *list[CHAIN_CANDIDATES])
{
	int count = 0;
	for (int i = 1; i < p->candidates; i++)
		if (p->candidate[i].confirm.outcome == OUTCOME_KEEP) {
			list[0] = &p->candidate[i];
			return 1;
		}
	/* The fastest CHAIN_CANDIDATES of all, whatever earlier chains said of them, less the refused. */
	for (int i = 1; i < p->candidates; i++) {
		struct result_candidate *c = &p->candidate[i];
		if (!choose_eligible(c, s->options->any_order)) continue;
		int at = count;
		while (at > 0 && c->timing.speedup > list[at - 1]->timing.speedup) at--;
		if (at >= CHAIN_CANDIDATES) continue;
		if (count < CHAIN_CANDIDATES) count++;
		memmove(&list[at + 1], &list[at], (size_t)(count - 1 - at) * sizeof *list);
		list[at] = c;
	}
	int left = 0;
	for (int i = 0; i < count; i++)
		if (list[i]->confirm.outcome == OUTCOME_OPEN) list[left++] = list[i];
	return left;
}

static void remember(struct chain *c, struct result_problem *p)
{
	struct result_candidate *list[CHAIN_CANDIDATES];
	const int count = candidates_of(c->s, p, list);
	for (int i = 0; i < count; i++) c->earlier[c->earlier_count++] = (struct earlier){list[i], list[i]->confirm};
}

/* Of a chain that did not come to its end: a later run measures all of it, and would take what it confirmed for another degree's. */
static void take_back(struct chain *c)
{
	for (int i = 0; i < c->earlier_count; i++) c->earlier[i].candidate->confirm = c->earlier[i].confirm;
}

/* Is part p the first that asks for its problem, and is there something to try for it? */
static bool has_candidates(const struct chain *c, int p)
{
	struct result_candidate *list[CHAIN_CANDIDATES];
	const struct chain_op *op = &c->op[p];
	if (!op->there || !op->measured) return false;
	for (int q = 0; q < p; q++)
		if (c->op[q].there && c->op[q].measured == op->measured) return false;
	return candidates_of(c->s, op->measured, list) > 0;
}

static int count_layers(const struct chain *c)
{
	size_t layer = 0, rotate = c->s->bench.rotate_bytes;
	for (int p = 0; p < PART_HEAD; p++)
		if (c->op[p].there && is_linear(&c->op[p])) layer += bytes_of(c, &c->op[p]);
	size_t layers = layer ? rotate / layer + 1 : 1;
	return layers < LAYERS_LEAST ? LAYERS_LEAST : layers > LAYERS_MOST ? LAYERS_MOST : (int)layers;
}

static enum status open_op(struct chain *c, enum part p, struct error *err)
{
	struct chain_op *op = &c->op[p];
	op->bench = c->s->bench;
	if (p == PART_MOE) TRY(trial_experts_open(&op->experts, &op->bench, &op->problem.moe, err));
	if (!is_linear(op)) return trial_open_unchecked(&op->trial, &op->bench, NULL, p == PART_MOE ? &op->experts : NULL, &op->problem, err);
	const struct linear_key *key = &op->problem.linear;
	size_t most = p >= PART_HEAD ? 0 : bytes_of(c, op) * (size_t)(c->out.layers - 2); /* a copy for each layer, or fewer: trial_weights_open adds two */
	if (op->bench.rotate_bytes > most) op->bench.rotate_bytes = most;
	TRY(trial_weights_open(&op->weights, &op->bench, key->dtype, key->n, key->k, err));
	return trial_open_unchecked(&op->trial, &op->bench, &op->weights, NULL, &op->problem, err);
}

static enum status take(struct chain *c, size_t bytes, void **out, struct error *err)
{
	return c->s->bench.ops->alloc(c->s->bench.device, bytes, MEM_WORKSPACE, "prescreen: chain", out, err);
}

/* As the engine has them: where one op makes both projections of a delta net, they lie one behind the other. */
static enum status open_gdn_in(struct chain *c, struct error *err)
{
	const struct chain_op *qkvz = &c->op[PART_QKVZ], *ba = &c->op[PART_BA];
	if (!qkvz->there || !ba->there || !c->s->bench.ops->ops.gdn_in) return STATUS_OK;
	const struct linear_key *key = &qkvz->problem.linear;
	const int n = key->n + ba->problem.linear.n;
	TRY(trial_weights_open(&c->gdn_in, (struct bench *)&qkvz->bench, key->dtype, n, key->k, err));
	return take(c, (size_t)c->out.rows * (size_t)n * sizeof(float), &c->gdn_in_out, err);
}

static enum status open_chain(struct chain *c, struct error *err)
{
	const struct model_config *config = c->s->bench.config;
	size_t rows = (size_t)c->out.rows, hidden = (size_t)config->hidden_size;
	for (int p = PART_HEAD; p < PART_COUNT; p++) c->op[p].there = has_candidates(c, p);
	c->out.layers = count_layers(c);
	for (int p = 0; p < PART_COUNT; p++)
		if (c->op[p].there) TRY(open_op(c, (enum part)p, err));
	TRY(open_gdn_in(c, err));
	TRY(take(c, rows * hidden * sizeof(float), &c->x, err));
	TRY(take(c, hidden * sizeof(float), &c->norm, err));
	TRY(take(c, rows * hidden * sizeof(float), &c->h, err));
	int64_t inner = c->op[PART_GATE_UP].there ? c->op[PART_GATE_UP].problem.linear.n / 2 : 1;
	return take(c, rows * (size_t)inner * sizeof(float), &c->act, err);
}

static void close_chain(struct chain *c)
{
	const struct device_ops *ops = c->s->bench.ops;
	if (c->defaults) ops->graph_destroy(c->defaults);
	for (int p = 0; p < PART_COUNT; p++) {
		trial_close(&c->op[p].trial);
		trial_weights_close(&c->op[p].weights);
		trial_experts_close(&c->op[p].experts);
	}
	trial_weights_close(&c->gdn_in);
	ops->free(c->s->bench.device, c->gdn_in_out);
	ops->free(c->s->bench.device, c->x);
	ops->free(c->s->bench.device, c->norm);
	ops->free(c->s->bench.device, c->h);
	ops->free(c->s->bench.device, c->act);
}

/* ---- one chain: its ops */

static enum status norm(struct chain *c, struct error *err)
{
	const struct model_config *config = c->s->bench.config;
	enum dtype activation = c->op[PART_QKV].there ? c->op[PART_QKV].trial.activation : c->op[PART_QKVZ].trial.activation;
	const struct rms_norm_args args = {.x = tensor_view(c->x, DTYPE_F32, TENSOR_REPLICATED, c->out.rows, config->hidden_size), .weight = c->norm,
	                                   .eps = config->rms_eps, .out = tensor_view(c->h, activation, TENSOR_REPLICATED, c->out.rows, config->hidden_size)};
	return OP(c->s->bench.stream, rms_norm, &args, err);
}

static enum status swiglu(struct chain *c, struct error *err)
{
	const struct trial *t = &c->op[PART_GATE_UP].trial;
	int n = t->problem->linear.n;
	struct tensor x = tensor_view(t->region[0].device + TRIAL_GUARD_BYTES, t->activation, TENSOR_SHARDED, c->out.rows, n);
	struct tensor out = tensor_view(c->act, t->activation, TENSOR_SHARDED, c->out.rows, n / 2);
	if (c->s->bench.config->gelu) return OP(c->s->bench.stream, geglu, &((struct geglu_args){.x = x, .out = out}), err);
	return OP(c->s->bench.stream, swiglu, &((struct swiglu_args){.x = x, .out = out}), err);
}

static enum status gdn_in(struct chain *c, int layer, struct error *err)
{
	const struct trial *t = &c->op[PART_QKVZ].trial;
	const struct linear_weight *both = &c->gdn_in.copy[layer % c->gdn_in.copies];
	const int n = c->op[PART_QKVZ].problem.linear.n, hidden = c->s->bench.config->hidden_size;
	const struct linear_weight qkvz = linear_view(c->s->bench.ops, both, 0, n), ba = linear_view(c->s->bench.ops, both, n, both->n - n);
	const struct gdn_in_args args = {.in = {.x = tensor_view(c->x, DTYPE_F32, TENSOR_REPLICATED, c->out.rows, hidden), .weight = c->norm, .eps = c->s->bench.config->rms_eps,
	                                        .h = tensor_view(c->h, t->activation, TENSOR_REPLICATED, c->out.rows, hidden)},
	                                 .qkvz = &qkvz, .ba = &ba, .out = tensor_view(c->gdn_in_out, t->activation, TENSOR_SHARDED, c->out.rows, both->n)};
	c->op[PART_QKVZ].calls++;
	c->op[PART_BA].calls++;
	return OP(c->s->bench.stream, gdn_in, &args, err);
}

/* A part, with the norm before it and SwiGLU behind it where its op does not make them. */
static enum status issue(struct chain *c, enum part p, int layer, struct error *err)
{
	struct chain_op *op = &c->op[p];
	bool plain = is_linear(op) && op->problem.linear.use == LINEAR_USE_PLAIN;
	if (!op->there) return STATUS_OK;
	if (c->gdn_in.copies && !c->apart && (p == PART_QKVZ || p == PART_BA)) return p == PART_QKVZ ? gdn_in(c, layer, err) : STATUS_OK;
	op->calls++;
	if (plain && (p == PART_QKV || p == PART_QKVZ || p == PART_GATE_UP || p >= PART_HEAD)) TRY(norm(c, err));
	if (p == PART_MOE && !c->s->bench.ops->moe_norms) TRY(norm(c, err));
	TRY(trial_issue(&op->trial, layer, err));
	return plain && p == PART_GATE_UP ? swiglu(c, err) : STATUS_OK;
}

static enum status walk(struct chain *c, struct error *err)
{
	const struct model_config *config = c->s->bench.config;
	for (int p = 0; p < PART_COUNT; p++) c->op[p].calls = 0;
	for (int layer = 0; layer < c->out.layers; layer++) {
		bool gdn = config->layer_kind[layer % config->layers] == LAYER_GDN;
		enum part first = gdn ? PART_QKVZ : PART_QKV, last = gdn ? PART_OUT : PART_O;
		for (int p = (int)first; p <= (int)last; p++) TRY(issue(c, (enum part)p, layer, err));
		const bool sparse = c->op[PART_MOE].there && config->moe.sparse[layer % config->layers];
		for (int p = sparse ? PART_MOE : PART_GATE_UP; p <= (sparse ? PART_MOE : PART_DOWN); p++) TRY(issue(c, (enum part)p, layer, err));
	}
	for (int p = PART_HEAD; p < PART_COUNT; p++) TRY(issue(c, (enum part)p, 0, err));
	return STATUS_OK;
}

/* ---- one chain: timing */

static enum status prefer(struct chain *c, const struct entry *entry, int count, struct error *err)
{
	struct linear_preference list[PART_COUNT] = {0};
	c->apart = false;
	for (int i = 0; i < count; i++) {
		c->apart |= entry[i].problem == c->op[PART_QKVZ].measured || entry[i].problem == c->op[PART_BA].measured;
		const struct linear_key key = entry[i].problem->linear;
		list[i] = (struct linear_preference){.key = key, .m_low = key.m, .m_high = key.m, .variant = entry[i].candidate->requested};
	}
	return c->s->bench.ops->linear_prefer(c->s->bench.stream, list, count, err);
}

static enum status record(struct chain *c, const struct entry *entry, int count, struct graph **out, struct error *err)
{
	const struct device_ops *ops = c->s->bench.ops;
	*out = NULL;
	TRY(prefer(c, entry, count, err));
	if (!ops->graph_begin) return STATUS_OK;
	TRY(ops->graph_begin(c->s->bench.stream, err));
	return device_graph_end(c->s->bench.stream, walk(c, err), out, err);
}

static enum status time_chain(struct chain *c, struct graph *graph, const struct entry *entry, int count, double *us, struct error *err)
{
	struct screen *s = c->s;
	if (graph) return candidate_time_graph(s, graph, us, err);
	TRY(prefer(c, entry, count, err));
	uint64_t start = clock_ns();
	TRY(walk(c, err));
	TRY(s->bench.ops->stream_sync(s->bench.stream, clock_deadline_ms((uint64_t)s->bench.timeout_ms), NULL, err));
	*us = (double)(clock_ns() - start) / 1e3;
	return STATUS_OK;
}

/* More pairs would not change what is said: the interval is far from 1 for its width, or all of it below `better`. */
static bool is_clear(const struct pairs *pairs, double better)
{
	struct result_timing t;
	if (pairs->count < PAIRS_LEAST) return false;
	pairs_summary(pairs, &t);
	const double half = t.high - t.speedup > t.speedup - t.low ? t.high - t.speedup : t.speedup - t.low;
	return t.high < better || t.speedup - 1 > CLEAR * half || 1 - t.speedup > CLEAR * half;
}

/* better: of another candidate's interval the lower end, or 0. */
static enum status time_pairs(struct chain *c, struct graph *graph, const struct entry *entry, int count, double better, struct error *err)
{
	struct screen *s = c->s;
	bool quick = s->options->quick;
	uint64_t start = clock_ns();
	s->pairs.count = 0;
	for (int i = -1; i < (quick ? QUICK_PAIRS_MOST : PAIRS_MOST); i++) { /* the first one warms up */
		double a[2], b[2];
		if (i >= (quick ? QUICK_PAIRS_LEAST : PAIRS_LEAST) && clock_seconds_since(start) > (quick ? QUICK_COMPARE_S : COMPARE_S)) break;
		if (is_clear(&s->pairs, better)) break;
		TRY(candidate_stopped(s, err));
		TRY(time_chain(c, c->defaults, NULL, 0, &a[0], err));
		TRY(time_chain(c, graph, entry, count, &b[0], err));
		TRY(time_chain(c, graph, entry, count, &b[1], err));
		TRY(time_chain(c, c->defaults, NULL, 0, &a[1], err));
		if (i >= 0) pairs_add(&s->pairs, a[0] + a[1], b[0] + b[1]);
	}
	return STATUS_OK;
}

/* The chain with these preferred against that of defaults. */
static enum status compare(struct chain *c, const struct entry *entry, int count, double better, struct result_timing *out, struct error *err)
{
	struct graph *graph = NULL;
	enum status st = record(c, entry, count, &graph, err);
	if (st == STATUS_OK) st = time_pairs(c, graph, entry, count, better, err);
	if (graph) c->s->bench.ops->graph_destroy(graph);
	if (st != STATUS_OK) return st;
	pairs_summary(&c->s->pairs, out);
	out->steady = out->low > 1 || out->high < 1;
	return STATUS_OK;
}

/* ---- what is confirmed */

static enum status report(struct chain *c, const struct result_problem *p, int candidate, int candidates, struct error *err)
{
	const struct screen *s = c->s;
	const struct screen_options *o = s->options;
	struct screen_progress progress = {.problems = s->results->problems, .done = s->results->problems, .candidates = candidates, .candidate = candidate, .problem = p,
	                                   .world_size = c->out.world_size, .seconds = clock_seconds_since(s->started_ns), .measured = s->measured,
	                                   .chain_seconds = clock_seconds_since(s->chains_ns), .chains_measured = s->chains_measured};
	chain_count(s->results, &progress.chains, &progress.chains_done);
	if (o->progress) o->progress(o->context, &progress);
	return candidate_stopped(s, err);
}

static int calls_of(const struct chain *c, const struct result_problem *p)
{
	int calls = 0;
	for (int i = 0; i < PART_COUNT; i++)
		if (c->op[i].measured == p) calls += c->op[i].calls;
	return calls ? calls : 1;
}

/* What this chain says of a candidate. Of several degrees' that of the least gain stays. */
static void judge(struct chain *c, struct entry *e, const struct result_timing *t)
{
	struct result_confirm *confirm = &e->candidate->confirm;
	bool first = confirm->outcome != OUTCOME_KEEP, faster = t->low > 1;
	e->gain_us = t->baseline_us - t->us;
	if (first || !faster || t->speedup < confirm->timing.speedup) {
		confirm->timing = *t;
		confirm->world_size = c->out.world_size;
		confirm->gain_us = e->gain_us / calls_of(c, e->problem);
	}
	confirm->outcome = faster ? OUTCOME_KEEP : t->high < 1 ? OUTCOME_REJECT : OUTCOME_BOUNDARY;
	if (!faster) snprintf(confirm->detail, sizeof confirm->detail, "TP%d chain of %d layers %.4fx (%.4f to %.4f)", c->out.world_size, c->out.layers, t->speedup, t->low, t->high);
}

/* A failure is the candidate's, as long as the chain of defaults still runs. */
static enum status failed(struct chain *c, struct entry *e, enum status st, const struct error *why, struct error *err)
{
	struct result_confirm *confirm = &e->candidate->confirm;
	double us;
	if (candidate_ends_run(st, why, err)) return st;
	*confirm = (struct result_confirm){.outcome = OUTCOME_REJECT, .world_size = c->out.world_size};
	snprintf(confirm->detail, sizeof confirm->detail, "in the chain: %.120s", why->text);
	st = time_chain(c, c->defaults, NULL, 0, &us, err);
	if (st != STATUS_OK) error_prefix(err, "after %s %.60s in the chain (%.80s) the defaults fail", e->candidate->requested.kernel, e->candidate->requested.mode, why->text);
	return st;
}

/* Confirmed, and another one gained more. */
static void surpass(struct result_candidate *c, const struct result_candidate *by)
{
	c->confirm.outcome = OUTCOME_BOUNDARY;
	snprintf(c->confirm.detail, sizeof c->confirm.detail, "%.4fx there, less than %s%s%.80s", c->confirm.timing.speedup, by->requested.kernel, by->requested.mode[0] ? " " : "",
	         by->requested.mode);
}

/* Of the candidates of one problem the one that gains most, if any is confirmed: that joins `entry`. */
static enum status confirm_problem(struct chain *c, struct result_problem *p, struct entry *entry, int *entries, struct error *err)
{
	struct result_candidate *list[CHAIN_CANDIDATES];
	const int count = candidates_of(c->s, p, list);
	struct entry best = {0};
	struct result_timing most = {0};
	for (int i = 0; i < count; i++) {
		struct entry e = {.problem = p, .candidate = list[i]};
		struct result_timing t;
		struct error why = {0};
		TRY(report(c, p, i, count, err));
		c->cut = candidate_out_of_budget(c->s);
		if (c->cut) break;
		enum status st = compare(c, &e, 1, most.low, &t, &why);
		if (st != STATUS_OK) {
			TRY(failed(c, &e, st, &why, err));
			continue;
		}
		judge(c, &e, &t);
		if (e.candidate->confirm.outcome != OUTCOME_KEEP) continue;
		if (best.candidate && t.speedup <= most.speedup) {
			surpass(e.candidate, best.candidate);
			continue;
		}
		if (best.candidate) surpass(best.candidate, e.candidate);
		best = e, most = t;
	}
	if (best.candidate) entry[(*entries)++] = best;
	return STATUS_OK;
}

static void drop(struct chain *c, struct entry *entry, int *entries, const struct result_timing *t)
{
	int least = 0;
	for (int i = 1; i < *entries; i++)
		if (entry[i].gain_us < entry[least].gain_us) least = i;
	struct result_confirm *confirm = &entry[least].candidate->confirm;
	confirm->outcome = OUTCOME_BOUNDARY;
	confirm->world_size = c->out.world_size;
	snprintf(confirm->detail, sizeof confirm->detail, "dropped: the TP%d chain with all %d is %.4fx (%.4f to %.4f), and this gained least", c->out.world_size, *entries,
	         t->speedup, t->low, t->high);
	entry[least] = entry[--*entries];
}

/* All that are confirmed together, less and less of them until they are faster. */
static enum status confirm_together(struct chain *c, struct entry *entry, int *entries, struct error *err)
{
	while (*entries && !c->cut) {
		TRY(report(c, entry[0].problem, 0, 1, err));
		TRY(compare(c, entry, *entries, 0, &c->out.timing, err));
		if (c->out.timing.low > 1) return STATUS_OK;
		drop(c, entry, entries, &c->out.timing);
		c->cut = *entries && candidate_out_of_budget(c->s);
	}
	return STATUS_OK;
}

/* The stream may still prefer the candidate of attention that was measured last. */
static enum status forget_attention(struct chain *c, struct error *err)
{
	const struct attention_preference none = {0};
	const struct device_ops *ops = c->s->bench.ops;
	return ops->attention_prefer ? ops->attention_prefer(c->s->bench.stream, &none, 0, err) : STATUS_OK;
}

static enum status measure(struct chain *c, struct error *err)
{
	struct entry entry[PART_COUNT];
	int entries = 0;
	bool asked[PART_COUNT], any = false; /* before anything is judged */
	for (int p = 0; p < PART_COUNT; p++) any |= asked[p] = has_candidates(c, p);
	if (!any) return STATUS_OK;
	for (int p = 0; p < PART_COUNT; p++)
		if (asked[p]) remember(c, c->op[p].measured);
	TRY(forget_attention(c, err));
	TRY(open_chain(c, err));
	TRY(record(c, NULL, 0, &c->defaults, err));
	for (int p = 0; p < PART_COUNT && !c->cut; p++)
		if (asked[p]) TRY(confirm_problem(c, c->op[p].measured, entry, &entries, err));
	TRY(confirm_together(c, entry, &entries, err));
	c->out.entries = entries;
	return STATUS_OK;
}

static enum status run_chain(struct screen *s, int world_size, int rows, bool *cut, struct error *err)
{
	struct shapes *shapes = mem_zalloc(1, sizeof *shapes, "prescreen: shapes", err);
	struct chain *c = mem_zalloc(1, sizeof *c, "prescreen: chain", err);
	enum status st = c && shapes ? STATUS_OK : STATUS_NO_MEMORY;
	if (st == STATUS_OK) {
		problems_shapes(shapes, NULL, s->bench.config, s->bench.ops, world_size);
		c->s = s;
		c->out = (struct result_chain){.world_size = world_size, .rows = rows, .context = context_of(s->options)};
		describe(c, shapes);
		st = measure(c, err);
		close_chain(c);
		candidate_forget(s);
		*cut = c->cut;
		if (st == STATUS_OK && !c->cut) st = results_add_chain(s->results, &c->out, err);
		if (st != STATUS_OK || c->cut) take_back(c);
	}
	free(c);
	free(shapes);
	return st;
}

enum status chain_run(struct screen *s, struct error *err)
{
	struct results *r = s->results;
	const struct screen_options *o = s->options;
	bool cut = false;
	s->chains_ns = clock_ns();
	for (int d = 0; d < r->degrees; d++) {
		int world_size = r->degree[d].world_size;
		for (int i = 0; r->degree[d].legal && i < r->problems; i++) {
			if (!opens_chain(r, i, world_size) || results_find_chain(r, world_size, r->problem[i].linear.m)) continue;
			if (candidate_out_of_budget(s)) return STATUS_OK;
			TRY(run_chain(s, world_size, r->problem[i].linear.m, &cut, err));
			if (cut) return STATUS_OK;
			s->chains_measured++;
			r->seconds = s->seconds_before + clock_seconds_since(s->started_ns);
			if (o->save) TRY(o->save(o->context, r, err));
		}
	}
	return STATUS_OK;
}
