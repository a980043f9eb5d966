package grammar

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

// Limits are those that the Builder was made with.
func (b *Builder) Limits() Limits { return b.limits }
