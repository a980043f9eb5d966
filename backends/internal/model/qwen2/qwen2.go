// Package qwen2 has Qwen2 and Qwen2.5 models: biases on the q, k and v projections, always.
package qwen2

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "Qwen2ForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error { return c.Check(model.Features{Window: true}) },
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{QKVBias: true})
		},
		Defaults: model.Defaults{Window: 4096, Windows: model.UpperWindows},
	}
}
