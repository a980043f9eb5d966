// Package qwen3moe has Qwen3 models with mixtures of experts.
package qwen3moe

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "Qwen3MoeForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error { return c.Check(model.Features{Experts: true, Window: true}) },
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			normalised := l.Config.MoE.Normalised // the default of transformers is false
			return l.TransformerLayer(ctx, i, model.TransformerOptions{QKNorm: true, Mixture: model.MixtureOptions{Normalised: normalised != nil && *normalised}})
		},
		Defaults: model.Defaults{Window: 4096, Windows: model.UsedWindows},
	}
}
