package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

func softmax(logits []float32) []float32 {
	best := slices.Max(logits)
	total := 0.0
	p := make([]float32, len(logits))
	for _, x := range logits {
		total += math.Exp(float64(x - best))
	}
	for i, x := range logits {
		p[i] = float32(math.Exp(float64(x-best)) / total)
	}
	return p
}

func off() Settings { return Settings{Temperature: 1, TopP: 1, RepetitionPenalty: 1} }

func TestTopAgreesWithSorting(t *testing.T) {
	var scratch Scratch // one for all rows
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 7, 100, 3000} {
		for _, k := range []int{1, 2, 5, 64, 400, 5000} {
			row := make([]float32, n)
			for i := range row {
				switch row[i] = float32(random.IntN(40)) - 20; random.IntN(8) { // many ties
				case 0:
					row[i] *= 0.37
				case 1:
					row[i] = float32(math.Copysign(0, -1)) // equal to 0
				case 2:
					row[i] = float32(math.Inf(random.IntN(2)*2 - 1))
				}
			}
			want := make([]int32, n)
			for i := range want {
				want[i] = int32(i)
			}
			sort.SliceStable(want, func(a, b int) bool { return row[want[a]] > row[want[b]] })
			if got := Top(&scratch, row, k); !slices.Equal(got, want[:min(k, n)]) {
				t.Fatalf("n %d, k %d: got %v, want %v", n, k, got, want[:min(k, n)])
			}
		}
	}
}

func TestAdjust(t *testing.T) {
	h := NewHistory([]int32{0, 1})
	h.Add(2)
	h.Add(2)
	for _, c := range []struct {
		name string
		set  func(*Settings)
		want []float32
	}{
		{"nothing", func(*Settings) {}, []float32{2, -2, 4, 1}},
		{"repetition", func(s *Settings) { s.RepetitionPenalty = 2 }, []float32{1, -4, 2, 1}},
		{"frequency", func(s *Settings) { s.FrequencyPenalty = 0.5 }, []float32{2, -2, 3, 1}},
		{"presence", func(s *Settings) { s.PresencePenalty = 0.5 }, []float32{2, -2, 3.5, 1}},
		{"bias", func(s *Settings) { s.Bias = []Bias{{3, -7}} }, []float32{2, -2, 4, -6}},
		{"temperature", func(s *Settings) { s.Temperature = 0.5 }, []float32{4, -4, 8, 2}},
		{"greedy keeps the scale", func(s *Settings) { s.Temperature = 0 }, []float32{2, -2, 4, 1}},
		{"all, in order", func(s *Settings) {
			*s = Settings{Temperature: 2, TopP: 1, RepetitionPenalty: 2, FrequencyPenalty: 1, PresencePenalty: 3, Bias: []Bias{{2, 1}}}
		}, []float32{0.5, -2, -1, 0.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := off()
			c.set(&s)
			row := []float32{2, -2, 4, 1}
			s.Adjust(row, h)
			if !slices.Equal(row, c.want) {
				t.Errorf("got %v, want %v", row, c.want)
			}
			penalized := []float32{2, -2, 4, 1}
			for _, p := range s.Penalties(nil, h) {
				x := &penalized[p.Token]
				if *x > 0 {
					*x /= p.Divisor
				} else {
					*x *= p.Divisor
				}
				*x -= p.Less
			}
			rest := s
			rest.RepetitionPenalty, rest.FrequencyPenalty, rest.PresencePenalty = 1, 0, 0
			if rest.Adjust(penalized, h); !slices.Equal(penalized, c.want) {
				t.Errorf("by penalties: %v, want %v", penalized, c.want)
			}
			if changed := !slices.Equal(row, []float32{2, -2, 4, 1}); changed == s.Plain() {
				t.Errorf("changed %v but Plain %v", changed, s.Plain())
			}
		})
	}
}

// Every setting leaves the tokens it should, and draws them in proportion.
func TestDrawKeepsAndProportions(t *testing.T) {
	var scratch Scratch // one for all rows
	// Probabilities 0.4, 0.1, 0.3, 0.15, 0.05.
	weights := []float64{0.4, 0.1, 0.3, 0.15, 0.05}
	logits := make([]float32, len(weights))
	for i, w := range weights {
		logits[i] = float32(math.Log(w))
	}
	for _, c := range []struct {
		name     string
		set      func(*Settings)
		excluded []int32
		kept     []int32
	}{
		{"all", func(*Settings) {}, nil, []int32{0, 1, 2, 3, 4}},
		{"greedy", func(s *Settings) { s.Temperature = 0 }, nil, []int32{0}},
		{"greedy without the best", func(s *Settings) { s.Temperature = 0 }, []int32{0}, []int32{2}},
		{"top k 1", func(s *Settings) { s.TopK = 1 }, nil, []int32{0}},
		{"top k 3", func(s *Settings) { s.TopK = 3 }, nil, []int32{0, 2, 3}},
		{"top k beyond the vocabulary", func(s *Settings) { s.TopK = 100 }, nil, []int32{0, 1, 2, 3, 4}},
		{"top p 0.69", func(s *Settings) { s.TopP = 0.69 }, nil, []int32{0, 2}},
		{"top p 0.71", func(s *Settings) { s.TopP = 0.71 }, nil, []int32{0, 2, 3}},
		{"top p tiny", func(s *Settings) { s.TopP = 1e-9 }, nil, []int32{0}},
		{"min p 0.3", func(s *Settings) { s.MinP = 0.3 }, nil, []int32{0, 2, 3}},
		{"min p 1", func(s *Settings) { s.MinP = 1 }, nil, []int32{0}},
		{"top p after top k", func(s *Settings) { s.TopK, s.TopP = 2, 0.5 }, nil, []int32{0}}, // 0.4 of 0.7
		{"excluded before top k", func(s *Settings) { s.TopK = 2 }, []int32{0}, []int32{2, 3}},
		{"excluded", func(*Settings) {}, []int32{1, 4}, []int32{0, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := off()
			c.set(&s)
			const n = 4000
			count := make([]int, len(weights))
			for i := range n {
				u := (float64(i) + 0.5) / n
				count[s.Draw(&scratch, slices.Clone(logits), softmax(logits), c.excluded, u)]++
			}
			total := 0.0
			for _, k := range c.kept {
				total += weights[k]
			}
			for i := range weights {
				want := 0.0
				if slices.Contains(c.kept, int32(i)) {
					want = weights[i] / total * n
				}
				if math.Abs(float64(count[i])-want) > 2 {
					t.Errorf("token %d drawn %d times, want %.0f", i, count[i], want)
				}
			}
		})
	}
}

func TestDrawWhenTheRestHasUnderflowed(t *testing.T) {
	var scratch Scratch // one for all rows
	s := off()
	if got := s.Draw(&scratch, []float32{200, -3, -1}, []float32{1, 0, 0}, []int32{0}, 0.5); got != 2 {
		t.Errorf("got %d, want the likeliest of the rest", got)
	}
	s.TopP = 0.9
	if got := s.Draw(&scratch, []float32{200, -3, -1}, []float32{1, 0, 0}, []int32{0}, 0.5); got != 2 {
		t.Errorf("with top-p: got %d, want the likeliest of the rest", got)
	}
}

// Dropping small probabilities before sorting does not change what top-p and min-p keep.
func TestTruncateAgreesWithFullSort(t *testing.T) {
	var scratch Scratch // one for all rows
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		n := 2 + random.IntN(500)
		logits := make([]float32, n)
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 4)
		}
		s := off()
		s.TopP, s.MinP = 1-random.Float64()*random.Float64(), random.Float64()*0.2
		probs := softmax(logits)
		if random.IntN(4) == 0 {
			s.TopP = 1
		}
		ids := Top(&Scratch{}, logits, n)
		var total, sum uint64
		for _, p := range probs {
			total += weight(p)
		}
		var want []int32
		for _, id := range ids {
			if len(want) > 0 && float64(probs[id]) < s.MinP*float64(probs[ids[0]]) {
				break
			}
			want = append(want, id)
			if sum += weight(probs[id]); s.TopP < 1 && sum >= share(s.TopP, total) {
				break
			}
		}
		if got := s.truncate(&scratch, logits, probs); !slices.Equal(got, want) {
			t.Fatalf("top_p %v, min_p %v: kept %d, want %d", s.TopP, s.MinP, len(got), len(want))
		}
	}
}

// From whichever end the walk begins, it takes the first token at which the running sum passes the share.
func TestDrawnAgreesWithAWalk(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for n := range 500 {
		probs := make([]float32, 1+random.IntN(30))
		for i := range probs {
			if probs[i] = random.Float32(); random.IntN(3) == 0 {
				probs[i] = 0
			}
		}
		if n == 0 {
			probs = []float32{0.25, 0, 0.25, 0.25, 0, 0.25} // sums that are the share exactly
		}
		var total, sum uint64
		for _, p := range probs {
			total += weight(p)
		}
		for _, u := range []float64{0, random.Float64(), 0.25, 0.5, 0.75, math.Nextafter(1, 0)} {
			want := -1
			sum = 0
			for i, p := range probs {
				if sum += weight(p); sum > uint64(float64(u*float64(total))) {
					want = i
					break
				}
			}
			if got := drawn(probs, u); got != want {
				t.Fatalf("%v of %v: token %d, want %d", u, probs, got, want)
			}
		}
	}
}

// What is drawn may not hang on what a probability of no weight, or of a rounded total, would do.
func TestDrawAtTheEnds(t *testing.T) {
	var scratch Scratch
	last := math.Nextafter(1, 0)
	for _, c := range []struct {
		name        string
		topK        int
		probs       []float32
		first, last int32 // drawn for the least and the greatest number
	}{
		{"all", 0, []float32{0.5, 0.25, 0.25}, 0, 2},
		{"nothing at the ends", 0, []float32{0, 1e-20, 0.5, 0.5, 0, 0}, 2, 3},
		{"a sum beyond 1", 0, []float32{0.7, 0.7, 1e-10}, 0, 2},
		{"by ids, not by probabilities", 2, []float32{0.1, 0.3, 0.2, 0.4}, 1, 3},
		{"of the equal ones those of lower ids", 3, []float32{0.1, 0.2, 0.2, 0.3, 0.2}, 1, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := off()
			s.TopK = c.topK
			for u, want := range map[float64]int32{0: c.first, last: c.last} {
				if got := s.Draw(&scratch, slices.Clone(c.probs), slices.Clone(c.probs), nil, u); got != want {
					t.Errorf("for %v: token %d, want %d", u, got, want)
				}
			}
		})
	}
}

func TestUniformDependsOnEveryCoordinate(t *testing.T) {
	seen := map[float64]string{}
	for seed := range uint64(3) {
		for sample := range 5 {
			for position := range 5 {
				for name, u := range map[string]float64{"generated": Uniform(seed, sample, position), "alternative": UniformAlternative(seed, sample, position)} {
					if other, ok := seen[u]; ok {
						t.Fatalf("%s %d %d %d repeats %s", name, seed, sample, position, other)
					}
					seen[u] = name
				}
			}
		}
	}
}

func BenchmarkDraw(b *testing.B) {
	var scratch Scratch // one for all rows
	const vocabulary = 151936
	random := rand.New(rand.NewPCG(5, 6))
	logits := make([]float32, vocabulary)
	for i := range logits {
		logits[i] = float32(random.NormFloat64() * 3)
	}
	probs := softmax(logits)
	for _, c := range []struct {
		name string
		set  func(*Settings)
	}{{"plain", func(*Settings) {}}, {"top-p", func(s *Settings) { s.TopP = 0.95 }}, {"top-k", func(s *Settings) { s.TopK = 50 }}} {
		b.Run(c.name, func(b *testing.B) {
			s := off()
			c.set(&s)
			for i := range b.N {
				s.Draw(&scratch, logits, probs, nil, Uniform(1, 0, i))
			}
		})
	}
}
