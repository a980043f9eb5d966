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
	QKVBias bool // biases on the q, k and v projections
	QKNorm  bool // an RMSNorm over each query and key head
}

// TransformerLayer loads layer i under the names that Llama, Qwen2 and Qwen3 share.
func (l *Loader) TransformerLayer(ctx context.Context, i int, o TransformerOptions) (nn.Layer, error) {
	c := l.Config
	prefix := fmt.Sprintf("model.layers.%d.", i)
	layer := &nn.TransformerLayer{}
	a := &layer.Attention
	rank, ranks := l.model.Rank, l.model.Ranks
	heads, keyHeads := share(c.Heads, rank, ranks), c.kvExtent(rank, ranks)
	a.Heads, a.KVHeads, a.HeadDim = heads.size(), keyHeads.size(), c.HeadDim
	a.Rope, a.Layer, a.Scale = l.Rope(), i, float32(1/math.Sqrt(float64(c.HeadDim)))
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	hidden, width := extent{0, c.HiddenSize}, share(c.IntermediateSize, rank, ranks)
	queryRows, keyRows := heads.times(c.HeadDim), keyHeads.times(c.HeadDim)
	for _, m := range []struct {
		to         *nn.Linear
		name       string
		group      lora.Group
		out, in    int
		rows, cols extent
		bias       bool
	}{
		{&a.Q, "self_attn.q_proj", lora.Attention, queries, c.HiddenSize, queryRows, hidden, o.QKVBias},
		{&a.K, "self_attn.k_proj", lora.Attention, keys, c.HiddenSize, keyRows, hidden, o.QKVBias},
		{&a.V, "self_attn.v_proj", lora.Attention, keys, c.HiddenSize, keyRows, hidden, o.QKVBias},
		{&a.O, "self_attn.o_proj", lora.Attention, c.HiddenSize, queries, hidden, queryRows, false},
		{&layer.MLP.Gate, "mlp.gate_proj", lora.MLP, c.IntermediateSize, c.HiddenSize, width, hidden, false},
		{&layer.MLP.Up, "mlp.up_proj", lora.MLP, c.IntermediateSize, c.HiddenSize, width, hidden, false},
		{&layer.MLP.Down, "mlp.down_proj", lora.MLP, c.HiddenSize, c.IntermediateSize, hidden, width, false},
	} {
		var err error
		if *m.to, err = l.Linear(ctx, prefix+m.name, m.group, m.out, m.in, m.rows, m.cols, m.bias); err != nil {
			return nil, err
		}
	}
	var err error
	if layer.InputNorm, err = l.Norm(prefix+"input_layernorm.weight", c.HiddenSize); err != nil {
		return nil, err
	}
	if layer.AttentionNorm, err = l.Norm(prefix+"post_attention_layernorm.weight", c.HiddenSize); err != nil {
		return nil, err
	}
	if !o.QKNorm {
		return layer, nil
	}
	for _, n := range []struct {
		to   **nn.RMSNorm
		name string
	}{{&a.QNorm, "self_attn.q_norm.weight"}, {&a.KNorm, "self_attn.k_norm.weight"}} {
		norm, err := l.Norm(prefix+n.name, c.HeadDim)
		if err != nil {
			return nil, err
		}
		*n.to = &norm
	}
	return layer, nil
}

// CheckPlain refuses what no family of plain transformers here has: biases that the configuration switches on, and sliding windows.
func CheckPlain(c *Config) error {
	switch {
	case c.AttentionBias:
		return fmt.Errorf("attention_bias is true, only false is supported for %s", c.Architecture)
	case c.MLPBias:
		return fmt.Errorf("mlp_bias is true, only false is supported for %s", c.Architecture)
	case c.SlidingWindow:
		return fmt.Errorf("a sliding window is in use (use_sliding_window or layer_types), only full attention is supported for %s", c.Architecture)
	}
	return nil
}
