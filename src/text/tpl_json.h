/* tpl_json.h: template values from parsed JSON, and json.dumps() of Python, byte for byte. */
#ifndef TANDEM_TEXT_TPL_JSON_H
#define TANDEM_TEXT_TPL_JSON_H

#include <jansson.h>

#include "text/tpl_text.h"

struct tpl_json_in {
	bool user; /* mark every string */
	bool copy; /* strings are copied: the json_t may go before the run does */
};

enum status tpl_from_json(struct tpl_run *run, const json_t *json, const struct tpl_json_in *how, struct tpl_value *out) NODISCARD;
/* A value of JSON text; BAD_INPUT if it is none. The marks of the text come back on every string. */
enum status tpl_parse_json(struct tpl_run *run, const struct tpl_string *text, struct tpl_value *out) NODISCARD;

struct tpl_json_out {
	bool ensure_ascii, sort_keys, indented;
	const struct tpl_string *indent, *item_separator, *key_separator; /* indent: one level of it, when indented */
};
enum status tpl_dump_json(struct tpl_run *run, struct tpl_text *t, struct tpl_value v, const struct tpl_json_out *how) NODISCARD;

#endif
