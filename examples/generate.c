/* Token ids in, token ids out. Build against an installed tandem:
 *     cc generate.c $(pkg-config --cflags --libs tandem) -o generate
 *     ./generate MODEL 2 1 92 109        # world size 2, prompt 1 92 109 */
#include <stdio.h>
#include <stdlib.h>
#include <tandem.h>

static int failed(const struct tandem_error *err)
{
	fprintf(stderr, "%s\n", err->text);
	return tandem_exit_code(err->code);
}

int main(int argc, char **argv)
{
	if (argc < 4) return fprintf(stderr, "usage: generate MODEL RANKS ID...\n"), 2;
	struct tandem_error err = {0};
	struct tandem *engine;
	if (tandem_open(&engine, &(struct tandem_options){.model = argv[1], .world_size = atoi(argv[2])}, &err)) return failed(&err);

	int32_t prompt[1024];
	int count = 0;
	while (count < 1024 && count + 3 < argc) prompt[count] = (int32_t)strtol(argv[count + 3], NULL, 10), count++;

	/* Zeroed sampling is greedy: the same ids for every number of ranks. */
	uint64_t id;
	struct tandem_request request = {.prompt = prompt, .prompt_count = count, .max_tokens = 16};
	int status = tandem_submit(engine, &request, &id, &err);
	for (bool idle = false; !status && !idle;) {
		struct tandem_event events[8];
		status = tandem_step(engine, events, 8, &count, &idle, &err);
		for (int i = 0; i < count; i++)
			if (events[i].token >= 0) printf("%d\n", (int)events[i].token);
	}
	tandem_close(&engine);
	return status ? failed(&err) : 0;
}
