package schema

import (
	"context"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

func matches(t *testing.T, g *grammar.Grammar, text string) bool {
	t.Helper()
	ok, err := grammar.Matches(g, text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return ok
}

func TestCompile(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		yes, no      []string
	}{
		{"anything", `{}`, []string{`1`, `"a"`, `{"a":[1,{"b":null}]}`, `[]`, `{}`, `-1.5e3`}, []string{``, ` 1`, `1 `, `{a:1}`, `01`}},
		{"object", `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false}`,
			[]string{`{"a":1}`, `{"a": 1, "b": "x"}`, "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"}, []string{`{}`, `{"b":"x"}`, `{"b":"x","a":1}`, `{"a":1,"c":2}`,
				`{"a":1.0}`, `{"a":"1"}`}},
		{"tree", `{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"k":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"}`,
			[]string{`{"v":1}`, `{"v":1,"k":[{"v":2},{"v":3,"k":[]}]}`}, []string{`{"v":1,"k":[1]}`}},
		{"strings", `{"type":"string","minLength":2,"maxLength":3,"pattern":"^a"}`, []string{`"ab"`, `"aé😀"`}, []string{`"a"`, `"bb"`, `"abcd"`}},
		{"bounds", `{"type":"number","minimum":-1.5,"exclusiveMaximum":10}`, []string{`-1.5`, `0`, `9.99`, `-0.3`, `-0`, `-1.50`}, []string{`-1.51`, `10`,
			`10.0`, `-2`, `1e1`}},
		{"multiples", `{"type":"integer","multipleOf":7,"minimum":10}`, []string{`14`, `21`, `700`}, []string{`7`, `15`, `14.0`, `-14`}},
		{"not", `{"type":"integer","not":{"multipleOf":3}}`, []string{`1`, `-2`, `10`}, []string{`3`, `0`, `-9`}},
		{"not object", `{"type":"object","not":{"required":["a"]}}`, []string{`{}`, `{"b":1}`}, []string{`{"a":1}`, `{"b":1,"a":2}`}},
		{"one", `{"oneOf":[{"type":"object","required":["a"]},{"type":"object","required":["b"]}]}`, []string{`{"a":1}`, `{"b":1}`, `{"b":1,"c":2}`},
			[]string{`{}`, `{"a":1,"b":2}`}},
		{"if", `{"type":"object","properties":{"k":{"enum":["x","y"]},"v":{}},"required":["k","v"],"if":{"properties":{"k":{"const":"x"}}},"then":{"properties":{"v":{"type":"integer"}}},"else":{"properties":{"v":{"type":"string"}}}}`,
			[]string{`{"k":"x","v":1}`, `{"k":"y","v":"s"}`}, []string{`{"k":"x","v":"s"}`, `{"k":"y","v":1}`}},
		{"contains", `{"type":"array","contains":{"const":5},"items":{"type":"integer"},"minItems":2}`, []string{`[5,1]`, `[1,5]`, `[1,2,5,3]`},
			[]string{`[5]`, `[1,2]`, `[5,"a"]`}},
		{"enum", `{"enum":[1,"a",null,{"x":[1,2]},1.5]}`, []string{`1`, `"a"`, `null`, `{"x":[1,2]}`, `{"x": [1, 2]}`, `1.5`}, []string{`2`, `1.0`, `{"x":[1]}`}},
		{"unique", `{"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true}`, []string{`[]`, `["a","c"]`, `["c","b","a"]`}, []string{`["a","a"]`,
			`["d"]`}},
		{"unique of many", `{"type":"array","items":{"enum":["a","b","c","d","e","f","g","h","i","j",1,2,null,"k","ab"]},"uniqueItems":true,"maxItems":4}`,
			[]string{`[]`, `["a", "c"]`, `[1,"b","a",null]`}, []string{`["a","a"]`, `["d","e","f","d"]`, `["x"]`, `[1,2,null,"a","b"]`, `[1,2,1]`}},
		{"patterns", `{"type":"object","patternProperties":{"^a":{"type":"string"},"b$":{"type":"integer"}},"additionalProperties":false}`,
			[]string{`{"ax":"s"}`, `{"xb":1}`, `{}`}, []string{`{"ab":1}`, `{"ab":"s"}`, `{"c":1}`}},
		{"counts", `{"type":"object","minProperties":1,"maxProperties":3}`, []string{`{"a":1}`, `{"a":1,"b":2,"c":3}`}, []string{`{}`,
			`{"a":1,"b":2,"c":3,"d":4}`}},
		{"dependencies", `{"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}}`, []string{`{}`, `{"b":1}`, `{"a":1,"b":2}`},
			[]string{`{"a":1}`}},
		{"unevaluated", `{"type":"object","properties":{"a":{}},"allOf":[{"properties":{"b":{}}}],"unevaluatedProperties":false}`, []string{`{"a":1,"b":2}`,
			`{}`}, []string{`{"c":1}`}},
		{"nullable", `{"type":"string","nullable":true}`, []string{`"a"`, `null`}, []string{`1`}},
		{"prefix", `{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`, []string{`[]`, `[1]`, `[1,"a"]`},
			[]string{`["a"]`, `[1,"a",2]`}},
		{"beside $ref in draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"x":{"type":"string"}},
			"allOf":[{"$ref":"#/definitions/x","allOf":[false],"anyOf":[false],"oneOf":[{"type":"string"}]}]}`, []string{`"a"`}, []string{`1`}},
		{"beside $recursiveRef", `{"$schema":"https://json-schema.org/draft/2019-09/schema","type":"object",
			"properties":{"a":{"$recursiveRef":"#","maxProperties":0}},"additionalProperties":false}`,
			[]string{`{}`, `{"a":{}}`}, []string{`{"a":1}`, `{"a":{"a":{}}}`, `{"a":{"b":1}}`}},
		{"$recursiveRef in a list", `{"$schema":"https://json-schema.org/draft/2019-09/schema","type":"object",
			"properties":{"a":{"anyOf":[{"$recursiveRef":"#"},{"type":"null"}]}},"additionalProperties":false}`,
			[]string{`{}`, `{"a":null}`, `{"a":{"a":{}}}`}, []string{`{"a":1}`, `{"a":{"b":1}}`}},
		{"null for none", `{"type":"string","allOf":null,"anyOf":null,"oneOf":null,"not":null}`, []string{`"a"`}, []string{`1`}},
		{"format", `{"type":"string","format":"date"}`, []string{`"2024-02-29"`}, []string{`"2023-02-29"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			compiled, err := Compile(context.Background(), []byte(c.schema), Options{Strict: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !matches(t, compiled.Grammar, text) {
					t.Errorf("refuses %s", text)
				}
				if problems := compiled.Validate([]byte(text)); len(problems) > 0 {
					t.Errorf("%s is said to be wrong: %v", text, problems)
				}
			}
			for _, text := range c.no {
				if matches(t, compiled.Grammar, text) {
					t.Errorf("takes %s", text)
				}
			}
		})
	}
}
