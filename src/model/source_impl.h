/* source_impl.h: what a weight source is made of. Internal to src/model: source.c dispatches, checkpoint.c, gguf_source.c and random.c implement. */
#ifndef TANDEM_MODEL_SOURCE_IMPL_H
#define TANDEM_MODEL_SOURCE_IMPL_H

#include <stdatomic.h>

#include "model/source.h"

/* Arguments were checked by source.c: read is inside the tensor. `has`, `at` and `recipe` may be NULL. */
struct source_ops {
	void (*close)(struct source *source);
	/* shape: as the file must declare it. */
	enum status (*find)(struct source *source, const char *name, struct source_tensor *out, int dims, const int64_t *shape, struct error *err);
	bool (*has)(const struct source *source, const char *name);
	const char *(*at)(const struct source *source, size_t i, uint64_t *bytes);
	enum status (*read)(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col, int64_t cols,
	                    struct source_scratch *scratch, const void **data, size_t *stride, struct error *err);
	void (*recipe)(const struct source *source, const struct source_tensor *tensor, struct source_recipe *out);
};

/* First member of each implementation. */
struct source {
	const struct source_ops *ops;
	_Atomic uint64_t bytes_read;
	uint64_t bytes_total;
};

/* Room for count * size bytes. */
enum status source_scratch_reserve(struct source_scratch *scratch, size_t count, size_t size, struct error *err) NODISCARD;
/* What source_open_checkpoint does with a GGUF file. */
enum status source_open_gguf(struct source **out, const char *path, const struct log *log, struct error *err) NODISCARD;

/* A tensor as it is read: [shape[0] * shape[1], shape[2]] where it has three dimensions. */
static inline int64_t source_rows(int dims, const int64_t *shape)
{
	return dims == 3 ? shape[0] * shape[1] : shape[0];
}
static inline int64_t source_cols(int dims, const int64_t *shape)
{
	return dims == 1 ? 1 : shape[dims - 1];
}

/* Elements from one row to the next. */
static inline int64_t source_row_elements(const struct source_tensor *tensor)
{
	return tensor->dims == 1 ? 1 : tensor->shape[1];
}

#endif
