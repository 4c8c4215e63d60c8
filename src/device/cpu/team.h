/* team.h: the threads of one CPU device, and how an op is shared among them.
 *
 * An op is cut into chunks that do not depend on each other; members claim them one by one from an atomic counter until none
 * is left. An op is complete when all its *chunks* are, not when all members came by: a member whose core is held by another
 * process simply claims nothing and nobody waits for it. Which member computes a chunk never changes a bit of the result.
 *
 * Member 0 is the thread that calls team_run (the rank worker); the others are created by team_create and joined by
 * team_destroy. Between ops they spin for about 20 us, then sleep in the kernel (base/wait.h), so an idle team uses no CPU.
 * Owner: the rank worker. No call here may be made by two threads at once.
 */
#ifndef TANDEM_DEVICE_CPU_TEAM_H
#define TANDEM_DEVICE_CPU_TEAM_H

#include <stdbool.h>

#include "base/status.h"

struct team;

struct team_options {
	const int *cores; /* hardware threads by OS index, element 0 for the caller; may be NULL when pin is false */
	int members;      /* >= 1, the caller included */
	bool pin;         /* bind each member to its core */
};

#define TEAM_MAX_MEMBERS 1024
#define TEAM_MAX_CHUNKS (1 << 20)

typedef void team_fn(void *context, int chunk, int member);

enum status team_create(struct team **out, const struct team_options *options, struct error *err) NODISCARD;
/* Joins all members. NULL is fine. */
void team_destroy(struct team **team);

/* The calling thread is member 0 from now on: binds it, if the team is bound. team_create does it too. A thread gets its old
 * mask back if it is the one that calls team_destroy. */
enum status team_attach(struct team *team, struct error *err) NODISCARD;

int team_members(const struct team *team);

/* Calls fn(context, chunk, member) once for every chunk in [0, chunks), chunks <= TEAM_MAX_CHUNKS, and returns when all are
 * done; all that they wrote is visible to the caller. */
void team_run(struct team *team, int chunks, team_fn *fn, void *context);

#endif
