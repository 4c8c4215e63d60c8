/* cmd_tokenize.c: text to token ids and back, for looking at a tokenizer and for comparing it with another.
 *
 * Plain: all of stdin is one text, raw bytes, and one JSON array of ids goes out; --decode: the reverse. --jsonl: an object a
 * line, {"text"} to {"tokens"} and back, answered as soon as the line is read. Special tokens are kept when decoding.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/console.h"
#include "apps/gguf_text.h"
#include "apps/session.h"
#include "apps/settings.h"
#include "model/gguf.h"
#include "text/tokenizer.h"

struct job {
	const struct settings *settings;
	struct tokenizer *tokenizer;
	struct buf in, text, out;
	struct token_list ids;
};

static void job_fini(struct job *job)
{
	tokenizer_destroy(&job->tokenizer);
	buf_fini(&job->in);
	buf_fini(&job->text);
	buf_fini(&job->out);
	token_list_fini(&job->ids);
}

static enum status read_stdin(struct buf *in, struct error *err)
{
	for (size_t n = 1; n > 0; in->size += n) {
		TRY(buf_reserve(in, 65536, err));
		n = fread(in->data + in->size, 1, 65536, stdin);
	}
	return ferror(stdin) ? FAIL(err, IO, "stdin: %s; nothing was read from there", strerror(errno)) : STATUS_OK;
}

static enum status write_ids(const struct token_list *ids, struct buf *out, struct error *err)
{
	TRY(buf_puts(out, "[", err));
	for (size_t i = 0; i < ids->count; i++) TRY(buf_printf(out, err, i ? ",%d" : "%d", ids->ids[i]));
	return buf_puts(out, "]", err);
}

static enum status read_ids(const json_t *array, const char *where, struct token_list *ids, struct error *err)
{
	if (!json_is_array(array)) return FAIL(err, BAD_INPUT, "%s: no array of token ids; give one such as [1,2,3]", where);
	for (size_t i = 0; i < json_array_size(array); i++) {
		const json_t *id = json_array_get(array, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
			return FAIL(err, BAD_INPUT, "%s: item %zu is no token id; give whole numbers from 0 up", where, i + 1);
		TRY(token_list_push(ids, (int32_t)json_integer_value(id), err));
	}
	return STATUS_OK;
}

static enum status write_text(const struct buf *text, struct buf *out, struct error *err)
{
	json_t *value = json_stringn(text->data ? text->data : "", text->size);
	char *json = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
	json_decref(value);
	if (!json) return FAIL(err, NO_MEMORY, "JSON output: no memory; use a machine with more");
	enum status st = buf_puts(out, json, err);
	free(json);
	return st;
}

/* job->text to job->ids, or the reverse. */
static enum status convert(struct job *job, const char *text, size_t n, struct error *err)
{
	if (job->settings->decode) return tokenizer_decode(job->tokenizer, job->ids.ids, job->ids.count, false, &job->text, err);
	return tokenizer_encode(job->tokenizer, text, n, job->settings->add_special, &job->ids, err);
}

static enum status convert_line(struct job *job, const char *line, size_t n, size_t number, struct error *err)
{
	char where[48];
	json_error_t why;
	snprintf(where, sizeof where, "stdin, line %zu", number);
	json_t *object = json_loadb(line, n, JSON_ALLOW_NUL, &why);
	if (!object) return FAIL(err, BAD_INPUT, "%s: %s; give one JSON object a line", where, why.text);
	enum status st = STATUS_OK;
	const json_t *text = json_object_get(object, "text");
	buf_clear(&job->text);
	buf_clear(&job->out);
	job->ids.count = 0;
	if (job->settings->decode) TRY_GOTO(read_ids(json_object_get(object, "tokens"), where, &job->ids, err), end);
	else if (!json_is_string(text)) {
		st = FAIL(err, BAD_INPUT, "%s: no \"text\" that is a string; give {\"text\": ...}", where);
		goto end;
	}
	TRY_GOTO(convert(job, json_string_value(text), json_string_length(text), err), end);
	TRY_GOTO(buf_puts(&job->out, job->settings->decode ? "{\"text\":" : "{\"tokens\":", err), end);
	TRY_GOTO(job->settings->decode ? write_text(&job->text, &job->out, err) : write_ids(&job->ids, &job->out, err), end);
	TRY_GOTO(buf_puts(&job->out, "}\n", err), end);
	st = output_write(job->out.data, job->out.size, err);
end:
	json_decref(object);
	return st;
}

static enum status convert_lines(struct job *job, struct error *err)
{
	char *line = NULL;
	size_t capacity = 0, number = 0;
	enum status st = STATUS_OK;
	for (ssize_t n; st == STATUS_OK && (n = getline(&line, &capacity, stdin)) >= 0;) {
		number++;
		if (strspn(line, " \t\r\n") < (size_t)n) st = convert_line(job, line, (size_t)n, number, err);
	}
	free(line);
	if (st == STATUS_OK && ferror(stdin)) st = FAIL(err, IO, "stdin: %s; the lines after line %zu are missing", strerror(errno), number);
	return st;
}

static enum status convert_stdin(struct job *job, struct error *err)
{
	TRY(read_stdin(&job->in, err));
	if (!job->settings->decode) {
		TRY(convert(job, job->in.data, job->in.size, err));
		TRY(write_ids(&job->ids, &job->out, err));
		TRY(buf_puts(&job->out, "\n", err));
		return output_write(job->out.data, job->out.size, err);
	}
	json_error_t why;
	json_t *array = json_loadb(job->in.data, job->in.size, 0, &why);
	enum status st = array ? read_ids(array, "stdin", &job->ids, err)
	                       : FAIL(err, BAD_INPUT, "stdin: line %d: %s; give an array of token ids such as [1,2,3]", why.line, why.text);
	json_decref(array);
	TRY(st);
	TRY(convert(job, NULL, 0, err));
	return output_write(job->text.data ? job->text.data : "", job->text.size, err);
}

enum status cmd_tokenize(const struct settings *settings, struct error *err)
{
	struct job job = {.settings = settings};
	struct console console;
	struct buf folder = {0};
	enum status st;
	console_init(&console, settings->verbose);
	struct log log = console_sink(&console);
	if (gguf_is_file(settings->model)) {
		TRY_GOTO(gguf_tokenizer(&job.tokenizer, settings->model, &log, err), end);
		if (!job.tokenizer) st = FAIL(err, BAD_INPUT, "%s: has no tokenizer; name the folder of one", settings->model);
		if (st != STATUS_OK) goto end;
	} else {
		TRY_GOTO(model_folder(settings->model, &folder, err), end);
		TRY_GOTO(tokenizer_open(&job.tokenizer, folder.data, &log, err), end);
	}
	st = settings->jsonl ? convert_lines(&job, err) : convert_stdin(&job, err);
end:
	buf_fini(&folder);
	job_fini(&job);
	return st;
}
