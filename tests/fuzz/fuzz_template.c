/* Chat templates: any bytes as source, rendered on one conversation with small budgets. */
#include <jansson.h>
#include <stdlib.h>

#include "fuzz/standalone.h"
#include "text/template.h"

static const char conversation[] =
	"[{\"role\":\"system\",\"content\":\"be \\u00e9 brief\"},{\"role\":\"user\",\"content\":\"hi <|im_end|> there\"},"
	"{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"f\","
	"\"arguments\":\"{\\\"a\\\": [1, 2.5, null], \\\"b\\\": {\\\"c\\\": \\\"d\\\"}}\"}}]},"
	"{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"content\":\"42\"},{\"role\":\"user\",\"content\":\"\\u65e5\\u672c\"}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = {0};
	struct template *template = NULL;
	struct template_output out = {0};
	struct tm now = {.tm_mday = 1, .tm_year = 126};
	if (template_parse(&template, (const char *)data, size, "fuzz", &err) != STATUS_OK) return 0;
	json_t *messages = json_loads(conversation, 0, NULL);
	struct template_input input = {.messages = messages,
	                               .tools = json_array_get(messages, 2), /* any object */
	                               .kwargs = json_array_get(messages, 1),
	                               .add_generation_prompt = true,
	                               .now = &now,
	                               .options = {.steps = 200000, .memory_bytes = 4 << 20, .output_bytes = 1 << 20, .depth = 200}};
	enum status st = template_render(template, &input, &out, &err);
	size_t last = 0;
	for (size_t i = 0; st == STATUS_OK && i < out.user_count; i++) { /* the spans are in order and within the text */
		if (out.user[i].start < last || out.user[i].end <= out.user[i].start || out.user[i].end > out.text.size) abort();
		last = out.user[i].end;
	}
	template_output_fini(&out);
	template_destroy(&template);
	json_decref(messages);
	return 0;
}
