package fake

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// TestGradients compares each loss's gradient of every parameter with central differences of the loss itself.
func TestGradients(t *testing.T) {
	m := newModel(&Config{VocabSize: 7, HiddenSize: 3})
	w := simple.NewWeights(simple.NewLayout(m.Modules(), 2, func(int) bool { return true }))
	for i := range w.Values {
		w.Values[i] = float32(0.3 * math.Sin(float64(i+1)))
	}
	d := plugins.Datum{Tokens: []int32{1, 4, 2, 6}, Targets: []int32{4, 2, 6, 0}, K: 1}
	rl := d
	rl.Logprobs, rl.Advantages = []float32{-1.5, -2.2, -1.9, -0.4}, []float32{1, -0.5, 0, 2}
	weighted := d
	weighted.Weights = []float32{0.5, 1, 0, 2}
	wide := d
	wide.K, wide.Targets, wide.Weights = 2, []int32{4, 1, 2, 2, 6, 3, 0, 5}, []float32{0.5, 0.25, 1, 0, 0, 0, 2, -1}
	for _, c := range []struct {
		name, loss string
		datum      plugins.Datum
	}{
		{"cross_entropy", "cross_entropy", weighted},
		{"two targets", "cross_entropy", wide},
		{"importance_sampling", "importance_sampling", rl},
		{"ppo", "ppo", rl},
		{"dro", "dro", rl},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := plugins.ResolveLossConfig(c.loss, nil)
			if err != nil {
				t.Fatal(err)
			}
			grad := make([]float64, len(w.Values))
			if _, _, _, err := simple.Loss(t.Context(), m, &w, &c.datum, c.loss, config, grad); err != nil {
				t.Fatal(err)
			}
			largest := 0.0
			for i := range grad {
				const step = 1.0 / 512
				at := func(x float32) float64 {
					moved := w
					moved.Values = slices.Clone(w.Values)
					moved.Values[i] = x
					total, _, _, err := simple.Loss(t.Context(), m, &moved, &c.datum, c.loss, config, nil)
					if err != nil {
						t.Fatal(err)
					}
					return total
				}
				up, down := w.Values[i]+step, w.Values[i]-step
				want := (at(up) - at(down)) / (float64(up) - float64(down))
				largest = max(largest, math.Abs(want))
				if math.Abs(grad[i]-want) > 2e-3*max(1, math.Abs(want)) {
					t.Errorf("parameter %d: gradient %v, differences say %v", i, grad[i], want)
				}
			}
			if largest < 0.01 {
				t.Errorf("largest gradient is %v: the test has nothing to compare", largest)
			}
		})
	}
}

// TestConfig names what is wrong.
func TestConfig(t *testing.T) {
	for _, c := range []struct{ name, config, field string }{
		{"unknown key", `{"vocab":3}`, "config"},
		{"trailing data", `{} {}`, "config"},
		{"vocab_size", `{"vocab_size":-1}`, "config.vocab_size"},
		{"device", `{"device":"cuda:0"}`, "config.device"},
		{"operation", `{"faults":[{"operation":"x","n":1,"action":"fail"}]}`, "config.faults[0].operation"},
		{"action", `{"faults":[{"operation":"load","n":1,"action":"x"}]}`, "config.faults[0].action"},
		{"count", `{"faults":[{"operation":"load","action":"fail"}]}`, "config.faults[0].n"},
		{"count and rate", `{"faults":[{"operation":"optim_step","n":1,"learning_rate":0.1,"action":"fail"}]}`, "config.faults[0].n"},
		{"rate of what has none", `{"faults":[{"operation":"load","learning_rate":0.1,"action":"fail"}]}`, "config.faults[0].learning_rate"},
		{"delay", `{"delays":[{"operation":"load","seconds":-1}]}`, "config.delays[0].seconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(Options{}).Load(context.Background(), plugins.LoadRequest{Config: json.RawMessage(c.config)}, func(plugins.LoadProgress) {})
			var e *plugins.Error
			if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != c.field {
				t.Errorf("error %v, want an invalid %s", err, c.field)
			}
		})
	}
}
