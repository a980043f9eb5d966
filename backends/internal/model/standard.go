package model

import (
	"context"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// TransformerOptions are where the families of plain transformers differ.
type TransformerOptions struct {
	QKVBias      bool           // biases on the q, k and v projections
	OBias        bool           // and on the o projection
	Sinks        bool           // a sink for every query head, self_attn.sinks
	QKNorm       bool           // an RMSNorm over each query and key head
	OnePlusNorms bool           // the files have what norms' weights are above one, see Loader.OnePlusNorm
	OutputGate   bool           // q_proj has, of every head, as many rows of gates behind those of its queries
	Fused        bool           // one tensor self_attn.qkv_proj, of the rows of q, k and v, and one mlp.gate_up_proj
	Mixture      MixtureOptions // of layers that have experts
}

// TransformerLayer loads layer i under the names that Llama, Qwen2 and Qwen3 share.
func (l *Loader) TransformerLayer(ctx context.Context, i int, o TransformerOptions) (nn.Layer, error) {
	attention, err := l.AttentionLayer(ctx, i, o)
	if err != nil {
		return nil, err
	}
	layer := &nn.TransformerLayer{Mixer: &attention}
	if layer.MLP, err = l.feedForward(ctx, i, o); err != nil {
		return nil, err
	}
	if layer.InputNorm, layer.MixerNorm, err = l.LayerNorms(i, o); err != nil {
		return nil, err
	}
	attention.QNorm, attention.KNorm, err = l.HeadNorms(i, o)
	return layer, err
}

// layerName is how the names of layer i's tensors begin.
func layerName(i int) string { return fmt.Sprintf("model.layers.%d.", i) }

// AttentionLayer loads the attention of layer i, but for its norms.
func (l *Loader) AttentionLayer(ctx context.Context, i int, o TransformerOptions) (nn.Attention, error) {
	c := l.Config
	rank, ranks := l.model.Rank, l.model.Ranks
	heads, keyHeads := share(c.Heads, rank, ranks), c.kvExtent(rank, ranks)
	a := nn.Attention{Heads: heads.size(), KVHeads: keyHeads.size(), HeadDim: c.HeadDim, Rope: l.Rope(), Layer: c.attentionIndex(i), Scale: float32(1 / math.Sqrt(float64(c.HeadDim))),
		KeyParts: c.keyParts(l.model.Device, ranks), Sharers: c.keySharers(ranks), Ranks: ranks}
	if c.StillLayers != nil && c.StillLayers[i] {
		var err error
		if a.Rope, err = l.still(); err != nil {
			return a, err
		}
	}
	if c.LayerTypes[i] == SlidingAttention {
		a.Window = l.Config.attentionWindow()
	}
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	hidden, queryRows, keyRows := extent{0, c.HiddenSize}, heads.times(c.HeadDim), keyHeads.times(c.HeadDim)
	prefix := layerName(i) + "self_attn."
	rowsOfQ := queries
	if o.OutputGate {
		rowsOfQ, queryRows = 2*queries, heads.times(2*c.HeadDim)
	}
	sources, err := l.apart(prefix, "qkv_proj", o.Fused, c.HiddenSize, part{"q_proj", rowsOfQ}, part{"k_proj", keys}, part{"v_proj", keys})
	if err != nil {
		return a, err
	}
	for i, m := range []struct {
		to   *nn.Linear
		name string
		rows extent
	}{{&a.Q, "q_proj", queryRows}, {&a.K, "k_proj", keyRows}, {&a.V, "v_proj", keyRows}} {
		if *m.to, err = l.LinearOf(ctx, sources[i], prefix+m.name, lora.Attention, m.rows, hidden); err != nil {
			return a, err
		}
		l.shareOut(m.to, nn.CutOutputs, sources[i].Out, m.rows)
		if o.QKVBias {
			if m.to.Bias, err = l.Vector(prefix+m.name+".bias", sources[i].Out, m.rows); err != nil {
				return a, err
			}
		}
	}
	if a.O, err = l.Linear(ctx, prefix+"o_proj", lora.Attention, c.HiddenSize, queries, hidden, heads.times(c.HeadDim), o.OBias); err != nil {
		return a, err
	}
	l.shareOut(&a.O, nn.CutInputs, queries, heads.times(c.HeadDim))
	if o.Sinks {
		a.Sinks, err = l.Vector(prefix+"sinks", c.Heads, heads)
	}
	return a, err
}

// feedForward loads the MLP of layer i, or its mixture of experts.
func (l *Loader) feedForward(ctx context.Context, i int, o TransformerOptions) (nn.Sublayer, error) {
	switch c := l.Config; {
	case c.Sparse(i) && c.MoE.Shared > 0:
		return l.sharedMixture(ctx, i, o)
	case c.Sparse(i):
		return l.Mixture(ctx, i, o.Mixture)
	}
	return l.MLP(ctx, layerName(i)+"mlp.", l.Config.IntermediateSize, o)
}

// MLP loads a gated MLP of a width, whose tensors' names begin as given.
func (l *Loader) MLP(ctx context.Context, prefix string, width int, o TransformerOptions) (*nn.MLP, error) {
	m := &nn.MLP{}
	hidden, own := extent{0, l.Config.HiddenSize}, share(width, l.model.Rank, l.model.Ranks)
	sources, err := l.apart(prefix, "gate_up_proj", o.Fused, l.Config.HiddenSize, part{"gate_proj", width}, part{"up_proj", width})
	if err != nil {
		return nil, err
	}
	if m.Gate, err = l.LinearOf(ctx, sources[0], prefix+"gate_proj", lora.MLP, own, hidden); err != nil {
		return nil, err
	}
	if m.Up, err = l.LinearOf(ctx, sources[1], prefix+"up_proj", lora.MLP, own, hidden); err != nil {
		return nil, err
	}
	m.Down, err = l.Linear(ctx, prefix+"down_proj", lora.MLP, l.Config.HiddenSize, width, hidden, own, false)
	l.shareOut(&m.Gate, nn.CutOutputs, width, own)
	l.shareOut(&m.Up, nn.CutOutputs, width, own)
	l.shareOut(&m.Down, nn.CutInputs, width, own)
	return m, err
}

// apart gives the sources of parts that may be one tensor, in which they are one below another.
func (l *Loader) apart(prefix, fused string, isFused bool, in int, parts ...part) ([]Source, error) {
	byName := map[string]Source{}
	if isFused {
		if err := l.takeApart(byName, prefix, fused, in, below(parts...)); err != nil {
			return nil, err
		}
	}
	var sources []Source
	for _, p := range parts {
		s, ok := byName[p.name]
		if !ok {
			var err error
			if s, err = l.Weight(prefix+p.name, p.out, in); err != nil {
				return nil, err
			}
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// LayerNorms loads the norms before layer i's attention and before its MLP.
func (l *Loader) LayerNorms(i int, o TransformerOptions) (input, attention nn.RMSNorm, err error) {
	if input, err = l.norm(layerName(i)+"input_layernorm.weight", l.Config.HiddenSize, o); err != nil {
		return
	}
	attention, err = l.norm(layerName(i)+"post_attention_layernorm.weight", l.Config.HiddenSize, o)
	return
}

// HeadNorms loads the norms of layer i's query and key heads, nil where the family has none.
func (l *Loader) HeadNorms(i int, o TransformerOptions) (query, key *nn.RMSNorm, err error) {
	if !o.QKNorm {
		return nil, nil, nil
	}
	q, err := l.norm(layerName(i)+"self_attn.q_norm.weight", l.Config.HeadDim, o)
	if err != nil {
		return nil, nil, err
	}
	k, err := l.norm(layerName(i)+"self_attn.k_norm.weight", l.Config.HeadDim, o)
	return &q, &k, err
}

func (l *Loader) norm(name string, n int, o TransformerOptions) (nn.RMSNorm, error) {
	if o.OnePlusNorms {
		return l.OnePlusNorm(name, n)
	}
	return l.Norm(name, n)
}
