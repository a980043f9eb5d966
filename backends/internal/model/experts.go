package model

import (
	"fmt"
	"slices"
)

// MoE are the sizes of a model's mixtures of experts.
type MoE struct {
	Experts    int
	PerToken   int     // experts that a token goes to
	Width      int     // of an expert's MLP; 0 = not given
	Shared     int     // width of the expert that every token goes to; 0 = there is none
	Normalised *bool   // whether the probabilities of the chosen experts add up to one; nil = not given
	SparseStep int     // layer i may have experts where i+1 is a multiple of it
	Dense      []int   // layers that have none nevertheless, ascending
	Limit      float64 // where the gated product is clamped; 0 = not given
}

// Sparse tells whether layer i has experts.
func (c *Config) Sparse(i int) bool {
	return c.MoE != nil && (i+1)%c.MoE.SparseStep == 0 && !slices.Contains(c.MoE.Dense, i)
}

// widths are the widths of the MLPs that the model's layers have.
func (c *Config) widths() []int {
	var widths []int
	for i := range c.Layers {
		if !c.Sparse(i) {
			widths = append(widths, c.IntermediateSize)
			continue
		}
		for _, w := range []int{c.MoE.Width, c.MoE.Shared} {
			if w > 0 {
				widths = append(widths, w)
			}
		}
	}
	slices.Sort(widths)
	return slices.Compact(widths)
}

// mostExperts bounds the experts of a layer.
const mostExperts = 1 << 12

// moeJSON are the keys of config.json about experts.
type moeJSON struct {
	NumExperts          *int     `json:"num_experts"`
	NumLocalExperts     *int     `json:"num_local_experts"` // as transformers 5 writes it
	NumExpertsPerToken  *int     `json:"num_experts_per_tok"`
	MoEIntermediateSize *int     `json:"moe_intermediate_size"`
	SharedSize          *int     `json:"shared_expert_intermediate_size"`
	NormTopK            *bool    `json:"norm_topk_prob"`
	DecoderSparseStep   *int     `json:"decoder_sparse_step"`
	MLPOnlyLayers       []int    `json:"mlp_only_layers"`
	SwiGLULimit         *float64 `json:"swiglu_limit"`
}

func (j *moeJSON) hasExperts() bool { return j.NumExperts != nil || j.NumLocalExperts != nil }

// moe reads what a configuration says of experts, nil if it has none.
func (j *moeJSON) moe(c *Config) (*MoE, error) {
	if !j.hasExperts() {
		return nil, nil
	}
	m := &MoE{Normalised: j.NormTopK, SparseStep: 1, Dense: slices.Clone(j.MLPOnlyLayers)}
	if j.SwiGLULimit != nil {
		m.Limit = *j.SwiGLULimit
	}
	experts, name := j.NumExperts, "num_experts"
	switch {
	case experts == nil:
		experts, name = j.NumLocalExperts, "num_local_experts"
	case j.NumLocalExperts != nil && *j.NumLocalExperts != *experts:
		return nil, fmt.Errorf("num_experts is %d and num_local_experts %d: they must be equal", *experts, *j.NumLocalExperts)
	}
	if err := (size{name, experts, mostExperts, &m.Experts}).read(); err != nil {
		return nil, err
	}
	if err := (size{"num_experts_per_tok", j.NumExpertsPerToken, m.Experts, &m.PerToken}).read(); err != nil {
		return nil, err
	}
	for _, s := range []size{
		{"moe_intermediate_size", j.MoEIntermediateSize, mostWidth, &m.Width},
		{"decoder_sparse_step", j.DecoderSparseStep, 1 << 10, &m.SparseStep},
	} {
		if s.value == nil {
			continue
		}
		if err := s.read(); err != nil {
			return nil, err
		}
	}
	if j.SharedSize != nil && *j.SharedSize != 0 {
		if err := (size{"shared_expert_intermediate_size", j.SharedSize, mostWidth, &m.Shared}).read(); err != nil {
			return nil, err
		}
	}
	slices.Sort(m.Dense)
	for i, layer := range m.Dense {
		if layer < 0 || layer >= c.Layers || i > 0 && layer == m.Dense[i-1] {
			return nil, fmt.Errorf("mlp_only_layers has %d: it must name layers of 0 … %d, each once", layer, c.Layers-1)
		}
	}
	return m, nil
}
