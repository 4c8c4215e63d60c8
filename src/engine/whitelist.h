/* whitelist.h: which variant of a linear is to be taken for which problem, as a file (docs/PRESCREEN.md), and whether it may be used here.
 *
 * Written from what a prescreen measured (prescreen/choose.h), read by an engine: one table for the group. A table is valid for one device,
 * with its libraries and drivers, one version of this program and the shapes of one model; where any of these differs it is refused
 * whole, because what was measured there says nothing here. A file is untrusted input: every field is checked, an unknown one refused, entries
 * may not overlap, and the hash must be that of the content. Plain data; owned by who made it, immutable once made, any thread.
 */
#ifndef TANDEM_ENGINE_WHITELIST_H
#define TANDEM_ENGINE_WHITELIST_H

#include <jansson.h>

#include "base/buf.h"
#include "device/device.h"
#include "model/config.h"

#define WHITELIST_FORMAT "tandem-whitelist"
#define WHITELIST_VERSION 1
#define WHITELIST_MAX_FILE ((size_t)8 << 20)
#define WHITELIST_MAX_ENTRIES 4096
#define WHITELIST_MAX_SHAPES 4096
#define WHITELIST_HASH_BYTES 65
#define WHITELIST_TEXT_BYTES 160
#define WHITELIST_FAMILY_BYTES 32

/* A linear of the model as one rank has it. All that were looked at are in the table, with an entry or without. */
struct whitelist_shape {
	int world_size;
	char family[WHITELIST_FAMILY_BYTES]; /* as plan_family */
	int n, k;
};

struct whitelist_entry {
	struct linear_preference prefer;  /* key.m is 0 */
	double ratio;                     /* measured: baseline / variant, the least of the M that the range covers */
	char where[WHITELIST_TEXT_BYTES]; /* "TP1 attn o, TP2 mlp down": for readers */
};

struct whitelist {
	char program[32];  /* TANDEM_VERSION that measured */
	char device[16], flavour[32], versions[WHITELIST_TEXT_BYTES]; /* as struct device_ops tells them */
	char model[64];    /* its folder's name: for readers */
	char model_type[48];
	enum dtype dtype;  /* of the model */
	double keep;       /* threshold of ratio */
	bool any_order;    /* entries need not be invariant */
	struct whitelist_shape *shape;
	int shapes;
	struct whitelist_entry *entry;
	int entries;
	char hash[WHITELIST_HASH_BYTES]; /* SHA-256 of the content, hexadecimal */
};

void whitelist_fini(struct whitelist *whitelist);
/* Appends; NO_ROOM beyond the maxima. The texts are copied. */
enum status whitelist_add_shape(struct whitelist *whitelist, const struct whitelist_shape *shape, struct error *err) NODISCARD;
enum status whitelist_add_entry(struct whitelist *whitelist, const struct whitelist_entry *entry, struct error *err) NODISCARD;
/* All that a file must keep, but the hash. whose: for messages. */
enum status whitelist_check(const struct whitelist *whitelist, const char *whose, struct error *err) NODISCARD;
/* Checks, and computes the hash. */
enum status whitelist_seal(struct whitelist *whitelist, const char *whose, struct error *err) NODISCARD;

/* Appends the file's text. The whitelist must be sealed. */
enum status whitelist_format(const struct whitelist *whitelist, struct buf *out, struct error *err) NODISCARD;
enum status whitelist_parse(struct whitelist *out, const char *text, size_t n, const char *file, struct error *err) NODISCARD;
enum status whitelist_load(struct whitelist *out, const char *path, struct error *err) NODISCARD;

/* SHA-256 of a whitelist's canonical text: the object without "hash", keys sorted, no blanks. */
enum status whitelist_hash(const json_t *root, char out[WHITELIST_HASH_BYTES], struct error *err) NODISCARD;

/* UNSUPPORTED, saying what differs, if the table was not made for this device, or not by this program. */
enum status whitelist_check_device(const struct whitelist *whitelist, const struct device *device, struct error *err) NODISCARD;
/* ... or not for this model's shapes at this world size. */
enum status whitelist_check_model(const struct whitelist *whitelist, const struct model_config *config, const struct device_ops *ops, int world_size,
                                  struct error *err) NODISCARD;
/* The entry for key.m rows of this problem; NULL: none. */
const struct whitelist_entry *whitelist_find(const struct whitelist *whitelist, const struct linear_key *key);

#endif
