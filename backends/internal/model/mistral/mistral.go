// Package mistral has dense Mistral models of text: those of Llama, with a size of heads of their own.
package mistral

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "MistralForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error { return c.Check(model.Features{Window: true}) },
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{})
		},
		Defaults: model.Defaults{Window: 4096, Windows: model.EveryWindow},
	}
}
