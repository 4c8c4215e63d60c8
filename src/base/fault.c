#include "base/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

static const char *const point_names[] = {
#define X(code, name, counts) name,
	FAULT_POINT_LIST(X)
#undef X
};

static enum status bad_fault(const char *text, struct error *err)
{
	static const char points[] =
#define X(code, name, counts) "|" name
		FAULT_POINT_LIST(X);
#undef X
	return FAIL(err, USAGE, "--fault '%s': expected rank=N,at=%s,seq=N[,kind=error|oom|stall:MS|exit]; separate several by ';'", text, points + 1);
}

static bool parse_u64(const char *text, uint64_t limit, uint64_t *out)
{
	char *end;
	errno = 0;
	if (*text < '0' || *text > '9') return false;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno || *end || value > limit) return false;
	*out = value;
	return true;
}

static bool parse_kind(const char *text, struct fault_entry *entry)
{
	uint64_t ms;
	if (!strcmp(text, "error")) entry->kind = FAULT_KIND_ERROR;
	else if (!strcmp(text, "oom")) entry->kind = FAULT_KIND_OOM;
	else if (!strcmp(text, "exit")) entry->kind = FAULT_KIND_EXIT;
	else if (!strncmp(text, "stall:", 6) && parse_u64(text + 6, 86400000, &ms)) {
		entry->kind = FAULT_KIND_STALL;
		entry->stall_ms = (uint32_t)ms;
	} else return false;
	return true;
}

static bool parse_field(const char *key, const char *value, struct fault_entry *entry, unsigned *seen)
{
	uint64_t number;
	if (!strcmp(key, "rank") && parse_u64(value, 1023, &number)) {
		entry->rank = (int)number;
		*seen |= 1;
		return true;
	}
	if (!strcmp(key, "seq") && parse_u64(value, UINT64_MAX, &entry->seq)) return true;
	if (!strcmp(key, "kind")) return parse_kind(value, entry);
	if (strcmp(key, "at") != 0) return false;
	for (int i = 0; i < FAULT_POINT_COUNT; i++) {
		if (strcmp(value, point_names[i]) != 0) continue;
		entry->at = (enum fault_point)i;
		*seen |= 2;
		return true;
	}
	return false;
}

enum status fault_parse(struct fault_plan *plan, const char *text, struct error *err)
{
	*plan = (struct fault_plan){0};
	char copy[512];
	if (strlen(text) >= sizeof copy) return bad_fault(text, err);
	strcpy(copy, text);
	char *rest = copy, *item;
	while ((item = strsep(&rest, ";"))) {
		if (plan->count == FAULT_MAX_ENTRIES) return FAIL(err, USAGE, "--fault: at most %d entries", FAULT_MAX_ENTRIES);
		struct fault_entry *entry = &plan->entries[plan->count++];
		unsigned seen = 0;
		char *field;
		while ((field = strsep(&item, ","))) {
			char *value = strchr(field, '=');
			if (!value) return bad_fault(text, err);
			*value++ = 0;
			if (!parse_field(field, value, entry, &seen)) return bad_fault(text, err);
		}
		if (seen != 3) return bad_fault(text, err);
	}
	return STATUS_OK;
}

static void stall(uint32_t ms, const _Atomic int *stop)
{
	uint64_t end = clock_deadline_ms(ms);
	while (clock_ns() < end && !(stop && atomic_load(stop))) {
		struct timespec slice = {.tv_nsec = 1000000};
		nanosleep(&slice, NULL);
	}
}

enum status fault_check(struct fault_plan *plan, int rank, enum fault_point at, uint64_t seq, const _Atomic int *stop, struct error *err)
{
	if (!plan || !plan->count) return STATUS_OK;
	for (int i = 0; i < plan->count; i++) {
		struct fault_entry *entry = &plan->entries[i];
		if (entry->rank != rank || entry->at != at || seq < entry->seq) continue;
		if (atomic_exchange(&entry->fired, true)) continue;
		switch (entry->kind) {
		case FAULT_KIND_STALL: stall(entry->stall_ms, stop); break;
		case FAULT_KIND_OOM:
			return FAIL(err, NO_MEMORY, "rank %d: injected lack of memory at %s, seq %llu; run without --fault", rank, point_names[at],
			            (unsigned long long)seq);
		case FAULT_KIND_EXIT:
			return FAIL(err, RANK_LOST, "rank %d: injected exit at %s, seq %llu; run without --fault", rank, point_names[at],
			            (unsigned long long)seq);
		case FAULT_KIND_ERROR:
			return FAIL(err, ABORTED, "rank %d: injected error at %s, seq %llu; run without --fault", rank, point_names[at],
			            (unsigned long long)seq);
		}
	}
	return STATUS_OK;
}
