/* Fuzzes GGUF files: what is accepted must be sound, and every field and tensor of it readable; then what is made of it: a config.
 * Corpus: tests/fuzz/corpus/gguf. */
#include <string.h>

#include "model/gguf.h"
#include "model/plan.h"

#include "fuzz/standalone.h"

static volatile uint64_t sink; /* so that reads are made */

static void read_field(const struct gguf_field *f)
{
	const unsigned char *at = f->data;
	if (f->type != GGUF_ARRAY) return;
	for (uint64_t i = 0; i < f->count; i++) {
		if (f->item == GGUF_TEXT) {
			struct gguf_text text = gguf_next_text(&at);
			for (size_t c = 0; c < text.size; c++) sink += (unsigned char)text.data[c];
		} else if (f->item == GGUF_F32) {
			sink += f32_to_bits(gguf_item_f32(f, i));
		} else if (f->item != GGUF_ARRAY) {
			sink += (uint64_t)gguf_item_int(f, i);
		}
	}
}

static void read_config(const struct gguf *file)
{
	struct model_config config;
	struct error err = {0};
	struct plan_degree plan;
	if (gguf_config(&config, file, NULL, &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n'));
		return;
	}
	check(config.layers > 0 && config.q_heads > 0 && config.hidden_size > 0 && config.head_dim > 0);
	for (int p = 1; p <= 8; p++) {
		plan_degree(&plan, &config, p, &(struct plan_options){0});
		check(plan.legal == (shard_degree(&config, p, NULL) == STATUS_OK));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf file;
	struct error err = {0};
	if (gguf_parse(&file, data, size, "f", &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n') && !file.fields && !file.tensors);
		return 0;
	}
	for (size_t i = 0; i < file.field_count; i++) read_field(&file.fields[i]);
	for (size_t i = 0; i < file.tensor_count; i++) {
		const struct gguf_tensor *t = &file.tensors[i];
		check(gguf_tensor(&file, t->name) == t);
		check(t->begin + t->bytes >= t->begin && (!t->bytes || file.data_offset + t->begin + t->bytes <= size));
		if (t->bytes) sink += data[file.data_offset + t->begin + t->bytes - 1];
	}
	read_config(&file);
	gguf_close(&file);
	return 0;
}
