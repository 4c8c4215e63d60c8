/* source.h: where weights come from: a checkpoint (safetensors or GGUF) or a random generator, behind one call. Names are
 * those of Hugging Face checkpoints, rows are in their order, whatever the file calls and permutes.
 *
 * Reads may be made by all ranks at once. Each byte of a checkpoint is meant to be read once for the whole process (S5): the loader
 * asks for disjoint regions, `bytes_read` counts. Everything in a file is untrusted (S6): header length, offsets, overlap, dtype,
 * shape, duplicate names, missing files, paths that leave the folder are all checked at open with a message naming file and tensor.
 *
 * As the format says, tensors tile the data without holes, a header has at most 100 MB, `__metadata__` holds strings. Element types
 * other than F32, F16, BF16 may be in a file; asking for such a tensor is what is refused. File names in an index must stay inside
 * the folder; links are followed, wherever they point (a download cache is made of them). Files are
 * read, not mapped: one that is shortened after it was opened is BAD_INPUT, a disk that fails IO.
 */
#ifndef TANDEM_MODEL_SOURCE_H
#define TANDEM_MODEL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"

struct source;

#define SOURCE_MAX_DIMS 4
struct source_tensor {
	const char *name; /* borrowed: from the checkpoint, or (random) the string given to source_find */
	enum dtype dtype;
	int dims;
	int64_t shape[SOURCE_MAX_DIMS];
	const void *internal; /* checkpoint */
	uint64_t stream;      /* random */
	int head_rows;        /* GGUF: rows of a head that are stored (pair, half) and read (half, pair); 0: stored as read */
};

/* `path`: a folder with model.safetensors, else with model.safetensors.index.json and its files (only those are opened, and of them
 * only the tensors that the index lists); or one .safetensors file; or one index file; or one GGUF file. */
enum status source_open_checkpoint(struct source **out, const char *path, const struct log *log, struct error *err) NODISCARD;
/* Random weights for a benchmark or a test: any name and shape exists, in `dtype`; each value depends on (seed, name, row, column)
 * alone, so that every world size sees the same model. Matrices, taps of a convolution among them, ~ uniform with standard deviation 1/sqrt(cols); vectors whose name ends
 * in "norm.weight" near 1. */
enum status source_open_random(struct source **out, uint64_t seed, enum dtype dtype, struct error *err) NODISCARD;
void source_close(struct source **source);

/* The tensor must exist with this shape (dims 1: cols ignored; dims 3: [rows, 1, cols], read as [rows, cols]); its dtype is reported. Errors name expected and found. */
enum status source_find(struct source *source, const char *name, int dims, int64_t rows, int64_t cols, struct source_tensor *out,
                        struct error *err) NODISCARD;
/* A tensor [count, rows, cols], read as [count * rows, cols]. */
enum status source_find_stack(struct source *source, const char *name, int64_t count, int64_t rows, int64_t cols, struct source_tensor *out,
                              struct error *err) NODISCARD;
/* BAD_INPUT-free question: is there a tensor of this name? (random: no opinion, returns false) */
bool source_has(const struct source *source, const char *name);
/* Name (borrowed) and bytes of the i-th tensor of a safetensors checkpoint; NULL behind the last, and for sources that do not list. */
const char *source_tensor_at(const struct source *source, size_t i, uint64_t *bytes);

/* Elements [row, row+rows) x [col, col+cols); a vector has one column. Columns of a block type begin and end with a block. *data and *stride
 * (bytes between rows) lie in scratch, which grows as needed, maybe unaligned, and stay valid until the next
 * source_read with it. */
struct source_scratch {
	void *memory;
	size_t bytes;
};
void source_scratch_fini(struct source_scratch *scratch);
enum status source_read(struct source *source, const struct source_tensor *tensor, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        struct source_scratch *scratch, const void **data, size_t *stride, struct error *err) NODISCARD;
/* How the elements of a random tensor are made (random.c), for a device that makes them itself; false: they come from a file. */
struct source_recipe {
	uint64_t seed, stream;
	float offset, scale;
};
bool source_recipe(const struct source *source, const struct source_tensor *tensor, struct source_recipe *out);
/* Bytes of tensor data handed out so far. */
uint64_t source_bytes_read(const struct source *source);

#endif
