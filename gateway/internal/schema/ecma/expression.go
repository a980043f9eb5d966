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
	list := make([]grammar.Expr, 0, len(branches))
	for _, branch := range branches {
		parts := make([]grammar.Expr, 0, len(branch.body)+2)
		if !branch.start {
			parts = append(parts, b.AnyText())
		}
		for _, n := range branch.body {
			parts = append(parts, expression(b, n))
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
	list := make([]grammar.Expr, 0, len(branches))
	for _, branch := range branches {
		parts := make([]grammar.Expr, 0, len(branch.body))
		for _, n := range branch.body {
			parts = append(parts, expression(b, n))
		}
		list = append(list, b.Concat(parts...))
	}
	return b.Union(list...), nil
}

// expression goes down at most as deep as Parse lets groups nest.
func expression(b *grammar.Builder, n *node) grammar.Expr {
	switch n.operation {
	case opClass:
		ranges := make([]grammar.RuneRange, 0, len(n.ranges)/2)
		for i := 0; i < len(n.ranges); i += 2 {
			ranges = append(ranges, grammar.RuneRange{Lo: n.ranges[i], Hi: n.ranges[i+1]})
		}
		return b.Class(ranges...)
	case opConcat:
		return b.Concat(expressions(b, n.subs)...)
	case opAlternate:
		return b.Union(expressions(b, n.subs)...)
	case opRepeat:
		return b.Repeat(expression(b, n.subs[0]), n.min, n.max)
	case opGroup:
		return expression(b, n.subs[0])
	case opEmpty, opStart, opEnd, opBoundary, opLook, opBackreference: // of these only the empty text gets here
	}
	return b.Empty()
}

func expressions(b *grammar.Builder, list []*node) []grammar.Expr {
	out := make([]grammar.Expr, len(list))
	for i, n := range list {
		out[i] = expression(b, n)
	}
	return out
}
