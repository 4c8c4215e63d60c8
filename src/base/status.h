/* status.h: the one return type of everything that can fail, and the error that explains it.
 *
 * A function either succeeds (STATUS_OK) or fills `struct error` once, at the origin, with actual and expected
 * values; callers only propagate (TRY, TRY_GOTO). Exit code and scope of each code stand in one X-macro. Nothing
 * here allocates, prints or keeps global state. Thread: any; a `struct error` belongs to one thread at a time.
 */
#ifndef TANDEM_BASE_STATUS_H
#define TANDEM_BASE_STATUS_H

#include <stddef.h>

/* Scope of a failure: REQUEST (this request fails), RETRY (no room now), FATAL (rank, group or device lost). */
enum status_scope { STATUS_SCOPE_NONE, STATUS_SCOPE_REQUEST, STATUS_SCOPE_RETRY, STATUS_SCOPE_FATAL };

/* X(enumerator, name, scope, process exit code) */
#define STATUS_LIST(X)                        \
	X(OK, "ok", NONE, 0)                      \
	X(USAGE, "usage", REQUEST, 2)             \
	X(BAD_INPUT, "bad input", REQUEST, 3)     \
	X(UNSUPPORTED, "unsupported", REQUEST, 3) \
	X(IO, "i/o", REQUEST, 3)                  \
	X(CANCELLED, "cancelled", REQUEST, 0)     \
	X(NO_ROOM, "no room", RETRY, 4)           \
	X(BUSY, "busy", RETRY, 4)                 \
	X(NO_MEMORY, "out of memory", RETRY, 4)   \
	X(ABORTED, "group aborted", FATAL, 5)     \
	X(TIMEOUT, "deadline passed", FATAL, 5)   \
	X(MISMATCH, "ranks disagree", FATAL, 5)   \
	X(RANK_LOST, "rank lost", FATAL, 5)       \
	X(DEVICE_FAULT, "device fault", FATAL, 6)

enum status {
#define X(code, name, scope, exit) STATUS_##code,
	STATUS_LIST(X)
#undef X
};

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Why something failed. `text` reads "<what>: <why>; <what to do>". Zero-initialised means "no error". */
struct error {
	enum status code;
	int line;         /* origin */
	const char *file; /* origin; static storage */
	char text[512];
};

#ifdef __cplusplus
extern "C" {
#endif
const char *status_name(enum status code);
enum status_scope status_scope(enum status code);
int status_exit_code(enum status code);

/* Fills `err` (may be NULL) unless it already holds a first error, and returns `code`. Use through FAIL. */
PRINTF_LIKE(5, 6)
enum status error_set(struct error *err, enum status code, const char *file, int line, const char *format, ...);

/* Puts "prefix: " before the text: for callers that know the subject (a file, a rank) that the origin could not. */
PRINTF_LIKE(2, 3) void error_prefix(struct error *err, const char *format, ...);
#ifdef __cplusplus
}
#endif

#define FAIL(err, code, ...) error_set((err), STATUS_##code, __FILE__, __LINE__, __VA_ARGS__)

#define TRY(call)                                  \
	do {                                           \
		enum status try_status_ = (call);          \
		if (try_status_ != STATUS_OK) return try_status_; \
	} while (0)

/* Needs a local `enum status st` that the fail path returns. */
#define TRY_GOTO(call, label)                \
	do {                                     \
		st = (call);                         \
		if (st != STATUS_OK) goto label;     \
	} while (0)

#endif
