/* Renders chat templates for tests: one JSON object a line in, one a line out.
 *
 * In:  {"template": TEXT, "messages": [...], "tools": [...], "kwargs": {...}, "special_tokens": {...},
 *       "add_generation_prompt": BOOL, "now": [year, month, day, hour, minute, second, weekday from Sunday, day of the year from 0]}
 *      all but "template" may be absent; "folder": PATH instead of "template" renders the template of a model folder.
 * Out: {"text": TEXT, "user": [[start, end], ...]} or {"error": TEXT, "status": NAME}.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template.h"

static void die(const char *why)
{
	fprintf(stderr, "template_render: %s\n", why);
	exit(2);
}

static struct tm read_time(const json_t *list)
{
	struct tm now = {.tm_mday = 1, .tm_year = 100, .tm_wday = 6};
	int *const fields[] = {&now.tm_year, &now.tm_mon, &now.tm_mday, &now.tm_hour, &now.tm_min, &now.tm_sec, &now.tm_wday, &now.tm_yday};
	if (json_array_size(list) != 8) return now;
	for (size_t i = 0; i < 8; i++) *fields[i] = (int)json_integer_value(json_array_get(list, i));
	now.tm_year -= 1900;
	now.tm_mon--;
	return now;
}

static enum status render(const json_t *job, struct template_output *out, struct error *err)
{
	struct template *template = NULL;
	struct chat_template *chat = NULL;
	json_t *none = json_array();
	struct tm now = read_time(json_object_get(job, "now"));
	const json_t *source = json_object_get(job, "template"), *folder = json_object_get(job, "folder"), *messages = json_object_get(job, "messages");
	struct template_input input = {.messages = messages ? messages : none,
	                               .tools = json_object_get(job, "tools"),
	                               .kwargs = json_object_get(job, "kwargs"),
	                               .special_tokens = json_object_get(job, "special_tokens"),
	                               .add_generation_prompt = json_is_true(json_object_get(job, "add_generation_prompt")),
	                               .now = &now};
	enum status st;
	if (folder) {
		st = chat_template_load(&chat, json_string_value(folder), err);
		if (st == STATUS_OK) st = chat_template_render(chat, &input, out, err);
	} else {
		st = template_parse(&template, json_string_value(source), json_string_length(source), "template", err);
		if (st == STATUS_OK) st = template_render(template, &input, out, err);
	}
	template_destroy(&template);
	chat_template_destroy(&chat);
	json_decref(none);
	return st;
}

static json_t *answer(const json_t *job)
{
	struct template_output out = {0};
	struct error err = {0};
	enum status st = render(job, &out, &err);
	if (st != STATUS_OK) {
		json_t *text = json_string(err.text);
		return json_pack("{s:o, s:s}", "error", text ? text : json_string("(not UTF-8)"), "status", status_name(st));
	}
	json_t *user = json_array();
	for (size_t i = 0; i < out.user_count; i++) json_array_append_new(user, json_pack("[I, I]", (json_int_t)out.user[i].start, (json_int_t)out.user[i].end));
	json_t *text = json_stringn(out.text.size ? out.text.data : "", out.text.size);
	if (!text) die("the output is not UTF-8");
	template_output_fini(&out);
	return json_pack("{s:o, s:o}", "text", text, "user", user);
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	while ((n = getline(&line, &room, stdin)) > 0) {
		json_error_t why;
		json_t *job = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &why);
		if (!job) die(why.text);
		json_t *out = answer(job);
		if (!out || json_dumpf(out, stdout, JSON_COMPACT) != 0) die("out of memory");
		putchar('\n');
		json_decref(out);
		json_decref(job);
	}
	free(line);
	return 0;
}
