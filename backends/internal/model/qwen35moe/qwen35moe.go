// Package qwen35moe has Qwen3.5, Qwen3.6 and Qwen3.8 models with mixtures of experts: the layers of package qwen35 before experts, beside which every token takes a shared one.
package qwen35moe

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// The architectures' names in config.json: of the text model alone, and of the published files.
const (
	Name       = "Qwen3_5MoeForCausalLM"
	NestedName = "Qwen3_5MoeForConditionalGeneration"
)

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error {
			return model.CheckHybrid(c, model.Features{Experts: true, SharedExpert: true})
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			return l.HybridLayer(ctx, i, model.HybridOptions{Mixture: model.MixtureOptions{Normalised: true}}) // whatever norm_topk_prob says, as in transformers
		},
		Ignored: []string{"mtp.", "model.visual."}, NestedConfig: true, OnePlusNorms: true, Recurrence: true, Defaults: model.Defaults{RotaryFactor: 0.25}, PEFTExperts: model.ExpertsFused,
	}
}
