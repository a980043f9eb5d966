package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// attentionLayers is the number of layers that have keys and values.
func (c *Config) attentionLayers() int { return c.attentionIndex(c.Layers) }

// AttentionLayers is the number of layers of the pages of keys and values, one at least.
func (c *Config) AttentionLayers() int { return max(1, c.attentionLayers()) }

// attentionIndex is the number of layers before layer i that have keys and values: its layer in the pages.
func (c *Config) attentionIndex(i int) int {
	n := 0
	for _, t := range c.LayerTypes[:i] {
		if t != LinearAttention {
			n++
		}
	}
	return n
}

// HybridOptions are where families differ whose layers have either gated attention or linear attention.
type HybridOptions struct {
	ByKeyHead bool // the projections of linear attention are two tensors, whose rows go by key heads, see Loader.projectionsByKeyHead
	Mixture   MixtureOptions
}

// CheckHybrid is Config.Check for a family of such layers, with other features beside.
func CheckHybrid(c *Config, f Features) error {
	f.PartialRotary, f.LinearAttention = true, true
	if err := c.Check(f); err != nil {
		return err
	}
	if c.OutputGate != nil && !*c.OutputGate {
		return errors.New("attn_output_gate is false, only true is supported for " + c.Architecture)
	}
	d := c.DeltaNet
	for _, s := range []struct {
		name        string
		value, most int
	}{{"linear_key_head_dim", d.KeyHeadDim, tensor.MaxDeltaDim}, {"linear_value_head_dim", d.ValueHeadDim, tensor.MaxDeltaDim}, {"linear_conv_kernel_dim", d.Kernel, tensor.MaxConvWidth}} {
		if s.value > s.most {
			return fmt.Errorf("%s is %d, at most %d is supported", s.name, s.value, s.most)
		}
	}
	return nil
}

// HybridLayer loads layer i of a model whose layers have either gated attention or linear attention, before a gated MLP or experts, with norms of which the files have what they are above one.
func (l *Loader) HybridLayer(ctx context.Context, i int, options HybridOptions) (nn.Layer, error) {
	o := TransformerOptions{QKNorm: true, OnePlusNorms: true, Mixture: options.Mixture}
	layer := &nn.TransformerLayer{}
	var err error
	if l.Config.LayerTypes[i] == LinearAttention {
		layer.Mixer, err = l.deltaNet(ctx, i, options)
	} else {
		layer.Mixer, err = l.gatedAttention(ctx, i, o)
	}
	if err != nil {
		return nil, err
	}
	if layer.MLP, err = l.feedForward(ctx, i, o); err != nil {
		return nil, err
	}
	layer.InputNorm, layer.MixerNorm, err = l.LayerNorms(i, o)
	return layer, err
}

// gatedAttention loads the attention of layer i, whose q_proj has as many rows of gates as of queries.
func (l *Loader) gatedAttention(ctx context.Context, i int, o TransformerOptions) (*nn.GatedAttention, error) {
	o.OutputGate = true
	a, err := l.AttentionLayer(ctx, i, o)
	if err != nil {
		return nil, err
	}
	if a.QNorm, a.KNorm, err = l.HeadNorms(i, o); err != nil {
		return nil, err
	}
	return &nn.GatedAttention{Attention: a}, nil
}

// deltaNet loads the linear attention of layer i.
func (l *Loader) deltaNet(ctx context.Context, i int, o HybridOptions) (*nn.DeltaNet, error) {
	s := l.Config.DeltaNet
	if !l.model.Device.HasRecurrence() {
		return nil, fmt.Errorf("layer %d is %s: device %s has no kernels for it yet", i, LinearAttention, l.model.Device.Name())
	}
	rank, ranks := l.model.Rank, l.model.Ranks
	keyHeads, heads := share(s.KeyHeads, rank, ranks), share(s.ValueHeads, rank, ranks) // each key head is with the value heads that use it
	d := &nn.DeltaNet{KeyHeads: keyHeads.size(), KeyDim: s.KeyHeadDim, ValueHeads: heads.size(), ValueDim: s.ValueHeadDim}
	keyRows, valueRows := keyHeads.times(s.KeyHeadDim), heads.times(s.ValueHeadDim)
	prefix := layerName(i) + "linear_attn."
	projections := l.projections
	if o.ByKeyHead {
		projections = l.projectionsByKeyHead
	}
	sources, err := projections(prefix)
	if err != nil {
		return nil, err
	}
	for _, m := range []struct {
		to    *nn.Linear
		name  string
		group lora.Group
		cut   nn.Cut
		part  extent
	}{
		{&d.Q, "in_proj_q", lora.Attention, nn.CutOutputs, keyRows}, {&d.K, "in_proj_k", lora.Attention, nn.CutOutputs, keyRows}, {&d.V, "in_proj_v", lora.Attention, nn.CutOutputs, valueRows},
		{&d.Z, "in_proj_z", lora.Attention, nn.CutOutputs, valueRows}, {&d.A, "in_proj_a", lora.Imported, nn.CutOutputs, heads}, {&d.B, "in_proj_b", lora.Imported, nn.CutOutputs, heads},
		{&d.O, "out_proj", lora.Attention, nn.CutInputs, valueRows},
	} {
		source := sources[m.name]
		n, rows, cols := source.Out, m.part, extent{0, source.In}
		if m.cut == nn.CutInputs {
			n, rows, cols = source.In, extent{0, source.Out}, m.part
		}
		if *m.to, err = l.LinearOf(ctx, source, prefix+m.name, m.group, rows, cols); err != nil {
			return nil, err
		}
		l.shareOut(m.to, m.cut, n, m.part)
	}
	if d.Filter, err = l.filter(prefix+"conv1d.weight", s, keyRows, valueRows); err != nil {
		return nil, err
	}
	if d.ALog, err = l.PreciseVector(prefix+"A_log", s.ValueHeads, heads); err != nil {
		return nil, err
	}
	if d.Bias, err = l.Vector(prefix+"dt_bias", s.ValueHeads, heads); err != nil {
		return nil, err
	}
	if d.Norm, err = l.PreciseNorm(prefix+"norm.weight", s.ValueHeadDim); err != nil {
		return nil, err
	}
	state, tail := d.StateSize()
	d.State, d.Tail = l.model.stateSize, l.model.stateSize+state
	l.model.stateSize += state + tail
	return d, nil
}

// projections finds the matrices of linear attention by name, where in_proj_qkv has the rows of queries, keys and values one below another.
func (l *Loader) projections(prefix string) (map[string]Source, error) {
	s, hidden := l.Config.DeltaNet, l.Config.HiddenSize
	keys, values := s.KeyHeads*s.KeyHeadDim, s.ValueHeads*s.ValueHeadDim
	sources := map[string]Source{}
	if err := l.takeApart(sources, prefix, "in_proj_qkv", hidden, below(part{"in_proj_q", keys}, part{"in_proj_k", keys}, part{"in_proj_v", values})); err != nil {
		return nil, err
	}
	for _, w := range []struct {
		name    string
		out, in int
	}{{"in_proj_z", values, hidden}, {"in_proj_a", s.ValueHeads, hidden}, {"in_proj_b", s.ValueHeads, hidden}, {"out_proj", hidden, values}} {
		var err error
		if sources[w.name], err = l.Weight(prefix+w.name, w.out, w.in); err != nil {
			return nil, err
		}
	}
	return sources, nil
}

// projectionsByKeyHead is projections where the rows go by key heads: of each in in_proj_qkvz its queries, its keys, and the values and then the z of the value heads that it serves; in in_proj_ba the b and then the a of these.
func (l *Loader) projectionsByKeyHead(prefix string) (map[string]Source, error) {
	s, hidden := l.Config.DeltaNet, l.Config.HiddenSize
	each := s.ValueHeads / s.KeyHeads
	sources := map[string]Source{}
	if err := l.takeApart(sources, prefix, "in_proj_qkvz", hidden,
		inTurns(s.KeyHeads, part{"in_proj_q", s.KeyHeadDim}, part{"in_proj_k", s.KeyHeadDim}, part{"in_proj_v", each * s.ValueHeadDim}, part{"in_proj_z", each * s.ValueHeadDim})); err != nil {
		return nil, err
	}
	if err := l.takeApart(sources, prefix, "in_proj_ba", hidden, inTurns(s.KeyHeads, part{"in_proj_b", each}, part{"in_proj_a", each})); err != nil {
		return nil, err
	}
	var err error
	sources["out_proj"], err = l.Weight(prefix+"out_proj", hidden, s.ValueHeads*s.ValueHeadDim)
	return sources, err
}

// filter loads the weights of a convolution, of which the files have a row for every channel, as a row for every position: the channels of some queries, keys and values.
func (l *Loader) filter(name string, s *DeltaNet, keys, values extent) (tensor.Tensor, error) {
	n, width := s.KeyHeads*s.KeyHeadDim, s.Kernel
	v, err := l.Rows(name, 2*n+s.ValueHeads*s.ValueHeadDim, width, keys, keys.behind(n), values.behind(2*n))
	if err != nil {
		return v, err
	}
	channels := v.Rows
	if l.measures() {
		return v.Reshape(width, channels), nil
	}
	rows, turned := make([]float32, channels*width), make([]float32, channels*width)
	if err := l.model.Device.Download(rows, v); err != nil {
		return v, err
	}
	for c := range channels {
		for i := range width {
			turned[i*channels+c] = rows[c*width+i]
		}
	}
	v = v.Reshape(width, channels)
	return v, l.model.Device.Upload(v, turned)
}
