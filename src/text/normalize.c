#include "text/normalize.h"

#include "text/json_field.h"

#define MAX_DEPTH 8

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

static enum status parse_node(struct normalizer *out, const json_t *node, int depth, struct error *err)
{
	static const struct {
		const char *name;
		enum normalizer_kind kind;
	} forms[] = {{"NFC", NORMALIZER_NFC}, {"NFD", NORMALIZER_NFD}, {"NFKC", NORMALIZER_NFKC}, {"NFKD", NORMALIZER_NFKD}};
	struct json_text type;
	struct normalizer_step *step;
	if (depth > MAX_DEPTH) return FAIL(err, BAD_INPUT, "normalizer: sequences are nested deeper than %d", MAX_DEPTH);
	TRY(json_field_text(node, "normalizer", "type", &type, err));
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
		if (json_text_is(type, forms[i].name)) return add_step(out, forms[i].kind, &step, err);
	if (json_text_is(type, "Prepend")) return parse_prepend(out, node, err);
	if (json_text_is(type, "Replace")) return parse_replace(out, node, err);
	if (!json_text_is(type, "Sequence")) return FAIL(err, UNSUPPORTED, "normalizer: type '%.64s' is not implemented", type.data);
	const json_t *list;
	TRY(json_field_array(node, "normalizer Sequence", "normalizers", &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) TRY(parse_node(out, json_array_get(list, i), depth + 1, err));
	return STATUS_OK;
}

enum status normalizer_parse(struct normalizer *out, const struct json_t *node, struct error *err)
{
	*out = (struct normalizer){0};
	if (!node) return STATUS_OK;
	enum status st = parse_node(out, node, 0, err);
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
