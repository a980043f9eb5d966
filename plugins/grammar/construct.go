package grammar

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// The constructors give terms a normal form, so that derivatives of a term are finitely many and mostly few. They never look further than at the operands:
// whether a term is nothing in a way that takes a search is asked in liveness.go.

// class is one code point of a set.
func (t *terms) class(set runes) term {
	if len(set) == 0 {
		return nothing
	}
	if t.setIndex == nil {
		t.setIndex = make(map[string]int32, len(t.sets))
		for i, s := range t.sets {
			t.setIndex[s.key()] = int32(i)
		}
	}
	key := set.key()
	i, ok := t.setIndex[key]
	if !ok {
		i = int32(len(t.sets))
		t.sets = append(t.sets, set)
		t.setIndex[key] = i
	}
	return t.add(node{kind: kindClass, a: i}, nil)
}

func (t *terms) set(x term) runes { return t.sets[t.nodes[x].a] }

// literal is exactly one text, which must be UTF-8.
func (t *terms) literal(text string) term {
	if text == "" {
		return empty
	}
	if x, ok := t.literals[text]; ok {
		return x
	}
	x := t.add(node{kind: kindLiteral, a: int32(len(t.texts)), b: int32(len(text))}, nil)
	t.texts = append(t.texts, text...)
	if t.literals == nil {
		t.literals = make(map[string]term)
	}
	t.literals[text] = x
	return x
}

// suffix is the literal texts[at : at+size].
func (t *terms) suffix(at, size int32) term {
	if size == 0 {
		return empty
	}
	return t.add(node{kind: kindLiteral, a: at, b: size}, nil)
}

func (t *terms) text(s span) []byte { return t.texts[s.at : s.at+s.size] }

// wordsBetween is the words of a set from lo up to hi, each without its first depth bytes.
func (t *terms) wordsBetween(set, lo, hi, depth int32) term {
	switch hi - lo {
	case 0:
		return nothing
	case 1:
		w := t.words[set][lo]
		return t.suffix(w.at+depth, w.size-depth)
	}
	n := node{kind: kindWords, a: set, b: lo, c: hi, d: depth}
	if t.words[set][lo].size == depth {
		n.flags = flagNullable
	}
	return t.add(n, nil)
}

// wordSet is the union of literals, none of them twice.
func (t *terms) wordSet(literals []term) term {
	set := make([]span, len(literals))
	for i, x := range literals {
		set[i] = span{t.nodes[x].a, t.nodes[x].b}
	}
	slices.SortFunc(set, func(a, b span) int { return bytes.Compare(t.text(a), t.text(b)) })
	set = slices.CompactFunc(set, func(a, b span) bool { return bytes.Equal(t.text(a), t.text(b)) })
	if len(set) == 1 {
		return t.suffix(set[0].at, set[0].size)
	}
	t.words = append(t.words, set)
	return t.wordsBetween(int32(len(t.words)-1), 0, int32(len(set)), 0)
}

func (t *terms) concat(a, b term) term {
	switch {
	case a == nothing || b == nothing:
		return nothing
	case a == empty:
		return b
	case b == empty:
		return a
	}
	if n := t.nodes[a]; n.kind == kindConcat {
		return t.concat(term(n.a), t.concat(term(n.b), b))
	}
	// e{m,n} e{p,q} = e{m+p,n+q}
	base, low, high := t.repetition(a)
	head, rest := b, empty
	if n := t.nodes[b]; n.kind == kindConcat {
		head, rest = term(n.a), term(n.b)
	}
	if other, low2, high2 := t.repetition(head); other == base && (t.nodes[a].kind == kindRepeat || t.nodes[head].kind == kindRepeat) {
		if sum, ok := addCounts(low, high, low2, high2); ok {
			return t.concat(t.repeat(base, sum[0], sum[1]), rest)
		}
	}
	x, y := t.nodes[a], t.nodes[b]
	return t.add(node{kind: kindConcat, flags: x.flags&y.flags&flagNullable | (x.flags|y.flags)&flagUncertain, a: int32(a), b: int32(b)}, nil)
}

// repetition sees any term as a repetition: what is none is its own, once.
func (t *terms) repetition(x term) (base term, low, high int32) {
	if n := t.nodes[x]; n.kind == kindRepeat {
		return term(n.a), n.b, n.c
	}
	return x, 1, 1
}

// countCap is above what a count of a term may be.
const countCap = 1 << 30

func addCounts(low, high, low2, high2 int32) ([2]int32, bool) {
	sum := [2]int32{low + low2, unbounded}
	if high >= 0 && high2 >= 0 {
		sum[1] = high + high2
	}
	return sum, sum[0] <= countCap && sum[1] <= countCap
}

// repeat is from low up to high times e, high < 0 for any number; low must not be above high.
func (t *terms) repeat(e term, low, high int32) term {
	switch {
	case high == 0 || e == empty:
		return empty
	case e == nothing:
		if low == 0 {
			return empty
		}
		return nothing
	case low == 1 && high == 1:
		return e
	}
	n := t.nodes[e]
	if n.flags&flagNullable != 0 {
		low = 0
	}
	if e == anyText {
		return anyText
	}
	// (e{p,q}){low,high} = e{p·low,q·high} where there is no gap between k and k+1 times.
	if n.kind == kindRepeat {
		p, q := int64(n.b), int64(n.c)
		if q < 0 {
			if p <= 1 && (low > 0 || p == 0) {
				return t.repeat(term(n.a), int32(p)*low, unbounded)
			}
			if p <= 1 && low == 0 {
				return t.repeat(term(n.a), 0, unbounded)
			}
		} else if k := int64(max(low, 1)); (k+1)*p <= k*q+1 && (low > 0 || p <= 1) {
			up := int64(unbounded)
			if high >= 0 {
				up = q * int64(high)
			}
			if p*int64(low) <= countCap && up <= countCap {
				return t.repeat(term(n.a), int32(p)*low, int32(up))
			}
		}
	}
	flags := n.flags & flagUncertain
	if low == 0 {
		flags |= flagNullable
	}
	return t.add(node{kind: kindRepeat, flags: flags, a: int32(e), b: low, c: high}, nil)
}

// flatten gathers the operands of nested nodes of one kind into scratch, sorted and each once.
func (t *terms) flatten(k kind, list []term) []term {
	out := t.scratch[:0]
	for _, x := range list {
		if n := t.nodes[x]; n.kind == k {
			out = append(out, t.operands(n)...)
		} else {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	t.scratch = out
	return out
}

func (t *terms) union2(a, b term) term {
	switch {
	case a == b || b == nothing:
		return a
	case a == nothing:
		return b
	}
	return t.union(a, b)
}

func (t *terms) union(list ...term) term {
	flat := slices.Clone(t.flatten(kindUnion, list))
	for {
		flat = slices.DeleteFunc(flat, func(x term) bool { return x == nothing })
		if slices.Contains(flat, anyText) {
			return anyText
		}
		merged, again := t.mergeUnion(flat)
		if !again {
			flat = merged
			break
		}
		flat = slices.Clone(t.flatten(kindUnion, merged))
	}
	switch len(flat) {
	case 0:
		return nothing
	case 1:
		return flat[0]
	}
	// The empty text says nothing beside something that has it.
	if flat[0] == empty && slices.ContainsFunc(flat[1:], t.nullable) {
		if flat = flat[1:]; len(flat) == 1 {
			return flat[0]
		}
	}
	n := node{kind: kindUnion}
	for _, x := range flat {
		if slices.Contains(flat, t.opposite(x)) {
			return anyText
		}
		n.flags |= t.nodes[x].flags & flagNullable
		n.flags |= t.nodes[x].flags & flagUncertain
	}
	return t.add(n, flat)
}

// opposite is the complement of a term where the table has it, else nothing.
func (t *terms) opposite(x term) term {
	if n := t.nodes[x]; n.kind == kindNot {
		return term(n.a)
	}
	return nothing
}

// mergeUnion joins operands of a union that are one term together. It says whether there were any.
func (t *terms) mergeUnion(list []term) (out []term, again bool) {
	if len(list) < 2 {
		return list, false
	}
	var classes, words int
	var wrapped [kinds]int
	for _, x := range list {
		switch n := t.nodes[x]; n.kind {
		case kindClass:
			classes++
		case kindLiteral:
			words++
		case kindString, kindBody, kindEscape:
			wrapped[n.kind]++
		}
	}
	if classes > 1 {
		var all []RuneRange
		list = slices.DeleteFunc(list, func(x term) bool {
			if t.nodes[x].kind != kindClass {
				return false
			}
			all = append(all, t.set(x)...)
			return true
		})
		return append(list, t.class(newRunes(all))), true
	}
	if words > 1 && t.building {
		var literals []term
		list = slices.DeleteFunc(list, func(x term) bool {
			if t.nodes[x].kind != kindLiteral {
				return false
			}
			literals = append(literals, x)
			return true
		})
		return append(list, t.wordSet(literals)), true
	}
	for _, k := range []kind{kindString, kindBody, kindEscape} {
		if wrapped[k] > 1 {
			return t.mergeWrapped(list, k, t.union), true
		}
	}
	return t.mergeCounts(list)
}

// mergeWrapped makes one operand of all that are of a kind by which the operator may be drawn inside.
func (t *terms) mergeWrapped(list []term, k kind, operator func(...term) term) []term {
	var inner []term
	rest := slices.DeleteFunc(list, func(x term) bool {
		if t.nodes[x].kind != k {
			return false
		}
		inner = append(inner, term(t.nodes[x].a))
		return true
	})
	return append(rest, t.wrap(k, operator(inner...)))
}

// counted is an operand of a union seen as a repetition and what follows it.
type counted struct {
	base, rest term
	low, high  int32
}

// mergeCounts joins e{m,n} x and e{p,q} x where the counts are one range together. Such pairs arise whenever a counted repetition may begin at several
// places.
func (t *terms) mergeCounts(list []term) ([]term, bool) {
	var parts []counted
	for _, x := range list {
		head, rest := x, empty
		if n := t.nodes[x]; n.kind == kindConcat {
			head, rest = term(n.a), term(n.b)
		}
		if n := t.nodes[head]; n.kind == kindRepeat {
			parts = append(parts, counted{term(n.a), rest, n.b, n.c})
		}
	}
	if len(parts) < 2 {
		return list, false
	}
	slices.SortFunc(parts, func(a, b counted) int {
		return cmp.Or(cmp.Compare(a.base, b.base), cmp.Compare(a.rest, b.rest), cmp.Compare(a.low, b.low))
	})
	joined := parts[:1]
	for _, p := range parts[1:] {
		last := &joined[len(joined)-1]
		if p.base != last.base || p.rest != last.rest || last.high >= 0 && p.low > last.high+1 {
			joined = append(joined, p)
			continue
		}
		if last.high >= 0 && (p.high < 0 || p.high > last.high) {
			last.high = p.high
		}
	}
	if len(joined) == len(parts) {
		return list, false
	}
	out := slices.DeleteFunc(list, func(x term) bool {
		n := t.nodes[x]
		return n.kind == kindRepeat || n.kind == kindConcat && t.nodes[n.a].kind == kindRepeat
	})
	for _, p := range joined {
		out = append(out, t.concat(t.repeat(p.base, p.low, p.high), p.rest))
	}
	return out, true
}

func (t *terms) intersect(list ...term) term {
	flat := slices.Clone(t.flatten(kindIntersect, list))
	for {
		flat = slices.DeleteFunc(flat, func(x term) bool { return x == anyText })
		if slices.Contains(flat, nothing) {
			return nothing
		}
		if slices.Contains(flat, empty) {
			for _, x := range flat {
				if !t.nullable(x) {
					return nothing
				}
			}
			return empty
		}
		merged, again := t.mergeIntersect(flat)
		if !again {
			flat = merged
			break
		}
		flat = slices.Clone(t.flatten(kindIntersect, merged))
	}
	switch len(flat) {
	case 0:
		return anyText
	case 1:
		return flat[0]
	}
	n := node{kind: kindIntersect, flags: flagNullable | flagUncertain}
	for _, x := range flat {
		if o := t.opposite(x); o != nothing && slices.Contains(flat, o) {
			return nothing
		}
		n.flags &= t.nodes[x].flags | flagUncertain
	}
	return t.add(n, flat)
}

// mergeIntersect joins operands of an intersection that are one term together. It says whether there were any.
func (t *terms) mergeIntersect(list []term) ([]term, bool) {
	if len(list) < 2 {
		return list, false
	}
	classes := -1
	counts := -1
	var wrapped, opposed [kinds]int
	for i, x := range list {
		switch n := t.nodes[x]; n.kind {
		case kindClass:
			if classes >= 0 {
				both := t.class(t.set(list[classes]).intersect(t.set(x)))
				return append(slices.Delete(slices.Delete(slices.Clone(list), i, i+1), classes, classes+1), both), true
			}
			classes = i
		case kindRepeat:
			// c{m,n} and c{p,q} for one class c, whose texts have one length each.
			if t.nodes[n.a].kind != kindClass {
				continue
			}
			if counts >= 0 && t.nodes[list[counts]].a == n.a {
				o := t.nodes[list[counts]]
				low, high := max(n.b, o.b), n.c
				if high < 0 || o.c >= 0 && o.c < high {
					high = o.c
				}
				both := nothing
				if high < 0 || low <= high {
					both = t.repeat(term(n.a), low, high)
				}
				return append(slices.Delete(slices.Delete(slices.Clone(list), i, i+1), counts, counts+1), both), true
			}
			counts = i
		case kindString, kindBody, kindEscape:
			wrapped[n.kind]++
		case kindNot:
			opposed[t.nodes[n.a].kind]++
		}
	}
	for _, k := range []kind{kindString, kindBody, kindEscape} {
		if wrapped[k] > 1 {
			return t.mergeWrapped(list, k, t.intersect), true
		}
		// JSON strings with a value in a, and not those with one in b: those with one in a and not in b.
		if wrapped[k] == 1 && opposed[k] > 0 {
			out := slices.Clone(list)
			for i, x := range out {
				if n := t.nodes[x]; n.kind == kindNot && t.nodes[n.a].kind == k {
					out[i] = t.wrap(k, t.not(term(t.nodes[n.a].a)))
				}
			}
			return t.mergeWrapped(out, k, t.intersect), true
		}
	}
	return list, false
}

// not is every text that is not in x.
func (t *terms) not(x term) term {
	switch n := t.nodes[x]; {
	case x == nothing:
		return anyText
	case x == anyText:
		return nothing
	case n.kind == kindNot:
		return term(n.a)
	default:
		return t.add(node{kind: kindNot, flags: ^n.flags&flagNullable | flagUncertain, a: int32(x)}, nil)
	}
}

// wrap is the JSON literals with a value in e, or what is left of them where k says.
func (t *terms) wrap(k kind, e term) term {
	if e == nothing {
		return nothing
	}
	flags := t.nodes[e].flags & flagUncertain
	if k == kindEscape {
		flags = flagUncertain
	}
	return t.add(node{kind: k, flags: flags, a: int32(e)}, nil)
}

func (t *terms) hex(e term, place int32) term {
	if e == nothing {
		return nothing
	}
	return t.add(node{kind: kindHex, flags: flagUncertain, a: int32(e), b: place}, nil)
}

// key is a map key of a set.
func (s runes) key() string {
	var b strings.Builder
	b.Grow(8 * len(s))
	var buf [2 * utf8.UTFMax]byte
	for _, r := range s {
		for i, v := range [2]rune{r.Lo, r.Hi} {
			buf[4*i], buf[4*i+1], buf[4*i+2], buf[4*i+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
		}
		b.Write(buf[:])
	}
	return b.String()
}
