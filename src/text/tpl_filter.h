/* tpl_filter.h: the tables of filters: on single values (tpl_filter.c) and on sequences (tpl_filter_seq.c). */
#ifndef TANDEM_TEXT_TPL_FILTER_H
#define TANDEM_TEXT_TPL_FILTER_H

#include "text/tpl_call.h"

extern const struct tpl_function tpl_sequence_filters[];
extern const size_t tpl_sequence_filter_count;

#endif
