/* comm_world.h: for the checks of collectives: a group whose ranks are threads with a device each, and numbers that every rank can work out. */
#ifndef TANDEM_TESTS_GPU_COMM_WORLD_H
#define TANDEM_TESTS_GPU_COMM_WORLD_H

#include <pthread.h>

#include "comm/comm.h"
#include "gpu/harness.h"

#define WORLD_MAX_RANKS 8
#define WORLD_PINNED 96 /* buffers of a rank at a time, for each power of two that one may have */

struct world;

struct world_rank {
	struct world *world;
	int index;
	pthread_t thread;
	struct device *device;
	struct stream *stream;
	struct comm *comm;
	struct comm_options options;
	float *x;              /* device: [x_room] */
	unsigned char *room;   /* device memory for whatever */
	/* Pinned host memory, kept until world_close: freeing it may wait for the device, where a peer's kernel waits for this rank. And memory that is not
	 * pinned is copied by a driver that holds a lock of the device meanwhile, which a peer on the same device wants. */
	struct world_pinned {
		void *data;
		size_t bytes;
		bool taken;
	} pinned[WORLD_PINNED];
	enum status st;        /* of the body's last call */
	struct error err;
	char complaint[400];   /* first thing that was wrong */
};

struct world {
	const struct device_ops *ops;
	int P;
	struct group *group;
	struct fault_plan plan;
	uint64_t seed;
	void *context; /* of the body */
	struct world_rank rank[WORLD_MAX_RANKS];
};

/* Devices and streams of P ranks. False: why is printed. */
bool world_open(struct world *w, const struct gpu_check *c, int P, size_t x_room, size_t room);
void world_close(struct world *w);
/* A fresh group. fault: text of base/fault.h or NULL. */
void world_group(struct world *w, uint64_t timeout_ms, const char *fault);
/* Runs body on a thread for each rank and waits for all; then each rank's comm is destroyed. With options: comms are made first, and body runs where
 * that went well. */
void world_run(struct world *w, const struct comm_options *options, void (*body)(struct world_rank *rank));
/* As world_run, but the comms stay; world_drop destroys them. */
void world_connect(struct world *w, const struct comm_options *options);
void world_drop(struct world *w);

/* Keeps the first complaint of a rank. */
void world_complain(struct world_rank *rank, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints complaints and statuses that are not OK as failures of the case; true where there were none. */
bool world_report(struct world *w, struct gpu_check *c);

/* ---- an all-reduce whose result every rank can work out */
struct world_sum {
	uint64_t g; /* what the numbers are made from */
	int rows, pad; /* pad: columns between the rows of x */
	bool bias, add, norm;
};
struct world_buffers { /* pinned host memory, until the stream is done */
	struct world_rank *rank; /* NULL: none */
	unsigned char *partial, *x; /* inputs */
	unsigned char *result, *h;  /* x and h afterwards */
	float *bias, *weight;
};
/* The numbers, in host memory: allocates, so not while a graph is recorded. */
enum status world_prepare(struct world_rank *rank, const struct world_sum *sum, struct world_buffers *host);
/* Puts copies of them into partial and x, the all-reduce, and copies of its results on the stream. */
enum status world_all_reduce(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host);
/* When the stream is done: compares all of x, what lies between its rows too, bit by bit, and h within a bound. */
void world_compare(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host);
void world_buffers_free(struct world_buffers *host);
/* Pinned memory, for copies, and back. */
enum status world_take(struct world_rank *rank, size_t bytes, void **out);
void world_give(struct world_rank *rank, const void *taken); /* NULL: nothing */
#define WORLD_BYTES 9216
/* Has pinned memory made for WORLD_SUMS of the largest sums of a group of these options, and for two times WORLD_BYTES: making it may wait for the
 * device, too. */
#define WORLD_SUMS 4 /* at a time, at most */
#define WORLD_PAD 6  /* at most */
void world_reserve(struct world *w, const struct comm_options *options);
/* One after the other, waiting in between. */
enum status world_one(struct world_rank *rank, const struct world_sum *sum);

#endif
