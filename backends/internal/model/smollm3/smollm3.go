// Package smollm3 has SmolLM3 models: those of Llama, but for layers in which positions turn nothing.
package smollm3

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "SmolLM3ForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error {
			if err := c.Require("no_rope_layers", "rope_theta"); err != nil { // transformers has defaults of its own
				return err
			}
			return c.Check(model.Features{StillLayers: true, Window: true})
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{})
		},
		Defaults: model.Defaults{Tied: true, Windows: model.StillWindows},
	}
}
