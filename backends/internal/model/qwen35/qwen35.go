// Package qwen35 has dense Qwen3.5, Qwen3.6 and Qwen3.8 models: three layers of linear attention by the gated delta rule, then one of gated attention. Of the published files the text model is loaded; what they have for
// images and for predicting several tokens is left out.
package qwen35

import (
	"context"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// The architectures' names in config.json: of the text model alone, and of the published files.
const (
	Name       = "Qwen3_5ForCausalLM"
	NestedName = "Qwen3_5ForConditionalGeneration"
)

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: check,
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.HybridLayer(ctx, i)
		},
		Ignored: []string{"mtp.", "model.visual."}, NestedConfig: true, OnePlusNorms: true, Recurrence: true, Defaults: model.Defaults{RotaryFactor: 0.25},
	}
}

func check(c *model.Config) error {
	if err := c.Check(model.Features{PartialRotary: true, LinearAttention: true}); err != nil {
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
