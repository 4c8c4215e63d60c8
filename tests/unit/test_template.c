/* Chat templates: each rule of the language in a small case, spans, budgets, model folders. Whole templates are compared with jinja2 by
 * tests/python/chat_template.sh. */
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "text/template.h"
#include "unit/files.h"

static const struct tm now = {.tm_sec = 7, .tm_min = 5, .tm_hour = 9, .tm_mday = 8, .tm_mon = 2, .tm_year = 126, .tm_wday = 0, .tm_yday = 66};

struct outcome {
	enum status st;
	struct template_output out;
	struct error err;
};

static json_t *parsed(const char *text)
{
	json_error_t why;
	json_t *json = json_loads(text, JSON_ALLOW_NUL, &why);
	if (!json) fail_msg("the test's own JSON: %s: %s", text, why.text);
	return json;
}

static struct outcome run(const char *source, struct template_input input)
{
	struct outcome o = {0};
	struct template *template;
	json_t *none = json_array();
	if (!input.messages) input.messages = none;
	if (!input.now) input.now = &now;
	o.st = template_parse(&template, source, strlen(source), "t", &o.err);
	assert_true((o.st == STATUS_OK) == (template != NULL));
	if (template) o.st = template_render(template, &input, &o.out, &o.err);
	assert_true((o.st == STATUS_OK) == (o.err.code == STATUS_OK));
	template_destroy(&template);
	json_decref(none);
	return o;
}

static struct outcome run_with(const char *source, const char *variables)
{
	json_t *kwargs = parsed(variables);
	struct outcome o = run(source, (struct template_input){.kwargs = kwargs});
	json_decref(kwargs);
	return o;
}

static void expect(const char *source, struct outcome o, const char *expected)
{
	if (o.st != STATUS_OK) fail_msg("%s: %s", source, o.err.text);
	if (strlen(expected) != o.out.text.size || (o.out.text.size && memcmp(expected, o.out.text.data, o.out.text.size) != 0))
		fail_msg("%s: expected \"%s\", got \"%s\"", source, expected, o.out.text.data ? o.out.text.data : "");
	template_output_fini(&o.out);
}

static void renders(const char *source, const char *expected)
{
	expect(source, run_with(source, "{}"), expected);
}

/* Fails with this code and a text that has `needle`. */
static void expect_failure(const char *source, struct outcome o, enum status code, const char *needle)
{
	if (o.st != code) fail_msg("%s: expected %s, got %s: %s %s", source, status_name(code), status_name(o.st), o.err.text, o.out.text.data ? o.out.text.data : "");
	if (!strstr(o.err.text, needle)) fail_msg("%s: expected an error with \"%s\", got \"%s\"", source, needle, o.err.text);
	if (o.out.text.data || o.out.user) fail_msg("%s: a failed render left output", source);
}

static void fails(const char *source, enum status code, const char *needle)
{
	expect_failure(source, run_with(source, "{}"), code, needle);
}

struct pair {
	const char *source, *expected;
};

static void all(const struct pair *pairs, size_t n)
{
	for (size_t i = 0; i < n; i++) renders(pairs[i].source, pairs[i].expected);
}
#define ALL(pairs) all(pairs, sizeof(pairs) / sizeof *(pairs))

/* ---- the language ---- */

static void test_whitespace(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"a\n", "a"}, {"a\n\n", "a\n"}, {"a\r\nb\rc", "a\nb\nc"}, {"", ""}, {"\n", ""},
		{"a\n{% if true %}\nb\n{% endif %}\nc", "a\nb\nc"},
		{"a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"},
		{"  {{ 1 }}\n  x", "  1\n  x"}, {"a {% if true %} b {% endif %} c", "a  b  c"},
		{"a  \n {%- if true -%} \n b \n{%- endif %} c", "ab c"}, {"a\n  {%+ if true %}b{% endif %}", "a\n  b"},
		{"{% if true +%}\nb{% endif %}", "\nb"}, {"a {{- 1 -}} b", "a1b"}, {"a\n  {# c #}\n  b", "a\n  b"}, {"a {#- c -#} b", "ab"},
		{"a{# x {{ %} #}b", "ab"}, {"{% raw %} {{ x }} {% endraw %}", " {{ x }} "}, {"a {%- raw -%} {{ {%- endraw -%} b", "a{{b"},
		{"{{ '}}' }}{{ '%}' }}", "}}%}"}, {"{{ {'a': {}} }}", "{'a': {}}"}, {"{{- '  x ' -}}  y", "  x y"},
		{"\t{% set x = 1 %}\n{{ x }}\t", "1\t"}, {"a\xC2\xA0{%- if true %}b{% endif %}", "ab"},
	};
	ALL(pairs);
}

static void test_printing(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{{ true }} {{ none }} {{ false }}", "True None False"},
		{"{{ 1.0 }} {{ 0.1 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789012345.0 }} {{ 1e22 }} {{ 0.0001 }}", "1.0 0.1 1e+16 1e-05 123456789012345.0 1e+22 0.0001"},
		{"{{ -0.0 }} {{ 1e308 * 10 }} {{ 100000.0 }} {{ 5e-324 }} {{ 2.5e-7 }}", "-0.0 inf 100000.0 5e-324 2.5e-07"},
		{"{{ [1, 'a', none, 1.5, (1,), (), {'k': [true]}] }}", "[1, 'a', None, 1.5, (1,), (), {'k': [True]}]"},
		{"{{ [\"it's\", '\"q\"', 'it\\'s \"q\"', '\\n\\t\\\\\\x01\\x7f'] }}", "[\"it's\", '\"q\"', 'it\\'s \"q\"', '\\n\\t\\\\\\x01\\x7f']"},
		{"{{ ['\\u00e9\\u200b\\u00a0\\U0001F600'] }}", "['\xC3\xA9\\u200b\\xa0\xF0\x9F\x98\x80']"},
		{"{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ range(3) }} {{ range(1, 9, 2) }}", "dict_items([('a', 1)]) dict_keys(['a']) range(0, 3) range(1, 9, 2)"},
		{"{{ namespace(a=1) }} {% macro m() %}{% endmacro %}{{ m }}", "<Namespace {'a': 1}> <Macro 'm'>"},
		{"{{ 'a' 'b' }}{{ 'x\\\ny' }}{{ '\\q' }}{{ '\\101' }}", "abxy\\qA"}, {"{{ [x] }}{{ x }}", "[Undefined]"},
		{"{% print 1, 'a' %}", "1a"}, {"{{ 1, 2 }}", "(1, 2)"}, {"{{ ['<'|safe] }}", "[Markup('<')]"},
	};
	ALL(pairs);
}

static void test_operators(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{{ 4/2 }} {{ 7//2 }} {{ -7//2 }} {{ 7%-3 }} {{ -7%3 }} {{ 7.5//2 }} {{ -7.5%2 }} {{ 2**10 }} {{ 2**-1 }}", "2.0 3 -4 -2 2 3.0 0.5 1024 0.5"},
		{"{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ true + 1 }}", "3 9 4 64 2"},
		{"{{ 'a' + 'b' * 3 }} {{ [1] + [2] }} {{ (1,) * 2 }} {{ 'x' * -1 }}", "abbb [1, 2] (1, 1) "},
		{"{{ 1 ~ none ~ 'x' ~ 1.5 }} {{ 1 ~ 2 + '3' }}", "1Nonex1.5 123"},
		{"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != '1' }}", "True False True True True True"},
		{"{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}", "False True"},
		{"{{ 'b' in 'abc' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 3 not in range(3) }} {{ 'x' in y }}", "True True True True False"},
		{"{{ 0 or 'x' }} {{ 1 and 2 }} {{ '' and z.w }} {{ not 1 }} {{ not x }} {{ [] or {} or 'e' }}", "x 2  False True e"},
		{"{{ 'a' if 1 else 'b' }} {{ 'a' if 0 }}{{ 'a' if 0 else 'b' if 0 else 'c' }}", "a c"},
		{"{{ 'x'|upper + 'y' }} {{ -1|abs }} {{ 1 + -1|abs }} {{ 'a' ~ 'b'|upper }}", "Xy 1 2 aB"},
		{"{{ '%s-%d %5.1f|%-3s|%03d %r %%' % ('a', 3, 2.25, 'x', 7, 'q') }} {{ '%s' % 1 }}", "a-3   2.2|x  |007 'q' % 1"},
		{"{{ ('<'|safe) + '<' }} {{ '<' ~ ('<'|safe) }}", "<&lt; <<"}, {"{{ {1: 'a', 1.0: 'b', true: 'c'} }}", "{1: 'c'}"},
	};
	ALL(pairs);
	fails("{{ 'a' + 1 }}", STATUS_BAD_INPUT, "'+'");
	fails("{{ 1 / 0 }}", STATUS_BAD_INPUT, "zero");
	fails("{{ 9223372036854775807 + 1 }}", STATUS_UNSUPPORTED, "64 bits");
	fails("{{ 3 ** 100 }}", STATUS_UNSUPPORTED, "64 bits");
	fails("{{ 99999999999999999999 }}", STATUS_UNSUPPORTED, "64 bits");
	fails("{{ 1 < 'a' }}", STATUS_BAD_INPUT, "order");
	fails("{{ 1 in 'abc' }}", STATUS_BAD_INPUT, "'in'");
	fails("{{ {[]: 1} }}", STATUS_BAD_INPUT, "key");
}

static void test_subscripts(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{{ 'abcde'[1:] }} {{ 'abcde'[:2] }} {{ 'abcde'[::-1] }} {{ 'abcde'[-2:] }} {{ 'abcde'[::2] }} {{ 'abcde'[3:0:-2] }}", "bcde ab edcba de ace db"},
		{"{{ '\xC3\xA9\xE6\x97\xA5x'[1] }} {{ '\xC3\xA9\xE6\x97\xA5x'[::-1] }} {{ '\xC3\xA9\xE6\x97\xA5x'|length }}", "\xE6\x97\xA5 x\xE6\x97\xA5\xC3\xA9 3"},
		{"{{ [1, 2, 3][-1] }} {{ [1, 2, 3][9] }}|{{ (1, 2).0 }} {{ [1, 2, 3][:-1] }} {{ range(9)[2:5] | list }}", "3 |1 [1, 2] [2, 3, 4]"},
		{"{{ {'a': 1}.a }} {{ {'a': 1}['a'] }} {{ {'a': 1}.b }}|{{ {'a': 1}.b is defined }}", "1 1 |False"},
		{"{{ {'items': 5}['items'] }} {{ {'items': 5}.items() }} {{ {'a': 1}['items']() }}", "5 dict_items([('items', 5)]) dict_items([('a', 1)])"},
		{"{{ {1: 'x'}[1.0] }} {{ {(1, 2): 'y'}[1, 2] }} {{ none.x is defined }} {{ [].append is defined }} {{ ''.__class__ is defined }}", "x y False False False"},
	};
	ALL(pairs);
	fails("{{ x.y }}", STATUS_BAD_INPUT, "'x' is undefined");
	fails("{{ {}.a.b }}", STATUS_BAD_INPUT, "'a' is undefined");
	fails("{{ x() }}", STATUS_BAD_INPUT, "undefined");
	fails("{{ 5() }}", STATUS_BAD_INPUT, "called");
	fails("{{ [].append(1) }}", STATUS_BAD_INPUT, "'append' is undefined");
	fails("{{ 'a'.encode() }}", STATUS_UNSUPPORTED, "'encode' of a str");
	fails("{% set d = {} %}{{ d[1:] }}", STATUS_BAD_INPUT, "sliced");
	fails("{{ 'abc'[::0] }}", STATUS_BAD_INPUT, "slice");
}

static void test_statements(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "b"}, {"{% if 0 %}a{% else %}{% if 0 %}b{% else %}c{% endif %}d{% endif %}", "cd"},
		{"{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "11,23"},
		{"{% for k, v in {'z': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}{% for k in {'z': 1, 'a': 2} %}{{ k }}{% endfor %}", "z1a2za"},
		{"{% for x in [] %}a{% else %}b{% endfor %}{% for x in u %}a{% else %}c{% endfor %}", "bc"},
		{"{% for x in [1] %}{% continue %}{% else %}quirk{% endfor %}", "quirk"},
		{"{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", "023"},
		{"{% for x in 'ab' %}{{ loop.first }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}", "True212b;False102a;"},
		{"{% for x in 'abc' %}{{ loop.cycle('x', 'y') }}{{ loop.changed(x == 'a') }}{{ loop.depth }}{% endfor %}", "xTrue1yTrue1xFalse1"},
		{"{% for x in [1, 2] %}{% for y in [3] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "1112"},
		{"{% set ns = namespace(on=true) %}{% for x in [1, 2, 3] if ns.on %}{{ x }}{% set ns.on = false %}{% endfor %}", "1"},
		{"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", "15151"},
		{"{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"}, {"{% set a, b = 1, [2] %}{{ a }}{{ b }}", "1[2]"},
		{"{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}{{ ns.zz }}", "8"},
		{"{% set x %}a{{ 1 }}{% set y = 2 %}{% endset %}{{ x }}{{ y }}{% set z | upper | trim %} q {% endset %}{{ z }}", "a1Q"},
		{"{% filter upper | replace('A', 'B') %}a{{ 'a' }}{% endfilter %}", "BB"}, {"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "12"},
		{"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"}, {"{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}", "a"},
		{"{% for x in [1, 2] %}{% set t %}in{% break %}{% endset %}{% endfor %}{{ t }}.", "."},
		{"{% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}{{ g is iterable }}", "['1', '2'][]True"},
	};
	ALL(pairs);
	fails("{% for x in 5 %}{% endfor %}", STATUS_BAD_INPUT, "iterated");
	fails("{% for a, b in [[1]] %}{% endfor %}", STATUS_BAD_INPUT, "1 values for 2 variables");
	fails("{% set x = {} %}{% set x.y = 1 %}", STATUS_BAD_INPUT, "namespace");
	fails("{% filter length %}abc{% endfilter %}", STATUS_BAD_INPUT, "filter block");
}

static void test_macros(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{% macro f(a, b=2, c=a) %}{{ a }}|{{ b }}|{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(*[7, 8], **{'c': 9}) }}", "1|2|1;1|2|3;|2|;7|8|9;"},
		{"{% macro f(n) %}{{ n }}{{ f(n - 1) if n > 0 }}{% endmacro %}{{ f(3) }}", "3210"},
		{"{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 9 %}{% endmacro %}{{ f() }}{% set x = 2 %}{{ f() }}{{ x }}", "122"},
		{"{% macro f() -%} a {%- endmacro %}{{ f() | upper ~ f() | length }}", "A1"}, {"{% macro f(kwargs) %}{{ kwargs }}{% endmacro %}{{ f(1) }}", "1"},
	};
	ALL(pairs);
	fails("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", STATUS_BAD_INPUT, "at most 1");
	fails("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", STATUS_BAD_INPUT, "keyword");
	fails("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", STATUS_BAD_INPUT, "keyword");
	fails("{% macro f() %}{{ varargs }}{% endmacro %}{{ f() }}", STATUS_UNSUPPORTED, "varargs");
	fails("{% macro f() %}\n\n{{ 1 + 'a' }}{% endmacro %}\n{{ f() }}", STATUS_BAD_INPUT, "t, line 3:");
	fails("{% macro f() %}{% endmacro %}\n{{ f() +\n1 }}", STATUS_BAD_INPUT, "t, line 2:");
}

static void test_filters_and_tests(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"{{ ' a ' | trim }}|{{ 'xax' | trim('x') }}|{{ 'aXb' | lower }}|{{ 'hello wORLD-a' | title }}|{{ 'hELLO' | capitalize }}", "a|a|axb|Hello World-A|Hello"},
		{"{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }}", "[1, 2, 3] ['A', 'b'] [{'a': 1}, {'a': 2}]"},
		{"{{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | items | list }}", "[('A', 2), ('b', 1)] [('b', 1), ('a', 2)]"},
		{"{{ x | default('d') }}{{ '' | default('e') }}{{ '' | default('f', true) }}{{ none | d('g') }}", "dfNone"},
		{"{{ '42.7' | int }} {{ 'x' | int(5) }} {{ '0x1F' | int(base=16) }} {{ ' 1_0 ' | int }} {{ '1e3' | float }} {{ none | float }}", "42 5 31 10 1000.0 0.0"},
		{"{{ 2.5 | round }} {{ 42.55 | round(1, 'floor') }} {{ 7 | round }} {{ -3 | abs }}", "2.0 42.5 7 3"},
		{"{{ [1, 2] | join }} {{ [1, 2] | join('-') }} {{ [{'n': 1}] | join(attribute='n') }} {{ [1, 2, 3] | sum }} {{ [1, 5, 2] | max }}", "12 1-2 1 6 5"},
		{"{{ ['a', 'b'] | map('upper') | list }} {{ [{'n': {'m': 1}}] | map(attribute='n.m') | list }} {{ [1, 2, 3] | select('odd') | list }}", "['A', 'B'] [1] [1, 3]"},
		{"{{ [{'a': 1}, {}] | selectattr('a') | list }} {{ [{'a': 1}, {}] | rejectattr('a', 'defined') | list }} {{ ['a', 'b'] | reject('equalto', 'a') | list }}", "[{'a': 1}] [{}] ['b']"},
		{"{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(1, true) }}|{{ 'abc' | replace('b', '') }}|{{ ['a', 'A', 'b'] | unique | list }}", "a\n    b\n\n    c| a\n b|ac|['a', 'b']"},
		{"{{ '<a href=\"x\">&\\'' | e }}", "&lt;a href=&#34;x&#34;&gt;&amp;&#39;"}, {"{{ '{\"a\": [1, 2.0, null]}' | from_json }}", "{'a': [1, 2.0, None]}"},
		{"{{ 'stra\xC3\x9F\x65' | upper }} {{ '\xCE\x91\xCE\xA3' | lower }} {{ '\xC4\xB0' | lower | length }}", "STRASSE \xCE\xB1\xCF\x82 2"},
		{"{{ x is undefined }} {{ none is none }} {{ x is none }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ x is iterable }}", "True True False True True True True"},
		{"{{ 5 is number }} {{ true is boolean }} {{ true is integer }} {{ 1 is true }} {{ false is false }} {{ 4 is divisibleby 2 }} {{ 3 is not odd }}", "True True False False True True False"},
		{"{{ 1 is in [1] }} {{ 1 is eq 1 }} {{ 'A' is upper }} {{ 'upper' is filter }} {{ 'zz' is test }} {{ 1 is sameas 1 }}", "True True True True False True"},
		{"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'x'.split('y') }}", "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b c '] [' a b', 'c'] ['a-b', 'c'] ['x']"},
		{"{{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abcb'.find('b') }} {{ 'abcb'.rfind('b') }} {{ 'abcb'.count('b') }}", "True True 1 3 2"},
		{"{{ 'a\r\nb\x0B\xE2\x80\xA8\x63'.splitlines() }} {{ ','.join(['a', 'b']) }} {{ 'aXb'.partition('X') }}", "['a', 'b', '', 'c'] a,b ('a', 'X', 'b')"},
		{"{{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }}", "None 2 2 1"},
	};
	ALL(pairs);
	fails("a\n{{ 1 | zzz }}", STATUS_UNSUPPORTED, "line 2: the filter 'zzz'");
	fails("a\n\n{{ 1 is zzz }}", STATUS_UNSUPPORTED, "line 3: the test 'zzz'");
	fails("{{ 5 | length }}", STATUS_BAD_INPUT, "length");
	fails("{{ 'a' | upper(1) }}", STATUS_BAD_INPUT, "'upper'");
	fails("{{ 'a' | trim(zz=1) }}", STATUS_BAD_INPUT, "'zz'");
	fails("{{ 'a' | replace('a') }}", STATUS_BAD_INPUT, "argument 2");
	fails("{{ [1] | map('upper') | length }}", STATUS_BAD_INPUT, "length");
	fails("{{ [1, 'a'] | sort }}", STATUS_BAD_INPUT, "order");
	renders("{% if false %}{{ 1 | zzz }}{% endif %}ok", "ok"); /* a branch not taken does no harm */
}

/* B069 */
static void test_tojson(void **state)
{
	(void)state;
	static const char v[] = "{\"v\": {\"z\": 1, \"a\": \"<\\u00e9'\\u0001\\\"\\u007f\\ud83d\\ude00\", \"m\": [1.0, -0.0, 1e30, null, true, {}, []]}}";
	static const struct pair pairs[] = {
		{"{{ v | tojson }}", "{\"z\": 1, \"a\": \"<\xC3\xA9'\\u0001\\\"\x7F\xF0\x9F\x98\x80\", \"m\": [1.0, -0.0, 1e+30, null, true, {}, []]}"},
		{"{{ v | tojson(ensure_ascii=true) }}", "{\"z\": 1, \"a\": \"<\\u00e9'\\u0001\\\"\\u007f\\ud83d\\ude00\", \"m\": [1.0, -0.0, 1e+30, null, true, {}, []]}"},
		{"{{ v.m | tojson(separators=(',', ':')) }}", "[1.0,-0.0,1e+30,null,true,{},[]]"},
		{"{{ {'b': {'d': 1, 'c': 2}, 'a': 3} | tojson(sort_keys=True) }}", "{\"a\": 3, \"b\": {\"c\": 2, \"d\": 1}}"},
		{"{{ {'a': [1, {}], 'b': []} | tojson(indent=4) }}", "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": []\n}"},
		{"{{ [1, [2]] | tojson(indent='-') }}", "[\n-1,\n-[\n--2\n-]\n]"}, {"{{ [1] | tojson(indent=0) }}", "[\n1\n]"},
		{"{{ {1: 1, none: 2, true: 3, 1.5: 4} | tojson }}", "{\"1\": 3, \"null\": 2, \"1.5\": 4}"},
		{"{{ (1, 'a') | tojson }} {{ '</script>' | tojson }}", "[1, \"a\"] \"</script>\""},
	};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) expect(pairs[i].source, run_with(pairs[i].source, v), pairs[i].expected);
	fails("{{ x | tojson }}", STATUS_BAD_INPUT, "JSON");
	fails("{{ {(1,): 1} | tojson }}", STATUS_BAD_INPUT, "JSON");
}

/* B073 */
static void test_syntax_errors(void **state)
{
	(void)state;
	static const struct {
		const char *source;
		enum status code;
		const char *needle;
	} bad[] = {
		{"a\nb {% invented x %}", STATUS_UNSUPPORTED, "t, line 2: the tag 'invented'"},
		{"{% include 'x' %}", STATUS_UNSUPPORTED, "'include'"},
		{"{% call f() %}{% endcall %}", STATUS_UNSUPPORTED, "'call'"},
		{"{% for x in y recursive %}{% endfor %}", STATUS_UNSUPPORTED, "recursive"},
		{"{% if x %}", STATUS_BAD_INPUT, "expected endif, got the end of the template"},
		{"{% endif %}", STATUS_UNSUPPORTED, "'endif'"},
		{"{{ 1 + }}", STATUS_BAD_INPUT, "expected an expression"},
		{"{{ (1 }}", STATUS_BAD_INPUT, "unexpected '}'"},
		{"{{ 'a }}", STATUS_BAD_INPUT, "string does not end"},
		{"{{ a", STATUS_BAD_INPUT, "ends within a tag"},
		{"{# a", STATUS_BAD_INPUT, "comment"},
		{"{% raw %} a", STATUS_BAD_INPUT, "raw"},
		{"{{ a ? b }}", STATUS_BAD_INPUT, "'?'"},
		{"{% break %}", STATUS_BAD_INPUT, "outside a loop"},
		{"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", STATUS_BAD_INPUT, "outside a loop"},
		{"{% set true = 1 %}", STATUS_BAD_INPUT, "variable"},
		{"{% macro f(a=1, b) %}{% endmacro %}", STATUS_BAD_INPUT, "default"},
		{"{{ f(a=1, 2) }}", STATUS_BAD_INPUT, "order"},
		{"{{ '\\ud800' }}", STATUS_UNSUPPORTED, "surrogate"},
		{"{{ '\\x4' }}", STATUS_BAD_INPUT, "escape"},
		{"\xFF", STATUS_BAD_INPUT, "UTF-8"},
		{"{{ x is defined is none }}", STATUS_BAD_INPUT, "chained"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) fails(bad[i].source, bad[i].code, bad[i].needle);
}

static void test_functions(void **state)
{
	(void)state;
	renders("{{ range(3) | list }}{{ range(5, 0, -2) | list }}{{ dict(a=1, b=2) }}{{ dict([('x', 1)]) }}", "[0, 1, 2][5, 3, 1]{'a': 1, 'b': 2}{'x': 1}");
	renders("{{ strftime_now('%d %b %Y|%Y-%m-%d|%B %d, %Y|%A %a %j %H:%M:%S %I %p|%-d %-m|%y %%|%U %W') }}",
	        "08 Mar 2026|2026-03-08|March 08, 2026|Sunday Sun 067 09:05:07 09 AM|8 3|26 %|10 09");
	fails("{{ strftime_now('%Q') }}", STATUS_UNSUPPORTED, "strftime_now");
	fails("{{ range(100001) }}", STATUS_BAD_INPUT, "100000");
	fails("{{ range(1, 2, 0) }}", STATUS_BAD_INPUT, "range");
	fails("{{ cycler(1) }}", STATUS_UNSUPPORTED, "cycler");

	struct outcome o = run_with("\n\n{{ raise_exception('only \xC3\xA9 ' ~ 2) }}", "{}");
	assert_int_equal(o.st, STATUS_BAD_INPUT);
	assert_int_equal(status_scope(o.st), STATUS_SCOPE_REQUEST);
	assert_string_equal(o.err.text, "only \xC3\xA9 2");
	o = run_with("{{ raise_exception('\xC3\xA9' * 1000) }}", "{}");
	assert_int_equal(strlen(o.err.text), 510); /* whole characters */
	o = run_with("{{ strftime_now }}", "{}");
	assert_int_equal(o.st, STATUS_UNSUPPORTED);

	struct template *template;
	struct error err = {0};
	struct template_output out = {0};
	json_t *messages = json_array();
	assert_int_equal(template_parse(&template, "{{ strftime_now('%Y') }}", 24, "t", &err), STATUS_OK);
	assert_int_equal(template_render(template, &(struct template_input){.messages = messages}, &out, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "time"));
	template_destroy(&template);
	template_destroy(&template);
	json_decref(messages);
}

/* ---- messages ---- */

static struct outcome chat(const char *source, const char *messages, const char *tools)
{
	json_t *m = parsed(messages), *t = tools ? parsed(tools) : NULL, *special = parsed("{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
	struct outcome o = run(source, (struct template_input){.messages = m, .tools = t, .special_tokens = special, .add_generation_prompt = true});
	json_decref(m);
	json_decref(t);
	json_decref(special);
	return o;
}

static void test_input(void **state)
{
	(void)state;
	const char *source = "{{ bos_token }}{{ messages[0].role }}:{{ messages[0]['content'] }}{{ eos_token }}{{ add_generation_prompt }}{{ tools is none }}{{ documents }}{{ unk_token is defined }}";
	expect(source, chat(source, "[{\"role\": \"user\", \"content\": \"hi\"}]", NULL), "<s>user:hi</s>TrueTrueNoneFalse");
	expect("null content", chat("{{ messages[0].content is none }}", "[{\"role\": \"user\", \"content\": null}]", NULL), "True");
	expect("tools", chat("{{ tools | tojson }}", "[]", "[{\"z\": 1, \"a\": 2}]"), "[{\"z\": 1, \"a\": 2}]");
	expect_failure("no array", chat("x", "{}", NULL), STATUS_BAD_INPUT, "array");
	expect_failure("no object", chat("x", "[1]", NULL), STATUS_BAD_INPUT, "object");
	expect("kwargs over special tokens", run_with("{{ bos_token }}", "{\"bos_token\": \"B\"}"), "B");
}

/* B071 */
static void test_arguments(void **state)
{
	(void)state;
	static const char text[] = "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"z\\\":1,\\\"a\\\":[1.0,\\\"x\\\"]}\"}}]}]";
	static const char broken[] = "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{oops\"}}]}]";
	const char *pairs = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k }}={{ v }};{% endfor %}";
	expect("mapping", chat(pairs, text, NULL), "z=1;a=[1.0, 'x'];");
	expect("tojson", chat("{% set a = messages[0].tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}", text, NULL), "{\"z\": 1, \"a\": [1.0, \"x\"]}");
	/* a template that joins the text */
	expect("text", chat("{{ 'x' + messages[0].tool_calls[0].function.arguments }}", text, NULL), "x{\"z\":1,\"a\":[1.0,\"x\"]}");
	expect("broken text stays", chat("{{ messages[0].tool_calls[0].function.arguments }}", broken, NULL), "{oops");
	expect_failure("both fail: the first error", chat("{{ messages[0].tool_calls[0].function.arguments + 1 }}", text, NULL), STATUS_BAD_INPUT, "a dict and a int");
	expect_failure("raised: once", chat("{% if messages[0].tool_calls[0].function.arguments is mapping %}{{ raise_exception('r') }}{% endif %}", text, NULL), STATUS_BAD_INPUT, "r");
}

static void test_parts(void **state)
{
	(void)state;
	static const char parts[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]";
	static const char image[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"u\"}}]}]";
	static const char plain[] = "[{\"role\": \"user\", \"content\": \"ab\"}]";
	const char *both = "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}{% for p in m.content %}P{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
	const char *only = "{% for m in messages %}{% for p in m['content'] %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}";
	expect("a string is wanted", chat("{{ messages[0].content | trim }}", parts, NULL), "ab");
	expect("both are known", chat(both, parts, NULL), "PaPb");
	expect("both are known", chat(both, plain, NULL), "Sab");
	expect("only parts are known", chat(only, plain, NULL), "ab");
	expect("only parts are known", chat(only, parts, NULL), "ab");
	expect("through a variable", chat("{% set c = messages[0].content %}{% for p in c if p is mapping %}P{% endfor %}", parts, NULL), "PP");
	expect_failure("an image", chat("{{ messages[0].content }}", image, NULL), STATUS_BAD_INPUT, "text only");
}

/* ---- spans ---- */

/* The output with [ and ] around what came from the user. */
static void spans(const char *source, const char *expected)
{
	struct outcome o = chat(source, "[{\"role\": \"user\", \"content\": \" U<|x|>\xC3\xA9 \"}]", NULL);
	if (o.st != STATUS_OK) fail_msg("%s: %s", source, o.err.text);
	struct buf shown = {0};
	struct error err = {0};
	size_t at = 0;
	for (size_t i = 0; i < o.out.user_count; i++) {
		struct text_range span = o.out.user[i];
		assert_true(at <= span.start && span.start < span.end && span.end <= o.out.text.size);
		assert_int_equal(buf_append(&shown, o.out.text.data + at, span.start - at, &err), STATUS_OK);
		assert_int_equal(buf_printf(&shown, &err, "[%.*s]", (int)(span.end - span.start), o.out.text.data + span.start), STATUS_OK);
		at = span.end;
	}
	assert_int_equal(buf_append(&shown, o.out.text.data + at, o.out.text.size - at, &err), STATUS_OK);
	if (strcmp(shown.data, expected) != 0) fail_msg("%s: expected \"%s\", got \"%s\"", source, expected, shown.data);
	buf_fini(&shown);
	template_output_fini(&o.out);
}

static void test_spans(void **state)
{
	(void)state;
	static const struct pair pairs[] = {
		{"<|x|>{{ messages[0].content | trim }}<|y|>", "<|x|>[U<|x|>\xC3\xA9]<|y|>"},
		{"{{ 'a' + messages[0].content.strip() ~ 'b' }}", "a[U<|x|>\xC3\xA9]b"},
		{"{% set x = '<|' ~ messages[0].role ~ '|>' %}{{ x[1:-1] }}|{{ x | upper }}|{{ x[::-1] }}", "|[user]||<|[USER]|>|>|[resu]|<"},
		{"{{ messages[0].content | replace('<', '') | trim }}", "[U|x|>\xC3\xA9]"}, {"{{ messages[0].content.split('<')[1] }}", "[|x|>\xC3\xA9 ]"},
		{"{{ [messages[0].role, 'b'] | join('-') }}", "[user]-b"}, {"{{ {'k': messages[0].role} | tojson }}", "{\"k\": \"[user]\"}"},
		{"{{ [messages[0].role] }}", "['[user]']"}, {"{{ '%s!' % messages[0].role }}", "[user]!"}, {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].role) }}", "<[user]>"},
		{"{% set t %}a{{ messages[0].role }}{% endset %}{% filter upper %}{{ t }}{% endfilter %}", "A[USER]"},
		{"{% for c in messages[0].role %}{{ c }}.{% endfor %}", "[u].[s].[e].[r]."}, {"{{ messages[0] | list | first }}", "[role]"},
		{"{{ messages[0].role | length }}", "4"}, {"{{ messages[0].role * 2 }}", "[useruser]"}, {"{{ bos_token }}{{ messages[0].role | indent(2, true) }}", "<s>  [user]"},
		{"{{ messages[0].content.strip() | e }}", "[U&lt;|x|&gt;\xC3\xA9]"}, {"{{ messages[0].content.strip() | tojson(ensure_ascii=true) }}", "\"[U<|x|>\\u00e9]\""},
	};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) spans(pairs[i].source, pairs[i].expected);
}

/* ---- budgets ---- */

/* B079 */
static void test_budgets(void **state)
{
	(void)state;
	static const struct pair attacks[] = {
		{"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps"},
		{"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", "more"},
		{"{% set ns = namespace(x='x') %}{% for a in range(1000) %}{% set ns.x = ns.x * 10 %}{% endfor %}", "memory"},
		{"{{ 'x' * 1000000000000 }}", "memory"}, {"{{ [0] * 1000000000000 }}", "more"}, {"{{ 'x' | center(9000000000000000000) }}", "memory"},
		{"{{ 'x' * 20000000 }}", "output"}, {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nesting"},
		{"{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "nesting"},
		{"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "nesting"}, {"{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x == ns.x }}{{ ns.x }}", "nesting"},
		{"{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}", "more"},
		{"{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson | length }}", "more"},
		{"{% set ns = namespace(x=[1], y=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}", "steps"},
		{"{% set s = 'a' * 10000000 %}{% for a in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps"},
		{"{% set s = '\xC3\xA9' * 5000000 %}{% for a in range(100000) %}{{ s[2000000] }}{% endfor %}", "steps"},
		{"{% for a in range(100000) %}{{ range(100000) | list | length }}{% endfor %}", "more"}, {"{{ 'ab' | replace('', 'x' * 5000000) | replace('x', 'y' * 1000) }}", "more"},
		{"{{ range(100000) | map('center', 100000) | list | length }}", "more"}, {"{{ '%9999s' % 1 * 100000000 }}", "memory"},
		{"{% for a in range(100000) %}{{ range(1000) | sort | first }}{% endfor %}", "more"},
	};
	for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
		struct outcome o = run_with(attacks[i].source, "{}");
		assert_int_equal(status_scope(o.st), STATUS_SCOPE_REQUEST);
		expect_failure(attacks[i].source, o, STATUS_BAD_INPUT, attacks[i].expected);
		assert_non_null(strstr(o.err.text, "than it may have"));
	}
}

static void test_small_budgets(void **state)
{
	(void)state;
	static const struct template_options options[] = {{.steps = 20}, {.memory_bytes = 100}, {.output_bytes = 10}, {.depth = 3}};
	static const char *const what[] = {"steps", "memory", "output", "nesting"};
	for (size_t i = 0; i < 4; i++)
		expect_failure(what[i], run("{% for x in range(20) %}{{ [x, [x]] }}{% endfor %}", (struct template_input){.options = options[i]}), STATUS_BAD_INPUT, what[i]);
}

static void repeated(const char *open, const char *middle, const char *close, size_t n, enum status code, const char *needle)
{
	struct buf source = {0};
	struct error err = {0};
	for (size_t i = 0; i < n; i++) assert_int_equal(buf_puts(&source, open, &err), STATUS_OK);
	assert_int_equal(buf_puts(&source, middle, &err), STATUS_OK);
	for (size_t i = 0; i < n; i++) assert_int_equal(buf_puts(&source, close, &err), STATUS_OK);
	struct outcome o = run_with(source.data, "{}");
	if (code == STATUS_OK) template_output_fini(&o.out);
	if (o.st != code || !strstr(o.err.text, needle)) fail_msg("%s x %zu: expected %s %s, got %s: %s", open, n, status_name(code), needle, status_name(o.st), o.err.text);
	buf_fini(&source);
}

/* The parser's recursion is bounded, whatever nests. */
static void test_deep_sources(void **state)
{
	(void)state;
	repeated("{% if 1 %}", "x", "{% endif %}", 50, STATUS_OK, "");
	repeated("{% if 1 %}", "x", "{% endif %}", 40000, STATUS_BAD_INPUT, "nesting");
	repeated("{% for x in [1] %}", "x", "{% endfor %}", 20000, STATUS_BAD_INPUT, "nesting");
	repeated("{{ (", "1", ") }}", 1, STATUS_OK, "");
	repeated("{% if ", "", "", 1, STATUS_BAD_INPUT, "");
	static const char *const prefixes[] = {"(", "[", "{1:", "not ", "-", "f(", "a[", "x if y else ", "+"};
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
		struct buf source = {0};
		struct error err = {0};
		assert_int_equal(buf_puts(&source, "{{ ", &err), STATUS_OK);
		for (int k = 0; k < 50000; k++) assert_int_equal(buf_puts(&source, prefixes[i], &err), STATUS_OK);
		struct outcome o = run_with(source.data, "{}");
		if (o.st == STATUS_OK) fail_msg("%s: not refused", prefixes[i]);
		buf_fini(&source);
	}
	static const char *const chains[] = {" + 1", " ~ 1", "|abs", ".a", "[0]", " and 1", " or 0", " is odd", " == 1", "()", " * 1", " if 1", " ** 1"};
	for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
		struct buf source = {0};
		struct error err = {0};
		assert_int_equal(buf_puts(&source, "{{ 1", &err), STATUS_OK);
		for (int k = 0; k < 50000; k++) assert_int_equal(buf_puts(&source, chains[i], &err), STATUS_OK);
		assert_int_equal(buf_puts(&source, " }}", &err), STATUS_OK);
		struct outcome o = run_with(source.data, "{}"); /* succeeds or not, without trouble */
		template_output_fini(&o.out);
		buf_fini(&source);
	}
}

static void test_deep_data(void **state)
{
	(void)state;
	struct buf json = {0};
	struct error err = {0};
	assert_int_equal(buf_puts(&json, "{\"d\": ", &err), STATUS_OK);
	for (int i = 0; i < 1500; i++) assert_int_equal(buf_puts(&json, "[", &err), STATUS_OK);
	for (int i = 0; i < 1500; i++) assert_int_equal(buf_puts(&json, "]", &err), STATUS_OK);
	assert_int_equal(buf_puts(&json, "}", &err), STATUS_OK);
	expect_failure("deep data", run_with("x", json.data), STATUS_BAD_INPUT, "nesting");
	buf_fini(&json);
}

/* ---- folders ---- */

static struct chat_template *loaded(const char *folder)
{
	struct chat_template *chat_template;
	struct error err = {0};
	if (chat_template_load(&chat_template, folder, &err) != STATUS_OK) fail_msg("%s", err.text);
	return chat_template;
}

static void gives(const char *folder, const char *tools, const char *expected)
{
	struct chat_template *chat_template = loaded(folder);
	json_t *messages = parsed("[{\"role\": \"user\", \"content\": \"hi\"}]"), *t = tools ? parsed(tools) : NULL;
	struct outcome o = {0};
	o.st = chat_template_render(chat_template, &(struct template_input){.messages = messages, .tools = t, .now = &now}, &o.out, &o.err);
	expect(folder, o, expected);
	assert_null(chat_template_problem(chat_template, tools != NULL));
	json_decref(messages);
	json_decref(t);
	chat_template_destroy(&chat_template);
	assert_null(chat_template);
}

static void has_problem(const char *folder, enum status code, const char *needle)
{
	struct chat_template *chat_template = loaded(folder);
	const struct error *problem = chat_template_problem(chat_template, false);
	assert_non_null(problem);
	assert_non_null(strstr(problem->text, needle));
	struct outcome o = {0};
	o.st = chat_template_prompt(chat_template, "hi", 2, &now, &o.out, &o.err);
	expect_failure(folder, o, code, needle);
	chat_template_destroy(&chat_template);
}

static void write_text(const char *folder, const char *name, const char *text)
{
	char path[512];
	files_write(path, folder, name, text, strlen(text));
}

/* B075 */
static void test_load(void **state)
{
	(void)state;
	char folder[256], inner[512];
	files_make(folder);
	has_problem(folder, STATUS_BAD_INPUT, "no chat template");
	write_text(folder, "tokenizer_config.json", "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"unk_token\": null, \"model_max_length\": 1000000000000000019884624838656,"
	                                            "\"additional_special_tokens\": [\"<a>\", {\"content\": \"<b>\"}]}");
	has_problem(folder, STATUS_BAD_INPUT, "no chat template");
	write_text(folder, "chat_template.jinja", "F{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ additional_special_tokens }}{{ messages[0].content }}\n");
	gives(folder, NULL, "F<s></s>False['<a>', '<b>']hi");
	write_text(folder, "tokenizer_config.json", "{\"chat_template\": \"C{{ bos_token }}\", \"bos_token\": \"<s>\"}");
	gives(folder, NULL, "F<s>False"
	                    "hi"); /* the file wins */
	snprintf(inner, sizeof inner, "%s/chat_template.jinja", folder);
	assert_int_equal(remove(inner), 0);
	gives(folder, NULL, "C<s>");
	write_text(folder, "tokenizer_config.json",
	           "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"tool_use\", \"template\": \"T{{ tools | length }}\"}, {\"name\": \"rag\", \"template\": \"{% x %}\"}]}");
	gives(folder, NULL, "D");
	gives(folder, "[]", "D");
	gives(folder, "[{}]", "T1");
	write_text(folder, "tokenizer_config.json", "{\"chat_template\": \"a\\n{% invented %}\"}");
	has_problem(folder, STATUS_UNSUPPORTED, "chat_template, line 2: the tag 'invented'");
	write_text(folder, "tokenizer_config.json", "{\"chat_template\": 5}");
	has_problem(folder, STATUS_BAD_INPUT, "no chat template");
	write_text(folder, "tokenizer_config.json", "{oops");
	has_problem(folder, STATUS_BAD_INPUT, "tokenizer_config.json");
	write_text(folder, "chat_template.jinja", "F"); /* its special tokens cannot be known */
	has_problem(folder, STATUS_BAD_INPUT, "tokenizer_config.json");
	files_remove(folder);
}

static void test_prompt(void **state)
{
	(void)state;
	char folder[256];
	files_make(folder);
	write_text(folder, "chat_template.jinja", "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ '<|go|>' if add_generation_prompt }}");
	struct chat_template *chat_template = loaded(folder);
	struct template_output out = {0};
	struct error err = {0};
	assert_int_equal(chat_template_prompt(chat_template, "h\xFFi", 3, &now, &out, &err), STATUS_OK);
	assert_string_equal(out.text.data, "<|user|>h\xEF\xBF\xBDi<|go|>");
	assert_int_equal(out.user_count, 2);
	assert_int_equal(out.user[1].start, 8);
	assert_int_equal(out.user[1].end, 13);
	template_output_fini(&out);
	assert_int_equal(chat_template_prompt(chat_template, NULL, 0, NULL, &out, &err), STATUS_OK);
	assert_string_equal(out.text.data, "<|user|><|go|>");
	template_output_fini(&out);
	chat_template_destroy(&chat_template);
	files_remove(folder);
}

/* ---- threads ---- */

struct renderer {
	const struct template *template;
	const json_t *messages;
	int failures;
};

static void *render_many(void *context)
{
	struct renderer *r = context;
	for (int i = 0; i < 200; i++) {
		struct template_output out = {0};
		struct error err = {0};
		if (template_render(r->template, &(struct template_input){.messages = r->messages}, &out, &err) != STATUS_OK) r->failures++;
		else if (strcmp(out.text.data, "1a2b[2, 1]X") != 0) r->failures++;
		template_output_fini(&out);
	}
	return NULL;
}

static void test_threads(void **state)
{
	(void)state;
	static const char source[] = "{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}{{ [1, 2] | sort(reverse=true) }}{{ 'x' | upper }}";
	struct template *template;
	struct error err = {0};
	json_t *messages = parsed("[{\"content\": \"a\"}, {\"content\": \"b\"}]");
	assert_int_equal(template_parse(&template, source, sizeof source - 1, "t", &err), STATUS_OK);
	pthread_t threads[4];
	struct renderer renderers[4];
	for (int i = 0; i < 4; i++) {
		renderers[i] = (struct renderer){.template = template, .messages = messages};
		assert_int_equal(pthread_create(&threads[i], NULL, render_many, &renderers[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(renderers[i].failures, 0);
	}
	template_destroy(&template);
	json_decref(messages);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whitespace), cmocka_unit_test(test_printing), cmocka_unit_test(test_operators), cmocka_unit_test(test_subscripts),
		cmocka_unit_test(test_statements), cmocka_unit_test(test_macros), cmocka_unit_test(test_filters_and_tests), cmocka_unit_test(test_tojson),
		cmocka_unit_test(test_syntax_errors), cmocka_unit_test(test_functions), cmocka_unit_test(test_input), cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_parts), cmocka_unit_test(test_spans), cmocka_unit_test(test_budgets), cmocka_unit_test(test_small_budgets),
		cmocka_unit_test(test_deep_sources), cmocka_unit_test(test_deep_data), cmocka_unit_test(test_load), cmocka_unit_test(test_prompt),
		cmocka_unit_test(test_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
