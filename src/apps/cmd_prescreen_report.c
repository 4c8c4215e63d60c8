/* `tandem prescreen report`: whitelist and reports anew from results that were saved, here or on another machine. Measures nothing. */
#include <stdio.h>
#include <string.h>

#include "apps/console.h"
#include "apps/prescreen_files.h"
#include "apps/settings.h"

/* The folder that a file is in. */
static enum status folder_of(const char *path, struct buf *out, struct error *err)
{
	const char *slash = strrchr(path, '/');
	if (!slash) return buf_puts(out, ".", err);
	return slash == path ? buf_puts(out, "/", err) : buf_append(out, path, (size_t)(slash - path), err);
}

static enum status say(const struct settings *settings, const char *folder, const struct whitelist *w, const struct results *r, struct error *err)
{
	struct buf out = {0};
	if (settings->json)
		return output_json(json_pack("{s:o,s:i,s:s,s:b,s:b}", "folder", json_path(folder), "entries", w->entries, "hash", w->hash, "any_order", w->any_order, "complete",
		                             r->complete), err);
	enum status st = prescreen_files_say(r, folder, w, &out, err);
	if (st == STATUS_OK) st = output_write(out.data, out.size, err);
	buf_fini(&out);
	return st;
}

enum status cmd_prescreen_report(const struct settings *settings, struct error *err)
{
	struct results results = {0};
	struct whitelist whitelist = {0};
	struct buf folder = {0};
	enum status st;
	TRY(results_load(&results, settings->model, err));
	TRY_GOTO(settings->out ? buf_puts(&folder, settings->out, err) : folder_of(settings->model, &folder, err), end);
	TRY_GOTO(prescreen_files_write(&results, folder.data, settings->any_order, &whitelist, err), end);
	st = say(settings, folder.data, &whitelist, &results, err);
end:
	buf_fini(&folder);
	whitelist_fini(&whitelist);
	results_fini(&results);
	return st;
}
