package schema

import (
	"context"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

func TestBlocks(t *testing.T) {
	blocks := Blocks{Open: "<parameter=", Middle: ">\n", Close: "\n</parameter>\n", Ends: []string{"</parameter>", "\n<parameter=", "\n</function>",
		"\n</tool_call>"}}
	block := func(name, value string) string { return "<parameter=" + name + ">\n" + value + "\n</parameter>\n" }
	for _, c := range []struct {
		name, schema string
		yes, no      []string
	}{
		{"in order", `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["c","f"]}},"required":["city"]}`,
			[]string{block("city", "New \"York\"\nline"), block("city", "x") + block("days", "3") + block("unit", "f"), block("city", "") + block("unit", "c")},
			[]string{"", block("days", "3"), block("days", "3") + block("city", "x"), block("city", "x") + block("unit", `"c"`), block("city", "x") +
				block("other", "y"), block("city", "a</parameter>b"), block("city", "x") + block("days", "3.5")}},
		{"json inside", `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}},"b":{"type":["string","null"]}}}`,
			[]string{"", block("a", `["x", "y"]`), block("b", "null"), block("b", "text")}, []string{block("a", `[x]`), block("b", "12"), block("b", `{"a":1}`)}},
		{"nothing listed", `{"type":"object"}`, []string{"", block("x", "1") + block("y", "text")}, []string{block("", "1"), block("a b", "1")}},
		{"no parameters", `{"type":"object","properties":{},"additionalProperties":false}`, []string{""}, []string{block("x", "1")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := grammar.NewBuilder(Limits())
			value, err := AddBlocks(context.Background(), b, []byte(c.schema), Options{Strict: true}, blocks)
			if err != nil {
				t.Fatal(err)
			}
			g, err := b.Grammar(value.Symbol)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !matches(t, g, text) {
					t.Errorf("refuses %q", text)
				}
			}
			for _, text := range c.no {
				if matches(t, g, text) {
					t.Errorf("takes %q", text)
				}
			}
		})
	}
}
