package toolgrammar

import (
	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// xmlBlocks is how a parameter is written: its value a text without quotes where it is a string, JSON where it is anything else. Ends are what ends a value for a reader.
var xmlBlocks = schema.Blocks{Open: "<parameter=", Middle: ">\n", Close: "\n</parameter>\n", Ends: []string{"</parameter>", "\n<parameter=", "\n</function>", "\n</tool_call>"}}

// xmlCall is a function with its parameters in tags, in the order of the schema.
func xmlCall(m *maker, t Tool) (grammar.Symbol, error) {
	b := m.b
	parameters, err := m.xmlParameters(t)
	if err != nil {
		return 0, err
	}
	opening := b.Seq(b.Tag("<tool_call>"), b.Text("\n<function="+t.Name+">\n"))
	if m.o.Bare {
		opening = b.Text("<function=" + t.Name + ">\n")
	}
	return b.Seq(opening, parameters, b.Text("</function>\n"), b.Tag("</tool_call>")), nil
}

// xmlBare is a text that is read as a call: one with a line that begins as a function.
func xmlBare(b *grammar.Builder) grammar.Expr {
	function := b.Concat(b.Literal("<function="), b.AnyText())
	return b.Union(function, b.Concat(b.AnyText(), b.Literal("\n"), function))
}

// xmlParameters are the parameters of a tool.
func (m *maker) xmlParameters(t Tool) (grammar.Symbol, error) {
	parameters := []byte(t.Parameters)
	switch {
	case parameters == nil:
		return m.b.Seq(), nil
	case !t.Strict && !m.o.Arguments:
		parameters = []byte("{}")
	case !t.Strict:
		parameters = closed(parameters)
	}
	value, err := schema.AddBlocks(m.ctx, m.b, parameters, schema.Options{Strict: t.Strict, Coarse: m.o.Coarse && !t.Strict, Root: "object"}, xmlBlocks)
	if err != nil {
		return 0, err
	}
	m.relaxed(t, value.Relaxed...)
	return value.Symbol, nil
}
