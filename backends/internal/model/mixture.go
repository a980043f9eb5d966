package model

import (
	"context"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// MixtureOptions are where families with experts differ.
type MixtureOptions struct {
	Normalised bool   // the probabilities of a token's experts add up to one
	Router     string // the module's name; "" = gate
	Biases     bool   // on the router and on the experts
	Clamp      tensor.Clamp
	Experts    ExpertOptions
}

// Mixture loads the experts of layer i, this rank's part of the width of each, and the router that chooses among them, all of it, which has no LoRA.
func (l *Loader) Mixture(ctx context.Context, i int, o MixtureOptions) (*nn.Mixture, error) {
	c := l.Config.MoE
	if err := l.checkMixture(); err != nil {
		return nil, err
	}
	m := &nn.Mixture{Experts: c.Experts, Slots: c.PerToken, Normalise: o.Normalised, Clamp: o.Clamp}
	prefix, hidden := layerName(i)+"mlp.", l.Config.HiddenSize
	var err error
	router := prefix + "gate"
	if o.Router != "" {
		router = prefix + o.Router
	}
	if m.Router, err = l.Matrix(ctx, router, c.Experts, hidden, extent{0, c.Experts}, extent{0, hidden}); err != nil {
		return nil, err
	}
	sources, err := l.Experts(prefix+"experts", c.Width, o.Experts)
	if err != nil {
		return nil, err
	}
	own, all := share(c.Width, l.model.Rank, l.model.Ranks), extent{0, hidden}
	if own.size() < c.Width {
		sources = sources.Slice(own.from, own.to)
	}
	m.Segments = l.Config.segments(l.model.Device, c.Width, l.model.Rank, l.model.Ranks, own)
	for _, e := range []struct {
		to         *nn.ExpertLinear
		kind       string
		sources    []Source // rows
		out, in    int
		rows, cols extent
	}{{&m.Gate, lora.ExpertGate, sources.Gate, c.Width, hidden, own, all}, {&m.Up, lora.ExpertUp, sources.Up, c.Width, hidden, own, all}, {&m.Down, lora.ExpertDown, sources.Down, hidden, c.Width, all, own}} {
		stack, err := l.PackStack(ctx, e.sources, e.cols)
		if err != nil {
			return nil, err
		}
		*e.to = nn.ExpertLinear{Weight: stack.Matrix, Out: e.rows.size(), Module: l.add(lora.ExpertModule(prefix+"experts."+e.kind, c.Experts, e.out, e.in), e.rows, e.cols)}
	}
	if o.Biases {
		return m, l.expertBiases(m, router, prefix+"experts", o.Experts, own)
	}
	return m, nil
}

// expertBiases loads the biases of a router, all of them, and of the experts that it chooses among: NAME.gate_up_proj_bias, in the order of the rows of NAME.gate_up_proj, of each expert those of the part own of its width, and
// NAME.down_proj_bias, which is added when what ranks have of an expert's sum is whole, so that every rank has all of it.
func (l *Loader) expertBiases(m *nn.Mixture, router, name string, o ExpertOptions, own extent) error {
	var err error
	if m.RouterBias, err = l.Vector(router+".bias", m.Experts, extent{0, m.Experts}); err != nil {
		return err
	}
	if !o.Interleaved {
		return fmt.Errorf("biases of experts are supported where rows of gate and up take turns only, %s has others", l.Config.Architecture)
	}
	width, hidden := l.Config.MoE.Width, l.Config.HiddenSize
	for i, e := range []struct {
		to    *nn.ExpertLinear
		name  string
		turns int
		n     int // of an expert
		part  extent
	}{{&m.Gate, ".gate_up_proj_bias", 2, width, own}, {&m.Up, ".gate_up_proj_bias", 2, width, own}, {&m.Down, ".down_proj_bias", 1, hidden, extent{0, hidden}}} {
		form := vectorForm{turns: e.turns, turn: i}
		for expert := 1; expert < m.Experts; expert++ {
			form.more = append(form.more, e.part.behind(expert*e.n))
		}
		bias, err := l.vector(name+e.name, []int{m.Experts, e.n * e.turns}, e.part, form)
		if err != nil {
			return err
		}
		e.to.Bias = bias.Reshape(m.Experts, e.part.size())
	}
	return nil
}

// sharedMixture loads the mixture of layer i, and the expert beside it that every token takes.
func (l *Loader) sharedMixture(ctx context.Context, i int, o TransformerOptions) (*nn.SharedMixture, error) {
	prefix, hidden := layerName(i)+"mlp.", l.Config.HiddenSize
	m, err := l.Mixture(ctx, i, o.Mixture)
	if err != nil {
		return nil, err
	}
	mlp, err := l.MLP(ctx, prefix+"shared_expert.", l.Config.MoE.Shared, o)
	if err != nil {
		return nil, err
	}
	gate, err := l.Matrix(ctx, prefix+"shared_expert_gate", 1, hidden, extent{0, 1}, extent{0, hidden})
	return &nn.SharedMixture{Mixture: m, Shared: &nn.SharedExpert{MLP: *mlp, TokenGate: gate}}, err
}

// checkMixture refuses what experts are not there for.
func (l *Loader) checkMixture() error {
	if l.Config.MoE.PerToken > tensor.MaxSlots {
		return fmt.Errorf("num_experts_per_tok is %d, it must be in 1 … %d", l.Config.MoE.PerToken, tensor.MaxSlots)
	}
	return nil
}
