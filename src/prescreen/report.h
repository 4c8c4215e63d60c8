/* report.h: results for people: Markdown, and one HTML page that needs nothing from anywhere. Both say the same: speed-ups per family, M class and TP
 * degree against the threshold; what flips between degrees; every rejection with its reason. The page shows the evidence of a cell when it is pointed
 * at or has the focus. Texts of the results are escaped: they may come from a file. Any thread. */
#ifndef TANDEM_PRESCREEN_REPORT_H
#define TANDEM_PRESCREEN_REPORT_H

#include "prescreen/results.h"

enum status report_markdown(const struct results *results, struct buf *out, struct error *err) NODISCARD;
enum status report_html(const struct results *results, struct buf *out, struct error *err) NODISCARD;

#endif
