/* UTF-8: every code point, every short byte string against a slow reading of the standard's table, and streams cut anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "text/byte_chars.h"
#include "text/utf8.h"

static void test_every_code_point_round_trips(void **state)
{
	(void)state;
	for (uint32_t cp = 0; cp < 0x110000; cp++) {
		if (cp >= 0xD800 && cp < 0xE000) continue;
		char bytes[4];
		uint32_t back;
		size_t n = utf8_encode(cp, bytes);
		assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
		assert_int_equal(utf8_length(bytes[0]), n);
		assert_int_equal(utf8_decode(bytes, n, &back), n);
		assert_int_equal(back, cp);
		assert_int_equal(utf8_valid_prefix(bytes, n), n);
		for (size_t k = 1; k < n; k++) { /* a proper prefix is one subpart */
			assert_int_equal(utf8_decode(bytes, k, &back), k);
			assert_int_equal(back, UTF8_BAD);
		}
	}
}

/* Table 3-7 row by row: lead range, range of the second byte, length. */
static const uint8_t rows[][5] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
                                  {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};

/* Length of the maximal subpart at p, by the table; *good if it is a whole sequence. */
static size_t subpart(const uint8_t *p, size_t n, bool *good)
{
	*good = p[0] < 0x80;
	for (size_t r = 0; r < 8; r++) {
		if (p[0] < rows[r][0] || p[0] > rows[r][1]) continue;
		size_t i = 1;
		while (i < rows[r][4] && i < n && p[i] >= (i == 1 ? rows[r][2] : 0x80) && p[i] <= (i == 1 ? rows[r][3] : 0xBF)) i++;
		*good = i == rows[r][4];
		return i;
	}
	return 1;
}

static void reference(const uint8_t *p, size_t n, struct buf *out)
{
	while (n > 0) {
		bool good;
		size_t k = subpart(p, n, &good);
		if (buf_append(out, good ? (const char *)p : UTF8_REPLACEMENT, good ? k : 3, NULL) != STATUS_OK) fail();
		p += k;
		n -= k;
	}
}

static void check_bytes(const uint8_t *bytes, size_t n, size_t cut)
{
	struct buf want = {0}, whole = {0}, parts = {0};
	struct utf8_stream stream = {0};
	const char *p = (const char *)bytes;
	struct error err = {0};
	reference(bytes, n, &want);
	assert_int_equal(utf8_append_lossy(&whole, p, n, &err), STATUS_OK);
	assert_int_equal(utf8_stream_push(&stream, p, cut, &parts, &err), STATUS_OK);
	assert_int_equal(utf8_valid_prefix(parts.data ? parts.data : "", parts.size), parts.size);
	for (size_t i = cut; i < n; i++) assert_int_equal(utf8_stream_push(&stream, p + i, 1, &parts, &err), STATUS_OK);
	assert_int_equal(utf8_stream_finish(&stream, &parts, &err), STATUS_OK);
	if (want.size != whole.size || memcmp(want.data, whole.data, want.size) != 0) fail_msg("lossy: %02x %02x %02x %02x", bytes[0], bytes[1], bytes[2], bytes[3]);
	if (want.size != parts.size || memcmp(want.data, parts.data, want.size) != 0)
		fail_msg("stream cut at %zu: %02x %02x %02x %02x", cut, bytes[0], bytes[1], bytes[2], bytes[3]);
	buf_fini(&want);
	buf_fini(&whole);
	buf_fini(&parts);
}

static void test_damaged_bytes_give_one_mark_for_each_subpart(void **state)
{
	(void)state;
	static const uint8_t edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
	size_t n = sizeof edges;
	uint8_t bytes[12];
	for (size_t a = 0; a < n; a++)
		for (size_t b = 0; b < n; b++)
			for (size_t c = 0; c < n; c++) {
				bytes[0] = edges[a], bytes[1] = edges[b], bytes[2] = edges[c], bytes[3] = edges[(a * 7 + b * 3 + c) % n];
				for (size_t cut = 0; cut <= 4; cut++) check_bytes(bytes, 4, cut);
			}
	for (uint64_t i = 0; i < 20000; i++) {
		for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = edges[rng_u64(1, i, k) % n];
		check_bytes(bytes, sizeof bytes, rng_u64(2, i, 0) % (sizeof bytes + 1));
	}
}

static void test_printable_characters_of_bytes(void **state)
{
	(void)state;
	int seen = 0;
	for (uint32_t cp = 0; cp < 0x400; cp++) {
		int byte = byte_of_char(cp);
		if (byte < 0) continue;
		seen++;
		assert_int_equal(byte_char((uint8_t)byte), cp);
	}
	assert_int_equal(seen, 256);
	assert_int_equal(byte_char(' '), 0x120);
	assert_int_equal(byte_char('\n'), 0x10A);
	assert_int_equal(byte_char('a'), 'a');
	assert_int_equal(byte_char(0xAD), 0x143);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_code_point_round_trips),
		cmocka_unit_test(test_damaged_bytes_give_one_mark_for_each_subpart),
		cmocka_unit_test(test_printable_characters_of_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
