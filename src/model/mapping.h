/* mapping.h: a weight file mapped read-only. Internal to src/model. The kernel pages data in as it is touched; reads of more than a few
 * pages are announced, and what every rank is done with is dropped from the process at once. A file that shrinks after it was opened is
 * not defended against. Immutable after open: any thread may read.
 */
#ifndef TANDEM_MODEL_MAPPING_H
#define TANDEM_MODEL_MAPPING_H

#include <stddef.h>

#include "base/status.h"

struct mapping {
	const unsigned char *bytes; /* NULL: not open */
	size_t size;
};

/* `kind` ("safetensors", "GGUF") names what the file should be in messages. IO if unreadable, BAD_INPUT if it is no file or has less than 8 bytes. */
enum status mapping_open(struct mapping *out, const char *path, const char *kind, struct error *err) NODISCARD;
void mapping_close(struct mapping *mapping);

/* Bytes [begin, begin + bytes) will be read soon; small reads are not worth a call and are ignored. */
void mapping_announce(const struct mapping *mapping, size_t begin, size_t bytes);
/* They are no longer needed: whole pages at both ends, a neighbour that is still read faults its page in again from the page cache. */
void mapping_drop(const struct mapping *mapping, size_t begin, size_t bytes);

#endif
