package grammar

import "slices"

// Ask says whether e is known to have no text, taking about that many steps at most to find out, and how many it took. Unlike IsNothing it never fails the
// Builder, and its steps do not count against Limits.Steps.
func (b *Builder) Ask(e Expr, most int) (nothing bool, steps int) {
	in, ok := b.operands(e)
	if !ok {
		return true, 0
	}
	x := in[0]
	if !b.terms.uncertain(x) {
		return x == 0, 0
	}
	d, x := b.terms.questioner(b.ctx, x, most)
	live := d.live(x)
	b.wanted()
	return !live && !d.exhausted(), d.steps
}

// Texts are the texts of e, where it is seen to be that few. Of an intersection one part must be few, from which the others take.
func (b *Builder) Texts(e Expr, most int) (texts []string, ok bool) {
	in, ok := b.operands(e)
	if !ok {
		return nil, false
	}
	t := b.terms
	if texts, ok = t.listed(in[0], most); ok || t.nodes[in[0]].kind != kindIntersect {
		return texts, ok
	}
	for _, x := range t.operands(t.nodes[in[0]]) {
		if texts, ok = t.listed(x, 8*most); !ok {
			continue
		}
		texts = slices.DeleteFunc(texts, func(text string) bool {
			in, err := b.Contains(e, text)
			return err != nil || !in
		})
		return texts, b.err == nil && len(texts) <= most
	}
	return nil, false
}

// listed are the texts of a term that is made of single ones, if it is that few.
func (t *terms) listed(x term, most int) (texts []string, ok bool) {
	list := []term{x}
	if n := t.nodes[x]; n.kind == kindUnion {
		list = t.operands(n)
	}
	for _, y := range list {
		switch n := t.nodes[y]; n.kind {
		case kindNothing:
		case kindEmpty:
			texts = append(texts, "")
		case kindLiteral:
			texts = append(texts, string(t.texts[n.a:n.a+n.b]))
		case kindWords:
			for _, w := range t.words[n.a][n.b:min(n.c, n.b+int32(most)+1)] {
				texts = append(texts, string(t.text(w)[n.d:]))
			}
		default:
			return nil, false
		}
		if len(texts) > most {
			return nil, false
		}
	}
	return texts, true
}

// Limits are those that the Builder was made with.
func (b *Builder) Limits() Limits { return b.limits }
