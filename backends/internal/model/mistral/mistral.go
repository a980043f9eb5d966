// Package mistral has dense Mistral models of text: those of Llama, with a size of heads of their own.
package mistral

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "MistralForCausalLM"

// defaultWindow is what transformers takes where config.json has no sliding_window; null there is none.
const defaultWindow = 4096

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error {
			if err := c.CheckWindow(defaultWindow); err != nil {
				return err
			}
			return model.CheckPlain(c)
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{})
		},
	}
}
