#include "text/tpl_ops.h"

#include <math.h>
#include <string.h>

#include "text/tpl_call.h"
#include "text/tpl_format.h"
#include "text/tpl_loop.h"
#include "text/tpl_method.h"
#include "text/tpl_text.h"

bool tpl_truth(struct tpl_value v)
{
	size_t n;
	switch (v.kind) {
	case TPL_UNDEFINED:
	case TPL_NONE: return false;
	case TPL_BOOL: return v.boolean;
	case TPL_INT: return v.integer != 0;
	case TPL_FLOAT: return v.real != 0;
	default: return !tpl_length(v, &n) || n > 0;
	}
}

bool tpl_as_int(struct tpl_value v, int64_t *out)
{
	if (v.kind != TPL_INT && v.kind != TPL_BOOL) return false;
	*out = v.kind == TPL_INT ? v.integer : v.boolean;
	return true;
}

bool tpl_as_number(struct tpl_value v, double *out)
{
	int64_t i;
	if (tpl_as_int(v, &i)) *out = (double)i;
	else if (v.kind == TPL_FLOAT) *out = v.real;
	else return false;
	return true;
}

/* ---- equality and order ---- */

/* Exact, as Python compares: no rounding of the integer. 2: NaN. */
static int order_int_float(int64_t i, double d)
{
	if (isnan(d)) return 2;
	if (d >= 0x1p63) return -1;
	if (d < -0x1p63) return 1;
	double whole = floor(d);
	int64_t j = (int64_t)whole;
	if (i != j) return i < j ? -1 : 1;
	return d > whole ? -1 : 0;
}

static bool order_numbers(struct tpl_value a, struct tpl_value b, int *out)
{
	int64_t i, j;
	bool a_int = tpl_as_int(a, &i), b_int = tpl_as_int(b, &j);
	if ((!a_int && a.kind != TPL_FLOAT) || (!b_int && b.kind != TPL_FLOAT)) return false;
	if (a_int && b_int) *out = i < j ? -1 : i > j;
	else if (a_int) *out = order_int_float(i, b.real);
	else if (b_int) {
		int reverse = order_int_float(j, a.real);
		*out = reverse == 2 ? 2 : -reverse;
	} else *out = isnan(a.real) || isnan(b.real) ? 2 : a.real < b.real ? -1 : a.real > b.real;
	return true;
}

static int order_strings(const struct tpl_string *a, const struct tpl_string *b)
{
	size_t n = a->size < b->size ? a->size : b->size;
	int order = n ? memcmp(a->data, b->data, n) : 0; /* the order of UTF-8 bytes is that of code points */
	if (order == 0) order = a->size < b->size ? -1 : a->size > b->size;
	return order < 0 ? -1 : order > 0;
}

bool tpl_same(struct tpl_value a, struct tpl_value b)
{
	if (a.kind != b.kind) return false;
	switch (a.kind) {
	case TPL_UNDEFINED:
	case TPL_NONE: return true;
	case TPL_BOOL: return a.boolean == b.boolean;
	case TPL_INT: return a.integer == b.integer;
	case TPL_FLOAT: return a.real == b.real;
	case TPL_STRING: return a.string->size == b.string->size && order_strings(a.string, b.string) == 0;
	default: return (const void *)a.seq == (const void *)b.seq;
	}
}

static enum status equal_dicts(struct tpl_run *run, const struct tpl_dict *a, const struct tpl_dict *b, bool *out)
{
	*out = a->count == b->count;
	for (size_t i = 0; *out && i < a->count; i++) {
		struct tpl_value *other;
		TRY(tpl_dict_get(run, b, a->pairs[i].key, &other));
		*out = other != NULL;
		if (other) TRY(tpl_equal(run, a->pairs[i].value, *other, out));
	}
	return STATUS_OK;
}

static bool equal_ranges(const struct tpl_range *a, const struct tpl_range *b)
{
	if (a->count != b->count) return false;
	return a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step));
}

enum status tpl_equal(struct tpl_run *run, struct tpl_value a, struct tpl_value b, bool *out)
{
	int order;
	if (order_numbers(a, b, &order)) {
		*out = order == 0;
		return STATUS_OK;
	}
	*out = false;
	if (a.kind != b.kind) return STATUS_OK;
	TRY(tpl_descend(run));
	switch (a.kind) {
	case TPL_STRING:
		*out = a.string->size == b.string->size;
		if (*out) TRY(tpl_pay_bytes(run, a.string->size));
		if (*out) *out = order_strings(a.string, b.string) == 0;
		break;
	case TPL_LIST:
	case TPL_TUPLE:
		*out = a.seq->count == b.seq->count;
		for (size_t i = 0; *out && i < a.seq->count; i++) TRY(tpl_equal(run, a.seq->items[i], b.seq->items[i], out));
		break;
	case TPL_DICT: TRY(equal_dicts(run, a.dict, b.dict, out)); break;
	case TPL_RANGE: *out = equal_ranges(a.range, b.range); break;
	default: *out = tpl_same(a, b); break;
	}
	run->depth++;
	return STATUS_OK;
}

enum status tpl_order(struct tpl_run *run, struct tpl_value a, struct tpl_value b, int *out)
{
	if (order_numbers(a, b, out)) return STATUS_OK;
	if (a.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, a);
	if (b.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, b);
	if (a.kind == TPL_STRING && b.kind == TPL_STRING) {
		*out = order_strings(a.string, b.string);
		return tpl_pay_bytes(run, a.string->size < b.string->size ? a.string->size : b.string->size);
	}
	if (a.kind != b.kind || (a.kind != TPL_LIST && a.kind != TPL_TUPLE))
		return FAIL(run->err, BAD_INPUT, "a %s and a %s have no order", tpl_kind_name(a), tpl_kind_name(b));
	TRY(tpl_descend(run));
	*out = a.seq->count < b.seq->count ? -1 : a.seq->count > b.seq->count;
	for (size_t i = 0; i < a.seq->count && i < b.seq->count; i++) {
		bool equal;
		TRY(tpl_equal(run, a.seq->items[i], b.seq->items[i], &equal));
		if (equal) continue;
		TRY(tpl_order(run, a.seq->items[i], b.seq->items[i], out));
		break;
	}
	run->depth++;
	return STATUS_OK;
}

static enum status range_contains(const struct tpl_range *range, struct tpl_value item, bool *out)
{
	double d;
	int64_t i;
	*out = false;
	if (item.kind == TPL_FLOAT && item.real == floor(item.real) && fabs(item.real) < 0x1p62) i = (int64_t)item.real;
	else if (!tpl_as_number(item, &d) || !tpl_as_int(item, &i)) return STATUS_OK;
	if (range->count == 0) return STATUS_OK;
	int64_t last = range->start + (int64_t)(range->count - 1) * range->step;
	int64_t low = range->step > 0 ? range->start : last, high = range->step > 0 ? last : range->start;
	*out = i >= low && i <= high && (i - range->start) % range->step == 0;
	return STATUS_OK;
}

/* `item in container`. */
static enum status contains(struct tpl_run *run, struct tpl_value container, struct tpl_value item, bool *out)
{
	struct tpl_value *found;
	struct tpl_iter it;
	*out = false;
	switch (container.kind) {
	case TPL_STRING:
		if (item.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, item);
		if (item.kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "'in' a str needs a str before it, not a %s", tpl_kind_name(item));
		TRY(tpl_pay_bytes(run, container.string->size));
		*out = item.string->size == 0 || (container.string->size > 0 && memmem(container.string->data, container.string->size, item.string->data,
		                                                                      item.string->size) != NULL);
		return STATUS_OK;
	case TPL_DICT:
		TRY(tpl_dict_get(run, container.dict, item, &found));
		*out = found != NULL;
		return STATUS_OK;
	case TPL_RANGE: return range_contains(container.range, item, out);
	default: break;
	}
	TRY(tpl_iter_init(run, container, &it));
	while (!*out) {
		bool more;
		struct tpl_value v;
		TRY(tpl_iter_next(run, &it, &more, &v));
		if (!more) break;
		TRY(tpl_equal(run, v, item, out));
	}
	return STATUS_OK;
}

enum status tpl_compare(struct tpl_run *run, int op, struct tpl_value a, struct tpl_value b, bool *out)
{
	int order;
	switch (op) {
	case TPL_OP('=', '='): return tpl_equal(run, a, b, out);
	case TPL_OP('!', '='):
		TRY(tpl_equal(run, a, b, out));
		*out = !*out;
		return STATUS_OK;
	case 'i': return contains(run, b, a, out);
	case 'n':
		TRY(contains(run, b, a, out));
		*out = !*out;
		return STATUS_OK;
	default: break;
	}
	TRY(tpl_order(run, a, b, &order));
	switch (op) {
	case '<': *out = order == -1; break;
	case '>': *out = order == 1; break;
	case TPL_OP('<', '='): *out = order == -1 || order == 0; break;
	default: *out = order == 1 || order == 0; break;
	}
	return STATUS_OK;
}

/* ---- arithmetic ---- */

static enum status too_large(struct tpl_run *run)
{
	return FAIL(run->err, UNSUPPORTED, "an integer leaves the 64 bits that are implemented");
}

static enum status by_zero(struct tpl_run *run)
{
	return FAIL(run->err, BAD_INPUT, "division by zero");
}

static enum status int_power(struct tpl_run *run, int64_t base, int64_t exponent, int64_t *out)
{
	int64_t result = 1;
	while (exponent > 0) {
		if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return too_large(run);
		exponent >>= 1;
		if (exponent && __builtin_mul_overflow(base, base, &base)) return too_large(run);
	}
	*out = result;
	return STATUS_OK;
}

static enum status int_binary(struct tpl_run *run, int op, int64_t a, int64_t b, struct tpl_value *out)
{
	int64_t r = 0;
	bool overflow = false;
	switch (op) {
	case '+': overflow = __builtin_add_overflow(a, b, &r); break;
	case '-': overflow = __builtin_sub_overflow(a, b, &r); break;
	case '*': overflow = __builtin_mul_overflow(a, b, &r); break;
	case TPL_OP('/', '/'):
		if (b == 0) return by_zero(run);
		overflow = a == INT64_MIN && b == -1;
		if (!overflow) r = a / b - (a % b != 0 && (a < 0) != (b < 0));
		break;
	case '%':
		if (b == 0) return by_zero(run);
		r = b == -1 ? 0 : a % b;
		if (r != 0 && (r < 0) != (b < 0)) r += b;
		break;
	default: TRY(int_power(run, a, b, &r)); break;
	}
	if (overflow) return too_large(run);
	*out = tpl_int(r);
	return STATUS_OK;
}

static enum status float_binary(struct tpl_run *run, int op, double a, double b, struct tpl_value *out)
{
	double r;
	switch (op) {
	case '+': r = a + b; break;
	case '-': r = a - b; break;
	case '*': r = a * b; break;
	case '/':
		if (b == 0) return by_zero(run);
		r = a / b;
		break;
	case TPL_OP('/', '/'):
	case '%': { /* CPython's float_divmod */
		if (b == 0) return by_zero(run);
		double mod = fmod(a, b), div = (a - mod) / b;
		if (mod != 0 && (b < 0) != (mod < 0)) {
			mod += b;
			div -= 1;
		} else if (mod == 0) mod = copysign(0, b);
		double whole = div != 0 ? floor(div) : copysign(0, a / b);
		if (div != 0 && div - whole > 0.5) whole += 1;
		r = op == '%' ? mod : whole;
		break;
	}
	default:
		if (a == 0 && b < 0) return by_zero(run);
		if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) return FAIL(run->err, UNSUPPORTED, "complex numbers are not implemented");
		r = pow(a, b);
		if (isinf(r) && isfinite(a) && isfinite(b)) return FAIL(run->err, BAD_INPUT, "a power is too large");
		break;
	}
	*out = tpl_float(r);
	return STATUS_OK;
}

/* Joins two strings; text that is `safe` escapes the other side. */
static enum status concat(struct tpl_run *run, const struct tpl_string *a, const struct tpl_string *b, struct tpl_value *out)
{
	struct tpl_text t = {0};
	struct tpl_value left = tpl_string(a), right = tpl_string(b);
	bool markup = a->markup || b->markup;
	if (markup && !a->markup) TRY(tpl_escape(run, left, &left));
	if (markup && !b->markup) TRY(tpl_escape(run, right, &right));
	TRY(tpl_text_string(run, &t, left.string));
	TRY(tpl_text_string(run, &t, right.string));
	return tpl_text_finish(run, &t, markup, out);
}

static enum status join_seqs(struct tpl_run *run, struct tpl_value a, struct tpl_value b, struct tpl_value *out)
{
	struct tpl_seq *seq;
	TRY(tpl_pay(run, a.seq->count + b.seq->count));
	TRY(tpl_seq_new(run, a.seq->count + b.seq->count, &seq));
	if (a.seq->count) memcpy(seq->items, a.seq->items, a.seq->count * sizeof *seq->items);
	if (b.seq->count) memcpy(seq->items + a.seq->count, b.seq->items, b.seq->count * sizeof *seq->items);
	seq->count = a.seq->count + b.seq->count;
	*out = tpl_seq(a.kind, seq);
	return STATUS_OK;
}

static enum status repeat(struct tpl_run *run, struct tpl_value what, int64_t times, struct tpl_value *out)
{
	size_t n = times > 0 ? (size_t)times : 0;
	if (what.kind == TPL_STRING) {
		struct tpl_text t = {0};
		TRY(tpl_text_repeat(run, &t, what.string, n));
		return tpl_text_finish(run, &t, what.string->markup, out);
	}
	struct tpl_seq *seq;
	size_t total;
	if (__builtin_mul_overflow(what.seq->count, n, &total)) return tpl_out_of(run, "memory");
	TRY(tpl_pay(run, total));
	TRY(tpl_seq_new(run, total, &seq));
	for (size_t i = 0; i < total; i++) seq->items[i] = what.seq->items[i % what.seq->count];
	seq->count = total;
	*out = tpl_seq(what.kind, seq);
	return STATUS_OK;
}

static bool repeatable(struct tpl_value v)
{
	return v.kind == TPL_STRING || v.kind == TPL_LIST || v.kind == TPL_TUPLE;
}

enum status tpl_binary(struct tpl_run *run, int op, struct tpl_value a, struct tpl_value b, struct tpl_value *out)
{
	int64_t i = 0, j = 0;
	double x, y;
	bool ints = tpl_as_int(a, &i) & tpl_as_int(b, &j);
	if (op == '%' && a.kind == TPL_STRING) return tpl_percent(run, a.string, b, out);
	if (a.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, a);
	if (b.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, b);
	if (ints && op != '/' && !(op == TPL_OP('*', '*') && j < 0)) return int_binary(run, op, i, j, out);
	if (tpl_as_number(a, &x) && tpl_as_number(b, &y)) return float_binary(run, op, x, y, out);
	if (op == '+' && a.kind == TPL_STRING && b.kind == TPL_STRING) return concat(run, a.string, b.string, out);
	if (op == '+' && a.kind == b.kind && (a.kind == TPL_LIST || a.kind == TPL_TUPLE)) return join_seqs(run, a, b, out);
	if (op == '*' && repeatable(a) && tpl_as_int(b, &j)) return repeat(run, a, j, out);
	if (op == '*' && repeatable(b) && tpl_as_int(a, &i)) return repeat(run, b, i, out);
	return FAIL(run->err, BAD_INPUT, "'%c%s' is not defined for a %s and a %s", op & 0xFF, op >> 8 == '*' ? "*" : op >> 8 == '/' ? "/" : "",
	            tpl_kind_name(a), tpl_kind_name(b));
}

enum status tpl_negate(struct tpl_run *run, struct tpl_value v, struct tpl_value *out)
{
	int64_t i;
	if (v.kind == TPL_FLOAT) {
		*out = tpl_float(-v.real);
		return STATUS_OK;
	}
	if (v.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, v);
	if (!tpl_as_int(v, &i)) return FAIL(run->err, BAD_INPUT, "a sign before a %s", tpl_kind_name(v));
	return int_binary(run, '-', 0, i, out);
}

/* ---- attributes and subscripts ---- */

/* getattr(obj, name) of Python, as the sandbox shows it: *found is false where Python raises AttributeError. */
static enum status attribute(struct tpl_run *run, struct tpl_value obj, const struct tpl_string *name, struct tpl_value *out, bool *found)
{
	struct tpl_value *value = NULL;
	*found = false;
	switch (obj.kind) {
	case TPL_UNDEFINED:
		if (name->size > 4 && memcmp(name->data, "__", 2) == 0) break;
		return tpl_fail_undefined(run, obj);
	case TPL_NAMESPACE:
		TRY(tpl_dict_get(run, obj.dict, tpl_string(name), &value));
		*found = value != NULL;
		if (value) *out = *value;
		break;
	case TPL_LOOP: return tpl_loop_attr(run, obj.loop, name, out, found);
	default: return tpl_method_find(run, obj, name, out, found);
	}
	return STATUS_OK;
}

enum status tpl_get_attr(struct tpl_run *run, struct tpl_value obj, const struct tpl_string *name, struct tpl_value *out)
{
	bool found;
	TRY(attribute(run, obj, name, out, &found));
	if (found) return STATUS_OK;
	*out = tpl_undefined(name);
	if (obj.kind != TPL_DICT) return STATUS_OK;
	struct tpl_value *value;
	TRY(tpl_dict_get(run, obj.dict, tpl_string(name), &value));
	if (value) *out = *value;
	return STATUS_OK;
}

static enum status item_of(struct tpl_run *run, struct tpl_value obj, int64_t index, struct tpl_value *out)
{
	size_t n = 0;
	(void)tpl_length(obj, &n);
	if (index < 0) index += (int64_t)n;
	if (index < 0 || (size_t)index >= n) return STATUS_OK;
	size_t at = (size_t)index;
	if (obj.kind == TPL_RANGE) *out = tpl_int(obj.range->start + index * obj.range->step);
	else if (obj.kind != TPL_STRING) *out = obj.seq->items[at];
	else {
		size_t from, to;
		TRY(tpl_string_offset(run, obj.string, at, &from));
		TRY(tpl_string_offset(run, obj.string, at + 1, &to));
		return tpl_string_cut(run, obj.string, from, to, out);
	}
	return STATUS_OK;
}

enum status tpl_get_item(struct tpl_run *run, struct tpl_value obj, struct tpl_value key, struct tpl_value *out)
{
	int64_t index;
	bool found = false;
	if (obj.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, obj);
	*out = tpl_undefined(key.kind == TPL_STRING ? key.string : NULL);
	if (obj.kind == TPL_DICT && tpl_hashable(key)) {
		struct tpl_value *value;
		TRY(tpl_dict_get(run, obj.dict, key, &value));
		if (value) {
			*out = *value;
			return STATUS_OK;
		}
	}
	if ((repeatable(obj) || obj.kind == TPL_RANGE) && tpl_as_int(key, &index)) return item_of(run, obj, index, out);
	if (key.kind != TPL_STRING) return STATUS_OK;
	struct tpl_value value;
	TRY(attribute(run, obj, key.string, &value, &found));
	if (found) *out = value;
	return STATUS_OK;
}

static enum status slice_bound(struct tpl_run *run, struct tpl_value v, int64_t fallback, int64_t n, int64_t low, int64_t high, int64_t *out)
{
	int64_t i;
	*out = fallback;
	if (v.kind == TPL_NONE) return STATUS_OK;
	if (!tpl_as_int(v, &i)) return FAIL(run->err, BAD_INPUT, "a slice from or to a %s", tpl_kind_name(v));
	if (i < 0) i = i < -n ? INT64_MIN : i + n;
	*out = i < low ? low : i > high ? high : i;
	return STATUS_OK;
}

/* The items start, start + step, ... (count of them) of a string. */
static enum status slice_string(struct tpl_run *run, const struct tpl_string *s, int64_t start, int64_t step, size_t count, struct tpl_value *out)
{
	size_t from = 0, to = 0;
	if (step == 1 || count == 0) {
		TRY(tpl_string_offset(run, s, count ? (size_t)start : 0, &from));
		TRY(tpl_string_offset(run, s, count ? (size_t)start + count : 0, &to));
		return tpl_string_cut(run, s, from, to, out);
	}
	size_t *offsets; /* of all characters: a step of -1 would otherwise count from the front each time */
	struct tpl_text t = {0};
	TRY(tpl_pay(run, s->chars));
	TRY(TPL_NEW(run, offsets, s->chars + 1));
	for (size_t i = 0, at = 0; at < s->size; at++)
		if (((unsigned char)s->data[at] & 0xC0) != 0x80) offsets[i++] = at;
	offsets[s->chars] = s->size;
	for (size_t i = 0; i < count; i++) {
		size_t at = (size_t)(start + (int64_t)i * step);
		TRY(tpl_text_cut(run, &t, s, offsets[at], offsets[at + 1]));
	}
	return tpl_text_finish(run, &t, s->markup, out);
}

enum status tpl_slice(struct tpl_run *run, struct tpl_value obj, const struct tpl_value bounds[3], struct tpl_value *out)
{
	size_t length = 0;
	int64_t step = 1, start, stop;
	if (obj.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, obj);
	if (!repeatable(obj) && obj.kind != TPL_RANGE) return FAIL(run->err, BAD_INPUT, "a %s cannot be sliced", tpl_kind_name(obj));
	if (bounds[2].kind != TPL_NONE && !tpl_as_int(bounds[2], &step)) return FAIL(run->err, BAD_INPUT, "a slice by a %s", tpl_kind_name(bounds[2]));
	if (step == 0) return FAIL(run->err, BAD_INPUT, "a slice by 0");
	(void)tpl_length(obj, &length);
	int64_t n = (int64_t)length, low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
	if (step > n + 1) step = n + 1; /* the same items, and no overflow */
	if (step < -n - 1) step = -n - 1;
	TRY(slice_bound(run, bounds[0], step < 0 ? high : low, n, low, high, &start));
	TRY(slice_bound(run, bounds[1], step < 0 ? low : high, n, low, high, &stop));
	int64_t span = step > 0 ? stop - start : start - stop;
	size_t count = span > 0 ? (size_t)((span - 1) / (step > 0 ? step : -step) + 1) : 0;
	if (obj.kind == TPL_STRING) return slice_string(run, obj.string, start, step, count, out);
	if (obj.kind == TPL_RANGE) {
		struct tpl_range *range;
		TRY(TPL_NEW(run, range, 1));
		*range = (struct tpl_range){.start = obj.range->start + start * obj.range->step, .step = obj.range->step * step, .count = count};
		range->stop = obj.range->start + stop * obj.range->step;
		*out = (struct tpl_value){.kind = TPL_RANGE, .range = range};
		return STATUS_OK;
	}
	struct tpl_seq *seq;
	TRY(tpl_pay(run, count));
	TRY(tpl_seq_new(run, count, &seq));
	for (size_t i = 0; i < count; i++) seq->items[i] = obj.seq->items[start + (int64_t)i * step];
	seq->count = count;
	*out = tpl_seq(obj.kind, seq);
	return STATUS_OK;
}
