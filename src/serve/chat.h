/* chat.h: messages of a conversation → the text that the model's chat template makes of them → token ids.
 *
 * Text that came from the request never becomes a control token, whatever it spells: the template says which bytes of its output are
 * the request's, and in those no special token is recognised.
 */
#ifndef TANDEM_SERVE_CHAT_H
#define TANDEM_SERVE_CHAT_H

#include "serve/request.h"

/* `body`: the request with `messages` and the template's switches. Also used by /tokenize. */
enum status chat_tokens(struct token_list *out, const json_t *body, const struct request *request, const struct facts *facts,
                        struct refusal *r) NODISCARD;

#endif
