#include "unit/golden.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what, const char *path)
{
	fprintf(stderr, "golden: cannot %s %s\n", what, path);
	exit(1);
}

static json_t *load(const char *path)
{
	json_error_t error;
	json_t *json = json_load_file(path, 0, &error);
	if (!json) die("read", path);
	return json;
}

json_t *golden_index(void)
{
	return load(GOLDEN_DIR "INDEX.json");
}

json_t *golden_load(const char *model, const char *file)
{
	char path[256];
	snprintf(path, sizeof path, GOLDEN_DIR "%s/%s", model, file);
	return load(path);
}

void golden_variant(char path[256], const char *model, const char *config)
{
	char from[256], here[200], link_path[600], target[800];
	snprintf(path, 256, "/tmp/tandem-golden-XXXXXX");
	snprintf(from, sizeof from, GOLDEN_DIR "%s", model);
	if (!mkdtemp(path) || !getcwd(here, sizeof here)) die("make", path);
	DIR *dir = opendir(from);
	if (!dir) die("open", from);
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "config.json")) continue;
		snprintf(link_path, sizeof link_path, "%s/%s", path, entry->d_name);
		snprintf(target, sizeof target, "%s/%s/%s", here, from, entry->d_name);
		if (symlink(target, link_path)) die("link", link_path);
	}
	closedir(dir);
	snprintf(link_path, sizeof link_path, "%s/config.json", path);
	snprintf(target, sizeof target, "%s/%s/%s", here, from, config);
	if (symlink(target, link_path)) die("link", link_path);
}

void golden_variant_remove(const char *path)
{
	DIR *dir = opendir(path);
	if (!dir) return;
	char entry_path[600];
	for (struct dirent *entry; (entry = readdir(dir));) {
		snprintf(entry_path, sizeof entry_path, "%s/%s", path, entry->d_name);
		if (entry->d_name[0] != '.') unlink(entry_path);
	}
	closedir(dir);
	rmdir(path);
}

int golden_ids(const json_t *array, int32_t *ids, int max)
{
	int n = (int)json_array_size(array);
	if (n > max) die("hold the ids of", "a golden case");
	for (int i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
	return n;
}

float *golden_floats(const char *model, const char *file, size_t count)
{
	char path[256];
	snprintf(path, sizeof path, GOLDEN_DIR "%s/%s", model, file);
	FILE *in = fopen(path, "rb");
	float *values = malloc(count * sizeof *values);
	if (!in || !values || fread(values, sizeof *values, count, in) != count || fgetc(in) != EOF) die("read", path);
	fclose(in);
	return values;
}

struct collector {
	float *logits;
};

static int collect(void *context, int position, const float *logits, int vocab)
{
	struct collector *c = context;
	memcpy(c->logits + (size_t)position * (size_t)vocab, logits, (size_t)vocab * sizeof *logits);
	return 0;
}

float *golden_logits(const struct tandem_options *options, const int32_t *tokens, int count, int *vocab, struct tandem_error *err)
{
	struct tandem *engine;
	if (tandem_open(&engine, options, err)) return NULL;
	struct tandem_info info;
	tandem_get_info(engine, &info);
	*vocab = info.vocab_size;
	struct collector c = {malloc((size_t)count * (size_t)info.vocab_size * sizeof(float))};
	int code = tandem_logits(engine, tokens, count, collect, &c, err);
	tandem_close(&engine);
	if (!code) return c.logits;
	free(c.logits);
	return NULL;
}

int golden_greedy(struct tandem *engine, const int32_t *tokens, int count, int n, bool ignore_eos, int32_t *out, int *got, struct tandem_error *err)
{
	uint64_t id;
	struct tandem_request request = {.prompt = tokens, .prompt_count = count, .max_tokens = n, .ignore_eos = ignore_eos};
	*got = 0;
	int code = tandem_submit(engine, &request, &id, err);
	while (!code) {
		struct tandem_event events[64];
		int events_count;
		bool idle;
		code = tandem_step(engine, events, 64, &events_count, &idle, err);
		for (int i = 0; i < events_count; i++)
			if (events[i].token >= 0) out[(*got)++] = events[i].token;
		if (idle || (events_count && events[events_count - 1].finish != TANDEM_RUNNING)) break;
	}
	return code;
}
