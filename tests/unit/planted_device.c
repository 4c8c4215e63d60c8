#include "unit/planted_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define SLOW_US 200
#define FAST_US 50
#define LONE_US 20
#define LONE_CHAIN_US 500
#define PREFERENCES 16
#define GRAPH_CALLS 1024

struct planted_state planted;

static struct device_ops table;
static const struct device_ops *cpu;

static const struct variant variants[] = {
#define X(code, kernel_name, mode_name) {.kernel = kernel_name, .mode = mode_name},
	PLANTED_LIST(X)
#undef X
};

/* A call as it was recorded. */
struct call {
	bool attention;
	struct linear_args linear;
	struct sum_split split;
	struct attention_args attend;
	enum planted way;
	bool many;
};
struct graph {
	int calls;
	struct call call[GRAPH_CALLS];
};

static struct graph *recording;
static enum planted way; /* what the stream prefers for the last linear */
static struct linear_preference preferred[PREFERENCES];
static int preferences;
static int last_n, last_k; /* of the linear that ran last */
static bool dead;
static uint64_t virtual_ns; /* what recorded calls took: the machine may be busy, their times are not */

struct planted_event {
	struct event base;
	uint64_t ns;
};
static unsigned flips;

static void spend_us(unsigned us)
{
	virtual_ns += us * 1000u;
	if (!planted.eager) return;
	uint64_t end = clock_ns() + us * 1000u;
	while (clock_ns() < end) {
	}
}

static float *value(const struct linear_args *a, int64_t row, int64_t col)
{
	return (float *)a->y.data + row * a->y.row_stride + col;
}

static unsigned time_of(const struct linear_args *a, enum planted how, bool many)
{
	bool alone = a->weight->n == last_n && a->weight->k == last_k;
	last_n = a->weight->n;
	last_k = a->weight->k;
	if (how == PLANTED_LONE) return alone ? LONE_US : LONE_CHAIN_US;
	if (how == PLANTED_FAST && planted.jealous && many) return LONE_CHAIN_US;
	return how == PLANTED_FAST || how >= PLANTED_PART ? FAST_US : SLOW_US;
}

static enum status compute(struct stream *stream, const struct linear_args *a, enum planted how, bool many, struct error *err)
{
	float *last = value(a, a->y.rows - 1, a->y.cols - 1), kept = *last;
	planted.launched[how]++;
	if (dead) return FAIL(err, DEVICE_FAULT, "the device is gone");
	if (how == PLANTED_LAUNCH) {
		dead = planted.dies;
		return FAIL(err, DEVICE_FAULT, "launch of illegal: invalid configuration");
	}
	spend_us(time_of(a, how, many) + planted.slow_us);
	TRY(cpu->ops.linear(stream, a, err));
	if (how == PLANTED_PART) *last = kept;
	if (how == PLANTED_SPILL) last[1] = 1;
	if (how == PLANTED_NAN) *value(a, 0, 0) = f32_from_bits(0x7fc00000);
	if (how == PLANTED_RACY) *last = f32_from_bits(f32_to_bits(*last) ^ (flips++ & 1));
	for (int64_t r = 0; how == PLANTED_WRONG && r < a->y.rows; r++)
		for (int64_t c = 0; c < a->y.cols; c++) *value(a, r, c) *= 1.02f;
	return STATUS_OK;
}

/* What is preferred for this shape. */
static enum planted way_of(const struct linear_args *a)
{
	for (int i = 0; i < preferences; i++) {
		const struct linear_preference *p = &preferred[i];
		if (p->key.n != a->weight->n || p->key.k != a->weight->k || a->x.rows < p->m_low || a->x.rows > p->m_high) continue;
		for (int v = 0; v < PLANTED_COUNT; v++)
			if (strcmp(variants[v].kernel, p->variant.kernel) == 0 && strcmp(variants[v].mode, p->variant.mode) == 0) return (enum planted)v;
	}
	return PLANTED_DEFAULT;
}

static enum status planted_linear(struct stream *stream, const struct linear_args *args, struct error *err)
{
	way = way_of(args);
	if (!recording) return compute(stream, args, way, preferences > 1, err);
	if (way == PLANTED_RECORD) return FAIL(err, UNSUPPORTED, "illegal: 2048 threads, a block has at most 1024");
	if (recording->calls == GRAPH_CALLS) return FAIL(err, NO_ROOM, "graph: %d calls", GRAPH_CALLS);
	struct call *c = &recording->call[recording->calls++];
	*c = (struct call){.linear = *args, .way = way, .many = preferences > 1};
	if (args->split) c->split = *args->split;
	return STATUS_OK;
}

static enum status planted_attention(struct stream *stream, const struct attention_args *args, struct error *err)
{
	if (!recording) return cpu->ops.attention(stream, args, err);
	recording->call[recording->calls++] = (struct call){.attention = true, .attend = *args};
	return STATUS_OK;
}

static enum status planted_open(struct device **out, const struct device_options *options, struct error *err)
{
	TRY(cpu->open(out, options, err));
	(*out)->vt = &table;
	return STATUS_OK;
}

static void planted_limits(const struct device *device, struct device_limits *out)
{
	(void)device;
	*out = (struct device_limits){.wave = 32, .max_threads = 1024, .shared_bytes = 49152, .compute_units = 8, .cache_bytes = 1 << 16};
}

static int planted_variants(struct stream *stream, const struct linear_key *key, struct variant *out, int max)
{
	(void)stream, (void)key;
	int count = PLANTED_COUNT < max ? PLANTED_COUNT : max;
	memcpy(out, variants, (size_t)count * sizeof *out);
	return count;
}

static enum status planted_prefer(struct stream *stream, const struct linear_preference *list, int count, struct error *err)
{
	(void)stream;
	preferences = 0;
	for (int i = 0; i < count; i++) {
		if (strcmp(list[i].variant.kernel, variants[PLANTED_ABSENT].kernel) == 0) return FAIL(err, BAD_INPUT, "variant absent '8': this back end has no such kernel");
		if (i == PREFERENCES) return FAIL(err, BAD_INPUT, "%d preferences, at most %d", count, PREFERENCES);
		preferred[i] = list[i];
	}
	preferences = count;
	return STATUS_OK;
}

static void planted_ran(const struct stream *stream, struct variant *out)
{
	(void)stream;
	*out = variants[way];
	if (way == PLANTED_FALLS) snprintf(out->mode, sizeof out->mode, "4");
	if (way == PLANTED_SAME && planted.eager) *out = variants[PLANTED_DEFAULT];
}

static enum status planted_begin(struct stream *stream, struct error *err)
{
	(void)stream;
	recording = calloc(1, sizeof *recording);
	return recording ? STATUS_OK : FAIL(err, NO_MEMORY, "graph: no memory");
}

static enum status planted_end(struct stream *stream, struct graph **out, struct error *err)
{
	(void)stream, (void)err;
	*out = recording;
	recording = NULL;
	return STATUS_OK;
}

static enum status planted_launch(struct graph *graph, struct stream *stream, struct error *err)
{
	for (int i = 0; i < graph->calls; i++) {
		struct call *c = &graph->call[i];
		if (c->linear.split) c->linear.split = &c->split;
		virtual_ns += c->attention ? 1000 : 0;
		TRY(c->attention ? cpu->ops.attention(stream, &c->attend, err) : compute(stream, &c->linear, c->way, c->many, err));
	}
	return STATUS_OK;
}

static enum status planted_event(struct device *device, struct event **out, struct error *err)
{
	struct planted_event *event = calloc(1, sizeof *event);
	*out = &event->base;
	if (!event) return FAIL(err, NO_MEMORY, "event: no memory");
	event->base.vt = device->vt;
	return STATUS_OK;
}

static enum status planted_event_record(struct event *event, struct stream *stream, struct error *err)
{
	(void)stream, (void)err;
	((struct planted_event *)event)->ns = virtual_ns;
	return STATUS_OK;
}

static enum status planted_elapsed(const struct event *from, const struct event *to, float *ms, struct error *err)
{
	(void)err;
	*ms = (float)((double)(((const struct planted_event *)to)->ns - ((const struct planted_event *)from)->ns) / 1e6);
	return STATUS_OK;
}

static void planted_event_destroy(struct event *event)
{
	free(event);
}

static void planted_destroy(struct graph *graph)
{
	free(graph);
}

static enum status planted_kernels(struct graph *graph, struct kernel_launch *out, int max, int *count, struct error *err)
{
	(void)err;
	*count = graph->calls;
	for (int i = 0; i < graph->calls && i < max; i++) {
		const struct call *c = &graph->call[i];
		out[i] = (struct kernel_launch){.grid = {c->attention ? 1u : (unsigned)(c->linear.y.cols + 31) / 32, 1, 1}, .block = {256, 1, 1}};
		snprintf(out[i].name, sizeof out[i].name, "%.20s_kernel", c->attention ? "attention" : variants[c->way == PLANTED_SAME ? PLANTED_DEFAULT : c->way].kernel);
	}
	return STATUS_OK;
}

const struct device_ops *planted_ops(struct planted_state state)
{
	cpu = device_find("cpu");
	planted = state;
	dead = false;
	way = PLANTED_DEFAULT;
	preferences = last_n = last_k = 0;
	table = *cpu;
	table.name = "planted";
	table.open = planted_open;
	table.limits = planted_limits;
	table.ops.linear = planted_linear;
	table.ops.attention = planted_attention;
	table.linear_variants = planted_variants;
	table.linear_prefer = planted_prefer;
	table.linear_ran = planted_ran;
	if (state.eager) return &table;
	table.event_create = planted_event;
	table.event_record = planted_event_record;
	table.event_elapsed_ms = planted_elapsed;
	table.event_destroy = planted_event_destroy;
	table.graph_begin = planted_begin;
	table.graph_end = planted_end;
	table.graph_launch = planted_launch;
	table.graph_destroy = planted_destroy;
	table.graph_kernels = state.no_kernels ? NULL : planted_kernels;
	return &table;
}
