package grammar

import "slices"

// extract gives a table of roots and what they consist of alone, in the same order, and the numbers there of the terms here.
func (t *terms) extract(roots ...term) (*terms, map[term]term) {
	needed := make([]bool, len(t.nodes))
	var stack []term
	need := func(x term) {
		if !needed[x] {
			needed[x] = true
			stack = append(stack, x)
		}
	}
	for x := nothing; x < firstTerm; x++ {
		need(x)
	}
	for _, x := range roots {
		need(x)
	}
	for len(stack) > 0 {
		x := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		t.eachOperand(x, need)
	}
	count := 0
	for _, ok := range needed {
		if ok {
			count++
		}
	}
	out := newTerms()
	out.nodes = slices.Grow(out.nodes, count)
	at := make(map[term]term, count)
	for i, ok := range needed {
		if !ok {
			continue
		}
		x := term(i)
		if x < firstTerm {
			at[x] = x
			continue
		}
		n := t.nodes[x]
		var list []term
		switch n.kind {
		case kindClass:
			out.sets = append(out.sets, t.sets[n.a])
			n.a = int32(len(out.sets) - 1)
		case kindLiteral:
			from := int32(len(out.texts))
			out.texts = append(out.texts, t.texts[n.a:n.a+n.b]...)
			n.a = from
		case kindWords:
			set := make([]span, 0, n.c-n.b)
			for _, w := range t.words[n.a][n.b:n.c] {
				from := int32(len(out.texts))
				out.texts = append(out.texts, t.text(w)[n.d:]...)
				set = append(set, span{from, w.size - n.d})
			}
			out.words = append(out.words, set)
			n.a, n.b, n.c, n.d = int32(len(out.words)-1), 0, int32(len(set)), 0
		case kindUnion, kindIntersect:
			list = slices.Clone(t.operands(n))
			for i := range list {
				list[i] = at[list[i]]
			}
		case kindConcat:
			n.a, n.b = int32(at[term(n.a)]), int32(at[term(n.b)])
		case kindNot, kindRepeat, kindString, kindBody, kindEscape, kindHex:
			n.a = int32(at[term(n.a)])
		}
		at[x] = out.add(n, list)
	}
	out.setIndex = nil
	return out, at
}

// depth is how deep terms stand inside each other.
func (t *terms) depth() int {
	depths := make([]int, len(t.nodes))
	deepest := 0
	for x := range t.nodes {
		t.eachOperand(term(x), func(y term) { depths[x] = max(depths[x], depths[y]+1) })
		deepest = max(deepest, depths[x])
	}
	return deepest
}

// eachOperand calls f for the terms of which x consists.
func (t *terms) eachOperand(x term, f func(term)) {
	switch n := t.nodes[x]; n.kind {
	case kindConcat:
		f(term(n.a))
		f(term(n.b))
	case kindUnion, kindIntersect:
		for _, y := range t.operands(n) {
			f(y)
		}
	case kindNot, kindRepeat, kindString, kindBody, kindEscape, kindHex:
		f(term(n.a))
	}
}
