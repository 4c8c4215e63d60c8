#include "device/cpu/onednn.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* From the library's public C interface, the same in its versions 2 and 3: row-major C [m, n] = alpha A [m, k] B [k, n] + beta C, 0 for success. */
typedef int sgemm_fn(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc);
struct library_version {
	int major, minor, patch; /* the first of its members */
};
typedef const struct library_version *version_fn(void);
typedef void set_threads_fn(int threads);

struct onednn {
	void *library;
	sgemm_fn *sgemm;
	set_threads_fn *set_threads; /* of OpenMP, for the calling thread; NULL: it is built without */
	float *wide;                 /* [members][ONEDNN_STEP_K][ONEDNN_PANELS * PANEL] */
	char mode[32];
};

/* A function pointer by way of memcpy: ISO C has no conversion from void *. */
static bool symbol(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);
	memcpy(function, &found, sizeof found);
	return found != NULL;
}

enum status onednn_open(struct onednn **out, int members, struct error *err)
{
	static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
	struct onednn made = {0};
	version_fn *version;
	*out = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names && !made.library; i++) made.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!made.library) return STATUS_OK;
	if (!symbol(made.library, "dnnl_sgemm", &made.sgemm) || !symbol(made.library, "dnnl_version", &version)) {
		dlclose(made.library);
		return STATUS_OK;
	}
	(void)symbol(made.library, "omp_set_num_threads", &made.set_threads);
	snprintf(made.mode, sizeof made.mode, "sgemm %d.%d.%d", version()->major, version()->minor, version()->patch);
	made.wide = mem_zalloc_lines((size_t)members * ONEDNN_STEP_K * ONEDNN_PANELS * PANEL, sizeof *made.wide, "oneDNN's weights", err);
	*out = made.wide ? mem_zalloc(1, sizeof **out, "oneDNN", err) : NULL;
	if (*out) {
		**out = made;
		return STATUS_OK;
	}
	free(made.wide);
	dlclose(made.library);
	return STATUS_NO_MEMORY;
}

/* The library itself stays: its threads, and OpenMP's, may still be there. */
void onednn_close(struct onednn **onednn)
{
	if (!*onednn) return;
	free((*onednn)->wide);
	free(*onednn);
	*onednn = NULL;
}

const char *onednn_mode(const struct onednn *onednn)
{
	return onednn->mode;
}

/* One k-step of a panel, outputs in order. */
static void widen_step(float *out, enum dtype dtype, const char *step)
{
	uint16_t half[PANEL];
	if (dtype == DTYPE_F32) {
		memcpy(out, step, PANEL * sizeof *out);
		return;
	}
	memcpy(half, step, sizeof half);
	if (dtype == DTYPE_BF16)
		for (int j = 0; j < LANES; j++) {
			out[j] = bf16_to_f32(half[2 * j]); /* panel_slot */
			out[LANES + j] = bf16_to_f32(half[2 * j + 1]);
		}
	else
		for (int j = 0; j < PANEL; j++) out[j] = f16_to_f32(half[j]);
}

struct onednn_job {
	const struct onednn *onednn;
	const struct linear_args *args;
	const struct cpu_sum_plan *plan;
	_Atomic int failed; /* the library's code */
};

/* Inputs [k0, k0 + steps) of `panels` panels from `first` on: [steps][panels * PANEL]. */
static void widen(float *out, const struct linear_weight *w, int first, int panels, int k0, int steps)
{
	size_t step_bytes = PANEL * dtype_bytes(w->dtype);
	for (int p = 0; p < panels; p++) {
		const char *in = (const char *)w->data + ((size_t)(first + p) * (size_t)w->k + (size_t)k0) * step_bytes;
		for (int i = 0; i < steps; i++) widen_step(out + ((size_t)i * (size_t)panels + (size_t)p) * PANEL, w->dtype, in + (size_t)i * step_bytes);
	}
}

static void onednn_chunk(void *context, int chunk, int member)
{
	struct onednn_job *job = context;
	const struct linear_args *a = job->args;
	const struct linear_weight *w = a->weight;
	int panels = (w->n + PANEL - 1) / PANEL, first = chunk * ONEDNN_PANELS, count = panels - first < ONEDNN_PANELS ? panels - first : ONEDNN_PANELS;
	int n0 = first * PANEL, n = w->n - n0 < count * PANEL ? w->n - n0 : count * PANEL;
	float *wide = job->onednn->wide + (size_t)member * ONEDNN_STEP_K * ONEDNN_PANELS * PANEL;
	if (job->onednn->set_threads) job->onednn->set_threads(1); /* this team's threads share the work already */
	for (int s = 0; s < job->plan->spans; s++) {
		int from = job->plan->span[s].lo * job->plan->leaf_k, to = job->plan->span[s].hi * job->plan->leaf_k;
		float *y = cpu_row(&a->y, 0) + s * a->y.slot_stride + n0;
		for (int k = from; k < to; k += ONEDNN_STEP_K) {
			int steps = to - k < ONEDNN_STEP_K ? to - k : ONEDNN_STEP_K;
			widen(wide, w, first, count, k, steps);
			int code = job->onednn->sgemm('N', 'N', a->x.rows, n, steps, 1, cpu_row(&a->x, 0) + k, a->x.row_stride, wide, (int64_t)count * PANEL, k > from, y,
			                              a->y.row_stride);
			if (code) atomic_store(&job->failed, code);
		}
		for (int r = 0; a->bias && r < a->y.rows; r++)
			for (int i = 0; i < n; i++) y[r * a->y.row_stride + i] += a->bias[n0 + i];
	}
}

enum status onednn_linear(struct onednn *onednn, struct cpu_stream *stream, const struct linear_args *args, const struct cpu_sum_plan *plan, struct error *err)
{
	struct onednn_job job = {.onednn = onednn, .args = args, .plan = plan};
	int panels = (args->weight->n + PANEL - 1) / PANEL;
	team_run(cpu_team(&stream->base), (panels + ONEDNN_PANELS - 1) / ONEDNN_PANELS, onednn_chunk, &job);
	int failed = atomic_load(&job.failed);
	if (!failed) return STATUS_OK;
	return FAIL(err, DEVICE_FAULT, "oneDNN %s: status %d for %d rows of [%d,%d]", onednn->mode, failed, args->x.rows, args->weight->n, args->weight->k);
}
