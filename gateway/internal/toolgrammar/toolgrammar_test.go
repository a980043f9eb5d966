package toolgrammar

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

var weather = Tool{Name: "get_weather", Parameters: json.RawMessage(`{
	"type": "object",
	"properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "at": {"$ref": "#/$defs/point"}},
	"required": ["city", "days"], "additionalProperties": false,
	"$defs": {"point": {"type": "object", "properties": {"y": {"type": "number"}, "x": {"type": "number"}}, "required": ["y", "x"], "additionalProperties": false}}
}`)}

var clock = Tool{Name: "get_time"}

// accepted compiles a symbol and asks for texts.
func accepted(t *testing.T, b *grammar.Builder, root grammar.Symbol, err error, texts map[string]bool) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	g, err := b.Grammar(root)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range texts {
		if got, err := grammar.Matches(g, text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestCalls(t *testing.T) {
	const hermesWeather = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}\n</tool_call>"
	const hermesClock = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"
	const xmlWeather = "<tool_call>\n<function=get_weather>\n<parameter=city>\nUlm \"<b>\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
	const xmlAll = "<tool_call>\n<function=get_weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=at>\n{\"y\": 1, \"x\": 2.5}\n</parameter>\n</function>\n</tool_call>"
	for _, c := range []struct {
		name    string
		options Options
		texts   map[string]bool
	}{
		{"hermes", Options{Format: answer.Hermes, Arguments: true}, map[string]bool{
			hermesWeather: true, hermesClock: true, hermesWeather + "\n" + hermesClock: true, hermesWeather + hermesClock: false, "": false, "Well. " + hermesClock: false, hermesClock + " ": false,
			strings.Replace(hermesWeather, "3", "10", 1): false, strings.Replace(hermesWeather, "get_weather", "other", 1): false, strings.Replace(hermesWeather, `, "days": 3`, "", 1): false,
			strings.Replace(hermesWeather, `{"city"`, `{"z": 1, "city"`, 1): false,
		}},
		{"one call", Options{Format: answer.Hermes, Arguments: true, Single: true}, map[string]bool{hermesWeather: true, hermesWeather + "\n" + hermesClock: false}},
		{"any arguments", Options{Format: answer.Hermes}, map[string]bool{strings.Replace(hermesWeather, "3", "10", 1): true, strings.Replace(hermesWeather, `{"city": "Ulm", "days": 3}`, "[]", 1): false}},
		{"qwen3_xml", Options{Format: answer.Qwen3XML, Arguments: true}, map[string]bool{
			xmlWeather: true, xmlAll: true, xmlWeather + "\n" + xmlAll: true, strings.Replace(xmlWeather, "3\n", "0\n", 1): false, strings.Replace(xmlAll, "C\n", "K\n", 1): false,
			strings.Replace(xmlAll, "{\"y\": 1, \"x\": 2.5}", "{\"x\": 1, \"y\": 2.5}", 1): false, strings.Replace(xmlWeather, "Ulm", "a\n</parameter>\n", 1): false,
			"<tool_call>\n<function=get_time>\n</function>\n</tool_call>": true, "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>": false,
		}},
		{"llama3_json", Options{Format: answer.Llama3JSON, Arguments: true}, map[string]bool{
			`{"name": "get_weather", "parameters": {"city": "Ulm", "days": 3}}`: true, `{"name": "get_time", "parameters": {}}; {"name": "get_time", "parameters": {}}`: true,
			`{"name": "get_weather", "parameters": {"city": 1, "days": 3}}`: false, `<|python_tag|>{"name": "get_time", "parameters": {}}`: false,
		}},
		{"llama3_json with a tag", Options{Format: answer.Llama3JSON, Marked: true}, map[string]bool{`{"name": "get_time", "parameters": {}}`: false, `<|python_tag|>{"name": "get_time", "parameters": {}}`: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Tools = []Tool{weather, clock}
			b := grammar.NewBuilder(grammar.DefaultLimits())
			root, err := Calls(t.Context(), b, c.options)
			accepted(t, b, root, err, c.texts)
		})
	}
}

// TestTextParameters: texts without quotes are held to their schemas too.
func TestTextParameters(t *testing.T) {
	call := func(value string) string {
		return "<tool_call>\n<function=f>\n<parameter=a>\n" + value + "\n</parameter>\n</function>\n</tool_call>"
	}
	for schema, texts := range map[string]map[string]bool{
		`{"type": "string", "minLength": 3}`:                       {"abc": true, "\"a": false, "a\nb": true},
		`{"type": "string", "pattern": "^[a-c]+$"}`:                {"abc": true, "abd": false, `"abc"`: false},
		`{"type": ["string", "null"], "maxLength": 5}`:             {"null": true, "abc": true, "abcdefg": false},
		`{"type": "string", "format": "date"}`:                     {"2024-02-29": true, "2023-02-29": false},
		`{"anyOf": [{"type": "integer"}, {"enum": ["x", "y z"]}]}`: {"12": true, "y z": true, "z": false, "1.5": false},
	} {
		b := grammar.NewBuilder(grammar.DefaultLimits())
		root, err := Calls(t.Context(), b, Options{Format: answer.Qwen3XML, Arguments: true, Single: true, Tools: []Tool{
			{Name: "f", Strict: true, Parameters: json.RawMessage(`{"type": "object", "properties": {"a": ` + schema + `}, "required": ["a"], "additionalProperties": false}`)},
		}})
		want := map[string]bool{}
		for text, ok := range texts {
			want[call(text)] = ok
		}
		accepted(t, b, root, err, want)
	}
}

// TestCallsAreRead: what the grammar of a format lets through, its reader reads, with the arguments that were meant.
func TestCallsAreRead(t *testing.T) {
	for format, text := range map[answer.Format]string{
		answer.Hermes:     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\", \"days\": 3}}\n</tool_call>",
		answer.Qwen3XML:   "<tool_call>\n<function=get_weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
		answer.Llama3JSON: `{"name": "get_weather", "parameters": {"city": "Ulm", "days": 3}}`,
	} {
		b := grammar.NewBuilder(grammar.DefaultLimits())
		root, err := Calls(t.Context(), b, Options{Format: format, Tools: []Tool{weather}, Arguments: true})
		accepted(t, b, root, err, map[string]bool{text: true})
		r := answer.NewReader(answer.Options{Format: format, Tools: []answer.Tool{{Name: weather.Name, Parameters: weather.Parameters}}, ReadCalls: true})
		read := answer.Collect(append(r.Push(text, false), r.Finish(false)...))
		if len(read.Calls) != 1 || read.Calls[0].Name != "get_weather" || read.Content != nil {
			t.Fatalf("%s: %+v", format, read)
		}
		var arguments struct {
			City string
			Days int
		}
		if err := json.Unmarshal([]byte(read.Calls[0].Arguments), &arguments); err != nil || arguments.City != "Ulm" || arguments.Days != 3 {
			t.Errorf("%s: %q", format, read.Calls[0].Arguments)
		}
	}
}

// TestFree: text as the model likes, in which a call that has begun is held to its form.
func TestFree(t *testing.T) {
	const call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"
	b := grammar.NewBuilder(grammar.DefaultLimits())
	root, err := Free(t.Context(), b, Options{Format: answer.Hermes, Tools: []Tool{clock}})
	accepted(t, b, root, err, map[string]bool{"": true, "Hello <tool": true, "Well.\n" + call + "\nand\n" + call: true, "a <tool_call> b": false, call + "<tool_call>": false})
	b = grammar.NewBuilder(grammar.DefaultLimits())
	root, err = Free(t.Context(), b, Options{Format: answer.Hermes, Tools: []Tool{clock}, Single: true})
	accepted(t, b, root, err, map[string]bool{"": true, "Well.\n" + call: true, call + call: false, call + " x": false})
}

// TestRefusedTools: what a strict tool cannot be held to is refused by name; what is not strict is held to what is possible.
func TestRefusedTools(t *testing.T) {
	unlikely := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}`)
	for _, c := range []struct {
		name   string
		format answer.Format
		tool   Tool
		words  string
	}{
		{"a pattern that looks ahead", answer.Hermes, Tool{Name: "f", Parameters: unlikely, Strict: true}, "pattern"},
		{"a pattern of a text without quotes", answer.Qwen3XML, Tool{Name: "f", Parameters: unlikely, Strict: true}, "pattern"},
		{"no schema", answer.Hermes, Tool{Name: "f", Parameters: json.RawMessage(`{"type": "objekt"}`)}, "objekt"},
		{"an unknown format", "other", Tool{Name: "f"}, "other"},
	} {
		b := grammar.NewBuilder(grammar.DefaultLimits())
		_, err := Calls(t.Context(), b, Options{Format: c.format, Tools: []Tool{clock, c.tool}, Arguments: true})
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", c.name, err, c.words)
			continue
		}
		var wrong *ToolError
		var reason *schema.Error
		if c.format != "other" && (!errors.As(err, &wrong) || wrong.Tool != 1 || !errors.As(err, &reason)) {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
	b := grammar.NewBuilder(grammar.DefaultLimits())
	root, err := Calls(t.Context(), b, Options{Format: answer.Qwen3XML, Arguments: true, Tools: []Tool{{Name: "f", Parameters: json.RawMessage(`{"type": "object", "properties": {"a>": {}}, "required": ["a>"]}`)}}})
	if err == nil {
		_, err = b.Grammar(root)
	}
	if !errors.Is(err, grammar.ErrNoText) {
		t.Errorf("a name that must be there and cannot be written: %v", err)
	}
	b = grammar.NewBuilder(grammar.DefaultLimits())
	if _, err := Calls(t.Context(), b, Options{Format: answer.Hermes, Tools: []Tool{{Name: "f", Parameters: unlikely}}, Arguments: true}); err != nil {
		t.Errorf("not strict: %v", err)
	}
}

// TestFreeHoldsBareCalls: what a reader takes as a call without its tag is held to the schema too.
func TestFreeHoldsBareCalls(t *testing.T) {
	strict := Tool{Name: "f", Parameters: json.RawMessage(`{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}`), Strict: true}
	for format, texts := range map[answer.Format]map[string]bool{
		answer.Qwen3XML: {
			"Well.\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>": true, "Well.\n<function=f>\n<parameter=n>\nx\n</parameter>\n</function>\n</tool_call>": false,
			"<function=f>\n</function>\n</tool_call>": false, "A line with <function=f> in it": true, "": true, "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>": true,
		},
		answer.Llama3JSON: {
			`{"name": "f", "parameters": {"n": 3}}`: true, `{"name": "f", "parameters": {"n": "x"}}`: false, " \n{\"name\": \"f\", \"parameters\": {}}": false, `Write {"n": 3}.`: true, "": true,
			`Well. <|python_tag|>{"name": "f", "parameters": {"n": 3}}`: true, `<|python_tag|>{"name": "f", "parameters": {}}`: false,
		},
	} {
		for _, single := range []bool{false, true} {
			b := grammar.NewBuilder(grammar.DefaultLimits())
			root, err := Free(t.Context(), b, Options{Format: format, Tools: []Tool{strict}, Single: single})
			accepted(t, b, root, err, texts)
		}
	}
}

// TestRelaxedTools: what the arguments of a tool that is not strict are not held to is told.
func TestRelaxedTools(t *testing.T) {
	for _, c := range []struct {
		format           answer.Format
		parameters, want string
	}{
		{answer.Hermes, `{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}`, "f #/properties/a pattern"},
		{answer.Qwen3XML, `{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}`, "f #/properties/a pattern"},
		{answer.Hermes, `{"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}}`, ""},
	} {
		var got []string
		b := grammar.NewBuilder(grammar.DefaultLimits())
		_, err := Calls(t.Context(), b, Options{Format: c.format, Arguments: true, Tools: []Tool{{Name: "f", Parameters: json.RawMessage(c.parameters)}}, Relaxed: func(tool Tool, left []schema.Relaxed) {
			for _, r := range left {
				got = append(got, tool.Name+" "+r.String())
			}
		}})
		if err != nil || strings.Join(got, ", ") != c.want {
			t.Errorf("%s %s: %q, %v; want %q", c.format, c.parameters, got, err, c.want)
		}
	}
}

// TestClosed: an object that lists its properties and says nothing of others has no others, where its tool is not strict; every other schema stays what it is.
func TestClosed(t *testing.T) {
	const no = `,"additionalProperties":false}`
	for schema, want := range map[string]string{
		`{"type": "object", "properties": {"b": {}, "a": {"type": "integer"}}, "required": ["a"]}`: `{"type":"object","properties":{"b":{},"a":{"type":"integer"}},"required":["a"]` + no,
		`{"properties": {"a": {"type": "array", "items": {"properties": {"x": {}}}}}}`:             `{"properties":{"a":{"type":"array","items":{"properties":{"x":{}}` + no + `}}` + no,
		`{"properties": {"a": {}}, "additionalProperties": true}`:                                  `{"properties":{"a":{}},"additionalProperties":true}`,
		`{"properties": {"a": {}}, "required": ["b"]}`:                                             `{"properties":{"a":{}},"required":["b"]}`,
		`{"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}`:                          `{"properties":{"a":{}},"allOf":[{"properties":{"b":{}}}]}`,
		`{"properties": {}}`: `{"properties":{}}`,
		`{"type": "object"}`: `{"type":"object"}`,
		`true`:               `true`,
		`{"enum": [1.0]}`:    `{"enum":[1.0]}`,
		`{`:                  `{`,
	} {
		if got := string(closed([]byte(schema))); got != want {
			t.Errorf("%s becomes %s, want %s", schema, got, want)
		}
	}
	open := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "integer"}}}`)
	for strict, more := range map[bool]bool{true: true, false: false} {
		b := grammar.NewBuilder(grammar.DefaultLimits())
		root, err := Calls(t.Context(), b, Options{Format: answer.Hermes, Arguments: true, Single: true, Tools: []Tool{{Name: "f", Parameters: open, Strict: strict}}})
		accepted(t, b, root, err, map[string]bool{
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>":           true,
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"z\": 2}}\n</tool_call>": more,
		})
	}
}
