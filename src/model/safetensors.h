/* safetensors.h: the header of one .safetensors file, checked. Internal to src/model. Layout: 8 bytes of little-endian length n, n bytes
 * of JSON, then data; offsets in the JSON count from the data. Everything is untrusted; nothing is kept that was not checked.
 */
#ifndef TANDEM_MODEL_SAFETENSORS_H
#define TANDEM_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

#define SAFETENSORS_MAX_HEADER 100000000 /* the format's own cap */
#define SAFETENSORS_MAX_DIMS 8           /* of a shape that is kept; more only shortens messages */

struct safetensors_entry {
	char *name;
	char type[16];     /* as written, shortened */
	enum dtype dtype;  /* DTYPE_COUNT: a type that tandem does not read */
	int dims;          /* may exceed SAFETENSORS_MAX_DIMS */
	int64_t shape[SAFETENSORS_MAX_DIMS];
	uint64_t begin, end; /* bytes in the data: begin <= end <= data size */
	uint32_t file;       /* free for the caller */
};

struct safetensors {
	struct safetensors_entry *entries; /* ascending by name, names unique */
	size_t count;
	uint64_t data_offset; /* of the data in the file */
};

/* Bytes of the header, behind the eight that say so; not checked. */
uint64_t safetensors_header_length(const unsigned char start[8]);
/* `bytes`: of a file of `size` bytes, any alignment; those behind the header, or behind its length if that is refused, are not
 * looked at. `name` names it in messages. On failure *out is empty. */
enum status safetensors_parse(struct safetensors *out, const void *bytes, size_t size, const char *name, struct error *err) NODISCARD;
void safetensors_fini(struct safetensors *file);

int safetensors_compare_names(const void *a, const void *b);
/* "[2, 3]" */
void safetensors_shape_text(char *out, size_t size, const struct safetensors_entry *entry);

#endif
