#include "apps/prescreen_files.h"

#include <string.h>

#include "base/out_file.h"
#include "prescreen/chain.h"
#include "prescreen/choose.h"
#include "prescreen/report.h"

static enum status write_file(const char *folder, const char *name, const struct buf *text, struct error *err)
{
	struct buf path = {0};
	enum status st = buf_printf(&path, err, "%s/%s", folder, name);
	if (st == STATUS_OK) st = out_file_write(path.data, text->data, text->size, err);
	buf_fini(&path);
	return st;
}

enum status prescreen_files_write(const struct results *results, const char *folder, bool any_order, struct whitelist *whitelist, struct error *err)
{
	struct buf text = {0};
	enum status st;
	TRY(choose_whitelist(whitelist, results, any_order || strcmp(results->device, "cpu") != 0, err));
	TRY_GOTO(whitelist_format(whitelist, &text, err), end);
	TRY_GOTO(write_file(folder, PRESCREEN_WHITELIST, &text, err), end);
	buf_clear(&text);
	TRY_GOTO(report_markdown(results, &text, err), end);
	TRY_GOTO(write_file(folder, PRESCREEN_MARKDOWN, &text, err), end);
	buf_clear(&text);
	TRY_GOTO(report_html(results, &text, err), end);
	TRY_GOTO(write_file(folder, PRESCREEN_PAGE, &text, err), end);
end:
	if (st != STATUS_OK) whitelist_fini(whitelist);
	buf_fini(&text);
	return st;
}

enum status prescreen_files_say(const struct results *results, const char *folder, const struct whitelist *whitelist, struct buf *out, struct error *err)
{
	TRY(buf_printf(out, err, "%s: %s has %d entr%s for %d problems (hash %.12s); %s, %s\n", folder, PRESCREEN_WHITELIST, whitelist->entries,
	               whitelist->entries == 1 ? "y" : "ies", results->problems, whitelist->hash, PRESCREEN_MARKDOWN, PRESCREEN_PAGE));
	int chains, measured;
	chain_count(results, &chains, &measured);
	if (results->chain_mode == CHAIN_OFF && chains) TRY(buf_puts(out, "linears of decode were not confirmed in a chain: what is faster alone can be slower in a step\n", err));
	if (results->chain_mode == CHAIN_ON && measured < chains)
		TRY(buf_printf(out, err, "%d of %d chains were measured: linears of decode that the others would confirm stay with the default\n", measured, chains));
	if (measured && whitelist->any_order && !results->any_order && strcmp(results->device, "cpu") == 0)
		TRY(buf_puts(out, "chains were measured without --any-order: linears of decode that they would confirm in another order stay as they are\n", err));
	return results->complete ? STATUS_OK : buf_puts(out, "the results are not complete: what was not measured stays with the default\n", err);
}
