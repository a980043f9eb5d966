package model

import (
	"context"
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

// HybridLayer loads layer i of a model whose layers have either gated attention or linear attention, before a gated MLP, with norms of which the files have what they are above one.
func (l *Loader) HybridLayer(ctx context.Context, i int) (nn.Layer, error) {
	o := TransformerOptions{QKNorm: true, OnePlusNorms: true}
	layer := &nn.TransformerLayer{}
	var err error
	if l.Config.LayerTypes[i] == LinearAttention {
		layer.Mixer, err = l.deltaNet(ctx, i)
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

// deltaNet loads the linear attention of layer i. Its in_proj_qkv is three modules, of which the rows are queries, keys and values.
func (l *Loader) deltaNet(ctx context.Context, i int) (*nn.DeltaNet, error) {
	c, s := l.Config, l.Config.DeltaNet
	if l.model.Ranks > 1 {
		return nil, fmt.Errorf("layer %d is %s, which %w over %d devices yet: copies of the model can be (plugin dataparallel)", i, LinearAttention, ErrCut, l.model.Ranks)
	}
	d := &nn.DeltaNet{KeyHeads: s.KeyHeads, KeyDim: s.KeyHeadDim, ValueHeads: s.ValueHeads, ValueDim: s.ValueHeadDim}
	keys, values := s.KeyHeads*s.KeyHeadDim, s.ValueHeads*s.ValueHeadDim
	prefix, hidden := layerName(i)+"linear_attn.", extent{0, c.HiddenSize}
	whole, err := l.Weight(prefix+"in_proj_qkv", 2*keys+values, c.HiddenSize)
	if err != nil {
		return nil, err
	}
	for _, m := range []struct {
		to     *nn.Linear
		name   string
		source Source
	}{{&d.Q, "in_proj_q", whole.Slice(0, keys)}, {&d.K, "in_proj_k", whole.Slice(keys, 2*keys)}, {&d.V, "in_proj_v", whole.Slice(2*keys, 2*keys+values)}} {
		if *m.to, err = l.LinearOf(ctx, m.source, prefix+m.name, lora.Attention, extent{0, m.source.Out}, hidden); err != nil {
			return nil, err
		}
	}
	l.Fused(prefix+"in_proj_qkv", prefix+"in_proj_q", prefix+"in_proj_k", prefix+"in_proj_v")
	for _, m := range []struct {
		to      *nn.Linear
		name    string
		group   lora.Group
		out, in int
	}{
		{&d.Z, "in_proj_z", lora.Attention, values, c.HiddenSize},
		{&d.A, "in_proj_a", lora.Imported, s.ValueHeads, c.HiddenSize},
		{&d.B, "in_proj_b", lora.Imported, s.ValueHeads, c.HiddenSize},
		{&d.O, "out_proj", lora.Attention, c.HiddenSize, values},
	} {
		if *m.to, err = l.Linear(ctx, prefix+m.name, m.group, m.out, m.in, extent{0, m.out}, extent{0, m.in}, false); err != nil {
			return nil, err
		}
	}
	if d.Filter, err = l.filter(prefix+"conv1d.weight", 2*keys+values, s.Kernel); err != nil {
		return nil, err
	}
	heads := extent{0, s.ValueHeads}
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

// filter loads the weights of a convolution, of which the files have a row for every channel, as a row for every position.
func (l *Loader) filter(name string, channels, width int) (tensor.Tensor, error) {
	v, err := l.Rows(name, channels, width, extent{0, channels})
	if err != nil {
		return v, err
	}
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
