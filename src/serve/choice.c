/* One choice of a completion: tokens in, text that is certain out. See answer.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/answer.h"

void choice_fini(struct choice *choice)
{
	detokenizer_destroy(&choice->text);
	stop_scan_fini(&choice->scan);
	buf_fini(&choice->piece);
	buf_fini(&choice->fresh);
	logprobs_fini(&choice->logprobs);
	token_list_fini(&choice->ids);
	free(choice->scores.logprob);
	free(choice->scores.alternatives);
	free(choice->scores.alternative_id);
	free(choice->scores.alternative_logprob);
	out_fini(&choice->prompt_logprobs);
}

bool choice_want_scores(struct choice *choice, int top)
{
	struct driver_scores *s = &choice->scores;
	size_t n = choice->prompt->ids.count;
	*s = (struct driver_scores){.top = top,
	                            .logprob = mem_zalloc(n, sizeof *s->logprob, "scores", NULL),
	                            .alternatives = mem_zalloc(n, sizeof *s->alternatives, "scores", NULL),
	                            .alternative_id = mem_zalloc(n * (size_t)top, sizeof *s->alternative_id, "scores", NULL),
	                            .alternative_logprob = mem_zalloc(n * (size_t)top, sizeof *s->alternative_logprob, "scores", NULL)};
	choice->job.scores = s;
	return s->logprob && s->alternatives && s->alternative_id && s->alternative_logprob;
}

int64_t choice_count_chars(const char *text, size_t n)
{
	int64_t count = 0;
	for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
	return count;
}

/* `piece` goes to `fresh` as far as no stop string can begin in it. Up to min_tokens none can be complete. */
static bool take_piece(struct choice *choice, const struct request *q)
{
	int found = -1;
	enum status st;
	choice->chars += choice_count_chars(choice->piece.data, choice->piece.size);
	if (choice->tokens <= q->min_tokens) st = stop_pass(&choice->scan, &q->stops, choice->piece.data, choice->piece.size, &choice->fresh, NULL);
	else st = stop_push(&choice->scan, &q->stops, choice->piece.data, choice->piece.size, q->include_stop, &choice->fresh, &found, NULL);
	buf_clear(&choice->piece);
	if (found >= 0) {
		choice->finish = "stop";
		choice->stop = found;
	}
	return st == STATUS_OK;
}

static struct logprob_style style_of(const struct choice *choice, const struct request *q, int top)
{
	return (struct logprob_style){.endpoint = q->endpoint, .top = top, .tokens_as_ids = q->tokens_as_ids, .detokenizer = choice->text};
}

static struct logprob_entry prompt_entry(const struct choice *choice, size_t i)
{
	const struct driver_scores *s = &choice->scores;
	return (struct logprob_entry){.token = choice->prompt->ids.ids[i], .scored = i > 0, .logprob = s->logprob[i], .alternatives = s->alternatives[i],
	                              .alternative_id = s->alternative_id + i * (size_t)s->top, .alternative_logprob = s->alternative_logprob + i * (size_t)s->top};
}

/* Where the first token of the prompt starts in the echoed text; below 0 where the tokens say more. The two end together: in front the text may have
 * more, whose tokens were cut off, or the tokens a begin-of-text. */
static int64_t echo_start(const struct choice *choice)
{
	const struct prompt *p = choice->prompt;
	struct buf decoded = {0};
	int64_t start = 0;
	if (choice->text && tokenizer_decode(detokenizer_of(choice->text), p->ids.ids, p->ids.count, false, &decoded, NULL) == STATUS_OK)
		start = choice_count_chars(p->text.data, p->text.size) - choice_count_chars(decoded.data, decoded.size);
	buf_fini(&decoded);
	return start;
}

/* The echoed prompt's entries; where a token starts in its text is found by decoding it again. */
static void echo_logprobs(struct choice *choice, const struct request *q)
{
	struct logprob_style style = style_of(choice, q, q->logprobs);
	struct detokenizer *text = NULL;
	struct buf piece = {0};
	int64_t offset = echo_start(choice);
	if (choice->text && detokenizer_create(&text, detokenizer_of(choice->text), false, NULL) != STATUS_OK) text = NULL;
	for (size_t i = 0; i < choice->prompt->ids.count; i++) {
		struct logprob_entry entry = prompt_entry(choice, i);
		entry.offset = offset > 0 ? offset : 0;
		logprobs_add(&choice->logprobs, &style, &entry);
		buf_clear(&piece);
		if (text && detokenizer_push(text, entry.token, &piece, NULL) == STATUS_OK) offset += choice_count_chars(piece.data, piece.size);
	}
	detokenizer_destroy(&text);
	buf_fini(&piece);
}

void choice_take_scores(struct choice *choice, const struct request *q)
{
	struct logprob_style style = style_of(choice, q, q->prompt_logprobs);
	if (q->echo && q->logprobs >= 0) echo_logprobs(choice, q);
	for (size_t i = 0; q->prompt_logprobs >= 0 && i < choice->prompt->ids.count; i++) {
		struct logprob_entry entry = prompt_entry(choice, i);
		if (i) out_puts(&choice->prompt_logprobs, ",");
		logprobs_put_prompt(&choice->prompt_logprobs, &style, &entry);
	}
}

static void add_logprob(struct choice *choice, const struct tandem_event *e, const struct request *q)
{
	struct logprob_style style = style_of(choice, q, q->logprobs);
	struct logprob_entry entry = {.token = e->token, .scored = true, .logprob = e->logprob, .alternatives = e->alternatives,
	                              .alternative_id = e->alternative_id, .alternative_logprob = e->alternative_logprob, .offset = choice->chars};
	logprobs_add(&choice->logprobs, &style, &entry);
}

static bool is_eos(const struct facts *facts, int32_t token)
{
	for (int i = 0; i < facts->info.eos_count; i++)
		if (facts->info.eos[i] == token) return true;
	return false;
}

static bool finish_text(struct choice *choice, const struct request *q)
{
	if (choice->text && detokenizer_finish(choice->text, &choice->piece, NULL) != STATUS_OK) return false;
	if (!take_piece(choice, q)) return false;
	return choice->finish || stop_finish(&choice->scan, &choice->fresh, NULL) == STATUS_OK;
}

bool choice_token(struct choice *choice, const struct tandem_event *e, const struct request *q, const struct facts *facts)
{
	bool stopped = e->finish == TANDEM_STOP, eos = stopped && !q->ignore_eos && is_eos(facts, e->token);
	if (q->logprobs >= 0) add_logprob(choice, e, q);
	if (q->return_token_ids && token_list_push(&choice->ids, e->token, NULL) != STATUS_OK) return false;
	/* The token that ended the text is not part of it. */
	bool is_text = !stopped || (q->include_stop && !eos);
	if (choice->text && is_text && detokenizer_push(choice->text, e->token, &choice->piece, NULL) != STATUS_OK) return false;
	if (!take_piece(choice, q)) return false;
	if (choice->finish || e->finish == TANDEM_RUNNING) return true;
	if (!finish_text(choice, q)) return false;
	if (choice->finish) return true;
	choice->finish = stopped ? "stop" : "length";
	if (stopped && !eos) choice->stop_id = e->token;
	return true;
}
