package nn

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// MLP is the gated feed-forward layer down(silu(gate(h)) · up(h)).
type MLP struct {
	Gate, Up, Down Linear
}

// mlpActivations is what backward needs; gate and up may be rounded, see Pass.keptType.
type mlpActivations struct {
	gate, up   tensor.Tensor
	ga, ua, da LinearActivations
	share      share
}

// share is how much of what an MLP gives each token takes: p, a column, as the probability of the token's one slot of a table. A p without a buffer is 1. Last layers are linear, so it is what they read that is multiplied: then the gradient
// dp by it, which is overwritten, needs nothing of the width of what they give. Where ranks share the width out it is this one's part.
type share struct {
	table tensor.Table
	p, dp tensor.Tensor
}

func (s *share) whole() bool { return s.p.Buffer == nil }

// NewActivations implements Sublayer.
func (*MLP) NewActivations() Activations { return &mlpActivations{} }

// WithWeights implements Sublayer.
func (m *MLP) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	other := *m
	reweigh(weight, &other.Gate, &other.Up, &other.Down)
	return &other
}

// rounds implements Sublayer.
func (m *MLP) rounds(p *Pass) bool { return p.roundRows(&m.Gate, &m.Up) }

// reserve gets what is kept of so many rows.
func (m *MLP) reserve(p *Pass, rows int, a *mlpActivations) error {
	for _, t := range []*tensor.Tensor{&a.gate, &a.up} {
		var err error
		if *t, err = p.Keep.GetAs(p.keptType(&m.Gate, &m.Up), rows, m.Gate.Weight.Out()); err != nil {
			return err
		}
	}
	return errors.Join(m.Gate.reserve(p, rows, &a.ga), m.Up.reserve(p, rows, &a.ua), m.Down.reserve(p, rows, &a.da))
}

// Forward implements Sublayer.
func (m *MLP) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	a := activations.(*mlpActivations)
	if err := m.reserve(p, h.Rows, a); err != nil {
		return err
	}
	return m.forward(p, out, h, a)
}

// forwardAdding implements adder.
func (m *MLP) forwardAdding(p *Pass, out, add, h tensor.Tensor, activations Activations) (added bool, err error) {
	a := activations.(*mlpActivations)
	if err := m.reserve(p, h.Rows, a); err != nil {
		return false, err
	}
	return m.products(p, out, add, h, a)
}

// forward is Forward with what is kept reserved.
func (m *MLP) forward(p *Pass, out, h tensor.Tensor, a *mlpActivations) error {
	_, err := m.products(p, out, tensor.Tensor{}, h, a)
	return err
}

// products is forward, and adds add to out, if both have buffers and that costs no pass of its own: added says so.
func (m *MLP) products(p *Pass, out, add, h tensor.Tensor, a *mlpActivations) (added bool, err error) {
	mark := p.Temp.Mark()
	gate, err := p.unrounded(a.gate)
	if err != nil {
		return false, err
	}
	up, err := p.unrounded(a.up)
	if err != nil {
		return false, err
	}
	hiddenType := tensor.Float32
	if a.share.whole() {
		hiddenType = p.rowType(&m.Down)
	}
	hidden, err := p.Temp.GetAs(hiddenType, gate.Rows, gate.Cols)
	if err != nil {
		return false, err
	}
	if err := p.linearsGated(h, hidden, a.gate, a.up, application{&m.Gate, gate, &a.ga}, application{&m.Up, up, &a.ua}); err != nil {
		return false, err
	}
	if !a.share.whole() {
		if err := p.Device.Spread(hidden, hidden, a.share.p, a.share.table, false); err != nil {
			return false, err
		}
	}
	if out.Buffer == nil {
		err = m.Down.inner(p, hidden, &a.da)
	} else {
		added, err = p.linearAdding(hidden, add, application{&m.Down, out, &a.da})
	}
	if err != nil {
		return false, err
	}
	return added, p.Temp.Release(mark)
}

// Backward implements Sublayer. The gated product is computed again, not kept.
func (m *MLP) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	return p.together(func() error { return m.backward(p, dh, dout, h, activations.(*mlpActivations), inputGradient) })
}

func (m *MLP) backward(p *Pass, dh, dout, h tensor.Tensor, a *mlpActivations, inputGradient bool) error {
	var hidden, dhidden tensor.Tensor
	if err := p.get(h.Rows, slot{&hidden, p.Temp, a.gate.Cols}, slot{&dhidden, p.Temp, a.gate.Cols}); err != nil {
		return err
	}
	gate, err := p.readable(a.gate)
	if err != nil {
		return err
	}
	up, err := p.readable(a.up)
	if err != nil {
		return err
	}
	if err := p.swiGLU(hidden, gate, up); err != nil {
		return err
	}
	taken := hidden
	if !a.share.whole() {
		if taken, err = p.Temp.Get(hidden.Rows, hidden.Cols); err != nil {
			return err
		}
		if err := p.Device.Spread(taken, hidden, a.share.p, a.share.table, false); err != nil {
			return err
		}
	}
	if err := m.Down.Backward(p, dhidden, dout, taken, &a.da, true); err != nil {
		return err
	}
	if !a.share.whole() {
		if err := p.Device.CombineBackward(a.share.dp, dhidden, hidden, a.share.p, a.share.table, m.Down.Segments); err != nil {
			return err
		}
	}
	dgate, dup := hidden, dhidden                                        // the product has been read
	if p.joined && a.share.whole() && p.largestRank(m.Down.Module) > 0 { // not by the gradient of down's A
		if dgate, err = p.Temp.Get(hidden.Rows, hidden.Cols); err != nil {
			return err
		}
	}
	if err := p.swiGLUBackward(dgate, dup, dhidden, gate, up); err != nil {
		return err
	}
	return p.backward(dh, h, inputGradient, slope{&m.Gate, dgate, dgate, &a.ga}, slope{&m.Up, dup, dup, &a.ua})
}

// swiGLU is Device.SwiGLU in steps.
func (p *Pass) swiGLU(y, gate, up tensor.Tensor) error {
	return p.rows(y.Rows, exponentialWork*float64(y.Cols), func(from, to int) error {
		return p.Device.SwiGLU(y.Slice(from, to), gate.Slice(from, to), up.Slice(from, to))
	})
}

// swiGLUKeep is swiGLU, and writes gate and up to what is kept of them, unless they are that themselves.
func (p *Pass) swiGLUKeep(y, keptGate, keptUp, gate, up tensor.Tensor) error {
	if keptGate.DType == tensor.Float32 {
		return p.swiGLU(y, gate, up)
	}
	return p.rows(y.Rows, exponentialWork*float64(y.Cols), func(from, to int) error {
		return p.gateAndKeep(y.Slice(from, to), keptGate.Slice(from, to), keptUp.Slice(from, to), gate.Slice(from, to), up.Slice(from, to))
	})
}

// swiGLUBackward is Device.SwiGLUBackward in steps.
func (p *Pass) swiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	return p.rows(dy.Rows, 2*exponentialWork*float64(dy.Cols), func(from, to int) error {
		return p.Device.SwiGLUBackward(dgate.Slice(from, to), dup.Slice(from, to), dy.Slice(from, to), gate.Slice(from, to), up.Slice(from, to))
	})
}
