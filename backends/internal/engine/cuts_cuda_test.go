package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestLayersCutOnCUDA: mixtures of experts and linear attention that are cut over ranks on one GPU have the bits of those cut over two, by NCCL too, and nearly those of whole ones; and what they sample with is what they train with.
func TestLayersCutOnCUDA(t *testing.T) {
	written := func(write func(dir string) error) func(t *testing.T) string {
		return func(t *testing.T) string {
			dir := t.TempDir()
			if err := write(dir); err != nil {
				t.Fatal(err)
			}
			return dir
		}
	}
	const sinksAndBiases = "sinks and biases"
	for _, m := range []struct {
		name, dtype string
		dir         func(t *testing.T) string
	}{
		{"experts", "auto", func(t *testing.T) string { return writeMixture(t, 1) }},
		{"linear attention", "float32", written(denseHybrid.write)},
		{"linear attention and experts", "bfloat16", written(expertHybrid.write)},
		{sinksAndBiases, "float32", func(t *testing.T) string { return gptOSS{quantized: true}.write(t) }},
	} {
		t.Run(m.name, func(t *testing.T) {
			dir, rest := m.dir(t), `, "dtype": "`+m.dtype+`", "prefill_tokens": 50`+smallMemory+`}`
			life := func(plugin, devices string, n int) history {
				e := placeModel(t, dir, placement{plugin: plugin, section: "{" + devices + rest}, optionsOnCUDA(t, n, cuda.New))
				h := briefLife(t, e)
				sampledAsTrained(t, e)
				return h
			}
			whole := life("single", `"device": "cuda:0"`, 1)
			first := life("tensorparallel", `"devices": ["cuda:0", "cuda:0"]`, 1)
			if m.name == sinksAndBiases { // Adam makes whole steps of gradients that are rounding and nothing else, of which this model has some: what its weights say is compared, not they
				maps.DeleteFunc(whole.floats, func(name string, _ []float32) bool { return strings.HasPrefix(name, "weights ") })
			}
			nearHistories(t, first, whole)
			equalHistories(t, life("tensorparallel", `"devices": ["cuda:0", "cuda:1"], "recompute": "on"`, 2), first)
			equalHistories(t, life("tensorparallel", `"devices": ["cuda:0", "cuda:1"], "comm": "nccl"`, 2), first)
		})
	}
}

// sampledAsTrained samples with an adapter that has been trained, and asks the trainer for the same bits.
func sampledAsTrained(t *testing.T, e *Engine) {
	t.Helper()
	random := rand.New(rand.NewPCG(8, 9))
	d := create(t, e, "sampled as trained", 1, 2)
	d.pass(randomData(random, 2, 9))
	d.step()
	q := ask("as trained", d.adapter, randomTokens(random, 11), 3, 6)
	out, err := collect(t.Context(), e, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range out.sequences {
		whole := slices.Concat(q.Prompt, s.Tokens)
		r, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy", ForwardOnly: true,
			Data: []plugins.Datum{{Tokens: whole[:len(whole)-1], Targets: whole[1:], K: 1, Weights: make([]float32, len(whole)-1)}}})
		if err != nil {
			t.Fatal(err)
		}
		equalBits(t, "sampled", s.Logprobs, r.Logprobs[0][len(q.Prompt)-1:])
	}
}
