package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// side is one of the four products with a LoRA pair.
type side uint8

const (
	shrink         side = iota // A·x, times scale, rounded
	expand                     // B·inner
	expandBackward             // Bᵀ·dy, times scale
	shrinkBackward             // Aᵀ·dinner
)

// of is the matrix, how many experts have one of their own, its rows, and the factor and type that its product ends with.
func (s side) of(l LoRA) (m tensor.Matrix, experts, out int, factor float32, round tensor.DType) {
	switch s {
	case shrink:
		return l.A, l.ExpertsA, l.rank(), l.Scale, l.A.DType()
	case expand:
		return l.B, l.ExpertsB, l.Out, 0, 0
	case expandBackward:
		return l.B, l.ExpertsB, l.Out, l.Scale, tensor.Float32
	}
	return l.A, l.ExpertsA, l.rank(), 0, 0
}

// tokenGroups are the products of tokens with what all experts of a module have in common.
func (c *mixtureChunk) tokenGroups(module int, down bool, s side) []tensor.RowGroup {
	var groups []tensor.RowGroup
	for _, segment := range c.segments {
		l := segment.lora(module)
		if l.A == nil || !l.tokenwise(down) {
			continue
		}
		m, _, _, factor, round := s.of(l)
		groups = append(groups, tensor.RowGroup{From: segment.From, To: segment.To, Matrix: m, Factor: factor, Round: round})
	}
	return groups
}

// routedGroups are the products of rows with the matrices of their experts, of the adapters whose inner vectors are of tokens or of those whose are of rows.
func (c *mixtureChunk) routedGroups(module int, down, tokenwise bool, s side) []tensor.RoutedGroup {
	var groups []tensor.RoutedGroup
	for _, segment := range c.segments {
		l := segment.lora(module)
		if l.A == nil || l.tokenwise(down) != tokenwise {
			continue
		}
		m, experts, out, factor, round := s.of(l)
		groups = append(groups, tensor.RoutedGroup{From: segment.From, To: segment.To, Stack: tensor.NewStack(m, experts, out), Factor: factor, Round: round})
	}
	return groups
}

// unscaled are products that are not finished: their factors come behind sums.
func unscaled(groups []tensor.RoutedGroup) []tensor.RoutedGroup {
	for i := range groups {
		groups[i].Factor = 0
	}
	return groups
}

// unfinished are products over an axis that ranks share out: where there are ranks they give parts, which finish finishes when they are whole.
func (p *Pass) unfinished(groups []tensor.RoutedGroup) []tensor.RoutedGroup {
	if p.Comm == nil {
		return groups
	}
	return unscaled(groups)
}

// scaleTokens multiplies inner vectors of tokens, or gradients by them, by the scales of their adapters and rounds them as the side's product would have.
func (c *mixtureChunk) scaleTokens(p *Pass, module int, down bool, inner tensor.Tensor, s side) error {
	for _, segment := range c.segments {
		l := segment.lora(module)
		if l.A == nil || !l.tokenwise(down) {
			continue
		}
		_, _, _, factor, round := s.of(l)
		if err := p.Device.Scale(inner.Slice(segment.From, segment.To).Columns(0, l.rank()), factor, round); err != nil {
			return err
		}
	}
	return nil
}

// finish is scaleTokens of rows of slots that the ranks had parts of: of other adapters' rows they hold nothing.
func (c *mixtureChunk) finish(p *Pass, module int, down bool, rows tensor.Tensor, s side) error {
	mark := p.Temp.Mark()
	var scales tensor.Tensor                                                            // of slots
	if err := p.get(c.table.Tokens, slot{&scales, p.Temp, c.table.Slots}); err != nil { // measured without ranks as well
		return err
	}
	if p.Comm == nil {
		return p.Temp.Release(mark)
	}
	values, round := make([]float32, c.table.Rows()), tensor.Float32
	for _, segment := range c.segments {
		if l := segment.lora(module); l.A != nil && !l.tokenwise(down) {
			var factor float32
			_, _, _, factor, round = s.of(l) // the types of adapters are the model's
			for i := segment.From * c.table.Slots; i < segment.To*c.table.Slots; i++ {
				values[i] = factor
			}
		}
	}
	if err := p.Device.Upload(scales, values); err != nil {
		return err
	}
	if err := p.Device.Spread(rows, rows, scales, c.table, false); err != nil {
		return err
	}
	if round != tensor.Float32 {
		if err := p.Device.Scale(rows, 1, round); err != nil {
			return err
		}
	}
	return p.Temp.Release(mark)
}

// routed is Device.MatMulRouted in steps of some experts.
func (p *Pass) routed(table tensor.Table, products ...tensor.RoutedProduct) error {
	work := 0.0
	for _, r := range products {
		for _, g := range r.Groups {
			work += 2 * float64(g.To-g.From) * float64(table.Slots) * float64(g.Stack.Out) * float64(g.Stack.Matrix.In())
		}
	}
	return p.byExperts(table, work, func(table tensor.Table) error { return p.Device.MatMulRouted(table, products...) })
}

// outerRouted is Device.OuterRouted in steps of some experts.
func (p *Pass) outerRouted(table tensor.Table, products []tensor.RoutedOuter) error {
	work := 0.0
	for _, r := range products {
		work += 2 * float64(r.To-r.From) * float64(table.Slots) * float64(r.A.Cols) * float64(r.B.Cols)
	}
	return p.byExperts(table, work, func(table tensor.Table) error { return p.Device.OuterRouted(table, products...) })
}

// byExperts does what takes so much work for some experts after another. How many slots each has taken only the device knows: steps are equal if all have taken as many.
func (p *Pass) byExperts(table tensor.Table, work float64, do func(tensor.Table) error) error {
	size := p.piece(table.Experts, 1, work)
	if size >= table.Experts {
		if err := do(table); err != nil {
			return err
		}
		return p.did(work)
	}
	for from := 0; from < table.Experts; from += size {
		table.From, table.To = from, min(from+size, table.Experts)
		if err := do(table); err != nil {
			return err
		}
		if err := p.did(work * float64(table.To-from) / float64(table.Experts)); err != nil {
			return err
		}
	}
	return nil
}
