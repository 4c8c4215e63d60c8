#include "engine/trace.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

enum status trace_create(struct trace **out, struct device *device, int marks, struct error *err)
{
	*out = NULL;
	enum status st = STATUS_NO_MEMORY;
	struct trace *t = mem_zalloc(1, sizeof *t, "trace", err);
	if (!t) return st;
	t->marks = mem_zalloc((size_t)marks, sizeof *t->marks, "trace", err);
	if (!t->marks) goto fail;
	t->capacity = marks;
	for (int i = 0; i < marks && device->vt->event_create; i++)
		TRY_GOTO(device->vt->event_create(device, &t->marks[i].event, err), fail);
	*out = t;
	return STATUS_OK;
fail:
	trace_destroy(&t);
	return st;
}

void trace_destroy(struct trace **trace)
{
	struct trace *t = *trace;
	if (!t) return;
	*trace = NULL;
	for (int i = 0; i < t->capacity; i++)
		if (t->marks[i].event) t->marks[i].event->vt->event_destroy(t->marks[i].event);
	free(t->marks);
	free(t);
}

void trace_begin(struct trace *t, const char *section)
{
	t->count = 0;
	t->section = section;
}

enum status trace_mark(struct trace *t, struct stream *stream, const char *op, struct error *err)
{
	if (t->count == t->capacity) return STATUS_OK;
	struct trace_mark *mark = &t->marks[t->count++];
	mark->section = t->section;
	mark->op = op;
	if (mark->event) return stream->vt->event_record(mark->event, stream, err);
	mark->host_ns = clock_ns();
	return STATUS_OK;
}

enum status trace_resolve(struct trace *t, struct error *err)
{
	for (int i = 0; i < t->count; i++) {
		struct trace_mark *mark = &t->marks[i];
		float ms = (float)((double)(mark->host_ns - t->marks[0].host_ns) / 1e6);
		if (mark->event) TRY(mark->event->vt->event_elapsed_ms(t->marks[0].event, mark->event, &ms, err));
		mark->us = ms * 1000;
	}
	return STATUS_OK;
}
