package answer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// written is a call as a model means it: names and values of the arguments in their order, strings or other JSON.
type written struct {
	name       string
	parameters []string
	values     []any
}

// object is the arguments as one JSON object.
func (w written) object(indent bool) string {
	parts := make([]string, len(w.parameters))
	for i, p := range w.parameters {
		parts[i] = text(p, false) + ": " + text(w.values[i], indent)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// text is a value as JSON, in which nothing is escaped that need not be.
func text(v any, indent bool) string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// tagged is a value where strings stand as they are.
func tagged(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return text(v, false)
}

// writers write calls as the templates of each format do.
var writers = map[Format]func(calls []written, indent bool) string{
	Hermes: func(calls []written, indent bool) string {
		var parts []string
		for _, c := range calls {
			parts = append(parts, fmt.Sprintf("<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", text(c.name, false), c.object(indent)))
		}
		return strings.Join(parts, "\n")
	},
	Qwen3XML: func(calls []written, _ bool) string {
		var parts []string
		for _, c := range calls {
			s := "<tool_call>\n<function=" + c.name + ">\n"
			for i, p := range c.parameters {
				s += "<parameter=" + p + ">\n" + tagged(c.values[i]) + "\n</parameter>\n"
			}
			parts = append(parts, s+"</function>\n</tool_call>")
		}
		return strings.Join(parts, "\n")
	},
	Llama3JSON: func(calls []written, indent bool) string {
		var parts []string
		for _, c := range calls {
			parts = append(parts, fmt.Sprintf("{\"name\": %s, \"parameters\": %s}", text(c.name, false), c.object(indent)))
		}
		return "<|python_tag|>" + strings.Join(parts, "; ")
	},
	GLM: func(calls []written, _ bool) string {
		s := ""
		for _, c := range calls {
			s += "<tool_call>" + c.name + "\n"
			for i, p := range c.parameters {
				s += "<arg_key>" + p + "</arg_key>\n<arg_value>" + tagged(c.values[i]) + "</arg_value>\n"
			}
			s += "</tool_call>"
		}
		return s
	},
	DSML: func(calls []written, _ bool) string {
		s := "<｜DSML｜function_calls>\n"
		for _, c := range calls {
			s += "<｜DSML｜invoke name=\"" + c.name + "\">\n"
			for i, p := range c.parameters {
				_, isString := c.values[i].(string)
				s += fmt.Sprintf("<｜DSML｜parameter name=\"%s\" string=\"%t\">%s</｜DSML｜parameter>\n", p, isString, tagged(c.values[i]))
			}
			s += "</｜DSML｜invoke>\n"
		}
		return s + "</｜DSML｜function_calls>"
	},
	Mistral: func(calls []written, indent bool) string {
		s := ""
		for _, c := range calls {
			s += "[TOOL_CALLS]" + c.name + "[ARGS]" + c.object(indent)
		}
		return s
	},
	KimiK2: func(calls []written, indent bool) string {
		s := "<|tool_calls_section_begin|>"
		for i, c := range calls {
			s += fmt.Sprintf("<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>%s<|tool_call_end|>", c.name, i, c.object(indent))
		}
		return s + "<|tool_calls_section_end|>"
	},
	DeepSeekV31: func(calls []written, indent bool) string {
		s := "<｜tool▁calls▁begin｜>"
		for i, c := range calls {
			if i%2 == 0 {
				s += "<｜tool▁call▁begin｜>" + c.name + "<｜tool▁sep｜>" + c.object(indent) + "<｜tool▁call▁end｜>"
			} else {
				s += "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + c.name + "\n```json\n" + c.object(indent) + "\n```<｜tool▁call▁end｜>"
			}
		}
		return s + "<｜tool▁calls▁end｜>"
	},
	NemotronList: func(calls []written, indent bool) string {
		var parts []string
		for _, c := range calls {
			parts = append(parts, fmt.Sprintf("{\"name\": %s, \"arguments\": %s}", text(c.name, false), c.object(indent)))
		}
		return "<TOOLCALL>[" + strings.Join(parts, ", ") + "]</TOOLCALL>"
	},
}

// scraps are what texts are made of: words, and everything that a reader looks at.
var scraps = []string{
	"a", "b ", "\n", "é", "漢", "🦀", "\"", "\\", "{", "}", "[", "]", ":", ",", "'", "<", ">", "/", "\t", "\r\n", "null", "0", "</", "<tool_call", "tool_call>", "<function", "parameter>", "</param",
	"<|python", "[TOOL", "<think", "```", "｜", "&lt;", "\u2028",
}

// markup are tags that may stand in JSON strings, but not in text or in values that are written as they are.
var markup = []string{"<tool_call>", "</tool_call>", "<function=f>", "</function>", "</parameter>", "<parameter=a>", "<|python_tag|>", "<TOOLCALL>", "</TOOLCALL>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_end|>", "<｜tool▁call▁end｜>", "</think>"}

// scribble makes a text of scraps.
func scribble(random *rand.Rand, from []string) string {
	for {
		var out strings.Builder
		for range random.IntN(8) {
			out.WriteString(from[random.IntN(len(from))])
		}
		if made := out.String(); len(from) > len(scraps) || !slices.ContainsFunc(markup, func(m string) bool { return strings.Contains(made, m) }) {
			return made
		}
	}
}

// meant makes a value.
func meant(random *rand.Rand, from []string, depth int) any {
	switch n := random.IntN(9); {
	case n == 0 && depth > 0:
		return []any{meant(random, from, depth-1), meant(random, from, depth-1)}
	case n == 1 && depth > 0:
		return map[string]any{scribble(random, from): meant(random, from, depth-1), "x": meant(random, from, depth-1)}
	case n == 2:
		return json.Number(fmt.Sprintf("%d.%d", random.IntN(2000)-1000, random.IntN(10)))
	case n == 3:
		return random.IntN(2) == 0
	case n == 4:
		return nil
	}
	return scribble(random, from)
}

// schemaFor describes the values, so that formats without types can write them.
func schemaFor(c written) Tool {
	properties := map[string]any{}
	for i, p := range c.parameters {
		var name string
		switch c.values[i].(type) {
		case string:
			name = "string"
		case json.Number:
			name = "number"
		case bool:
			name = "boolean"
		case nil:
			name = "null"
		case []any:
			name = "array"
		default:
			name = "object"
		}
		properties[p] = map[string]any{"type": name}
	}
	return Tool{c.name, json.RawMessage(text(map[string]any{"type": "object", "properties": properties}, false))}
}

// TestRoundTrip writes calls of all kinds as the formats do and reads them again.
func TestRoundTrip(t *testing.T) {
	for format, write := range writers {
		t.Run(string(format), func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 7))
			inStrings := scraps
			if !slices.Contains([]Format{Qwen3XML, GLM, DSML}, format) {
				inStrings = append(slices.Clone(scraps), markup...)
			}
			for range 1500 {
				var calls []written
				o := Options{Format: format, ReadCalls: true, Tags: knownTags[0], NewID: func() string { return "id" }}
				for i := range random.IntN(4) {
					c := written{name: fmt.Sprintf("tool_%d.x-%d", i, random.IntN(10))}
					for j := range random.IntN(4) {
						c.parameters, c.values = append(c.parameters, fmt.Sprintf("p%d", j)), append(c.values, meant(random, inStrings, 2))
					}
					calls, o.Tools = append(calls, c), append(o.Tools, schemaFor(c))
				}
				var parts []string
				thought, content := strings.Trim(scribble(random, scraps), whiteSpace), strings.Trim(scribble(random, scraps), whiteSpace)
				if strings.HasPrefix(content, "{") && format == Llama3JSON {
					content = "a" + content
				}
				if thought != "" {
					parts = append(parts, "<think>\n"+thought+"\n</think>\n\n")
				}
				if parts = append(parts, content); len(calls) > 0 {
					parts = append(parts, "\n"+write(calls, random.IntN(3) == 0))
				}
				input := strings.Join(parts, "")
				var pieces []string
				for rest := input; rest != ""; {
					n := 1 + random.IntN(min(len(rest), 9))
					pieces, rest = append(pieces, rest[:n]), rest[n:]
				}
				a := Collect(read(o, false, pieces...))
				if got := valueOf(a.Reasoning); got != thought {
					t.Fatalf("%q:\nreasoning %q, want %q", input, got, thought)
				}
				if got := valueOf(a.Content); got != content {
					t.Fatalf("%q:\ncontent %q, want %q", input, got, content)
				}
				if len(a.Calls) != len(calls) {
					t.Fatalf("%q:\ncalls %+v, want %+v", input, a.Calls, calls)
				}
				for i, c := range calls {
					if got := a.Calls[i]; got.Name != c.name || !got.Ended || text(value(got.Arguments), false) != text(value(c.object(false)), false) {
						t.Fatalf("%q:\ncall %+v, want %s(%s)", input, got, c.name, c.object(false))
					}
				}
			}
		})
	}
}

// valueOf is a text, or "".
func valueOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
