/* tpl_value.h: the values of a template: Python's, as far as templates can see them.
 *
 * A value is small and copied; what it points to lives in the arena of a run (or of the template, for constants) and never
 * changes once built, except namespaces, the position of a generator and the state of a loop. Text is well-formed UTF-8,
 * indexed by code point. A string knows which of its bytes came from the request (marks): operations that copy text copy its
 * marks, so that the caller of a render can tell a control token of the template from one that a user typed.
 */
#ifndef TANDEM_TEXT_TPL_VALUE_H
#define TANDEM_TEXT_TPL_VALUE_H

#include "text/tpl_run.h"

/* X(enumerator, the name of the type in messages) */
#define TPL_KIND_LIST(X)         \
	X(UNDEFINED, "Undefined")    \
	X(NONE, "NoneType")          \
	X(BOOL, "bool")              \
	X(INT, "int")                \
	X(FLOAT, "float")            \
	X(STRING, "str")             \
	X(LIST, "list")              \
	X(TUPLE, "tuple")            \
	X(DICT, "dict")              \
	X(VIEW, "dict view")         \
	X(RANGE, "range")            \
	X(GENERATOR, "generator")    \
	X(NAMESPACE, "Namespace")    \
	X(LOOP, "LoopContext")       \
	X(MACRO, "Macro")            \
	X(FUNCTION, "function")      \
	X(METHOD, "method")

enum tpl_kind {
#define X(code, name) TPL_##code,
	TPL_KIND_LIST(X)
#undef X
};

struct tpl_mark {
	size_t start, end; /* bytes; sorted, apart from each other, none empty */
};

struct tpl_string {
	const char *data; /* no NUL follows */
	size_t size, chars;
	size_t mark_count;
	const struct tpl_mark *marks;
	bool markup; /* `safe` text: joined by + with other text, it escapes that */
};

struct tpl_value;

struct tpl_seq {
	struct tpl_value *items;
	size_t count, capacity;
	size_t taken;         /* GENERATOR: items that were consumed */
	const char *printed;  /* VIEW: "dict_items" and so on */
};

struct tpl_range {
	int64_t start, stop, step;
	size_t count;
};

struct tpl_loop;     /* tpl_loop.h */
struct tpl_macro;    /* tpl_call.h */
struct tpl_method;   /* tpl_method.h */
struct tpl_function; /* tpl_call.h */

struct tpl_value {
	enum tpl_kind kind;
	union {
		const struct tpl_string *missing; /* UNDEFINED: its name, or NULL */
		bool boolean;
		int64_t integer; /* larger ones are an error */
		double real;
		const struct tpl_string *string;
		struct tpl_seq *seq;   /* LIST, TUPLE, VIEW, GENERATOR */
		struct tpl_dict *dict; /* DICT, NAMESPACE */
		const struct tpl_range *range;
		struct tpl_loop *loop;
		const struct tpl_macro *macro;
		const struct tpl_method *method;
		const struct tpl_function *function;
	};
};

/* Insertion order. Keys are anything hashable; 1, 1.0 and True are one key. */
struct tpl_pair {
	struct tpl_value key, value;
	uint64_t hash;
};
struct tpl_dict {
	struct tpl_pair *pairs;
	size_t count, capacity;
	uint32_t *index; /* open addressing, pair number + 1; NULL while the dict is small */
	size_t index_size;
};

static inline struct tpl_value tpl_undefined(const struct tpl_string *name)
{
	return (struct tpl_value){.kind = TPL_UNDEFINED, .missing = name};
}
static inline struct tpl_value tpl_none(void)
{
	return (struct tpl_value){.kind = TPL_NONE};
}
static inline struct tpl_value tpl_bool(bool b)
{
	return (struct tpl_value){.kind = TPL_BOOL, .boolean = b};
}
static inline struct tpl_value tpl_int(int64_t i)
{
	return (struct tpl_value){.kind = TPL_INT, .integer = i};
}
static inline struct tpl_value tpl_float(double d)
{
	return (struct tpl_value){.kind = TPL_FLOAT, .real = d};
}
static inline struct tpl_value tpl_string(const struct tpl_string *s)
{
	return (struct tpl_value){.kind = TPL_STRING, .string = s};
}
static inline struct tpl_value tpl_seq(enum tpl_kind kind, struct tpl_seq *seq)
{
	return (struct tpl_value){.kind = kind, .seq = seq};
}

const char *tpl_kind_name(struct tpl_value v);
/* BAD_INPUT saying that `v` is undefined. */
enum status tpl_fail_undefined(struct tpl_run *run, struct tpl_value v) NODISCARD;

/* Strings. `data` is borrowed and must outlive the run; `user` marks all of it. */
enum status tpl_string_new(struct tpl_run *run, const char *data, size_t n, bool user, struct tpl_value *out) NODISCARD;
/* The bytes [from, to) of `s`, which begin and end code points; shares the bytes. */
enum status tpl_string_cut(struct tpl_run *run, const struct tpl_string *s, size_t from, size_t to, struct tpl_value *out) NODISCARD;
/* The byte at which code point `index` starts; `index` is at most s->chars. */
enum status tpl_string_offset(struct tpl_run *run, const struct tpl_string *s, size_t index, size_t *out) NODISCARD;
bool tpl_string_is(const struct tpl_string *s, const char *literal);

enum status tpl_seq_new(struct tpl_run *run, size_t capacity, struct tpl_seq **out) NODISCARD;
enum status tpl_seq_push(struct tpl_run *run, struct tpl_seq *seq, struct tpl_value v) NODISCARD;
enum status tpl_pair_tuple(struct tpl_run *run, struct tpl_value a, struct tpl_value b, struct tpl_value *out) NODISCARD;

enum status tpl_dict_new(struct tpl_run *run, struct tpl_dict **out) NODISCARD;
/* *out is NULL if the key is not there. BAD_INPUT for a key that cannot be one. */
enum status tpl_dict_get(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_value key, struct tpl_value **out) NODISCARD;
enum status tpl_dict_set(struct tpl_run *run, struct tpl_dict *dict, struct tpl_value key, struct tpl_value v) NODISCARD;
bool tpl_hashable(struct tpl_value v);

/* len(v), for what has one. */
bool tpl_length(struct tpl_value v, size_t *out);
bool tpl_iterable(struct tpl_value v);

struct tpl_iter {
	struct tpl_value of;
	size_t at; /* item number; for a string its byte */
};
/* BAD_INPUT if `v` cannot be iterated. A generator is consumed as it goes. */
enum status tpl_iter_init(struct tpl_run *run, struct tpl_value v, struct tpl_iter *it) NODISCARD;
enum status tpl_iter_next(struct tpl_run *run, struct tpl_iter *it, bool *more, struct tpl_value *out) NODISCARD;
/* list(v); a list or tuple gives its own items, not to be changed. */
enum status tpl_collect(struct tpl_run *run, struct tpl_value v, struct tpl_seq **out) NODISCARD;

#endif
