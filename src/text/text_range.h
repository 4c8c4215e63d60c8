/* text_range.h: a stretch of a text. */
#ifndef TANDEM_TEXT_TEXT_RANGE_H
#define TANDEM_TEXT_TEXT_RANGE_H

#include <stddef.h>

/* Bytes [start, end). */
struct text_range {
	size_t start, end;
};

#endif
