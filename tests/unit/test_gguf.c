/* GGUF files, good and damaged: what is read of their fields and tensors, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "unit/gguf_writer.h"

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
	writer_finish(w, &file);
	enum status st = parse(file.data, file.size, &err);
	if (st != expected || !strstr(err.text, needle) || !strstr(err.text, "m.gguf") || strchr(err.text, '\n'))
		fail_msg("expected %s with \"%s\", got %s: %s", status_name(expected), needle, status_name(st), err.text);
	buf_fini(&file);
}

/* ---- the file ---- */

static void sample(struct writer *w)
{
	writer_text(w, "general.architecture", "llama");
	writer_u32(w, "a.u32", 7);
	writer_key(w, "a.i8", GGUF_I8);
	writer_put_uint(&w->fields, 0xfe, 1);
	writer_key(w, "a.u64", GGUF_U64);
	writer_put_uint(&w->fields, UINT64_MAX, 8);
	writer_key(w, "a.bool", GGUF_BOOL);
	writer_put_uint(&w->fields, 1, 1);
	writer_f32(w, "a.f32", 0.5f);
	writer_key(w, "a.f64", GGUF_F64);
	writer_put(&w->fields, &(double){0.25}, 8);
	writer_array(w, "a.texts", GGUF_TEXT, 3);
	writer_put_text(&w->fields, "x");
	writer_put_text(&w->fields, "");
	writer_put_text(&w->fields, "yz");
	writer_array(w, "a.nested", GGUF_ARRAY, 1);
	writer_put_uint(&w->fields, GGUF_U8, 4);
	writer_put_uint(&w->fields, 2, 8);
	writer_put_uint(&w->fields, 0x0201, 2);
	writer_tensor(w, "t", 0, 2, 3, 24, NULL);
	writer_tensor(w, "q", 2, 3, 64, 3 * 36, NULL);
	writer_tensor(w, "v", 1, 0, 5, 10, NULL);
	writer_tensor(w, "new", 99, 2, 3, 0, NULL);
}

static void test_fields(void **state)
{
	(void)state;
	struct writer w = {0};
	struct buf bytes;
	struct gguf file;
	struct error err = {0};
	sample(&w);
	writer_finish(&w, &bytes);
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
	writer_finish(&w, &bytes);
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
	writer_finish(&w, &bytes);
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

	writer_u32(&w, "k", 1), writer_u32(&w, "k", 2);
	bad(&w, STATUS_BAD_INPUT, "metadata key k is there twice");
	writer_u32(&w, "", 1);
	bad(&w, STATUS_BAD_INPUT, "key is empty");
	writer_key(&w, "k", (enum gguf_type)13), writer_put_uint(&w.fields, 0, 8);
	bad(&w, STATUS_BAD_INPUT, "value type 13 does not exist");
	writer_key(&w, "k", GGUF_BOOL), writer_put_uint(&w.fields, 2, 1), writer_u32(&w, "pad", 0);
	bad(&w, STATUS_BAD_INPUT, "a bool of value 2");
	writer_key(&w, "k", GGUF_TEXT), writer_put_uint(&w.fields, UINT64_MAX, 8);
	bad(&w, STATUS_BAD_INPUT, "a string of 18446744073709551615 bytes");
	writer_array(&w, "k", GGUF_U64, UINT64_MAX / 4);
	bad(&w, STATUS_BAD_INPUT, "an array of");
	writer_array(&w, "k", GGUF_TEXT, 1000);
	bad(&w, STATUS_BAD_INPUT, "an array of 1000");
	writer_key(&w, "k", GGUF_ARRAY);
	for (int i = 0; i < 12; i++) writer_put_uint(&w.fields, GGUF_ARRAY, 4), writer_put_uint(&w.fields, 1, 8);
	bad(&w, STATUS_BAD_INPUT, "nested deeper");
	writer_u32(&w, "general.alignment", 48);
	bad(&w, STATUS_BAD_INPUT, "power of two");
	writer_u32(&w, "general.alignment", 0);
	bad(&w, STATUS_BAD_INPUT, "general.alignment");
	writer_key(&w, "split.count", GGUF_U16), writer_put_uint(&w.fields, 3, 2), writer_u32(&w, "pad", 0);
	bad(&w, STATUS_UNSUPPORTED, "one of the 3 files");

	writer_tensor(&w, "t", 0, 1, 4, 16, NULL), writer_tensor(&w, "t", 0, 1, 4, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "\"t\": is there twice");
	writer_tensor(&w, "t", 0, 4, INT64_MAX / 2, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "product overflows");
	writer_tensor(&w, "t", 0, 4, 0, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "dimensions are zero");
	writer_tensor(&w, "t", 2, 4, 33, 80, NULL);
	bad(&w, STATUS_BAD_INPUT, "no whole blocks of 32 (Q4_0)");
	writer_tensor(&w, "t", 14, 1, 128, 210, NULL);
	bad(&w, STATUS_BAD_INPUT, "no whole blocks of 256 (Q6_K)");
	writer_tensor(&w, "t", 0, 1, 8, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "takes 32 bytes from byte 0 of the data, the file holds 16");
	writer_tensor(&w, "a\nb", 0, 1, 8, 16, NULL);
	bad(&w, STATUS_BAD_INPUT, "a?b");
	writer_tensor(&w, "one", 0, 1, 16, 32, NULL), writer_tensor(&w, "two", 0, 1, 16, 64, NULL);
	bad(&w, STATUS_BAD_INPUT, "\"one\" and \"two\" overlap");
	writer_tensor(&w, "t", 0, 1, 4, 16, NULL);
	w.tensors.data[w.tensors.size - 8] = 4;
	bad(&w, STATUS_BAD_INPUT, "offset is not aligned");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_damaged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
