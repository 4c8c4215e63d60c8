#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"

void token_list_fini(struct token_list *list)
{
	free(list->ids);
	*list = (struct token_list){0};
}

enum status token_list_reserve(struct token_list *list, size_t extra, struct error *err)
{
	size_t need;
	if (!size_add(list->count, extra, &need)) return FAIL(err, NO_MEMORY, "token list: %zu + %zu ids overflow", list->count, extra);
	if (need <= list->capacity) return STATUS_OK;
	size_t capacity = list->capacity > need / 2 ? list->capacity * 2 : need + 16;
	TRY(mem_grow((void **)&list->ids, capacity, sizeof *list->ids, "token list", err));
	list->capacity = capacity;
	return STATUS_OK;
}

enum status token_list_push(struct token_list *list, int32_t id, struct error *err)
{
	return token_list_append(list, &id, 1, err);
}

enum status token_list_append(struct token_list *list, const int32_t *ids, size_t n, struct error *err)
{
	TRY(token_list_reserve(list, n, err));
	if (n > 0) memcpy(list->ids + list->count, ids, n * sizeof *ids);
	list->count += n;
	return STATUS_OK;
}
