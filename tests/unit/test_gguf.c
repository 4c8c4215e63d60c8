/* GGUF files, made here byte by byte: good and damaged ones, the config and the rows that come out, block types and degrees, tokenizers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/gguf.h"
#include "model/plan.h"
#include "model/rope.h"
#include "model/source.h"
#include "text/tokenizer.h"
#include "unit/files.h"

/* ---- a writer ---- */

struct writer {
	struct buf fields, tensors, data;
	uint64_t field_count, tensor_count;
};

static void put(struct buf *out, const void *bytes, size_t n)
{
	assert_int_equal(buf_append(out, bytes, n, NULL), STATUS_OK);
}

static void put_uint(struct buf *out, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) put(out, &(char){(char)(value >> 8 * i)}, 1);
}

static void put_text(struct buf *out, const char *text)
{
	put_uint(out, strlen(text), 8);
	put(out, text, strlen(text));
}

static void key(struct writer *w, const char *name, enum gguf_type type)
{
	put_text(&w->fields, name);
	put_uint(&w->fields, (uint64_t)type, 4);
	w->field_count++;
}

static void add_u32(struct writer *w, const char *name, uint32_t value)
{
	key(w, name, GGUF_U32);
	put_uint(&w->fields, value, 4);
}

static void add_f32(struct writer *w, const char *name, float value)
{
	key(w, name, GGUF_F32);
	put(&w->fields, &value, 4);
}

static void add_text(struct writer *w, const char *name, const char *value)
{
	key(w, name, GGUF_TEXT);
	put_text(&w->fields, value);
}

static void add_array(struct writer *w, const char *name, enum gguf_type item, uint64_t count)
{
	key(w, name, GGUF_ARRAY);
	put_uint(&w->fields, (uint64_t)item, 4);
	put_uint(&w->fields, count, 8);
}

/* Data: bytes 0, 1, …, 250, 0, … unless `from` is given. */
static void add_tensor(struct writer *w, const char *name, uint32_t type, int64_t rows, int64_t cols, size_t bytes, const void *from)
{
	while (w->data.size % 32) put(&w->data, "", 1);
	put_text(&w->tensors, name);
	put_uint(&w->tensors, rows ? 2 : 1, 4);
	put_uint(&w->tensors, (uint64_t)cols, 8);
	if (rows) put_uint(&w->tensors, (uint64_t)rows, 8);
	put_uint(&w->tensors, type, 4);
	put_uint(&w->tensors, w->data.size, 8);
	w->tensor_count++;
	for (size_t i = 0; i < bytes; i++) put(&w->data, from ? (const char *)from + i : &(char){(char)(i % 251)}, 1);
}

static void finish(struct writer *w, struct buf *out)
{
	*out = (struct buf){0};
	put(out, "GGUF", 4);
	put_uint(out, 3, 4);
	put_uint(out, w->tensor_count, 8);
	put_uint(out, w->field_count, 8);
	put(out, w->fields.data, w->fields.size);
	put(out, w->tensors.data, w->tensors.size);
	while (out->size % 32) put(out, "", 1);
	put(out, w->data.data, w->data.size);
	buf_fini(&w->fields);
	buf_fini(&w->tensors);
	buf_fini(&w->data);
	*w = (struct writer){0};
}

/* From a copy of exactly that size, so that a read behind it is seen. */
static enum status parse(const void *bytes, size_t n, struct error *err)
{
	struct gguf file;
	char *copy = malloc(n ? n : 1);
	memcpy(copy, bytes, n);
	*err = (struct error){0};
	enum status st = gguf_parse(&file, copy, n, "m.gguf", err);
	if (st == STATUS_OK) gguf_close(&file);
	free(copy);
	return st;
}

static void bad(struct writer *w, enum status expected, const char *needle)
{
	struct buf file;
	struct error err;
	finish(w, &file);
	enum status st = parse(file.data, file.size, &err);
	if (st != expected || !strstr(err.text, needle) || !strstr(err.text, "m.gguf") || strchr(err.text, '\n'))
		fail_msg("expected %s with \"%s\", got %s: %s", status_name(expected), needle, status_name(st), err.text);
	buf_fini(&file);
}

/* ---- the file ---- */

static void sample(struct writer *w)
{
	add_text(w, "general.architecture", "llama");
	add_u32(w, "a.u32", 7);
	key(w, "a.i8", GGUF_I8);
	put_uint(&w->fields, 0xfe, 1);
	key(w, "a.u64", GGUF_U64);
	put_uint(&w->fields, UINT64_MAX, 8);
	key(w, "a.bool", GGUF_BOOL);
	put_uint(&w->fields, 1, 1);
	add_f32(w, "a.f32", 0.5f);
	key(w, "a.f64", GGUF_F64);
	put(&w->fields, &(double){0.25}, 8);
	add_array(w, "a.texts", GGUF_TEXT, 3);
	put_text(&w->fields, "x");
	put_text(&w->fields, "");
	put_text(&w->fields, "yz");
	add_array(w, "a.nested", GGUF_ARRAY, 1);
	put_uint(&w->fields, GGUF_U8, 4);
	put_uint(&w->fields, 2, 8);
	put_uint(&w->fields, 0x0201, 2);
	add_tensor(w, "t", 0, 2, 3, 24, NULL);
	add_tensor(w, "q", 2, 3, 64, 3 * 36, NULL);
	add_tensor(w, "v", 1, 0, 5, 10, NULL);
	add_tensor(w, "new", 99, 2, 3, 0, NULL);
}

static void test_fields(void **state)
{
	(void)state;
	struct writer w = {0};
	struct buf bytes;
	struct gguf file;
	struct error err = {0};
	sample(&w);
	finish(&w, &bytes);
	assert_int_equal(gguf_parse(&file, bytes.data, bytes.size, "m.gguf", &err), STATUS_OK);
	int64_t whole = -5;
	double number = 0;
	bool flag = false;
	struct gguf_text text = {0};
	assert_int_equal(gguf_int(&file, "a.u32", 0, 10, &whole, &err), STATUS_OK);
	assert_int_equal(whole, 7);
	assert_int_equal(gguf_int(&file, "a.i8", -10, 10, &whole, &err), STATUS_OK);
	assert_int_equal(whole, -2);
	assert_int_equal(gguf_int(&file, "absent", 0, 10, &whole, &err), STATUS_OK);
	assert_int_equal(whole, -2);
	assert_int_equal(gguf_int(&file, "a.u32", 0, 6, &whole, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "a.u32: expected 0 to 6, found 7"));
	err = (struct error){0};
	assert_int_equal(gguf_int(&file, "a.u64", 0, INT64_MAX - 1, &whole, &err), STATUS_BAD_INPUT);
	err = (struct error){0};
	assert_int_equal(gguf_int(&file, "a.f32", 0, 10, &whole, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "expected an integer, found a value of type f32"));
	assert_int_equal(gguf_number(&file, "a.f32", &number, &err), STATUS_OK);
	assert_true(number == 0.5);
	assert_int_equal(gguf_number(&file, "a.f64", &number, &err), STATUS_OK);
	assert_true(number == 0.25);
	assert_int_equal(gguf_bool(&file, "a.bool", &flag, &err), STATUS_OK);
	assert_true(flag);
	assert_int_equal(gguf_string(&file, "general.architecture", &text, &err), STATUS_OK);
	assert_true(text.size == 5 && memcmp(text.data, "llama", 5) == 0);
	const struct gguf_field *array;
	err = (struct error){0};
	assert_int_equal(gguf_array(&file, "a.texts", GGUF_I32, &array, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "expected an array of i32, found an array of string"));
	assert_int_equal(gguf_array(&file, "a.texts", GGUF_TEXT, &array, &err), STATUS_OK);
	assert_int_equal(array->count, 3);
	const unsigned char *at = array->data;
	assert_int_equal(gguf_next_text(&at).size, 1);
	assert_int_equal(gguf_next_text(&at).size, 0);
	text = gguf_next_text(&at);
	assert_true(text.size == 2 && memcmp(text.data, "yz", 2) == 0);

	const struct gguf_tensor *t = gguf_tensor(&file, "q");
	assert_non_null(t);
	assert_int_equal(t->dtype, DTYPE_Q4_0);
	assert_int_equal(t->shape[0], 3);
	assert_int_equal(t->shape[1], 64);
	assert_int_equal(t->bytes, 3 * 36);
	assert_int_equal(gguf_tensor(&file, "new")->dtype, DTYPE_COUNT);
	assert_null(gguf_tensor(&file, "nobody"));
	gguf_close(&file);
	buf_fini(&bytes);
}

/* Each shorter file is refused, in one line. */
static void test_truncated(void **state)
{
	(void)state;
	struct writer w = {0};
	struct buf bytes;
	struct error err;
	sample(&w);
	finish(&w, &bytes);
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_OK);
	for (size_t n = 0; n < bytes.size; n++) {
		if (parse(bytes.data, n, &err) != STATUS_BAD_INPUT) fail_msg("%zu of %zu bytes are taken for a file", n, bytes.size);
		if (!err.text[0] || strchr(err.text, '\n')) fail_msg("%zu bytes: \"%s\"", n, err.text);
	}
	buf_fini(&bytes);
}

static void test_damaged(void **state)
{
	(void)state;
	struct writer w = {0};
	struct buf bytes;
	struct error err;
	sample(&w);
	finish(&w, &bytes);
	bytes.data[0] = 'g';
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_BAD_INPUT);
	bytes.data[0] = 'G';
	bytes.data[4] = 1;
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_UNSUPPORTED);
	memcpy(bytes.data + 4, "\0\0\0\3", 4);
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "version 3 in big-endian order"));
	memcpy(bytes.data + 4, "\2\0\0\0", 4);
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_OK);
	memset(bytes.data + 8, 0xff, 8);
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "tensors in a file of"));
	memcpy(bytes.data + 8, "\4\0\0\0\0\0\0\0", 8);
	memset(bytes.data + 16, 0x7f, 8);
	assert_int_equal(parse(bytes.data, bytes.size, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "metadata fields in a file of"));
	buf_fini(&bytes);

	add_u32(&w, "k", 1), add_u32(&w, "k", 2);
	bad(&w, STATUS_BAD_INPUT, "metadata key k is there twice");
	add_u32(&w, "", 1);
	bad(&w, STATUS_BAD_INPUT, "key is empty");
	key(&w, "k", (enum gguf_type)13), put_uint(&w.fields, 0, 8);
	bad(&w, STATUS_BAD_INPUT, "value type 13 does not exist");
	key(&w, "k", GGUF_BOOL), put_uint(&w.fields, 2, 1), add_u32(&w, "pad", 0);
	bad(&w, STATUS_BAD_INPUT, "a bool of value 2");
	key(&w, "k", GGUF_TEXT), put_uint(&w.fields, UINT64_MAX, 8);
	bad(&w, STATUS_BAD_INPUT, "a string of 18446744073709551615 bytes");
	add_array(&w, "k", GGUF_U64, UINT64_MAX / 4);
	bad(&w, STATUS_BAD_INPUT, "an array of");
	add_array(&w, "k", GGUF_TEXT, 1000);
	bad(&w, STATUS_BAD_INPUT, "an array of 1000");
	key(&w, "k", GGUF_ARRAY);
	for (int i = 0; i < 12; i++) put_uint(&w.fields, GGUF_ARRAY, 4), put_uint(&w.fields, 1, 8);
	bad(&w, STATUS_BAD_INPUT, "nested deeper");
	add_u32(&w, "general.alignment", 48);
	bad(&w, STATUS_BAD_INPUT, "power of two");
	add_u32(&w, "general.alignment", 0);
	bad(&w, STATUS_BAD_INPUT, "general.alignment");
	key(&w, "split.count", GGUF_U16), put_uint(&w.fields, 3, 2), add_u32(&w, "pad", 0);
	bad(&w, STATUS_UNSUPPORTED, "one of the 3 files");

	add_tensor(&w, "t", 0, 1, 4, 16, NULL), add_tensor(&w, "t", 0, 1, 4, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "\"t\": is there twice");
	add_tensor(&w, "t", 0, 4, INT64_MAX / 2, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "product overflows");
	add_tensor(&w, "t", 0, 4, 0, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "dimensions are zero");
	add_tensor(&w, "t", 2, 4, 33, 80, NULL);
	bad(&w, STATUS_BAD_INPUT, "no whole blocks of 32 (Q4_0)");
	add_tensor(&w, "t", 14, 1, 128, 210, NULL);
	bad(&w, STATUS_BAD_INPUT, "no whole blocks of 256 (Q6_K)");
	add_tensor(&w, "t", 0, 1, 8, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "takes 32 bytes from byte 0 of the data, the file holds 16");
	add_tensor(&w, "a\nb", 0, 1, 8, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "a?b");
	add_tensor(&w, "one", 0, 1, 16, 32, NULL), add_tensor(&w, "two", 0, 1, 16, 64, NULL);
	bad(&w, STATUS_BAD_INPUT, "\"one\" and \"two\" overlap");
	add_tensor(&w, "t", 0, 1, 4, 16, NULL);
	w.tensors.data[w.tensors.size - 8] = 4;
	bad(&w, STATUS_BAD_INPUT, "offset is not aligned");
}

/* ---- models ---- */

struct shape {
	const char *architecture;
	int hidden, inner, heads, kv_heads, layers, vocab;
};

/* Less the key `without`, where that is not NULL. */
static void metadata_but(struct writer *w, const struct shape *s, const char *without)
{
	const struct {
		const char *key;
		int value;
	} ints[] = {{"embedding_length", s->hidden}, {"feed_forward_length", s->inner}, {"attention.head_count", s->heads},
	            {"attention.head_count_kv", s->kv_heads}, {"block_count", s->layers}, {"context_length", 512}};
	char name[100];
	add_text(w, "general.architecture", s->architecture);
	for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
		snprintf(name, sizeof name, "%s.%s", s->architecture, ints[i].key);
		if (without && strcmp(ints[i].key, without) == 0) continue;
		add_u32(w, name, (uint32_t)ints[i].value);
	}
	snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", s->architecture);
	if (!without || strcmp(without, "attention.layer_norm_rms_epsilon") != 0) add_f32(w, name, 1e-5f);
	snprintf(name, sizeof name, "%s.rope.freq_base", s->architecture);
	if (!without || strcmp(without, "rope.freq_base") != 0) add_f32(w, name, 100000.0f);
	add_u32(w, "tokenizer.ggml.eos_token_id", 2);
	add_u32(w, "tokenizer.ggml.eot_token_id", 5);
	add_u32(w, "tokenizer.ggml.bos_token_id", 1);
}

static void metadata(struct writer *w, const struct shape *s)
{
	metadata_but(w, s, NULL);
}

static size_t matrix(struct writer *w, const char *name, uint32_t type, enum dtype dtype, int rows, int cols)
{
	size_t bytes = dtype_size(dtype, (size_t)rows * (size_t)cols);
	add_tensor(w, name, type, rows, cols, bytes, NULL);
	return bytes;
}

static void load(struct writer *w, char folder[256], char path[512], struct model_config *config, struct error *err, enum status expected)
{
	struct buf file;
	finish(w, &file);
	files_make(folder);
	files_write(path, folder, "m.gguf", file.data, file.size);
	buf_fini(&file);
	*err = (struct error){0};
	enum status st = model_config_load(config, path, NULL, err);
	if (st != expected) fail_msg("expected %s, got %s: %s", status_name(expected), status_name(st), err->text);
}

static void test_config(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	metadata(&w, &s);
	size_t embedding = matrix(&w, "token_embd.weight", 8, DTYPE_Q8_0, s.vocab, s.hidden);
	size_t down = matrix(&w, "blk.0.ffn_down.weight", 3, DTYPE_Q4_1, s.hidden, s.inner);
	down += matrix(&w, "blk.1.ffn_down.weight", 8, DTYPE_Q8_0, s.hidden, s.inner);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_string_equal(c.model_type, "llama");
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.intermediate_size, 96);
	assert_int_equal(c.layers, 2);
	assert_int_equal(c.q_heads, 4);
	assert_int_equal(c.kv_heads, 2);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.vocab_size, 10);
	assert_int_equal(c.max_position, 512);
	assert_true(c.rms_eps == 1e-5f);
	assert_true(c.rope.theta == 100000.0);
	assert_int_equal(c.rope.type, ROPE_DEFAULT);
	assert_true(c.tied);
	assert_false(c.qkv_bias);
	assert_int_equal(c.eos_count, 2);
	assert_int_equal(c.eos[1], 5);
	assert_int_equal(c.bos, 1);
	assert_true(c.stored.own_types);
	assert_int_equal(c.stored.role_bytes[WEIGHT_EMBED], embedding);
	assert_int_equal(c.stored.role_bytes[WEIGHT_DOWN], down);
	assert_int_equal(c.stored.down_block, 32);
	assert_int_equal(c.dtype, DTYPE_Q8_0);
	files_remove(folder);

	/* the names of qwen3 and its norms; a window on llama is Mistral's */
	metadata(&w, &(struct shape){"qwen3", 64, 96, 4, 2, 2, 10});
	add_u32(&w, "qwen3.attention.key_length", 32);
	add_u32(&w, "qwen3.attention.value_length", 32);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	matrix(&w, "output.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.head_dim, 32);
	assert_true(c.qk_norm && !c.tied && !c.qkv_bias);
	assert_int_equal(c.dtype, DTYPE_F16);
	files_remove(folder);
	metadata(&w, &s);
	add_u32(&w, "llama.attention.sliding_window", 100);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.sliding_window, 100);
	assert_int_equal(c.layer_kind[1], LAYER_SLIDING);
	files_remove(folder);
}

static void test_gemma(void **state)
{
	(void)state;
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512], name[64];
	metadata(&w, &(struct shape){"gemma3", 64, 96, 4, 1, 12, 10});
	add_u32(&w, "gemma3.attention.sliding_window", 512), add_u32(&w, "gemma3.attention.key_length", 32);
	add_text(&w, "gemma3.rope.scaling.type", "linear"), add_f32(&w, "gemma3.rope.scaling.factor", 8);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.four_norms && c.gelu && c.scaled_embedding && c.qk_norm && c.tied);
	assert_false(c.centred_norms); /* the converter has added the 1 */
	assert_true(c.rope.theta == 1e5 && c.rope.type == ROPE_LINEAR && c.rope.factor == 8);
	assert_true(c.rope_local.theta == 1e4 && c.rope_local.type == ROPE_DEFAULT);
	assert_int_equal(c.sliding_window, 512);
	assert_int_equal(c.layer_kind[4], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[5], LAYER_FULL);
	assert_true(c.query_scale == (float)(1 / sqrt(32)));
	struct gguf file;
	enum gguf_order order;
	assert_int_equal(gguf_open(&file, path, &err), STATUS_OK);
	static const char *const pairs[][2] = {{"post_attention_layernorm", "post_attention_norm"}, {"pre_feedforward_layernorm", "ffn_norm"},
	                                       {"post_feedforward_layernorm", "post_ffw_norm"}, {"input_layernorm", "attn_norm"}};
	for (int i = 0; i < 4; i++) {
		char from[80], want[80];
		snprintf(from, sizeof from, "model.layers.3.%s.weight", pairs[i][0]);
		snprintf(want, sizeof want, "blk.3.%s.weight", pairs[i][1]);
		assert_true(gguf_name_of(&file, from, name, sizeof name, &order));
		assert_string_equal(name, want);
	}
	gguf_close(&file);
	files_remove(folder);
	metadata(&w, &(struct shape){"gemma3", 64, 96, 4, 1, 62, 10}); /* the size whose scores are scaled by hidden / heads */
	add_u32(&w, "gemma3.attention.sliding_window", 512), add_u32(&w, "gemma3.attention.key_length", 32);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.query_scale == 0.25f);
	files_remove(folder);
	metadata(&w, &(struct shape){"gemma2", 64, 96, 4, 1, 4, 10});
	add_u32(&w, "gemma2.attention.sliding_window", 512), add_u32(&w, "gemma2.attention.key_length", 32);
	add_f32(&w, "gemma2.attn_logit_softcapping", 40), add_f32(&w, "gemma2.final_logit_softcapping", 20);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.attn_softcap == 40 && c.final_softcap == 20 && !c.qk_norm && !c.two_ropes && c.rope.theta == 1e5);
	assert_int_equal(c.layer_kind[2], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[3], LAYER_FULL);
	files_remove(folder);
	metadata(&w, &(struct shape){"llama", 64, 96, 4, 2, 2, 10});
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(gguf_open(&file, path, &err), STATUS_OK);
	assert_true(gguf_name_of(&file, "model.layers.0.post_attention_layernorm.weight", name, sizeof name, &order));
	assert_string_equal(name, "blk.0.ffn_norm.weight");
	assert_false(gguf_name_of(&file, "model.layers.0.pre_feedforward_layernorm.weight", name, sizeof name, &order));
	gguf_close(&file);
	files_remove(folder);
}

static void refused(struct writer *w, enum status expected, const char *needle)
{
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	load(w, folder, path, &c, &err, expected);
	if (!strstr(err.text, needle) || strchr(err.text, '\n')) fail_msg("expected \"%s\" in \"%s\"", needle, err.text);
	files_remove(folder);
}

static void test_refusals(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	add_u32(&w, "x", 1);
	refused(&w, STATUS_BAD_INPUT, "general.architecture is missing");
	metadata(&w, &(struct shape){"mamba", 64, 96, 4, 2, 2, 10});
	refused(&w, STATUS_UNSUPPORTED, "\"mamba\" is not implemented; llama, qwen2, qwen3, gemma2, gemma3 are");
	metadata(&w, &s);
	refused(&w, STATUS_BAD_INPUT, "\"token_embd.weight\" is missing");
	metadata(&w, &s), add_u32(&w, "llama.expert_count", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.expert_count");
	metadata(&w, &s), add_u32(&w, "llama.rope.dimension_count", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.dimension_count");
	metadata(&w, &s), add_u32(&w, "llama.rope.dimension_count_swa", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.dimension_count_swa");
	metadata(&w, &s), key(&w, "llama.attention.causal", GGUF_BOOL), put_uint(&w.fields, 0, 1), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.attention.causal");
	metadata(&w, &s), add_text(&w, "llama.rope.scaling.type", "longrope"), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.scaling.type");
	metadata(&w, &s), add_tensor(&w, "token_embd.weight", 20, 10, 64, 0, NULL);
	refused(&w, STATUS_UNSUPPORTED, "type IQ4_NL is not implemented");
	metadata(&w, &(struct shape){"llama", 64, 96, 0, 2, 2, 10}), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_BAD_INPUT, "head_count");
	metadata(&w, &(struct shape){"llama", 64, 96, 5, 2, 2, 10}), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_BAD_INPUT, "num_attention_heads 5");
}

static void test_rope(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	float factors[8] = {1, 1, 1, 2, 2.5f, 4, 8, 8};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	struct rope_table plain, table;
	char folder[256], path[512];
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	add_tensor(&w, "rope_freqs.weight", 0, 0, 8, sizeof factors, factors);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.rope.type, ROPE_FACTORS);
	assert_int_equal(rope_init(&table, &c, &err), STATUS_OK);
	c.rope.type = ROPE_DEFAULT;
	assert_int_equal(rope_init(&plain, &c, &err), STATUS_OK);
	for (int i = 0; i < 8; i++) assert_true(table.inv_freq[i] == plain.inv_freq[i] / factors[i]);
	files_remove(folder);

	metadata(&w, &s);
	add_text(&w, "llama.rope.scaling.type", "yarn");
	add_f32(&w, "llama.rope.scaling.factor", 4);
	add_u32(&w, "llama.rope.scaling.original_context_length", 128);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.rope.type, ROPE_YARN);
	assert_true(c.rope.factor == 4);
	assert_int_equal(c.rope.original_max_position, 128);
	files_remove(folder);
}

/* Each key of rope's scaling, under each type: read, refused by name, or without effect; none is passed over. */
static void test_rope_scaling_keys(void **state)
{
	(void)state;
	enum { PLAIN, LINEAR, YARN, NEVER, TYPES = 4 }; /* what the key makes of the type; NEVER: refused */
	static const char *const types[TYPES] = {NULL, "none", "linear", "yarn"};
	static const struct {
		const char *key;
		double value;
		int with[TYPES];   /* beside the type and no factor */
		int scaled[TYPES]; /* beside the type and a factor of 4 */
	} keys[] = {
		{"finetuned", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"original_context_length", 128, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_beta_fast", 16, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_beta_slow", 2, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"factor", 4, {LINEAR, PLAIN, LINEAR, YARN}, {0}},
		{"factor", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {0}},
		{"factor", -4, {NEVER, NEVER, NEVER, NEVER}, {0}},
		{"attn_factor", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"attn_factor", 0.5, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"yarn_attn_factor", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_attn_factor", 2, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"yarn_ext_factor", -1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_ext_factor", 0, {PLAIN, PLAIN, PLAIN, NEVER}, {LINEAR, PLAIN, LINEAR, NEVER}},
		{"yarn_ext_factor", 1, {NEVER, NEVER, NEVER, PLAIN}, {NEVER, NEVER, NEVER, YARN}},
		{"yarn_log_multiplier", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_log_multiplier", 0.1, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"alpha", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"alpha", 1000, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"of_tomorrow", 1, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
	};
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	static const enum rope_type kinds[] = {ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN};
	for (size_t n = 0; n < 2 * TYPES * sizeof keys / sizeof *keys; n++) {
		const size_t k = n / (2 * TYPES), type = n / 2 % TYPES;
		const bool scaled = n % 2;
		const int expected = scaled ? keys[k].scaled[type] : keys[k].with[type];
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512], name[80];
		snprintf(name, sizeof name, "llama.rope.scaling.%s", keys[k].key);
		if (scaled && strcmp(keys[k].key, "factor") == 0) continue;
		metadata(&w, &s);
		if (types[type]) add_text(&w, "llama.rope.scaling.type", types[type]);
		if (scaled) add_f32(&w, "llama.rope.scaling.factor", 4);
		if (strcmp(keys[k].key, "original_context_length") == 0) add_u32(&w, name, (uint32_t)keys[k].value);
		else add_f32(&w, name, (float)keys[k].value);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		if (expected == NEVER) {
			refused(&w, keys[k].value == -4 ? STATUS_BAD_INPUT : STATUS_UNSUPPORTED, name);
			continue;
		}
		load(&w, folder, path, &c, &err, STATUS_OK);
		if (c.rope.type != kinds[expected]) fail_msg("%s %g beside type %s: rope type %d", name, keys[k].value, types[type] ? types[type] : "(none)", (int)c.rope.type);
		if (expected != PLAIN) assert_true(c.rope.factor == 4);
		files_remove(folder);
	}
}

/* The older key counts where the newer does not stand, and only where there is a type to scale by. */
static void test_scale_linear(void **state)
{
	(void)state;
	static const struct {
		const char *type;
		double factor; /* of the newer key; 0: absent */
		enum rope_type expected;
		double scale;
	} cases[] = {{NULL, 0, ROPE_LINEAR, 8}, {"linear", 0, ROPE_LINEAR, 8}, {"yarn", 0, ROPE_YARN, 8}, {"none", 0, ROPE_DEFAULT, 1}, {NULL, 2, ROPE_LINEAR, 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512];
		metadata(&w, &(struct shape){"llama", 64, 96, 4, 2, 2, 10});
		if (cases[i].type) add_text(&w, "llama.rope.scaling.type", cases[i].type);
		if (cases[i].factor > 0) add_f32(&w, "llama.rope.scaling.factor", (float)cases[i].factor);
		add_f32(&w, "llama.rope.scale_linear", 8);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		load(&w, folder, path, &c, &err, STATUS_OK);
		assert_int_equal(c.rope.type, cases[i].expected);
		assert_true(c.rope.factor == cases[i].scale);
		files_remove(folder);
	}
}

/* What a file must state, and what stands for the base where it does not. */
static void test_absent_keys(void **state)
{
	(void)state;
	static const char *const needed[] = {"attention.layer_norm_rms_epsilon", "context_length"};
	const struct shape llama = {"llama", 64, 96, 4, 2, 2, 10}, gemma = {"gemma3", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	for (int i = 0; i < 2; i++) {
		metadata_but(&w, &llama, needed[i]);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		refused(&w, STATUS_BAD_INPUT, needed[i]);
	}
	metadata_but(&w, &gemma, "rope.freq_base");
	add_u32(&w, "gemma3.attention.sliding_window", 4);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.rope.theta == 10000 && c.rope_local.theta == 10000);
	files_remove(folder);
}

/* One number of heads for each layer is one number, whatever else says how wide a head is. */
static void test_heads_by_layer(void **state)
{
	(void)state;
	static const char *const architectures[] = {"llama", "gemma2"};
	for (int n = 0; n < 8; n++) {
		const bool gemma = n & 1, width = n & 2, differ = n & 4;
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512], name[80];
		metadata_but(&w, &(struct shape){architectures[gemma], 64, 96, 4, 2, 2, 10}, "attention.head_count");
		snprintf(name, sizeof name, "%s.attention.head_count", architectures[gemma]);
		add_array(&w, name, GGUF_U32, 2);
		put_uint(&w.fields, 4, 4);
		put_uint(&w.fields, differ ? 8 : 4, 4);
		snprintf(name, sizeof name, "%s.rope.dimension_count", architectures[gemma]);
		if (width) add_u32(&w, name, 16);
		if (gemma) add_u32(&w, "gemma2.attention.sliding_window", 4);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		if (differ) {
			refused(&w, STATUS_UNSUPPORTED, "attention.head_count differs from layer to layer");
			continue;
		}
		load(&w, folder, path, &c, &err, STATUS_OK);
		assert_int_equal(c.q_heads, 4);
		assert_int_equal(c.head_dim, 16);
		files_remove(folder);
	}
}

static void test_rows(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	char folder[256], path[512];
	unsigned char rows[64];
	for (int i = 0; i < 64; i++) rows[i] = (unsigned char)i; /* one byte of q in each row's first block */
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	size_t line = 2 * 34;
	unsigned char *q = calloc(64, line);
	for (int i = 0; i < 64; i++) q[(size_t)i * line + 2] = rows[i], q[(size_t)i * line + 36] = (unsigned char)(rows[i] + 100);
	add_tensor(&w, "blk.1.attn_q.weight", 8, 64, 64, 64 * line, q);
	add_tensor(&w, "blk.1.attn_k.weight", 8, 32, 64, 32 * line, q);
	add_tensor(&w, "blk.1.attn_v.weight", 8, 32, 64, 32 * line, q);
	add_tensor(&w, "blk.0.attn_norm.weight", 8, 0, 64, line, q);
	free(q);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(source_open_checkpoint(&source, path, NULL, &err), STATUS_OK);
	assert_true(source_has(source, "model.embed_tokens.weight"));
	assert_false(source_has(source, "lm_head.weight"));
	assert_false(source_has(source, "token_embd.weight"));

	/* heads of 16: rows 0, 2, 4, … first, then the odd ones */
	assert_int_equal(source_find(source, "model.layers.1.self_attn.q_proj.weight", 2, 64, 64, &t, &err), STATUS_OK);
	const void *data;
	size_t stride;
	for (int from = 0; from < 64; from += 5) {
		int n = 64 - from < 5 ? 64 - from : 5;
		assert_int_equal(source_read(source, &t, from, n, 32, 32, &scratch, &data, &stride, &err), STATUS_OK);
		for (int i = 0; i < n; i++) {
			int row = from + i, stored = row / 16 * 16 + (row % 8) * 2 + row % 16 / 8;
			assert_int_equal(((const unsigned char *)data)[(size_t)i * stride + 2], stored + 100);
		}
		source_done(source, &t, from, n);
	}
	assert_int_equal(source_read(source, &t, 0, 1, 16, 32, &scratch, &data, &stride, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "cut through blocks of 32 (Q8_0)"));

	/* two heads of k */
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.1.self_attn.k_proj.weight", 2, 32, 64, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 7, 3, 0, 32, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(((const unsigned char *)data)[2 * stride + 2], 3); /* row 9 */

	/* v is stored as it is read */
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.1.self_attn.v_proj.weight", 2, 32, 64, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 3, 2, 0, 64, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(((const unsigned char *)data)[2], 3);
	assert_int_equal(source_bytes_read(source), 64 * 34 + 3 * 34 + 2 * line);

	assert_int_equal(source_find(source, "model.layers.1.self_attn.v_proj.weight", 2, 64, 64, &t, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "\"blk.1.attn_v.weight\": expected shape [64, 64], found [32, 64]"));
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.norm.weight", 1, 64, 1, &t, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "\"output_norm.weight\" (model.norm.weight) of shape [64] is missing")) fail_msg("%s", err.text);
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.0.input_layernorm.weight", 1, 64, 1, &t, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "Q8_0 is not implemented for a vector"));
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

/* Degrees that would cut a block are refused by name; the summation tree is that of the dequantised model. */
static void test_degrees(void **state)
{
	(void)state;
	const struct shape s = {"llama", 256, 768, 8, 8, 1, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, s.vocab, s.hidden);
	matrix(&w, "blk.0.attn_output.weight", 8, DTYPE_Q8_0, s.hidden, s.hidden);
	size_t down = matrix(&w, "blk.0.ffn_down.weight", 14, DTYPE_Q6_K, s.hidden, s.inner);
	load(&w, folder, path, &c, &err, STATUS_OK);
	files_remove(folder);
	assert_int_equal(shard_degree(&c, 1, &err), STATUS_OK);
	assert_int_equal(shard_degree(&c, 2, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "quantised down_proj: number of blocks across its inputs 3 is not a multiple of 2") || !strstr(err.text, "degrees that work: 1"))
		fail_msg("%s", err.text);
	assert_int_equal(shard_tree_leaves(&c), 8);
	struct plan_degree plan;
	plan_degree(&plan, &c, 1, &(struct plan_options){0});
	assert_true(plan.legal);
	assert_int_equal(plan.sharded_bytes, down + 256 * 8 * 34);
	assert_int_equal(plan.replicated_bytes, 10 * 256 * 2);
}

/* ---- tokenizers ---- */

#define T(literal) {literal, sizeof literal - 1}

static void expect_ids(struct tokenizer *t, const char *text, bool special, const int32_t *ids, size_t n)
{
	struct token_list list = {0};
	struct error err = {0};
	assert_int_equal(tokenizer_encode(t, text, strlen(text), special, &list, &err), STATUS_OK);
	bool same = list.count == n && memcmp(list.ids, ids, n * sizeof *ids) == 0;
	for (size_t i = 0; !same && i < list.count; i++) print_message("%d ", list.ids[i]);
	if (!same) fail_msg("'%s': other ids than expected", text);
	token_list_fini(&list);
}
#define EXPECT_IDS(t, text, special, ...) expect_ids(t, text, special, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void test_scores(void **state)
{
	(void)state;
	static const struct tokenizer_text tokens[] = {T("<unk>"), T("<s>"), T("</s>"), T("<0xC3>"), T("<0xA9>"), T("\xE2\x96\x81"), T("a"), T("b"),
	                                               T("ab"),    T("aba"), T("\xE2\x96\x81" "a"), T("ba"), T("<x>")};
	static const uint8_t kinds[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4};
	static const float scores[] = {0, 0, 0, 0, 0, -10, -11, -12, -1, -2, -3, -1, 0};
	struct tokenizer_description d = {.model = TOKENIZER_SENTENCEPIECE, .count = 13, .tokens = tokens, .kinds = kinds, .scores = scores,
	                                  .bos = 1, .eos = 2, .unknown = 0, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab", true, 1, 5, 8);        /* _ a b: "ab" beats "_a" */
	EXPECT_IDS(t, "aba", false, 5, 9);         /* ab and ba are equal: the left one, then aba */
	EXPECT_IDS(t, "bab", false, 5, 11, 7);     /* here ba is the left one */
	EXPECT_IDS(t, "a\xC3\xA9", false, 10, 3, 4);
	EXPECT_IDS(t, "a<x>a", false, 10, 12, 10); /* the prefix again behind a user's token */
	EXPECT_IDS(t, "a</s>", false, 10, 2);
	struct buf text = {0};
	assert_int_equal(tokenizer_decode(t, (const int32_t[]){1, 10, 3, 4, 10}, 5, true, &text, &err), STATUS_OK);
	assert_string_equal(text.data, "a\xC3\xA9 a");
	buf_fini(&text);
	tokenizer_destroy(&t);

	d.add_space_prefix = d.add_bos = 0;
	d.add_eos = 1;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab", true, 8, 2);
	tokenizer_destroy(&t);
	d.eos = -1;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "EOS"));
}

static void test_merges(void **state)
{
	(void)state;
	static const struct tokenizer_text tokens[] = {T("a"), T("b"), T("1"), T("\xC4\xA0"), T("ab"), T("11"), T("\xC4\xA0" "a"), T("<e>"), T("aab")};
	static const uint8_t kinds[] = {1, 1, 1, 1, 1, 1, 1, 3, 1};
	static const struct tokenizer_text merges[] = {T("a b"), T("1 1"), T("\xC4\xA0 a")};
	struct tokenizer_description d = {.model = TOKENIZER_BYTE_LEVEL, .split = "gpt-2", .count = 9, .tokens = tokens, .kinds = kinds,
	                                  .merges = merges, .merge_count = 3, .bos = 7, .eos = -1, .unknown = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab 11<e>", true, 4, 3, 5, 7);
	EXPECT_IDS(t, "aab", true, 0, 4);
	tokenizer_destroy(&t);
	d.split = "smollm"; /* digits one by one */
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "a11 a", true, 0, 2, 2, 6);
	tokenizer_destroy(&t);
	d.split = "llama-bpe"; /* whole pieces first, and BOS */
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "aab", true, 7, 8);
	tokenizer_destroy(&t);
	d.split = NULL;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "11111", true, 5, 2, 5);
	tokenizer_destroy(&t);
	d.split = "nobody";
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "m: tokenizer: pre-tokenizer 'nobody' is not known"));
	static const struct tokenizer_text wrong[] = {T("ab")}, absent[] = {T("b b")};
	err = (struct error){0};
	d.split = "gpt-2";
	d.merge_count = 1;
	d.merges = wrong;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	err = (struct error){0};
	d.merges = absent;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "not in the vocabulary"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),   cmocka_unit_test(test_truncated), cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_config), cmocka_unit_test(test_gemma),   cmocka_unit_test(test_refusals),  cmocka_unit_test(test_rope),
		cmocka_unit_test(test_rows),     cmocka_unit_test(test_degrees),   cmocka_unit_test(test_scores),
		cmocka_unit_test(test_merges), cmocka_unit_test(test_rope_scaling_keys), cmocka_unit_test(test_scale_linear),
		cmocka_unit_test(test_absent_keys), cmocka_unit_test(test_heads_by_layer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
