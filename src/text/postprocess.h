/* postprocess.h: what the post-processor of tokenizer.json puts around the ids of a text: BOS, EOS and the like.
 *
 * ByteLevel only moves offsets, which nobody asks for here. A second template is refused: what the reference makes of one (it takes
 * the parts of the first for a pair of texts) can hardly be meant.
 */
#ifndef TANDEM_TEXT_POSTPROCESS_H
#define TANDEM_TEXT_POSTPROCESS_H

#include "text/tokenizer.h"

struct postprocessor {
	struct token_list before, after;
	bool has_template;
};

struct json_t;
/* `node` may be NULL. On failure `out` is as after postprocessor_fini. */
enum status postprocessor_parse(struct postprocessor *out, const struct json_t *node, struct error *err) NODISCARD;
void postprocessor_fini(struct postprocessor *postprocessor);

#endif
