/* stop.h: stop strings, looked for in text that arrives in pieces.
 *
 * Generation ends as soon as any stop string is complete: the match that ends first wins, among those that end together the
 * longest. That does not depend on how the text was cut into pieces. What could still become a stop string is held back, no more:
 * one KMP state per string says how much of it the text's end is. O(strings) per byte, whatever the strings are.
 */
#ifndef TANDEM_SERVE_STOP_H
#define TANDEM_SERVE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define STOP_MAX_STRINGS 64
#define STOP_MAX_BYTES 4096 /* of one string */

struct stop_string {
	char *text;
	uint16_t size;
	uint16_t *fail; /* [size + 1]: length of the longest proper border of the first i bytes */
};

/* Immutable once built; shared by the choices of a request. `{0}` is empty. */
struct stop_set {
	struct stop_string items[STOP_MAX_STRINGS];
	int count;
};
/* Valid UTF-8, 1..STOP_MAX_BYTES bytes; the caller has checked, also that there is room. */
enum status stop_add(struct stop_set *set, const char *text, size_t n, struct error *err) NODISCARD;
void stop_fini(struct stop_set *set);

/* The state of one text. `{0}` is new. */
struct stop_scan {
	uint16_t matched[STOP_MAX_STRINGS]; /* bytes of string i that the text's end is */
	struct buf held;
};
void stop_scan_fini(struct stop_scan *scan);
/* Takes text[0..n) and appends to `out` what is certain. *found: index of the string that is now complete, or -1; then `out` ends before it
 * (`include`: with it) and the scan is over. */
enum status stop_push(struct stop_scan *scan, const struct stop_set *set, const char *text, size_t n, bool include, struct buf *out,
                      int *found, struct error *err) NODISCARD;
/* The same for text that may begin a stop string but not complete one: what it completes is text. */
enum status stop_pass(struct stop_scan *scan, const struct stop_set *set, const char *text, size_t n, struct buf *out, struct error *err) NODISCARD;
/* Appends what was held back. */
enum status stop_finish(struct stop_scan *scan, struct buf *out, struct error *err) NODISCARD;

#endif
