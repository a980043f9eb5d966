package schema

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// randomSchema writes schemas over all keywords, small enough that their values can be met by chance. Its keys and values come from small sets.
type randomSchema struct {
	*rand.Rand
	definitions int
}

func (r randomSchema) one(list ...string) string { return list[r.IntN(len(list))] }

func (r randomSchema) chance(n int) bool { return r.IntN(n) == 0 }

var (
	randomKeys     = []string{"a", "b", "c", "ab", "é"}
	randomPatterns = []string{"^a", "b$", "^[ab]+$", "a|c", "^.{2}$", "^(ab|c)*$", "[^a]", "^\\\\w+$", "^$", "\\\\d", "^a.*b$", "^\\\\p{L}*$", "^x?$"}
	randomFormats  = []string{"date", "ipv4", "uuid", "email", "ipv6", "time", "date-time", "duration", "hostname", "uri", "json-pointer", "nothing"}
)

func (r randomSchema) key() string { return randomKeys[r.IntN(len(randomKeys))] }

func (r randomSchema) number() string {
	return r.one("0", "1", "2", "3", "-1", "5", "10", "0.5", "1.5", "-2.25", "1e1", "100", "0.01", "-7")
}

// value is a value that schemas are likely to speak of.
func (r randomSchema) value(depth int) string {
	switch kind := r.IntN(8); {
	case kind == 0:
		return "null"
	case kind == 1:
		return r.one("true", "false")
	case kind <= 3:
		return r.one("0", "1", "2", "3", "4", "-1", "5", "6", "10", "0.5", "1.5", "-2.25", "12", "100")
	case kind <= 5 || depth == 0:
		return r.one(`"a"`, `"b"`, `"ab"`, `""`, `"c"`, `"aab"`, `"é"`, `"2024-02-29"`, `"1.2.3.4"`, `"1"`, `"xx"`)
	case kind == 6:
		items := make([]string, r.IntN(4))
		for i := range items {
			items[i] = r.value(depth - 1)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return r.object(r.IntN(4), func(string) string { return r.value(depth - 1) })
}

// object is an object of some of the keys.
func (r randomSchema) object(n int, each func(key string) string) string {
	keys := slices.Clone(randomKeys)
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var parts []string
	for _, key := range keys[:min(n, len(keys))] {
		parts = append(parts, fmt.Sprintf("%q:%s", key, each(key)))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func (r randomSchema) keys() string {
	keys := slices.Clone(randomKeys)
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return `["` + strings.Join(keys[:1+r.IntN(2)], `","`) + `"]`
}

func (r randomSchema) list(depth, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = r.schema(depth)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// document is a whole schema.
func (r randomSchema) document() string {
	r.definitions = r.IntN(3)
	text := r.schema(3)
	if text[0] != '{' {
		return text
	}
	definitions := make([]string, r.definitions)
	for i := range definitions {
		definitions[i] = fmt.Sprintf(`"d%d":%s`, i, r.schema(2))
	}
	if text != "{}" {
		text = "," + text[1:]
	} else {
		text = "}"
	}
	return `{"$defs":{` + strings.Join(definitions, ",") + "}" + text
}

func (r randomSchema) schema(depth int) string {
	if depth == 0 || r.chance(12) {
		return r.one("{}", "true", `{"type":"integer"}`, `{"type":"string"}`, `{"type":"boolean"}`, `{"const":1}`, `{"enum":["a","b",1]}`, `{"type":"null"}`,
			`{"type":"number"}`, `{"type":"object"}`, `{"type":"array"}`, "false")
	}
	var parts []string
	say := func(keyword, format string, args ...any) {
		for _, p := range parts {
			if strings.HasPrefix(p, `"`+keyword+`":`) {
				return
			}
		}
		parts = append(parts, fmt.Sprintf(`"%s":`+format, append([]any{keyword}, args...)...))
	}
	kind := r.one("object", "object", "array", "string", "number", "integer", "any")
	if kind != "any" && !r.chance(5) {
		say("type", "%q", kind)
	} else if r.chance(3) {
		say("type", `["%s","%s"]`, r.one("object", "string", "null"), r.one("array", "number", "boolean", "integer"))
	}
	for range 1 + r.IntN(3) {
		r.keyword(kind, depth, say)
	}
	if r.chance(3) {
		r.applicator(depth, say)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func (r randomSchema) keyword(kind string, depth int, say func(keyword, format string, args ...any)) {
	sub := func(string) string { return r.schema(depth - 1) }
	switch kind {
	case "string":
		switch r.IntN(6) {
		case 0, 1:
			say("pattern", `"%s"`, randomPatterns[r.IntN(len(randomPatterns))])
		case 2:
			say("minLength", "%d", r.IntN(4))
		case 3:
			say("maxLength", "%d", r.IntN(6))
		case 4:
			say("format", "%q", randomFormats[r.IntN(len(randomFormats))])
		case 5:
			say("enum", `["a","ab","b","xx",%s]`, r.one(`"c"`, `""`))
		}
	case "number", "integer":
		switch r.IntN(6) {
		case 0:
			say("minimum", "%s", r.number())
		case 1:
			say("maximum", "%s", r.number())
		case 2:
			say("exclusiveMinimum", "%s", r.number())
		case 3:
			say("exclusiveMaximum", "%s", r.number())
		case 4, 5:
			say("multipleOf", "%s", r.one("1", "2", "3", "0.5", "0.01", "7", "10", "2.5", "12", "13", "100"))
		}
	case "array":
		switch r.IntN(9) {
		case 0, 1:
			say("items", "%s", r.schema(depth-1))
		case 2:
			say("prefixItems", "%s", r.list(depth-1, 1+r.IntN(2)))
		case 3:
			say("minItems", "%d", r.IntN(4))
		case 4:
			say("maxItems", "%d", r.IntN(5))
		case 5:
			say("uniqueItems", "true")
			say("items", "%s", r.one(`{"enum":[1,2,"a",null]}`, `{"type":"boolean"}`, `{"type":["boolean","null"]}`, `{"type":"integer","minimum":0,"maximum":3}`))
		case 6:
			say("contains", "%s", r.schema(depth-1))
			if r.chance(2) {
				say("minContains", "%d", r.IntN(3))
			}
			if r.chance(2) {
				say("maxContains", "%d", 1+r.IntN(3))
			}
		case 7, 8:
			say("unevaluatedItems", "%s", r.one("false", r.schema(depth-1)))
		}
	case "object":
		switch r.IntN(14) {
		case 0, 1, 2:
			say("properties", "%s", r.object(1+r.IntN(3), sub))
		case 3:
			say("required", "%s", r.keys())
		case 4, 5:
			say("additionalProperties", "%s", r.one("false", r.schema(depth-1)))
		case 6:
			say("patternProperties", `{"%s":%s}`, randomPatterns[r.IntN(len(randomPatterns))], r.schema(depth-1))
		case 7:
			say("propertyNames", "%s", r.one(`{"maxLength":2}`, `{"pattern":"^[ac]"}`, `{"enum":["a","b","é"]}`, `{"minLength":1}`, r.schema(depth-1)))
		case 8:
			say("minProperties", "%d", r.IntN(3))
		case 9:
			say("maxProperties", "%d", r.IntN(4))
		case 10:
			say("dependentRequired", `{"%s":%s}`, r.key(), r.keys())
		case 11:
			say("dependentSchemas", `{"%s":%s}`, r.key(), r.schema(depth-1))
		case 12, 13:
			say("unevaluatedProperties", "%s", r.one("false", r.schema(depth-1)))
		}
	default:
		if r.chance(2) {
			r.applicator(depth, say)
			return
		}
		r.keyword(r.one("string", "number", "array", "object"), depth, say)
	}
}

func (r randomSchema) applicator(depth int, say func(keyword, format string, args ...any)) {
	switch r.IntN(9) {
	case 0:
		say("allOf", "%s", r.list(depth-1, 1+r.IntN(2)))
	case 1:
		say("anyOf", "%s", r.list(depth-1, 2+r.IntN(2)))
	case 2:
		say("oneOf", "%s", r.list(depth-1, 2+r.IntN(2)))
	case 3:
		say("not", "%s", r.schema(depth-1))
	case 4, 5:
		say("if", "%s", r.schema(depth-1))
		if !r.chance(4) {
			say("then", "%s", r.schema(depth-1))
		}
		if !r.chance(3) {
			say("else", "%s", r.schema(depth-1))
		}
	case 6:
		if r.definitions > 0 {
			say("$ref", `"#/$defs/d%d"`, r.IntN(r.definitions))
		}
	case 7:
		say("enum", "[%s,%s,%s]", r.value(1), r.value(1), r.value(2))
	case 8:
		say("const", "%s", r.value(2))
	}
}
