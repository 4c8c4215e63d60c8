/* prescreen_files.h: what is written beside the results of a prescreen: the whitelist and the reports. */
#ifndef TANDEM_APPS_PRESCREEN_FILES_H
#define TANDEM_APPS_PRESCREEN_FILES_H

#include "engine/whitelist.h"
#include "prescreen/results.h"

#define PRESCREEN_WHITELIST "whitelist.json"
#define PRESCREEN_MARKDOWN "report.md"
#define PRESCREEN_PAGE "report.html"

/* Writes the three into `folder`, which must exist; each appears whole or stays as it was. *whitelist, for what to say about it, is the caller's.
 * any_order: for a CPU, whose logits are the same bits at every world size, kernels that add in another order too; for a GPU those may always be
 * chosen, and an engine that is asked for --tp-invariant leaves them out. */
enum status prescreen_files_write(const struct results *results, const char *folder, bool any_order, struct whitelist *whitelist, struct error *err) NODISCARD;
/* Appends one line about it: "DIR: whitelist.json has 3 entries ...". */
enum status prescreen_files_say(const struct results *results, const char *folder, const struct whitelist *whitelist, struct buf *out, struct error *err) NODISCARD;

#endif
