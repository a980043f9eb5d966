package jinja_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// render parses and renders with small limits, so that hostile templates end quickly.
func render(t *testing.T, source string) (string, error) {
	t.Helper()
	template, err := jinja.Parse("test", source)
	if err != nil {
		return "", err
	}
	limits := jinja.Limits{Steps: 20_000_000, Bytes: 8 << 20}
	return template.Render(t.Context(), &jinja.Dict{}, jinja.Options{Limits: limits, Clock: goldenClock})
}

// TestHostileTemplates: each ends with an error that says which bound it met, and does so without the memory or time that it asks for.
func TestHostileTemplates(t *testing.T) {
	deep := strings.Repeat
	cases := map[string]struct{ source, class string }{
		"string multiplication":     {"{{ 'x' * 10000000000 }}", "LimitError"},
		"string doubling":           {"{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}", "LimitError"},
		"list multiplication":       {"{{ ([1] * 1000000000)|length }}", "LimitError"},
		"list doubling":             {"{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "LimitError"},
		"nested loops":              {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "LimitError"},
		"output":                    {"{% for a in range(99999) %}" + deep("x", 100) + "{% endfor %}", "LimitError"},
		"captured output":           {"{% set s %}{% for a in range(99999) %}" + deep("x", 100) + "{% endfor %}{% endset %}", "LimitError"},
		"range":                     {"{% for a in range(100001) %}{% endfor %}", "OverflowError"},
		"range with big step":       {"{{ range(-4611686018427387904, 4611686018427387904, 2)|length }}", "OverflowError"},
		"recursive macro":           {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "LimitError"},
		"recursive call block":      {"{% macro f() %}{{ caller }}{% call f() %}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}", "LimitError"},
		"recursive loop":            {"{% set l = [1] %}{% for a in l recursive %}{{ loop(l) }}{% endfor %}", "LimitError"},
		"power":                     {"{{ 9 ** 99999 }}", "LimitError"},
		"integer product":           {"{% set ns = namespace(s=99) %}{% for i in range(100) %}{% set ns.s = ns.s * ns.s %}{% endfor %}", "LimitError"},
		"format width":              {"{{ '%1000000000d' % 1 }}", "LimitError"},
		"format precision":          {"{{ '%.1000000000f' % 1 }}", "ValueError"},
		"str.format width":          {"{{ '{:1000000000}'.format(1) }}", "LimitError"},
		"grouped width":             {"{{ '{:01000000000,}'.format(1) }}", "LimitError"},
		"nested format":             {"{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}", "ValueError"},
		"center":                    {"{{ 'x'.center(10000000000) }}", "LimitError"},
		"indent":                    {"{{ 'x\ny'|indent(10000000000) }}", "LimitError"},
		"tojson indent":             {"{{ [1]|tojson(indent=10000000000) }}", "LimitError"},
		"replace":                   {"{{ ('x' * 100000)|replace('x', 'y' * 100000) }}", "LimitError"},
		"join":                      {"{{ ('x' * 100000)|join('y' * 100000) }}", "LimitError"},
		"batch fill":                {"{{ [1]|batch(10000000000, 0)|list }}", "LimitError"},
		"slice":                     {"{{ [1]|slice(10000000000)|list }}", "LimitError"},
		"value that holds itself":   {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "RecursionError"},
		"deep value":                {"{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}", "RecursionError"},
		"exponential tuple as key":  {"{% set ns = namespace(s=(1,)) %}{% for i in range(100) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} }}", "LimitError"},
		"comparing deep values":     {"{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(5000) %}{% set a.s = [a.s] %}{% set b.s = [b.s] %}{% endfor %}{{ a.s == b.s }}", "RecursionError"},
		"exponential comparison":    {"{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(100) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}", "LimitError"},
		"exponential printing":      {"{% set a = namespace(s=[]) %}{% for i in range(100) %}{% set a.s = [a.s, a.s] %}{% endfor %}{{ a.s }}", "LimitError"},
		"parentheses":               {"{{ " + deep("(", 100000) + deep(")", 100000) + " }}", "TemplateSyntaxError"},
		"lists":                     {"{{ " + deep("[", 100000) + deep("]", 100000) + " }}", "TemplateSyntaxError"},
		"signs":                     {"{{ " + deep("-", 100000) + "1 }}", "TemplateSyntaxError"},
		"nots":                      {"{{ " + deep("not ", 100000) + "1 }}", "TemplateSyntaxError"},
		"tags":                      {deep("{% if 1 %}", 100000), "TemplateSyntaxError"},
		"conditions":                {"{{ " + deep("1 if 1 else ", 50000) + "1 }}", "TemplateSyntaxError"},
		"sum":                       {"{{ 1" + deep("+1", 100000) + " }}", "TemplateSyntaxError"},
		"attributes":                {"{{ a" + deep(".a", 100000) + " }}", "TemplateSyntaxError"},
		"filters":                   {"{{ a" + deep("|e", 100000) + " }}", "TemplateSyntaxError"},
		"tests":                     {"{{ a" + deep(" is defined", 50000) + " }}", "TemplateSyntaxError"},
		"size":                      {deep("x", 2<<20), "LimitError"},
		"not UTF-8":                 {"\xff", "TemplateSyntaxError"},
		"attributes of Python":      {"{{ ''.__class__.__mro__ }}", "SecurityError"},
		"changing a list":           {"{% set l = [] %}{{ l.append(1) }}", "SecurityError"},
		"changing a dict":           {"{% set d = {} %}{{ d.update(a=1) }}", "SecurityError"},
		"underscore in a namespace": {"{% set ns = namespace(_a=1) %}", "SecurityError"},
		"include":                   {"{% include '/etc/passwd' %}", "TemplateSyntaxError"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, c.source)
			var failed *jinja.Error
			if !errors.As(err, &failed) || failed.Class != c.class {
				message := "no error"
				if err != nil {
					message = err.Error()
				}
				t.Fatalf("got %.300s, want %s", message, c.class)
			}
		})
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	cases := map[string]struct {
		source string
		line   int
	}{
		"syntax":             {"a\n{% if %}", 2},
		"unknown tag":        {"a\n\n{% foo %}", 3},
		"unknown filter":     {"a\n{{ 1\n|foo }}", 3},
		"unclosed block":     {"{% for a in b %}\n\n\n", 3},
		"undefined":          {"{% for i in [1] %}\n{# c\nd #}\n{{ x.y }}\n{% endfor %}", 4},
		"inside a macro":     {"{% macro f() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n\n{{ f() }}", 2},
		"behind whitespace":  {"a\n\n  {%- if true %}\n{{- 1 / 0 }}{% endif %}", 4},
		"multi-line comment": {"{#\n\n#}{{ 1 / 0 }}", 3},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, c.source)
			var failed *jinja.Error
			if !errors.As(err, &failed) || failed.Line != c.line {
				t.Errorf("got %v, want line %d", err, c.line)
			}
		})
	}
}

func TestRaiseException(t *testing.T) {
	_, err := render(t, "\n{{ raise_exception('no ' ~ 1.0) }}")
	var raised *jinja.RaisedError
	if !errors.As(err, &raised) || raised.Message != "no 1.0" || raised.Line != 2 {
		t.Errorf("got %#v", err)
	}
}

func TestContextEnds(t *testing.T) {
	cause := errors.New("client left")
	ctx, cancel := context.WithCancelCause(t.Context())
	template, err := jinja.Parse("test", "{{ cancel }}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	cancel(cause)
	if _, err := template.Render(ctx, &jinja.Dict{}, jinja.Options{}); !errors.Is(err, cause) {
		t.Errorf("got %v before the start, want %v", err, cause)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	go cancel(cause)
	if _, err := template.Render(ctx, &jinja.Dict{}, jinja.Options{Limits: jinja.Limits{}}); !errors.Is(err, cause) {
		t.Errorf("got %v while it ran, want %v", err, cause)
	}
}

// TestRenderingLeavesItsInputAlone: templates cannot change what they were given, so conversations may be shared.
func TestRenderingLeavesItsInputAlone(t *testing.T) {
	const document = `{"l": [1, {"a": 2}], "d": {"k": [3]}}`
	v, err := jinja.FromJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	template, err := jinja.Parse("test", "{% set l = l + [2] %}{% set d = dict(d, k=1, n=2) %}{% for l in [5] %}{% set d = l %}{% endfor %}{{ l }}{{ d }}")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := template.Render(t.Context(), v.(*jinja.Dict), jinja.Options{})
		if err != nil || out != "[1, {'a': 2}, 2]{'k': 1, 'n': 2}" {
			t.Fatalf("got %q, %v", out, err)
		}
	}
}

func TestFromJSON(t *testing.T) {
	cases := map[string]struct{ document, printed string }{
		"order of keys":   {`{"b": 1, "a": 2, "b": 3}`, "{'b': 3, 'a': 2}"},
		"numbers":         {`[1, 1.0, -0, -0.0, 1e5, 1E400, 12345678901234567890123, 0.1, 1e16, 1e-5]`, "[1, 1.0, 0, -0.0, 100000.0, inf, 12345678901234567890123, 0.1, 1e+16, 1e-05]"},
		"constants":       {`[true, false, null]`, "[True, False, None]"},
		"strings":         {`["\u00e9", "\ud83d\ude42", "it's", "\"'", "\u0000\u200b"]`, `['é', '🙂', "it's", '"\'', '\x00\u200b']`},
		"half surrogates": {`"\ud83d"`, "\ufffd"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v, err := jinja.FromJSON([]byte(c.document))
			if err != nil {
				t.Fatal(err)
			}
			vars := &jinja.Dict{}
			vars.Set("v", v)
			template, err := jinja.Parse("test", "{{ v }}")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := template.Render(t.Context(), vars, jinja.Options{}); err != nil || got != c.printed {
				t.Errorf("got %q, %v, want %q", got, err, c.printed)
			}
		})
	}
	for name, document := range map[string]string{
		"empty": "", "two documents": "1 2", "unfinished": `{"a":`, "trailing comma": "[1,]", "not UTF-8": "\"\xff\"", "NaN": "NaN",
		"too deep": strings.Repeat("[", 100000), "too many digits": strings.Repeat("9", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			if v, err := jinja.FromJSON([]byte(document)); err == nil {
				t.Errorf("got %v, want an error", v)
			}
		})
	}
}
