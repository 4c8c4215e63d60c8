/* child.h: a `tandem serve` of our own on a free port of 127.0.0.1, for as long as a command needs it. */
#ifndef TANDEM_APPS_CHILD_H
#define TANDEM_APPS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

struct child {
	pid_t pid; /* 0: none */
};

/* Starts `tandem serve MODEL --port *port OPTIONS`; options are split at blanks, NULL: none. It shares our stderr, and ends if we die. It is
 * not ready yet on return. */
enum status child_start(struct child *child, const char *model, const char *options, int *port, struct error *err) NODISCARD;
/* False once it has ended. */
bool child_lives(struct child *child);
/* Ends it and waits. Nothing if there is none. */
void child_stop(struct child *child);

#endif
