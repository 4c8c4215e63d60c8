/* `tandem logits`: the logits of every prompt position, f32 little endian [T,V], to a file, and their SHA-256 to stdout: two runs
 * that print the same line computed the same bits. */
#include <errno.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/session.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "base/out_file.h"

struct logits {
	SHA2_CTX sha;
	struct out_file out; /* not open: hash only */
	uint8_t *bytes; /* one row */
	int rows;
	int write_error;
};

static void little_endian(uint8_t *out, const float *values, int n)
{
	for (int i = 0; i < n; i++) {
		uint32_t bits = f32_to_bits(values[i]);
		for (int b = 0; b < 4; b++) out[4 * i + b] = (uint8_t)(bits >> (8 * b));
	}
}

static int on_row(void *context, int position, const float *values, int vocab_size)
{
	struct logits *logits = context;
	(void)position;
	size_t n = (size_t)vocab_size * 4;
	little_endian(logits->bytes, values, vocab_size);
	SHA256Update(&logits->sha, logits->bytes, n);
	logits->rows++;
	if (!logits->out.file || fwrite(logits->bytes, 1, n, logits->out.file) == n) return 0;
	logits->write_error = errno;
	return 1;
}

static enum status compute(struct logits *logits, struct session *session, const struct settings *settings, struct error *err)
{
	logits->bytes = mem_zalloc((size_t)session->info.vocab_size, 4, "a row of logits", err);
	if (!logits->bytes) return STATUS_NO_MEMORY;
	SHA256Init(&logits->sha);
	struct tandem_error from = {0};
	int code = tandem_logits(session->engine, settings->tokens.items, settings->tokens.count, on_row, logits, &from);
	if (logits->write_error)
		return FAIL(err, IO, "%s: %s after %d rows; free some space", settings->out, strerror(logits->write_error), logits->rows);
	TRY(session_error(code, &from, err));
	return logits->out.file ? out_file_commit(&logits->out, settings->out, err) : STATUS_OK;
}

static enum status print_sha(struct logits *logits, struct error *err)
{
	uint8_t digest[SHA256_DIGEST_LENGTH];
	char line[2 * SHA256_DIGEST_LENGTH + 2];
	SHA256Final(digest, &logits->sha);
	for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) snprintf(line + 2 * i, 3, "%02x", digest[i]);
	strcat(line, "\n");
	return output_write(line, strlen(line), err);
}

static enum status run_all(struct logits *logits, struct session *session, const struct settings *settings, struct error *err)
{
	if (!settings->tokens.items) return FAIL(err, USAGE, "--tokens: missing; give the prompt as token ids such as 1,2,3");
	if (!settings->tokens.count) return FAIL(err, BAD_INPUT, "--tokens: has no token; give ids such as 1,2,3");
	if (settings->out) TRY(out_file_open(&logits->out, settings->out, err));
	TRY(session_open(session, settings, &(struct session_needs){0}, err));
	TRY(compute(logits, session, settings, err));
	return print_sha(logits, err);
}

enum status cmd_logits(const struct settings *settings, struct error *err)
{
	struct logits logits = {0};
	struct session session = {0};
	enum status st = run_all(&logits, &session, settings, err);
	session_close(&session);
	out_file_drop(&logits.out);
	free(logits.bytes);
	return st;
}
