#include "apps/gguf_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/gguf.h"

#define KEY(name) "tokenizer.ggml." name

/* The arrays of a description, owned. */
struct arrays {
	struct tokenizer_text *tokens, *merges;
	uint8_t *kinds;
	float *scores;
	struct buf split;
};

static void arrays_fini(struct arrays *a)
{
	free(a->tokens);
	free(a->merges);
	free(a->kinds);
	free(a->scores);
	buf_fini(&a->split);
}

/* *out is NULL if the key is absent. */
static enum status read_texts(const struct gguf *file, const char *key, struct tokenizer_text **out, size_t *count, struct error *err)
{
	const struct gguf_field *field;
	TRY(gguf_array(file, key, GGUF_TEXT, &field, err));
	if (!field) return STATUS_OK;
	*out = mem_zalloc((size_t)field->count, sizeof **out, key, err);
	if (!*out) return STATUS_NO_MEMORY;
	const unsigned char *at = field->data;
	for (*count = 0; *count < field->count; ++*count) {
		struct gguf_text text = gguf_next_text(&at);
		(*out)[*count] = (struct tokenizer_text){.data = text.data, .size = text.size};
	}
	return STATUS_OK;
}

static enum status wrong_count(const struct gguf *file, const char *key, uint64_t found, int32_t expected, struct error *err)
{
	return FAIL(err, BAD_INPUT, "%s: %s: has %llu values for %d tokens; the file is damaged", file->path, key, (unsigned long long)found, expected);
}

static enum status read_kinds(const struct gguf *file, struct tokenizer_description *d, struct arrays *a, struct error *err)
{
	const struct gguf_field *field;
	TRY(gguf_array(file, KEY("token_type"), GGUF_I32, &field, err));
	if (field && field->count != (uint64_t)d->count) return wrong_count(file, KEY("token_type"), field->count, d->count, err);
	a->kinds = mem_zalloc((size_t)d->count, 1, "token types", err);
	if (!a->kinds) return STATUS_NO_MEMORY;
	for (int32_t i = 0; i < d->count; i++) {
		int64_t kind = field ? gguf_item_int(field, (uint64_t)i) : TOKEN_NORMAL;
		if (kind < 0 || kind > TOKEN_BYTE)
			return FAIL(err, BAD_INPUT, "%s: %s: token %d has the type %lld; expected 1 to 6", file->path, KEY("token_type"), i, (long long)kind);
		a->kinds[i] = kind ? (uint8_t)kind : TOKEN_UNUSED;
	}
	d->kinds = a->kinds;
	return STATUS_OK;
}

static enum status read_scores(const struct gguf *file, struct tokenizer_description *d, struct arrays *a, struct error *err)
{
	const struct gguf_field *field;
	TRY(gguf_array(file, KEY("scores"), GGUF_F32, &field, err));
	if (!field) return FAIL(err, BAD_INPUT, "%s: %s is missing; a tokenizer of this kind is made of them", file->path, KEY("scores"));
	if (field->count != (uint64_t)d->count) return wrong_count(file, KEY("scores"), field->count, d->count, err);
	a->scores = mem_zalloc((size_t)d->count, sizeof *a->scores, "token scores", err);
	if (!a->scores) return STATUS_NO_MEMORY;
	for (int32_t i = 0; i < d->count; i++) a->scores[i] = gguf_item_f32(field, (uint64_t)i);
	d->scores = a->scores;
	return STATUS_OK;
}

/* -1 where the file says nothing. */
static enum status read_flag(const struct gguf *file, const char *key, int *out, struct error *err)
{
	bool value = false;
	TRY(gguf_bool(file, key, &value, err));
	*out = gguf_find(file, key) ? value : -1;
	return STATUS_OK;
}

static enum status read_special(const struct gguf *file, struct tokenizer_description *d, struct error *err)
{
	const struct {
		const char *key;
		int32_t *out;
	} ids[] = {{KEY("bos_token_id"), &d->bos}, {KEY("eos_token_id"), &d->eos}, {KEY("unknown_token_id"), &d->unknown}};
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		int64_t id = -1;
		TRY(gguf_int(file, ids[i].key, 0, d->count - 1, &id, err));
		*ids[i].out = (int32_t)id;
	}
	/* The numbers that SentencePiece gives where it is not told otherwise. */
	if (d->model == TOKENIZER_SENTENCEPIECE && d->count > 2) {
		if (d->unknown < 0) d->unknown = 0;
		if (d->bos < 0) d->bos = 1;
		if (d->eos < 0) d->eos = 2;
	}
	TRY(read_flag(file, KEY("add_bos_token"), &d->add_bos, err));
	TRY(read_flag(file, KEY("add_eos_token"), &d->add_eos, err));
	return read_flag(file, KEY("add_space_prefix"), &d->add_space_prefix, err);
}

static enum status describe(const struct gguf *file, struct gguf_text model, struct tokenizer_description *d, struct arrays *a, struct error *err)
{
	size_t count = 0;
	struct gguf_text split = {0};
	if (!gguf_text_is(model, "gpt2") && !gguf_text_is(model, "llama"))
		return FAIL(err, UNSUPPORTED, "%s: %s \"%.*s\" is not implemented; gpt2 and llama are", file->path, KEY("model"),
		            (int)(model.size < 40 ? model.size : 40), model.data);
	d->model = gguf_text_is(model, "llama") ? TOKENIZER_SENTENCEPIECE : TOKENIZER_BYTE_LEVEL;
	TRY(read_texts(file, KEY("tokens"), &a->tokens, &count, err));
	if (!count || count > INT32_MAX) return FAIL(err, BAD_INPUT, "%s: %s is missing or has %zu entries; the file is damaged", file->path, KEY("tokens"), count);
	d->tokens = a->tokens;
	d->count = (int32_t)count;
	TRY(read_kinds(file, d, a, err));
	TRY(read_special(file, d, err));
	if (d->model == TOKENIZER_SENTENCEPIECE) return read_scores(file, d, a, err);
	TRY(read_texts(file, KEY("merges"), &a->merges, &d->merge_count, err));
	if (!a->merges) return FAIL(err, BAD_INPUT, "%s: %s is missing; a tokenizer of this kind is made of them", file->path, KEY("merges"));
	d->merges = a->merges;
	TRY(gguf_string(file, KEY("pre"), &split, err));
	if (!split.data) return STATUS_OK;
	TRY(buf_append(&a->split, split.data, split.size, err));
	d->split = a->split.data;
	return STATUS_OK;
}

enum status gguf_tokenizer(struct tokenizer **out, const char *path, const struct log *log, struct error *err)
{
	struct gguf file;
	struct arrays arrays = {0};
	struct tokenizer_description description = {0};
	struct gguf_text model = {0};
	*out = NULL;
	TRY(gguf_open(&file, path, err));
	enum status st;
	TRY_GOTO(gguf_string(&file, KEY("model"), &model, err), end);
	if (!model.data) goto end;
	TRY_GOTO(describe(&file, model, &description, &arrays, err), end);
	if (description.model == TOKENIZER_BYTE_LEVEL && !description.split)
		log_write(log, LOG_WARN, "%s: names no pre-tokenizer; \"default\" may split text in other ways than the model was trained with", path);
	st = tokenizer_create(out, &description, path, log, err);
end:
	arrays_fini(&arrays);
	gguf_close(&file);
	return st;
}

/* ---- chat template ---- */

static enum status no_memory(const struct gguf *file, struct error *err)
{
	return FAIL(err, NO_MEMORY, "%s: no memory for its chat template", file->path);
}

/* A string of the file as JSON; NULL where it is absent or no UTF-8. */
static enum status text_json(const struct gguf *file, const char *key, json_t **out, struct error *err)
{
	struct gguf_text text = {0};
	*out = NULL;
	TRY(gguf_string(file, key, &text, err));
	if (text.data) *out = json_stringn(text.data, text.size);
	return STATUS_OK;
}

/* The text of the token whose id stands under `key`. */
static enum status token_json(const struct gguf *file, const char *key, json_t **out, struct error *err)
{
	const struct gguf_field *tokens;
	int64_t id = -1;
	*out = NULL;
	TRY(gguf_int(file, key, 0, INT32_MAX, &id, err));
	TRY(gguf_array(file, KEY("tokens"), GGUF_TEXT, &tokens, err));
	if (id < 0 || !tokens || (uint64_t)id >= tokens->count) return STATUS_OK;
	const unsigned char *at = tokens->data;
	struct gguf_text text = gguf_next_text(&at);
	for (int64_t i = 0; i < id; i++) text = gguf_next_text(&at);
	*out = json_stringn(text.data, text.size);
	return STATUS_OK;
}

/* What the tokenizer_config.json of the model would say. */
static enum status fill_config(const struct gguf *file, json_t *config, struct error *err)
{
	static const struct {
		const char *key, *name;
	} tokens[] = {{KEY("bos_token_id"), "bos_token"}, {KEY("eos_token_id"), "eos_token"}, {KEY("unknown_token_id"), "unk_token"}, {KEY("padding_token_id"), "pad_token"}};
	static const struct {
		const char *key, *name;
	} templates[] = {{"tokenizer.chat_template", "default"}, {"tokenizer.chat_template.tool_use", "tool_use"}};
	json_t *list = json_array(), *value;
	if (!list || json_object_set_new(config, "chat_template", list) != 0) return no_memory(file, err);
	for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
		TRY(text_json(file, templates[i].key, &value, err));
		if (value && json_array_append_new(list, json_pack("{s:s,s:o}", "name", templates[i].name, "template", value)) != 0) return no_memory(file, err);
	}
	for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
		TRY(token_json(file, tokens[i].key, &value, err));
		if (value && json_object_set_new(config, tokens[i].name, value) != 0) return no_memory(file, err);
	}
	return STATUS_OK;
}

enum status gguf_chat_template(struct chat_template **out, const char *path, struct error *err)
{
	struct gguf file;
	*out = NULL;
	TRY(gguf_open(&file, path, err));
	json_t *config = json_object();
	enum status st = config ? fill_config(&file, config, err) : no_memory(&file, err);
	if (st == STATUS_OK) st = chat_template_create(out, config, err);
	json_decref(config);
	gguf_close(&file);
	return st;
}
