package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// TestBounds holds each bound to its number and its sentence: what is at it is taken, what is over it is refused.
func TestBounds(t *testing.T) {
	many := func(n int, each func(i int) string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = each(i)
		}
		return strings.Join(parts, ",")
	}
	for _, c := range []struct {
		name, at, over, want string
	}{
		{"bytes", `{"description":"` + strings.Repeat("x", MaxSchemaBytes-100) + `"}`, `{"description":"` + strings.Repeat("x", MaxSchemaBytes) + `"}`,
			fmt.Sprintf("> %d", MaxSchemaBytes)},
		{"nesting", strings.Repeat(`{"items":`, 255) + `{}` + strings.Repeat(`}`, 255), strings.Repeat(`{"items":`, 256) + `{}` + strings.Repeat(`}`, 256),
			"nesting > 256"},
		{"schemas", `{"prefixItems":[` + many(40_000, func(int) string { return "{}" }) + `]}`, `{"prefixItems":[` + many(50_000,
			func(int) string { return "{}" }) + `]}`, fmt.Sprintf("schemas: %d > %d", MaxNodes+1, MaxNodes)},
		{"properties", `{"properties":{` + many(10_000, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`,
			`{"properties":{` + many(10_001, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`, "#  properties"},
		{"required", `{}`, `{"required":[` + many(10_001, func(i int) string { return fmt.Sprintf(`"p%d"`, i) }) + `]}`, "names: 10001 > 10000"},
		{"enum values", `{"enum":[` + many(20_000, func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `]}`, `{"enum":[` + many(20_001,
			func(i int) string { return fmt.Sprintf(`"%d"`, i) }) + `]}`, "values of all enums: 20001 > 20000"},
		{"enum bytes", `{"enum":["` + strings.Repeat("x", MaxEnumBytes/2) + `"]}`, `{"enum":["` + strings.Repeat("x", MaxEnumBytes) + `"]}`,
			fmt.Sprintf("> %d", MaxEnumBytes)},
		{"pattern", `{"pattern":"` + strings.Repeat("x", 16<<10) + `"}`, `{"pattern":"` + strings.Repeat("x", 16<<10+1) + `"}`, "16385 bytes > 16384"},
		{"count", `{"pattern":"^x{0,100000}$"}`, `{"pattern":"^x{0,100001}$"}`, "count 100001 > 100000"},
		{"alternatives", `{}`, `{"pattern":"` + strings.Repeat("|", 10_000) + `"}`, "more than 10000 alternatives"},
		{"groups", `{"pattern":"` + strings.Repeat("(", 200) + strings.Repeat(")", 200) + `"}`, `{"pattern":"` + strings.Repeat("(", 300) +
			strings.Repeat(")", 300) + `"}`, "nest deeper than 250"},
		{"classes of a pattern", `{"pattern":"[` + strings.Repeat(`\\p{L}`, 250) + `]"}`, `{"pattern":"[` + strings.Repeat(`\\p{L}`, 1000) + `]"}`,
			"ranges of characters: 200"},
		{"classes of all patterns", `{"prefixItems":[` + many(500, func(int) string { return `{"pattern":"\\p{L}"}` }) + `]}`,
			`{"prefixItems":[` + many(1000, func(int) string { return `{"pattern":"\\p{L}"}` }) + `]}`, fmt.Sprintf("> %d", MaxClassRanges)},
		{"merge steps", `{}`, `{"allOf":[` + many(40, func(i int) string {
			return fmt.Sprintf(`{"anyOf":[{"properties":{"p%d":{"const":0}}},{"properties":{"p%d":{"const":1}}}]}`, i, i)
		}) + `]}`, "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Compile(context.Background(), []byte(c.at), Options{}); err != nil {
				t.Errorf("at the bound: %.200v", err)
			}
			_, err := Compile(context.Background(), []byte(c.over), Options{})
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), strings.TrimPrefix(c.want, "#  ")) {
				t.Errorf("over the bound: %.200v, want %s", err, c.want)
			}
		})
	}
}

// TestRefuses holds the sentences of what is refused: each names the schema and the keyword.
func TestRefuses(t *testing.T) {
	for _, c := range []struct{ schema, want string }{
		{`{"type":"text"}`, `# type: "text" is no type; allowed: null, boolean, integer, number, string, array, object`},
		{`{"properties":{"a/b":{"minimum":"1"}}}`, `#/properties/a~1b minimum: want a number`},
		{`{"properties":{"a":{"required":true}}}`, `#/properties/a required: want a list of names`},
		{`{"$ref":"https://example.com/x.json"}`, `$ref: "https://example.com/x.json" is not in the schema, and nothing is fetched`},
		{`{"$ref":"#/$defs/a"}`, `points at no schema`},
		{`{"$ref":"#a"}`, `names an anchor that is not in the schema`},
		{`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`, `refers to itself on the same value`},
		{`{"$dynamicRef":"#a"}`, `# $dynamicRef: not served`},
		{`{"multipleOf":0}`, `# multipleOf: want a number above 0`},
		{`{"minLength":-1}`, `# minLength: want a whole number from 0 on`},
		{`{"anyOf":[]}`, `# anyOf: want a list of at least one schema`},
		{`{"items":3}`, `# items: want a schema`},
		{`{"pattern":"\\01"}`, `octal escapes are no part of it with the flag u`},
		{`{"type":"integer","minimum":1e308}`, `no value satisfies it that is written with at most 64 digits before and behind the point of a number`},
		{`{"type":"number","exclusiveMinimum":1e70}`, `no value satisfies it that is written with at most 64 digits`},
		{`{"pattern":"("}`, `# pattern: not a regular expression of ECMA-262`},
		{`{"$schema":"http://json-schema.org/draft-03/schema#"}`, `allowed: draft-04, draft-06, draft-07, 2019-09, 2020-12`},
		{`[]`, `a schema is an object or a boolean`},
		{`{"a":1,"a":2}`, `key "a" stands twice`},
		{`{`, `the schema: at byte 1`},
		{`false`, `no value satisfies it`},
		{`{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}`, `no value satisfies it`},
		{`{"type":"string","pattern":"(a)\\1"}`,
			`# pattern: cannot be enforced while the answer is written: a backreference is not enforced; set strict to false to have it checked after the fact`},
		{`{"type":"array","items":{"type":"string"},"uniqueItems":true}`, `# uniqueItems: cannot be enforced`},
	} {
		_, err := Compile(context.Background(), []byte(c.schema), Options{Strict: true})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.schema, err, c.want)
		}
	}
}

// TestRelaxed compiles what is not in the grammar without strict: it is named, and the finished value is checked.
func TestRelaxed(t *testing.T) {
	compiled, err := Compile(context.Background(),
		[]byte(`{"type":"object","properties":{"a":{"type":"string","pattern":"^(a|b)\\1$"},"b":{"type":"array","items":{"type":"number"},"uniqueItems":true}}}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(compiled.Relaxed); got != "[#/properties/a pattern #/properties/b uniqueItems]" {
		t.Errorf("relaxed: %s", got)
	}
	chain := `{"type":"object","allOf":[` +
		strings.Repeat(`{"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["r"]},"else":{"required":["s"]}},`, 1)
	for i := range 20 {
		chain += fmt.Sprintf(`{"if":{"properties":{"k%d":{"const":1}},"required":["k%d"]},"then":{"required":["r%d"]},"else":{"required":["s%d"]}},`, i, i, i, i)
	}
	if long, err := Compile(context.Background(), []byte(chain+"{}]}"), Options{}); err != nil || len(long.Relaxed) == 0 || long.Relaxed[0].Keyword != "if" {
		t.Errorf("a long chain of conditions: %+v, %v", long, err)
	}
	divisors := `{"prefixItems":[{"multipleOf":9000}`
	for i := range 60 {
		divisors += fmt.Sprintf(`,{"type":"integer","multipleOf":%d}`, 9001+i)
	}
	if many, err := Compile(context.Background(), []byte(divisors+"]}"), Options{}); err != nil || len(many.Relaxed) == 0 || many.Relaxed[0].Keyword != "multipleOf" {
		t.Errorf("many large divisors: %+v, %v", many, err)
	}
	for name, schema := range map[string]string{
		"pattern": `{"type":"string","allOf":[{"pattern":"^(a|b)*a(a|b){14}$"},{"pattern":"^(a|b)*b(a|b){14}$"}]}`,
		"oneOf":   `{"type":"string","oneOf":[{"pattern":"^(a|b)*a(a|b){14}$"},{"pattern":"^(ab|a|b)*a(a|b){14}$"}]}`,
		"patternProperties": `{"type":"object","patternProperties":{"^(a|b)*a(a|b){14}1$":{"maximum":1},"^(a|b)*b(a|b){14}1$":{"maximum":2}},"additionalProperties":false,
			"minProperties":1}`,
		"propertyNames": `{"type":"object","propertyNames":{"pattern":"^(a|b)*a(a|b){14}$"},"patternProperties":{"^(a|b)*b(a|b){14}$":{"type":"integer"}}}`,
	} {
		// Whether a text is in both expressions is more than may be asked.
		involved, err := Compile(context.Background(), []byte(schema), Options{})
		if err != nil || !slices.ContainsFunc(involved.Relaxed, func(r Relaxed) bool { return strings.HasPrefix(name, r.Keyword) }) {
			t.Errorf("%s of long expressions: %+v, %v", name, involved, err)
		}
		var e *Error
		if _, err := Compile(context.Background(), []byte(schema), Options{Strict: true}); !errors.As(err, &e) {
			t.Errorf("%s of long expressions under strict: %v", name, err)
		}
	}
	text := `{"a":"ab","b":[1,1.0]}`
	if !matches(t, compiled.Grammar, `{"a":"ab","b":[1,1]}`) {
		t.Error("the grammar holds to what it is said not to")
	}
	problems := compiled.Validate([]byte(text))
	if len(problems) != 2 || problems[0].Path != "/a" || problems[0].Keyword != "#/properties/a/pattern" || problems[1].Path != "/b" {
		t.Errorf("problems: %v", problems)
	}
	if problems := compiled.Validate([]byte(`{"a":"aa","b":[1,2]}`)); len(problems) != 0 {
		t.Errorf("a valid text has problems: %v", problems)
	}
	if problems := compiled.Validate([]byte(`{"a":`)); len(problems) != 1 {
		t.Errorf("a text cut short: %v", problems)
	}
}

// TestRepeatedKeys holds what is said where a key that no schema names may stand twice. The last counts, so strict can promise neither a number of members
// nor what one of them has; where only few keys are allowed, none stands twice.
func TestRepeatedKeys(t *testing.T) {
	integers := `{"type":"object","additionalProperties":{"type":"integer"}`
	for _, c := range []struct {
		name, schema, relaxed string
		yes, no               []string
	}{
		{"two members of any name", integers + `,"minProperties":2}`, "[# minProperties]", []string{`{"a":1,"b":2}`}, []string{`{"a":1}`}},
		{"more than is required and one", integers + `,"required":["r"],"minProperties":3}`, "[# minProperties]", []string{`{"r":0,"a":1,"b":2}`}, []string{`{"r":0,"a":1}`}},
		{"one member more than is required", integers + `,"properties":{"r":{},"s":{}},"required":["r"],"minProperties":2}`, "[]",
			[]string{`{"r":0,"a":1}`, `{"r":0,"s":1}`}, []string{`{"r":0}`}},
		{"one", integers + `,"minProperties":1}`, "[]", []string{`{"a":1}`}, []string{`{}`}},
		{"most", integers + `,"maxProperties":2}`, "[]", []string{`{"a":1,"b":2}`}, []string{`{"a":1,"b":2,"c":3}`}},
		{"listed names only", `{"properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"type":"object","minProperties":2}`, "[]", []string{`{"a":1,"c":2}`},
			[]string{`{"a":1}`, `{"a":1,"a":1}`}},
		{"few names", integers + `,"propertyNames":{"enum":["a","b","c"]},"minProperties":2}`, "[]", []string{`{"b":1,"a":2}`, `{"a":1,"b":2,"c":3}`},
			[]string{`{"a":1}`, `{"a":1,"a":2}`, `{"a":1,"d":2}`}},
		{"few names beside a listed one", `{"type":"object","properties":{"a":{}},"propertyNames":{"enum":["a","b","c"]},"minProperties":2}`, "[]",
			[]string{`{"c":1,"b":2}`, `{"a":1,"c":2}`}, []string{`{"c":1,"c":2}`, `{"a":1,"a":2}`}},
		{"a value that one must have", `{"type":"object","not":{"additionalProperties":{"type":"integer"}}}`, "[# not]", []string{`{"a":1,"b":"x"}`}, []string{`{"a":1}`}},
		{"a name that one must have", `{"type":"object","not":{"patternProperties":{"^a":false}}}`, "[]", []string{`{"b":1,"ab":1}`}, []string{`{"b":1}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			compiled, err := Compile(context.Background(), []byte(c.schema), Options{})
			if err != nil || fmt.Sprint(compiled.Relaxed) != c.relaxed {
				t.Fatalf("%v, %v, want %s", compiled, err, c.relaxed)
			}
			var e *Error
			if _, err := Compile(context.Background(), []byte(c.schema), Options{Strict: true}); (err == nil) != (c.relaxed == "[]") || err != nil && (!errors.As(err, &e) || !e.Relaxed) {
				t.Errorf("strict: %v", err)
			}
			for _, text := range c.yes {
				if !matches(t, compiled.Grammar, text) {
					t.Errorf("refuses %q", text)
				}
			}
			for _, text := range c.no {
				if matches(t, compiled.Grammar, text) {
					t.Errorf("takes %q", text)
				}
			}
		})
	}
}

// TestManyDifferentItems says that items are not kept apart where they have too many values.
func TestManyDifferentItems(t *testing.T) {
	for n, want := range map[int]string{10: "[]", 20: "[# uniqueItems]", 70: "[# uniqueItems]"} {
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprint(i)
		}
		schema := `{"type":"array","uniqueItems":true,"items":{"enum":[` + strings.Join(values, ",") + `]}}`
		compiled, err := Compile(context.Background(), []byte(schema), Options{})
		if err != nil || fmt.Sprint(compiled.Relaxed) != want {
			t.Errorf("%d values: %v, %v", n, compiled, err)
			continue
		}
		if got := matches(t, compiled.Grammar, `[1,2,1]`); got != (want != "[]") {
			t.Errorf("%d values: an item twice is taken: %v", n, got)
		}
		if problems := compiled.Validate([]byte(`[1,2,1]`)); len(problems) != 1 || problems[0].Keyword != "#/uniqueItems" {
			t.Errorf("%d values: %v", n, problems)
		}
	}
}

// TestLongStrings enforces lengths far beyond what is looked at character by character, beside patterns.
func TestLongStrings(t *testing.T) {
	pairs := `{"type":"string","pattern":"^([a-z][0-9])+$"`
	for schema, want := range map[string]string{
		pairs + `,"minLength":100000}`:                           "",
		pairs + `,"minLength":2001,"maxLength":2002}`:            "",
		pairs + `,"minLength":2001,"maxLength":2001}`:            "no value",
		pairs + `,"not":{"pattern":"^(..)*$"},"minLength":1000}`: "no value",
		`{"type":"string","allOf":[{"pattern":"^([a-z][0-9])+$"},{"pattern":"((c1d3g3).{4,8}){6,6}"},{"pattern":"(t|8){10,10}$"}],"minLength":100}`: "",
		`{"type":"string","allOf":[{"pattern":"^([a-z][0-9])+$"},{"pattern":"((c1d3g3).{4,8}){6,6}"},{"pattern":"(t8){10,10}$"},` +
			`{"not":{"pattern":"^(c1d3g3.{4,8}){6,6}"}}],"minLength":100}`: "",
	} {
		compiled, err := Compile(context.Background(), []byte(schema), Options{Strict: true})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", schema, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		if strings.Contains(schema, "2002") && (!matches(t, compiled.Grammar, `"`+strings.Repeat("a0", 1001)+`"`) || matches(t, compiled.Grammar, `"`+strings.Repeat("a0", 1000)+`"`)) {
			t.Errorf("%s: not the texts of 2002 characters", schema)
		}
	}
}

// TestValidateEnds checks a value against references that double at each level, which takes for ever if nothing is remembered.
func TestValidateEnds(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"$defs":{`)
	for i := range 60 {
		fmt.Fprintf(&b, `"a%d":{"allOf":[{"not":{"not":{"$ref":"#/$defs/a%d"}}},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	b.WriteString(`"a60":{"type":"string","pattern":"(a)\\1"}},"$ref":"#/$defs/a0"}`)
	compiled, err := Compile(context.Background(), []byte(b.String()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if problems := compiled.Validate([]byte(`"ab"`)); len(problems) == 0 || len(problems) > maxProblems {
		t.Errorf("problems: %v", problems)
	}
}

func TestOptions(t *testing.T) {
	object := `{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"additionalProperties":false}`
	for _, c := range []struct {
		name, schema string
		options      Options
		yes, no      []string
	}{
		{"default", object, Options{}, []string{`{"a":[1,2]}`, `{ "a" : [ 1 , 2 ] }`, "{\n\t\"a\":\n  [1]\n}", `{ }`, `{}`}, []string{` {}`, `{} `, `{  }`,
			"{\n\n}", "{\r\n}", "{\n" + strings.Repeat(" ", 65) + "}"}},
		{"none", object, Options{NoWhitespace: true}, []string{`{"a":[1,2]}`, `{}`}, []string{`{"a": [1]}`, `{ }`}},
		{"pattern", object, Options{Whitespace: `[ \t]{0,2}`}, []string{`{"a":[1,2]}`, `{  "a":  [1]}`}, []string{`{   "a":[1]}`, "{\n}"}},
		{"root", `{}`, Options{Root: "object"}, []string{`{}`, `{"a":1}`}, []string{`1`, `[]`, `null`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			compiled, err := Compile(context.Background(), []byte(c.schema), c.options)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !matches(t, compiled.Grammar, text) {
					t.Errorf("refuses %q", text)
				}
			}
			for _, text := range c.no {
				if matches(t, compiled.Grammar, text) {
					t.Errorf("takes %q", text)
				}
			}
		})
	}
	for _, c := range []struct {
		options Options
		want    string
	}{
		{Options{Whitespace: "("}, "not a regular expression"},
		{Options{Whitespace: "a"}, "no white space"},
		{Options{Whitespace: strings.Repeat(" ", 257)}, "bytes: 257 > 256"},
		{Options{Whitespace: " ", NoWhitespace: true}, "both"},
		{Options{Root: "thing"}, "root kind"},
	} {
		if _, err := Compile(context.Background(), []byte(`{}`), c.options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.options, err, c.want)
		}
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	big := `{"allOf":[` + strings.Repeat(`{"properties":{"a":{"anyOf":[{"type":"integer"},{"minLength":3}]}}},`, 300) + `{}]}`
	if _, err := Compile(done, []byte(big), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that is gone: %v", err)
	}
}

// countedContext is done once somebody has looked so often.
type countedContext struct {
	context.Context
	looks int
}

func (c *countedContext) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestStopsWithinQuestions compiles what is one long question about an expression, for somebody who leaves while it is asked.
func TestStopsWithinQuestions(t *testing.T) {
	schema := []byte(`{"type":"string","allOf":[{"pattern":"^\\d*1\\d{20}$"},{"pattern":"^\\d*2\\d{20}$"},{"pattern":"^\\d*3\\d{21}$"}]}`)
	all := &countedContext{context.Background(), 1 << 30}
	var e *Error
	if _, err := Compile(all, schema, Options{Strict: true}); !errors.As(err, &e) {
		t.Fatalf("with nobody leaving: %v", err)
	}
	looks := 1<<30 - all.looks
	if looks < 100 {
		t.Errorf("%d looks in all", looks)
	}
	for _, strict := range []bool{true, false} {
		for _, after := range []int{0, 5, looks / 2, 9 * looks / 10} {
			leaving := &countedContext{context.Background(), after}
			if _, err := Compile(leaving, schema, Options{Strict: strict}); !errors.Is(err, context.Canceled) {
				t.Errorf("gone after %d looks, strict %v: %v", after, strict, err)
			}
			if leaving.looks < -20 {
				t.Errorf("gone after %d looks, strict %v: %d more", after, strict, -leaving.looks)
			}
		}
	}
}

// TestManyNamesAgainstPatterns has more names than patterns may be tried on: the patterns are left to the finished value, and no name is.
func TestManyNamesAgainstPatterns(t *testing.T) {
	var names, patterns []string
	for i := range 4000 {
		names = append(names, fmt.Sprintf(`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa%d":{"type":"integer"}`, i))
	}
	for i := range 20 {
		patterns = append(patterns, fmt.Sprintf(`"^(a*)*b%d$":{"maximum":%d}`, i, i))
	}
	schema := `{"type":"object","properties":{` + strings.Join(names, ",") + `},"patternProperties":{` + strings.Join(patterns, ",") + `},"additionalProperties":false}`
	compiled, err := Compile(context.Background(), []byte(schema), Options{})
	if err != nil || fmt.Sprint(compiled.Relaxed) != "[# patternProperties]" {
		t.Fatalf("%v, %v", compiled, err)
	}
	if !matches(t, compiled.Grammar, `{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa7":1}`) || matches(t, compiled.Grammar, `{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa7":"x"}`) {
		t.Error("a property's own schema is not held to")
	}
	var e *Error
	if _, err := Compile(context.Background(), []byte(schema), Options{Strict: true}); !errors.As(err, &e) || !e.Relaxed || e.Keyword != "patternProperties" {
		t.Errorf("strict: %v", err)
	}
}

func TestOtherConstraints(t *testing.T) {
	b := grammar.NewBuilder(Limits())
	check := func(name string, symbol grammar.Symbol, err error, yes, no []string) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		g, err := b.Grammar(symbol)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		for _, text := range yes {
			if !matches(t, g, text) {
				t.Errorf("%s refuses %q", name, text)
			}
		}
		for _, text := range no {
			if matches(t, g, text) {
				t.Errorf("%s takes %q", name, text)
			}
		}
	}
	check("json object", JSONObject(b), nil, []string{`{}`, `{"a": [1, {"b": null}]}`}, []string{`[]`, `1`, ``, `{"a":1} `})
	symbol, err := Choice(b, []string{"yes", "no", "yes, but"})
	check("choice", symbol, err, []string{"yes", "no", "yes, but"}, []string{"", "ye", "yesno"})
	symbol, err = Regex(b, `\d{3}-[a-z]+`)
	check("regex", symbol, err, []string{"123-a", "000-xyz"}, []string{"123-", "x123-a", "123-a "})
	symbol, err = Regex(b, `^(a|b)$`)
	check("anchored regex", symbol, err, []string{"a", "b"}, []string{"ab", ""})
	for name, wrong := range map[string]error{
		"(":         second(Regex(b, "(")),
		`(a)\1`:     second(Regex(b, `(a)\1`)),
		"0 to 4096": second(Choice(b, nil)),
		"4097":      second(Choice(b, make([]string, 4097))),
	} {
		var e *Error
		if !errors.As(wrong, &e) {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}

func second(_ grammar.Symbol, err error) error { return err }

// TestWideReferences compiles alternatives that all refer to the same alternatives, level by level: each schema is looked at once.
func TestWideReferences(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"$defs":{`)
	for level := range 12 {
		fmt.Fprintf(&b, `"a%d":{"anyOf":[{"$ref":"#/$defs/a%d"}`, level, level+1)
		b.WriteString(strings.Repeat(fmt.Sprintf(`,{"$ref":"#/$defs/a%d"}`, level+1), 60))
		b.WriteString(`]},`)
	}
	b.WriteString(`"a12":{"const":"x"}},"$ref":"#/$defs/a0"}`)
	compiled, err := Compile(context.Background(), []byte(b.String()), Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if !matches(t, compiled.Grammar, `"x"`) || matches(t, compiled.Grammar, `"y"`) {
		t.Error("not the one text that is valid")
	}
}
