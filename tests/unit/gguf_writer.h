/* gguf_writer.h: GGUF files made byte by byte, for the tests of those who read them. Failures end the test. */
#ifndef TANDEM_TESTS_GGUF_WRITER_H
#define TANDEM_TESTS_GGUF_WRITER_H

#include "base/buf.h"
#include "model/gguf.h"

struct writer {
	struct buf fields, tensors, data;
	uint64_t field_count, tensor_count;
};

/* Bytes, an integer of so many of them, a text with its length. */
void writer_put(struct buf *out, const void *bytes, size_t n);
void writer_put_uint(struct buf *out, uint64_t value, size_t bytes);
void writer_put_text(struct buf *out, const char *text);
/* A field: name and type, its value to follow; or whole. */
void writer_key(struct writer *w, const char *name, enum gguf_type type);
void writer_u32(struct writer *w, const char *name, uint32_t value);
void writer_f32(struct writer *w, const char *name, float value);
void writer_text(struct writer *w, const char *name, const char *value);
/* Its items to follow. */
void writer_array(struct writer *w, const char *name, enum gguf_type item, uint64_t count);
/* Data: bytes 0, 1, …, 250, 0, … unless `from` is given. rows 0: one dimension. */
void writer_tensor(struct writer *w, const char *name, uint32_t type, int64_t rows, int64_t cols, size_t bytes, const void *from);
/* The file, which the caller frees; `w` is empty again. */
void writer_finish(struct writer *w, struct buf *out);

#endif
