#include "unit/gguf_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

void writer_put(struct buf *out, const void *bytes, size_t n)
{
	assert_int_equal(buf_append(out, bytes, n, NULL), STATUS_OK);
}

void writer_put_uint(struct buf *out, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) writer_put(out, &(char){(char)(value >> 8 * i)}, 1);
}

void writer_put_text(struct buf *out, const char *text)
{
	writer_put_uint(out, strlen(text), 8);
	writer_put(out, text, strlen(text));
}

void writer_key(struct writer *w, const char *name, enum gguf_type type)
{
	writer_put_text(&w->fields, name);
	writer_put_uint(&w->fields, (uint64_t)type, 4);
	w->field_count++;
}

void writer_u32(struct writer *w, const char *name, uint32_t value)
{
	writer_key(w, name, GGUF_U32);
	writer_put_uint(&w->fields, value, 4);
}

void writer_f32(struct writer *w, const char *name, float value)
{
	writer_key(w, name, GGUF_F32);
	writer_put(&w->fields, &value, 4);
}

void writer_text(struct writer *w, const char *name, const char *value)
{
	writer_key(w, name, GGUF_TEXT);
	writer_put_text(&w->fields, value);
}

void writer_array(struct writer *w, const char *name, enum gguf_type item, uint64_t count)
{
	writer_key(w, name, GGUF_ARRAY);
	writer_put_uint(&w->fields, (uint64_t)item, 4);
	writer_put_uint(&w->fields, count, 8);
}

void writer_tensor(struct writer *w, const char *name, uint32_t type, int64_t rows, int64_t cols, size_t bytes, const void *from)
{
	while (w->data.size % 32) writer_put(&w->data, "", 1);
	writer_put_text(&w->tensors, name);
	writer_put_uint(&w->tensors, rows ? 2 : 1, 4);
	writer_put_uint(&w->tensors, (uint64_t)cols, 8);
	if (rows) writer_put_uint(&w->tensors, (uint64_t)rows, 8);
	writer_put_uint(&w->tensors, type, 4);
	writer_put_uint(&w->tensors, w->data.size, 8);
	w->tensor_count++;
	for (size_t i = 0; i < bytes; i++) writer_put(&w->data, from ? (const char *)from + i : &(char){(char)(i % 251)}, 1);
}

void writer_finish(struct writer *w, struct buf *out)
{
	*out = (struct buf){0};
	writer_put(out, "GGUF", 4);
	writer_put_uint(out, 3, 4);
	writer_put_uint(out, w->tensor_count, 8);
	writer_put_uint(out, w->field_count, 8);
	writer_put(out, w->fields.data, w->fields.size);
	writer_put(out, w->tensors.data, w->tensors.size);
	while (out->size % 32) writer_put(out, "", 1);
	writer_put(out, w->data.data, w->data.size);
	buf_fini(&w->fields);
	buf_fini(&w->tensors);
	buf_fini(&w->data);
	*w = (struct writer){0};
}
