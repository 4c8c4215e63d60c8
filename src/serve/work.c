/* The workers: two threads that take exchanges from one queue and put them into another. */
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/thread.h"
#include "serve/server_impl.h"

#define WORKERS 2
#define STACK_BYTES (8u << 20) /* a template may nest 600 deep, at 1 KiB a level and more */

struct workers {
	pthread_t threads[WORKERS];
	int count;
	struct server *server;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct exchange *todo, **todo_last, *done, **done_last;
	bool stop;
};

static void do_work(struct exchange *x)
{
	switch (x->work) {
	case WORK_COMPLETIONS:
	case WORK_CHAT: generate_prepare(x); break;
	case WORK_TOKENIZE: tokens_tokenize(x); break;
	case WORK_DETOKENIZE: tokens_detokenize(x); break;
	case WORK_NONE: break;
	}
}

static void *worker_main(void *argument)
{
	struct workers *w = argument;
	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (!w->todo && !w->stop) pthread_cond_wait(&w->wake, &w->lock);
		struct exchange *x = w->todo;
		if (!x) break; /* the queue is emptied before the end: every exchange comes back */
		w->todo = x->work_next;
		if (!w->todo) w->todo_last = &w->todo;
		pthread_mutex_unlock(&w->lock);
		do_work(x);
		pthread_mutex_lock(&w->lock);
		x->work_next = NULL;
		*w->done_last = x;
		w->done_last = &x->work_next;
		http_wake(w->server);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

enum status work_open(struct server *s, struct error *err)
{
	struct workers *w = mem_zalloc(1, sizeof *w, "workers", err);
	if (!w) return STATUS_NO_MEMORY;
	s->workers = w;
	w->server = s;
	w->todo_last = &w->todo;
	w->done_last = &w->done;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	while (w->count < WORKERS && !thread_start(&w->threads[w->count], &attributes, worker_main, w)) w->count++;
	pthread_attr_destroy(&attributes);
	return w->count == WORKERS ? STATUS_OK : FAIL(err, NO_MEMORY, "workers: a thread cannot be started; lower the load of this machine");
}

void work_close(struct server *s)
{
	struct workers *w = s->workers;
	if (!w) return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->wake);
	pthread_mutex_unlock(&w->lock);
	for (int i = 0; i < w->count; i++) pthread_join(w->threads[i], NULL);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	free(w);
	s->workers = NULL;
}

void work_put(struct server *s, struct exchange *x)
{
	struct workers *w = s->workers;
	x->work_next = NULL;
	x->working = true;
	pthread_mutex_lock(&w->lock);
	*w->todo_last = x;
	w->todo_last = &x->work_next;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

struct exchange *work_take_done(struct server *s)
{
	struct workers *w = s->workers;
	pthread_mutex_lock(&w->lock);
	struct exchange *x = w->done;
	if (x) {
		w->done = x->work_next;
		if (!w->done) w->done_last = &w->done;
	}
	pthread_mutex_unlock(&w->lock);
	if (x) x->working = false;
	return x;
}
