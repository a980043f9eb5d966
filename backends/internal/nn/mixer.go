package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Mixer is the part of a layer in which the rows of a sequence see those before them: attention, or a recurrence.
type Mixer interface {
	NewActivations() Activations
	// WithWeights is as Layer's.
	WithWeights(weight func(tensor.Matrix) tensor.Matrix) Mixer
	// Forward writes out (rows × hidden) for the normed residual stream h.
	Forward(p *Pass, out, h tensor.Tensor, a Activations) error
	// Backward gives dh, the gradient by h, for the gradient dout by the output; without inputGradient it is not computed. dh is overwritten.
	Backward(p *Pass, dh, dout, h tensor.Tensor, a Activations, inputGradient bool) error
}

// MixerLayer is x + mixer(norm(x)), then x + mlp(norm(x)).
type MixerLayer struct {
	InputNorm RMSNorm
	Mixer     Mixer
	MixerNorm RMSNorm // of the residual stream after the mixer ("post_attention_layernorm")
	MLP       MLP
}

type mixerActivations struct {
	middle tensor.Tensor // the residual stream after the mixer
	mixer  Activations
	mlp    MLPActivations
}

// NewActivations implements Layer.
func (l *MixerLayer) NewActivations() Activations {
	return &mixerActivations{mixer: l.Mixer.NewActivations()}
}

// WithWeights implements Layer.
func (l *MixerLayer) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Layer {
	other := *l
	other.Mixer = l.Mixer.WithWeights(weight)
	for _, linear := range []*Linear{&other.MLP.Gate, &other.MLP.Up, &other.MLP.Down} {
		linear.Weight = weight(linear.Weight)
	}
	return &other
}

// Forward implements Layer. An out without a buffer is not computed: only what backward needs is.
func (l *MixerLayer) Forward(p *Pass, out, x tensor.Tensor, activations Activations) error {
	a := activations.(*mixerActivations)
	mark := p.Temp.Mark()
	var h tensor.Tensor
	if err := p.get(x.Rows, slot{&a.middle, p.Keep, x.Cols}, slot{&h, p.Temp, x.Cols}); err != nil {
		return err
	}
	if err := l.InputNorm.Forward(p, h, x); err != nil {
		return err
	}
	if err := l.Mixer.Forward(p, a.middle, h, a.mixer); err != nil {
		return err
	}
	if err := p.addNorm(&l.MixerNorm, h, a.middle, x); err != nil {
		return err
	}
	if err := p.yield(); err != nil {
		return err
	}
	if err := l.MLP.Forward(p, out, h, &a.mlp); err != nil {
		return err
	}
	if out.Buffer == nil {
		return p.yield() // the activations are in Temp: whoever wants them releases it
	}
	if err := p.Device.Add(out, a.middle); err != nil {
		return err
	}
	if err := p.yield(); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// Backward implements Layer.
func (l *MixerLayer) Backward(p *Pass, dx, x tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*mixerActivations)
	mark := p.Temp.Mark()
	var h, dh tensor.Tensor
	if err := p.get(x.Rows, slot{&h, p.Temp, x.Cols}, slot{&dh, p.Temp, x.Cols}); err != nil {
		return err
	}
	part := p.Temp.Mark()
	if err := l.MixerNorm.Forward(p, h, a.middle); err != nil {
		return err
	}
	if err := l.MLP.Backward(p, dh, dx, h, &a.mlp, true); err != nil {
		return err
	}
	if err := l.MixerNorm.Backward(p, dx, dh, a.middle, true); err != nil {
		return err
	}
	if err := p.Temp.Release(part); err != nil {
		return err
	}
	if err := p.yield(); err != nil {
		return err
	}
	if err := l.InputNorm.Forward(p, h, x); err != nil {
		return err
	}
	if err := l.Mixer.Backward(p, dh, dx, h, a.mixer, inputGradient); err != nil {
		return err
	}
	if inputGradient {
		if err := l.InputNorm.Backward(p, dx, dh, x, true); err != nil {
			return err
		}
	}
	if err := p.Temp.Release(mark); err != nil {
		return err
	}
	return p.yield()
}
