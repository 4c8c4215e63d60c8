/* The templates of a model folder. See template.h. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "text/json_field.h"
#include "text/template.h"
#include "text/utf8.h"

#define CONFIG_BYTES ((size_t)64 << 20)

/* One template of the folder: present, or the problem with it. Neither: the folder has none. */
struct entry {
	struct template *template;
	struct error problem;
};

struct chat_template {
	struct entry standard, tool_use;
	struct error no_template;
	json_t *special_tokens; /* never NULL */
};

void chat_template_destroy(struct chat_template **chat)
{
	if (!*chat) return;
	template_destroy(&(*chat)->standard.template);
	template_destroy(&(*chat)->tool_use.template);
	json_decref((*chat)->special_tokens);
	free(*chat);
	*chat = NULL;
}

static bool has(const struct entry *entry)
{
	return entry->template || entry->problem.code != STATUS_OK;
}

/* Only a lack of memory is a failure of the load; all else is kept as the entry's problem. */
static enum status keep(struct entry *entry, enum status st, struct error *why, struct error *err)
{
	if (st == STATUS_OK) return STATUS_OK;
	if (st == STATUS_NO_MEMORY) {
		if (err && err->code == STATUS_OK) *err = *why;
		return st;
	}
	entry->problem = *why;
	return STATUS_OK;
}

static enum status parse_entry(struct entry *entry, const char *source, size_t n, const char *name, struct error *err)
{
	struct error why = {0};
	template_destroy(&entry->template);
	entry->problem = (struct error){0};
	return keep(entry, template_parse(&entry->template, source, n, name, &why), &why, err);
}

static enum status read_if_there(struct buf *out, bool *there, const char *folder, const char *name, size_t limit, struct error *err)
{
	struct buf path = {0};
	struct stat info;
	enum status st;
	TRY_GOTO(buf_printf(&path, err, "%s/%s", folder, name), out);
	*there = stat(path.data, &info) == 0 || (errno != ENOENT && errno != ENOTDIR); /* what is there and cannot be read is an error */
	if (*there) st = buf_read_regular(out, path.data, limit, err);
out:
	buf_fini(&path);
	return st;
}

static enum status load_file(struct entry *entry, const char *folder, const char *name, struct error *err)
{
	struct buf source = {0};
	struct error why = {0};
	bool there = false;
	enum status st = read_if_there(&source, &there, folder, name, TEMPLATE_SOURCE_BYTES, &why);
	if (st != STATUS_OK) st = keep(entry, st, &why, err);
	else if (there) st = parse_entry(entry, source.data, source.size, name, err);
	buf_fini(&source);
	return st;
}

/* ---- tokenizer_config.json ---- */

static enum status load_list(struct chat_template *chat, const json_t *list, struct error *err)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct error why = {0};
		struct json_text name, source;
		const json_t *item = json_array_get(list, i);
		enum status st = json_field_text(item, "chat_template", "name", &name, &why);
		if (st == STATUS_OK) st = json_field_text(item, "chat_template", "template", &source, &why);
		if (st != STATUS_OK) {
			TRY(keep(&chat->standard, st, &why, err));
			continue;
		}
		struct entry *entry = json_text_is(name, "default") ? &chat->standard : json_text_is(name, "tool_use") ? &chat->tool_use : NULL;
		if (entry) TRY(parse_entry(entry, source.data, source.size, entry == &chat->standard ? "chat_template" : "chat_template tool_use", err));
	}
	return STATUS_OK;
}

static enum status load_special_tokens(struct chat_template *chat, const json_t *config, struct error *err)
{
	static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		json_t *value = json_object_get(config, names[i]);
		if (json_is_object(value)) value = json_object_get(value, "content");
		if (json_is_string(value) && json_object_set(chat->special_tokens, names[i], value) != 0)
			return FAIL(err, NO_MEMORY, "chat template: no memory for the special tokens");
	}
	json_t *more = json_object_get(config, "additional_special_tokens"), *texts = json_array();
	for (size_t i = 0; texts && i < json_array_size(more); i++) {
		json_t *value = json_array_get(more, i);
		if (json_is_object(value)) value = json_object_get(value, "content");
		if (json_is_string(value)) (void)json_array_append(texts, value);
	}
	if (json_array_size(texts) > 0) (void)json_object_set(chat->special_tokens, "additional_special_tokens", texts);
	json_decref(texts);
	return STATUS_OK;
}

static enum status use_config(struct chat_template *chat, const json_t *config, bool template_wanted, struct error *err)
{
	TRY(load_special_tokens(chat, config, err));
	const json_t *template = json_object_get(config, "chat_template");
	if (template_wanted && json_is_string(template))
		return parse_entry(&chat->standard, json_string_value(template), json_string_length(template), "chat_template", err);
	return template_wanted && json_is_array(template) ? load_list(chat, template, err) : STATUS_OK;
}

static enum status load_config(struct chat_template *chat, const char *folder, bool template_wanted, struct error *err)
{
	struct buf text = {0};
	struct error why = {0};
	bool there = false;
	json_error_t json_error;
	json_t *config = NULL;
	enum status st = read_if_there(&text, &there, folder, "tokenizer_config.json", CONFIG_BYTES, &why);
	if (st == STATUS_OK && there) {
		/* integers as floats: model_max_length is often 10^30 */
		config = json_loadb(text.data, text.size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &json_error);
		if (!config) st = FAIL(&why, BAD_INPUT, "tokenizer_config.json: line %d: %s; check the file", json_error.line, json_error.text);
	}
	if (st != STATUS_OK) {
		template_destroy(&chat->standard.template); /* it would be rendered without its special tokens */
		st = keep(&chat->standard, st, &why, err);
	} else if (config) st = use_config(chat, config, template_wanted, err);
	json_decref(config);
	buf_fini(&text);
	return st;
}

/* Without any template. */
static enum status create_empty(struct chat_template **out, const char *where, struct error *err)
{
	*out = mem_zalloc(1, sizeof **out, "chat template", err);
	if (!*out) return STATUS_NO_MEMORY;
	(void)FAIL(&(*out)->no_template, BAD_INPUT, "the model has no chat template; send a plain prompt%s", where);
	(*out)->special_tokens = json_object();
	if ((*out)->special_tokens) return STATUS_OK;
	chat_template_destroy(out);
	return FAIL(err, NO_MEMORY, "chat template: no memory for the special tokens");
}

enum status chat_template_load(struct chat_template **out, const char *folder, struct error *err)
{
	enum status st;
	TRY(create_empty(out, ", or put a chat_template.jinja in its folder", err));
	TRY_GOTO(load_file(&(*out)->standard, folder, "chat_template.jinja", err), fail);
	TRY_GOTO(load_file(&(*out)->tool_use, folder, "additional_chat_templates/tool_use.jinja", err), fail);
	TRY_GOTO(load_config(*out, folder, !has(&(*out)->standard), err), fail);
	return STATUS_OK;
fail:
	chat_template_destroy(out);
	return st;
}

enum status chat_template_create(struct chat_template **out, const struct json_t *config, struct error *err)
{
	TRY(create_empty(out, "", err));
	enum status st = use_config(*out, config, true, err);
	if (st != STATUS_OK) chat_template_destroy(out);
	return st;
}

/* ---- use ---- */

static const struct entry *choose(const struct chat_template *chat, bool tools)
{
	return tools && has(&chat->tool_use) ? &chat->tool_use : &chat->standard;
}

const struct error *chat_template_problem(const struct chat_template *chat, bool tools)
{
	const struct entry *entry = choose(chat, tools);
	if (entry->template) return NULL;
	return has(entry) ? &entry->problem : &chat->no_template;
}

enum status chat_template_render(const struct chat_template *chat, const struct template_input *input, struct template_output *out, struct error *err)
{
	struct template_input full = *input;
	bool tools = json_array_size(input->tools) > 0;
	const struct error *problem = chat_template_problem(chat, tools);
	if (problem) {
		if (err && err->code == STATUS_OK) *err = *problem;
		return problem->code;
	}
	if (!full.special_tokens) full.special_tokens = chat->special_tokens;
	return template_render(choose(chat, tools)->template, &full, out, err);
}

enum status chat_template_prompt(const struct chat_template *chat, const char *text, size_t n, const struct tm *now, struct template_output *out,
                                 struct error *err)
{
	struct buf mended = {0};
	json_t *messages = NULL;
	enum status st;
	TRY_GOTO(utf8_append_lossy(&mended, text, n, err), out);
	messages = json_pack("[{s:s, s:o}]", "role", "user", "content", json_stringn_nocheck(mended.data ? mended.data : "", mended.size));
	if (!messages) {
		st = FAIL(err, NO_MEMORY, "chat template: no memory for a message of %zu bytes", n);
		goto out;
	}
	struct template_input input = {.messages = messages, .add_generation_prompt = true, .now = now};
	st = chat_template_render(chat, &input, out, err);
out:
	json_decref(messages);
	buf_fini(&mended);
	return st;
}
