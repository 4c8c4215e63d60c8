/* tensor.h: a view of an activation on one rank, and how it stands to the other ranks' views.
 *
 * `data` is a device address: nothing outside src/device/ dereferences it. The distribution is part of the type: a partial
 * must be summed over the group before anything that wants a replicated tensor may read it; ops refuse the wrong kind
 * (tensor_expect), they never guess.
 *
 * A partial on this rank may hold several *slots*, one per complete subtree of the summation tree (base/sumtree.h) that the
 * rank owns; one slot where the world size is a power of two.
 */
#ifndef TANDEM_DEVICE_TENSOR_H
#define TANDEM_DEVICE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum tensor_dist {
	TENSOR_REPLICATED, /* every rank holds the same values */
	TENSOR_SHARDED,    /* this rank holds its columns */
	TENSOR_PARTIAL     /* the logical tensor is the sum of all ranks' slots */
};

struct tensor {
	void *data; /* device address of element [0][0][0] */
	enum dtype dtype;
	enum tensor_dist dist;
	int slots;           /* 1 unless partial */
	int rows;            /* T: token rows */
	int cols;            /* local columns */
	int64_t row_stride;  /* elements from one row to the next, >= cols */
	int64_t slot_stride; /* elements from one slot to the next */
};

static inline struct tensor tensor_view(void *data, enum dtype dtype, enum tensor_dist dist, int rows, int cols)
{
	return (struct tensor){.data = data, .dtype = dtype, .dist = dist, .slots = 1, .rows = rows, .cols = cols, .row_stride = cols,
	                       .slot_stride = (int64_t)rows * cols};
}

/* Columns [col, col + cols) of `t`. */
static inline struct tensor tensor_columns(const struct tensor *t, int col, int cols)
{
	struct tensor view = *t;
	view.data = (char *)t->data + (size_t)col * dtype_bytes(t->dtype);
	view.cols = cols;
	return view;
}

static inline const char *tensor_dist_name(enum tensor_dist dist)
{
	return dist == TENSOR_REPLICATED ? "replicated" : dist == TENSOR_SHARDED ? "sharded" : "partial";
}

/* OK if the tensor has this distribution; else BAD_INPUT naming `what`. */
static inline NODISCARD enum status tensor_expect(const struct tensor *t, enum tensor_dist dist, const char *what, struct error *err)
{
	if (t->dist == dist) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: tensor [%d,%d] is %s where a %s one is wanted", what, t->rows, t->cols, tensor_dist_name(t->dist),
	            tensor_dist_name(dist));
}

#endif
