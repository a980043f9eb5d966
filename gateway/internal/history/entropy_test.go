package history

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// withoutEntropies are a pass, a step and a fold as they were written before there were entropies.
var withoutEntropies = func() (all [3][]byte) {
	for i, text := range [...]string{
		"0101020406040e000000000000f03f0000000000000040010100000000000000400000000000000040000000000000f03f0000000000000000000000000000e03f000000000000d03f0000000000001040",
		"01030404060406000000000000e03f000000000000f03f010c616461707465725f6e6f726d0000000000000040",
		"0112000204000006000e000000000000f03f0000000000000040010100000000000000400000000000000040000000000000f03f0000000000000000000000000000e03f000000000000d03f0000000000001040",
	} {
		all[i], _ = hex.DecodeString(text)
	}
	return all
}()

func TestEventsWithoutEntropiesAreRead(t *testing.T) {
	pass, err := DecodeEvent(withoutEntropies[0])
	if err != nil || pass.Tokens != 7 || pass.Policy == nil || pass.Policy.Advantage != 4 || !math.IsNaN(pass.Policy.Surprisal) {
		t.Fatalf("a pass is %+v, %v", pass, err)
	}
	step, err := DecodeEvent(withoutEntropies[1])
	if err != nil || step.Number != 3 || len(step.Norms) != 1 || step.Sampled.Count != 0 {
		t.Fatalf("a step is %+v, %v", step, err)
	}
	fold, err := DecodeFold(withoutEntropies[2])
	if err != nil || fold.UpTo != 9 {
		t.Fatalf("a fold is %+v, %v", fold, err)
	}
	row, _ := fold.Add(10, step)
	if _, known := row.get(SampledEntropy); known {
		t.Errorf("the row has an entropy that nobody has measured: %v", row.Values)
	}
	if v, known := row.get(AdvantageMean); !known || v != 2 {
		t.Errorf("the row's mean advantage is %v, %v", v, known)
	}
}

// TestEntropyIsBoundedByTheTopK compares with the entropy of whole distributions.
func TestEntropyIsBoundedByTheTopK(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, vocabulary := range []int{2, 3, 100, 5000} {
		for _, sharpness := range []float64{0, 1, 5, 40} {
			logits, sum := make([]float64, vocabulary), 0.0
			for i := range logits {
				logits[i] = sharpness * r.NormFloat64()
				sum += math.Exp(logits[i])
			}
			logprobs, whole := make([]float32, vocabulary), 0.0
			for i, x := range logits {
				lp := x - math.Log(sum)
				logprobs[i] = float32(lp)
				whole -= math.Exp(lp) * lp
			}
			slices.SortFunc(logprobs, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) })
			before := -1.0
			for _, k := range []int{1, 2, 3, 20, 1000, vocabulary} {
				if k > vocabulary {
					continue
				}
				var e Entropy
				e.Add(logprobs[:k])
				rest := 1.0
				for _, lp := range logprobs[:k] {
					rest -= math.Exp(float64(lp))
				}
				above := 0.0
				if k < vocabulary {
					above = max(rest, 0) * math.Log(float64(vocabulary-k))
				}
				const rounding = 1e-5
				if e.Count != 1 || e.Sum > whole+rounding || whole > e.Sum+above+rounding || e.Sum < before-rounding || math.Abs(e.Rest-max(rest, 0)) > rounding {
					t.Errorf("%d of %d, sharpness %v: %+v, the entropy is %v and at most %v above", k, vocabulary, sharpness, e, whole, above)
				}
				if k == vocabulary && math.Abs(e.Sum-whole) > 1e-4 {
					t.Errorf("all of %d, sharpness %v: %v, the entropy is %v", vocabulary, sharpness, e.Sum, whole)
				}
				before = e.Sum
			}
		}
	}
}

func TestEntropyOfOddLogprobs(t *testing.T) {
	for name, logprobs := range map[string][]float32{
		"certain": {0}, "certain, others impossible": {0, float32(math.Inf(-1))}, "nothing known": nil, "impossible": {float32(math.Inf(-1))}, "rounded above one": {1e-7},
	} {
		var e Entropy
		if e.Add(logprobs); math.IsNaN(e.Sum) || math.Abs(e.Sum) > 1e-6 || e.Count != 1 {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func FuzzDecodeEntropies(f *testing.F) {
	some := Entropies{Sampled: Entropy{Count: 3, Sum: 2, Rest: 0.5}}
	f.Add(some.Encode())
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntropies(b)
		if err != nil {
			return
		}
		again, err := DecodeEntropies(e.Encode())
		if err != nil || fmt.Sprint(again) != fmt.Sprint(e) {
			t.Errorf("%+v became %+v, %v", e, again, err)
		}
	})
}
