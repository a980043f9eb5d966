package schema

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// hostileSchemas are schemas that ask for more than a server has: each kind in several sizes.
func hostileSchemas() map[string]string {
	out := map[string]string{}
	add := func(name, schema string) { out[name] = schema }
	many := func(n int, format string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = strings.ReplaceAll(format, "%d", fmt.Sprint(i))
		}
		return strings.Join(parts, ",")
	}
	for _, n := range []int{8, 14, 20, 40, 400} {
		blowup := fmt.Sprintf("(a|b)*a(a|b){%d}", n)
		add(fmt.Sprintf("names %d", n), `{"type":"object","propertyNames":{"pattern":"^`+blowup+`$"},"minProperties":1}`)
		add(fmt.Sprintf("names open %d", n), `{"type":"object","propertyNames":{"pattern":"`+blowup+`"}}`)
		add(fmt.Sprintf("names both %d", n), `{"type":"object","propertyNames":{"pattern":"^`+blowup+`$"},"patternProperties":{"^`+blowup+`b$":{"type":"integer"}}}`)
		add(fmt.Sprintf("not %d", n), `{"type":"string","not":{"pattern":"^`+blowup+`$"}}`)
		add(fmt.Sprintf("two %d", n), `{"type":"string","allOf":[{"pattern":"^`+blowup+`$"},{"pattern":"^(a|b)*b(a|b){`+fmt.Sprint(n)+`}$"}]}`)
		add(fmt.Sprintf("two, lengths %d", n), `{"type":"string","allOf":[{"pattern":"^`+blowup+`$"},{"pattern":"^(a|b)*b(a|b){`+fmt.Sprint(n+1)+`}$"},{"not":{"pattern":"aa"}}]}`)
		add(fmt.Sprintf("oneOf %d", n), `{"type":"string","oneOf":[{"pattern":"^`+blowup+`$"},{"pattern":"^(a|b)*b(a|b){`+fmt.Sprint(n)+`}$"}]}`)
		add(fmt.Sprintf("many names %d", n), `{"type":"object","patternProperties":{`+many(12, `"^(a|b)*a(a|b){`+fmt.Sprint(n)+`}%d$":{"maximum":%d}`)+`},"additionalProperties":false}`)
		add(fmt.Sprintf("many strings %d", n), `{"prefixItems":[`+many(40, `{"allOf":[{"pattern":"^(a|b)*a(a|b){`+fmt.Sprint(n)+`}%d$"},{"pattern":"^(a|b)*b(a|b){`+fmt.Sprint(n)+`}%d$"}]}`)+`]}`)
		add(fmt.Sprintf("digits %d", n), `{"type":"string","allOf":[{"pattern":"^\\d*1\\d{`+fmt.Sprint(n)+`}$"},{"pattern":"^\\d*2\\d{`+fmt.Sprint(n)+`}$"},{"pattern":"^\\d*3\\d{`+fmt.Sprint(n+1)+`}$"}]}`)
		add(fmt.Sprintf("periods %d", n), `{"type":"string","allOf":[{"pattern":"^(a{7})*b$"},{"pattern":"^(a{11})*b$"},{"pattern":"^(a{13})*b$"},{"pattern":"^(a{17})*b$"},{"pattern":"^a{`+
			fmt.Sprint(n)+`}a*b$"},{"pattern":"^(a{19})*ab$"}]}`)
		add(fmt.Sprintf("nots %d", n), `{"type":"string","allOf":[`+many(n, `{"not":{"pattern":"a.{%d}b"}}`)+`]}`)
		add(fmt.Sprintf("ands %d", n), `{"type":"string","allOf":[`+many(n, `{"pattern":"k%d.*x"}`)+`],"maxLength":20}`)
		add(fmt.Sprintf("nested counts %d", n), fmt.Sprintf(`{"type":"string","pattern":"^((a{1,%d}b?){1,%d}c?){1,%d}$","not":{"pattern":"^(a|b|c){%d}$"}}`, n, n, n, n))
		add(fmt.Sprintf("optionals %d", n), `{"type":"string","pattern":"^`+strings.Repeat("a?", n)+strings.Repeat("a", n)+`$","not":{"pattern":"^a*$"}}`)
		add(fmt.Sprintf("demands %d", n), `{"type":"object","allOf":[`+many(n, `{"not":{"patternProperties":{"k%d.*x":{"type":"integer"}}}}`)+`]}`)
		add(fmt.Sprintf("required anyOf %d", n), `{"type":"object","properties":{`+many(n, `"p%d":{}`)+`},"anyOf":[`+many(n, `{"required":["p%d"]}`)+`]}`)
		add(fmt.Sprintf("oneOf required %d", n), `{"type":"object","properties":{`+many(n, `"p%d":{}`)+`},"oneOf":[`+many(n, `{"required":["p%d"]}`)+`]}`)
		add(fmt.Sprintf("contains %d", n), `{"allOf":[`+many(n, `{"contains":{"const":%d}}`)+`]}`)
		add(fmt.Sprintf("unevaluated %d", n), `{"anyOf":[`+many(n, `{"properties":{"p%d":{"const":%d}}}`)+`],"unevaluatedProperties":false}`)
		add(fmt.Sprintf("ifs %d", n), `{"allOf":[`+many(n, `{"if":{"properties":{"k%d":{"const":1}}},"then":{"required":["r%d"]}}`)+`]}`)
		add(fmt.Sprintf("dependents %d", n), `{"dependentRequired":{`+many(n, `"k%d":["r%d"]`)+`}}`)
		add(fmt.Sprintf("divisors %d", n), `{"prefixItems":[`+many(n, `{"type":"number","multipleOf":99%d,"minimum":123456789.125,"maximum":123456789123}`)+`]}`)
		add(fmt.Sprintf("doubling %d", n), `{"$defs":{"a0":{"type":"string"},`+many(n, `"a1%d":{"allOf":[{"$ref":"#/$defs/a0"},{"anyOf":[{"$ref":"#/$defs/a0"},{"minLength":%d}]}]}`)+`},"allOf":[`+
			many(n, `{"$ref":"#/$defs/a1%d"}`)+`]}`)
		add(fmt.Sprintf("enums %d", n), `{"allOf":[`+many(min(n, 40), `{"enum":[`+many(400, `"v%d"`)+`]}`)+`]}`)
		add(fmt.Sprintf("enum objects %d", n), `{"enum":[`+many(n, `{"a":[%d,{"b":%d}]}`)+`],"properties":{"a":{"contains":{"properties":{"b":{"not":{"const":3}}}}}}}`)
		add(fmt.Sprintf("long numbers %d", n), `{"type":"number","minimum":`+strings.Repeat("7", n)+`.`+strings.Repeat("3", n)+`,"multipleOf":0.`+strings.Repeat("0", n)+`1}`)
		add(fmt.Sprintf("unique %d", n), `{"type":"array","uniqueItems":true,"items":{"enum":[`+many(n, `%d`)+`]}}`)
		add(fmt.Sprintf("properties %d", n), `{"allOf":[`+many(min(n, 40), `{"properties":{`+many(200, `"p%d":{"minLength":%d}`)+`}}`)+`]}`)
		add(fmt.Sprintf("patterns over names %d", n), `{"properties":{`+many(20*n, `"p%d":{}`)+`},"patternProperties":{`+many(min(n, 60), `"p.*%d.*x?":{"type":"integer"}`)+`}}`)
		add(fmt.Sprintf("classes %d", n), `{"type":"string","pattern":"^(`+strings.ReplaceAll(many(n, `\\p{L}[^a-z%d]\\P{Lu}`), ",", "|")+`)*$","not":{"pattern":"\\p{Nd}{3}.*\\p{L}{%d}"}}`)
		add(fmt.Sprintf("class members %d", n), `{"type":"string","pattern":"^(`+strings.ReplaceAll(many(n, `[\\p{L}%d]`), ",", "|")+`)*$"}`)
		add(fmt.Sprintf("class lists %d", n), `{"prefixItems":[`+many(20*n, `{"pattern":"[\\p{L}\\p{N}%d]{%d}x"}`)+`]}`)
		add(fmt.Sprintf("one class %d", n), `{"type":"string","pattern":"^[`+strings.Repeat(`\\p{L}\\P{Lu}`, n)+`]*$"}`)
		add(fmt.Sprintf("folded %d", n), `{"prefixItems":[`+many(n, `{"pattern":"(?i)[\\p{L}%d][^\\p{N}%d]+[a-z%d]"}`)+`]}`)
		add(fmt.Sprintf("slow patterns over names %d", n), `{"properties":{`+many(10*n, `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa%d":{}`)+`},"patternProperties":{`+
			many(min(n, 60), `"^(a*)*(a*)*b%d$":{"type":"integer"}`)+`}}`)
		add(fmt.Sprintf("slow patterns over enums %d", n), `{"enum":[`+many(10*n, `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa%d"`)+`],"allOf":[`+
			many(min(n, 60), `{"pattern":"^(a*)*(a*)*b%d$"}`)+`,{"not":{"pattern":"^(a|aa)*x$"}}]}`)
		add(fmt.Sprintf("listed properties %d", n), `{"properties":{`+many(25*n, `"p%d":{"type":"string","minLength":%d}`)+`},"additionalProperties":false}`)
		add(fmt.Sprintf("lengths %d", n), `{"type":"string","allOf":[{"pattern":"^([a-z][0-9]{`+fmt.Sprint(n)+`})+$"},{"pattern":"^([a-z][0-9]{`+fmt.Sprint(n+1)+`})*$"}],"minLength":100000,"maxLength":100009}`)
		add(fmt.Sprintf("formats %d", n), `{"allOf":[{"format":"uri"},{"format":"date-time"},{"format":"email"},{"not":{"format":"hostname"}},{"minLength":`+fmt.Sprint(n)+`}]}`)
		add(fmt.Sprintf("not formats %d", n), `{"type":"string","not":{"format":"date-time"},"maxLength":`+fmt.Sprint(n)+`,"pattern":"^[0-9T:-]*$"}`)
	}
	return out
}

// processTime is how long the process has computed.
func processTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestHostileKinds compiles them and writes a text: each is taken or refused with an error of ours. What it takes is logged.
func TestHostileKinds(t *testing.T) {
	for name, schema := range hostileSchemas() {
		if only := os.Getenv("ONLY"); only != "" && only != name {
			continue
		}
		for _, strict := range []bool{true, false} {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := processTime()
			compiled, err := Compile(context.Background(), []byte(schema), Options{Strict: strict})
			took := processTime() - start
			runtime.ReadMemStats(&after)
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil && !strict && !strings.Contains(err.Error(), "no value") {
				t.Logf("%s is refused without strict: %v", name, err)
			}
			first := time.Duration(0)
			if err == nil {
				start = processTime()
				_, _ = grammar.Matches(compiled.Grammar, `{"a":1}`)
				first = processTime() - start
			}
			if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100*time.Millisecond || first > 100*time.Millisecond || allocated > 64 {
				t.Logf("%s, strict %v: %v, a match %v, %d MiB allocated, %v", name, strict, took, first, allocated, err)
			}
		}
	}
}
