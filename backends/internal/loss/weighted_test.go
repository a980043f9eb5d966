package loss

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// weighted are the values of testdata/weighted.json, by PyTorch in float64 from the formulas, on the inputs of losses.json.
type weighted struct {
	Logprobs   []float32 `json:"logprobs"`
	Sampling   []float32 `json:"sampling_logprobs"`
	Advantages []float32 `json:"advantages"`
	Signed     []float32 `json:"signed"`
	Plain      []float32 `json:"plain"`
	Mask       []float32 `json:"mask"`
	Cases      []struct {
		Loss    string             `json:"loss"`
		Config  map[string]float64 `json:"config"`
		Weights string             `json:"weights"`
		Terms   []float64          `json:"terms"`
		Sum     float64            `json:"loss_sum"`
		Slopes  []float64          `json:"dloss_dlogprob"`
	} `json:"cases"`
}

func readWeighted(t *testing.T) weighted {
	t.Helper()
	var w weighted
	for _, name := range []string{"testdata/losses.json", "testdata/weighted.json"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Cases = nil
		if err := json.Unmarshal(raw, &w); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.Cases) == 0 {
		t.Fatal("no cases")
	}
	return w
}

func (w *weighted) inputs(l Loss, weights []float32) Inputs {
	in := Inputs{Logprobs: w.Sampling, Advantages: w.Advantages, Weights: weights}
	if l.PerDatum() {
		in.SequenceRatioMask = w.Mask
	}
	return in
}

// run gives the sum, the derivatives and the terms.
func (w *weighted) run(t *testing.T, l Loss, weights []float32) (sum float64, slopes, terms []float32) {
	t.Helper()
	in, n := w.inputs(l, weights), len(w.Logprobs)
	if err := l.Check(in, n, 1); err != nil {
		t.Fatal(err)
	}
	ratio := 0.0
	if l.PerDatum() {
		ratio = l.DatumRatio(in, w.Logprobs)
	}
	slopes, terms = make([]float32, n), make([]float32, n)
	sum, err := l.Rows(0, in, 0, 1, w.Logprobs, ratio, slopes, terms)
	if err != nil {
		t.Fatal(err)
	}
	return sum, slopes, terms
}

func TestWeightsAgainstPyTorch(t *testing.T) {
	w := readWeighted(t)
	for _, c := range w.Cases {
		l, err := New(c.Loss, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		weights := w.Signed
		if c.Weights == "plain" {
			weights = w.Plain
		}
		sum, slopes, terms := w.run(t, l, weights)
		// w·A is rounded to float32: that much, of every term.
		const rounding = 1e-7
		size := 0.0
		for i, want := range c.Terms {
			size += math.Abs(want)
			if math.Abs(float64(terms[i])-want) > 2*rounding*(math.Abs(want)+math.Abs(float64(weights[i]))) { // dro's two parts may cancel
				t.Errorf("%s %v: term %d is %v, want %v", c.Loss, c.Config, i, terms[i], want)
			}
			if math.Abs(float64(slopes[i])-c.Slopes[i]) > 2*rounding*math.Abs(c.Slopes[i]) {
				t.Errorf("%s %v: derivative %d is %v, want %v", c.Loss, c.Config, i, slopes[i], c.Slopes[i])
			}
			if l.Idle(w.inputs(l, weights), i, 1) && (slopes[i] != 0 || terms[i] != 0) {
				t.Errorf("%s %v: position %d is idle but counts", c.Loss, c.Config, i)
			}
			if weights[i] == 0 && !l.Idle(w.inputs(l, weights), i, 1) {
				t.Errorf("%s %v: position %d has no weight and is not idle", c.Loss, c.Config, i)
			}
		}
		if math.Abs(sum-c.Sum) > rounding*size {
			t.Errorf("%s %v: sum %v, want %v", c.Loss, c.Config, sum, c.Sum)
		}
	}
}

// TestWeightsOfOne give the bits that no weights give, and what a device is told is the same too.
func TestWeightsOfOne(t *testing.T) {
	w := readWeighted(t)
	ones := make([]float32, len(w.Logprobs))
	for i := range ones {
		ones[i] = 1
	}
	for _, c := range w.Cases {
		l, err := New(c.Loss, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		sum, slopes, terms := w.run(t, l, nil)
		sum1, slopes1, terms1 := w.run(t, l, ones)
		if math.Float64bits(sum) != math.Float64bits(sum1) || !sameBits(slopes, slopes1) || !sameBits(terms, terms1) {
			t.Errorf("%s %v: ones are not the same as no weights", c.Loss, c.Config)
		}
		told := func(weights []float32) []tensor.LossTerm {
			return l.AppendTerms(nil, w.inputs(l, weights), 0, len(w.Logprobs), 1, 0, 0)
		}
		if !slices.Equal(told(nil), told(ones)) {
			t.Errorf("%s %v: a device is told something else with ones", c.Loss, c.Config)
		}
	}
}

// TestTermsAddUp sees that the terms are what the sum consists of, for every loss, cross_entropy with several targets among them.
func TestTermsAddUp(t *testing.T) {
	l, err := New("cross_entropy", nil)
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{Weights: []float32{0.5, 0, 2, 1}}
	slopes, terms := make([]float32, 4), make([]float32, 4)
	sum, err := l.Rows(0, in, 0, 2, []float32{-1, -7, -0.25, -4}, 0, slopes, terms)
	if err != nil || !slices.Equal(terms, []float32{0.5, 0, 0.5, 4}) || sum != 5 {
		t.Errorf("terms %v, sum %v, %v", terms, sum, err)
	}
	w := readWeighted(t)
	for _, c := range w.Cases {
		l, err := New(c.Loss, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		sum, _, terms := w.run(t, l, w.Plain)
		total, size := 0.0, 0.0
		for _, x := range terms {
			total, size = total+float64(x), size+math.Abs(float64(x))
		}
		if math.Abs(total-sum) > 1e-7*size {
			t.Errorf("%s: terms add up to %v, the sum is %v", c.Loss, total, sum)
		}
	}
}

func TestNegativeWeights(t *testing.T) {
	for loss, refused := range map[string]bool{"ppo": true, "gspo": true, "importance_sampling": false, "cispo": false, "dro": false, "stable_reinforce": false} {
		l, err := New(loss, nil)
		if err != nil {
			t.Fatal(err)
		}
		in := Inputs{Logprobs: []float32{-1}, Advantages: []float32{1}, Weights: []float32{-1}}
		if l.PerDatum() {
			in.SequenceRatioMask = []float32{1}
		}
		err = l.Check(in, 1, 1)
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), "weights[0] is -1") {
			t.Errorf("%s: %v", loss, err)
		}
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}
