/* page.h: the page at /, page.html turned into bytes at build time. */
#ifndef TANDEM_SERVE_PAGE_H
#define TANDEM_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char page_html[];
extern const size_t page_html_size;

/* The Content-Security-Policy that lets the page's own script and style run, by their hashes, and talk to this server; nothing else. */
#define PAGE_POLICY_BYTES 384
void page_policy(char text[PAGE_POLICY_BYTES]);

#endif
