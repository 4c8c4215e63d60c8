#include "text/postprocess.h"

#include "text/json_field.h"
#include "text/vocab.h"

/* Appends the ids that the template's table gives for the special token of `piece`. */
static enum status append_special(const json_t *table, const json_t *piece, struct token_list *out, struct error *err)
{
	struct json_text name;
	const json_t *ids;
	TRY(json_field_text(piece, "template", "id", &name, err));
	const json_t *special = json_field(table, name.data);
	if (!special) return FAIL(err, BAD_INPUT, "template: special token '%.64s' is not in its table; check the file", name.data);
	TRY(json_field_array(special, "template", "ids", &ids, err));
	for (size_t i = 0; i < json_array_size(ids); i++) {
		const json_t *id = json_array_get(ids, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX_ID)
			return FAIL(err, BAD_INPUT, "template: special token '%.64s' has an id that is none; check the file", name.data);
		TRY(token_list_push(out, (int32_t)json_integer_value(id), err));
	}
	return STATUS_OK;
}

/* Splits the pieces of "single" at the sequence A. */
static enum status parse_template(struct postprocessor *out, const json_t *node, struct error *err)
{
	const json_t *pieces, *table = json_field(node, "special_tokens");
	bool seen = false;
	if (out->has_template) return FAIL(err, UNSUPPORTED, "post-processor: more than one template is not supported");
	out->has_template = true;
	TRY(json_field_array(node, "template", "single", &pieces, err));
	for (size_t i = 0; i < json_array_size(pieces); i++) {
		const json_t *piece = json_array_get(pieces, i), *special = json_field(piece, "SpecialToken");
		const json_t *sequence = json_field(piece, "Sequence");
		if (special) {
			TRY(append_special(table, special, seen ? &out->after : &out->before, err));
			continue;
		}
		struct json_text name;
		TRY(json_field_text(sequence, "template", "id", &name, err));
		if (seen || !json_text_is(name, "A"))
			return FAIL(err, UNSUPPORTED, "template: \"single\" has to hold the sequence A once and no other");
		seen = true;
	}
	return seen ? STATUS_OK : FAIL(err, UNSUPPORTED, "template: \"single\" does not hold the sequence A");
}

static enum status parse_step(void *context, const json_t *node, struct json_text type, struct error *err)
{
	struct postprocessor *out = context;
	if (json_text_is(type, "ByteLevel")) return STATUS_OK;
	if (json_text_is(type, "TemplateProcessing")) return parse_template(out, node, err);
	return FAIL(err, UNSUPPORTED, "post-processor: type '%.64s' is not implemented", type.data);
}
static const struct json_sequence sequence = {"post-processor", "processors", parse_step};

enum status postprocessor_parse(struct postprocessor *out, const struct json_t *node, struct error *err)
{
	*out = (struct postprocessor){0};
	enum status st = node ? json_field_sequence(&sequence, node, 0, out, err) : STATUS_OK;
	if (st != STATUS_OK) postprocessor_fini(out);
	return st;
}

void postprocessor_fini(struct postprocessor *postprocessor)
{
	token_list_fini(&postprocessor->before);
	token_list_fini(&postprocessor->after);
}
