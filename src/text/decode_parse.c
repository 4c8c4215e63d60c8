/* Reading the decoders from tokenizer.json. See decode.h. */
#include "text/decode.h"
#include "text/json_field.h"

static enum status add_step(struct decoder *out, enum decoder_kind kind, struct decoder_step **step, struct error *err)
{
	*step = NULL;
	if (out->count == DECODER_MAX_STEPS) return FAIL(err, UNSUPPORTED, "decoder: more than %d steps are not supported", DECODER_MAX_STEPS);
	*step = &out->steps[out->count++];
	(*step)->kind = kind;
	return STATUS_OK;
}

static enum status parse_replace(struct decoder *out, const json_t *node, struct error *err)
{
	struct decoder_step *step;
	struct json_text content;
	TRY(add_step(out, DECODER_REPLACE, &step, err));
	TRY(json_field_text(node, "decoder Replace", "content", &content, err));
	TRY(buf_append(&step->text, content.data, content.size, err));
	return pattern_parse(&step->pattern, node, "decoder Replace", err);
}

static enum status parse_strip(struct decoder *out, const json_t *node, struct error *err)
{
	struct decoder_step *step;
	struct json_text content;
	TRY(add_step(out, DECODER_STRIP, &step, err));
	TRY(json_field_text(node, "decoder Strip", "content", &content, err));
	if (content.size == 0 || utf8_length(content.data[0]) != content.size)
		return FAIL(err, BAD_INPUT, "decoder Strip: \"content\" is not one character; check the file");
	TRY(json_field_size(node, "decoder Strip", "start", 0, &step->start, err));
	TRY(json_field_size(node, "decoder Strip", "stop", 0, &step->stop, err));
	return buf_append(&step->text, content.data, content.size, err);
}

static enum status parse_metaspace(struct decoder *out, const json_t *node, struct error *err)
{
	struct decoder_step *step;
	struct metaspace parsed;
	TRY(add_step(out, DECODER_METASPACE, &step, err));
	enum status st = metaspace_parse(&parsed, node, err);
	step->text = parsed.mark;
	step->prepend = parsed.prepend;
	return st;
}

static enum status parse_step(void *context, const json_t *node, struct json_text type, struct error *err)
{
	struct decoder *out = context;
	struct decoder_step *step;
	if (json_text_is(type, "ByteLevel")) return add_step(out, DECODER_BYTE_LEVEL, &step, err);
	if (json_text_is(type, "ByteFallback")) return add_step(out, DECODER_BYTE_FALLBACK, &step, err);
	if (json_text_is(type, "Fuse")) return add_step(out, DECODER_FUSE, &step, err);
	if (json_text_is(type, "Metaspace")) return parse_metaspace(out, node, err);
	if (json_text_is(type, "Replace")) return parse_replace(out, node, err);
	if (json_text_is(type, "Strip")) return parse_strip(out, node, err);
	return FAIL(err, UNSUPPORTED, "decoder: type '%.64s' is not implemented", type.data);
}
static const struct json_sequence sequence = {"decoder", "decoders", parse_step};

enum status decoder_parse(struct decoder *out, const struct json_t *node, struct error *err)
{
	*out = (struct decoder){.present = node != NULL};
	enum status st = node ? json_field_sequence(&sequence, node, 0, out, err) : STATUS_OK;
	if (st != STATUS_OK) decoder_fini(out);
	return st;
}

void decoder_fini(struct decoder *decoder)
{
	for (size_t i = 0; i < decoder->count; i++) {
		pattern_destroy(&decoder->steps[i].pattern);
		buf_fini(&decoder->steps[i].text);
	}
	*decoder = (struct decoder){0};
}
