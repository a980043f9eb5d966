package engine

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/plugins"
)

// onCUDA is start on a device of the driver that needs no GPU, whose stream runs as late as it may.
func (m hybridModel) onCUDA(t *testing.T, section string) *Engine {
	t.Helper()
	dir := t.TempDir()
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	return placeModel(t, dir, placement{plugin: "single", section: section}, optionsOnCUDA(t, 1, cuda.New))
}

// A model with linear attention trains on CUDA, samples with the trainer's bits, also from a snapshot, and decodes by graphs.
func TestHybridOnCUDA(t *testing.T) {
	for _, c := range []struct {
		name, dtype string
		model       hybridModel
	}{{"dense", "float32", denseHybrid}, {"experts", "bfloat16", expertHybrid}} {
		t.Run(c.name, func(t *testing.T) {
			e := c.model.onCUDA(t, `{"device": "cuda:0", "dtype": "`+c.dtype+`", "prefill_tokens": 50`+strings.Replace(smallMemory, "24", "160", 1)+`}`)
			random := rand.New(rand.NewPCG(4, 1))
			d := create(t, e, "a", 1, 2)
			before := d.weights()
			for range 2 {
				d.pass(randomData(random, 2, 9))
				d.step()
			}
			for name, w := range d.weights() {
				if slices.Equal(w, before[name]) {
					t.Errorf("%s has not changed", name)
				}
			}
			count := filepath.Join(t.TempDir(), "count")
			hook(t, e, func() { _ = os.Setenv("FAKE_CUDA_COUNT", count) })
			t.Cleanup(func() { _ = os.Unsetenv("FAKE_CUDA_COUNT") })
			q := ask("q", "a", randomTokens(random, 70), 2, 12)
			q.PromptLogprobs = false
			first, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			hook(t, e, func() { _ = os.Unsetenv("FAKE_CUDA_COUNT") })
			if text, err := os.ReadFile(count); err != nil || !strings.Contains(string(text), "cuGraphLaunch") {
				t.Errorf("decoding started no graphs: %v", err)
			}
			for _, s := range first.sequences {
				whole := slices.Concat(q.Prompt, s.Tokens)
				r, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Loss: "cross_entropy", ForwardOnly: true,
					Data: []plugins.Datum{{Tokens: whole[:len(whole)-1], Targets: whole[1:], K: 1, Weights: make([]float32, len(whole)-1)}}})
				if err != nil {
					t.Fatal(err)
				}
				equalBits(t, "sampled", s.Logprobs, r.Logprobs[0][len(q.Prompt)-1:])
			}
			again, err := collect(t.Context(), e, q)
			if err != nil || again.prompt.CachedTokens != 64 {
				t.Fatalf("%d cached, %v; want 64", again.prompt.CachedTokens, err)
			}
			equalSamples(t, "from the prompt's snapshot", again.sequences, first.sequences)
		})
	}
}
