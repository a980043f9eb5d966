"""Random template snippets over the whole grammar, rendered by the reference: python3 fuzz_expressions.py SEED COUNT > cases.jsonl

expressions.jsonl.gz is `python3 fuzz_expressions.py 3 1500 | gzip -9n` (Python 3.11, Jinja2 3.1.6).
"""
import json
import random
import re
import signal
import sys
import warnings

import jinja_reference as reference

warnings.simplefilter("ignore")
R = random.Random(int(sys.argv[1]))

VARS = json.dumps({
    "s": "Hello, Wörld ß", "e": "", "w": "  a b\tc\n\nd  ", "q": "it's \"x\" <b>&", "j": "日本語 🙂 text", "num": "42", "fl": "3.50",
    "n": 7, "m": -3, "z": 0, "f": 2.5, "g": 1e20, "h": 1.0, "big": 123456789012345678901234567890, "b": True, "c": False, "x": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a", "B"], "le": [], "lm": [1, "a", None, 2.5, True, [1], {"k": 1}],
    "d": {"b": 1, "a": 2, "items": 3}, "de": {}, "dm": {"role": "user", "content": "hi\nthere", "n": 1, "tags": ["x", "y"]},
    "ms": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi", "n": 2}, {"role": "assistant", "content": None, "n": 1,
           "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [1.0, "x", None]}}}]}, {"role": "user", "content": ["p", {"text": "q"}]}],
}, ensure_ascii=False)

NAMES = ["s", "e", "w", "q", "j", "num", "fl", "n", "m", "z", "f", "g", "h", "big", "b", "c", "x", "l", "ls", "le", "lm", "d", "de", "dm", "ms", "u"]
STRINGS = ["", "a", "b", " ", "hi", "Hello", "o", "l", ",", "\\n", "-", "ß", "日", "%s", "%d-%s", "{} {}", "{0}{1!r}", "role", "content", "k", "0x1F", "1_000", " 12 ", "1e3", "title CASE-word (x)", "ab", "A", "{a}", "%(role)s", "x\\ty", "ǆ ŉ ﬁ İ", "ΑΣ ΑΣΑ"]
ATTRS = ["role", "content", "a", "b", "items", "keys", "n", "upper", "foo", "0", "function", "__class__", "append", "tags", "get"]
FILTERS = ["abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "filesizeformat", "first", "float", "forceescape",
           "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace",
           "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper",
           "urlencode", "wordcount", "attr"]
TESTS = ["boolean", "callable", "defined", "divisibleby", "eq", "equalto", "escaped", "even", "false", "filter", "float", "ge", "gt", "in", "integer",
         "iterable", "le", "lower", "lt", "mapping", "ne", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined", "upper"]
METHODS = ["capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "index", "isalnum", "isalpha", "isascii", "isdecimal",
           "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition",
           "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
           "strip", "swapcase", "title", "upper", "zfill", "get", "keys", "values", "items", "copy", "count", "index", "append", "pop", "bit_length",
           "is_integer", "setdefault"]


def string():
    text = R.choice(STRINGS)
    return R.choice("'\"").join(["", text, ""]) if "'" not in text and '"' not in text else "'x'"


def number():
    return R.choice(["0", "1", "2", "3", "10", "-1", "-2", "7", "100", "1.5", "0.1", "2.0", "1e3", "1e16", "1e-5", "0.30000000000000004", "12345678901234567890", "0x1f", "1_000", "2.675", "-0.5"])


def atom(depth):
    k = R.random()
    if k < 0.45:
        return R.choice(NAMES)
    if k < 0.62:
        return string()
    if k < 0.78:
        return number()
    if k < 0.84:
        return R.choice(["true", "false", "none", "True", "None"])
    if depth <= 0:
        return R.choice(NAMES)
    if k < 0.90:
        return "[" + ", ".join(expr(depth - 1) for _ in range(R.randint(0, 3))) + "]"
    if k < 0.94:
        return "(" + ", ".join(expr(depth - 1) for _ in range(R.randint(1, 3))) + R.choice([",)", ")"])
    if k < 0.97:
        return "{" + ", ".join(f"{R.choice([string(), string(), number(), 'true', 'none'])}: {expr(depth - 1)}" for _ in range(R.randint(0, 3))) + "}"
    return R.choice([f"range({R.randint(-2, 5)}, {R.randint(-2, 9)}, {R.choice([1, 2, -1])})", f"range({R.randint(0, 5)})", "dict(a=1, b=s)", "namespace(a=1).a", "cycler(1, 2).next()", "dict(d)", "dict(l)"])


def args(depth, most=3):
    parts = [expr(depth - 1) if R.random() < 0.5 else R.choice([string(), number()]) for _ in range(R.randint(0, most))]
    return "(" + ", ".join(parts) + ")"


def filter_call(depth):
    name = R.choice(FILTERS)
    a = {
        "map": lambda: R.choice(["('upper')", "(attribute='role')", "(attribute='n', default=0)", "('string')", "('length')", "('trim')", "('tojson')", "('default', 1)", "('foo')", "(attribute='0')", "('int')"]) + R.choice(["|list", "|join(',')", "|first", ""]),
        "select": lambda: R.choice(["", "('string')", "('odd')", "('eq', 1)", "('defined')", "('in', [1, 2])", "('number')"]) + "|list",
        "reject": lambda: R.choice(["", "('string')", "('none')", "('lt', 2)"]) + "|list",
        "selectattr": lambda: R.choice(["('role')", "('role', 'equalto', 'user')", "('n', 'defined')", "('n', 'gt', 1)", "('tool_calls', 'defined')"]) + "|list" + R.choice(["", "|length", "|first"]),
        "rejectattr": lambda: R.choice(["('role', 'eq', 'user')", "('n')", "('content', 'none')"]) + "|list",
        "sort": lambda: R.choice(["", "(reverse=true)", "(attribute='role')", "(case_sensitive=true)", "(attribute='n,role')", "(true, true)"]),
        "dictsort": lambda: R.choice(["", "(by='value')", "(true)", "(reverse=true)", "(by='x')"]),
        "batch": lambda: R.choice(["(2)", "(2, 0)", "(3, '-')", "(1)"]) + "|list",
        "slice": lambda: R.choice(["(2)", "(2, 0)", "(3, '-')", "(1)"]) + "|list",
        "unique": lambda: R.choice(["", "(true)", "(attribute='role')"]) + "|list",
        "items": lambda: R.choice(["|list", "|length", "|first"]),
        "reverse": lambda: R.choice(["|list", "", "|join"]),
        "groupby": lambda: R.choice(["('role')", "('n', default=0)", "(0)"]) + R.choice(["", "|list", "|map('first')|list", "|map(attribute='list')|map('length')|list"]),
        "round": lambda: R.choice(["", "(1)", "(2)", "(0, 'floor')", "(1, 'ceil')", "(-1)", "(method='ceil')", "(1, 'common')"]),
        "tojson": lambda: R.choice(["", "", "(indent=2)", "(indent=4)", "(sort_keys=true)", "(separators=(',', ':'))", "(ensure_ascii=true)", "(indent=0)", "(indent='\\t')"]),
        "int": lambda: R.choice(["", "", "(5)", "(0, 16)", "(default=-1)", "(0, 2)", "(base=0)"]),
        "float": lambda: R.choice(["", "(1.5)"]),
        "indent": lambda: R.choice(["", "(2)", "(2, true)", "(first=true)", "(2, blank=true)", "('> ')"]),
        "truncate": lambda: R.choice(["", "(5)", "(5, true)", "(5, false, '')", "(5, true, '..', 0)", "(7, leeway=0)"]),
        "replace": lambda: R.choice(["('l', 'L')", "('', '-')", "('l', 'L', 1)", "(1, 2)", "('a', s)"]),
        "join": lambda: R.choice(["", "(', ')", "('-', attribute='role')", "(1)", "(d='|')", "(attribute='n')"]),
        "default": lambda: R.choice(["", "('x')", "('x', true)", "(boolean=true)", "(1, boolean=1)"]),
        "d": lambda: R.choice(["('x')", "(s)"]),
        "format": lambda: R.choice(["(1, 2)", "(s)", "(role='x')", "(1)", "(f, n)"]),
        "sum": lambda: R.choice(["", "(attribute='n')", "(start=10)", "(0, 1)"]),
        "min": lambda: R.choice(["", "(attribute='role')", "(true)"]),
        "max": lambda: R.choice(["", "(attribute='role')", "(true)"]),
        "trim": lambda: R.choice(["", "", "('H')", "(' a')"]),
        "attr": lambda: R.choice(["('upper')()", "('role')", "('items')"]),
        "center": lambda: R.choice(["", "(20)", "(3)"]),
        "filesizeformat": lambda: R.choice(["", "(true)"]),
    }.get(name, lambda: "" if R.random() < 0.9 else args(depth, 1))()
    return "|" + name + a


def test_call(depth):
    name = R.choice(TESTS)
    if name in ("divisibleby", "eq", "equalto", "ge", "gt", "in", "le", "lt", "ne", "sameas"):
        if name == "sameas":
            return "sameas " + R.choice(["none", "true", "false"])
        return name + R.choice([f"({expr(depth - 1)})", " " + R.choice([string(), "n", "l", "s", "(1, 2)", "2", "d"])])
    if name in ("filter", "test"):
        return name
    return name


def fmt():
    k = R.random()
    if k < 0.5:
        spec = R.choice(["", "-", "+", "0", "#", " ", "05", "-5", "+.2", "6.2", ".3", ".0", "8"]) + R.choice("sdifgexXocrau%EFG")
        return f"'<%{spec}>' % {R.choice(['n', 'f', 's', '(n,)', 'm', 'b', 'x', 'l', 'd', '3.14159', '(1, 2)', 'u', 'big', '0.00001', '1e10', 'q'])}"
    spec = R.choice(["", "", "<8", ">8", "^8", "*^9", "08", "+", ",", "_", ".2", ".2f", "8.3f", "e", "g", "x", "#x", "b", "o", "d", "%", ".1%", "s", ".3", "010,", "=+6", "c", "G", "n", "#.0f", ".0f", " d", "012,.2f"])
    return f"'<{{{R.choice(['', '0', '0!r', '0!s', '0[0]', '0.role', 'a', '0!a'])}:{spec}}}>'.format({R.choice(['n', 'f', 's', 'm', 'b', 'x', 'l', 'ms[0]', '1234567.891', '123456', 'u', 'big', 'j', 'a=1'])})"


def expr(depth):
    if depth <= 0:
        return atom(0)
    k = R.random()
    if k < 0.18:
        return atom(depth)
    if k < 0.36:
        return expr(depth - 1) + filter_call(depth)
    if k < 0.44:
        return f"{atom(depth)}.{R.choice(ATTRS)}"
    if k < 0.52:
        sub = R.choice([number(), string(), "n", "-1", "0", "1:", ":2", "::-1", "::2", "-2:", "1:-1", "5:0:-2", "n:", ":u", "u", "l", "1, 2", ":", "::0", "x", "b"])
        target = atom(depth)
        # jinja2 folds a constant such as None[1:] by another path than it runs by; nobody writes that.
        if target[0] in "0123456789-tfnTN{" and target not in NAMES:
            target = "s"
        return f"{target}[{sub}]"
    if k < 0.64:
        target = atom(depth)
        if R.random() < 0.75:
            target = R.choice(["s", "w", "q", "j", "e", "num", string(), string(), "d", "l", "ls"])
        return f"{target}.{R.choice(METHODS)}{args(depth, 2)}"
    if k < 0.74:
        op = R.choice(["+", "-", "*", "/", "//", "%", "~", "~", "+", "**"])
        if op in ("**", "*"):
            return f"{R.choice(['n', 'm', 'f', 'z', 's', 'l', '2', '2.0', 'b', 'u', '(1,)'])} {op} {R.choice(['n', 'm', 'z', '2', '0.5', '-1', 'b', '3', 'x'])}"
        return f"{expr(depth - 1)} {op} {expr(depth - 1)}"
    if k < 0.80:
        return f"{expr(depth - 1)} {R.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {expr(depth - 1)}"
    if k < 0.84:
        return f"{expr(depth - 1)} {R.choice(['and', 'or'])} {expr(depth - 1)}"
    if k < 0.86:
        return f"not {expr(depth - 1)}"
    if k < 0.92:
        return f"{atom(depth)} is {R.choice(['', 'not '])}{test_call(depth)}"
    if k < 0.94:
        return f"({expr(depth - 1)} if {expr(depth - 1)} else {expr(depth - 1)})"
    if k < 0.955:
        return f"({expr(depth - 1)} if {expr(depth - 1)})"
    if k < 0.97:
        return f"-{atom(depth)}"
    if k < 0.99:
        return fmt()
    return f"({expr(depth - 1)})"


def ws():
    return R.choice(["", "", " ", "\n", "\n  ", "  \n", "a", " a ", "\t", "x\n", "\n\n", "é "])


def o(tag):
    return "{%" + R.choice(["", "", "-", "-", "+"]) + " " + tag + " " + R.choice(["", "", "-", "-", "+"]) + "%}"


def assignable():
    return R.choice(["v", "k", "s", "n", "y", "loopvar", "x"])


def stmt(depth, in_loop=False):
    k = R.random()
    if depth <= 0 or k < 0.25:
        return ws() + "{{" + R.choice(["", "-", ""]) + " " + expr(1 + (R.random() < .5)) + " " + R.choice(["", "-"]) + "}}" + ws()
    if k < 0.30:
        return ws() + "{#" + R.choice(["", "-", "+"]) + " c {{ " + R.choice(["", "-", "+"]) + "#}" + ws()
    if k < 0.33:
        return ws() + o("raw").replace("+%}", "%}") + ws() + "{{ raw }}{% if" + ws() + o("endraw") + ws()
    if k < 0.47:
        n = "" if R.random() < .6 else ws() + o("elif " + expr(1)) + body(depth - 1, in_loop)
        e = "" if R.random() < .5 else ws() + o("else") + body(depth - 1, in_loop)
        return ws() + o("if " + expr(2)) + body(depth - 1, in_loop) + n + e + o("endif") + ws()
    if k < 0.66:
        seq = R.choice(["l", "ls", "ms", "d", "d.items()", "d|items", "le", "u", "s", "range(3)", "lm", "dm", "ms[1:]", "ms[::-1]", "[1, 2, 3]", "l|reverse", "(1, 2)", "n", "x", "d|dictsort", "ls|batch(2)", "ms|selectattr('n', 'defined')"])
        target = R.choice(["v", "v", "v", "v", "k, v", "(k, v)", "s"])
        if "items" in seq or "sort" in seq:
            target = "k, v"
        cond = R.choice(["", "", "", " if v", " if loop", " if v is string", " if v != 1", " if n"])
        extra = "".join(R.sample(["{{ loop.index }}", "{{ loop.last }}", "{{ loop.first }}{{ loop.length }}", "{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(v) }}", "{{ loop.revindex0 }}{{ loop.revindex }}", "{{ v }}", "{{ loop.depth }}", "{{ loop.index0 }}", "{% if loop.index > 1 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}"], R.randint(0, 3)))
        e = "" if R.random() < .7 else o("else") + body(depth - 1, in_loop)
        return ws() + o(f"for {target} in {seq}{cond}") + extra + body(depth - 1, True) + extra + e + o("endfor") + ws()
    if k < 0.78:
        t = assignable()
        if R.random() < .2:
            return ws() + o(f"set ns = namespace({R.choice(['', 'a=1', 'a=s, b=none', 'd'])})") + o(f"set ns.a = {expr(1)}") + "{{ ns.a }}{{ ns }}" + ws()
        if R.random() < .2:
            return ws() + o(f"set {t}, y = {R.choice(['1, 2', 'l', '(s, n)', 's', 'd', '[1, [2]]', 'x', 'u'])}") + "{{ " + t + " }}{{ y }}" + ws()
        if R.random() < .25:
            return ws() + o(f"set {t}" + R.choice(["", "", "|upper", "|trim|length", "|replace('a', 'b')"])) + body(depth - 1, in_loop) + o("endset") + "{{ " + t + " }}" + ws()
        return ws() + o(f"set {t} = {expr(2)}") + "{{ " + t + " }}" + ws()
    if k < 0.88:
        name = R.choice(["mac", "fun"])
        params = R.choice(["", "v", "v, k=1", "v='d', k=v", "v, caller=none", "k=s, v=n"])
        inner = R.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller else 'no' }}", "{{ varargs }}{{ kwargs|dictsort }}", "{{ v }}", "{{ k }}"])
        call = name + R.choice(["()", "(1)", "(1, 2)", "(1, k=3)", "(k=s)", "(1, 2, 3)", "(q=1)", "(*l)", "(**{'v': 9})", "(v=ls)"])
        use = "{{ " + call + " }}" if R.random() < .6 else "{% call" + R.choice(["", "(a)", "(a, b=2)"]) + " " + call + " %}in{{ a }}{{ v }}" + ws() + "{% endcall %}"
        return ws() + o(f"macro {name}({params})") + body(depth - 1) + inner + o("endmacro") + ws() + use + ws()
    if k < 0.92:
        return ws() + o(f"with {assignable()} = {expr(1)}" + R.choice(["", ", z = v", ", y = 3"])) + body(depth - 1, in_loop) + o("endwith") + ws()
    if k < 0.95:
        return ws() + o("filter " + R.choice(["upper", "trim", "indent(2)", "replace('a', s)", "length", "upper|lower", "e"])) + body(depth - 1, in_loop) + o("endfilter") + ws()
    if k < 0.97:
        return ws() + o("generation") + body(depth - 1) + o("endgeneration") + ws()
    return ws() + "{% for m in [{'c': [{'c': []}, {'c': [{'c': []}]}]}] recursive %}<{{ loop.depth }}{{ loop.index }}{{ loop(m.c) }}{{ v }}>{% set v = 1 %}{% endfor %}" + ws()


def body(depth, in_loop=False):
    return ws() + "".join(stmt(depth, in_loop) for _ in range(R.randint(0, 2))) + (R.choice(["{% break %}", "{% continue %}"]) if in_loop and R.random() < .06 else "") + ws()


class Timeout(Exception):
    pass


def alarm(*_):
    raise Timeout


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, alarm)
    print(json.dumps({"vars": VARS}, ensure_ascii=False))
    made = 0
    while made < int(sys.argv[2]):
        source = "{{ " + expr(3) + " }}" if R.random() < .5 else "".join(stmt(3) for _ in range(R.randint(1, 3)))
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            result = reference.render(source, VARS)
        except Timeout:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        # Addresses are not reproducible (some filters have put them in upper case), complex numbers not supported.
        if re.search(r" at 0x|\dj\)", str(result), re.IGNORECASE):
            continue
        made += 1
        print(json.dumps({"template": source, **result}, ensure_ascii=False))
