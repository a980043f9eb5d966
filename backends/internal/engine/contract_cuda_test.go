package engine

import (
	"os"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// The contract holds on GPUs, those of the driver that needs none, whose streams run as late as they may. Where a cut model trains and a whole one samples they differ by rounding, so that is not here.
func TestContractOnCUDA(t *testing.T) {
	for _, p := range []struct {
		placement
		devices int
		always  bool
	}{
		{placement{"one GPU", "single", `{"device": "cuda:0"` + smallMemory + `}`}, 1, true},
		{placement{"a cut over two GPUs", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2, false},
		{placement{"a cut over two GPUs by NCCL", "tensorparallel", `{"devices": ["cuda:0", "cuda:1"], "comm": "nccl"` + smallMemory + `}`}, 2, false},
		{placement{"a cut over two ranks on one GPU", "tensorparallel", `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`}, 1, false},
		{placement{"copies on two GPUs", "dataparallel", `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2, false},
		{placement{"shared-out weights on two GPUs", "dataparallel", `{"devices": ["cuda:0", "cuda:1"], "shard_base": true` + smallMemory + `}`}, 2, false},
		{placement{"two GPUs train, two others sample", "dataparallel", `{"devices": ["cuda:0", "cuda:1"], "sample_devices": ["cuda:2", "cuda:3"]` + smallMemory + `}`}, 4, false},
		{placement{"copies of a cut over four GPUs", "dataparallel", `{"devices": [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]` + smallMemory + `}`}, 4, false},
	} {
		t.Run(p.name, func(t *testing.T) {
			if !p.always && os.Getenv("E2E_LEVEL") != "all" {
				t.Skip("the contract in this placement takes a minute: E2E_LEVEL=all runs it")
			}
			contractOn(t, func(t *testing.T) *Engine { return placeOnCUDA(t, p.placement, p.devices) })
		})
	}
}

// On a machine with a GPU the same holds there, also of two ranks that share it: how they wait for each other and exchange is then the driver's.
func TestContractOnDevice(t *testing.T) {
	if err := cuda.Available(nil); err != nil {
		t.Skipf("no CUDA device: %v", err)
	}
	for _, p := range []placement{
		{"one rank", pluginSingle, `{"device": "cuda:0"` + smallMemory + `}`},
		{"two copies", pluginDataParallel, `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`},
		{"a cut over two ranks", pluginTensorParallel, `{"devices": ["cuda:0", "cuda:0"]` + smallMemory + `}`},
	} {
		t.Run(p.name, func(t *testing.T) {
			contractOn(t, func(t *testing.T) *Engine { return placeWith(t, p, gpuOptions(p.plugin, nil)) })
		})
	}
}

// contractOn runs the contract on engines that have no memory when they are told so.
func contractOn(t *testing.T, load func(t *testing.T) *Engine) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e := load(t)
		const places = 3 // steps take long
		hook(t, e, func() { e.loaded.config.MaxBatch = places })
		return plugintest.Subject{Backend: e, Model: e.loaded.info, Places: places, Shrink: shrinkable(t, e), Starve: func(starved bool) {
			hook(t, e, func() {
				for i, m := range e.loaded.memories {
					limit := e.loaded.plan.devices[i].limit
					if starved {
						limit = 0 // what is fixed is more
					}
					m.limit.Store(limit)
				}
			})
		}}
	})
}
