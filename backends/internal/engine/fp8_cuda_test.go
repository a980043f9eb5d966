package engine

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
)

// TestFP8OnCUDA: on GPUs too, whole runs have the same bits with weights kept in FP8 as with those that were expanded, in less memory, wherever the model is; by themselves they are kept.
func TestFP8OnCUDA(t *testing.T) {
	dir := fp8Model(t)
	for _, p := range []struct {
		placement
		devices int
	}{
		{placement{"one GPU", "single", `{"device": "cuda:0"` + smallMemory + `}`}, 1},
		{placement{"two copies with shared-out weights", "dataparallel", `{"devices": ["cuda:0", "cuda:1"], "shard_base": true` + smallMemory + `}`}, 2},
		{placement{"cut over two GPUs", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2},
	} {
		t.Run(p.name, func(t *testing.T) {
			load := func(weights string) *Engine {
				return placeModel(t, dir, withWeights(p.placement, weights), optionsOnCUDA(t, p.devices, cuda.New))
			}
			expanded, kept := load("bf16"), load("auto")
			if a, b := kept.loaded.plan.weights, expanded.loaded.plan.weights; a >= b || !kept.loaded.model.FP8 || expanded.loaded.model.FP8 {
				t.Errorf("%d bytes, expanded %d; kept in FP8: %v", a, b, kept.loaded.model.FP8)
			}
			equalHistories(t, briefLife(t, kept), briefLife(t, expanded))
		})
	}
}
