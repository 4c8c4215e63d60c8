#include "model/skipped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Parts of a composite model by how their tensors are called: a name has one of these at its beginning or behind a dot. What fits none is the
 * last. */
static const struct {
	const char *what, *part[5];
} kinds[] = {
	{"vision", {"visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "mm_projector."}},
	{"audio", {"audio_tower.", "audio_model.", "embed_audio."}},
	{"MTP", {"mtp."}},
	{"other", {NULL}},
};
#define KINDS (int)(sizeof kinds / sizeof *kinds)

static bool has_part(const char *name, const char *part)
{
	for (const char *at = name; (at = strstr(at, part)); at++)
		if (at == name || at[-1] == '.') return true;
	return false;
}

static int kind_of(const char *name)
{
	for (int kind = 0; kind < KINDS - 1; kind++)
		for (int i = 0; i < 5 && kinds[kind].part[i]; i++)
			if (has_part(name, kinds[kind].part[i])) return kind;
	return KINDS - 1;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The name with '*' for the number of an expert, as the manifest has it. Too long for a manifest's: as it is. */
static const char *manifest_name(const char *name, char *out, size_t size)
{
	const char *number = strstr(name, ".experts.");
	if (!number) return name;
	number += strlen(".experts.");
	size_t digits = strspn(number, "0123456789"), begin = (size_t)(number - name);
	if (!digits || strlen(name) + 2 > size) return name;
	memcpy(out, name, begin);
	out[begin] = '*';
	strcpy(out + begin + 1, number + digits);
	return out;
}

/* "1.2 GB", "340 bytes". */
static const char *size_text(char out[24], uint64_t bytes)
{
	static const char *const units[] = {"kB", "MB", "GB", "TB"};
	double value = (double)bytes / 1e3;
	int unit = 0;
	for (; value >= 1000 && unit < 3; unit++) value /= 1000;
	if (bytes < 1000) snprintf(out, 24, "%d bytes", (int)bytes);
	else snprintf(out, 24, "%.1f %s", value, units[unit]);
	return out;
}

enum status skipped_text(char out[SKIPPED_TEXT_BYTES], const struct source *source, const struct manifest *manifest, struct error *err)
{
	uint64_t bytes[KINDS] = {0}, total = 0, size;
	int tensors[KINDS] = {0};
	out[0] = 0;
	const char **names = mem_zalloc((size_t)manifest->count, sizeof *names, "names of tensors", err);
	if (!names) return STATUS_NO_MEMORY;
	for (int i = 0; i < manifest->count; i++) names[i] = manifest->weights[i].name;
	qsort(names, (size_t)manifest->count, sizeof *names, compare);
	const char *name;
	for (size_t i = 0; (name = source_tensor_at(source, i, &size)); i++) {
		char wild[WEIGHT_NAME_BYTES];
		const char *key = manifest_name(name, wild, sizeof wild);
		if (bsearch(&key, names, (size_t)manifest->count, sizeof *names, compare)) continue;
		int kind = kind_of(name);
		bytes[kind] += size;
		total += size;
		tensors[kind]++;
	}
	free(names);
	if (!total) return STATUS_OK;
	char text[24];
	int n = snprintf(out, SKIPPED_TEXT_BYTES, "%s that are not of the text model:", size_text(text, total));
	const char *separator = " ";
	for (int kind = 0; kind < KINDS; kind++) {
		if (!tensors[kind]) continue;
		n += snprintf(out + n, SKIPPED_TEXT_BYTES - (size_t)n, "%s%s %s (%d tensor%s)", separator, kinds[kind].what,
		              size_text(text, bytes[kind]), tensors[kind], tensors[kind] == 1 ? "" : "s");
		separator = ", ";
	}
	return STATUS_OK;
}
