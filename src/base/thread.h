/* thread.h: how a thread of ours starts, whoever's thread starts it. */
#ifndef TANDEM_BASE_THREAD_H
#define TANDEM_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, but the thread takes no signal that is sent to the process: those are the program's, which may block them and wait for them in threads of its own.
 * What a fault of the thread itself raises comes through. It computes as C does at its start, with the nearest value and subnormals, whatever the caller has set (C6).
 * The caller's mask and floating-point mode are as before. */
int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);

#endif
