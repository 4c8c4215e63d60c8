/* thread.h: how a thread of ours starts, whoever's thread starts it. */
#ifndef TANDEM_BASE_THREAD_H
#define TANDEM_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, but the thread takes no signal that is sent to the process: those are the program's, which may block them and wait for them in threads of its own.
 * What a fault of the thread itself raises comes through. The caller's mask is as before. */
int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);

#endif
