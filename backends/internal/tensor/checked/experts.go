package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// choice checks what a choice of experts is made of.
func (c *check) choice(choice, p, logits tensor.Tensor) {
	c.float("choice", choice)
	c.float("logits", logits)
	c.shaped("p", p, choice.Rows, choice.Cols)
	c.routes(choice.Cols, logits.Cols)
	if logits.Rows != choice.Rows {
		c.fail("logits have %d rows, choice %d", logits.Rows, choice.Rows)
	}
}

func (c *check) routes(slots, experts int) {
	if slots < 1 || slots > tensor.MaxSlots || experts > tensor.MaxExperts || slots > experts {
		c.fail("%d of %d experts: must be 1 to %d, of at most %d", slots, experts, tensor.MaxSlots, tensor.MaxExperts)
	}
}

func (d *device) Route(choice, p, logits tensor.Tensor, normalise bool) error {
	c := d.check("route")
	c.choice(choice, p, logits)
	if c.err != nil || choice.Empty() {
		return c.err
	}
	return d.kernels.Route(choice, p, logits, normalise)
}

func (d *device) RouteBackward(dlogits, dp, p, choice, logits tensor.Tensor, normalise bool) error {
	c := d.check("route backward")
	c.choice(choice, p, logits)
	c.shaped("dlogits", dlogits, logits.Rows, logits.Cols)
	c.shaped("dp", dp, choice.Rows, choice.Cols)
	if c.err != nil || choice.Empty() {
		return c.err
	}
	return d.kernels.RouteBackward(dlogits, dp, p, choice, logits, normalise)
}

// table checks the shape of a table: what is in it the device has written.
func (c *check) table(t tensor.Table) {
	c.routes(t.Slots, t.Experts)
	if from, to := t.Range(); from < 0 || from > to || to > t.Experts {
		c.fail("experts %d to %d of %d", from, to, t.Experts)
	}
	rows, ok := tensor.Product(t.Tokens, t.Slots)
	if !ok || rows > maxPosition {
		c.fail("%d tokens of %d slots: not a size that can be had", t.Tokens, t.Slots)
	}
	if c.err == nil {
		c.shaped("table", t.Words, 1, tensor.TableWords(t.Tokens, t.Slots, t.Experts))
	}
}

func (d *device) Dispatch(table tensor.Table, choice tensor.Tensor) error {
	c := d.check("dispatch")
	c.table(table)
	c.shaped("choice", choice, table.Tokens, table.Slots)
	if c.err != nil {
		return c.err
	}
	return d.kernels.Dispatch(table, choice)
}

func (d *device) MatMulRouted(table tensor.Table, products ...tensor.RoutedProduct) error {
	c := d.check("routed matmul")
	c.table(table)
	d.routed, d.routedGroups, d.ends = d.routed[:0], d.routedGroups[:0], d.ends[:0]
	for i, p := range products {
		d.routedProduct(&c, table, p)
		d.routedCut(&c, table, products[:i], p)
		if c.err != nil {
			return c.err
		}
		d.routed, d.ends = append(d.routed, p), append(d.ends, len(d.routedGroups))
	}
	with, from := d.routed[:0], 0 // those that have something to do
	for i, p := range d.routed {
		if p.Groups = d.routedGroups[from:d.ends[i]]; len(p.Groups) > 0 {
			with = append(with, p)
		}
		from = d.ends[i]
	}
	if c.err != nil || len(with) == 0 {
		return c.err
	}
	return d.kernels.MatMulRouted(table, with...)
}

// routedProduct checks one product and appends its groups, with kernels' matrices, to d.routedGroups.
func (d *device) routedProduct(c *check, table tensor.Table, p tensor.RoutedProduct) {
	rows := table.Rows()
	if p.Gathered {
		rows = table.Tokens
	}
	c.float("y", p.Y)
	c.view("x", p.X)
	if p.Y.Rows != table.Rows() || p.X.Rows != rows {
		c.fail("y has %d rows and x %d: must have %d and %d", p.Y.Rows, p.X.Rows, table.Rows(), rows)
	}
	d.take(table.Tokens)
	for i, g := range p.Groups {
		w := c.matrix(d, g.Stack.Matrix)
		if w == nil {
			return
		}
		out, in := g.Stack.Out, w.In()
		if p.Transposed {
			out, in = in, out
		}
		switch pitch := g.Stack.Pitch; {
		case g.From < 0 || g.From > g.To || g.To > table.Tokens:
			c.fail("groups[%d]: tokens %d to %d of %d", i, g.From, g.To, table.Tokens)
		case g.Stack.Out < 0 || pitch < 0 || pitch > 0 && (pitch%tensor.MatrixRows != 0 || pitch < g.Stack.Out || w.Out() < g.Stack.Out || (w.Out()-g.Stack.Out)/pitch < table.Experts-1) || pitch == 0 && g.Stack.Out != w.Out():
			c.fail("groups[%d]: a matrix of %d rows does not hold %d experts of %d, each %d behind the one before", i, w.Out(), table.Experts, g.Stack.Out, pitch)
		case out > p.Y.Cols || in > p.X.Cols:
			c.fail("groups[%d]: the matrices are %d × %d: y has %d columns, x %d", i, g.Stack.Out, w.In(), p.Y.Cols, p.X.Cols)
		case p.X.DType != tensor.Float32 && p.X.DType != w.DType():
			c.fail("groups[%d]: x is %v: must be float32 or the matrix's %v", i, p.X.DType, w.DType())
		case g.Factor != 0 && !validType(g.Round):
			c.fail("groups[%d]: rounds to %v: must be float32 or bfloat16", i, g.Round)
		}
		if c.err != nil {
			return
		}
		for token := g.From; token < g.To; token++ {
			if d.taken[token] {
				c.fail("groups[%d]: token %d is another group's as well", i, token)
				return
			}
			d.taken[token] = true
		}
		if g.From < g.To && out > 0 {
			g.Stack.Matrix = w
			d.routedGroups = append(d.routedGroups, g)
		}
	}
}

// routedCut checks what a product says of its inner axis. before are those before it.
func (d *device) routedCut(c *check, table tensor.Table, before []tensor.RoutedProduct, p tensor.RoutedProduct) {
	if c.err != nil || p.Segments.Count == 0 && !p.Continues {
		return
	}
	for _, g := range p.Groups {
		inner := g.Stack.Matrix.In()
		if p.Transposed {
			inner = g.Stack.Out
		}
		c.segments(d, p.Segments, inner)
	}
	if p.Accumulate && p.Segments.Count > 1 {
		c.fail("segments are not added to what the output holds")
	}
	if !p.Continues || c.err != nil {
		return
	}
	whole := func(p tensor.RoutedProduct) bool {
		return p.Transposed && len(p.Groups) == 1 && p.Groups[0].From == 0 && p.Groups[0].To == table.Tokens && p.Groups[0].Factor == 0
	}
	if len(before) == 0 {
		c.fail("a product continues none")
		return
	}
	a := before[len(before)-1]
	if !whole(a) || !whole(p) || a.Y != p.Y || a.Segments.Count != p.Segments.Count {
		c.fail("a product continues another one that is not like it")
		return
	}
	if one, other := a.Groups[0].Stack.Matrix, p.Groups[0].Stack.Matrix; one.DType() != other.DType() || one.In() != other.In() {
		c.fail("a product continues another one that is not like it")
	}
}

func (d *device) OuterRouted(table tensor.Table, products ...tensor.RoutedOuter) error {
	c := d.check("routed outer products")
	c.table(table)
	for i, p := range products {
		c.shaped("a", p.A, table.Rows(), p.A.Cols)
		c.shaped("b", p.B, table.Rows(), p.B.Cols)
		rows, ok := tensor.Product(table.Experts, p.A.Cols)
		if !ok {
			c.fail("%d experts of %d rows: not a size that can be had", table.Experts, p.A.Cols)
		}
		c.shaped("g", p.G, rows, p.B.Cols)
		if p.From < 0 || p.From > p.To || p.To > table.Tokens {
			c.fail("tokens %d to %d of %d", p.From, p.To, table.Tokens)
		}
		for _, before := range products[:i] {
			if !p.G.Empty() && p.G.Buffer == before.G.Buffer && p.G.Offset == before.G.Offset {
				c.fail("two products add to one g")
			}
		}
	}
	if c.err != nil || len(products) == 0 {
		return c.err
	}
	return d.kernels.OuterRouted(table, products...)
}

// slots checks the factors of slots, which there may be none of.
func (c *check) slots(p tensor.Tensor, table tensor.Table) {
	if p.Buffer != nil {
		c.shaped("p", p, table.Tokens, table.Slots)
	}
}

func (d *device) Spread(rows, x, p tensor.Tensor, table tensor.Table, gathered bool) error {
	c := d.check("spread")
	c.table(table)
	c.shaped("rows", rows, table.Rows(), x.Cols)
	if gathered {
		c.shaped("x", x, table.Tokens, x.Cols)
	} else {
		c.shaped("x", x, table.Rows(), x.Cols)
	}
	c.slots(p, table)
	if c.err != nil || rows.Empty() {
		return c.err
	}
	return d.kernels.Spread(rows, x, p, table, gathered)
}

func (d *device) Combine(y, rows, p tensor.Tensor, table tensor.Table, accumulate bool) error {
	c := d.check("combine")
	c.table(table)
	c.shaped("y", y, table.Tokens, y.Cols)
	c.shaped("rows", rows, table.Rows(), y.Cols)
	c.slots(p, table)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.Combine(y, rows, p, table, accumulate)
}

func (d *device) CombineBackward(dp, drows, h, p tensor.Tensor, table tensor.Table, segments tensor.Segments) error {
	c := d.check("combine backward")
	c.table(table)
	c.shaped("dp", dp, table.Tokens, table.Slots)
	c.shaped("p", p, table.Tokens, table.Slots)
	c.shaped("drows", drows, table.Rows(), h.Cols)
	c.shaped("h", h, table.Rows(), h.Cols)
	if segments.Count != 0 {
		c.segments(d, segments, h.Cols)
	}
	if c.err != nil || dp.Empty() {
		return c.err
	}
	return d.kernels.CombineBackward(dp, drows, h, p, table, segments)
}
