#include "text/describe.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

/* ---- pre-tokenizers by name ---- */

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Upper-case letters then lower-case ones, either may lack. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

#define MAX_SPLITS 4
#define MAX_NAMES 8

/* The splits (isolated, one after another) that the tokenizer.json of these models have, and what else differs. */
static const struct kind {
	const char *names[MAX_NAMES];
	const char *splits[MAX_SPLITS];
	bool ignore_merges; /* a piece that is a token is that token */
	bool bos;           /* unless the description says otherwise */
	bool nfc;
} kinds[] = {
	{{"gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion"}, {GPT2}, false, false, false},
	{{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {"\\p{N}", GPT2}, false, false, false},
	{{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"},
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL}, true, true, false},
	{{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, /* the same without the exception */
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL}, false, false, false},
	{{"qwen2", "deepseek-r1-qwen", "megrez"}, {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL}, false, false, true},
	{{"qwen35"},
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL}, false, false, true},
	{{"tekken"},
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL}, true, true, false},
	{{"gpt-4o", "llama4"},
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL}, false, false, false},
	{{"deepseek-v3"},
     {"\\p{N}{1,3}", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL}, false, false, false},
	/* What llama.cpp does with a file that names none: no model's own rule. */
	{{"default"}, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false, false},
};
#define KINDS (sizeof kinds / sizeof *kinds)

/* NULL if the name is not known. */
static const struct kind *find_kind(const struct tokenizer_description *d)
{
	const char *name = d->split ? d->split : "default";
	for (size_t i = 0; i < KINDS; i++)
		for (int n = 0; n < MAX_NAMES && kinds[i].names[n]; n++)
			if (strcmp(kinds[i].names[n], name) == 0) return &kinds[i];
	return NULL;
}

bool described_ignore_merges(const struct tokenizer_description *d)
{
	const struct kind *kind = find_kind(d);
	return d->model == TOKENIZER_BYTE_LEVEL && kind && kind->ignore_merges;
}

enum status described_pretokenizer(struct pretokenizer *out, const struct tokenizer_description *d, struct error *err)
{
	*out = (struct pretokenizer){0};
	if (d->model == TOKENIZER_SENTENCEPIECE) return STATUS_OK; /* a segment is one piece */
	const struct kind *kind = find_kind(d);
	if (kind) return pretokenizer_of_splits(out, kind->splits, MAX_SPLITS, err);
	char known[300] = "";
	for (size_t i = 0, n = 0; i < KINDS; i++)
		for (int k = 0; k < MAX_NAMES && kinds[i].names[k] && n < sizeof known; k++)
			n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", kinds[i].names[k]);
	return FAIL(err, UNSUPPORTED, "pre-tokenizer '%.64s' is not known; known are %s", d->split, known);
}

/* ---- the other parts ---- */

/* Constant JSON, as a tokenizer.json would have it. */
static enum status constant(json_t **out, const char *text, struct error *err)
{
	*out = json_loads(text, 0, NULL);
	return *out ? STATUS_OK : FAIL(err, NO_MEMORY, "tokenizer: no memory");
}

/* SentencePiece puts a mark in front of a text unless told otherwise. */
static bool has_prefix(const struct tokenizer_description *d)
{
	return d->add_space_prefix != 0;
}

enum status described_normalizer(struct normalizer *out, const struct tokenizer_description *d, struct error *err)
{
	static const char marks[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}";
	static const char prefix_marks[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},"
	                                   "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]}";
	const struct kind *kind = find_kind(d);
	json_t *node = NULL;
	if (d->model == TOKENIZER_SENTENCEPIECE) TRY(constant(&node, has_prefix(d) ? prefix_marks : marks, err));
	else if (kind && kind->nfc) TRY(constant(&node, "{\"type\":\"NFC\"}", err));
	enum status st = normalizer_parse(out, node, err);
	json_decref(node);
	return st;
}

enum status described_decoder(struct decoder *out, const struct tokenizer_description *d, struct error *err)
{
	static const char pieces[] = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"
	                             "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}";
	static const char prefix_pieces[] =
		"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"
		"{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}";
	json_t *node;
	TRY(constant(&node, d->model == TOKENIZER_BYTE_LEVEL ? "{\"type\":\"ByteLevel\"}" : has_prefix(d) ? prefix_pieces : pieces, err));
	enum status st = decoder_parse(out, node, err);
	json_decref(node);
	return st;
}

enum status described_postprocessor(struct postprocessor *out, const struct tokenizer_description *d, struct error *err)
{
	const struct kind *kind = find_kind(d);
	bool bos = d->add_bos < 0 ? d->model == TOKENIZER_SENTENCEPIECE || (kind && kind->bos) : d->add_bos > 0, eos = d->add_eos > 0;
	*out = (struct postprocessor){0};
	if ((bos && d->bos < 0) || (eos && d->eos < 0))
		return FAIL(err, BAD_INPUT, "the tokenizer wants a %s token around a text, and names none; the file is damaged", bos && d->bos < 0 ? "BOS" : "EOS");
	enum status st = bos ? token_list_push(&out->before, d->bos, err) : STATUS_OK;
	if (st == STATUS_OK && eos) st = token_list_push(&out->after, d->eos, err);
	if (st != STATUS_OK) postprocessor_fini(out);
	return st;
}

/* Control tokens and what users defined are cut out of a text before the model sees it. */
enum status described_added(struct added *out, const struct tokenizer_description *d, const struct vocab *model, const struct normalizer *normalizer,
                            const struct log *log, struct error *err)
{
	*out = (struct added){0};
	json_t *list = json_array();
	enum status st = list ? STATUS_OK : FAIL(err, NO_MEMORY, "tokenizer: no memory");
	for (int32_t id = 0; st == STATUS_OK && id < d->count; id++) {
		enum token_kind kind = (enum token_kind)d->kinds[id];
		bool special = kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
		if (!special && kind != TOKEN_USER_DEFINED) continue;
		json_t *token = json_pack("{s:i,s:s%,s:b,s:b}", "id", (int)id, "content", d->tokens[id].data, d->tokens[id].size, "special", special, "normalized", 0);
		if (!token || json_array_append_new(list, token) != 0) st = FAIL(err, NO_MEMORY, "tokenizer: no memory");
	}
	if (st == STATUS_OK) st = added_parse(out, list, model, normalizer, log, err);
	json_decref(list);
	return st;
}
