#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
	static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
	sigset_t blocked, before;
	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
	int code = pthread_sigmask(SIG_SETMASK, &blocked, &before);
	if (code) return code;
	code = pthread_create(thread, attributes, main, argument);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return code;
}
