// Package qwen3 has dense Qwen3 models: an RMSNorm over each query and key head.
package qwen3

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "Qwen3ForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error { return c.Check(model.Features{Window: true}) },
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{QKNorm: true})
		},
		Defaults: model.Defaults{Window: 4096, Windows: model.UpperWindows},
	}
}
