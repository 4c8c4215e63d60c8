/* manual.h: man pages and shell completion, written from the tables of settings.h, so that they cannot fall behind the program.
 * `make install` and packagers get them by `tandem --man` and `tandem --completion`. */
#ifndef TANDEM_APPS_MANUAL_H
#define TANDEM_APPS_MANUAL_H

#include "apps/settings.h"

/* The names of all pages, one a line: "tandem", "tandem-run", "tandem-bench-step", …. */
enum status manual_list(struct buf *out, struct error *err) NODISCARD;
/* The page of that name as roff for man(1) in section 1. USAGE if there is none. */
enum status manual_page(const char *page, struct buf *out, struct error *err) NODISCARD;
/* A bash script that completes commands, options and the values that are choices or files. It needs no bash-completion package. */
enum status completion_bash(struct buf *out, struct error *err) NODISCARD;

#define EXIT_CODES_TEXT "0 ok, 2 usage, 3 bad input, 4 no room, 5 group aborted, 6 device fault, 130 interrupted, 141 the reader of its output went away, 143 terminated"

#endif
