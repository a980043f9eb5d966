package fake

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

func newLoaded(t *testing.T, c Config) *Backend {
	t.Helper()
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	b := New(Options{Exit: func(code int) { t.Errorf("exit with %d", code) }})
	if _, err := b.Load(context.Background(), plugins.LoadRequest{Name: "test", Config: raw}, func(plugins.LoadProgress) {}); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPhilox compares with the known-answer vectors that come with Random123.
func TestPhilox(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			counter: [4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, key: [2]uint32{0xffffffff, 0xffffffff},
			want: [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			counter: [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key: [2]uint32{0xa4093822, 0x299f31d0},
			want: [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

// TestGradients compares each loss's gradient of every parameter with central differences of the loss itself.
func TestGradients(t *testing.T) {
	b := newLoaded(t, Config{VocabSize: 7, HiddenSize: 3})
	s := newShape(b.model, 2, [3]bool{true, true, true})
	v := b.model.freshVersion(s, 5)
	for i := range v.flat {
		v.flat[i] += float32(0.2 * math.Sin(float64(i+1))) // B too, so that A has a gradient
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
			grad := make([]float64, s.total)
			b.sequence(&v.parameters, &c.datum, c.loss, config, grad)
			largest := 0.0
			for i := range grad {
				const step = 1.0 / 512
				at := func(x float32) float64 {
					p := parameters{shape: s, flat: append([]float32(nil), v.flat...)}
					p.flat[i] = x
					total, _, _ := b.sequence(&p, &c.datum, c.loss, config, nil)
					return total
				}
				up, down := v.flat[i]+step, v.flat[i]-step
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

// TestStoppedGradients checks the losses whose gradient is by definition not the derivative of their value.
func TestStoppedGradients(t *testing.T) {
	d := plugins.Datum{
		Tokens: []int32{1, 2, 3}, Targets: []int32{2, 3, 4}, K: 1,
		Logprobs: []float32{-1, -3, -1}, Advantages: []float32{2, -1, 0}, SequenceRatioMask: []float32{1, 1, 0},
	}
	lp := []float64{-1.5, -0.5, -2}
	s := math.Exp(((-1.5 + 1) + (-0.5 + 3)) / 2)
	for _, c := range []struct {
		loss   string
		config map[string]float64
		want   []float64
	}{
		{"cispo", map[string]float64{plugins.ClipLow: 0, plugins.ClipHigh: 4}, []float64{-2 * math.Exp(-0.5), 4, 0}},
		{"stable_reinforce", map[string]float64{plugins.RatioCap: 2}, []float64{-2 * math.Exp(-0.5), 2, 0}},
		{"gspo", map[string]float64{plugins.ClipLow: 0.8, plugins.ClipHigh: 1.2}, []float64{0, s, 0}},
	} {
		t.Run(c.loss, func(t *testing.T) {
			_, got := lossOf(c.loss, c.config, &d, lp)
			for i := range got {
				if math.Abs(got[i]-c.want[i]) > 1e-12 {
					t.Errorf("position %d: %v, want %v", i, got[i], c.want[i])
				}
			}
		})
	}
}

// TestFilters checks which tokens top-k, top-p and min-p leave.
func TestFilters(t *testing.T) {
	row := []float64{math.Log(0.1), math.Log(0.4), math.Log(0.3), math.Log(0.2)}
	for _, c := range []struct {
		name string
		req  plugins.SampleRequest
		want []int32
	}{
		{"none", plugins.SampleRequest{Temperature: 1, TopP: 1}, []int32{0, 1, 2, 3}},
		{"greedy", plugins.SampleRequest{Temperature: 0, TopP: 1}, []int32{1}},
		{"top-k 2", plugins.SampleRequest{Temperature: 1, TopP: 1, TopK: 2}, []int32{1, 2}},
		{"top-p 0.6", plugins.SampleRequest{Temperature: 1, TopP: 0.6}, []int32{1, 2}},
		{"top-p after top-k", plugins.SampleRequest{Temperature: 1, TopP: 0.5, TopK: 2}, []int32{1}},
		{"min-p 0.6", plugins.SampleRequest{Temperature: 1, TopP: 1, MinP: 0.6}, []int32{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[int32]bool{}
			for i := range 1000 {
				seen[drawFrom(&c.req, row, false, float64(i)/1000)] = true
			}
			if len(seen) != len(c.want) {
				t.Errorf("drawn tokens %v, want %v", seen, c.want)
			}
			for _, w := range c.want {
				if !seen[w] {
					t.Errorf("token %d was never drawn", w)
				}
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
