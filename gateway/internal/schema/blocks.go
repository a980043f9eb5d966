package schema

import (
	"context"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Blocks is how a format writes the arguments of a call where each is a text of its own: Open, the name, Middle, the value, Close.
// A string is written as it is, without quotes; it must not have any of Ends in it, where a reader would take it to end.
type Blocks struct {
	Open, Middle, Close string
	Ends                []string
}

// AddBlocks makes the parameters of a tool a symbol of the caller's grammar, as blocks in the order of the schema. Values that are no strings are JSON texts.
// A name that the schema does not list can only occur where it lists none.
func AddBlocks(ctx context.Context, b *grammar.Builder, schema []byte, options Options, blocks Blocks) (*Value, error) {
	c, err := prepareSchema(ctx, b, schema, options)
	if err != nil {
		return nil, err
	}
	c.prepare()
	shape := c.restrict(c.shape(c.single(c.document.root)), only(jsonvalue.Object))
	w := &blockWriter{compiler: c, blocks: blocks, values: map[schemas]grammar.Symbol{}}
	form := objectForm{open: c.symbols.none, close: c.symbols.none, empty: c.symbols.none, member: w.member}
	var ways []grammar.Symbol
	for i := range shape.objects {
		set := shape.objects[i]
		if len(set.properties) > 0 {
			set.classes = nil
		}
		ways = append(ways, c.object(&set, form))
	}
	c.report(&shape)
	return c.value(b.Choice(ways...), options.Strict)
}

// blockWriter writes the members of one object as blocks.
type blockWriter struct {
	*compiler
	blocks Blocks
	values map[schemas]grammar.Symbol
}

func (w *blockWriter) member(keys grammar.Expr, _ bool, value schemas) grammar.Symbol {
	b := w.b
	name := b.Intersect(keys, b.Repeat(b.Intersect(b.AnyChar(), b.Not(b.Class(
		grammar.RuneRange{Lo: 0, Hi: ' '}, grammar.RuneRange{Lo: '<', Hi: '<'}, grammar.RuneRange{Lo: '>', Hi: '>'}))), 1, -1))
	return b.Seq(w.terminal(b.Concat(b.Literal(w.blocks.Open), name, b.Literal(w.blocks.Middle))), w.value(value), w.terminal(b.Literal(w.blocks.Close)))
}

// value is the texts of one value: strings bare, the others as JSON.
func (w *blockWriter) value(s schemas) grammar.Symbol {
	if known, ok := w.values[s]; ok {
		return known
	}
	b := w.b
	strings, others := b.Nothing(), []grammar.Symbol{}
	if values, ok := w.listed(s); ok {
		var texts, rest []grammar.Expr
		for _, v := range values {
			if v.Kind == jsonvalue.String {
				texts = append(texts, b.Literal(v.Text))
			} else {
				rest = append(rest, w.valueText(v))
			}
		}
		strings = b.Union(texts...)
		if len(rest) > 0 {
			others = append(others, w.terminal(b.Union(rest...)))
		}
	} else if !w.stopped() {
		shape := w.shape(s)
		strings = shape.strings
		if rest := w.restrict(shape, allKinds&^only(jsonvalue.String)); w.kinds(&rest) != 0 {
			others = append(others, w.symbol(w.and(s, w.notString())))
		}
		w.report(&shape)
	}
	if len(others) > 0 && strings != b.Nothing() {
		strings = b.Intersect(strings, b.Not(w.readAsJSON()))
	}
	for _, end := range w.blocks.Ends {
		strings = b.Intersect(strings, b.Not(b.Concat(b.AnyText(), b.Literal(end), b.AnyText())))
	}
	if strings != b.Nothing() {
		others = append(others, w.terminal(strings))
	}
	symbol := b.Choice(others...)
	w.values[s] = symbol
	return symbol
}

// notString is the schema of everything but strings.
func (w *blockWriter) notString() schemas {
	if w.noString == nil {
		w.noString = &node{id: w.nextID(), pointer: "#", value: &jsonvalue.Value{Kind: jsonvalue.Object}, types: allKinds &^ only(jsonvalue.String)}
		unset(w.noString)
	}
	return w.set([]literal{{schema: w.noString}})
}

// readAsJSON is the texts that a reader takes for other values than strings where both may stand.
func (w *blockWriter) readAsJSON() grammar.Expr {
	b := w.b
	space := b.Repeat(b.Class(grammar.RuneRange{Lo: ' ', Hi: ' '}, grammar.RuneRange{Lo: '\t', Hi: '\n'}, grammar.RuneRange{Lo: '\r', Hi: '\r'}), 0, -1)
	words := b.Union(b.Literal("null"), b.Literal("None"), b.Literal("true"), b.Literal("false"), b.Literal("True"), b.Literal("False"))
	open := b.Class(grammar.RuneRange{Lo: '{', Hi: '{'}, grammar.RuneRange{Lo: '[', Hi: '['}, grammar.RuneRange{Lo: '"', Hi: '"'})
	number := b.Concat(b.Class(grammar.RuneRange{Lo: '-', Hi: '-'}, grammar.RuneRange{Lo: '0', Hi: '9'}), b.AnyText())
	return b.Concat(space, b.Union(b.Concat(words, space), b.Concat(open, b.AnyText()), number))
}
