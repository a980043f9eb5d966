package toolgrammar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// xmlCall is a function with its parameters in tags, in the order of the schema. Values that may be strings are text without quotes, all others JSON.
func xmlCall(m *maker, t Tool) (grammar.Symbol, error) {
	b := m.b
	parameters, err := m.xmlParameters(t)
	if err != nil {
		return 0, err
	}
	return b.Seq(b.Tag("<tool_call>"), b.Text("\n<function="+t.Name+">\n"), parameters, b.Text("</function>\n"), b.Tag("</tool_call>")), nil
}

// xmlEnds are what ends a value for a reader.
var xmlEnds = []string{"</parameter>", "\n<parameter=", "\n</function>", "\n</tool_call>"}

// xmlText is any text that can be a value.
func (m *maker) xmlText() grammar.Expr {
	b := m.b
	ends := make([]grammar.Expr, len(xmlEnds))
	for i, end := range xmlEnds {
		ends[i] = b.Concat(b.AnyText(), b.Literal(end), b.AnyText())
	}
	return b.Not(b.Union(ends...))
}

// xmlBlock is one parameter.
func (m *maker) xmlBlock(name string, value grammar.Symbol) grammar.Symbol {
	b := m.b
	return b.Seq(b.Text("<parameter="+name+">\n"), value, b.Text("\n</parameter>\n"))
}

// xmlParameters are the parameters of a tool: those that must be there, and others or not.
func (m *maker) xmlParameters(t Tool) (grammar.Symbol, error) {
	b := m.b
	if t.Parameters == nil {
		return b.Seq(), nil
	}
	if !t.Strict && !m.o.Arguments {
		letters := b.Class(grammar.RuneRange{Lo: 'a', Hi: 'z'}, grammar.RuneRange{Lo: 'A', Hi: 'Z'}, grammar.RuneRange{Lo: '0', Hi: '9'}, grammar.RuneRange{Lo: '_', Hi: '_'}, grammar.RuneRange{Lo: '-', Hi: '.'})
		block := b.Seq(b.Text("<parameter="), b.Terminal(b.Repeat(letters, 1, 64)), b.Text(">\n"), b.Terminal(m.xmlText()), b.Text("\n</parameter>\n"))
		return b.List(block, b.Seq(), 0, 64), nil
	}
	root, err := jsonvalue.Read(t.Parameters, jsonvalue.Limits{Bytes: schema.MaxSchemaBytes, Depth: schema.MaxDepth})
	if err != nil {
		return 0, &schema.Error{Pointer: "#", Reason: err.Error()}
	}
	if err := m.xmlChecked(t, root); err != nil {
		return 0, err
	}
	required := map[string]bool{}
	if list := root.Get("required"); list != nil {
		for _, item := range list.Items {
			required[item.Text] = true
		}
	}
	var parts []grammar.Symbol
	if properties := root.Get("properties"); properties != nil {
		for _, p := range properties.Members {
			value, err := m.xmlValue(t, root, p)
			if err != nil {
				return 0, err
			}
			block := m.xmlBlock(p.Key, value)
			if !required[p.Key] {
				block = b.Optional(block)
			}
			parts = append(parts, block)
		}
	}
	return b.Seq(parts...), nil
}

// xmlKeywords are those of a schema of arguments that parameters in tags can be held to.
var xmlKeywords = []string{"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id", "title", "description", "default", "examples", "$comment", "strict"}

// xmlChecked refuses, for a strict tool, what parameters in tags are not held to. The schema as a whole is compiled, so that one that is wrong is refused as in any other format.
func (m *maker) xmlChecked(t Tool, root *jsonvalue.Value) error {
	if _, err := schema.Add(m.ctx, grammar.NewBuilder(m.b.Limits()), t.Parameters, schema.Options{Strict: t.Strict, Root: "object"}); err != nil {
		return err
	}
	if !t.Strict {
		return nil
	}
	for _, member := range root.Members {
		if !slices.Contains(xmlKeywords, member.Key) {
			return &schema.Error{Pointer: "#", Keyword: member.Key, Reason: "cannot be enforced on parameters in the format of this model", Relaxed: true}
		}
	}
	if required := root.Get("required"); required != nil {
		for _, item := range required.Items {
			if properties := root.Get("properties"); properties == nil || properties.Get(item.Text) == nil {
				return &schema.Error{Pointer: "#", Keyword: "required", Reason: fmt.Sprintf("%q is not among the properties", item.Text), Relaxed: true}
			}
		}
	}
	return nil
}

// xmlValue is the value of one parameter.
func (m *maker) xmlValue(t Tool, root *jsonvalue.Value, p jsonvalue.Member) (grammar.Symbol, error) {
	b := m.b
	if strings.ContainsAny(p.Key, "<>\n") {
		return 0, &schema.Error{Pointer: "#/properties", Keyword: p.Key, Reason: "a name with <, > or a newline cannot be written in the format of this model"}
	}
	text := answer.MayBeText(answer.Tool{Name: t.Name, Parameters: t.Parameters}, p.Key)
	if !text {
		return m.xmlJSON(root, p, t.Strict)
	}
	if words, ok := xmlWords(p.Value); ok {
		list := make([]grammar.Expr, len(words))
		for i, w := range words {
			list[i] = b.Literal(w)
		}
		return b.Terminal(b.Intersect(b.Union(list...), m.xmlText())), nil
	}
	if t.Strict {
		for _, member := range p.Value.Members {
			if !slices.Contains([]string{"type", "title", "description", "default", "examples", "$comment", "anyOf"}, member.Key) {
				return 0, &schema.Error{Pointer: "#/properties/" + p.Key, Keyword: member.Key, Reason: "cannot be enforced on a text in the format of this model", Relaxed: true}
			}
		}
	}
	return b.Terminal(m.xmlText()), nil
}

// xmlWords are the strings that a parameter may be, where its schema lists them.
func xmlWords(value *jsonvalue.Value) (words []string, ok bool) {
	list := []*jsonvalue.Value{value.Get("const")}
	if list[0] == nil {
		enum := value.Get("enum")
		if enum == nil {
			return nil, false
		}
		list = enum.Items
	}
	for _, item := range list {
		switch {
		case item.Kind == jsonvalue.String:
			words = append(words, item.Text)
		default:
			words = append(words, jsonvalue.Text(item))
		}
	}
	return words, true
}

// xmlJSON is a value as JSON. Its schema stands by itself, with the definitions that it may refer to.
func (m *maker) xmlJSON(root *jsonvalue.Value, p jsonvalue.Member, strict bool) (grammar.Symbol, error) {
	if p.Value.Kind != jsonvalue.Object { // true, false: as they are
		value, err := schema.Add(m.ctx, m.b, []byte(jsonvalue.Text(p.Value)), schema.Options{Strict: strict})
		if err != nil {
			return 0, err
		}
		return value.Symbol, nil
	}
	alone := &jsonvalue.Value{Kind: jsonvalue.Object, Members: slices.Clone(p.Value.Members)}
	for _, name := range []string{"$defs", "definitions", "$schema"} {
		if defs := root.Get(name); defs != nil && p.Value.Get(name) == nil {
			alone.Members = append(alone.Members, jsonvalue.Member{Key: name, Value: defs})
		}
	}
	text := []byte(jsonvalue.Text(alone))
	value, err := schema.Add(m.ctx, m.b, text, schema.Options{Strict: strict})
	if err != nil {
		return 0, err
	}
	return value.Symbol, nil
}
