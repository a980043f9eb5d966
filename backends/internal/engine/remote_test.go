package engine

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
	"github.com/tinsmith/tinsmith/plugins/plugintest/elsewhere"
)

// The contract with another machine's connection between the tests and the engine: checkpoints cross as streams between two data directories.
func TestContractOnAnotherMachine(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		e, starve := starvable(t)
		model := t.TempDir()
		if err := writeTiny(model); err != nil {
			t.Fatal(err)
		}
		b := elsewhere.Serve(t, e, model).Attach(t, 1).Backend()
		s := plugintest.Subject{Backend: b, Model: loadTiny(t, b)}
		s.Starve, s.Shrink = starve, shrinkable(t, e)
		return s
	})
}

func loadTiny(t *testing.T, b plugins.Backend) plugins.ModelInfo {
	t.Helper()
	info, err := b.Load(t.Context(), plugins.LoadRequest{Name: "tiny"}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// What an engine gives its second gateway is, to the bit, what a new engine gives, although the first has left adapters, keys and values, and operations that wait.
func TestNextGatewayFindsItNew(t *testing.T) {
	model := t.TempDir()
	if err := writeTiny(model); err != nil {
		t.Fatal(err)
	}
	work := func(b plugins.Backend) string {
		loadTiny(t, b)
		config := plugins.AdapterConfig{Rank: 4, Seed: 5, TrainAttention: true, TrainMLP: true, TrainUnembed: true}
		if _, err := b.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: "a", Config: config}); err != nil {
			t.Fatal(err)
		}
		var all []any
		data := []plugins.Datum{{Tokens: []int32{1, 2, 3, 4, 5}, Targets: []int32{2, 3, 4, 5, 6}, K: 1, Weights: []float32{1, 1, 1, 0.5, 1}}}
		for step := range int64(3) {
			r, err := b.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: 2*step + 1, Data: data, Loss: "cross_entropy"})
			if err != nil {
				t.Fatal(err)
			}
			o, err := b.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: 2*step + 2, Adam: plugins.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r.Logprobs, o.Version, o.Step, o.Metrics["grad_norm"])
		}
		err := b.Sample(t.Context(), plugins.SampleRequest{
			ID: "s", Adapter: "a", Version: plugins.LatestVersion, Prompt: []int32{3, 4, 5, 6}, NumSamples: 3, MaxTokens: 6, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 9, PromptLogprobs: true, PrefixScope: "one", AtEnd: true,
		}, func(e plugins.SampleEvent) error {
			if e.Prompt != nil {
				all = append(all, e.Prompt.CachedTokens, e.Prompt.Logprobs[1:])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", all)
	}
	m := elsewhere.Serve(t, open(t), model)
	first := m.Attach(t, 1)
	b := first.Backend()
	want := work(b)
	waits := make(chan error, 1)
	go func() {
		_, err := b.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: 9, Adam: plugins.AdamParams{LearningRate: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}})
		waits <- err
	}()
	first.Close()
	if err := <-waits; err == nil {
		t.Error("an operation whose turn never came succeeded")
	}
	if got := work(m.Attach(t, 2).Backend()); got != want {
		t.Errorf("under the second lease\n%s\nunder the first\n%s", got, want)
	}
}
