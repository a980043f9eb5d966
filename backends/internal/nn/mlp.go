package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// MLP is the gated feed-forward layer down(silu(gate(h)) · up(h)).
type MLP struct {
	Gate, Up, Down Linear
}

// MLPActivations is what backward needs. Backward overwrites gate and up.
type MLPActivations struct {
	gate, up   tensor.Tensor
	ga, ua, da LinearActivations
}

// Forward writes out for the normed residual stream h. An out without a buffer is not computed: only what backward needs is.
func (m *MLP) Forward(p *Pass, out, h tensor.Tensor, a *MLPActivations) error {
	width := m.Gate.Weight.Out()
	if err := p.get(h.Rows, slot{&a.gate, p.Keep, width}, slot{&a.up, p.Keep, width}); err != nil {
		return err
	}
	hidden, err := p.Temp.GetAs(p.rowType(&m.Down), h.Rows, width)
	if err != nil {
		return err
	}
	if err := p.linears(h, application{&m.Gate, a.gate, &a.ga}, application{&m.Up, a.up, &a.ua}); err != nil {
		return err
	}
	if err := p.swiGLU(hidden, a.gate, a.up); err != nil {
		return err
	}
	if out.Buffer == nil {
		return m.Down.inner(p, hidden, &a.da)
	}
	if err := m.Down.Forward(p, out, hidden, &a.da); err != nil {
		return err
	}
	return p.reduce(out)
}

// Backward gives dh, the gradient by h, for the gradient dout by the output. The gated product is computed again, not kept.
func (m *MLP) Backward(p *Pass, dh, dout, h tensor.Tensor, a *MLPActivations, inputGradient bool) error {
	var hidden, dhidden tensor.Tensor
	if err := p.get(h.Rows, slot{&hidden, p.Temp, a.gate.Cols}, slot{&dhidden, p.Temp, a.gate.Cols}); err != nil {
		return err
	}
	if err := p.swiGLU(hidden, a.gate, a.up); err != nil {
		return err
	}
	if err := m.Down.Backward(p, dhidden, dout, hidden, &a.da, false, true); err != nil {
		return err
	}
	if err := p.swiGLUBackward(dhidden, a.gate, a.up); err != nil {
		return err
	}
	if err := m.Gate.Backward(p, dh, a.gate, h, &a.ga, false, inputGradient); err != nil {
		return err
	}
	if err := m.Up.Backward(p, dh, a.up, h, &a.ua, true, inputGradient); err != nil || !inputGradient {
		return err
	}
	return p.reduce(dh)
}

// swiGLU is Device.SwiGLU in steps.
func (p *Pass) swiGLU(y, gate, up tensor.Tensor) error {
	return p.rows(y.Rows, exponentialWork*float64(y.Cols), func(from, to int) error {
		return p.Device.SwiGLU(y.Slice(from, to), gate.Slice(from, to), up.Slice(from, to))
	})
}

// swiGLUBackward is Device.SwiGLUBackward in steps; gate and up become their gradients.
func (p *Pass) swiGLUBackward(dy, gate, up tensor.Tensor) error {
	return p.rows(dy.Rows, 2*exponentialWork*float64(dy.Cols), func(from, to int) error {
		gate, up := gate.Slice(from, to), up.Slice(from, to)
		return p.Device.SwiGLUBackward(gate, up, dy.Slice(from, to), gate, up)
	})
}
