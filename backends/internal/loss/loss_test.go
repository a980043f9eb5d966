package loss

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

// TestAgainstPyTorch compares with testdata/losses.json, made by PyTorch in float64 from the formulas in the Tinker documentation: every loss as a function of the
// log-probabilities, and its derivative by automatic differentiation.
func TestAgainstPyTorch(t *testing.T) {
	raw, err := os.ReadFile("testdata/losses.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Logprobs   []float32 `json:"logprobs"`
		Sampling   []float32 `json:"sampling_logprobs"`
		Advantages []float32 `json:"advantages"`
		Weights    []float32 `json:"weights"`
		Cases      []struct {
			Loss   string             `json:"loss"`
			Config map[string]float64 `json:"config"`
			Sum    float64            `json:"loss_sum"`
			Slopes []float64          `json:"dloss_dlogprob"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range golden.Cases {
		l, err := New(c.Loss, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		in := Inputs{Logprobs: golden.Sampling, Advantages: golden.Advantages}
		if c.Loss == "cross_entropy" {
			in = Inputs{Weights: golden.Weights}
		}
		n := len(golden.Logprobs)
		if err := l.Check(in, n, 1); err != nil {
			t.Fatal(err)
		}
		slopes, terms := make([]float32, n), make([]float32, n)
		// In two parts, as a training pass cuts it.
		sum, err := l.Rows(0, in, 0, 1, golden.Logprobs[:31], 0, slopes[:31], terms[:31])
		if err != nil {
			t.Fatal(err)
		}
		sum, err = l.Rows(sum, in, 31, 1, golden.Logprobs[31:], 0, slopes[31:], terms[31:])
		if err != nil {
			t.Fatal(err)
		}
		if d := math.Abs(sum - c.Sum); !(d <= 1e-9*math.Abs(c.Sum)+1e-9) {
			t.Errorf("%s %v: sum %v, want %v", c.Loss, c.Config, sum, c.Sum)
		}
		if whole, err := l.Rows(0, in, 0, 1, golden.Logprobs, 0, make([]float32, n), make([]float32, n)); err != nil || whole != sum {
			t.Errorf("%s %v: sum %v at once and %v in parts, %v", c.Loss, c.Config, whole, sum, err)
		}
		idle := 0
		for i := range n {
			if l.Idle(in, i, 1) {
				idle++
				if slopes[i] != 0 {
					t.Errorf("%s %v: position %d is idle but has a derivative", c.Loss, c.Config, i)
				}
			}
		}
		if (idle == 0) != (c.Loss == "dro") {
			t.Errorf("%s %v: %d positions are idle", c.Loss, c.Config, idle)
		}
		for i, want := range c.Slopes {
			if float32(want) != slopes[i] && !(math.Abs(float64(slopes[i])-want) <= 1e-7*math.Abs(want)) {
				t.Errorf("%s %v: derivative %d is %v, want %v", c.Loss, c.Config, i, slopes[i], want)
			}
		}
	}
}

func evaluate(t *testing.T, name string, config map[string]float64, in Inputs, lp []float32) (float64, []float32) {
	t.Helper()
	l, err := New(name, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(in, len(lp), 1); err != nil {
		t.Fatal(err)
	}
	slopes := make([]float32, len(lp))
	ratio := 0.0
	if l.PerDatum() {
		ratio = l.DatumRatio(in, lp)
	}
	sum, err := l.Rows(0, in, 0, 1, lp, ratio, slopes, make([]float32, len(lp)))
	if err != nil {
		t.Fatal(err)
	}
	return sum, slopes
}

func near(a float32, b float64) bool { return math.Abs(float64(a)-b) <= 1e-6*math.Max(1, math.Abs(b)) }

func TestGSPO(t *testing.T) {
	lp := []float32{-1, -2, -3, -0.5}
	in := Inputs{Logprobs: []float32{0, -2.5, -3.3, -0.7}, Advantages: []float32{0, 1, -2, 0.5}, SequenceRatioMask: []float32{0, 1, 1, 1}}
	s := math.Exp((0.5 + float64(float32(-3)-float32(-3.3)) + 0.2) / 3) // about 1.4: above 1.2
	sum, slopes := evaluate(t, "gspo", nil, in, lp)
	// A > 0: the bounded term is the smaller one, so there is no derivative; A < 0: the free one.
	want := []float64{0, 0, 2 * s, 0}
	for i := range want {
		if !near(slopes[i], want[i]) {
			t.Errorf("derivative %d is %v, want %v", i, slopes[i], want[i])
		}
	}
	if total := -(1.2*1 - s*2 + 1.2*0.5); math.Abs(sum-total) > 1e-6 {
		t.Errorf("sum %v, want %v", sum, total)
	}
	_, slopes = evaluate(t, "gspo", map[string]float64{"clip_high_threshold": 3}, in, lp)
	if !near(slopes[1], -s) || !near(slopes[3], -0.5*s) {
		t.Errorf("derivatives %v within the bounds", slopes)
	}
	in.SequenceRatioMask = make([]float32, 4)
	if _, slopes = evaluate(t, "gspo", nil, in, lp); slopes[1] != -1 || slopes[2] != 2 {
		t.Errorf("derivatives %v without a mask, want those of ratio 1", slopes)
	}
}

func TestStableReinforce(t *testing.T) {
	lp := []float32{-1, -1, -1}
	in := Inputs{Logprobs: []float32{-1.5, -3, -0.5}, Advantages: []float32{1, 2, -1}}
	sum, slopes := evaluate(t, "stable_reinforce", nil, in, lp)
	a, c := math.Exp(0.5), math.Exp(-0.5)
	for i, want := range []float64{-a, -4, c} { // the second ratio, 7.4, is capped at 2
		if !near(slopes[i], want) {
			t.Errorf("derivative %d is %v, want %v", i, slopes[i], want)
		}
	}
	if want := a + 4 - c; math.Abs(sum-want) > 1e-9 {
		t.Errorf("sum %v, want %v", sum, want)
	}
	if _, slopes := evaluate(t, "stable_reinforce", map[string]float64{"ratio_cap": 1}, in, lp); slopes[0] != -1 || slopes[1] != -2 {
		t.Errorf("derivatives %v with a cap of 1", slopes)
	}
}

// TestUnusedPositions have a ratio that overflows, an infinite log-probability, and no advantage or weight: they must count nothing.
func TestUnusedPositions(t *testing.T) {
	low := float32(math.Inf(-1))
	for _, name := range []string{"importance_sampling", "ppo", "cispo", "stable_reinforce"} {
		sum, slopes := evaluate(t, name, nil, Inputs{Logprobs: []float32{-3e38, 0}, Advantages: []float32{0, 0}}, []float32{0, low})
		if sum != 0 || slopes[0] != 0 || slopes[1] != 0 {
			t.Errorf("%s: %v %v", name, sum, slopes)
		}
	}
	if sum, slopes := evaluate(t, "cross_entropy", nil, Inputs{Weights: []float32{0}}, []float32{low}); sum != 0 || slopes[0] != 0 {
		t.Errorf("cross_entropy: %v %v", sum, slopes)
	}
}

func TestNotFinite(t *testing.T) {
	l, err := New("importance_sampling", nil)
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{Logprobs: []float32{0, -3e38}, Advantages: []float32{1, 1}}
	if _, err := l.Rows(0, in, 0, 1, []float32{-1, -1}, 0, make([]float32, 2), make([]float32, 2)); !errors.Is(err, ErrNotFinite) || !strings.Contains(err.Error(), "position 1") {
		t.Errorf("error %v", err)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		loss   string
		config map[string]float64
		want   string
	}{
		{"unknown loss", "mse", nil, `loss "mse" is not known: the losses are cispo, cross_entropy,`},
		{"unknown setting", "ppo", map[string]float64{"beta": 1}, `no setting "beta": it has clip_high_threshold, clip_low_threshold`},
		{"setting of a loss without any", "cross_entropy", map[string]float64{"beta": 1}, "it has none"},
		{"not a number", "dro", map[string]float64{"beta": math.NaN()}, "finite"},
		{"infinite", "cispo", map[string]float64{"clip_high_threshold": math.Inf(1)}, "finite"},
		{"negative", "cispo", map[string]float64{"clip_low_threshold": -1}, "not negative"},
		{"bounds crossed", "ppo", map[string]float64{"clip_low_threshold": 2}, "above clip_high_threshold"},
	} {
		if _, err := New(c.loss, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	nan := float32(math.NaN())
	for _, c := range []struct {
		name string
		loss string
		in   Inputs
		k    int
		want string
	}{
		{"missing", "ppo", Inputs{Logprobs: []float32{0, 0}}, 1, "needs 2 values of advantages, not 0"},
		{"short", "cross_entropy", Inputs{Weights: []float32{0, 0, 0}}, 2, "needs 4 values of weights, not 3"},
		{"not used", "cross_entropy", Inputs{Weights: []float32{0, 0}, Advantages: []float32{0, 0}}, 1, "does not use advantages"},
		{"weights too short", "ppo", Inputs{Logprobs: []float32{0, 0}, Advantages: []float32{0, 0}, Weights: []float32{1}}, 1, "needs 2 values of weights, not 1"},
		{"weights not finite", "cispo", Inputs{Logprobs: []float32{0, 0}, Advantages: []float32{0, 0}, Weights: []float32{1, nan}}, 1, "weights[1] is NaN"},
		{"not finite", "cross_entropy", Inputs{Weights: []float32{0, nan}}, 1, "weights[1] is NaN"},
		{"several targets", "ppo", Inputs{Logprobs: []float32{0, 0}, Advantages: []float32{0, 0}}, 2, "only cross_entropy takes several"},
		{"no mask", "gspo", Inputs{Logprobs: []float32{0, 0}, Advantages: []float32{0, 0}}, 1, "sequence_ratio_mask"},
	} {
		l, err := New(c.loss, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Check(c.in, 2, c.k); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

func TestExp(t *testing.T) {
	for x := -745.0; x < 709.5; x += 0.0371 {
		got, want := exp(x), math.Exp(x)
		if d := math.Abs(got - want); !(d <= 5e-16*want+5e-324) {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if exp(710) != math.Inf(1) || exp(-800) != 0 || exp(0) != 1 || !math.IsNaN(exp(math.NaN())) || exp(math.Inf(-1)) != 0 {
		t.Error("limits are wrong")
	}
}
