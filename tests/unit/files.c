#include "unit/files.h"

#include <ftw.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void files_make(char folder[256])
{
	const char *root = getenv("TMPDIR");
	snprintf(folder, 256, "%s/tandem-test-XXXXXX", root && *root ? root : "/tmp");
	if (!mkdtemp(folder)) fail_msg("%s cannot be made", folder);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
	(void)info;
	(void)type;
	(void)where;
	return remove(path);
}

void files_remove(const char *folder)
{
	if (nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0) fail_msg("%s cannot be removed", folder);
}

void files_write(char path[512], const char *folder, const char *name, const void *bytes, size_t n)
{
	snprintf(path, 512, "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) fail_msg("%s cannot be written", path);
}

char *files_json(const char *base, const char *change)
{
	json_error_t error;
	json_t *object = json_loads(base, 0, &error), *changes = json_loads(change, 0, &error);
	if (!object || !changes) fail_msg("%s: not JSON: %s", object ? change : base, error.text);
	const char *key;
	json_t *value;
	json_object_foreach(changes, key, value) {
		if (json_is_string(value) && strcmp(json_string_value(value), "remove!") == 0) json_object_del(object, key);
		else json_object_set(object, key, value);
	}
	char *text = json_dumps(object, JSON_INDENT(1));
	json_decref(object);
	json_decref(changes);
	return text;
}

void files_safetensors(struct buf *out, const char *header, size_t data_bytes)
{
	struct error err = {0};
	uint64_t n = strlen(header);
	unsigned char length[8];
	for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n >> 8 * i);
	enum status st = buf_append(out, length, 8, &err);
	if (st == STATUS_OK) st = buf_append(out, header, n, &err);
	for (size_t i = 0; st == STATUS_OK && i < data_bytes; i++) st = buf_append(out, &(char){(char)(i % 251)}, 1, &err);
	if (st != STATUS_OK) fail_msg("%s", err.text);
}
