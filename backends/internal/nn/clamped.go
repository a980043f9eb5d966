package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// What experts with biases and a clamped gated product have that others have not.

// addBias adds to y, a row for each slot, the biases of the experts, if the layer has some.
func (l *ExpertLinear) addBias(p *Pass, y tensor.Tensor, c *mixtureChunk) error {
	if l.Bias.Buffer == nil {
		return nil
	}
	return p.Device.AddRouted(y, l.Bias, c.table)
}

// gated is the gated product of the experts.
func (m *Mixture) gated(p *Pass, y, gate, up tensor.Tensor) error {
	if m.Clamp.Limit == 0 {
		return p.swiGLU(y, gate, up)
	}
	return p.rows(y.Rows, exponentialWork*float64(y.Cols), func(from, to int) error {
		return p.Device.SwiGLUClamped(y.Slice(from, to), gate.Slice(from, to), up.Slice(from, to), m.Clamp)
	})
}

// gatedKeep is gated, and writes gate and up to what is kept of them, unless they are that themselves.
func (m *Mixture) gatedKeep(p *Pass, y, keptGate, keptUp, gate, up tensor.Tensor) error {
	if m.Clamp.Limit == 0 {
		return p.swiGLUKeep(y, keptGate, keptUp, gate, up)
	}
	f, fuses := p.Device.(tensor.Fuser)
	if fuses && keptGate.DType == tensor.BFloat16 {
		return p.rows(y.Rows, exponentialWork*float64(y.Cols), func(from, to int) error {
			return f.SwiGLUClampedKeep(y.Slice(from, to), keptGate.Slice(from, to), keptUp.Slice(from, to), gate.Slice(from, to), up.Slice(from, to), m.Clamp)
		})
	}
	if err := m.gated(p, y, gate, up); err != nil || keptGate.DType == tensor.Float32 {
		return err
	}
	if err := p.Device.Round(keptGate, gate); err != nil {
		return err
	}
	return p.Device.Round(keptUp, up)
}

// gatedBackward is the backward pass of gated.
func (m *Mixture) gatedBackward(p *Pass, dgate, dup, dy, gate, up tensor.Tensor) error {
	if m.Clamp.Limit == 0 {
		return p.swiGLUBackward(dgate, dup, dy, gate, up)
	}
	return p.rows(dy.Rows, 2*exponentialWork*float64(dy.Cols), func(from, to int) error {
		return p.Device.SwiGLUClampedBackward(dgate.Slice(from, to), dup.Slice(from, to), dy.Slice(from, to), gate.Slice(from, to), up.Slice(from, to), m.Clamp)
	})
}
