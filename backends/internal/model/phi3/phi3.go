// Package phi3 has Phi-3 and Phi-4 models: queries, keys and values are one matrix in the files, gate and up another, positions may turn a part of each head, and other angles in long contexts. LoRA is on the parts.
package phi3

import (
	"context"
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "Phi3ForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error {
			if err := c.Require("rms_norm_eps"); err != nil { // transformers has a default of its own
				return err
			}
			if c.Rope.Llama3 != nil || c.Rope.YaRN != nil { // transformers takes yarn for longrope, and refuses others
				return errors.New("rope_type is llama3 or yarn, only default and longrope are supported for " + Name)
			}
			return c.Check(model.Features{PartialRotary: true, Window: true, LongRoPE: true})
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{Fused: true})
		},
		Defaults: model.Defaults{Windows: model.EveryWindow},
	}
}
