// Package qwen3next has Qwen3-Next models: those of package qwen35moe with other forms of linear attention's projections. What they have for predicting several tokens is left out.
package qwen3next

import (
	"context"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// Name is the architecture's name in config.json.
const Name = "Qwen3NextForCausalLM"

// Architecture loads these models.
func Architecture() model.Architecture {
	return model.Architecture{
		Check: func(c *model.Config) error {
			return model.CheckHybrid(c, model.Features{Experts: true, SharedExpert: true})
		},
		Layer: func(ctx context.Context, l *model.Loader, i int) (nn.Layer, error) {
			normalised := l.Config.MoE.Normalised // the default of transformers is true
			return l.HybridLayer(ctx, i, model.HybridOptions{ByKeyHead: true, Mixture: model.MixtureOptions{Normalised: normalised == nil || *normalised}})
		},
		Ignored: []string{"mtp."}, OnePlusNorms: true, Recurrence: true, Defaults: model.Defaults{RotaryFactor: 0.25}, PEFTExperts: model.ExpertsAndSharedOnesFused,
	}
}
