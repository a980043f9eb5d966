// Package qwen35 has dense Qwen3.5, Qwen3.6 and Qwen3.8 models: three layers of linear attention by the gated delta rule, then one of gated attention. Of the published files the text model is loaded; what they have for
// images and for predicting several tokens is left out.
package qwen35

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// The architectures' names in config.json: of the text model alone, and of the published files.
const (
	Name       = "Qwen3_5ForCausalLM"
	NestedName = "Qwen3_5ForConditionalGeneration"
)

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error { return model.CheckHybrid(c, model.Features{}) },
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.HybridLayer(ctx, i, model.HybridOptions{})
		},
		Ignored: []string{"mtp.", "model.visual."}, NestedConfig: true, OnePlusNorms: true, Recurrence: true, Defaults: model.Defaults{RotaryFactor: 0.25},
	}
}
