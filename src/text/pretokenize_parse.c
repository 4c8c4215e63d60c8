/* Reading the pre-tokenizer from tokenizer.json. See pretokenize.h. */
#include <string.h>

#include "text/json_field.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum status add_step(struct pretokenizer *out, enum pretokenizer_kind kind, struct pretokenizer_step **step, struct error *err)
{
	*step = NULL;
	if (out->count == PRETOKENIZER_MAX_STEPS)
		return FAIL(err, UNSUPPORTED, "pre-tokenizer: more than %d steps are not supported", PRETOKENIZER_MAX_STEPS);
	*step = &out->steps[out->count++];
	(*step)->kind = kind;
	return STATUS_OK;
}

static enum status add_split(struct pretokenizer *out, enum split_behavior behavior, struct pretokenizer_step **step, struct error *err)
{
	*step = NULL;
	TRY(add_step(out, PRETOKENIZER_SPLIT, step, err));
	(*step)->behavior = behavior;
	return STATUS_OK;
}

static enum status parse_byte_level(struct pretokenizer *out, const json_t *node, struct error *err)
{
	struct pretokenizer_step *step;
	bool prefix, regex;
	TRY(json_field_bool(node, "pre-tokenizer ByteLevel", "add_prefix_space", true, &prefix, err));
	TRY(json_field_bool(node, "pre-tokenizer ByteLevel", "use_regex", true, &regex, err));
	if (prefix) TRY(add_step(out, PRETOKENIZER_PREFIX_SPACE, &step, err));
	if (regex) {
		TRY(add_split(out, SPLIT_ISOLATED, &step, err));
		TRY(pattern_regex(&step->pattern, gpt2_pattern, sizeof gpt2_pattern - 1, err));
	}
	return add_step(out, PRETOKENIZER_BYTE_CHARS, &step, err);
}

static enum status parse_split(struct pretokenizer *out, const json_t *node, struct error *err)
{
	static const struct {
		const char *name;
		enum split_behavior behavior;
	} behaviors[] = {
		{"Removed", SPLIT_REMOVED},
		{"Isolated", SPLIT_ISOLATED},
		{"Contiguous", SPLIT_CONTIGUOUS},
		{"MergedWithPrevious", SPLIT_WITH_PREVIOUS},
		{"MergedWithNext", SPLIT_WITH_NEXT},
	};
	struct pretokenizer_step *step;
	struct json_text behavior;
	TRY(json_field_text(node, "pre-tokenizer Split", "behavior", &behavior, err));
	for (size_t i = 0; i < sizeof behaviors / sizeof *behaviors; i++) {
		if (!json_text_is(behavior, behaviors[i].name)) continue;
		TRY(add_split(out, behaviors[i].behavior, &step, err));
		TRY(json_field_bool(node, "pre-tokenizer Split", "invert", false, &step->invert, err));
		return pattern_parse(&step->pattern, node, "pre-tokenizer Split", err);
	}
	return FAIL(err, UNSUPPORTED, "pre-tokenizer Split: behavior '%.64s' is unknown", behavior.data);
}

static enum status parse_digits(struct pretokenizer *out, const json_t *node, struct error *err)
{
	struct pretokenizer_step *step;
	bool individual;
	TRY(json_field_bool(node, "pre-tokenizer Digits", "individual_digits", false, &individual, err));
	TRY(add_split(out, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, &step, err));
	return pattern_regex(&step->pattern, "\\p{N}", 5, err);
}

enum status metaspace_parse(struct metaspace *out, const struct json_t *node, struct error *err)
{
	struct json_text mark, scheme = {.data = "always", .size = 6};
	bool prefix;
	*out = (struct metaspace){.prepend = PREPEND_ALWAYS};
	TRY(json_field_text(node, "Metaspace", "replacement", &mark, err));
	if (mark.size == 0 || utf8_length(mark.data[0]) != mark.size)
		return FAIL(err, BAD_INPUT, "Metaspace: the replacement is not one character; check the file");
	TRY(json_field_bool(node, "Metaspace", "add_prefix_space", true, &prefix, err));
	TRY(json_field_bool(node, "Metaspace", "split", true, &out->split, err));
	if (json_field(node, "prepend_scheme")) TRY(json_field_text(node, "Metaspace", "prepend_scheme", &scheme, err));
	if (json_text_is(scheme, "first")) out->prepend = PREPEND_FIRST;
	else if (json_text_is(scheme, "never")) out->prepend = PREPEND_NEVER;
	else if (!json_text_is(scheme, "always")) return FAIL(err, UNSUPPORTED, "Metaspace: prepend_scheme '%.64s' is unknown", scheme.data);
	if (!prefix && out->prepend != PREPEND_NEVER)
		return FAIL(err, BAD_INPUT, "Metaspace: add_prefix_space false needs prepend_scheme \"never\"; check the file");
	return buf_append(&out->mark, mark.data, mark.size, err);
}

static enum status parse_metaspace(struct pretokenizer *out, const json_t *node, struct error *err)
{
	struct metaspace parsed;
	struct pretokenizer_step *step;
	TRY(add_step(out, PRETOKENIZER_METASPACE, &step, err));
	enum status st = metaspace_parse(&parsed, node, err);
	step->mark = parsed.mark;
	step->prepend = parsed.prepend;
	if (st != STATUS_OK || !parsed.split) return st;
	const struct buf *mark = &step->mark;
	TRY(add_split(out, SPLIT_WITH_NEXT, &step, err));
	return pattern_literal(&step->pattern, mark->data, mark->size, err);
}

static enum status parse_step(void *context, const json_t *node, struct json_text type, struct error *err)
{
	struct pretokenizer *out = context;
	if (json_text_is(type, "ByteLevel")) return parse_byte_level(out, node, err);
	if (json_text_is(type, "Split")) return parse_split(out, node, err);
	if (json_text_is(type, "Digits")) return parse_digits(out, node, err);
	if (json_text_is(type, "Metaspace")) return parse_metaspace(out, node, err);
	return FAIL(err, UNSUPPORTED, "pre-tokenizer: type '%.64s' is not implemented", type.data);
}
static const struct json_sequence sequence = {"pre-tokenizer", "pretokenizers", parse_step};

enum status pretokenizer_parse(struct pretokenizer *out, const struct json_t *node, struct error *err)
{
	*out = (struct pretokenizer){0};
	enum status st = node ? json_field_sequence(&sequence, node, 0, out, err) : STATUS_OK;
	if (st != STATUS_OK) {
		pretokenizer_fini(out);
		return st;
	}
	out->bytes = out->count > 0 && out->steps[out->count - 1].kind == PRETOKENIZER_BYTE_CHARS;
	if (out->bytes) out->count--; /* a step of this kind owns nothing */
	return STATUS_OK;
}

enum status pretokenizer_of_splits(struct pretokenizer *out, const char *const *splits, int max, struct error *err)
{
	*out = (struct pretokenizer){.bytes = true};
	enum status st = STATUS_OK;
	for (int i = 0; st == STATUS_OK && i < max && splits[i]; i++) {
		struct pretokenizer_step *step;
		st = add_split(out, SPLIT_ISOLATED, &step, err);
		if (st == STATUS_OK) st = pattern_regex(&step->pattern, splits[i], strlen(splits[i]), err);
	}
	if (st != STATUS_OK) pretokenizer_fini(out);
	return st;
}

void pretokenizer_fini(struct pretokenizer *pretokenizer)
{
	for (size_t i = 0; i < pretokenizer->count; i++) {
		pattern_destroy(&pretokenizer->steps[i].pattern);
		buf_fini(&pretokenizer->steps[i].mark);
	}
	*pretokenizer = (struct pretokenizer){0};
}
