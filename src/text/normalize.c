#include "text/normalize.h"

#include "text/json_field.h"

/* ---- reading ---- */

static enum status add_step(struct normalizer *out, enum normalizer_kind kind, struct normalizer_step **step, struct error *err)
{
	*step = NULL;
	if (out->count == NORMALIZER_MAX_STEPS)
		return FAIL(err, UNSUPPORTED, "normalizer: more than %d steps are not supported", NORMALIZER_MAX_STEPS);
	*step = &out->steps[out->count++];
	(*step)->kind = kind;
	return STATUS_OK;
}

static enum status parse_prepend(struct normalizer *out, const json_t *node, struct error *err)
{
	struct json_text text;
	struct normalizer_step *step;
	TRY(json_field_text(node, "normalizer Prepend", "prepend", &text, err));
	TRY(add_step(out, NORMALIZER_PREPEND, &step, err));
	return buf_append(&step->text, text.data, text.size, err);
}

static enum status parse_replace(struct normalizer *out, const json_t *node, struct error *err)
{
	struct json_text content;
	struct normalizer_step *step;
	TRY(json_field_text(node, "normalizer Replace", "content", &content, err));
	TRY(add_step(out, NORMALIZER_REPLACE, &step, err));
	TRY(buf_append(&step->text, content.data, content.size, err));
	return pattern_parse(&step->pattern, node, "normalizer Replace", err);
}

static enum status parse_step(void *context, const json_t *node, struct json_text type, struct error *err)
{
	static const struct {
		const char *name;
		enum normalizer_kind kind;
	} forms[] = {{"NFC", NORMALIZER_NFC}, {"NFD", NORMALIZER_NFD}, {"NFKC", NORMALIZER_NFKC}, {"NFKD", NORMALIZER_NFKD}};
	struct normalizer *out = context;
	struct normalizer_step *step;
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (json_text_is(type, forms[i].name)) return add_step(out, forms[i].kind, &step, err);
	if (json_text_is(type, "Prepend")) return parse_prepend(out, node, err);
	if (json_text_is(type, "Replace")) return parse_replace(out, node, err);
	return FAIL(err, UNSUPPORTED, "normalizer: type '%.64s' is not implemented", type.data);
}
static const struct json_sequence sequence = {"normalizer", "normalizers", parse_step};

enum status normalizer_parse(struct normalizer *out, const struct json_t *node, struct error *err)
{
	*out = (struct normalizer){0};
	if (!node) return STATUS_OK;
	enum status st = json_field_sequence(&sequence, node, 0, out, err);
	if (st != STATUS_OK) normalizer_fini(out);
	return st;
}

void normalizer_fini(struct normalizer *normalizer)
{
	for (size_t i = 0; i < normalizer->count; i++) {
		pattern_destroy(&normalizer->steps[i].pattern);
		buf_fini(&normalizer->steps[i].text);
	}
	*normalizer = (struct normalizer){0};
}

/* ---- running ---- */

static enum status run_step(const struct normalizer_step *step, struct pattern_scratch *scratch, const char *text, size_t n,
                            struct buf *out, struct error *err)
{
	switch (step->kind) {
	case NORMALIZER_PREPEND:
		if (n > 0) TRY(buf_append(out, step->text.data, step->text.size, err));
		return buf_append(out, text, n, err);
	case NORMALIZER_REPLACE: return pattern_replace(step->pattern, scratch, text, n, step->text.data, step->text.size, out, err);
	case NORMALIZER_NFC:
	case NORMALIZER_NFD:
	case NORMALIZER_NFKC:
	case NORMALIZER_NFKD: break;
	}
	return unicode_normalize(step->kind, text, n, out, err);
}

enum status normalizer_run(const struct normalizer *normalizer, struct pattern_scratch *scratch, const char *text, size_t n, bool begins,
                           struct buf spare[2], const char **result, size_t *result_n, struct error *err)
{
	int turn = 0;
	for (size_t i = 0; i < normalizer->count; i++) {
		struct buf *out = &spare[turn];
		if (normalizer->steps[i].kind == NORMALIZER_PREPEND && !begins) continue;
		buf_clear(out);
		TRY(buf_reserve(out, n, err));
		TRY(run_step(&normalizer->steps[i], scratch, text, n, out, err));
		text = out->data;
		n = out->size;
		turn = !turn;
	}
	*result = text;
	*result_n = n;
	return STATUS_OK;
}
