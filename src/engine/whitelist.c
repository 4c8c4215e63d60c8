#include "engine/whitelist.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/plan.h"
#include "tandem.h"

#define MAX_ROWS (1 << 20)

void whitelist_fini(struct whitelist *w)
{
	free(w->shape);
	free(w->entry);
	*w = (struct whitelist){0};
}

/* Room for one more of `size` bytes behind `count`. */
static enum status grow(void **list, int count, int most, size_t size, const char *what, struct error *err)
{
	if (count == most) return FAIL(err, NO_ROOM, "whitelist: more than %d %s; measure fewer degrees or models at a time", most, what);
	if (count & (count - 1)) return STATUS_OK; /* grown at powers of two */
	return mem_grow(list, count ? 2 * (size_t)count : 1, size, what, err);
}

enum status whitelist_add_shape(struct whitelist *w, const struct whitelist_shape *shape, struct error *err)
{
	void *list = w->shape;
	TRY(grow(&list, w->shapes, WHITELIST_MAX_SHAPES, sizeof *shape, "shapes", err));
	w->shape = list;
	w->shape[w->shapes++] = *shape;
	return STATUS_OK;
}

enum status whitelist_add_entry(struct whitelist *w, const struct whitelist_entry *entry, struct error *err)
{
	void *list = w->entry;
	TRY(grow(&list, w->entries, WHITELIST_MAX_ENTRIES, sizeof *entry, "entries", err));
	w->entry = list;
	w->entry[w->entries++] = *entry;
	return STATUS_OK;
}

/* Printable, on one line, not empty unless it may be. */
static enum status check_text(const char *whose, const char *what, const char *text, bool may_be_empty, struct error *err)
{
	for (const unsigned char *at = (const unsigned char *)text; *at; at++)
		if (*at < 32 || *at == 127) return FAIL(err, BAD_INPUT, "%s: %s: has a control character; correct the file", whose, what);
	if (!*text && !may_be_empty) return FAIL(err, BAD_INPUT, "%s: %s: is empty; correct the file", whose, what);
	return STATUS_OK;
}

static enum status check_entry(const struct whitelist *w, int i, const char *whose, struct error *err)
{
	const struct whitelist_entry *e = &w->entry[i];
	const struct linear_preference *p = &e->prefer;
	char what[32];
	snprintf(what, sizeof what, "entry %d", i + 1);
	TRY(check_text(whose, what, p->variant.kernel, false, err));
	TRY(check_text(whose, what, p->variant.mode, true, err));
	TRY(check_text(whose, what, e->where, true, err));
	if (p->key.n < 1 || p->key.k < 1 || p->m_low < 1 || p->m_high < p->m_low || p->m_high > MAX_ROWS)
		return FAIL(err, BAD_INPUT, "%s: %s: [%d x %d] for m from %d to %d; sizes are 1 or more, m ascends from 1 to %d at most", whose, what, p->key.n, p->key.k,
		            p->m_low, p->m_high, MAX_ROWS);
	if (!isfinite(e->ratio) || e->ratio < w->keep)
		return FAIL(err, BAD_INPUT, "%s: %s: ratio %g is below keep, %g; only what was faster may be in a whitelist", whose, what, e->ratio, w->keep);
	if (!p->variant.invariant && !w->any_order)
		return FAIL(err, BAD_INPUT, "%s: %s: '%s' has another order of summation, but any_order is false; run tandem prescreen anew", whose, what, p->variant.kernel);
	for (int j = 0; j < i; j++) {
		const struct linear_preference *other = &w->entry[j].prefer;
		if (linear_key_alike(&other->key, &p->key) && p->m_low <= other->m_high && other->m_low <= p->m_high)
			return FAIL(err, BAD_INPUT, "%s: entries %d and %d both are for %s [%d x %d] with m %d; leave one out", whose, j + 1, i + 1,
			            linear_use_name(p->key.use), p->key.n, p->key.k, p->m_low > other->m_low ? p->m_low : other->m_low);
	}
	return STATUS_OK;
}

enum status whitelist_check(const struct whitelist *w, const char *whose, struct error *err)
{
	TRY(check_text(whose, "program", w->program, false, err));
	TRY(check_text(whose, "device.kind", w->device, false, err));
	TRY(check_text(whose, "device.flavour", w->flavour, true, err));
	TRY(check_text(whose, "device.versions", w->versions, true, err));
	TRY(check_text(whose, "model.name", w->model, true, err));
	TRY(check_text(whose, "model.type", w->model_type, false, err));
	if (!isfinite(w->keep) || w->keep < 1) return FAIL(err, BAD_INPUT, "%s: keep: %g; give a ratio of 1 or more", whose, w->keep);
	if (!w->shapes) return FAIL(err, BAD_INPUT, "%s: it has no shape of a model; measure a model that has linears", whose);
	for (int i = 0; i < w->shapes; i++) {
		const struct whitelist_shape *s = &w->shape[i];
		TRY(check_text(whose, "family", s->family, false, err));
		if (s->world_size < 1 || s->world_size > SHARD_MAX_WORLD || s->n < 1 || s->k < 1)
			return FAIL(err, BAD_INPUT, "%s: shape %d: TP%d [%d x %d]; give a world size of 1 to %d and sizes of 1 or more", whose, i + 1, s->world_size, s->n, s->k,
			            SHARD_MAX_WORLD);
	}
	for (int i = 0; i < w->entries; i++) TRY(check_entry(w, i, whose, err));
	return STATUS_OK;
}

static enum status differs(const char *what, const char *made, const char *here, struct error *err)
{
	return FAIL(err, UNSUPPORTED, "whitelist: it was measured with %s '%.150s', this is '%.150s'; run tandem prescreen here, or leave --whitelist out", what, made, here);
}

/* What decides which shapes a rank has. */
static enum status check_origin(const struct whitelist *w, const struct device_ops *ops, struct error *err)
{
	if (strcmp(w->program, TANDEM_VERSION)) return differs("version", w->program, TANDEM_VERSION, err);
	return strcmp(w->device, ops->name) ? differs("device", w->device, ops->name, err) : STATUS_OK;
}

enum status whitelist_check_device(const struct whitelist *w, const struct device *device, struct error *err)
{
	char versions[WHITELIST_TEXT_BYTES] = "";
	const char *flavour = device->vt->flavour(device);
	if (device->vt->versions) device->vt->versions(device, versions, sizeof versions);
	TRY(check_origin(w, device->vt, err));
	if (strcmp(w->flavour, flavour)) return differs("device", w->flavour, flavour, err);
	if (strcmp(w->versions, versions)) return differs("device, library or driver", w->versions, versions, err);
	if (device->vt->linear_prefer && device->vt->linear_ran) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "whitelist: device %s computes a linear in one way only; leave --whitelist out", device->vt->name);
}

/* Whether some rank has this family with this shape. */
static bool has_shape(const struct plan_family *f, const struct whitelist_shape *s, const struct model_config *config, int granule)
{
	int64_t rows[SHARD_VOCAB_SIZES] = {f->local_n};
	const int sizes = strcmp(f->kind, "vocab") ? 1 : shard_vocab_sizes(rows, config->vocab_size, s->world_size, granule);
	int i = 0;
	while (i < sizes && rows[i] != s->n) i++;
	return i < sizes && f->local_k == s->k;
}

enum status whitelist_check_model(const struct whitelist *w, const struct model_config *config, const struct device_ops *ops, int world_size, struct error *err)
{
	struct plan_degree plan;
	bool measured = false;
	TRY(check_origin(w, ops, err));
	if (strcmp(w->model_type, config->model_type)) return differs("model type", w->model_type, config->model_type, err);
	if (w->dtype != config->dtype) return differs("weights of type", dtype_name(w->dtype), dtype_name(config->dtype), err);
	plan_degree(&plan, config, world_size, &(struct plan_options){.vocab_granule = ops->linear_granule});
	for (int i = 0; i < w->shapes; i++) {
		const struct whitelist_shape *s = &w->shape[i];
		const struct plan_family *have = NULL;
		if (s->world_size != world_size) continue;
		measured = true;
		for (int f = 0; f < plan.families; f++)
			if (plan.family[f].runs && !strcmp(plan.family[f].family, s->family)) have = &plan.family[f];
		if (have && has_shape(have, s, config, ops->linear_granule)) continue;
		char made[64], here[64] = "none";
		snprintf(made, sizeof made, "%s [%d x %d]", s->family, s->n, s->k);
		if (have) snprintf(here, sizeof here, "%s [%d x %d]", s->family, (int)have->local_n, (int)have->local_k);
		return differs("another model:", made, here, err);
	}
	if (measured) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "whitelist: it was not measured for world size %d; run tandem prescreen with --tp %d among its degrees, or leave --whitelist out", world_size,
	            world_size);
}

const struct whitelist_entry *whitelist_find(const struct whitelist *w, const struct linear_key *key)
{
	for (int i = 0; i < w->entries; i++) {
		const struct linear_preference *p = &w->entry[i].prefer;
		if (linear_key_alike(&p->key, key) && key->m >= p->m_low && key->m <= p->m_high) return &w->entry[i];
	}
	return NULL;
}
