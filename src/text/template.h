/* template.h: chat templates: from messages to the text of a prompt, by the Jinja template that comes with a model.
 *
 * A small interpreter for the part of Jinja 3.1 that chat templates use, set up as Hugging Face sets it up: sandboxed, trim_blocks
 * and lstrip_blocks on, loop controls, the `generation` tag, tojson as json.dumps, raise_exception, strftime_now. What it renders
 * is equal byte for byte to what jinja2 renders; what it does not implement is UNSUPPORTED, naming the construct and its line:
 * include, import, extends, block, call, recursive loops, autoescape; a few filters and methods that no chat template uses;
 * integers beyond 64 bits. Two differences are meant: a filter or test that does not exist fails when it is used, not when the
 * template is parsed; and a variable of the caller stays visible in a block that stands before a `set` of the same name, where
 * Jinja's compiler would have hidden it.
 *
 * The parts, in reading order: tpl_run (memory, budgets), tpl_value, tpl_text, tpl_ops, tpl_format, tpl_json (Python's values and
 * how they print), tpl_lex, tpl_ast, tpl_parse (the language), tpl_eval, tpl_loop, tpl_call, tpl_method, tpl_filter, tpl_test.
 *
 * A template is untrusted input, and so is a request. A parsed template is immutable: any number of threads may render it. A
 * render owns its memory, which is bounded, as are its steps, its recursion and its output; it reads no clock, no file and no
 * environment, so the output is a function of the input. Nothing survives it but the output.
 *
 * User spans. A user may type "<|im_end|>". The output says which of its bytes came from the request, so that the tokenizer can
 * take a special token only where none of its bytes are the user's, and leave everything else as it would be. Marked: every
 * string of messages, tools and keyword arguments. Marks travel with the text through everything that copies it: + and ~, %,
 * slices, split, strip, replace, join, case changes, indent, tojson, repr, macros and blocks. Bytes that are made anew are not
 * marked: digits of numbers, quotes and separators around a string, the fill of center. A role written by the template from
 * message.role is marked too; that is harmless, for it changes the tokens of special-token text only.
 */
#ifndef TANDEM_TEXT_TEMPLATE_H
#define TANDEM_TEXT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/text_range.h"

struct json_t; /* of jansson */
struct template;

#define TEMPLATE_SOURCE_BYTES ((size_t)1 << 20) /* the most that a template's source may have */

/* Zero means the default. A render that needs more is BAD_INPUT, saying of what. A level of depth takes up to 1 KiB of C stack. */
struct template_options {
	uint64_t steps;      /* 20 million: nodes evaluated, items visited, 64 bytes copied; about a second */
	size_t memory_bytes; /* 256 MiB */
	size_t output_bytes; /* 16 MiB */
	int depth;           /* 600: nested nodes, macro calls and data */
};

struct template_input {
	const struct json_t *messages;       /* an array of objects */
	const struct json_t *tools;          /* an array; NULL: none */
	const struct json_t *kwargs;         /* an object of further variables (enable_thinking, documents, ...); NULL: none */
	const struct json_t *special_tokens; /* an object of strings (bos_token, eos_token, ...); NULL: none */
	bool add_generation_prompt;
	const struct tm *now; /* local time, for strftime_now; NULL: that is an error */
	struct template_options options;
};

/* `{0}` is empty. */
struct template_output {
	struct buf text;
	struct text_range *user; /* bytes of `text` that came from the request; sorted, apart from each other, none empty */
	size_t user_count;
};
void template_output_fini(struct template_output *output);

/* `name` is for messages. *out is NULL on failure: BAD_INPUT or UNSUPPORTED, "<name>, line N: ...". */
enum status template_parse(struct template **out, const char *source, size_t n, const char *name, struct error *err) NODISCARD;
void template_destroy(struct template **template);

/* Fills `out`, which must be empty and is so again on failure. What raise_exception says is the whole text of a BAD_INPUT error; any
 * other reads "<name>, line N: ...".
 *
 * Two things are done to the messages first. Arguments of tool calls that are JSON text are given as mappings; if the template
 * fails on that, it is rendered again with the text, and the first error counts if that fails too. Content in parts is given as one
 * string, text parts joined, to a template that never looks into parts; and a string as one text part to a template that knows
 * nothing else. */
enum status template_render(const struct template *template, const struct template_input *input, struct template_output *out,
                            struct error *err) NODISCARD;

/* ---- the templates of a model folder ---- */

/* The file chat_template.jinja, else `chat_template` of tokenizer_config.json: one string, or a list of {name, template}. `tool_use`
 * (also additional_chat_templates/tool_use.jinja) is taken when there are tools, `default` otherwise. Special tokens are those of
 * tokenizer_config.json. A folder without templates, or with one that cannot be parsed, loads all the same. */
struct chat_template;
enum status chat_template_load(struct chat_template **out, const char *folder, struct error *err) NODISCARD;
/* The same from the content of a tokenizer_config.json, for models that are no folder. */
enum status chat_template_create(struct chat_template **out, const struct json_t *config, struct error *err) NODISCARD;
void chat_template_destroy(struct chat_template **chat);

/* Why a conversation without (or with) tools cannot be rendered, for a warning when the model is loaded; NULL if it can. */
const struct error *chat_template_problem(const struct chat_template *chat, bool tools);

/* template_render with the folder's special tokens, unless the input has its own. A folder's problem is the error. */
enum status chat_template_render(const struct chat_template *chat, const struct template_input *input, struct template_output *out,
                                 struct error *err) NODISCARD;
/* The prompt that asks for an answer to one message of a user; invalid UTF-8 in it becomes U+FFFD. */
enum status chat_template_prompt(const struct chat_template *chat, const char *text, size_t n, const struct tm *now, struct template_output *out,
                                 struct error *err) NODISCARD;

#endif
