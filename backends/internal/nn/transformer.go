package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// TransformerLayer is x + mixer(norm(x)), then x + mlp(norm(x)).
type TransformerLayer struct {
	InputNorm RMSNorm
	Mixer     Sublayer
	MixerNorm RMSNorm // of the residual stream after the mixer ("post_attention_layernorm")
	MLP       Sublayer
}

type transformerActivations struct {
	middle     tensor.Tensor // the residual stream after the mixer
	mixer, mlp Activations
}

// NewActivations implements Layer.
func (l *TransformerLayer) NewActivations() Activations {
	return &transformerActivations{mixer: l.Mixer.NewActivations(), mlp: l.MLP.NewActivations()}
}

// WithWeights implements Layer.
func (l *TransformerLayer) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Layer {
	other := *l
	other.Mixer, other.MLP = l.Mixer.WithWeights(weight), l.MLP.WithWeights(weight)
	return &other
}

// reweigh gives linear layers the weights that stand for theirs.
func reweigh(weight func(tensor.Matrix) tensor.Matrix, layers ...*Linear) {
	for _, l := range layers {
		l.Weight = weight(l.Weight)
	}
}

// rowType is that of the norms' outputs, which both the mixer and the MLP read.
func (l *TransformerLayer) rowType(p *Pass) tensor.DType {
	if !l.Mixer.rounds(p) || !l.MLP.rounds(p) {
		return tensor.Float32
	}
	return p.rowType()
}

// Forward implements Layer. An out without a buffer is not computed: only what backward needs is.
func (l *TransformerLayer) Forward(p *Pass, out, x tensor.Tensor, activations Activations) error {
	a := activations.(*transformerActivations)
	mark := p.Temp.Mark()
	if err := p.get(x.Rows, slot{&a.middle, p.Keep, x.Cols}); err != nil {
		return err
	}
	h, err := p.Temp.GetAs(l.rowType(p), x.Rows, x.Cols)
	if err != nil {
		return err
	}
	if err := l.InputNorm.Forward(p, h, x); err != nil {
		return err
	}
	added, err := p.forwardAdding(l.Mixer, a.middle, x, h, a.mixer)
	if err != nil {
		return err
	}
	if added {
		err = l.MixerNorm.Forward(p, h, a.middle)
	} else {
		err = p.addNorm(&l.MixerNorm, h, a.middle, x)
	}
	if err != nil {
		return err
	}
	if err := p.yield(); err != nil {
		return err
	}
	if added, err = p.forwardAdding(l.MLP, out, a.middle, h, a.mlp); err != nil {
		return err
	}
	if out.Buffer == nil {
		return p.yield() // the activations are in Temp: whoever wants them releases it
	}
	if !added {
		if err := p.Device.Add(out, a.middle); err != nil {
			return err
		}
	}
	if err := p.yield(); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// Backward implements Layer.
func (l *TransformerLayer) Backward(p *Pass, dx, x tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*transformerActivations)
	mark := p.Temp.Mark()
	var h, dh tensor.Tensor
	if err := p.get(x.Rows, slot{&h, p.Temp, x.Cols}, slot{&dh, p.Temp, x.Cols}); err != nil {
		return err
	}
	part := p.Temp.Mark()
	if err := l.MixerNorm.Forward(p, h, a.middle); err != nil {
		return err
	}
	if err := l.MLP.Backward(p, dh, dx, h, a.mlp, true); err != nil {
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

// slot is a tensor to be handed out.
type slot struct {
	t     *tensor.Tensor
	arena *Arena
	cols  int
}

// get fills slots with tensors of that many rows.
func (p *Pass) get(rows int, slots ...slot) error {
	for _, s := range slots {
		t, err := s.arena.Get(rows, s.cols)
		if err != nil {
			return err
		}
		*s.t = t
	}
	return nil
}
