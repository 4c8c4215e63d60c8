#include "base/thread.h"

#include <fenv.h>
#include <signal.h>

int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
	static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
	sigset_t blocked, before;
	fenv_t mode;
	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
	int code = pthread_sigmask(SIG_SETMASK, &blocked, &before);
	if (code) return code;
	(void)fegetenv(&mode);
	(void)fesetenv(FE_DFL_ENV); /* a thread begins with what its creator has */
	code = pthread_create(thread, attributes, main, argument);
	(void)fesetenv(&mode);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return code;
}
