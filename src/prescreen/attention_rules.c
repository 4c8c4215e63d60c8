#include "prescreen/attention_rules.h"

/* What the kernels' sources say (src/device/gpu/attention*.cu); tests/gpu/check_prescreen.c and tests/unit/test_attention_rules.c hold it. */
#define GROUP_KEYS 16  /* keys that lie together whatever a block has */
#define MAX_HEAD 256
#define MAX_SPLITS 32
#define DECODE_HEADS 4 /* of a block */
#define DECODE_THREADS 128
#define TENSOR_HEADS 8
#define TENSOR_WAVES 12      /* of a block at most */
#define TENSOR_WIDE_WAVES 8  /* the same of heads above 128, whose queries lie in shared memory */
#define WIDE_ROWS 128
#define WIDE_THREADS 384
#define PREFILL_ROWS 64
#define PREFILL_THREADS 128
#define TILE_ROWS 16
#define TILE_KEYS 32
#define TILE_THREADS 128

struct family {
	bool prefill, half_only;
	bool capped;     /* knows of soft caps */
	int head_step;   /* head_dim is a multiple of this */
	int sm_least;    /* 0: any device */
	bool sm_exactly; /* no later one either */
	const char *needs;
};

static const struct family families[ATTENTION_COUNT] = {
	[ATTENTION_DECODE] = {.capped = true, .head_step = 16},
	[ATTENTION_DECODE_TENSOR] = {.half_only = true, .head_step = 16, .sm_least = 90, .needs = "clusters of blocks"},
	[ATTENTION_PREFILL_WIDE] = {.prefill = true, .half_only = true, .head_step = 16, .sm_least = 90, .sm_exactly = true, .needs = "warpgroup products"},
	[ATTENTION_PREFILL_TENSOR] = {.prefill = true, .half_only = true, .capped = true, .head_step = 16, .sm_least = 80, .needs = "mma.sync and asynchronous copies"},
	[ATTENTION_TILE] = {.prefill = true, .capped = true, .head_step = 16},
};

struct launch {
	int threads; /* of a block */
	int heads;   /* query heads that a block has, of one KV head */
	int64_t shared;
};

struct subject {
	const struct target *target;
	enum attention_id id;
	const struct family *family;
	const struct attention_shape *shape;
	int group; /* query heads of a KV head */
	struct launch launch;
};

const char *attention_name(enum attention_id id)
{
	static const char *const names[] = {
#define X(code, name) name,
		ATTENTION_LIST(X)
#undef X
	};
	return names[id];
}

/* ---- what a launch asks for */

/* head_dim rounded up to one of the kernel's instances. */
static int round_up(int head_dim, const int *instances)
{
	while (*instances < head_dim && instances[1]) instances++;
	return *instances;
}

static int64_t aligned(int64_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* Queries, each wave's sums, their maxima and weights, factors of splits, and a flag. */
static struct launch decode_launch_of(const struct subject *s)
{
	static const int instances[] = {64, 128, 256, 0};
	const int64_t width = round_up(s->shape->head_dim, instances), heads = s->group == 1 ? 1 : DECODE_HEADS, waves = DECODE_THREADS / s->target->wave;
	const int64_t shared = aligned(heads * width * 4) + aligned(waves * heads * width * 4) + aligned(waves * heads * 8) + aligned(heads * (MAX_SPLITS + 1) * 4) + aligned(4);
	return (struct launch){.threads = DECODE_THREADS, .heads = (int)least((int)heads, s->group), .shared = shared};
}

/* Its largest cut. */
static struct launch tensor_launch_of(const struct subject *s)
{
	static const int instances[] = {64, 128, 256, 0};
	const int64_t dim = round_up(s->shape->head_dim, instances), waves = dim > 128 ? TENSOR_WIDE_WAVES : TENSOR_WAVES, heads = least(s->group, TENSOR_HEADS);
	const int64_t queries = dim > 128 ? waves * TENSOR_HEADS * dim * 2 : 0;
	const int64_t shared = (waves * heads * (dim + 4) + TENSOR_HEADS * dim * 3 / 2 + waves * TENSOR_HEADS * 2) * 4 + queries;
	return (struct launch){.threads = (int)waves * 32, .heads = (int)heads, .shared = shared};
}

static struct launch wide_launch_of(const struct subject *s)
{
	static const int instances[] = {64, 128, 192, 256, 0};
	const int64_t dim = round_up(s->shape->head_dim, instances), keys = dim > 192 ? 80 : dim > 128 ? 96 : 128, stages = dim > 128 ? 2 : 3;
	return (struct launch){.threads = WIDE_THREADS, .heads = 1, .shared = WIDE_ROWS * dim * 2 + 2 * stages * keys * dim * 2 + 8 * (1 + 4 * stages) + 1024};
}

static struct launch prefill_launch_of(const struct subject *s)
{
	static const int instances[] = {64, 96, 128, 192, 256, 0};
	const int64_t dim = round_up(s->shape->head_dim, instances), keys = dim > 192 ? 32 : 64, stride = dim + 8;
	return (struct launch){.threads = PREFILL_THREADS, .heads = 1, .shared = (4 * keys * stride + (dim > 128 ? PREFILL_ROWS * stride : 0)) * 2};
}

/* Queries, keys or values, weights and factors; positions and totals besides. */
static struct launch tile_launch_of(const struct subject *s)
{
	const int64_t floats = (TILE_ROWS + TILE_KEYS) * ((int64_t)s->shape->head_dim + 4) + TILE_ROWS * TILE_KEYS + TILE_ROWS;
	return (struct launch){.threads = TILE_THREADS, .heads = 1, .shared = floats * 4 + 2 * TILE_ROWS * 4};
}

static struct launch launch_of(const struct subject *s)
{
	switch (s->id) {
	case ATTENTION_DECODE: return decode_launch_of(s);
	case ATTENTION_DECODE_TENSOR: return tensor_launch_of(s);
	case ATTENTION_PREFILL_WIDE: return wide_launch_of(s);
	case ATTENTION_PREFILL_TENSOR: return prefill_launch_of(s);
	case ATTENTION_TILE: return tile_launch_of(s);
	case ATTENTION_COUNT: break;
	}
	return (struct launch){0};
}

/* ---- rules */

static enum verdict_kind rule_BUILD(const struct subject *s, char *detail)
{
	if (s->target->attention & 1u << s->id) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%s: not in the build for %s", attention_name(s->id), s->target->name);
}

static enum verdict_kind rule_PHASE(const struct subject *s, char *detail)
{
	if (s->family->prefill == s->shape->prefill) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "it takes sequences of %s", s->family->prefill ? "several rows" : "one row");
}

static enum verdict_kind rule_DTYPE(const struct subject *s, char *detail)
{
	const enum dtype t = s->shape->dtype;
	if (t == DTYPE_F16 || t == DTYPE_BF16 || (!s->family->half_only && dtype_is_plain(t))) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "a cache of %s is neither F16 nor BF16%s", dtype_name(t), s->family->half_only ? "" : " nor F32");
}

static enum verdict_kind rule_GROUP(const struct subject *s, char *detail)
{
	const struct attention_shape *a = s->shape;
	if (a->kv_heads >= 1 && a->q_heads >= a->kv_heads && a->q_heads % a->kv_heads == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%d query heads over %d KV heads: no whole group each", a->q_heads, a->kv_heads);
}

static enum verdict_kind rule_HEAD_DIM(const struct subject *s, char *detail)
{
	const int d = s->shape->head_dim;
	if (d > MAX_HEAD) return verdict_say(detail, VERDICT_ILLEGAL, "%d > %d", d, MAX_HEAD);
	if (d >= s->family->head_step && d % s->family->head_step == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%d is no multiple of %d", d, s->family->head_step);
}

static enum verdict_kind rule_BLOCK_TOKENS(const struct subject *s, char *detail)
{
	const int tokens = s->shape->block_tokens;
	if (tokens >= GROUP_KEYS && tokens % GROUP_KEYS == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "blocks of %d tokens are no multiple of %d", tokens, GROUP_KEYS);
}

static enum verdict_kind rule_SOFTCAP(const struct subject *s, char *detail)
{
	if (s->shape->softcap <= 0 || s->family->capped) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "scores are capped at %g, which it cannot do", s->shape->softcap);
}

static enum verdict_kind rule_ARCH(const struct subject *s, char *detail)
{
	const int sm = s->target->sm, want = s->family->sm_least;
	if (!want) return VERDICT_LEGAL;
	if (sm == TARGET_UNKNOWN) return verdict_say(detail, VERDICT_UNKNOWN, "%s: of sm %d%s; the device's is not known", s->family->needs, want, s->family->sm_exactly ? "" : " on");
	if (sm == want || (sm > want && !s->family->sm_exactly)) return VERDICT_LEGAL;
	if (!sm) return verdict_say(detail, VERDICT_ILLEGAL, "%s: the device has none", s->family->needs);
	return verdict_say(detail, VERDICT_ILLEGAL, "%s: sm %d %s %d", s->family->needs, sm, s->family->sm_exactly ? "is not" : "<", want);
}

static enum verdict_kind rule_THREADS(const struct subject *s, char *detail)
{
	if (s->target->max_threads == TARGET_UNKNOWN) return verdict_say(detail, VERDICT_UNKNOWN, "%d of a limit not known", s->launch.threads);
	if (s->launch.threads <= s->target->max_threads) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%d > %d", s->launch.threads, s->target->max_threads);
}

/* Fragments of tensor-core products are laid out for 32 lanes. The others shuffle within 32 or 64. */
static enum verdict_kind rule_WAVE(const struct subject *s, char *detail)
{
	const int wave = s->target->wave;
	if (wave == 32 || (wave == 64 && !s->family->sm_least)) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%d lanes; it is made for 32%s", wave, s->family->sm_least ? "" : " or 64");
}

static enum verdict_kind rule_SHARED(const struct subject *s, char *detail)
{
	const struct target *t = s->target;
	const long long bytes = s->launch.shared;
	const bool known = t->shared_bytes != TARGET_UNKNOWN;
	if (bytes <= (known ? t->shared_bytes : t->shared_floor)) return VERDICT_LEGAL;
	if (known) return verdict_say(detail, VERDICT_ILLEGAL, "%lld > %lld bytes", bytes, (long long)t->shared_bytes);
	return verdict_say(detail, VERDICT_UNKNOWN, "%lld bytes of a limit not known", bytes);
}

static const struct {
	const char *name;
	enum verdict_kind (*check)(const struct subject *s, char *detail);
} rules[] = {
#define X(code, name) {name, rule_##code},
	ATTENTION_RULE_LIST(X)
#undef X
};

static void say_legal(struct verdict *out, const struct subject *s)
{
	const int slices = (s->group + s->launch.heads - 1) / s->launch.heads;
	*out = (struct verdict){.kind = VERDICT_LEGAL, .rule = "all"};
	verdict_say(out->detail, VERDICT_LEGAL, "group of %d in %d slice%s, head_dim %d, %d of %d threads, %lld bytes shared", s->group, slices, slices == 1 ? "" : "s",
	            s->shape->head_dim, s->launch.threads, s->target->max_threads, (long long)s->launch.shared);
}

void attention_judge(struct verdict *out, const struct target *target, enum attention_id id, const struct attention_shape *shape)
{
	struct subject s = {.target = target, .id = id, .family = &families[id], .shape = shape, .group = shape->kv_heads > 0 ? shape->q_heads / shape->kv_heads : 0};
	struct verdict first = {0};
	if (s.group < 1) s.group = 1; /* refused by its rule */
	s.launch = launch_of(&s);
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		struct verdict v = {.rule = rules[i].name};
		v.kind = rules[i].check(&s, v.detail);
		if (verdict_decides(&first, &v)) break;
	}
	if (first.rule) *out = first;
	else say_legal(out, &s);
}
