/* weight_file.h: a weight file, read at places. Internal to src/model. It is not mapped: where a file is shortened while it is read, or its disk fails, a read gives an
 * error, but a mapped page a signal that ends the whole program. Immutable after open: any thread may read.
 */
#ifndef TANDEM_MODEL_WEIGHT_FILE_H
#define TANDEM_MODEL_WEIGHT_FILE_H

#include "model/source.h"

struct weight_file {
	char *path; /* NULL: not open */
	int fd;
	size_t size; /* when it was opened */
};

/* `kind` ("safetensors", "GGUF") names what the file should be in messages. IO if unreadable, BAD_INPUT if it is no file or has less than 8 bytes. */
enum status weight_file_open(struct weight_file *out, const char *path, const char *kind, struct error *err) NODISCARD;
void weight_file_close(struct weight_file *file);

/* IO, or BAD_INPUT if the file ends before that. */
enum status weight_file_read(const struct weight_file *file, size_t begin, void *into, size_t bytes, struct error *err) NODISCARD;
/* Bytes [begin, begin + bytes) will be read soon; small reads are not worth a call and are ignored. */
void weight_file_announce(const struct weight_file *file, size_t begin, size_t bytes);

/* Bytes [skip, skip + bytes) of each of `rows` lines, the first at `begin`. */
struct weight_lines {
	size_t begin, line, skip, bytes;
	int64_t rows;
};
/* Into `scratch`, as source_read. */
enum status weight_file_lines(const struct weight_file *file, const struct weight_lines *lines, struct source_scratch *scratch, const void **data, size_t *stride,
                              struct error *err) NODISCARD;

#endif
