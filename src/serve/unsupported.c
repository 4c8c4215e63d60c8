#include "serve/unsupported.h"

#include <string.h>

#include "serve/body.h"
#include "serve/request.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define BOTH (ENDPOINT_COMPLETIONS | ENDPOINT_CHAT)

/* False for values that ask for nothing: false, 0, "", [], {}. */
static bool asks(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT: return json_object_size(value) > 0;
	case JSON_ARRAY: return json_array_size(value) > 0;
	case JSON_STRING: return json_string_length(value) > 0;
	case JSON_INTEGER:
	case JSON_REAL: return json_number_value(value) != 0;
	case JSON_TRUE: return true;
	case JSON_FALSE:
	case JSON_NULL: break;
	}
	return false;
}

static const struct {
	const char *name;
	unsigned where;
} fields[] = {
	{"bad_words", BOTH},         {"allowed_token_ids", BOTH},    {"guided_json", BOTH},    {"guided_regex", BOTH},   {"guided_choice", BOTH},
	{"guided_grammar", BOTH},    {"structured_outputs", BOTH},   {"structural_tag", BOTH}, {"grammar", BOTH},        {"json_schema", BOTH},
	{"use_beam_search", BOTH},   {"logits_processors", BOTH},    {"prompt_embeds", BOTH},  {"kv_transfer_params", BOTH},
	{"echo", ENDPOINT_CHAT},     {"audio", ENDPOINT_CHAT},       {"functions", ENDPOINT_CHAT}, {"web_search_options", ENDPOINT_CHAT},
	{"prediction", ENDPOINT_CHAT},
};

static enum status check_tools(const json_t *body, struct refusal *r)
{
	const json_t *tools = body_get(body, "tools"), *choice = body_get(body, "tool_choice");
	if (tools && !json_is_array(tools)) return refuse(r, 400, "tools", "tools must be an array, not %s", body_type_name(tools));
	if (tools && !json_array_size(tools)) return refuse(r, 400, "tools", "tools is empty; leave it out");
	if (tools) return refuse(r, 501, "tools", "tools are not supported by this server; leave tools out");
	if (!choice) return STATUS_OK;
	if (!json_is_string(choice) && !json_is_object(choice))
		return refuse(r, 400, "tool_choice", "tool_choice must be a string or an object, not %s", body_type_name(choice));
	if (json_is_string(choice) && !strcmp(json_string_value(choice), "none")) return STATUS_OK;
	return refuse(r, 400, "tool_choice", "tool_choice needs tools; leave it out or say none");
}

static enum status check_format(const json_t *body, struct refusal *r)
{
	const json_t *format = body_get(body, "response_format");
	if (!format) return STATUS_OK;
	if (!json_is_object(format)) return refuse(r, 400, "response_format", "response_format must be an object, not %s", body_type_name(format));
	const json_t *type = body_get(format, "type");
	if (!json_is_string(type)) return refuse(r, 400, "response_format", "response_format.type must be text, json_object or json_schema");
	const char *name = json_string_value(type);
	if (!strcmp(name, "text")) return STATUS_OK;
	if (!strcmp(name, "json_object"))
		return refuse(r, 501, "response_format", "response_format json_object is not supported by this server; leave it out");
	if (!strcmp(name, "json_schema"))
		return refuse(r, 501, "response_format", "response_format json_schema is not supported by this server; leave it out");
	return refuse(r, 400, "response_format", "response_format.type must be text, json_object or json_schema");
}

static enum status check_modalities(const json_t *body, struct refusal *r)
{
	const json_t *list = body_get(body, "modalities"), *item;
	size_t i;
	if (!list) return STATUS_OK;
	if (!json_is_array(list)) return refuse(r, 400, "modalities", "modalities must be an array, not %s", body_type_name(list));
	json_array_foreach((json_t *)list, i, item)
		if (!json_is_string(item) || strcmp(json_string_value(item), "text") != 0)
			return refuse(r, 501, "modalities", "modalities other than text are not supported by this server");
	return STATUS_OK;
}

static enum status check_chat(const json_t *body, struct refusal *r)
{
	const json_t *call = body_get(body, "function_call");
	if (body_get(body, "chat_template"))
		return refuse(r, 400, "chat_template", "a chat_template in the request is not accepted; the model's own is used");
	TRY(check_tools(body, r));
	TRY(check_modalities(body, r));
	if (call && !(json_is_string(call) && !strcmp(json_string_value(call), "none")))
		return refuse(r, 501, "function_call", "function_call is not supported by this server; leave it out");
	return STATUS_OK;
}

enum status unsupported_check(const json_t *body, unsigned where, struct refusal *r)
{
	for (int i = 0; i < COUNT(fields); i++) {
		const json_t *value = body_get(body, fields[i].name);
		if ((fields[i].where & where) && value && asks(value))
			return refuse(r, 501, fields[i].name, "%s is not supported by this server; leave it out", fields[i].name);
	}
	TRY(check_format(body, r));
	if (where & ENDPOINT_CHAT) return check_chat(body, r);
	const json_t *suffix = body_get(body, "suffix");
	if (suffix && asks(suffix)) return refuse(r, 400, "suffix", "suffix is not accepted: this server does not fill in the middle; leave it out");
	return STATUS_OK;
}
