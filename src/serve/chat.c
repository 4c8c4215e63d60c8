#include "serve/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/template.h"

/* ---- messages ---- */

static bool known_role(const char *role)
{
	static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
		if (!strcmp(role, roles[i])) return true;
	return false;
}

static enum status check_part(const json_t *part, size_t message, struct refusal *r)
{
	const json_t *type = body_get(part, "type"), *text = body_get(part, "text");
	if (!json_is_object(part) || !json_is_string(type))
		return refuse(r, 400, "messages", "messages[%zu].content: a part must be an object with a type", message);
	const char *name = json_string_value(type);
	if (!strcmp(name, "image_url") || !strcmp(name, "image") || !strcmp(name, "input_image"))
		return refuse(r, 400, "messages", "messages[%zu].content: an image; this server reads text only, also of models that can see: leave it out", message);
	if (strcmp(name, "text") != 0)
		return refuse(r, strcmp(name, "refusal") == 0 ? 400 : 501, "messages", "messages[%zu].content: only parts of type text are supported", message);
	if (!json_is_string(text)) return refuse(r, 400, "messages", "messages[%zu].content: the text of a part must be a string", message);
	return STATUS_OK;
}

static enum status check_content(const json_t *message, size_t i, bool assistant, struct refusal *r)
{
	const json_t *content = body_get(message, "content"), *part;
	size_t k;
	if (!content && assistant) return STATUS_OK;
	if (!content) return refuse(r, 400, "messages", "messages[%zu].content is missing; only an assistant's may be null", i);
	if (json_is_string(content)) return STATUS_OK;
	if (!json_is_array(content))
		return refuse(r, 400, "messages", "messages[%zu].content must be a string or an array of parts, not %s", i, body_type_name(content));
	json_array_foreach((json_t *)content, k, part) TRY(check_part(part, i, r));
	return STATUS_OK;
}

static enum status check_messages(const json_t *messages, struct refusal *r)
{
	const json_t *message;
	size_t i;
	if (!messages) return refuse(r, 400, "messages", "messages is missing; give at least one message");
	if (!json_is_array(messages)) return refuse(r, 400, "messages", "messages must be an array, not %s", body_type_name(messages));
	if (!json_array_size(messages)) return refuse(r, 400, "messages", "messages is empty; give at least one message");
	json_array_foreach((json_t *)messages, i, message) {
		if (!json_is_object(message)) return refuse(r, 400, "messages", "messages[%zu] must be an object, not %s", i, body_type_name(message));
		const json_t *role = body_get(message, "role");
		if (!json_is_string(role) || !known_role(json_string_value(role)))
			return refuse(r, 400, "messages", "messages[%zu].role must be system, developer, user, assistant or tool", i);
		TRY(check_content(message, i, !strcmp(json_string_value(role), "assistant"), r));
	}
	return STATUS_OK;
}

/* ---- the template ---- */

/* Variables that the request gives the template. *out is the caller's; NULL: none. */
static enum status read_variables(json_t **out, const json_t *body, struct refusal *r)
{
	static const char *const passed[] = {"documents", "reasoning_effort"};
	const json_t *given = body_get(body, "chat_template_kwargs");
	*out = NULL;
	if (given && !json_is_object(given))
		return refuse(r, 400, "chat_template_kwargs", "chat_template_kwargs must be an object, not %s", body_type_name(given));
	json_t *made = json_object();
	bool well = made && (!given || json_object_update(made, (json_t *)given) == 0);
	for (size_t i = 0; well && i < sizeof passed / sizeof *passed; i++) {
		const json_t *value = body_get(body, passed[i]);
		if (value) well = json_object_set(made, passed[i], (json_t *)value) == 0;
	}
	if (!well) {
		json_decref(made);
		return refuse_memory(r);
	}
	*out = made;
	return STATUS_OK;
}

/* The text of the last message, whose parts may be several. */
static bool last_text(const json_t *messages, struct buf *out)
{
	const json_t *content = body_get(json_array_get(messages, json_array_size(messages) - 1), "content"), *part;
	size_t i;
	if (json_is_string(content)) return buf_append(out, json_string_value(content), json_string_length(content), NULL) == STATUS_OK;
	json_array_foreach((json_t *)content, i, part) {
		const json_t *text = body_get(part, "text");
		if (buf_append(out, json_string_value(text), json_string_length(text), NULL) != STATUS_OK) return false;
	}
	return true;
}

/* Where the last occurrence of the text ends; 0: it is nowhere. Only what came from the request is looked at: the template's own text (<|im_end|>) may
 * hold the same letters. */
static size_t find_last(const struct template_output *rendered, const char *text, size_t n)
{
	for (size_t i = rendered->user_count; i--;)
		for (size_t end = rendered->user[i].end; end >= rendered->user[i].start + n; end--)
			if (!memcmp(rendered->text.data + end - n, text, n)) return end;
	return 0;
}

/* White space behind the message's text, where the template has not trimmed it. */
static size_t kept_space(const struct template_output *rendered, size_t end, const struct buf *last, size_t n)
{
	size_t space = last->size - n;
	return space <= rendered->text.size - end && !memcmp(rendered->text.data + end, last->data + n, space) ? space : 0;
}

/* continue_final_message: the text ends where the last message ends, so that the model goes on with it. */
static enum status cut_behind_last(struct template_output *rendered, const json_t *messages, struct refusal *r)
{
	struct buf last = {0};
	enum status st = STATUS_OK;
	if (!last_text(messages, &last)) st = refuse_memory(r);
	size_t n = last.size, start = 0;
	while (n && strchr(" \t\r\n", last.data[n - 1])) n--;
	while (start < n && strchr(" \t\r\n", last.data[start])) start++;
	if (st == STATUS_OK && n == start) st = refuse(r, 400, "continue_final_message", "the last message has no text to continue");
	size_t end = st == STATUS_OK ? find_last(rendered, last.data + start, n - start) : 0;
	if (st == STATUS_OK && !end) st = refuse(r, 400, "continue_final_message", "the chat template does not write the last message as it is; it cannot be continued");
	if (st == STATUS_OK) rendered->text.size = end + kept_space(rendered, end, &last, n);
	buf_fini(&last);
	return st;
}

static enum status encode(struct token_list *out, const struct template_output *rendered, const struct request *q, const struct facts *facts,
                          struct refusal *r)
{
	struct error err = {0};
	enum status st = tokenizer_encode_marked(facts->tokenizer, rendered->text.data ? rendered->text.data : "", rendered->text.size, q->add_special,
	                                         rendered->user, rendered->user_count, out, &err);
	if (st != STATUS_OK) return refuse_error(r, "messages", st, &err);
	if (!out->count) return refuse(r, 400, "messages", "the chat template makes no token of these messages");
	return STATUS_OK;
}

static enum status render(struct template_output *out, const json_t *messages, const json_t *variables, const struct request *q,
                          const struct facts *facts, struct error *err)
{
	struct tm now;
	time_t seconds = time(NULL);
	localtime_r(&seconds, &now);
	struct template_input input = {.messages = messages, .kwargs = variables, .add_generation_prompt = q->add_generation_prompt, .now = &now};
	return chat_template_render(facts->chat_template, &input, out, err);
}

/* The messages with "" where an assistant's content is null or missing. The caller's; NULL: none is, or there is no memory for it. */
static json_t *fill_contents(const json_t *messages)
{
	json_t *made = NULL;
	const json_t *message;
	size_t i;
	json_array_foreach((json_t *)messages, i, message) {
		if (body_get(message, "content")) continue; /* the others were refused */
		if (!made) made = json_deep_copy(messages);
		if (!made) return NULL;
		json_object_set_new(json_array_get(made, i), "content", json_string(""));
	}
	return made;
}

/* A template sees an assistant's null, as it may ask for it; one that fails, for example because it joins it to text, is given "" instead. Of two
 * errors the first counts. */
static enum status render_messages(struct template_output *out, const json_t *messages, const json_t *variables, const struct request *q,
                                   const struct facts *facts, struct refusal *r)
{
	struct error err = {0};
	enum status st = render(out, messages, variables, q, facts, &err);
	json_t *filled = st == STATUS_OK ? NULL : fill_contents(messages);
	if (filled && render(out, filled, variables, q, facts, NULL) == STATUS_OK) st = STATUS_OK;
	json_decref(filled);
	if (st == STATUS_OK) return q->continue_final ? cut_behind_last(out, messages, r) : st;
	return refuse_error(r, "messages", st == STATUS_UNSUPPORTED ? STATUS_BAD_INPUT : st, &err);
}

enum status chat_tokens(struct token_list *out, const json_t *body, const struct request *request, const struct facts *facts, struct refusal *r)
{
	const json_t *messages = body_get(body, "messages");
	json_t *variables;
	struct template_output rendered = {0};
	TRY(check_messages(messages, r));
	if (!facts->tokenizer) return refuse(r, 400, NULL, "this model has no tokenizer; use /v1/completions with token ids");
	if (!facts->chat_template) return refuse(r, 400, NULL, "this model has no chat template; use /v1/completions");
	TRY(read_variables(&variables, body, r));
	enum status st = render_messages(&rendered, messages, variables, request, facts, r);
	if (st == STATUS_OK) st = encode(out, &rendered, request, facts, r);
	template_output_fini(&rendered);
	json_decref(variables);
	return st;
}
