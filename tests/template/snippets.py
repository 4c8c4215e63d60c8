"""Random programs in the template language: expressions and statements over a fixed set of variables."""

VARIABLES = {
    "i": 7, "j": -3, "zero": 0, "big": 2**40, "f": 2.5, "g": -0.125, "h": 1e20, "t": True, "n": None, "s": "Hello, World", "u": "naïve ß ﬁ İΣ 日本\n語",
    "e": "", "p": " \t pad me \n", "q": "it's \"q\" \\ <b>&</b>", "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "m": [1, "a", None, [2.0], {"k": True}],
    "d": {"b": 1, "a": "x", "items": [1, 2], "nested": {"deep": {"x": 5}}, "é": None}, "people": [{"name": "Bo", "age": 30}, {"name": "al", "age": 25, "x": 1}, {"name": "Cy", "age": 30}],
    "empty": [], "ed": {}, "num": "42", "flt": "3.7", "csv": "a,b,,c",
}
NAMES = list(VARIABLES) + ["missing"]
ATTRS = ["name", "age", "b", "a", "items", "nested", "deep", "x", "missing", "upper", "keys"]
FILTERS = ["upper", "lower", "capitalize", "title", "trim", "length", "count", "string", "list", "first", "last", "join", "join(', ')", "tojson", "tojson(indent=2)",
           "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)", "int", "float", "int(5)", "abs", "round", "round(1)", "round(2, 'floor')",
           "default('D')", "default('D', true)", "d", "items|list", "dictsort", "dictsort(reverse=true)", "dictsort(by='value')", "sort", "sort(reverse=true)",
           "sort(attribute='age')", "sort(attribute='name')", "sort(attribute='age,name')", "unique|list", "reverse|list", "reverse", "map('upper')|list", "map(attribute='name')|list",
           "map(attribute='zzz', default='?')|list", "select|list", "reject|list", "select('string')|list", "reject('none')|list", "select('>', 1)|list",
           "selectattr('age')|list", "selectattr('age', 'equalto', 30)|list", "rejectattr('x', 'defined')|list", "replace('a', 'XY')", "replace('l', '', 1)", "indent", "indent(2, true)",
           "indent(2, blank=true)", "min", "max", "sum", "sum(start=10)", "sum(attribute='age')", "batch(2)|list", "batch(2, 0)|list", "slice(2)|list", "wordcount", "center(20)",
           "truncate(9)", "truncate(5, true)", "e", "escape", "safe", "safe + '<'", "string|length", "attr('upper')", "attr('name')", "format(1)", "tojson|length",
           "first|default('F')", "list|length", "trim('Hd')", "replace(1, 2)", "map('length')|list", "map('int')|list", "map('tojson')|join('|')", "forceescape"]
TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "iterable", "sequence", "callable", "odd", "even",
         "divisibleby(3)", "divisibleby 2", "eq(1)", "equalto('a')", "ne 1", "lt(5)", "gt 0", "ge(7)", "le(7)", "in([1, 'a'])", "in 'Hello'", "sameas(none)", "lower", "upper", "escaped", "filter", "test"]
METHODS = ["upper()", "lower()", "strip()", "strip('H d')", "lstrip()", "rstrip()", "lstrip('\\n')", "split()", "split(',')", "split('l', 1)", "rsplit(' ', 1)", "rsplit(None, 1)", "split(maxsplit=1)",
           "splitlines()", "startswith('He')", "endswith(('d', 'x'))", "startswith('e', 1)", "replace('l', 'L')", "replace('', '-')", "replace('l', 'L', 1)", "find('o')", "rfind('o')", "index('o')",
           "count('l')", "title()", "capitalize()", "join(['x', 'y'])", "join(ls)", "isdigit()", "isalpha()", "isspace()", "isupper()", "islower()", "zfill(5)", "ljust(9, '.')", "rjust(9)",
           "center(20, '*')", "partition(',')", "rpartition('l')", "removeprefix('He')", "removesuffix('d')", "items()", "keys()", "values()", "items()|list", "keys()|list", "values()|list", "get('a')",
           "get('zz')", "get('zz', 5)", "index(1)", "count(1)", "append(1)", "pop()", "copy()", "update({})", "isalnum()", "splitlines(true)", "find('')", "count('')", "find('l', -3)", "endswith('d', 0, -1)"]
LITERALS = ["0", "1", "2", "-1", "3.0", "0.1", "1e3", "1_000", "0x1F", "true", "false", "none", "''", "'a'", "\"it's\"", "'\\n\\t\\x41\\u00e9'", "'a' 'b'", "[]", "[1, 2]", "(1, 2)", "(1,)", "()", "{}",
            "{'a': 1, 'b': [2]}", "{1: 2, 1.0: 3, true: 4}", "range(3)", "range(5, 0, -2)", "'%s-%d' % ('x', 3)", "'%05.1f|%-4s|%r' % (2.25, 'y', 'z')", "namespace(a=1)", "dict(a=1, b=2)", "('x'|safe)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"]


# What makes sense together, so that most programs run to their end.
STRINGS, LISTS, DICTS, NUMBERS = ["s", "u", "p", "q", "e", "csv", "'lit'"], ["l", "ls", "people", "empty", "m", "[1, 2]", "csv.split(',')"], ["d", "ed", "people[0]", "d.nested"], ["i", "j", "f", "g", "2", "10"]
ON_STRINGS = ["upper", "lower", "capitalize", "title", "trim", "length", "list", "first", "last", "tojson", "string", "indent(2, true)", "replace('l', 'xyz')", "wordcount", "center(20)", "truncate(9)",
              "e", "reverse", "int", "default('x')", "trim(\" d'H\")", "safe"]
ON_LISTS = ["length", "first", "last", "join('-')", "tojson", "tojson(indent=3)", "list", "reverse|list", "unique|list", "map('string')|join", "select|list", "batch(2)|list", "slice(2)|list", "string", "default([])"]
ON_DICTS = ["length", "items|list", "dictsort", "tojson", "tojson(indent=1)", "list", "string", "first", "dictsort(reverse=true)", "tojson(sort_keys=true)"]
ON_NUMBERS = ["abs", "float", "int", "round(1)", "string", "round(1, 'ceil')", "default(1)"]
STRING_METHODS = ["upper()", "strip()", "lstrip('He')", "rstrip(' d')", "split()", "split(',')", "split('l', 1)|last", "splitlines()", "startswith('He')", "endswith('d')", "replace('l', 'L')", "find('o')", "title()",
                  "capitalize()", "split('\\n')[-1]", "rsplit(' ', 1)|first", "zfill(7)", "partition(',')", "removeprefix('He')", "islower()", "count('a')"]


def sensible(rng, depth=0):
    """An expression that should work, and its kind."""
    kind = rng.randrange(9)
    if kind == 0:
        return f"{rng.choice(STRINGS)}|{rng.choice(ON_STRINGS)}"
    if kind == 1:
        return f"{rng.choice(STRINGS)}.{rng.choice(STRING_METHODS)}"
    if kind == 2:
        return f"{rng.choice(LISTS)}|{rng.choice(ON_LISTS)}"
    if kind == 3:
        return f"{rng.choice(DICTS)}|{rng.choice(ON_DICTS)}"
    if kind == 4:
        return f"({rng.choice(NUMBERS)} {rng.choice(['+', '-', '*', '/', '//', '%', '**', '<', '>=', '==', '~'])} {rng.choice(NUMBERS)})|{rng.choice(ON_NUMBERS)}"
    if kind == 5:
        return f"{rng.choice(STRINGS)} {rng.choice(['+', '~', '==', '<', 'in', 'not in'])} {rng.choice(STRINGS)}"
    if kind == 6:
        return f"{rng.choice(STRINGS + LISTS)}{subscript(rng)}"
    if kind == 7 and depth < 2:
        return f"({sensible(rng, depth + 1)}) ~ ({sensible(rng, depth + 1)})"
    return f"({sensible(rng, depth + 1) if depth < 2 else 's'} if {atom(rng)} is {rng.choice(['defined', 'none', 'string', 'mapping', 'true', 'number'])} else {rng.choice(NAMES)})"


def atom(rng):
    return rng.choice(NAMES) if rng.random() < 0.7 else rng.choice(LITERALS)


def subscript(rng):
    kind = rng.randrange(6)
    if kind < 2:
        return f"[{rng.choice(['0', '1', '-1', '99', 'i', 's'])}]"
    if kind == 2:
        return "['%s']" % rng.choice(ATTRS)
    bounds = [rng.choice(["", "", "0", "1", "-1", "2", "-2", "99", "none"]) for _ in range(2)]
    return "[" + ":".join(bounds) + rng.choice(["", "", ":", ":2", ":-1", ":-2"]) + "]"


def expression(rng, depth=0):
    kind = rng.randrange(16)
    if depth == 0 and rng.random() < 0.6:
        return sensible(rng)
    if depth > 3 or kind < 3:
        return atom(rng)
    inner = lambda: expression(rng, depth + 1)
    if kind < 6:
        return f"{inner()} {rng.choice(OPERATORS)} {inner()}"
    if kind < 8:
        return f"{inner()}|{rng.choice(FILTERS)}"
    if kind == 8:
        return f"({inner()})|{rng.choice(FILTERS)}"
    if kind == 9:
        return f"{atom(rng)} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 10:
        return f"{atom(rng)}.{rng.choice(METHODS)}"
    if kind == 11:
        return f"{atom(rng)}.{rng.choice(ATTRS)}"
    if kind == 12:
        return f"{rng.choice(NAMES)}{subscript(rng)}"  # not literals: jinja2 folds those, by other rules
    if kind == 13:
        return f"({inner()} if {inner()}{' else ' + inner() if rng.random() < 0.7 else ''})"
    if kind == 14:
        return rng.choice(["[%s, %s]", "(%s, %s)", "{'k': %s, 'v': %s}", "[%s] + [%s]"]) % (inner(), inner())
    return rng.choice(["not (%s)", "-%s", "(%s)", "not %s", "+%s", "-(%s)"]) % inner()


def tag(rng, inside):
    return "{%" + rng.choice(["", "", "", "-", "-", "+"]) + " " + inside + " " + rng.choice(["", "", "", "-", "-", "+"]) + "%}"


def output(rng):
    return "{{" + rng.choice(["", "", "-"]) + " " + expression(rng) + " " + rng.choice(["", "", "-"]) + "}}"


def filler(rng):
    return rng.choice(["", "", " ", "\n", "\n\n", "text", " a \n  ", "\n    ", "x\n", "{# note #}", "{#- note\n -#}\n", "\t", "é", "{% raw %}{{ r }}{% endraw %}", "\r\n", "{#+ #}"])


LOOP = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.revindex0", "loop.previtem", "loop.nextitem", "loop.cycle('x', 'y')", "loop.depth", "loop.changed(x)", "loop"]


def statement(rng, depth, loops):
    kind = rng.randrange(17)
    sub = lambda more=0: body(rng, depth + 1, loops + more)
    if depth > 3 or kind < 4:
        return output(rng)
    if kind == 4:
        return tag(rng, "if " + expression(rng)) + sub() + (tag(rng, "elif " + expression(rng)) + sub() if rng.random() < 0.3 else "") + (tag(rng, "else") + sub() if rng.random() < 0.5 else "") + tag(rng, "endif")
    if kind < 8:
        over = expression(rng, 2) if rng.random() < 0.5 else rng.choice(["l", "ls", "m", "d", "people", "range(4)", "d.items()", "s", "ls|map('upper')", "missing", "empty"])
        target = rng.choice(["x", "x", "x", "a, b", "(a, b)"])
        test = " if " + expression(rng, 2) if rng.random() < 0.3 else ""
        inside = "".join("{{ " + rng.choice(LOOP) + " }}" for _ in range(rng.randrange(3)))
        if rng.random() < 0.3:
            inside += "{% if loop.index > " + rng.choice("123") + " %}{% " + rng.choice(["break", "continue"]) + " %}{% endif %}"
        return tag(rng, f"for {target} in {over}{test}") + inside + "{{ x }}" + sub(1) + (tag(rng, "else") + sub() if rng.random() < 0.2 else "") + tag(rng, "endfor")
    if kind < 11:
        return tag(rng, f"set {rng.choice(['x', 'y', 's', 'l', 'a, b', 'ns.v', 'ns.w'])} = {expression(rng)}")
    if kind == 11:
        return tag(rng, "set y" + rng.choice(["", " | upper", " | trim | length"])) + sub() + tag(rng, "endset") + "{{ y }}"
    if kind == 12:
        return tag(rng, "filter " + rng.choice(["upper", "trim", "replace('a', 'b')", "indent(2)", "length"])) + sub() + tag(rng, "endfilter")
    if kind == 13:
        return tag(rng, "with x = " + expression(rng) + ", y = " + atom(rng)) + "{{ x }}" + sub() + tag(rng, "endwith")
    if kind == 14:
        return (tag(rng, "macro mac(x, y=" + atom(rng) + ", z='Z')") + "<{{ x }}|{{ y }}|{{ z }}>" + body(rng, depth + 1, 0) + tag(rng, "endmacro")
                + "{{ mac(" + rng.choice(["", expression(rng), "1, 2", "y=3", "1, z=2", "1, 2, 3", "1, 2, 3, 4", "q=1", "x=1, y=2", "*l", "**{'x': 5}"]) + ") }}")
    if kind == 15:
        return tag(rng, "generation") + body(rng, depth + 1, 0) + tag(rng, "endgeneration")
    if loops and rng.random() < 0.3:
        return tag(rng, rng.choice(["break", "continue"]))
    return tag(rng, "if " + rng.choice(NAMES)) + output(rng) + tag(rng, "endif")


def body(rng, depth=0, loops=0):
    return "".join(filler(rng) + statement(rng, depth, loops) for _ in range(rng.randrange(1, 3))) + filler(rng)


def program(rng):
    if rng.random() < 0.6:
        return "{{ " + expression(rng) + " }}"
    # s and l are named at the top: else a `set` further down hides them from blocks before it, a quirk that tandem does not copy
    return "{% set ns = namespace(v=0, w='') %}{{ '' if s is defined or l is defined }}" + "".join(body(rng) for _ in range(rng.randrange(1, 4)))
