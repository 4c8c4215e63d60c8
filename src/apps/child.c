#include "apps/child.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

#define MAX_ARGUMENTS 64
#define WAIT_MS 200   /* between two signals */
#define KILL_MS 10000 /* after this, without mercy */

/* A port that was free a moment ago: one that nobody was given since is not given out soon. */
static enum status free_port(int *port, struct error *err)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool good = fd >= 0 && !bind(fd, (struct sockaddr *)&address, size) && !getsockname(fd, (struct sockaddr *)&address, &size);
	int why = errno;
	if (fd >= 0) close(fd);
	if (!good) return FAIL(err, IO, "127.0.0.1: %s; a server needs a port there", strerror(why));
	*port = ntohs(address.sin_port);
	return STATUS_OK;
}

static void become(char **argv, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent) _exit(1);
	signal(SIGPIPE, SIG_DFL);
	dup2(STDERR_FILENO, STDOUT_FILENO); /* our stdout is a report */
	execv("/proc/self/exe", argv);
	_exit(127);
}

enum status child_start(struct child *child, const char *model, const char *options, int *port, struct error *err)
{
	char number[8], *words = NULL, *rest = NULL;
	char *argv[MAX_ARGUMENTS + 1] = {(char *)"tandem", (char *)"serve", (char *)model, (char *)"--port", number};
	int argc = 5;
	TRY(free_port(port, err));
	snprintf(number, sizeof number, "%d", *port);
	if (options && !(words = mem_strdup(options, "options", err))) return STATUS_NO_MEMORY;
	for (char *word = words ? strtok_r(words, " ", &rest) : NULL; word && argc < MAX_ARGUMENTS; word = strtok_r(NULL, " ", &rest)) argv[argc++] = word;
	pid_t self = getpid(), pid = fork();
	if (!pid) become(argv, self);
	free(words);
	if (pid < 0) return FAIL(err, IO, "fork: %s; a server cannot be started", strerror(errno));
	child->pid = pid;
	return STATUS_OK;
}

bool child_lives(struct child *child)
{
	if (child->pid && waitpid(child->pid, NULL, WNOHANG) == child->pid) child->pid = 0;
	return child->pid != 0;
}

void child_stop(struct child *child)
{
	if (!child_lives(child)) return;
	/* The second signal ends a drain; nothing here is worth one. */
	for (int i = 0; child_lives(child); i++) {
		kill(child->pid, i * WAIT_MS < KILL_MS ? SIGTERM : SIGKILL);
		for (int ms = 0; ms < WAIT_MS && child_lives(child); ms++) usleep(1000);
	}
}
