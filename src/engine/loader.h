/* loader.h: weights of one rank from a source to the device, in two phases so that each checkpoint byte is read once for the whole
 * group (S5). Phase 1: a rank reads the parts that it is the owner of. All ranks meet. Phase 2: parts that it shares with an owner
 * (replicated tensors, KV heads that several ranks hold) are copied from the owner's device memory. Worker thread; all ranks at once. */
#ifndef TANDEM_ENGINE_LOADER_H
#define TANDEM_ENGINE_LOADER_H

#include "engine/rank.h"

/* Whether the back end has ops for such a model, and for its sizes; UNSUPPORTED, naming what it lacks. The config is enough. */
enum status loader_fits(const struct model_config *config, const struct device_ops *ops, struct error *err) NODISCARD;
/* loader_fits; and checks that the source holds every tensor of the manifest with the declared shape; BAD_INPUT listing what is missing or different;
 * UNSUPPORTED if tensors that must be of one type are not. Once per engine, before ranks exist. */
enum status loader_check(const struct model *model, const struct device_ops *ops, struct error *err) NODISCARD;
/* Allocates all weights of the rank and reads what it owns. */
enum status loader_read(struct rank *rank, struct error *err) NODISCARD;
/* Copies the rest from `ranks`, all of which have finished loader_read. */
enum status loader_share(struct rank *rank, struct rank *const *ranks, struct error *err) NODISCARD;
/* The type that the embedding is stored in. */
enum dtype loader_embedding_dtype(const struct model *model);
/* Bytes of weights that one rank reads and holds, for progress. */
uint64_t loader_bytes(const struct model *model);

#endif
