package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// SharedMixture is a mixture of experts beside one more expert that every token takes: what the two give is added.
type SharedMixture struct {
	Mixture *Mixture
	Shared  *SharedExpert
}

type sharedMixtureActivations struct{ mixture, shared Activations }

// NewActivations implements Sublayer.
func (m *SharedMixture) NewActivations() Activations {
	return &sharedMixtureActivations{m.Mixture.NewActivations(), m.Shared.NewActivations()}
}

// WithWeights implements Sublayer.
func (m *SharedMixture) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	return &SharedMixture{m.Mixture.WithWeights(weight).(*Mixture), m.Shared.WithWeights(weight).(*SharedExpert)}
}

// rounds implements Sublayer.
func (m *SharedMixture) rounds(p *Pass) bool { return m.Mixture.rounds(p) && m.Shared.rounds(p) }

// Forward implements Sublayer.
func (m *SharedMixture) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	a := activations.(*sharedMixtureActivations)
	if err := m.Mixture.Forward(p, out, h, a.mixture); err != nil {
		return err
	}
	if out.Buffer == nil {
		return m.Shared.Forward(p, out, h, a.shared)
	}
	if err := m.Shared.reserve(p, h.Rows, a.shared.(*sharedExpertActivations)); err != nil {
		return err // what is kept comes before what is not: the two may be one arena
	}
	mark := p.Temp.Mark()
	shared, err := p.Temp.Get(out.Rows, out.Cols)
	if err != nil {
		return err
	}
	if err := m.Shared.forward(p, shared, h, a.shared.(*sharedExpertActivations)); err != nil {
		return err
	}
	if err := p.Device.Add(out, shared); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// Backward implements Sublayer.
func (m *SharedMixture) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*sharedMixtureActivations)
	if err := m.Mixture.Backward(p, dh, dout, h, a.mixture, inputGradient); err != nil {
		return err
	}
	mark := p.Temp.Mark()
	var shared tensor.Tensor
	if inputGradient {
		if err := p.get(h.Rows, slot{&shared, p.Temp, h.Cols}); err != nil {
			return err
		}
	}
	if err := m.Shared.Backward(p, shared, dout, h, a.shared, inputGradient); err != nil {
		return err
	}
	if inputGradient {
		if err := p.Device.Add(dh, shared); err != nil {
			return err
		}
	}
	return p.Temp.Release(mark)
}

// SharedExpert is an MLP of which every token takes as much as the sigmoid of a gate says, which is a product with the token. The gate has no LoRA; where a model is cut, every rank has all of it.
type SharedExpert struct {
	MLP
	TokenGate tensor.Matrix // 1 × hidden
}

// sharedExpertActivations is what backward needs.
type sharedExpertActivations struct {
	mlp          mlpActivations
	logits, ones tensor.Tensor // a column each: products with the gate, and what their sigmoid is a share of
}

// NewActivations implements Sublayer.
func (*SharedExpert) NewActivations() Activations { return &sharedExpertActivations{} }

// WithWeights implements Sublayer.
func (s *SharedExpert) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	return &SharedExpert{MLP: *s.MLP.WithWeights(weight).(*MLP), TokenGate: weight(s.TokenGate)}
}

// reserve gets what is kept of so many rows.
func (s *SharedExpert) reserve(p *Pass, rows int, a *sharedExpertActivations) error {
	own := &a.mlp.share
	own.table = tensor.Table{Tokens: rows, Slots: 1, Experts: 1}
	if err := p.get(rows, slot{&a.logits, p.Keep, 1}, slot{&a.ones, p.Keep, 1}, slot{&own.p, p.Keep, 1}); err != nil {
		return err
	}
	if err := p.get(1, slot{&own.table.Words, p.Keep, tensor.TableWords(rows, own.table.Slots, own.table.Experts)}); err != nil {
		return err
	}
	return s.MLP.reserve(p, rows, &a.mlp)
}

// Forward implements Sublayer.
func (s *SharedExpert) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	a := activations.(*sharedExpertActivations)
	if err := s.reserve(p, h.Rows, a); err != nil {
		return err
	}
	return s.forward(p, out, h, a)
}

// forward is Forward with what is kept reserved.
func (s *SharedExpert) forward(p *Pass, out, h tensor.Tensor, a *sharedExpertActivations) error {
	mark := p.Temp.Mark()
	own := &a.mlp.share
	var choice tensor.Tensor
	if err := p.get(h.Rows, slot{&choice, p.Temp, 1}); err != nil {
		return err
	}
	if err := p.matMul(a.logits, h, s.TokenGate, tensor.Segments{}); err != nil {
		return err
	}
	if err := p.Device.Route(choice, a.ones, a.logits, true); err != nil { // of one expert each token chooses that one, with all of its probability
		return err
	}
	if err := p.Device.Dispatch(own.table, choice); err != nil {
		return err
	}
	if err := p.Device.SigmoidGate(own.p, a.ones, a.logits); err != nil {
		return err
	}
	if err := s.MLP.forward(p, out, h, &a.mlp); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// Backward implements Sublayer.
func (s *SharedExpert) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*sharedExpertActivations)
	mark := p.Temp.Mark()
	var dlogits tensor.Tensor
	if err := p.get(h.Rows, slot{&a.mlp.share.dp, p.Temp, 1}, slot{&dlogits, p.Temp, 1}); err != nil {
		return err
	}
	if err := s.MLP.Backward(p, dh, dout, h, &a.mlp, inputGradient); err != nil {
		return err
	}
	if inputGradient {
		dp := a.mlp.share.dp
		if err := p.reduce(dp); err != nil {
			return err
		}
		if err := p.Device.SigmoidGateBackward(dp, dlogits, dp, a.ones, a.logits); err != nil {
			return err
		}
		if err := p.matMulTransposed(dh, dlogits, s.TokenGate, true); err != nil {
			return err
		}
	}
	return p.Temp.Release(mark)
}
