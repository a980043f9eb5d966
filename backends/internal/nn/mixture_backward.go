package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Backward implements Sublayer: through the experts, and through the probabilities that they are weighted by. The choice has no gradient. The gated product is computed again, not kept.
func (m *Mixture) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*mixtureActivations)
	for i := range a.chunks {
		c := &a.chunks[i]
		if err := m.backward(p, dh.Slice(c.from, c.to), dout.Slice(c.from, c.to), h.Slice(c.from, c.to), c, inputGradient); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mixture) backward(p *Pass, dh, dout, h tensor.Tensor, c *mixtureChunk, inputGradient bool) error {
	mark := p.Temp.Mark()
	var hidden, dhidden, dp tensor.Tensor
	if err := p.get(c.table.Rows(), slot{&hidden, p.Temp, c.gate.Cols}, slot{&dhidden, p.Temp, c.gate.Cols}); err != nil {
		return err
	}
	if err := p.get(c.table.Tokens, slot{&dp, p.Temp, m.Slots}); err != nil {
		return err
	}
	gate, err := p.readable(c.gate)
	if err != nil {
		return err
	}
	up, err := p.readable(c.up)
	if err != nil {
		return err
	}
	if err := m.gated(p, hidden, gate, up); err != nil {
		return err
	}
	if err := m.downBackward(p, dp, dhidden, hidden, dout, c); err != nil {
		return err
	}
	dgate, dup := hidden, dhidden // the product has been read
	if err := m.gatedBackward(p, dgate, dup, dhidden, gate, up); err != nil {
		return err
	}
	var rows tensor.Tensor // the gradient by what each slot read
	var sums []tensor.Tensor
	if inputGradient {
		if rows, err = p.Temp.Get(c.table.Rows(), dh.Cols); err != nil {
			return err
		}
		if err := m.widthBackward(p, rows, dgate, dup, c.table); err != nil {
			return err
		}
		sums = append(sums, dp, rows)
	}
	var inner [2]innerActivations // gradients by inner vectors of gate and up, of each slot
	layers := [2]struct {
		module int
		dy     tensor.Tensor
		a      *innerActivations
	}{{m.Gate.Module, dgate, &c.ga}, {m.Up.Module, dup, &c.ua}}
	for i, l := range layers {
		if inner[i], err = m.innerBackward(p, l.module, l.dy, l.a, c); err != nil {
			return err
		}
		for _, t := range []tensor.Tensor{inner[i].tokens, inner[i].rows} {
			if t.Buffer != nil {
				sums = append(sums, t)
			}
		}
	}
	if err := p.reduce(sums...); err != nil {
		return err
	}
	if inputGradient && m.Down.Bias.Buffer != nil { // which every rank has whole, so it counts behind the sum
		if err := p.Device.AddRoutedBackward(dp, dout, m.Down.Bias, c.choice); err != nil {
			return err
		}
	}
	var tokens [2]tensor.Tensor
	for i, l := range layers {
		if tokens[i], err = c.adaptBackward(p, l.module, rows, l.dy, h, l.a, inner[i]); err != nil {
			return err
		}
	}
	if inputGradient {
		if err := m.inputBackward(p, dh, rows, dp, c, tokens[0], tokens[1]); err != nil {
			return err
		}
	}
	return p.Temp.Release(mark)
}

// widthBackward gives the gradient by what each slot read: in each segment of the width one chain over gate's outputs and then over up's.
func (m *Mixture) widthBackward(p *Pass, rows, dgate, dup tensor.Tensor, table tensor.Table) error {
	product := func(l *ExpertLinear, dy tensor.Tensor) tensor.RoutedProduct {
		return tensor.RoutedProduct{Y: rows, X: dy, Transposed: true, Groups: []tensor.RoutedGroup{{To: table.Tokens, Stack: l.stack()}}, Segments: m.Segments}
	}
	gate, up := product(&m.Gate, dgate), product(&m.Up, dup)
	if m.Segments.Count > 0 {
		up.Continues = true
		return p.routed(table, gate, up)
	}
	up.Accumulate = true
	if err := p.routed(table, gate); err != nil {
		return err
	}
	return p.routed(table, up)
}

// innerBackward gives the gradients by the inner vectors of gate or up, of each slot, whose sums over the width are this rank's parts: of adapters whose A all experts share not times scale yet, of the others' times scale unless they are parts.
func (m *Mixture) innerBackward(p *Pass, module int, dy tensor.Tensor, inner *innerActivations, c *mixtureChunk) (d innerActivations, err error) {
	for _, part := range []struct {
		to        *tensor.Tensor
		a         tensor.Tensor
		tokenwise bool
	}{{&d.tokens, inner.tokens, true}, {&d.rows, inner.rows, false}} {
		if part.a.Buffer == nil {
			continue
		}
		if err = p.get(c.table.Rows(), slot{part.to, p.Temp, part.a.Cols}); err != nil {
			return
		}
		groups := c.routedGroups(module, false, part.tokenwise, expandBackward)
		if part.tokenwise {
			groups = unscaled(groups)
		} else {
			groups = p.unfinished(groups)
		}
		if err = p.routed(c.table, tensor.RoutedProduct{Y: *part.to, X: dy, Transposed: true, Groups: groups, Segments: m.Segments}); err != nil {
			return
		}
	}
	return
}

// inputBackward adds all that comes back to the tokens: what the slots give, in their order, what the LoRA that all experts share gives for gate and for up, and what the router gives.
func (m *Mixture) inputBackward(p *Pass, dh, rows, dp tensor.Tensor, c *mixtureChunk, gateInner, upInner tensor.Tensor) error {
	if err := p.Device.Combine(dh, rows, tensor.Tensor{}, c.table, false); err != nil {
		return err
	}
	for _, l := range []struct {
		module int
		dinner tensor.Tensor
	}{{m.Gate.Module, gateInner}, {m.Up.Module, upInner}} {
		if l.dinner.Buffer == nil {
			continue
		}
		if err := p.matMulTransposedGroups(dh, l.dinner, c.tokenGroups(l.module, false, shrinkBackward), true, tensor.Segments{}); err != nil {
			return err
		}
	}
	dlogits, err := p.Temp.Get(c.table.Tokens, m.Experts)
	if err != nil {
		return err
	}
	if err := p.Device.RouteBackward(dlogits, dp, c.p, c.choice, c.logits, m.Normalise); err != nil {
		return err
	}
	return p.matMulTransposed(dh, dlogits, m.Router, true)
}

// downBackward gives dhidden, the gradient by the experts' gated products, weighted by the probabilities, and dp, this rank's part of that by these, without what biases count.
func (m *Mixture) downBackward(p *Pass, dp, dhidden, hidden, dout tensor.Tensor, c *mixtureChunk) error {
	mark := p.Temp.Mark()
	module, inner := m.Down.Module, &c.da
	if err := p.routed(c.table, tensor.RoutedProduct{Y: dhidden, X: dout, Gathered: true, Transposed: true, Groups: []tensor.RoutedGroup{{To: c.table.Tokens, Stack: m.Down.stack()}}}); err != nil {
		return err
	}
	var tokens, rows tensor.Tensor // gradients by inner vectors, times scale
	if inner.tokens.Buffer != nil {
		if err := p.get(c.table.Tokens, slot{&tokens, p.Temp, inner.tokens.Cols}); err != nil {
			return err
		}
		if err := p.matMulTransposedGroups(tokens, dout, c.tokenGroups(module, true, expandBackward), false, tensor.Segments{}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: dhidden, X: tokens, Gathered: true, Accumulate: true, Transposed: true, Groups: c.routedGroups(module, true, true, shrinkBackward)}); err != nil {
			return err
		}
	}
	if inner.rows.Buffer != nil {
		if err := p.get(c.table.Rows(), slot{&rows, p.Temp, inner.rows.Cols}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: rows, X: dout, Gathered: true, Transposed: true, Groups: c.routedGroups(module, true, false, expandBackward)}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: dhidden, X: rows, Accumulate: true, Transposed: true, Groups: c.routedGroups(module, true, false, shrinkBackward)}); err != nil {
			return err
		}
	}
	if err := p.Device.CombineBackward(dp, dhidden, hidden, c.p, c.table, m.Segments); err != nil {
		return err
	}
	if err := c.downGradients(p, module, tokens, rows, hidden, dout); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// downGradients adds the gradients by A and B of the last layers: of a row's they are weighted by the probability of its slot.
func (c *mixtureChunk) downGradients(p *Pass, module int, tokens, rows, hidden, dout tensor.Tensor) error {
	if len(c.gradients) == 0 {
		return nil
	}
	inner := &c.da
	if tokens.Buffer != nil {
		weighted, err := p.Temp.Get(c.table.Rows(), tokens.Cols)
		if err != nil {
			return err
		}
		if err := p.Device.Spread(weighted, tokens, c.p, c.table, true); err != nil {
			return err
		}
		if err := c.sums(p, module, true, true, gradientRows{a: [2]tensor.Tensor{weighted, hidden}, tokenB: [2]tensor.Tensor{dout, inner.tokens}}); err != nil {
			return err
		}
	}
	if rows.Buffer == nil {
		return nil
	}
	if err := p.Device.Spread(rows, rows, c.p, c.table, false); err != nil {
		return err
	}
	var weighted, spread tensor.Tensor
	if err := p.get(c.table.Rows(), slot{&weighted, p.Temp, inner.rows.Cols}, slot{&spread, p.Temp, dout.Cols}); err != nil {
		return err
	}
	if err := p.Device.Spread(weighted, inner.rows, c.p, c.table, false); err != nil {
		return err
	}
	if err := p.Device.Spread(spread, dout, tensor.Tensor{}, c.table, true); err != nil {
		return err
	}
	return c.sums(p, module, true, false, gradientRows{a: [2]tensor.Tensor{rows, hidden}, b: [2]tensor.Tensor{spread, weighted}})
}

// adaptBackward adds to rows, the gradient by what each slot read, what comes through the LoRA of gate or up, unless rows have no buffer, and adds the gradients by A and B. d are the gradients by inner vectors of slots, see
// innerBackward, whole. Of adapters whose A all experts share it gives the gradient by the inner vectors instead, times scale, for all slots of a token.
func (c *mixtureChunk) adaptBackward(p *Pass, module int, rows, dy, h tensor.Tensor, inner *innerActivations, d innerActivations) (tokens tensor.Tensor, err error) {
	if d.tokens.Buffer != nil {
		if err = p.get(c.table.Tokens, slot{&tokens, p.Temp, d.tokens.Cols}); err != nil {
			return
		}
		if err = p.Device.Combine(tokens, d.tokens, tensor.Tensor{}, c.table, false); err != nil {
			return
		}
		if err = c.scaleTokens(p, module, false, tokens, expandBackward); err != nil {
			return
		}
		if len(c.gradients) > 0 {
			spread := d.tokens // which has been read
			if err = p.Device.Spread(spread, inner.tokens, tensor.Tensor{}, c.table, true); err != nil {
				return
			}
			if err = c.sums(p, module, false, true, gradientRows{tokenA: [2]tensor.Tensor{tokens, h}, b: [2]tensor.Tensor{dy, spread}}); err != nil {
				return
			}
		}
	}
	if d.rows.Buffer == nil {
		return
	}
	if err = c.finish(p, module, false, d.rows, expandBackward); err != nil {
		return
	}
	if rows.Buffer != nil {
		if err = p.routed(c.table, tensor.RoutedProduct{Y: rows, X: d.rows, Accumulate: true, Transposed: true, Groups: c.routedGroups(module, false, false, shrinkBackward)}); err != nil {
			return
		}
	}
	if len(c.gradients) == 0 {
		return
	}
	var spread tensor.Tensor
	if err = p.get(c.table.Rows(), slot{&spread, p.Temp, h.Cols}); err != nil {
		return
	}
	if err = p.Device.Spread(spread, h, tensor.Tensor{}, c.table, true); err != nil {
		return
	}
	return tokens, c.sums(p, module, false, false, gradientRows{a: [2]tensor.Tensor{d.rows, spread}, b: [2]tensor.Tensor{dy, inner.rows}})
}

// gradientRows are the factors of the outer products that make the gradients by A and B: rows of slots where each expert has one of its own, tokens where all have one.
type gradientRows struct{ a, b, tokenA, tokenB [2]tensor.Tensor }

// sums adds the gradients by A and B of all ranges whose inner vectors are of tokens, or of rows. Each is one chain over its rows: those of an expert, or the tokens.
func (c *mixtureChunk) sums(p *Pass, module int, down, tokenwise bool, from gradientRows) error {
	var routed []tensor.RoutedOuter
	p.products = p.products[:0]
	flush := func() error {
		if len(routed) > 0 {
			if err := p.outerRouted(c.table, routed); err != nil {
				return err
			}
		}
		err := p.outerProducts(p.products)
		routed, p.products = routed[:0], p.products[:0]
		return err
	}
	seen := map[*LoRAGradient]bool{}
	for _, g := range c.gradients {
		to := &g.Modules[module]
		if to.A.Buffer == nil || c.loraAt(g.From, module).tokenwise(down) != tokenwise {
			continue
		}
		if seen[to] { // one chain, in order
			if err := flush(); err != nil {
				return err
			}
			clear(seen)
		}
		seen[to] = true
		rank := to.B.Cols
		if x := from.a; x[0].Buffer != nil {
			routed = append(routed, tensor.RoutedOuter{G: to.A, A: x[0].Columns(0, rank), B: x[1], From: g.From, To: g.To, First: to.Unset})
		} else {
			x := from.tokenA
			p.products = append(p.products, tensor.OuterProduct{G: to.A, A: x[0].Slice(g.From, g.To).Columns(0, rank), B: x[1].Slice(g.From, g.To), First: to.Unset})
		}
		if x := from.b; x[0].Buffer != nil {
			routed = append(routed, tensor.RoutedOuter{G: to.B, A: x[0], B: x[1].Columns(0, rank), From: g.From, To: g.To, First: to.Unset})
		} else {
			x := from.tokenB
			p.products = append(p.products, tensor.OuterProduct{G: to.B, A: x[0].Slice(g.From, g.To), B: x[1].Slice(g.From, g.To).Columns(0, rank), First: to.Unset})
		}
		to.Unset = false
	}
	return flush()
}

// loraAt is a module's pair of a token's adapter.
func (c *mixtureChunk) loraAt(token, module int) LoRA {
	for _, s := range c.segments {
		if token < s.To {
			return s.lora(module)
		}
	}
	return LoRA{}
}
