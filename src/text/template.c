#include "text/template.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tpl_ast.h"
#include "text/tpl_eval.h"
#include "text/tpl_json.h"

#define PARSE_DEPTH 128
#define PARSE_STEPS ((uint64_t)50000000)
#define PARSE_MEMORY ((size_t)256 << 20)

static const struct template_options defaults = {.steps = 20000000, .memory_bytes = (size_t)256 << 20, .output_bytes = (size_t)16 << 20, .depth = 600};

struct template {
	struct tpl_chunk *chunks; /* everything but the struct itself */
	const struct tpl_node *body;
	char *name;
	bool reads_parts;  /* it looks into the parts of a content */
	bool reads_string; /* it asks whether a content is a string, or never looks into parts */
};

void template_destroy(struct template **template)
{
	if (!*template) return;
	tpl_chunks_free(&(*template)->chunks);
	free((*template)->name);
	free(*template);
	*template = NULL;
}

/* ---- what a template does with content ---- */

static bool is_content_name(const struct tpl_string *name)
{
	return name && tpl_string_is(name, "content");
}

#define MAX_ALIASES 16

/* Variables that are set to a content somewhere. */
struct aliases {
	const struct tpl_string *names[MAX_ALIASES];
	size_t count;
};

static bool is_alias(const struct aliases *aliases, const struct tpl_string *name)
{
	for (size_t i = 0; i < aliases->count; i++)
		if (aliases->names[i] == name) return true;
	return false;
}

/* Without filters and slices, is it `content`, x.content, x['content'], or a variable set to one of these? */
static bool is_content(const struct tpl_node *node, const struct aliases *aliases)
{
	for (int i = 0; i < 16 && (node->kind == TPL_FILTER || node->kind == TPL_SLICE); i++) node = node->a;
	if (node->kind == TPL_ITEM) return node->b->kind == TPL_CONSTANT && node->b->constant.kind == TPL_STRING && is_content_name(node->b->constant.string);
	if (node->kind == TPL_ATTR) return is_content_name(node->name);
	return node->kind == TPL_NAME && (is_content_name(node->name) || is_alias(aliases, node->name));
}

static bool is_one_of(const struct tpl_string *name, const char *const *names)
{
	for (; *names; names++)
		if (tpl_string_is(name, *names)) return true;
	return false;
}

static void study_content(struct template *template, const struct tpl_node *last)
{
	static const char *const into[] = {"map", "select", "selectattr", "reject", "rejectattr", NULL};
	static const char *const asks[] = {"string", "iterable", "sequence", "mapping", NULL};
	struct aliases aliases = {.count = 0};
	bool asked = false;
	for (const struct tpl_node *node = last; node && aliases.count < MAX_ALIASES; node = node->all)
		if (node->kind == TPL_SET && node->a->kind == TPL_NAME && is_content(node->b, &(struct aliases){.count = 0}) && !is_alias(&aliases, node->a->name))
			aliases.names[aliases.count++] = node->a->name;
	for (const struct tpl_node *node = last; node; node = node->all) {
		bool looks = (node->kind == TPL_FOR && is_content(node->b, &aliases)) ||
		             (node->kind == TPL_FILTER && is_one_of(node->name, into) && is_content(node->a, &aliases)) ||
		             (node->kind == TPL_ITEM && node->b->kind == TPL_CONSTANT && node->b->constant.kind == TPL_INT && is_content(node->a, &aliases));
		if (looks) template->reads_parts = true;
		if (node->kind == TPL_TEST && is_one_of(node->name, asks) && is_content(node->a, &aliases)) asked = true;
	}
	template->reads_string = asked || !template->reads_parts;
}

enum status template_parse(struct template **out, const char *source, size_t n, const char *name, struct error *err)
{
	struct tpl_run run = {.memory_bytes = PARSE_MEMORY, .steps = PARSE_STEPS, .depth = PARSE_DEPTH, .err = err};
	struct tpl_node *body, *last;
	enum status st;
	*out = NULL;
	if (n > TEMPLATE_SOURCE_BYTES) return FAIL(err, BAD_INPUT, "%s: a template of %zu bytes; at most %zu are taken", name, n, TEMPLATE_SOURCE_BYTES);
	struct template *made = mem_zalloc(1, sizeof *made, "chat template", err);
	if (!made) return STATUS_NO_MEMORY;
	made->name = mem_strdup(name, "chat template", err);
	st = made->name ? tpl_parse(&run, source, n, &body, &last) : STATUS_NO_MEMORY;
	made->chunks = run.chunks;
	if (st != STATUS_OK) {
		error_prefix(err, "%s, line %d", name, run.line);
		template_destroy(&made);
		return st;
	}
	made->body = body;
	study_content(made, last);
	*out = made;
	return STATUS_OK;
}

/* ---- messages ---- */

static enum status member(struct tpl_run *run, struct tpl_value object, const struct tpl_string *key, struct tpl_value **out)
{
	*out = NULL;
	return object.kind == TPL_DICT ? tpl_dict_get(run, object.dict, tpl_string(key), out) : STATUS_OK;
}

#define KEY(text) \
	{             \
		.data = text, .size = sizeof(text) - 1, .chars = sizeof(text) - 1 \
	}
static const struct tpl_string key_content = KEY("content"), key_tool_calls = KEY("tool_calls"), key_function = KEY("function"),
							   key_arguments = KEY("arguments"), key_type = KEY("type"), key_text = KEY("text");

/* JSON text of an object becomes the object; anything else stays. */
static enum status decode_arguments(struct tpl_run *run, struct tpl_value function, bool *decoded)
{
	struct tpl_value *arguments, value;
	struct error ignored = {0}, *err = run->err;
	TRY(member(run, function, &key_arguments, &arguments));
	if (!arguments || arguments->kind != TPL_STRING) return STATUS_OK;
	int depth = run->depth;
	run->err = &ignored;
	enum status st = tpl_parse_json(run, arguments->string, &value);
	run->err = err;
	if (st != STATUS_OK && run->exhausted) return tpl_out_of(run, "steps, memory or levels of nesting");
	run->depth = depth;
	if (st != STATUS_OK || value.kind != TPL_DICT) return STATUS_OK;
	*arguments = value;
	*decoded = true;
	return STATUS_OK;
}

static enum status decode_tool_calls(struct tpl_run *run, struct tpl_value message, bool *decoded)
{
	struct tpl_value *calls;
	TRY(member(run, message, &key_tool_calls, &calls));
	if (!calls || calls->kind != TPL_LIST) return STATUS_OK;
	for (size_t i = 0; i < calls->seq->count; i++) {
		struct tpl_value *function;
		TRY(member(run, calls->seq->items[i], &key_function, &function));
		TRY(decode_arguments(run, function ? *function : calls->seq->items[i], decoded));
	}
	return STATUS_OK;
}

/* The text of one part of a content. */
static enum status part_text(struct tpl_run *run, struct tpl_value part, const struct tpl_string **out)
{
	struct tpl_value *type, *text;
	*out = part.kind == TPL_STRING ? part.string : NULL;
	if (*out) return STATUS_OK;
	TRY(member(run, part, &key_type, &type));
	TRY(member(run, part, &key_text, &text));
	bool is_text = !type || (type->kind == TPL_STRING && tpl_string_is(type->string, "text"));
	if (!is_text || !text || text->kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "a message has a part that is not text; this model takes text only");
	*out = text->string;
	return STATUS_OK;
}

static enum status join_parts(struct tpl_run *run, struct tpl_value *content)
{
	struct tpl_text t = {0};
	for (size_t i = 0; i < content->seq->count; i++) {
		const struct tpl_string *text;
		TRY(part_text(run, content->seq->items[i], &text));
		TRY(tpl_text_string(run, &t, text));
	}
	return tpl_text_finish(run, &t, false, content);
}

static enum status one_part(struct tpl_run *run, struct tpl_value *content)
{
	struct tpl_dict *part;
	struct tpl_seq *list;
	TRY(tpl_dict_new(run, &part));
	TRY(tpl_dict_set(run, part, tpl_string(&key_type), tpl_string(&key_text)));
	TRY(tpl_dict_set(run, part, tpl_string(&key_text), *content));
	TRY(tpl_seq_new(run, 1, &list));
	TRY(tpl_seq_push(run, list, (struct tpl_value){.kind = TPL_DICT, .dict = part}));
	*content = tpl_seq(TPL_LIST, list);
	return STATUS_OK;
}

static enum status prepare_message(struct tpl_run *run, const struct template *template, struct tpl_value message, bool decode, bool *decoded)
{
	struct tpl_value *content;
	if (message.kind != TPL_DICT) return FAIL(run->err, BAD_INPUT, "a message is a %s, not an object", tpl_kind_name(message));
	TRY(member(run, message, &key_content, &content));
	if (content && content->kind == TPL_LIST && !template->reads_parts) TRY(join_parts(run, content));
	if (content && content->kind == TPL_STRING && !template->reads_string) TRY(one_part(run, content));
	return decode ? decode_tool_calls(run, message, decoded) : STATUS_OK;
}

static enum status prepare_messages(struct tpl_run *run, const struct template *template, const json_t *json, bool decode, bool *decoded,
                                    struct tpl_value *out)
{
	struct tpl_json_in how = {.user = true};
	if (!json_is_array(json)) return FAIL(run->err, BAD_INPUT, "the messages are not an array");
	TRY(tpl_from_json(run, json, &how, out));
	for (size_t i = 0; i < out->seq->count; i++) TRY(prepare_message(run, template, out->seq->items[i], decode, decoded));
	return STATUS_OK;
}

/* ---- rendering ---- */

static enum status set_variable(struct tpl_run *run, struct tpl_dict *context, const char *name, struct tpl_value v)
{
	struct tpl_value key;
	TRY(tpl_string_new(run, name, strlen(name), false, &key));
	return tpl_dict_set(run, context, key, v);
}

/* Every member of an object, as variables. */
static enum status set_variables(struct tpl_run *run, struct tpl_dict *context, const json_t *object, bool user)
{
	struct tpl_value values;
	if (!object) return STATUS_OK;
	if (!json_is_object(object)) return FAIL(run->err, BAD_INPUT, "the arguments of the template are not an object");
	TRY(tpl_from_json(run, object, &(struct tpl_json_in){.user = user}, &values));
	for (size_t i = 0; i < values.dict->count; i++) TRY(tpl_dict_set(run, context, values.dict->pairs[i].key, values.dict->pairs[i].value));
	return STATUS_OK;
}

static enum status set_context(struct tpl_run *run, const struct template *template, const struct template_input *input, bool decode, bool *decoded)
{
	struct tpl_dict *context;
	struct tpl_value messages, tools;
	TRY(tpl_dict_new(run, &context));
	TRY(set_variable(run, context, "documents", tpl_none()));
	TRY(set_variables(run, context, input->special_tokens, false));
	TRY(set_variables(run, context, input->kwargs, true));
	TRY(prepare_messages(run, template, input->messages, decode, decoded, &messages));
	TRY(set_variable(run, context, "messages", messages));
	TRY(tpl_from_json(run, input->tools, &(struct tpl_json_in){.user = true}, &tools));
	TRY(set_variable(run, context, "tools", tools));
	TRY(set_variable(run, context, "add_generation_prompt", tpl_bool(input->add_generation_prompt)));
	run->context = context;
	return STATUS_OK;
}

static enum status hand_over(const struct tpl_text *text, struct template_output *out, struct error *err)
{
	TRY(buf_append(&out->text, text->data, text->size, err));
	if (text->mark_count == 0) return STATUS_OK;
	out->user = mem_zalloc(text->mark_count, sizeof *out->user, "chat template", err);
	if (!out->user) return STATUS_NO_MEMORY;
	out->user_count = text->mark_count;
	for (size_t i = 0; i < text->mark_count; i++) out->user[i] = (struct text_range){.start = text->marks[i].start, .end = text->marks[i].end};
	return STATUS_OK;
}

void template_output_fini(struct template_output *output)
{
	buf_fini(&output->text);
	free(output->user);
	*output = (struct template_output){0};
}

/* decode: arguments of tool calls as mappings. *again: it failed, and might not have with them as they are. */
static enum status render(const struct template *template, const struct template_input *input, bool decode, bool *again, struct template_output *out,
                          struct error *err)
{
	const struct template_options *o = &input->options;
	struct tpl_text text = {0};
	struct tpl_frame *frame;
	bool decoded = false, prepared = false;
	struct tpl_run run = {.memory_bytes = o->memory_bytes ? o->memory_bytes : defaults.memory_bytes,
	                      .output_bytes = o->output_bytes ? o->output_bytes : defaults.output_bytes,
	                      .steps = o->steps ? o->steps : defaults.steps,
	                      .depth = o->depth ? o->depth : defaults.depth,
	                      .root = &text,
	                      .out = &text,
	                      .now = input->now,
	                      .err = err};
	enum status st;
	TRY_GOTO(set_context(&run, template, input, decode, &decoded), out);
	prepared = true;
	TRY_GOTO(tpl_frame_new(&run, NULL, &frame), out);
	TRY_GOTO(tpl_exec(&run, frame, template->body), out);
	st = hand_over(&text, out, err);
out:
	if (st != STATUS_OK) {
		template_output_fini(out);
		if (!run.raised && prepared) error_prefix(err, "%s, line %d", template->name, run.line);
		*again = decoded && !run.raised && !run.exhausted && status_scope(st) == STATUS_SCOPE_REQUEST;
	}
	tpl_chunks_free(&run.chunks);
	return st;
}

enum status template_render(const struct template *template, const struct template_input *input, struct template_output *out, struct error *err)
{
	struct error first = {0}, second = {0};
	bool again = false;
	enum status st = render(template, input, true, &again, out, &first);
	if (st != STATUS_OK && again && render(template, input, false, &again, out, &second) == STATUS_OK) return STATUS_OK;
	if (st != STATUS_OK && err && err->code == STATUS_OK) *err = first;
	return st;
}
