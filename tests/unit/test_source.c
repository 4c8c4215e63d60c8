/* Weight sources: safetensors files good and damaged, indexes, reading whole and in parts, the random generator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/safetensors.h"
#include "model/shard.h"
#include "model/source.h"
#include "model/skipped.h"
#include "unit/files.h"

/* ThreadSanitizer's shadow of what is read is resident too, so that resident size says nothing about us. */
#if defined(__SANITIZE_THREAD__)
#define SHADOWED true
#else
#define SHADOWED false
#endif

static enum status parse(const char *header, size_t data_bytes, struct error *err)
{
	struct buf file = {0};
	struct safetensors parsed;
	files_safetensors(&file, header, data_bytes);
	*err = (struct error){0};
	enum status st = safetensors_parse(&parsed, file.data, file.size, "model.safetensors", err);
	safetensors_fini(&parsed);
	buf_fini(&file);
	return st;
}

static void good(const char *header, size_t data_bytes)
{
	struct error err;
	if (parse(header, data_bytes, &err) != STATUS_OK) fail_msg("%s: %s", header, err.text);
}

static void bad(const char *header, size_t data_bytes, const char *needle)
{
	struct error err;
	enum status st = parse(header, data_bytes, &err);
	if (st != STATUS_BAD_INPUT) fail_msg("%s: expected bad input, got %s", header, status_name(st));
	if (!strstr(err.text, needle) || !strstr(err.text, "model.safetensors")) fail_msg("%s: expected \"%s\" in \"%s\"", header, needle, err.text);
	if (strchr(err.text, '\n')) fail_msg("%s: more than one line: %s", header, err.text);
}

/* B093, B095, B097, B099 and their like */
static void test_headers(void **state)
{
	(void)state;
	good("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]}}", 30);
	good("{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}   ", 30);
	good("{\"a\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]}}", 2); /* a scalar */
	good("{\"a\":{\"dtype\":\"F16\",\"shape\":[4,0],\"data_offsets\":[0,0]}}", 0);
	good("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}", 4);
	good("{\"v\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,4]}}", 4);
	good("{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[5],\"data_offsets\":[0,5]},\"f\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[5,7]}}", 7);
	good("{\"n\":{\"dtype\":\"SOME_NEW_TYPE\",\"shape\":[5],\"data_offsets\":[0,9]}}", 9);
	good("{}", 0);
	good("{\"__metadata__\":{}}", 0);
	good("{\"__metadata__\":{\"format\":\"pt\"}}", 0);
	good("{\"__metadata__\":null}", 0);
	bad("{\"__metadata__\":{\"n\":1}}", 0, "__metadata__");
	bad("{\"__metadata__\":[]}", 0, "__metadata__");

	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
	    "\"a\"");
	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
	    "uplicate");
	bad("{\"big\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4, "\"big\": [1000, 1000] of F32");
	bad("{\"big\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4000000]}}", 4000000, "\"big\"");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[8,4]}}", 8, "\"t\": shape");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8, "the end lies before the begin");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 8, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 8, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":\"0,4\"}}", 4, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "\"t\" ends at byte 8 of the data, the file holds 7");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775807]}}", 8, "truncated");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "1 bytes at the end belong to no tensor");
	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12,
	    "4 bytes before tensor \"b\"");
	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
	    "\"a\" and \"b\" overlap");
	bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
	    "overlap");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,0]}}", 0, "overflows");
	bad("{\"t\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952,1],\"data_offsets\":[0,0]}}", 0, "does not take");
	bad("{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "F4");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "shape");
	bad("{\"t\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "shape");
	bad("{\"t\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
	bad("{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
	bad("{\"t\":[]}", 0, "\"t\"");
	bad("{\"a\\nb\":[]}", 0, "a?b");
	bad("{\"t\":", 0, "JSON");
	bad("[]", 0, "begin with '{'");
	bad(" {}", 0, "begin with '{'");
	bad("", 0, "begin with '{'");
	bad("{} x", 0, "JSON");
	bad("{\"\xff\":{}}", 0, "JSON");
}

static void test_header_length(void **state)
{
	(void)state;
	static const struct {
		uint64_t length;
		size_t size;
		const char *needle;
	} cases[] = {
		{UINT64_C(1) << 63, 64, "header length 9223372036854775808"}, {UINT64_MAX, 64, "header length 18446744073709551615"},
		{SAFETENSORS_MAX_HEADER + 1, 64, "above the format's 100000000 bytes"}, {57, 64, "truncated"}, {0, 64, "begin with '{'"},
		{1, 64, "begin with '{'"}, {2, 7, "too few"}, {2, 0, "too few"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		unsigned char bytes[64];
		memset(bytes, '{', sizeof bytes);
		for (int b = 0; b < 8; b++) bytes[b] = (unsigned char)(cases[i].length >> 8 * b);
		struct safetensors parsed;
		struct error err = {0};
		assert_int_equal(safetensors_parse(&parsed, bytes, cases[i].size, "f", &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, cases[i].needle)) fail_msg("expected \"%s\" in \"%s\"", cases[i].needle, err.text);
		assert_null(parsed.entries);
	}
}

/* B105: 99 MB of header are legal, and the data after it is read right whatever the alignment. */
static void test_header_of_99_megabytes(void **state)
{
	(void)state;
	static const char head[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"__metadata__\":{\"x\":\"";
	size_t n = 99 * 1000 * 1000 + 1;
	char *header = malloc(n + 1);
	assert_non_null(header);
	memset(header, 'x', n);
	memcpy(header, head, sizeof head - 1);
	memcpy(header + n - 1000 - 3, "\"}}", 3);
	memset(header + n - 1000, ' ', 1000);
	header[n] = 0;
	struct buf file = {0};
	files_safetensors(&file, header, 4);
	struct safetensors parsed;
	struct error err = {0};
	if (safetensors_parse(&parsed, file.data, file.size, "f", &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(parsed.count, 1);
	assert_int_equal(parsed.data_offset, 8 + n);
	safetensors_fini(&parsed);
	buf_fini(&file);
	free(header);
}

static const char two_tensors[] = "{\"m\":{\"dtype\":\"BF16\",\"shape\":[4,3],\"data_offsets\":[0,24]},"
								  "\"v\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[24,44]},"
								  "\"q\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[44,48]}}";

static void write_model(const char *folder, const char *name, const char *header, size_t data_bytes)
{
	struct buf file = {0};
	char path[512];
	files_safetensors(&file, header, data_bytes);
	files_write(path, folder, name, file.data, file.size);
	buf_fini(&file);
}

/* A tensor of experts is read as rows below each other, and declared in three dimensions. */
static void test_stacks(void **state)
{
	(void)state;
	static const char three[] = "{\"e\":{\"dtype\":\"BF16\",\"shape\":[3,4,2],\"data_offsets\":[0,48]},\"m\":{\"dtype\":\"BF16\",\"shape\":[12,2],\"data_offsets\":[48,96]}}";
	char folder[256];
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	struct error err = {0};
	const void *data;
	size_t stride;
	files_make(folder);
	write_model(folder, "model.safetensors", three, 96);
	if (source_open_checkpoint(&source, folder, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(source_find_stack(source, "e", 3, 4, 2, &t, &err), STATUS_OK);
	assert_int_equal(t.shape[0], 12);
	assert_int_equal(t.shape[1], 2);
	assert_int_equal(source_read(source, &t, 9, 3, 1, 1, &scratch, &data, &stride, &err), STATUS_OK); /* rows 1 to 3 of the last */
	assert_int_equal(stride, 4);
	assert_int_equal(*(const unsigned char *)data, 9 * 4 + 2);
	static const struct {
		const char *name;
		int64_t count, rows, cols;
		const char *needle;
	} wrong[] = {
		{"e", 4, 3, 2, "expected shape [4, 3, 2], found [3, 4, 2]"}, /* as many elements */
		{"e", 3, 2, 4, "expected shape [3, 2, 4], found [3, 4, 2]"},
		{"m", 3, 4, 2, "expected shape [3, 4, 2], found [12, 2]"},
		{"gone", 3, 4, 2, "of shape [3, 4, 2] is missing"},
		{"e", 0, 4, 2, "above zero"},
		{"e", INT64_MAX, 2, 2, "above zero"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		err = (struct error){0};
		assert_int_equal(source_find_stack(source, wrong[i].name, wrong[i].count, wrong[i].rows, wrong[i].cols, &t, &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, wrong[i].needle)) fail_msg("expected \"%s\" in \"%s\"", wrong[i].needle, err.text);
	}
	assert_int_equal(source_find(source, "e", 2, 12, 2, &t, &err), STATUS_BAD_INPUT);
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

static void test_read(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct source *source;
	struct source_tensor m, v;
	struct source_scratch scratch = {0};
	struct error err = {0};
	const void *data;
	size_t stride;
	files_make(folder);
	write_model(folder, "model.safetensors", two_tensors, 48);
	write_model(folder, "consolidated.safetensors", "{\"stray\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4); /* B103 */
	if (source_open_checkpoint(&source, folder, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_true(source_has(source, "m") && source_has(source, "q"));
	assert_false(source_has(source, "stray") || source_has(source, "__metadata__") || source_has(source, ""));

	assert_int_equal(source_find(source, "m", 2, 4, 3, &m, &err), STATUS_OK);
	assert_int_equal(m.dtype, DTYPE_BF16);
	assert_string_equal(m.name, "m");
	assert_int_equal(source_read(source, &m, 1, 2, 1, 2, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(stride, 6);
	for (int row = 0; row < 2; row++)
		for (int byte = 0; byte < 4; byte++) /* the test data is its own offset */
			assert_int_equal(((const unsigned char *)data)[row * 6 + byte], (1 + row) * 6 + 2 + byte);
	assert_int_equal(source_bytes_read(source), 8);

	assert_int_equal(source_find(source, "v", 1, 5, 99, &v, &err), STATUS_OK);
	assert_int_equal(source_read(source, &v, 3, 2, 0, 1, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(stride, 4);
	assert_int_equal(*(const unsigned char *)data, 24 + 12);
	assert_int_equal(source_bytes_read(source), 16);

	static const int64_t outside[][4] = {{4, 1, 0, 3}, {-1, 1, 0, 3}, {0, 5, 0, 3}, {0, 1, 1, 3}, {0, 0, 0, 3}, {INT64_MAX, 2, 0, 1}, {1, INT64_MAX, 0, 1}};
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
		assert_int_equal(source_read(source, &m, outside[i][0], outside[i][1], outside[i][2], outside[i][3], &scratch, &data, &stride, NULL),
		                 STATUS_BAD_INPUT);

	static const struct {
		const char *name;
		int dims;
		int64_t rows, cols;
		enum status code;
		const char *needle;
	} wrong[] = {
		{"gone", 2, 4, 3, STATUS_BAD_INPUT, "\"gone\" of shape [4, 3] is missing"},
		{"m", 2, 3, 4, STATUS_BAD_INPUT, "expected shape [3, 4], found [4, 3]"},
		{"m", 1, 4, 0, STATUS_BAD_INPUT, "expected shape [4], found [4, 3]"},
		{"v", 2, 5, 1, STATUS_BAD_INPUT, "expected shape [5, 1], found [5]"},
		{"q", 2, 2, 2, STATUS_UNSUPPORTED, "dtype I8 is not implemented"},
		{"m", 2, 0, 3, STATUS_BAD_INPUT, "above zero"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		err = (struct error){0};
		assert_int_equal(source_find(source, wrong[i].name, wrong[i].dims, wrong[i].rows, wrong[i].cols, &m, &err), wrong[i].code);
		if (!strstr(err.text, wrong[i].needle)) fail_msg("expected \"%s\" in \"%s\"", wrong[i].needle, err.text);
	}
	source_scratch_fini(&scratch);
	source_close(&source);
	assert_null(source);
	source_close(&source);

	snprintf(path, sizeof path, "%s/consolidated.safetensors", folder); /* one file, by name */
	assert_int_equal(source_open_checkpoint(&source, path, NULL, NULL), STATUS_OK);
	assert_true(source_has(source, "stray"));
	source_close(&source);
	files_remove(folder);
}

/* A header whose length is no multiple of anything: data starts at an odd address and is still what was written. */
/* Lines that are read whole and lines of which parts are, and a file that is shortened in between. */
static void test_parts_of_lines(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		int64_t cols;
		size_t stride;
	} cases[] = {
		{"{\"w\":{\"dtype\":\"BF16\",\"shape\":[3,2047],\"data_offsets\":[0,12282]}}", 2047, 4094},
		{"{\"w\":{\"dtype\":\"BF16\",\"shape\":[3,2048],\"data_offsets\":[0,12288]}}", 2048, 14},
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		char folder[256], path[512];
		struct source *source;
		struct source_tensor t;
		struct source_scratch scratch = {0};
		struct error err = {0};
		const void *data;
		size_t stride;
		const int64_t line = 2 * cases[c].cols;
		files_make(folder);
		write_model(folder, "model.safetensors", cases[c].header, (size_t)(3 * line));
		assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
		assert_int_equal(source_find(source, "w", 2, 3, cases[c].cols, &t, NULL), STATUS_OK);
		assert_int_equal(source_read(source, &t, 1, 2, 5, 7, &scratch, &data, &stride, NULL), STATUS_OK);
		assert_int_equal(stride, cases[c].stride);
		for (int64_t row = 0; row < 2; row++)
			for (int64_t byte = 0; byte < 14; byte++)
				assert_int_equal(((const unsigned char *)data)[row * (int64_t)stride + byte], ((1 + row) * line + 10 + byte) % 251);

		snprintf(path, sizeof path, "%s/model.safetensors", folder);
		assert_int_equal(truncate(path, (off_t)(8 + strlen(cases[c].header)) + 2 * line), 0);
		assert_int_equal(source_read(source, &t, 0, 2, 5, 7, &scratch, &data, &stride, NULL), STATUS_OK);
		assert_int_equal(source_read(source, &t, 1, 2, 5, 7, &scratch, &data, &stride, &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, "model.safetensors: no byte ")) fail_msg("%s", err.text);
		source_scratch_fini(&scratch);
		source_close(&source);
		files_remove(folder);
	}
}

static void open_fails(const char *path, enum status code, const char *needle)
{
	struct source *source;
	struct error err = {0};
	enum status st = source_open_checkpoint(&source, path, NULL, &err);
	if (st != code) fail_msg("expected %s, got %s: %s", status_name(code), status_name(st), err.text);
	if (!strstr(err.text, needle)) fail_msg("expected \"%s\" in \"%s\"", needle, err.text);
	assert_null(source);
}

static void test_files_that_are_none(void **state)
{
	(void)state;
	char folder[256], path[512];
	files_make(folder);
	open_fails("/nonexistent/model", STATUS_IO, "/nonexistent/model");
	open_fails(folder, STATUS_BAD_INPUT, "no model.safetensors");
	files_write(path, folder, "model.safetensors", "", 0);
	open_fails(folder, STATUS_BAD_INPUT, "too few");
	files_write(path, folder, "model.safetensors", "0123456789abcdef", 16);
	open_fails(folder, STATUS_BAD_INPUT, "header length");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	open_fails(folder, STATUS_BAD_INPUT, "not a regular file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	open_fails(folder, STATUS_BAD_INPUT, "not a regular file"); /* and does not hang */
	files_remove(folder);

	/* B097: a file cut by one byte */
	struct buf file = {0};
	files_make(folder);
	files_safetensors(&file, two_tensors, 47);
	files_write(path, folder, "model.safetensors", file.data, file.size);
	open_fails(folder, STATUS_BAD_INPUT, "truncated");
	buf_fini(&file);
	files_remove(folder);
}

static const char first_part[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
static const char second_part[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";

static void write_index(const char *folder, const char *text)
{
	char path[512];
	files_write(path, folder, "model.safetensors.index.json", text, strlen(text));
}

/* B101, B103 */
static void test_index(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	const void *data;
	size_t stride;
	struct error err = {0};
	files_make(folder);
	write_model(folder, "one.safetensors", first_part, 8);
	write_model(folder, "two.safetensors", second_part, 8);
	write_model(folder, "adapter_model.safetensors", "{\"stray\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
	files_write(path, folder, "broken.safetensors", "not opened", 10);
	write_index(folder, "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
	if (source_open_checkpoint(&source, folder, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_false(source_has(source, "stray") || source_has(source, "x")); /* only what the index lists */
	assert_int_equal(source_find(source, "a", 1, 1, 1, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 0, 1, 0, 1, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(*(const unsigned char *)data, 0); /* the one of one.safetensors, not its namesake in two */
	source_scratch_fini(&scratch);
	source_close(&source);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
	assert_int_equal(source_open_checkpoint(&source, path, NULL, NULL), STATUS_OK);
	source_close(&source);

	static const struct {
		const char *index, *needle;
	} wrong[] = {
		{"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\",\"c\":\"four.safetensors\"}}",
	     "files missing: 2 (three.safetensors, four.safetensors)"},
		{"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}", "1 (b)"},
		{"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "outside the folder"},
		{"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "outside the folder"},
		{"{\"weight_map\":{\"a\":\"sub/../../one.safetensors\"}}", "outside the folder"},
		{"{\"weight_map\":{\"a\":\"..\"}}", "outside the folder"},
		{"{\"weight_map\":{\"a\":\"\"}}", "outside the folder"},
		{"{\"weight_map\":{\"a\":\".\"}}", "not a regular file"},
		{"{\"weight_map\":{\"a\":1}}", "\"a\""},
		{"{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}", "uplicate"},
		{"{\"weight_map\":{}}", "weight_map"},
		{"{\"weight_map\":[]}", "weight_map"},
		{"{}", "weight_map"},
		{"{\"weight_map\":", "JSON"},
		{"{\"weight_map\":{\"a\":\"broken.safetensors\"}}", "broken.safetensors"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		write_index(folder, wrong[i].index);
		open_fails(folder, STATUS_BAD_INPUT, wrong[i].needle);
	}
	/* a folder below is fine, and so is a link */
	snprintf(path, sizeof path, "%s/..sub", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof path, "%s/..sub/link", folder);
	assert_int_equal(symlink("../one.safetensors", path), 0);
	write_index(folder, "{\"weight_map\":{\"a\":\"..sub/link\"}}");
	assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
	source_close(&source);
	/* the single file comes first */
	write_index(folder, "{}");
	write_model(folder, "model.safetensors", first_part, 8);
	assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
	source_close(&source);
	files_remove(folder);
}

static void test_manifest_match(void **state)
{
	(void)state;
	static const struct {
		const char *config, *file, *expected;
	} cases[] = {
		{"model.", "model.embed_tokens.weight", "model."},
		{"model.language_model.", "model.language_model.embed_tokens.weight", "model.language_model."},
		{"model.language_model.", "language_model.model.embed_tokens.weight", "language_model.model."},
		{"model.language_model.", "model.embed_tokens.weight", "model."},
		{"model.", "embed_tokens.weight", ""},
		{"model.", "transformer.wte.weight", "model."},
	};
	char folder[256];
	files_make(folder);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct model_config config = {.q_heads = 1, .kv_heads = 1, .head_dim = 2, .hidden_size = 2, .intermediate_size = 2, .vocab_size = 2, .layers = 1};
		struct source *source;
		struct manifest m;
		char header[256];
		snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", cases[i].file);
		write_model(folder, "model.safetensors", header, 4);
		assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
		snprintf(config.tensor_prefix, sizeof config.tensor_prefix, "%s", cases[i].config);
		manifest_match(&config, source);
		assert_string_equal(config.tensor_prefix, cases[i].expected);
		assert_int_equal(manifest_init(&m, &config, NULL), STATUS_OK);
		assert_string_equal(manifest_find(&m, WEIGHT_LM_HEAD, -1)->name,
		                    cases[i].expected[0] == 'l' ? "language_model.lm_head.weight" : "lm_head.weight");
		manifest_fini(&m);
		source_close(&source);
	}
	files_remove(folder);
}

/* What the text model of a composite checkpoint leaves alone is said by kind; experts of a tensor each are not left alone. */
static void test_skipped(void **state)
{
	(void)state;
	static const struct {
		const char *folder, *expected;
	} cases[] = {
		{"tests/golden/qwen3_5-composite", "128 bytes that are not of the text model: vision 64 bytes (1 tensor), MTP 64 bytes (1 tensor)"},
		{"tests/golden/llama-tied-head", "20.5 kB that are not of the text model: other 20.5 kB (1 tensor)"},
		{"tests/golden/qwen3_next-moe", ""},
		{"tests/golden/llama", ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct model_config config;
		struct source *source;
		struct manifest m;
		char text[SKIPPED_TEXT_BYTES];
		assert_int_equal(model_config_load(&config, cases[i].folder, NULL, NULL), STATUS_OK);
		assert_int_equal(source_open_checkpoint(&source, cases[i].folder, NULL, NULL), STATUS_OK);
		manifest_match(&config, source);
		assert_int_equal(manifest_init(&m, &config, NULL), STATUS_OK);
		assert_int_equal(skipped_text(text, source, &m, NULL), STATUS_OK);
		assert_string_equal(text, cases[i].expected);
		manifest_fini(&m);
		source_close(&source);
	}
}

/* What each rank reads equals the global rows or columns, element by element, and all ranks read each byte once. */
static void test_parts_equal_the_global_tensor(void **state)
{
	(void)state;
	enum { ROWS = 24, COLS = 40 };
	char folder[256];
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	files_make(folder);
	write_model(folder, "model.safetensors", "{\"w\":{\"dtype\":\"BF16\",\"shape\":[24,40],\"data_offsets\":[0,1920]}}", ROWS * COLS * 2);
	assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
	assert_int_equal(source_find(source, "w", 2, ROWS, COLS, &t, NULL), STATUS_OK);
	uint64_t read_before = 0;
	for (int kind = SHARD_COLUMN; kind <= SHARD_ROW; kind++) {
		for (int p = 1; p <= 8; p *= 2) {
			struct weight w = {.name = "w", .rows = ROWS, .cols = COLS, .dims = 2, .kind = (enum shard_kind)kind, .unit = 1,
			                   .units = kind == SHARD_COLUMN ? ROWS : COLS};
			for (int r = 0; r < p; r++) {
				struct shard_spec s;
				const void *data;
				size_t stride;
				assert_int_equal(shard_of(&s, &w, p, r, NULL), STATUS_OK);
				int64_t row0 = s.axis == 0 ? s.begin : 0, col0 = s.axis == 1 ? s.begin : 0;
				assert_int_equal(source_read(source, &t, row0, s.local_rows, col0, s.local_cols, &scratch, &data, &stride, NULL), STATUS_OK);
				for (int64_t y = 0; y < s.local_rows; y++)
					for (int64_t x = 0; x < s.local_cols * 2; x++) {
						int64_t global = ((row0 + y) * COLS + col0) * 2 + x;
						assert_int_equal(((const unsigned char *)data)[y * (int64_t)stride + x], global % 251);
					}
			}
			assert_int_equal(source_bytes_read(source) - read_before, ROWS * COLS * 2);
			read_before = source_bytes_read(source);
		}
	}
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

/* ---- Random ---- */

static struct source *open_random(uint64_t seed, enum dtype dtype)
{
	struct source *source;
	struct error err = {0};
	if (source_open_random(&source, seed, dtype, &err) != STATUS_OK) fail_msg("%s", err.text);
	return source;
}

static float value_at(const void *data, size_t stride, enum dtype dtype, int64_t row, int64_t col)
{
	const char *at = (const char *)data + (size_t)row * stride + (size_t)col * dtype_bytes(dtype);
	uint16_t half;
	float value;
	memcpy(&half, at, 2);
	if (dtype == DTYPE_F32) memcpy(&value, at, 4);
	return dtype == DTYPE_F32 ? value : dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

static void test_random_regions(void **state)
{
	(void)state;
	enum { ROWS = 9, COLS = 37 };
	struct source *none;
	struct error refusal = {0};
	assert_int_equal(source_open_random(&none, 1, DTYPE_Q4_K, &refusal), STATUS_UNSUPPORTED);
	assert_non_null(strstr(refusal.text, "this model is Q4_K"));
	for (int dtype = 0; dtype < DTYPE_PLAIN_COUNT; dtype++) {
		struct source *source = open_random(7, (enum dtype)dtype);
		struct source_tensor t;
		struct source_scratch a = {0}, b = {0};
		const void *whole, *part;
		size_t whole_stride, stride;
		assert_int_equal(source_find(source, "model.layers.0.w.weight", 2, ROWS, COLS, &t, NULL), STATUS_OK);
		assert_int_equal(t.dtype, dtype);
		assert_int_equal(source_read(source, &t, 0, ROWS, 0, COLS, &a, &whole, &whole_stride, NULL), STATUS_OK);
		for (int64_t row = 0; row < ROWS; row += 2)
			for (int64_t col = 0; col < COLS; col++)
				for (int64_t cols = 1; col + cols <= COLS; cols += 5) {
					int64_t rows = ROWS - row < 3 ? ROWS - row : 3;
					assert_int_equal(source_read(source, &t, row, rows, col, cols, &b, &part, &stride, NULL), STATUS_OK);
					assert_int_equal(stride, (size_t)cols * dtype_bytes((enum dtype)dtype));
					for (int64_t y = 0; y < rows; y++)
						assert_memory_equal((const char *)part + (size_t)y * stride,
						                    (const char *)whole + (size_t)(row + y) * whole_stride + (size_t)col * dtype_bytes((enum dtype)dtype), stride);
				}
		source_scratch_fini(&a);
		source_scratch_fini(&b);
		assert_false(source_has(source, "model.layers.0.w.weight"));
		source_close(&source);
	}
}

/* The same values in every dtype, up to its rounding. */
static void test_random_dtypes_agree(void **state)
{
	(void)state;
	struct source_scratch scratch[3] = {0};
	const void *data[3];
	size_t stride[3];
	for (int d = 0; d < 3; d++) {
		struct source *source = open_random(3, (enum dtype)d);
		struct source_tensor t;
		assert_int_equal(source_find(source, "w", 2, 64, 5120, &t, NULL), STATUS_OK);
		assert_int_equal(source_read(source, &t, 0, 64, 0, 5120, &scratch[d], &data[d], &stride[d], NULL), STATUS_OK);
		source_close(&source);
	}
	for (int64_t row = 0; row < 64; row++)
		for (int64_t col = 0; col < 5120; col++) {
			float exact = value_at(data[DTYPE_F32], stride[DTYPE_F32], DTYPE_F32, row, col);
			float bf16 = value_at(data[DTYPE_BF16], stride[DTYPE_BF16], DTYPE_BF16, row, col);
			float f16 = value_at(data[DTYPE_F16], stride[DTYPE_F16], DTYPE_F16, row, col);
			assert_true(bf16 == bf16_to_f32(bf16_from_f32(exact)));
			/* nearest: half a unit of 11 bits, or of the subnormal grid */
			assert_true(fabs((double)f16 - (double)exact) <= fmax(fabs((double)exact) * 0x1p-11, 0x1p-25));
		}
	for (int d = 0; d < 3; d++) source_scratch_fini(&scratch[d]);
}

static void moments(struct source *source, const char *name, int dims, int64_t rows, int64_t cols, double *mean, double *deviation)
{
	struct source_tensor t;
	struct source_scratch scratch = {0};
	const void *data;
	size_t stride;
	double sum = 0, squares = 0, n = (double)rows * (double)cols;
	assert_int_equal(source_find(source, name, dims, rows, cols, &t, NULL), STATUS_OK);
	assert_int_equal(source_read(source, &t, 0, rows, 0, cols, &scratch, &data, &stride, NULL), STATUS_OK);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			double v = (double)value_at(data, stride, t.dtype, r, c);
			sum += v;
			squares += v * v;
		}
	*mean = sum / n;
	*deviation = sqrt(squares / n - *mean * *mean);
	source_scratch_fini(&scratch);
}

static void test_random_distribution(void **state)
{
	(void)state;
	struct source *source = open_random(11, DTYPE_F32);
	double mean, deviation;
	moments(source, "model.layers.3.mlp.up_proj.weight", 2, 512, 1024, &mean, &deviation);
	assert_true(fabs(mean) < 3e-4 && fabs(deviation * 32 - 1) < 0.01);
	moments(source, "model.layers.3.input_layernorm.weight", 1, 4096, 1, &mean, &deviation);
	assert_true(fabs(mean - 1) < 0.01 && deviation < 0.1);
	moments(source, "model.layers.3.self_attn.q_proj.bias", 1, 4096, 1, &mean, &deviation);
	assert_true(fabs(mean) < 0.01 && deviation < 0.1);
	source_close(&source);
}

static void test_random_depends_on_seed_and_name(void **state)
{
	(void)state;
	struct source_scratch scratch[4] = {0};
	const void *data[4];
	size_t stride;
	static const struct {
		uint64_t seed;
		const char *name;
	} which[] = {{1, "a.weight"}, {2, "a.weight"}, {1, "b.weight"}, {1, "a.weight"}};
	for (int i = 0; i < 4; i++) {
		struct source *source = open_random(which[i].seed, DTYPE_BF16);
		struct source_tensor t;
		assert_int_equal(source_find(source, which[i].name, 2, 4, 64, &t, NULL), STATUS_OK);
		assert_int_equal(source_read(source, &t, 0, 4, 0, 64, &scratch[i], &data[i], &stride, NULL), STATUS_OK);
		assert_int_equal(source_bytes_read(source), 4 * 64 * 2);
		source_close(&source);
	}
	assert_memory_equal(data[0], data[3], 512);
	assert_memory_not_equal(data[0], data[1], 512);
	assert_memory_not_equal(data[0], data[2], 512);
	assert_memory_not_equal(data[0], (const char *)data[0] + 128, 128); /* rows differ */
	for (int i = 0; i < 4; i++) source_scratch_fini(&scratch[i]);
}

/* Read in windows and dropped as it goes, a file of 64 MB leaves the resident size nearly where it was. */
static long resident_kilobytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = 0;
	if (!file) return -1;
	if (fscanf(file, "%*d %ld", &pages) != 1) pages = -1;
	fclose(file);
	return pages < 0 ? -1 : pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_reading_does_not_stay_resident(void **state)
{
	(void)state;
	enum { ROWS = 8192, COLS = 4096, WINDOW = 1024 };
	if (SHADOWED || resident_kilobytes() < 0) {
		print_message("skipped: resident size cannot be measured here (a sanitizer's shadow, or no /proc/self/statm)\n");
		skip();
	}
	char folder[256], path[512];
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	struct buf head = {0};
	files_make(folder);
	files_safetensors(&head, "{\"w\":{\"dtype\":\"BF16\",\"shape\":[8192,4096],\"data_offsets\":[0,67108864]}}", 0);
	files_write(path, folder, "model.safetensors", head.data, head.size);
	assert_int_equal(truncate(path, (off_t)(head.size + (size_t)ROWS * COLS * 2)), 0); /* a hole reads as zeros */
	buf_fini(&head);
	assert_int_equal(source_open_checkpoint(&source, folder, NULL, NULL), STATUS_OK);
	assert_int_equal(source_find(source, "w", 2, ROWS, COLS, &t, NULL), STATUS_OK);
	long before = resident_kilobytes(), most = 0;
	unsigned sum = 0;
	for (int64_t row = 0; row < ROWS; row += WINDOW) {
		const void *data;
		size_t stride;
		assert_int_equal(source_read(source, &t, row, WINDOW, 0, COLS, &scratch, &data, &stride, NULL), STATUS_OK);
		for (size_t i = 0; i < (size_t)WINDOW * COLS * 2; i += 512) sum += ((const unsigned char *)data)[i];
		long now = resident_kilobytes();
		if (now > most) most = now;
	}
	assert_int_equal(sum, 0);
	if (most - before > 16 * 1024) fail_msg("resident size grew by %ld kB with windows of 8192 kB", most - before);
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers),
		cmocka_unit_test(test_header_length),
		cmocka_unit_test(test_header_of_99_megabytes),
		cmocka_unit_test(test_stacks),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_parts_of_lines),
		cmocka_unit_test(test_files_that_are_none),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_manifest_match), cmocka_unit_test(test_skipped),
		cmocka_unit_test(test_parts_equal_the_global_tensor),
		cmocka_unit_test(test_random_regions),
		cmocka_unit_test(test_random_dtypes_agree),
		cmocka_unit_test(test_random_distribution),
		cmocka_unit_test(test_random_depends_on_seed_and_name),
		cmocka_unit_test(test_reading_does_not_stay_resident),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
