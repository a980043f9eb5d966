package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// TestLongFactors: which factors positions turn by is decided by the context that a model is loaded with, not by how long a sequence is.
func TestLongFactors(t *testing.T) {
	logprobs := func(context int, change func(positions map[string]any)) (values []float32, long, ok bool) {
		dir := unpack(t, "longrope")
		j := configOf(t, dir)
		change(j["rope_parameters"].(map[string]any))
		raw, err := json.Marshal(j)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		b := newBenchWith(t, dir, 1, model.LoadOptions{DType: tensor.Float32, MaxContext: context})
		base := open(t, dir, "base.safetensors")
		values = b.train(model.TrainOptions{}, b.example(nil, base.ids("tokens.0")[:16], base.ids("targets.0")[:16], nil))[0].Logprobs
		long, ok = b.LongFactors()
		return values, long, ok
	}
	as := func(from, to string) func(map[string]any) { return func(p map[string]any) { p[to] = p[from] } }
	asPublished := func(map[string]any) {}
	short, isLong, ok := logprobs(16, asPublished)
	if isLong || !ok {
		t.Errorf("with a context of 16: %v, %v", isLong, ok)
	}
	long, isLong, ok := logprobs(0, asPublished)
	if !isLong || !ok {
		t.Errorf("with a context of 512: %v, %v", isLong, ok)
	}
	if slices.Equal(long, short) {
		t.Error("long and short factors give the same")
	}
	if got, _, _ := logprobs(17, asPublished); !slices.Equal(got, long) {
		t.Error("with a context of 17 not those of long contexts")
	}
	if got, _, _ := logprobs(0, as("short_factor", "long_factor")); !slices.Equal(got, short) {
		t.Error("with a context of 16 not the short factors")
	}
	if got, _, _ := logprobs(16, as("long_factor", "short_factor")); !slices.Equal(got, long) {
		t.Error("with a context of 512 not the long factors")
	}
	b := newBench(t, unpack(t, "phi3"), tensor.Float32, 1)
	if isLong, ok := b.LongFactors(); isLong || ok {
		t.Errorf("of a model without: %v, %v", isLong, ok)
	}
}
