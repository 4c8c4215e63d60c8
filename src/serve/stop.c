#include "serve/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum status stop_add(struct stop_set *set, const char *text, size_t n, struct error *err)
{
	struct stop_string made = {.size = (uint16_t)n};
	made.text = mem_zalloc(n + 1, 1, "stop string", err);
	made.fail = mem_zalloc(n + 1, sizeof *made.fail, "stop string", err);
	if (!made.text || !made.fail) {
		free(made.text);
		free(made.fail);
		return STATUS_NO_MEMORY;
	}
	memcpy(made.text, text, n);
	for (size_t i = 1, border = 0; i < n; i++) {
		while (border && text[i] != text[border]) border = made.fail[border];
		if (text[i] == text[border]) border++;
		made.fail[i + 1] = (uint16_t)border;
	}
	set->items[set->count++] = made;
	return STATUS_OK;
}

void stop_fini(struct stop_set *set)
{
	for (int i = 0; i < set->count; i++) {
		free(set->items[i].text);
		free(set->items[i].fail);
	}
	set->count = 0;
}

void stop_scan_fini(struct stop_scan *scan)
{
	buf_fini(&scan->held);
}

/* One more byte; the index of the longest string that it completes, or -1. A complete one goes on as the beginning that its end is. */
static int feed(struct stop_scan *scan, const struct stop_set *set, char byte)
{
	int found = -1;
	for (int i = 0; i < set->count; i++) {
		const struct stop_string *s = &set->items[i];
		unsigned state = scan->matched[i];
		while (state && s->text[state] != byte) state = s->fail[state];
		if (s->text[state] == byte) state++;
		if (state == s->size) {
			if (found < 0 || s->size > set->items[found].size) found = i;
			state = s->fail[state];
		}
		scan->matched[i] = (uint16_t)state;
	}
	return found;
}

/* `keep` bytes of the end stay held. */
static enum status let_out(struct stop_scan *scan, size_t keep, struct buf *out, struct error *err)
{
	size_t certain = scan->held.size - keep;
	TRY(buf_append(out, scan->held.data, certain, err));
	memmove(scan->held.data, scan->held.data + certain, keep + 1);
	scan->held.size = keep;
	return STATUS_OK;
}

static size_t longest_begun(const struct stop_scan *scan, const struct stop_set *set)
{
	size_t most = 0;
	for (int i = 0; i < set->count; i++)
		if (scan->matched[i] > most) most = scan->matched[i];
	return most;
}

enum status stop_push(struct stop_scan *scan, const struct stop_set *set, const char *text, size_t n, bool include, struct buf *out,
                      int *found, struct error *err)
{
	*found = -1;
	if (!set->count) return buf_append(out, text, n, err);
	size_t used = 0;
	while (used < n && *found < 0) *found = feed(scan, set, text[used++]);
	TRY(buf_append(&scan->held, text, used, err));
	if (*found < 0) return let_out(scan, longest_begun(scan, set), out, err);
	TRY(let_out(scan, include ? 0 : set->items[*found].size, out, err));
	buf_clear(&scan->held);
	return STATUS_OK;
}

enum status stop_pass(struct stop_scan *scan, const struct stop_set *set, const char *text, size_t n, struct buf *out, struct error *err)
{
	if (!set->count) return buf_append(out, text, n, err);
	for (size_t i = 0; i < n; i++) (void)feed(scan, set, text[i]);
	TRY(buf_append(&scan->held, text, n, err));
	return let_out(scan, longest_begun(scan, set), out, err);
}

enum status stop_finish(struct stop_scan *scan, struct buf *out, struct error *err)
{
	enum status st = buf_append(out, scan->held.data, scan->held.size, err);
	buf_clear(&scan->held);
	return st;
}
