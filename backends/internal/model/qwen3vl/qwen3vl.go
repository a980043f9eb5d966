// Package qwen3vl has the text models of Qwen3-VL, without and with experts: those of packages qwen3 and qwen3moe among others. What the files have for images is left out.
package qwen3vl

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// The architectures' names in config.json.
const (
	Name        = "Qwen3VLForConditionalGeneration"
	ExpertsName = "Qwen3VLMoeForConditionalGeneration"
)

// Architecture loads those without experts.
func Architecture() model.Architecture { return architecture(model.Features{}) }

// ExpertsArchitecture loads those with experts.
func ExpertsArchitecture() model.Architecture { return architecture(model.Features{Experts: true}) }

func architecture(f model.Features) model.Architecture {
	experts := model.MixtureOptions{Normalised: true, Experts: model.ExpertOptions{Transposed: true}} // whatever norm_topk_prob says, as in transformers
	return model.Architecture{
		Check: func(c *model.Config) error {
			if err := c.Require("rope_theta", "head_dim"); err != nil {
				return err
			}
			return c.Check(f)
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.TransformerLayer(ctx, i, model.TransformerOptions{QKNorm: true, Mixture: experts})
		},
		Ignored: []string{"model.visual."}, NestedConfig: true, PEFTExperts: model.ExpertsFused,
	}
}
