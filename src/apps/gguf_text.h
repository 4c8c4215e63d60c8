/* gguf_text.h: the text side of a GGUF file: its tokenizer and chat template. src/text knows no models and src/model no text; they meet here. */
#ifndef TANDEM_APPS_GGUF_TEXT_H
#define TANDEM_APPS_GGUF_TEXT_H

#include "base/log.h"
#include "text/template.h"
#include "text/tokenizer.h"

/* *out is NULL, without an error, if the file has no tokenizer. UNSUPPORTED, by name, for a kind that is not implemented. */
enum status gguf_tokenizer(struct tokenizer **out, const char *path, const struct log *log, struct error *err) NODISCARD;
/* As chat_template_load: a file without templates gives one that says so. */
enum status gguf_chat_template(struct chat_template **out, const char *path, struct error *err) NODISCARD;

#endif
