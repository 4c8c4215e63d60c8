/* files.h: temporary folders and files for tests, and config.json texts made from a base and changes. */
#ifndef TANDEM_TESTS_FILES_H
#define TANDEM_TESTS_FILES_H

#include <stddef.h>

#include "base/buf.h"

/* A fresh folder under $TMPDIR or /tmp; files_remove deletes it with what is in it. Both end the test on failure. */
void files_make(char folder[256]);
void files_remove(const char *folder);
/* Creates folder/name (folders in between are not made) and gives its path. */
void files_write(char path[512], const char *folder, const char *name, const void *bytes, size_t n);

/* `base` (a JSON object) with the members of `change` put in, or taken out where the change says "remove!". Caller frees. */
char *files_json(const char *base, const char *change);

/* A safetensors file in memory: 8 bytes of length, header, `data_bytes` bytes 0, 1, 2, …, 250, 0, … */
void files_safetensors(struct buf *out, const char *header, size_t data_bytes);

#endif
