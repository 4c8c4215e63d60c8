#include "prescreen/kernels.h"

#include <stdarg.h>
#include <stdio.h>

/* Modes of LLMM1 are the instantiations that its dispatcher names; those of gemv_strided are the pairs that have been used on gfx936 for this
 * model family: (4, 640), (2, 640), (1, 1024) and (4, 256). wvSplitK's block is (64, 16) threads. */
static const struct kernel_family families[KERNEL_COUNT] = {
	[KERNEL_LLMM1] = {.id = KERNEL_LLMM1, .modes = 4, .mode = {{2, 0}, {4, 0}, {8, 0}, {16, 0}}, .max_m = 1, .reduction_waves = 16, .half_only = true},
	[KERNEL_LLMM1_DISPATCHED] = {.id = KERNEL_LLMM1_DISPATCHED, .modes = 1, .mode = {{4, 0}}, .max_m = 1, .reduction_waves = 16, .half_only = true},
	[KERNEL_WVSPLITK] = {.id = KERNEL_WVSPLITK, .modes = 1, .mode = {{0, 1024}}, .max_m = 4, .tail_guarded = true, .half_only = true},
	[KERNEL_GEMV_LLMM1] = {.id = KERNEL_GEMV_LLMM1, .modes = 4, .mode = {{2, 0}, {4, 0}, {8, 0}, {16, 0}}, .max_m = 1, .reduction_waves = 32,
	                       .tail_guarded = true, .half_only = true},
	[KERNEL_GEMV_STRIDED] = {.id = KERNEL_GEMV_STRIDED, .modes = 4, .mode = {{4, 640}, {2, 640}, {1, 1024}, {4, 256}}, .max_m = 1, .reduction_waves = 32,
	                         .tail_guarded = true, .half_only = true},
	[KERNEL_LINEAR] = {.id = KERNEL_LINEAR, .modes = 1, .tail_guarded = true},
};

#define WVSPLITK_SHARED 65536 /* declared whatever the shape */
#define CHUNK 8               /* elements that a thread loads at once */
#define LLMM1_LANES 16        /* a row's sum is finished by so many lanes; so a block has at least this many threads a row */

const char *verdict_name(enum verdict_kind kind)
{
	static const char *const names[] = {"legal", "illegal", "unknown"};
	return names[kind];
}

enum verdict_kind verdict_say(char *detail, enum verdict_kind kind, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(detail, VERDICT_DETAIL_BYTES, format, args);
	va_end(args);
	return kind;
}

bool verdict_decides(struct verdict *first, const struct verdict *next)
{
	if (next->kind == VERDICT_LEGAL || (next->kind == VERDICT_UNKNOWN && first->rule)) return false;
	*first = *next;
	return next->kind == VERDICT_ILLEGAL;
}

const struct kernel_family *kernel_family(enum kernel_id id)
{
	return &families[id];
}

const char *kernel_mode_name(const struct kernel_mode *mode, char text[32])
{
	if (!mode->rows) text[0] = 0;
	else if (!mode->threads) snprintf(text, 32, "%d", mode->rows);
	else snprintf(text, 32, "%d rows, %d threads", mode->rows, mode->threads);
	return text;
}

/* What a launch would ask of the device. */
struct launch {
	int64_t threads; /* of a block; 0: the kernel's own business */
	int64_t waves;
	int64_t shared; /* bytes of a block */
};

struct subject {
	const struct target *target;
	const struct kernel_family *family;
	struct kernel_mode mode;
	const struct linear_shape *shape;
	struct launch launch;
};

static int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static struct launch launch_of(const struct subject *s)
{
	struct launch l = {0};
	int64_t wave = s->target->wave, rows = s->mode.rows;
	switch (s->family->id) {
	case KERNEL_LLMM1:
	case KERNEL_LLMM1_DISPATCHED:
	case KERNEL_GEMV_LLMM1:
		l.threads = ceil_div(s->shape->k / CHUNK, wave) * wave;
		if (l.threads < rows * LLMM1_LANES) l.threads = rows * LLMM1_LANES;
		l.shared = rows * wave * 4;
		break;
	case KERNEL_GEMV_STRIDED:
		l.threads = s->mode.threads;
		l.shared = rows * ceil_div(l.threads, wave) * 4;
		break;
	case KERNEL_WVSPLITK:
		l.threads = s->mode.threads;
		l.shared = WVSPLITK_SHARED;
		break;
	case KERNEL_LINEAR:
	case KERNEL_COUNT: break;
	}
	l.waves = ceil_div(l.threads, wave);
	return l;
}

static enum verdict_kind rule_BUILD(const struct subject *s, char *detail)
{
	if (s->target->kernels & 1u << s->family->id) return VERDICT_LEGAL;
	bool stub = s->family->id == KERNEL_WVSPLITK && s->target->kernels & 1u << KERNEL_LLMM1;
	return verdict_say(detail, VERDICT_ILLEGAL, stub ? "%s: an assert(false) stub on %s" : "%s: not in the build for %s", kernel_name(s->family->id), s->target->name);
}

static enum verdict_kind rule_DTYPE(const struct subject *s, char *detail)
{
	enum dtype t = s->shape->dtype;
	if (!s->family->half_only || t == DTYPE_F16 || t == DTYPE_BF16) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%s is neither F16 nor BF16", dtype_name(t));
}

static enum verdict_kind rule_MODE(const struct subject *s, char *detail)
{
	char text[32], all[96] = "";
	size_t used = 0;
	for (int i = 0; i < s->family->modes; i++) {
		const struct kernel_mode *mode = &s->family->mode[i];
		if (mode->rows == s->mode.rows && mode->threads == s->mode.threads) return VERDICT_LEGAL;
		int n = snprintf(all + used, sizeof all - used, mode->threads ? "%s(%d, %d)" : "%s%d", used ? ", " : "", mode->rows, mode->threads);
		used += n > 0 && (size_t)n < sizeof all - used ? (size_t)n : 0;
	}
	bool upstream = s->family->id == KERNEL_LLMM1 || s->family->id == KERNEL_LLMM1_DISPATCHED;
	return verdict_say(detail, VERDICT_ILLEGAL, "%s is none of %s%s", kernel_mode_name(&s->mode, text), all, upstream ? "; it falls to the default branch, kernel<4>" : "");
}

static enum verdict_kind rule_ROWS(const struct subject *s, char *detail)
{
	if (!s->family->max_m || s->shape->m <= s->family->max_m) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "M %d > %d", s->shape->m, s->family->max_m);
}

static enum verdict_kind rule_K8(const struct subject *s, char *detail)
{
	if (s->family->id == KERNEL_LINEAR || s->shape->k % CHUNK == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "K %lld %% 8 = %lld: inputs never read", (long long)s->shape->k, (long long)(s->shape->k % CHUNK));
}

/* Of every row of the weights, given an aligned first one. */
static enum verdict_kind rule_ALIGNMENT(const struct subject *s, char *detail)
{
	if (s->family->id == KERNEL_LINEAR) return VERDICT_LEGAL;
	int64_t bytes = s->shape->k * (int64_t)dtype_bytes(s->shape->dtype);
	if (bytes % s->target->align_bytes == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "a row of %lld bytes is no multiple of %d", (long long)bytes, s->target->align_bytes);
}

static enum verdict_kind rule_THREADS(const struct subject *s, char *detail)
{
	if (!s->launch.threads) return VERDICT_LEGAL;
	long long threads = s->launch.threads;
	if (s->target->max_threads == TARGET_UNKNOWN) return verdict_say(detail, VERDICT_UNKNOWN, "%lld of a limit not known", threads);
	if (threads <= s->target->max_threads) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%lld > %d", threads, s->target->max_threads);
}

/* A wave that is not full would shuffle with lanes that do not exist. */
static enum verdict_kind rule_WAVE(const struct subject *s, char *detail)
{
	if (s->family->id == KERNEL_LINEAR || s->launch.threads % s->target->wave == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%lld threads are no multiple of %d", (long long)s->launch.threads, s->target->wave);
}

static enum verdict_kind rule_REDUCTION(const struct subject *s, char *detail)
{
	if (!s->family->reduction_waves || s->launch.waves <= s->family->reduction_waves) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "%lld waves > %d: partial sums are dropped", (long long)s->launch.waves, s->family->reduction_waves);
}

static enum verdict_kind rule_SHARED(const struct subject *s, char *detail)
{
	const struct target *t = s->target;
	long long bytes = s->launch.shared;
	bool known = t->shared_bytes != TARGET_UNKNOWN;
	if (bytes <= (known ? t->shared_bytes : t->shared_floor)) return VERDICT_LEGAL;
	if (known) return verdict_say(detail, VERDICT_ILLEGAL, "%lld > %lld bytes", bytes, (long long)t->shared_bytes);
	return verdict_say(detail, VERDICT_UNKNOWN, "%lld bytes of a limit not known", bytes);
}

static enum verdict_kind rule_TAIL(const struct subject *s, char *detail)
{
	if (s->family->tail_guarded || !s->mode.rows || s->shape->n % s->mode.rows == 0) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_ILLEGAL, "N %lld %% %d: the last %lld rows are never written", (long long)s->shape->n, s->mode.rows,
	                   (long long)(s->shape->n % s->mode.rows));
}

/* wvSplitK's grid is the count of compute units, and which of its forms runs depends on it. */
static enum verdict_kind rule_UNITS(const struct subject *s, char *detail)
{
	if (s->family->id != KERNEL_WVSPLITK || s->target->compute_units != TARGET_UNKNOWN) return VERDICT_LEGAL;
	return verdict_say(detail, VERDICT_UNKNOWN, "grid and rows a wave follow their count, which is not known");
}

static enum verdict_kind rule_GUARD(const struct subject *s, char *detail)
{
	char why[VERDICT_DETAIL_BYTES];
	if (s->family->id != KERNEL_LLMM1_DISPATCHED) return VERDICT_LEGAL;
	enum kernel_id branch = kernel_dispatch(s->target, s->shape, why);
	if (branch == KERNEL_LLMM1) return VERDICT_LEGAL;
	if (branch == KERNEL_COUNT) return verdict_say(detail, VERDICT_UNKNOWN, "%s", why);
	return verdict_say(detail, VERDICT_ILLEGAL, "%s is reached: %.100s", kernel_name(branch), why);
}

static const struct {
	const char *name;
	enum verdict_kind (*check)(const struct subject *s, char *detail);
} rules[] = {
#define X(code, name) {name, rule_##code},
	RULE_LIST(X)
#undef X
};

static void say_legal(struct verdict *out, const struct subject *s)
{
	*out = (struct verdict){.kind = VERDICT_LEGAL, .rule = "all"};
	if (!s->launch.threads) return;
	long long blocks = s->mode.rows ? ceil_div(s->shape->n, s->mode.rows) : s->target->compute_units;
	verdict_say(out->detail, VERDICT_LEGAL, "%lld of %d threads, %lld bytes shared, %lld blocks", (long long)s->launch.threads, s->target->max_threads,
	            (long long)s->launch.shared, blocks);
}

void kernel_judge(struct verdict *out, const struct target *target, enum kernel_id id, const struct kernel_mode *mode,
                  const struct linear_shape *shape)
{
	struct subject s = {.target = target, .family = &families[id], .mode = *mode, .shape = shape};
	struct verdict first = {0};
	s.launch = launch_of(&s);
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		struct verdict v = {.rule = rules[i].name};
		v.kind = rules[i].check(&s, v.detail);
		if (verdict_decides(&first, &v)) break;
	}
	if (first.rule) *out = first;
	else say_legal(out, &s);
}

enum kernel_id kernel_dispatch(const struct target *target, const struct linear_shape *shape, char why[VERDICT_DETAIL_BYTES])
{
	long long n = shape->n, k = shape->k;
	bool half = shape->dtype == DTYPE_F16 || shape->dtype == DTYPE_BF16;
	bool split = n > 8 && shape->m >= 1 && shape->m <= 4;
	const char *say_no = target->skinny == KNOWN_NO ? "the device is outside of its first guard" : !half ? "neither F16 nor BF16" : k % CHUNK ? "K % 8" : NULL;
	if (say_no) {
		verdict_say(why, VERDICT_LEGAL, "%s", say_no);
		return KERNEL_LINEAR;
	}
	if (target->skinny == KNOWN_NOT) {
		verdict_say(why, VERDICT_UNKNOWN, "is the device inside of the first guard? behind it, %s", split ? "wvSplitK comes first" : "LLMM1 or linear");
		return KERNEL_COUNT;
	}
	if (split) {
		verdict_say(why, VERDICT_LEGAL, "N %lld > 8 and M %d <= 4 come first", n, shape->m);
		return KERNEL_WVSPLITK;
	}
	if (n % 4 == 0 && shape->m == 1 && k <= 8192 && !shape->bias) {
		verdict_say(why, VERDICT_LEGAL, "N %lld, M 1, K %lld <= 8192, no bias", n, k);
		return KERNEL_LLMM1;
	}
	verdict_say(why, VERDICT_LEGAL, "no guard holds for N %lld, M %d, K %lld%s", n, shape->m, k, shape->bias ? ", bias" : "");
	return KERNEL_LINEAR;
}
