#include "serve/page.h"

#include <sha2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HASH_TEXT 45 /* base64 of SHA-256, and a NUL */

static const char *find(const char *from, const char *text)
{
	const char *end = (const char *)page_html + page_html_size;
	return memmem(from, (size_t)(end - from), text, strlen(text));
}

/* What stands between <tag> and </tag>, as browsers hash it. The build would have to lose the tag for this to find none. */
static void hash_element(const char *open, const char *close, char text[HASH_TEXT])
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint8_t digest[SHA256_DIGEST_LENGTH + 1] = {0}; /* 33 bytes: eleven groups of three, the last half empty */
	const char *from = find((const char *)page_html, open), *to = from ? find(from, close) : NULL;
	SHA2_CTX sha;
	SHA256Init(&sha);
	if (to) SHA256Update(&sha, (const uint8_t *)from + strlen(open), (size_t)(to - from) - strlen(open));
	SHA256Final(digest, &sha);
	for (int i = 0; i < 11; i++) {
		unsigned bits = (unsigned)digest[3 * i] << 16 | (unsigned)digest[3 * i + 1] << 8 | digest[3 * i + 2];
		for (int j = 0; j < 4; j++) text[4 * i + j] = digits[bits >> (18 - 6 * j) & 63];
	}
	text[43] = '=';
	text[44] = 0;
}

void page_policy(char text[PAGE_POLICY_BYTES])
{
	char script[HASH_TEXT], style[HASH_TEXT];
	hash_element("<script>", "</script>", script);
	hash_element("<style>", "</style>", style);
	snprintf(text, PAGE_POLICY_BYTES,
	         "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
	         "frame-ancestors 'none'",
	         script, style);
}
