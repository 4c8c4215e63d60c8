/* skipped.h: what of a checkpoint the text model leaves alone: the vision tower of a composite model, the layers that predict several tokens
 * (MTP), a head beside tied embeddings. Said once, so that nobody wonders where bytes of the files went. */
#ifndef TANDEM_MODEL_SKIPPED_H
#define TANDEM_MODEL_SKIPPED_H

#include "base/log.h"
#include "model/shard.h"
#include "model/source.h"

#define SKIPPED_TEXT_BYTES 320
/* "47.1 MB that are not of the text model: vision 46.0 MB (12 tensors), MTP 1.1 MB (3 tensors)" into out; empty: every tensor is in the manifest. */
enum status skipped_text(char out[SKIPPED_TEXT_BYTES], const struct source *source, const struct manifest *manifest, struct error *err) NODISCARD;

#endif
