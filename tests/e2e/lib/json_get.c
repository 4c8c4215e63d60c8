/* json_get KEY... < FILE: the value at a path of object keys and array indices. Strings come as they are, arrays of plain values joined
 * with commas, other things as JSON. Exit 1 if there is no such value, 2 if the input is not JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *step(json_t *at, const char *key)
{
	if (json_is_object(at)) return json_object_get(at, key);
	char *end;
	unsigned long index = strtoul(key, &end, 10);
	return *end ? NULL : json_array_get(at, index);
}

static void print(json_t *value)
{
	if (json_is_string(value)) {
		fwrite(json_string_value(value), 1, json_string_length(value), stdout);
		return;
	}
	json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
}

int main(int argc, char **argv)
{
	json_error_t error;
	json_t *root = json_loadf(stdin, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error), *at = root;
	if (!root) return fprintf(stderr, "json_get: %s\n", error.text), 2;
	for (int i = 1; i < argc && at; i++) at = step(at, argv[i]);
	if (!at) return json_decref(root), 1;
	size_t i;
	json_t *item;
	if (json_is_array(at)) {
		json_array_foreach(at, i, item) {
			if (i) putchar(',');
			print(item);
		}
	} else print(at);
	putchar('\n');
	json_decref(root);
	return 0;
}
