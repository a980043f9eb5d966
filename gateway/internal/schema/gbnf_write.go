package schema

import (
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// gbnfWriter makes symbols of rules. What is regular becomes one terminal.
type gbnfWriter struct {
	b     *grammar.Builder
	rules map[string]*gbnfRule
	queue []*gbnfRule
	depth int
}

// classify finds out whether a rule is regular: it and what it refers to do not come back to themselves.
func (w *gbnfWriter) classify(r *gbnfRule) bool {
	switch r.state {
	case gbnfRegular:
		return true
	case gbnfUnderWay, gbnfRecursive:
		return false
	}
	if w.depth++; w.depth > maxGrammarNesting {
		w.depth--
		return false // as a rule of its own it is right all the same
	}
	r.state = gbnfUnderWay
	regular := w.regular(r.body)
	w.depth--
	r.state = gbnfRecursive
	if regular {
		r.state = gbnfRegular
		r.expr = w.expression(r.body)
	}
	return regular
}

func (w *gbnfWriter) regular(n *gbnfNode) bool {
	switch n.kind {
	case gbnfToken:
		return false
	case gbnfReference:
		return w.classify(w.rules[n.text])
	case gbnfText, gbnfClass, gbnfSequence, gbnfAlternatives, gbnfRepeat, gbnfOther:
	}
	for _, sub := range n.subs {
		if !w.regular(sub) {
			return false
		}
	}
	return true
}

func (w *gbnfWriter) expression(n *gbnfNode) grammar.Expr {
	switch n.kind {
	case gbnfText:
		return w.b.Literal(n.text)
	case gbnfClass:
		class := w.b.Class(n.ranges...)
		if n.negated {
			return w.b.Intersect(w.b.AnyChar(), w.b.Not(class))
		}
		return class
	case gbnfReference:
		return w.rules[n.text].expr
	case gbnfRepeat:
		return w.b.Repeat(w.expression(n.subs[0]), n.low, n.high)
	case gbnfSequence, gbnfAlternatives, gbnfToken, gbnfOther:
	}
	list := make([]grammar.Expr, len(n.subs))
	for i, sub := range n.subs {
		list[i] = w.expression(sub)
	}
	if n.kind == gbnfAlternatives {
		return w.b.Union(list...)
	}
	return w.b.Concat(list...)
}

// rule is a reference to a rule, which is made later.
func (w *gbnfWriter) rule(r *gbnfRule) grammar.Symbol {
	if r.state == gbnfRegular {
		return w.b.Terminal(r.expr)
	}
	if !r.made {
		r.made, r.rule = true, w.b.NewRule(r.name)
		w.queue = append(w.queue, r)
	}
	return w.b.Ref(r.rule)
}

func (w *gbnfWriter) symbol(n *gbnfNode) grammar.Symbol {
	if n.kind != gbnfReference && w.known(n) {
		return w.b.Terminal(w.expression(n))
	}
	switch n.kind {
	case gbnfReference:
		return w.rule(w.rules[n.text])
	case gbnfToken:
		return w.b.Tag(n.text)
	case gbnfRepeat:
		return w.b.List(w.symbol(n.subs[0]), w.b.Seq(), n.low, n.high)
	case gbnfText, gbnfClass, gbnfOther, gbnfSequence, gbnfAlternatives:
	}
	list := make([]grammar.Symbol, len(n.subs))
	for i, sub := range n.subs {
		list[i] = w.symbol(sub)
	}
	if n.kind == gbnfAlternatives {
		return w.b.Choice(list...)
	}
	return w.b.Seq(list...)
}

// known tells whether a part of a rule is regular, as far as classify has found out.
func (w *gbnfWriter) known(n *gbnfNode) bool {
	if n.kind == gbnfToken || n.kind == gbnfReference && w.rules[n.text].state != gbnfRegular {
		return false
	}
	for _, sub := range n.subs {
		if !w.known(sub) {
			return false
		}
	}
	return true
}
