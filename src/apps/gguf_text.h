/* gguf_text.h: the text side of a GGUF file: its tokenizer and chat template. src/text knows no models and src/model no text; they meet here. */
#ifndef TANDEM_APPS_GGUF_TEXT_H
#define TANDEM_APPS_GGUF_TEXT_H

#include "base/buf.h"
#include "base/log.h"
#include "text/tokenizer.h"

/* *out is NULL, without an error, if the file has no tokenizer. UNSUPPORTED, by name, for a kind that is not implemented. */
enum status gguf_tokenizer(struct tokenizer **out, const char *path, const struct log *log, struct error *err) NODISCARD;
/* Appends tokenizer.chat_template; nothing if the file has none. */
enum status gguf_chat_template(const char *path, struct buf *out, struct error *err) NODISCARD;

#endif
