package grammar

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Builder makes one grammar. Its methods never fail by themselves: after the first thing that is wrong (a limit met, an operand of another Builder, a text
// that is not UTF-8) they give Nothing, and Err and Grammar say what it was. A Builder is for one goroutine.
//
// The same calls in the same order give the same grammar, to the byte.
type Builder struct {
	limits  Limits
	terms   *terms
	symbols symbolTable
	steps   int // derivatives taken so far
	text    int // bytes of literals and classes
	err     error
	asked   map[Expr]question // what Contains was asked about
	ctx     context.Context   // of Within
}

// question is an expression in a deriver of its own.
type question struct {
	deriver *deriver
	x       term
}

// maxAsked is about how many expressions a Builder keeps what it found out for Contains.
const maxAsked = 64

// NewBuilder gives a Builder of nothing yet.
func NewBuilder(limits Limits) *Builder {
	t := newTerms()
	t.building = true
	return &Builder{limits: limits, terms: t, ctx: context.Background()}
}

// Within lets everything stop once ctx is done: Err and Grammar give its error then. What is made before does not depend on it.
func (b *Builder) Within(ctx context.Context) { b.ctx = ctx }

// wanted fails the Builder once its context is done.
func (b *Builder) wanted() bool {
	if err := b.ctx.Err(); err != nil {
		b.fail(err)
	}
	return b.err == nil
}

// Expr is a regular language: a set of texts, that is of sequences of Unicode code points, spelled in UTF-8. Surrogates are no code points. What is not UTF-8
// is in no Expr. An Expr belongs to the Builder that made it. Equal numbers are equal languages; the reverse does not hold.
type Expr int32

// Err is what went wrong first, or nil. It is a *LimitError where a limit was met.
func (b *Builder) Err() error { return b.err }

func (b *Builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// operands turns expressions into terms; ok is false once something has failed.
func (b *Builder) operands(list ...Expr) (out []term, ok bool) {
	if b.err == nil && len(b.terms.nodes) > b.limits.Expressions {
		b.fail(&LimitError{"expressions", len(b.terms.nodes), b.limits.Expressions})
	}
	if b.err != nil {
		return nil, false
	}
	out = make([]term, len(list))
	for i, e := range list {
		if e < 0 || int(e) >= len(b.terms.nodes) {
			b.fail(fmt.Errorf("expression %d is not of this builder, which has made %d", e, len(b.terms.nodes)))
			return nil, false
		}
		out[i] = term(e)
	}
	return out, true
}

func (b *Builder) spendText(bytes int) bool {
	if b.text += bytes; b.text > b.limits.Text {
		b.fail(&LimitError{"bytes of literals and classes", b.text, b.limits.Text})
	}
	return b.err == nil
}

// Nothing is the language without any text.
func (b *Builder) Nothing() Expr { return Expr(nothing) }

// Empty is the empty text alone.
func (b *Builder) Empty() Expr { return Expr(empty) }

// AnyChar is each text of one code point.
func (b *Builder) AnyChar() Expr { return Expr(anyChar) }

// AnyText is every text.
func (b *Builder) AnyText() Expr { return Expr(anyText) }

// Literal is one text, which must be UTF-8. A union of many literals is kept as a sorted list and costs what one of them costs.
func (b *Builder) Literal(text string) Expr {
	if _, ok := b.operands(); !ok || !b.spendText(len(text)) {
		return Expr(nothing)
	}
	if !utf8.ValidString(text) {
		b.fail(fmt.Errorf("literal %q is not UTF-8", text))
		return Expr(nothing)
	}
	return Expr(b.terms.literal(text))
}

// Class is one code point of any of the ranges. Ranges may overlap and stand in any order; what is above U+10FFFF or a surrogate does not count.
func (b *Builder) Class(ranges ...RuneRange) Expr {
	if _, ok := b.operands(); !ok || !b.spendText(8*len(ranges)) {
		return Expr(nothing)
	}
	return Expr(b.terms.class(newRunes(ranges)))
}

// Concat is the texts that consist of one text of each, in order. Of none it is Empty.
func (b *Builder) Concat(list ...Expr) Expr {
	in, ok := b.operands(list...)
	if !ok {
		return Expr(nothing)
	}
	out := empty
	for i := len(in) - 1; i >= 0; i-- {
		out = b.terms.concat(in[i], out)
	}
	return Expr(out)
}

// Union is the texts that are in at least one. Of none it is Nothing.
func (b *Builder) Union(list ...Expr) Expr {
	in, ok := b.operands(list...)
	if !ok {
		return Expr(nothing)
	}
	return Expr(b.terms.union(in...))
}

// Intersect is the texts that are in all. Of none it is AnyText.
func (b *Builder) Intersect(list ...Expr) Expr {
	in, ok := b.operands(list...)
	if !ok {
		return Expr(nothing)
	}
	return Expr(b.terms.intersect(in...))
}

// Not is the texts that are not in e.
func (b *Builder) Not(e Expr) Expr {
	in, ok := b.operands(e)
	if !ok {
		return Expr(nothing)
	}
	return Expr(b.terms.not(in[0]))
}

// Difference is the texts of e that are not in other.
func (b *Builder) Difference(e, other Expr) Expr { return b.Intersect(e, b.Not(other)) }

// Repeat is from low up to high texts of e after another; high < 0 is any number from low on. It is kept as a counter: the price does not grow with the
// counts.
func (b *Builder) Repeat(e Expr, low, high int) Expr {
	in, ok := b.operands(e)
	if !ok || !b.checkCounts(low, high) {
		return Expr(nothing)
	}
	if high >= 0 && low > high {
		return Expr(nothing)
	}
	return Expr(b.terms.repeat(in[0], int32(low), int32(max(high, unbounded))))
}

func (b *Builder) checkCounts(low, high int) bool {
	if low < 0 {
		b.fail(fmt.Errorf("a repetition from %d times on: allowed is 0 and more", low))
	}
	if n := max(low, high); n > min(b.limits.Count, countCap) {
		b.fail(&LimitError{"repetitions", n, min(b.limits.Count, countCap)})
	}
	return b.err == nil
}

// JSONString is the texts of JSON strings, quotes included, whose value is in e. A character stands for itself where JSON allows it and has its short escape
// (\" \\ \/ \b \f \n \r \t) if there is one; \u00XX, with digits of either case, is only there for U+0000 to U+001F and U+007F. Union, Intersect, Difference
// and JSONString may change places: the language is the same.
func (b *Builder) JSONString(e Expr) Expr {
	in, ok := b.operands(e)
	if !ok {
		return Expr(nothing)
	}
	return Expr(b.terms.wrap(kindString, in[0]))
}

// IsNothing says whether e has no text. The error is Err's; a search that meets Limits.Steps fails the Builder.
func (b *Builder) IsNothing(e Expr) (bool, error) {
	in, ok := b.operands(e)
	if !ok {
		return true, b.err
	}
	x := in[0]
	if x == nothing || !b.terms.uncertain(x) {
		return x == nothing, nil
	}
	d, x := b.terms.questioner(b.ctx, x, b.limits.Steps-b.steps)
	live := d.live(x)
	b.steps += d.steps
	if !b.wanted() {
		return true, b.err
	}
	if d.exhausted() {
		b.fail(&LimitError{"steps to find whether expressions are empty", b.steps, b.limits.Steps})
		return true, b.err
	}
	return !live, nil
}

// Disjoint says whether no text is in both.
func (b *Builder) Disjoint(e, other Expr) (bool, error) {
	return b.IsNothing(b.Intersect(e, other))
}

// Subset says whether every text of e is in other too.
func (b *Builder) Subset(e, other Expr) (bool, error) {
	return b.IsNothing(b.Difference(e, other))
}

// Contains says whether text is in e.
func (b *Builder) Contains(e Expr, text string) (bool, error) {
	in, ok := b.operands(e)
	if !ok {
		return false, b.err
	}
	if !utf8.ValidString(text) {
		return false, nil
	}
	asked, ok := b.asked[e]
	if !ok {
		if asked.deriver, asked.x = b.terms.questioner(b.ctx, in[0], 0); len(b.asked) < maxAsked {
			if b.asked == nil {
				b.asked = map[Expr]question{}
			}
			b.asked[e] = asked
		}
		b.steps += asked.deriver.steps
	}
	d, x := asked.deriver, asked.x
	if d.steps = 0; d.limit >= 0 { // below, there are too many classes to take any step
		d.limit = max(b.limits.Steps-b.steps, 0)
	}
	for _, r := range text {
		if x = d.derive(x, d.part.classOf(r)); x == nothing {
			break
		}
	}
	b.steps += d.steps
	if d.exhausted() {
		b.fail(&LimitError{"steps to answer questions about expressions", b.steps, b.limits.Steps})
		return false, b.err
	}
	return d.terms.nullable(x), nil
}

// ErrNoText is what Grammar and Decode give for a grammar in which no finite text is.
var ErrNoText = errors.New("no text satisfies the grammar")
