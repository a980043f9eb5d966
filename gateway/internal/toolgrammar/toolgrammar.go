// Package toolgrammar says what tool calls look like that a model is held to: for each format in which models write them the grammar of its calls, with the arguments of each tool as its
// schema has them. What a call looks like to a reader is package answer's. It must not know HTTP, tokens or how a grammar is used.
package toolgrammar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Tool is a function that may be called.
type Tool struct {
	Name string
	// Parameters is the JSON schema of the arguments; nil: there are none.
	Parameters json.RawMessage
	// Strict: everything in the schema is to be held to, else the tool is refused. Other tools' arguments are held to what a grammar can, if Arguments says so.
	Strict bool
}

// Options say what calls there are.
type Options struct {
	Format answer.Format
	Tools  []Tool
	// Arguments holds the arguments of all tools to their schemas, not only those of strict ones.
	Arguments bool
	// Single is one call and no more.
	Single bool
	// Marked: a call must begin with a tag, where the format has calls without one too: the answer may be something else.
	Marked bool
	// Bare is the opposite: the tag that calls begin with is missing.
	Bare bool
	// Coarse is schema.Options'.
	Coarse bool
	// Relaxed, if it is not nil, is told what of a tool's schema its arguments are not held to.
	Relaxed func(tool Tool, left []schema.Relaxed)
}

// ToolError is what is wrong with the schema of a tool.
type ToolError struct {
	Tool int // its place in Options.Tools
	Err  error
}

// Error implements error.
func (e *ToolError) Error() string { return fmt.Sprintf("tool %d: %v", e.Tool, e.Err) }

// Unwrap gives the schema's error.
func (e *ToolError) Unwrap() error { return e.Err }

// ErrNoForm says that the calls of a format cannot be forced.
var ErrNoForm = errors.New("no grammar for the calls of this format")

// form is how a format writes calls.
type form struct {
	// opening is the tag that a call begins with, "" where it has none.
	opening string
	// between stands between two calls.
	between string
	// call is one call of a tool.
	call func(m *maker, t Tool) (grammar.Symbol, error)
	// bare says that calls are read without the opening tag too, and what text must not hold then: they are part of what is held.
	bare func(b *grammar.Builder) grammar.Expr
}

var forms = map[answer.Format]form{
	answer.Hermes:     {opening: "<tool_call>", between: "\n", call: hermesCall},
	answer.Qwen3XML:   {opening: "<tool_call>", between: "\n", call: xmlCall, bare: xmlBare},
	answer.Llama3JSON: {opening: "<|python_tag|>", between: "; ", call: llamaCall, bare: llamaBare},
}

// Opening is the tag that calls of a format begin with, "" where there is none.
func Opening(f answer.Format) string { return forms[f].opening }

// maker makes the calls of one request.
type maker struct {
	ctx context.Context
	b   *grammar.Builder
	o   Options
}

// Calls is the text of one call or more.
func Calls(ctx context.Context, b *grammar.Builder, o Options) (grammar.Symbol, error) {
	f, ok := forms[o.Format]
	if !ok {
		return 0, fmt.Errorf("%s: %w", o.Format, ErrNoForm)
	}
	m := &maker{ctx, b, o}
	calls := make([]grammar.Symbol, len(o.Tools))
	for i, t := range o.Tools {
		call, err := f.call(m, t)
		if err != nil {
			return 0, &ToolError{i, err}
		}
		calls[i] = call
	}
	call := b.Choice(calls...)
	if o.Single {
		return call, nil
	}
	return b.List(call, b.Text(f.between), 1, -1), nil
}

// Free is text with calls in it, as the model likes: what is no call is held to nothing but that no call begins in it.
func Free(ctx context.Context, b *grammar.Builder, o Options) (grammar.Symbol, error) {
	o.Marked = true
	f, ok := forms[o.Format]
	if !ok || f.opening == "" {
		return 0, fmt.Errorf("%s: %w", o.Format, ErrNoForm)
	}
	single := o.Single
	o.Single = true
	call, err := Calls(ctx, b, o)
	if err != nil {
		return 0, err
	}
	begun := b.Concat(b.AnyText(), b.Literal(f.opening), b.AnyText())
	text := b.Terminal(b.Not(begun))
	if f.bare == nil {
		return free(b, text, text, call, single), nil
	}
	o.Marked, o.Bare = false, true
	bare, err := Calls(ctx, b, o)
	if err != nil {
		return 0, err
	}
	if o.Format == answer.Llama3JSON { // only at the beginning of an answer
		first := b.Terminal(b.Not(b.Union(begun, f.bare(b))))
		return b.Choice(free(b, first, text, call, single), free(b, b.Seq(), text, bare, single)), nil
	}
	text = b.Terminal(b.Not(b.Union(begun, f.bare(b))))
	return free(b, text, text, b.Choice(call, bare), single), nil
}

// free is text with calls and further text behind them.
func free(b *grammar.Builder, first, text, call grammar.Symbol, single bool) grammar.Symbol {
	if single {
		return b.Choice(first, b.Seq(first, call))
	}
	return b.Seq(first, b.List(b.Seq(call, text), b.Seq(), 0, -1))
}

// llamaBare is a text that is read as a call: one that begins as an object.
func llamaBare(b *grammar.Builder) grammar.Expr {
	space := b.Union(b.Literal(" "), b.Literal("\t"), b.Literal("\n"), b.Literal("\r"), b.Literal("\v"), b.Literal("\f"))
	return b.Concat(b.Repeat(space, 0, -1), b.Literal("{"), b.AnyText())
}

// arguments are the JSON arguments of a tool.
func (m *maker) arguments(t Tool) (grammar.Symbol, error) {
	switch {
	case t.Parameters == nil:
		return m.b.Text("{}"), nil
	case !t.Strict && !m.o.Arguments:
		return schema.JSONObject(m.b), nil
	}
	parameters := []byte(t.Parameters)
	if !t.Strict {
		parameters = closed(parameters)
	}
	value, err := schema.Add(m.ctx, m.b, parameters, schema.Options{Strict: t.Strict, Coarse: m.o.Coarse && !t.Strict, Root: "object"})
	if err != nil {
		return 0, err
	}
	m.relaxed(t, value.Relaxed...)
	return value.Symbol, nil
}

// relaxed tells what of a tool's schema is not held to.
func (m *maker) relaxed(t Tool, left ...schema.Relaxed) {
	if m.o.Relaxed != nil && len(left) > 0 {
		m.o.Relaxed(t, left)
	}
}

// quoted is a name as JSON has it.
func quoted(name string) string {
	b, err := json.Marshal(name)
	if err != nil { // a string always can be
		return `""`
	}
	return string(b)
}

// hermesCall is <tool_call>, an object with name and arguments, </tool_call>, as templates print it.
func hermesCall(m *maker, t Tool) (grammar.Symbol, error) {
	arguments, err := m.arguments(t)
	if err != nil {
		return 0, err
	}
	b := m.b
	return b.Seq(b.Tag("<tool_call>"), b.Text("\n{\"name\": "+quoted(t.Name)+", \"arguments\": "), arguments, b.Text("}\n"), b.Tag("</tool_call>")), nil
}

// llamaCall is an object with name and parameters.
func llamaCall(m *maker, t Tool) (grammar.Symbol, error) {
	arguments, err := m.arguments(t)
	if err != nil {
		return 0, err
	}
	b := m.b
	call := b.Seq(b.Text("{\"name\": "+quoted(t.Name)+", \"parameters\": "), arguments, b.Text("}"))
	if m.o.Marked {
		return b.Seq(b.Tag("<|python_tag|>"), call), nil
	}
	return call, nil
}
