package jinja_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// hostile are templates that ask for more than they may, each with what the refusal must name: they are rendered with the default limits.
var hostile = []struct{ name, source, construct string }{
	{"loops in loops", "\n{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}\n{% endfor %}{% endfor %}{% endfor %}", "for"},
	{"list doubling", "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "operator +"},
	{"tuple doubling", "{% set ns = namespace(s=(1,)) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "operator +"},
	{"list times", "{{ ([1] * 1000000000)|length }}", "operator *"},
	{"list times the largest number", "{{ ([1] * 9223372036854775807)|length }}", "operator *"},
	{"tuple of lists times", "{{ (([1] * 100000,) * 10000000)|length }}", "operator *"},
	{"text times", "{{ 'x' * 10000000000 }}", "operator *"},
	{"text times the largest number", "{{ 'xy' * 9223372036854775807 }}", "operator *"},
	{"text times a number beyond 64 bits", "{{ 'xy' * 99999999999999999999999 }}", "operator *"},
	{"text doubling", "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "operator ~"},
	{"text doubling by plus", "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "operator +"},
	{"text grows by one", "{% set ns = namespace(s='x' * 10000) %}{% for i in range(99999) %}{% set ns.s = ns.s ~ 'x' %}{% endfor %}", "operator ~"},
	{"doubling by a set block", "{% set s = 'x' * 1000 %}{% for i in range(30) %}{% set s %}{% for j in range(9999) %}{{ s }}{% endfor %}{% endset %}{% endfor %}", "print"},
	{"sort", "{% for i in range(99999) %}{{ range(99999)|sort|length }}{% endfor %}", "filter sort"},
	{"sort in reverse by nothing", "{% for i in range(99999) %}{{ range(99999)|sort(reverse=true, attribute='a')|first }}{% endfor %}", "filter sort"},
	{"sort of floats and integers", "{% set l = [1.5, 9007199254740993, 2] * 30000 %}{% for i in range(999) %}{{ l|sort|first }}{% endfor %}", "filter sort"},
	{"sort of long texts", "{% set l = [('x' * 100000) ~ 'a', ('x' * 100000) ~ 'b'] * 20000 %}{{ l|sort(case_sensitive=true)|first|length }}", "filter sort"},
	{"sort by lowered text", "{% set l = ['X' * 10000] * 20000 %}{{ l|sort|first }}", "filter sort"},
	{"sort of deep tuples", "{% set ns = namespace(s=(1,)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ [ns.s, ns.s]|sort|first }}", "filter sort"},
	{"dictsort", "{% set d = dict.fromkeys(range(9999)) %}{% for i in range(99999) %}{{ d|dictsort|length }}{% endfor %}", "filter dictsort"},
	{"groupby", "{% for i in range(99999) %}{{ range(99999)|groupby('x', default=1)|length }}{% endfor %}", "filter groupby"},
	{"unique", "{% for i in range(99999) %}{{ range(99999)|unique|list|length }}{% endfor %}", "filter"},
	{"unique of long texts", "{% for i in range(99999) %}{{ ['x' * 10000000]|unique|list|length }}{% endfor %}", ""},
	{"sum", "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}", "filter sum"},
	{"sum of lists", "{{ ([[1] * 1000] * 20000)|sum(start=[])|length }}", "filter sum"},
	{"max", "{% for i in range(99999) %}{{ range(99999)|max }}{% endfor %}", "filter max"},
	{"batch", "{{ [1]|batch(100000000, 0)|list|length }}", "filter"},
	{"batch of the largest number", "{{ [1]|batch(9223372036854775807, 0)|list|length }}", "filter"},
	{"slice", "{{ [1]|slice(10000000000, 0)|list|length }}", "filter"},
	{"slices of a list", "{% set l = [1] * 100000 %}{% for i in range(99999) %}{% set m = l[::-1] %}{% endfor %}", "subscript"},
	{"slices of a text", "{% set s = 'é' * 1000000 %}{% for i in range(99999) %}{% set m = s[::-1] %}{% endfor %}", "subscript"},
	{"characters of a text", "{% set s = 'é' * 10000000 %}{% for i in range(99999) %}{{ s[-1] }}{% endfor %}", "subscript"},
	{"list of a text", "{{ ('x' * 50000000)|list|length }}", "filter list"},
	{"list of items", "{% set d = dict.fromkeys(range(99999)) %}{% for i in range(99999) %}{% set l = d.items()|list %}{% endfor %}", ""},
	{"copies of a dictionary", "{% set d = dict.fromkeys(range(9999)) %}{% for i in range(99999) %}{% set e = dict(d) %}{% endfor %}", "call of dict"},
	{"copies of a list", "{% set l = [1] * 99999 %}{% for i in range(99999) %}{% set e = l.copy() %}{% endfor %}", "call of copy"},
	{"a dictionary of many keys", "{% for i in range(99999) %}{% set d = dict.fromkeys(range(99999)) %}{% endfor %}", "call of fromkeys"},
	{"keys of long texts", "{% set s = 'x' * 30000000 %}{% set d = {} %}{% for i in range(99999) %}{% if s in d or d[s] %}{% endif %}{% endfor %}", ""},
	{"keys of tuples of long texts", "{% set s = 'x' * 10000000 %}{% set d = {} %}{% for i in range(99999) %}{{ d[(s, s, s)] }}{% endfor %}", "subscript"},
	{"keys of nested tuples", "{% set ns = namespace(t=(1,)) %}{% for i in range(100) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {}[ns.t] }}", "subscript"},
	{"keyword arguments", "{% set d = namespace(l=[]) %}{% macro f() %}{{ kwargs|length }}{% endmacro %}{% set e = {} %}{% for i in range(999) %}{% set d.l = d.l + [('k' ~ i, 1)] %}{% endfor %}{% for i in range(99999) %}{{ f(**dict(d.l)) }}{% endfor %}", ""},
	{"arguments", "{% macro f() %}{{ varargs|length }}{% endmacro %}{% for i in range(99999) %}{{ f(*range(99999)) }}{% endfor %}", "call of f"},
	{"replace", "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}", "filter replace"},
	{"replace of nothing", "{{ ('x' * 1000000).replace('', 'y' * 100000) }}", "call of replace"},
	{"join", "{{ ('x' * 100000)|join('y' * 100000) }}", "filter join"},
	{"join as a method", "{{ ('y' * 100000).join('x' * 100000) }}", "call of join"},
	{"split", "{% for i in range(99) %}{% set l = ('x ' * 4000000).split() %}{% endfor %}", "call of split"},
	{"split at a text", "{% for i in range(99) %}{% set l = ('x,' * 4000000).split(',') %}{% endfor %}", "call of split"},
	{"splitlines", "{{ ('\n' * 20000000).splitlines()|length }}", "call of splitlines"},
	{"find in a text of near matches", "{% set s = 'x' * 20000000 %}{% for i in range(99999) %}{{ s.find('x' * 1000 ~ 'y') }}{% endfor %}", "call of find"},
	{"count", "{% set s = 'x' * 20000000 %}{% for i in range(99999) %}{{ s.count('xy') }}{% endfor %}", "call of count"},
	{"length of a text", "{% set s = 'é' * 20000000 %}{% for i in range(99999) %}{{ s|length }}{% endfor %}", "filter length"},
	{"strip of many characters", "{{ ('a' * 10000000).strip('b' * 1000000 ~ 'a') }}", "call of strip"},
	{"upper", "{% set s = 'ß' * 1000000 %}{% for i in range(9999) %}{% set t = s|upper %}{% endfor %}", "filter upper"},
	{"title", "{% set s = 'a ' * 1000000 %}{% for i in range(9999) %}{% set t = s|title %}{% endfor %}", "filter title"},
	{"swapcase", "{{ ('ŉ' * 25000000).swapcase()|length }}", "call of swapcase"},
	{"lower", "{{ ('X' * 60000000)|lower|length }}", "filter lower"},
	{"isalpha", "{% set s = '語' * 10000000 %}{% for i in range(99999) %}{{ s.isalpha() }}{% endfor %}", "call of isalpha"},
	{"wordcount", "{{ ('a ' * 20000000)|wordcount }}{{ ('a ' * 20000000)|wordcount }}", ""},
	{"escape", "{{ ('\"' * 30000000)|e|length }}", "filter e"},
	{"urlencode", "{{ ('\"' * 30000000)|urlencode|length }}", "filter urlencode"},
	{"tojson of control characters", "{{ ('\x01' * 30000000)|tojson|length }}", "filter tojson"},
	{"tojson in ASCII", "{{ ('😀' * 10000000)|tojson(ensure_ascii=true)|length }}", "filter tojson"},
	{"tojson with an indent", "{{ [1]|tojson(indent=10000000000) }}", "filter tojson"},
	{"tojson of a graph", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}", "filter tojson"},
	{"tojson with sorted keys", "{% set d = dict.fromkeys(range(99999)) %}{% for i in range(99999) %}{{ d|tojson(sort_keys=true)|length }}{% endfor %}", "filter"},
	{"printing of control characters", "{% set l = ['\x01' * 30000000] %}{{ l }}", "print"},
	{"printing of a graph", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}", "print"},
	{"comparing graphs", "{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(60) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}", "comparison"},
	{"indent", "{{ 'x\ny'|indent(10000000000) }}", "filter indent"},
	{"indent of many lines", "{{ ('x\n' * 10000000)|indent(8)|length }}", "filter indent"},
	{"center", "{{ 'x'.center(10000000000) }}", "call of center"},
	{"center as a filter", "{{ 'x'|center(10000000000) }}", "filter center"},
	{"zfill", "{{ 'x'.zfill(10000000000) }}", "call of zfill"},
	{"expandtabs", "{{ '\t'.expandtabs(10000000000) }}", "call of expandtabs"},
	{"width of %", "{{ '%1000000000d' % 1 }}", "operator %"},
	{"width of % by an argument", "{{ '%*d' % (1000000000, 1) }}", "operator %"},
	{"precision of %", "{{ '%.1000000000d' % 1 }}", "operator %"},
	{"many percents", "{% for i in range(99) %}{% set s = ('%%' * 10000000) % () %}{% endfor %}", ""},
	{"width of format", "{{ '{:1000000000}'.format(1) }}", "call of format"},
	{"precisions of format", "{% for i in range(99999) %}{{ '{:.100000g}'.format(1.5)|length }}{% endfor %}", "call of format"},
	{"grouped digits", "{% for i in range(99999) %}{{ '{:0999,}'.format(10 ** 4000)|length }}{% endfor %}", ""},
	{"fields of format", "{{ ('{0}' * 1000000).format('x' * 1000)|length }}", "call of format"},
	{"powers", "{{ 9 ** 99999 }}", "operator **"},
	{"powers of powers", "{{ 10 ** (10 ** 9) }}", "operator **"},
	{"products of large numbers", "{% set n = 10 ** 2000 %}{% for i in range(99999) %}{% for j in range(99999) %}{% set m = n * n %}{% endfor %}{% endfor %}", "operator *"},
	{"quotients of large numbers", "{% set n = 10 ** 4000 + 7 %}{% set k = 10 ** 3999 + 3 %}{% for i in range(99999) %}{% for j in range(99999) %}{% set m = n / k %}{% endfor %}{% endfor %}", "operator /"},
	{"printing of large numbers", "{% set n = 10 ** 4000 %}{% for i in range(99999) %}{% set m = n ~ '' %}{% endfor %}", "operator ~"},
	{"large numbers as keys", "{% set n = 10 ** 4000 %}{% for i in range(99999) %}{% set m = {}[n] %}{% endfor %}", ""},
	{"reading of large numbers", "{% set s = '9' * 4200 %}{% for i in range(99999) %}{% set m = s|int %}{% endfor %}", "filter int"},
	{"reading of long texts as numbers", "{% set s = '٣' * 10000000 %}{{ s|int }}{{ s|float }}{{ s|int }}{{ s|float }}", "filter"},
	{"rounding to thousands of places", "{% for i in range(99999) %}{% set m = (10 ** 4000)|round(-3999) %}{% endfor %}", "filter round"},
	{"recursive macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "call of f"},
	{"wide recursion", "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}", ""},
	{"recursive loop", "{% set l = [1] %}{% for a in l recursive %}{{ loop(l) }}{% endfor %}", "call of loop"},
	{"filters within filters", "{% set ns = namespace(g=[1]) %}{% for i in range(99999) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}", "filter list"},
	{"selections within selections", "{% set ns = namespace(g=[1]) %}{% for i in range(99999) %}{% set ns.g = ns.g|select %}{% endfor %}{{ ns.g|first }}", "filter first"},
	{"deep expressions in recursive macros", "{% macro f() %}{{ " + strings.Repeat("[", 50) + "1" + strings.Repeat("+1", 400) + "+f()" + strings.Repeat("]", 50) + " }}{% endmacro %}{{ f() }}", ""},
	{"iterators that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = (ns.l, [1]|map('string')) %}{% endfor %}{% endfor %}", ""},
	{"methods that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = (ns.l, 'x'.upper) %}{% endfor %}{% endfor %}", ""},
	{"undefined values that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = (ns.l, {}.x) %}{% endfor %}{% endfor %}", ""},
	{"macros that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% macro f() %}{% endmacro %}{% set ns.l = (ns.l, f) %}{% endfor %}{% endfor %}", ""},
	{"namespaces that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = (ns.l, namespace(a=1)) %}{% endfor %}{% endfor %}", ""},
	{"large numbers that are kept", "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.l = (ns.l, 10 ** 4000 + j) %}{% endfor %}{% endfor %}", ""},
	{"output", "{% for a in range(99999) %}" + strings.Repeat("x", 10000) + "{% endfor %}", "text"},
	{"output of a variable", "{% set s = 'x' * 1000000 %}{% for a in range(99999) %}{{ s }}{% endfor %}", "print"},
	{"dates", "{% for a in range(99999) %}{{ strftime_now('%c' * 100000)|length }}{% endfor %}", "call of strftime_now"},
}

// TestHostileWork: each ends at a limit of work or memory, whose refusal names the line and the construct. The limits are lower than what is allowed at most, for the tests' sake.
func TestHostileWork(t *testing.T) {
	if len(hostile) < 100 {
		t.Errorf("%d templates", len(hostile))
	}
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			steps, bytes, err := renderHostile(t.Context(), c.source, jinja.Limits{Steps: budget.Most.Steps / 5})
			var failed *jinja.Error
			if !errors.As(err, &failed) || failed.Class != "LimitError" {
				t.Fatalf("got %v after %d steps and %d bytes, want a limit", err, steps, bytes)
			}
			if c.construct == "" && failed.Construct == "" || !strings.HasPrefix(failed.Construct, c.construct) || !strings.Contains(err.Error(), failed.Construct) {
				t.Errorf("the error names %q, want %q: %v", failed.Construct, c.construct, err)
			}
			if len(err.Error()) > 300 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

// renderHostile gives what was counted until the end. Waiting for a place is no part of it.
func renderHostile(ctx context.Context, source string, limits jinja.Limits) (steps, bytes int, err error) {
	template, err := jinja.Parse("test", source)
	if err != nil {
		return 0, 0, err
	}
	for {
		b := budget.New(ctx, budget.Limits{})
		_, err = template.Render(ctx, &jinja.Dict{}, jinja.Options{Budget: b, Limits: limits, Clock: goldenClock})
		steps, bytes = b.Steps(), b.Bytes()
		b.End()
		if !errors.Is(err, budget.ErrBusy) {
			return steps, bytes, err
		}
	}
}

// mostMemory is what a process that renders hostile templates, one after the other, may have had resident.
const mostMemory = 256 << 20

// TestHostileMemory renders every hostile template in a process of its own, and looks at what the kernel says that took.
func TestHostileMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes memory of its own")
	}
	const run = "TINSMITH_TEST_HOSTILE"
	if os.Getenv(run) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostileMemory$", "-test.v")
		child.Env = append(os.Environ(), run+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	before := 0
	for _, c := range hostile {
		begun := processorTime(t)
		steps, bytes, err := renderHostile(t.Context(), c.source, jinja.Limits{})
		if err == nil {
			t.Errorf("%s: no error", c.name)
		}
		fmt.Printf("%-40s %4d ms %10d steps %9d bytes, %d MiB\n", c.name, (processorTime(t) - begun).Milliseconds(), steps, bytes, peakMemory(t)>>20)
		now := peakMemory(t)
		if now > mostMemory {
			t.Fatalf("%s: %d MiB resident, %d before", c.name, now>>20, before>>20)
		}
		before = now
	}
	fmt.Printf("%d MiB at most\n", before>>20)
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// peakMemory is the most that this process has had resident.
func peakMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("the kernel does not tell: ", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
