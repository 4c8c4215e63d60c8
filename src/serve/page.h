/* page.h: the page at /, page.html turned into bytes at build time. */
#ifndef TANDEM_SERVE_PAGE_H
#define TANDEM_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char page_html[];
extern const size_t page_html_size;

#endif
