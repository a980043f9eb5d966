package ecma

import (
	"errors"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Expression is the texts that the pattern matches somewhere in, as an expression of b. A pattern that is not regular is an error that names why.
func (p *Pattern) Expression(b *grammar.Builder) (grammar.Expr, error) {
	if p.unfit != "" {
		return b.Nothing(), errors.New(p.unfit)
	}
	branches, err := p.branches()
	if err != nil {
		return b.Nothing(), err
	}
	m := expressionMaker{b: b}
	list := make([]grammar.Expr, 0, len(branches))
	for _, branch := range branches {
		parts := make([]grammar.Expr, 0, len(branch.body)+2)
		if !branch.start {
			parts = append(parts, b.AnyText())
		}
		for _, n := range branch.body {
			parts = append(parts, m.expression(n))
		}
		if !branch.end {
			parts = append(parts, b.AnyText())
		}
		list = append(list, b.Concat(parts...))
	}
	return b.Union(list...), nil
}

// WholeExpression is the texts that the pattern matches from their start to their end, whatever anchors it has at its own ends.
func (p *Pattern) WholeExpression(b *grammar.Builder) (grammar.Expr, error) {
	if p.unfit != "" {
		return b.Nothing(), errors.New(p.unfit)
	}
	branches, err := p.branches()
	if err != nil {
		return b.Nothing(), err
	}
	m := expressionMaker{b: b}
	list := make([]grammar.Expr, 0, len(branches))
	for _, branch := range branches {
		parts := make([]grammar.Expr, 0, len(branch.body))
		for _, n := range branch.body {
			parts = append(parts, m.expression(n))
		}
		list = append(list, b.Concat(parts...))
	}
	return b.Union(list...), nil
}

// expressionMaker makes expressions of the parts of one pattern.
type expressionMaker struct {
	b       *grammar.Builder
	classes map[*rune]grammar.Expr // of the classes with many ranges, by where those are: places with the same property share them
}

// manyRanges is from how many ranges on a class is remembered.
const manyRanges = 16

// expression goes down at most as deep as Parse lets groups nest.
func (m *expressionMaker) expression(n *node) grammar.Expr {
	b := m.b
	switch n.operation {
	case opClass:
		return m.class(n.ranges)
	case opConcat:
		return b.Concat(m.expressions(n.subs)...)
	case opAlternate:
		return b.Union(m.expressions(n.subs)...)
	case opRepeat:
		return b.Repeat(m.expression(n.subs[0]), n.min, n.max)
	case opGroup:
		return m.expression(n.subs[0])
	case opEmpty, opStart, opEnd, opBoundary, opLook, opBackreference: // of these only the empty text gets here
	}
	return b.Empty()
}

func (m *expressionMaker) class(ranges []rune) grammar.Expr {
	many := len(ranges) >= 2*manyRanges
	if many {
		if e, ok := m.classes[&ranges[0]]; ok {
			return e
		}
	}
	list := make([]grammar.RuneRange, 0, len(ranges)/2)
	for i := 0; i < len(ranges); i += 2 {
		list = append(list, grammar.RuneRange{Lo: ranges[i], Hi: ranges[i+1]})
	}
	e := m.b.Class(list...)
	if many {
		if m.classes == nil {
			m.classes = map[*rune]grammar.Expr{}
		}
		m.classes[&ranges[0]] = e
	}
	return e
}

func (m *expressionMaker) expressions(list []*node) []grammar.Expr {
	out := make([]grammar.Expr, len(list))
	for i, n := range list {
		out[i] = m.expression(n)
	}
	return out
}
