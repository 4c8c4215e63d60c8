/* log.h: where library code reports progress and facts. Library folders never print: they write to the sink that the
 * caller gave. A zeroed `struct log` swallows everything. The sink may be called from any thread. */
#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H

#include "base/status.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN };

struct log {
	void (*write)(void *context, enum log_level level, const char *line); /* line without newline */
	void *context;
};

PRINTF_LIKE(3, 4) void log_write(const struct log *log, enum log_level level, const char *format, ...);

#endif
