// Package gptoss has gpt-oss models: attention with sinks, to a window in some layers, and experts with biases and a clamped gated product.
package gptoss

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Name is the architecture's name in config.json.
const Name = "GptOssForCausalLM"

// clamp is what transformers has, whatever the configuration says.
var clamp = tensor.Clamp{Alpha: 1.702, Limit: 7}

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: check,
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{QKVBias: true, OBias: true, Sinks: true,
				Mixture: model.MixtureOptions{Normalised: true, Router: "router", Biases: true, Clamp: clamp, Experts: model.ExpertOptions{Transposed: true, Interleaved: true}}})
		},
		Defaults: model.Defaults{ExpertWidth: true}, PEFTExperts: model.ExpertsInterleaved,
	}
}

func check(c *model.Config) error {
	if err := c.Require("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta", "layer_types"); err != nil {
		return err
	}
	if err := c.Check(model.Features{Experts: true, Window: true, AttentionBias: true}); err != nil {
		return err
	}
	switch limit := c.MoE.Limit; {
	case !c.AttentionBias:
		return errors.New("attention_bias is false or missing, only true is supported for " + Name)
	case c.Rope.YaRN == nil:
		return errors.New("rope_scaling or rope_parameters is missing, or of another rope_type than yarn, which alone is supported for " + Name)
	case limit != 0 && limit != float64(clamp.Limit):
		return fmt.Errorf("swiglu_limit is %v, only %v is supported for %s", limit, clamp.Limit, Name)
	case c.MoE.Width != c.IntermediateSize:
		return fmt.Errorf("moe_intermediate_size is %d, it must be intermediate_size %d for %s", c.MoE.Width, c.IntermediateSize, Name)
	}
	for i := range c.Layers {
		if !c.Sparse(i) {
			return fmt.Errorf("decoder_sparse_step or mlp_only_layers leaves layer %d without experts, which %s does not have", i, Name)
		}
	}
	return nil
}
