/* tpl_method.h: the methods of str, list, tuple and dict that a template may call. Methods that would change a value are undefined
 * here, as in the sandbox that Hugging Face renders in; those that exist in Python and not here are UNSUPPORTED by name. */
#ifndef TANDEM_TEXT_TPL_METHOD_H
#define TANDEM_TEXT_TPL_METHOD_H

#include "text/tpl_call.h"

struct tpl_method {
	struct tpl_value self;
	const struct tpl_function *function;
};

enum status tpl_method_bind(struct tpl_run *run, struct tpl_value self, const struct tpl_function *function, struct tpl_value *out) NODISCARD;
/* *found is false if Python has no such attribute. */
enum status tpl_method_find(struct tpl_run *run, struct tpl_value self, const struct tpl_string *name, struct tpl_value *out, bool *found) NODISCARD;

/* The methods of str; the filters of the same name use the functions below. */
extern const struct tpl_function tpl_string_methods[];
extern const size_t tpl_string_method_count;

/* str.strip and its halves: `chars` NULL means white space. */
enum status tpl_strip(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *chars, bool left, bool right,
                      struct tpl_value *out) NODISCARD;
/* The first `limit` occurrences (negative: all). */
enum status tpl_replace(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *from, const struct tpl_string *to, int64_t limit,
                        struct tpl_value *out) NODISCARD;
/* str.splitlines(), as a list. */
enum status tpl_split_lines(struct tpl_run *run, const struct tpl_string *s, bool keep_ends, struct tpl_seq **out) NODISCARD;
/* separator.join(items); with `strings` the items must be strings, else their str() is joined. */
enum status tpl_join(struct tpl_run *run, const struct tpl_string *separator, const struct tpl_seq *items, bool strings, struct tpl_value *out) NODISCARD;
enum status tpl_center(struct tpl_run *run, const struct tpl_string *s, int64_t width, struct tpl_value *out) NODISCARD;
/* str.islower() and isupper(). */
bool tpl_all_cased(const struct tpl_string *s, enum tpl_letter as);
enum status tpl_dict_items(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_seq **out) NODISCARD;

#endif
