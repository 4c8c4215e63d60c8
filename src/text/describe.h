/* describe.h: the parts of a tokenizer from a struct tokenizer_description, for tokenizer.c. What tokenizer.json says for itself follows here
 * from the kind of model and the name of its pre-tokenizer; the table of names is in describe.c, and a name that is not in it is refused.
 */
#ifndef TANDEM_TEXT_DESCRIBE_H
#define TANDEM_TEXT_DESCRIBE_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/postprocess.h"
#include "text/pretokenize.h"

/* As the _parse functions of the same parts: on failure `out` is empty. */
enum status described_normalizer(struct normalizer *out, const struct tokenizer_description *d, struct error *err) NODISCARD;
enum status described_pretokenizer(struct pretokenizer *out, const struct tokenizer_description *d, struct error *err) NODISCARD;
enum status described_added(struct added *out, const struct tokenizer_description *d, const struct vocab *model, const struct normalizer *normalizer,
                            const struct log *log, struct error *err) NODISCARD;
enum status described_postprocessor(struct postprocessor *out, const struct tokenizer_description *d, struct error *err) NODISCARD;
enum status described_decoder(struct decoder *out, const struct tokenizer_description *d, struct error *err) NODISCARD;
/* Does a piece that is a token as a whole skip the merges? */
bool described_ignore_merges(const struct tokenizer_description *d);

#endif
