/* trace.h: when each op of a step began and ended on one rank's stream, for measurements. Worker thread; the coordinator reads between commands.
 *
 * A mark is taken behind every op, so a span is what the stream took from the end of one op to the end of the next. Steps that are traced run
 * eagerly: the marks would be part of a recorded step. Ranks' clocks are not comparable; their first marks are taken right after a meeting,
 * on idle streams, and count as the same moment.
 */
#ifndef TANDEM_ENGINE_TRACE_H
#define TANDEM_ENGINE_TRACE_H

#include <stdint.h>

#include "device/device.h"

struct trace_mark {
	const char *section, *op; /* static; what ended here */
	struct event *event;      /* NULL: host_ns says it */
	uint64_t host_ns;
	float us;                 /* from the first mark; trace_resolve */
};

struct trace {
	struct trace_mark *marks;
	int count, capacity;
	const char *section; /* of the marks to come */
};

/* Room for `marks`, made at once. */
enum status trace_create(struct trace **out, struct device *device, int marks, struct error *err) NODISCARD;
void trace_destroy(struct trace **trace);

void trace_begin(struct trace *trace, const char *section);
/* Ends a span; what has no room is not marked. */
enum status trace_mark(struct trace *trace, struct stream *stream, const char *op, struct error *err) NODISCARD;
/* Times of all marks; the stream must have been synchronised. */
enum status trace_resolve(struct trace *trace, struct error *err) NODISCARD;

#endif
