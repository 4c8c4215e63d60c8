/* tpl_format.h: values as text: str(), repr(), the % operator of strings, HTML escapes. */
#ifndef TANDEM_TEXT_TPL_FORMAT_H
#define TANDEM_TEXT_TPL_FORMAT_H

#include "text/tpl_text.h"

#define TPL_NUMBER_BYTES 40
/* repr() of a float: the shortest digits that read back as the same number. Returns the length. */
size_t tpl_float_repr(double d, char out[TPL_NUMBER_BYTES]);

/* str(v), appended. Functions and methods have no text: UNSUPPORTED. */
enum status tpl_text_str(struct tpl_run *run, struct tpl_text *t, struct tpl_value v) NODISCARD;
/* str(v): a string without markup. soft: a string stays what it is. */
enum status tpl_str(struct tpl_run *run, struct tpl_value v, struct tpl_value *out) NODISCARD;
enum status tpl_soft_str(struct tpl_run *run, struct tpl_value v, struct tpl_value *out) NODISCARD;
/* & < > " ' as entities; the result is markup. What is markup already stays. */
enum status tpl_escape(struct tpl_run *run, struct tpl_value v, struct tpl_value *out) NODISCARD;
/* format % args: s r d i u f F e E g G x X o c %, with flags, width and precision; no mapping keys. */
enum status tpl_percent(struct tpl_run *run, const struct tpl_string *format, struct tpl_value args, struct tpl_value *out) NODISCARD;

#endif
