package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// scored asks the trainer for log-probabilities of many targets at every position of a prompt.
func scored(t *testing.T, d *driver, prompt, targets []int32, k int) []float32 {
	t.Helper()
	n := len(prompt) - 1
	r, err := d.e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy", ForwardOnly: true,
		Data: []plugins.Datum{{Tokens: prompt[:n], Targets: targets, K: k, Weights: make([]float32, n*k)}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Logprobs[0]
}

// Everything that can be asked about a prompt agrees with the trainer, whether or not the prompt is in the prefix cache.
func TestPromptScores(t *testing.T) {
	e := start(t, `{"prefill_tokens": 33}`)
	random := rand.New(rand.NewPCG(1, 5))
	d := create(t, e, "a", 1, 4)
	d.pass(randomData(random, 3, 40))
	d.step()
	prompt := randomTokens(random, 150)
	n := len(prompt) - 1
	all := make([]int32, n*tinyVocabulary)
	for i := range all {
		all[i] = int32(i % tinyVocabulary)
	}
	want := scored(t, d, prompt, all, tinyVocabulary) // row i: position i+1
	at := func(position int, token int32) float32 { return want[(position-1)*tinyVocabulary+int(token)] }

	q := ask("q", "a", prompt, 2, 3)
	q.PromptLogprobs, q.TopKPromptLogprobs, q.TargetPromptK, q.PromptAlternatives = true, 4, 2, 3
	q.TargetPromptTokens = make([]int32, 2*n)
	for i := range q.TargetPromptTokens {
		q.TargetPromptTokens[i] = int32(random.IntN(tinyVocabulary+1)) - 1
	}
	var first plugins.PromptScores
	for round := range 2 { // the second finds the prompt's pages in the cache, and must not use them
		got, err := collect(t.Context(), e, q)
		if err != nil {
			t.Fatal(err)
		}
		p := got.prompt
		if p.CachedTokens != 0 {
			t.Errorf("%d tokens were taken from pages, which hold no logits", p.CachedTokens)
		}
		if !math.IsNaN(float64(p.Logprobs[0])) || p.Top.IDs[0] != 0 || p.Top.Logprobs[3] != -99999 {
			t.Error("the first position is scored")
		}
		for i := 1; i <= n; i++ {
			if p.Logprobs[i] != at(i, prompt[i]) {
				t.Fatalf("position %d: %v, the trainer has %v", i, p.Logprobs[i], at(i, prompt[i]))
			}
			for k := range 4 {
				if p.Top.Logprobs[4*i+k] != at(i, p.Top.IDs[4*i+k]) || (k > 0 && p.Top.Logprobs[4*i+k] > p.Top.Logprobs[4*i+k-1]) {
					t.Fatalf("position %d: likeliest tokens %v %v", i, p.Top.IDs[4*i:4*i+4], p.Top.Logprobs[4*i:4*i+4])
				}
			}
			if best := slices.Max(want[(i-1)*tinyVocabulary : i*tinyVocabulary]); p.Top.Logprobs[4*i] != best {
				t.Fatalf("position %d: the likeliest has %v, not %v", i, p.Top.Logprobs[4*i], best)
			}
			for k := range 2 {
				token, value := q.TargetPromptTokens[2*(i-1)+k], p.Targets[2*(i-1)+k]
				if (token < 0 && value != 0) || (token >= 0 && value != at(i, token)) {
					t.Fatalf("position %d, target %d: %v", i, token, value)
				}
			}
			for k := range 3 {
				if token := p.AltTokens[3*(i-1)+k]; p.AltLogprobs[3*(i-1)+k] != at(i, token) {
					t.Fatalf("position %d: alternative %d has %v, want %v", i, token, p.AltLogprobs[3*(i-1)+k], at(i, token))
				}
			}
		}
		if round == 0 {
			first = p
		} else if !slices.Equal(first.AltTokens, p.AltTokens) {
			t.Error("alternatives of a seeded request differ")
		}
	}
	q = ask("last", "a", prompt, 1, 0)
	q.PromptLogprobs, q.PromptLogprobsLastN = true, 5
	got, err := collect(t.Context(), e, q)
	if err != nil || got.reasons[0] != plugins.StopLength || len(got.sequences[0].Tokens) != 0 {
		t.Fatalf("%+v, %v", got.reasons, err)
	}
	for i, v := range got.prompt.Logprobs {
		if scored := !math.IsNaN(float64(v)); scored != (i >= len(prompt)-5) {
			t.Errorf("position %d of %d is %v", i, len(prompt), v)
		}
	}
}

// Alternatives of a prompt are drawn as samples are: from what top-k, top-p and min-p leave of the distribution at the request's temperature. Their log-probabilities are those of temperature 1.
func TestPromptAlternatives(t *testing.T) {
	e := start(t, "")
	random := rand.New(rand.NewPCG(1, 6))
	d := create(t, e, "a", 1, 4)
	d.pass(randomData(random, 3, 40))
	d.step()
	prompt := randomTokens(random, 100)
	n := len(prompt) - 1
	all := make([]int32, n*tinyVocabulary)
	for i := range all {
		all[i] = int32(i % tinyVocabulary)
	}
	plain := scored(t, d, prompt, all, tinyVocabulary)
	const draws = 5
	for _, c := range []struct {
		name string
		set  func(q *plugins.SampleRequest)
		most int // tokens that may be drawn at a position; 0 = not known
	}{
		{"nothing is cut off", func(*plugins.SampleRequest) {}, tinyVocabulary},
		{"top-k", func(q *plugins.SampleRequest) { q.TopK = 3 }, 3},
		{"top-k of 1", func(q *plugins.SampleRequest) { q.TopK = 1 }, 1},
		{"top-p", func(q *plugins.SampleRequest) { q.TopP = 0.3 }, 0},
		{"min-p", func(q *plugins.SampleRequest) { q.MinP = 0.7 }, 0},
		{"all three", func(q *plugins.SampleRequest) { q.TopK, q.TopP, q.MinP = 20, 0.8, 0.5 }, 0},
	} {
		for _, temperature := range []float64{0.7, 1, 1.6} {
			q := ask("q", "a", prompt, 1, 0)
			q.PromptAlternatives, q.Temperature = draws, temperature
			c.set(&q)
			got, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			distinct := 0
			for i := range n {
				row := plain[i*tinyVocabulary : (i+1)*tinyVocabulary]
				left := remaining(row, &q)
				if c.most > 0 && len(left) > c.most {
					t.Fatalf("the test's own reckoning leaves %d tokens", len(left))
				}
				seen := map[int32]bool{}
				for j := range draws {
					token := got.prompt.AltTokens[i*draws+j]
					seen[token] = true
					if !slices.Contains(left, token) {
						t.Fatalf("%s at temperature %v, position %d: %d was drawn, left were %v", c.name, temperature, i+1, token, left)
					}
					if value := got.prompt.AltLogprobs[i*draws+j]; value != row[token] {
						t.Fatalf("%s at temperature %v, position %d: token %d has %v, want %v", c.name, temperature, i+1, token, value, row[token])
					}
				}
				distinct += len(seen)
			}
			if c.most != 1 && distinct == n {
				t.Errorf("%s at temperature %v: the draws of every position are equal", c.name, temperature)
			}
		}
	}
}

// remaining gives the tokens of a row of log-probabilities that a request may draw, reckoned in float64, with those that lie on a border but for rounding.
func remaining(row []float32, q *plugins.SampleRequest) []int32 {
	const rounding = 1e-4
	ids := make([]int32, len(row))
	p := make([]float64, len(row))
	for i, v := range row {
		ids[i], p[i] = int32(i), math.Exp(float64(v)/q.Temperature)
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(p[b], p[a]) })
	if q.TopK > 0 {
		ids = ids[:q.TopK]
	}
	total, sum := 0.0, 0.0
	for _, id := range ids {
		total += p[id]
	}
	for i, id := range ids {
		if sum += p[id]; sum > total*(q.TopP+rounding) {
			ids = ids[:i+1]
			break
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return p[id] < p[ids[0]]*(q.MinP-rounding) })
}

// At another temperature the log-probabilities are those of the scaled distribution, and greedy ones those of temperature 1.
func TestTemperature(t *testing.T) {
	e := start(t, "")
	d := create(t, e, "a", 1, 4)
	prompt := []int32{5, 6, 7}
	all := make([]int32, 3*tinyVocabulary)
	for i := range all {
		all[i] = int32(i % tinyVocabulary)
	}
	plain := scored(t, d, []int32{5, 6, 7, 0}, all, tinyVocabulary)[2*tinyVocabulary:]
	for _, temperature := range []float64{0, 0.5, 1, 1.8} {
		q := ask("q", "a", prompt, 1, 1)
		q.Temperature, q.TopKSampledLogprobs = temperature, tinyVocabulary
		got, err := collect(t.Context(), e, q)
		if err != nil {
			t.Fatal(err)
		}
		s := got.sequences[0]
		divisor := temperature
		if temperature == 0 {
			divisor = 1
			if s.Tokens[0] != s.Top.IDs[0] {
				t.Errorf("greedy drew %d, the likeliest is %d", s.Tokens[0], s.Top.IDs[0])
			}
		}
		total := 0.0
		for k, id := range s.Top.IDs {
			total += math.Exp(float64(s.Top.Logprobs[k]))
			a := float64(s.Top.Logprobs[0] - s.Top.Logprobs[k])
			b := float64(plain[s.Top.IDs[0]]-plain[id]) / divisor
			if math.Abs(a-b) > 1e-4 {
				t.Fatalf("temperature %v: difference %v, want %v", temperature, a, b)
			}
			if divisor == 1 && s.Top.Logprobs[k] != plain[id] {
				t.Fatalf("temperature %v: %v, want %v", temperature, s.Top.Logprobs[k], plain[id])
			}
		}
		if math.Abs(total-1) > 1e-4 {
			t.Errorf("temperature %v: probabilities sum to %v", temperature, total)
		}
	}
}

func TestStops(t *testing.T) {
	e := start(t, "")
	q := ask("q", "", []int32{1, 2, 3}, 8, 30)
	q.StopTokens = []int32{}
	for i := range int32(40) {
		q.StopTokens = append(q.StopTokens, i)
	}
	got, err := collect(t.Context(), e, q)
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for i, s := range got.sequences {
		for k, token := range s.Tokens {
			if last := k == len(s.Tokens)-1; token < 40 && !last {
				t.Fatalf("sequence %d went on behind a stop token", i)
			}
		}
		if got.reasons[i] == plugins.StopToken {
			stopped++
			if s.Tokens[len(s.Tokens)-1] >= 40 {
				t.Errorf("the stop token of sequence %d was not emitted", i)
			}
		}
	}
	if stopped == 0 {
		t.Error("no sequence met a stop token")
	}
	q.MinTokens = 10
	if got, err = collect(t.Context(), e, q); err != nil {
		t.Fatal(err)
	}
	for i, s := range got.sequences {
		if len(s.Tokens) <= 10 || slices.ContainsFunc(s.Tokens[:10], func(token int32) bool { return token < 40 }) {
			t.Errorf("sequence %d: %v", i, s.Tokens)
		}
	}
}

// Samples of one prompt, and requests with the same beginning, compute it once.
func TestPrefixIsComputedOnce(t *testing.T) {
	e := start(t, `{"prefill_tokens": 64}`)
	random := rand.New(rand.NewPCG(2, 5))
	prompt := randomTokens(random, 256+10)
	got, err := collect(t.Context(), e, ask("q", "", prompt, 16, 2))
	if err != nil || got.prompt.CachedTokens != 0 {
		t.Fatalf("%d cached, %v", got.prompt.CachedTokens, err)
	}
	// Once, but for the last token, whose logits every sample needs.
	if n := e.status(time.Now()).PrefillTokens; n != 256+10+15 {
		t.Errorf("%d prompt tokens were computed, want %d", n, 256+10+15)
	}
	again, err := collect(t.Context(), e, ask("q", "", prompt, 16, 2))
	if err != nil || again.prompt.CachedTokens != 256 {
		t.Errorf("%d cached, %v; want 256", again.prompt.CachedTokens, err)
	}
	for i := range again.sequences {
		equalBits(t, "cached", again.sequences[i].Logprobs, got.sequences[i].Logprobs)
	}
	// Another adapter has other keys and values.
	create(t, e, "a", 1, 4)
	if other, err := collect(t.Context(), e, ask("q", "a", prompt, 1, 1)); err != nil || other.prompt.CachedTokens != 0 {
		t.Errorf("%d cached from the base model, %v", other.prompt.CachedTokens, err)
	}
	// Sixteen requests at the same moment are as good as one for sixteen samples, whether the prompt fills pages or not.
	for _, length := range []int{300, 256, 40, 1} {
		before := e.status(time.Now()).PrefillTokens
		other := randomTokens(random, length)
		calls := []func(){block(t, e, nil)}
		for i := range 16 {
			calls = append(calls, func() {
				if _, err := collect(t.Context(), e, ask(fmt.Sprint("p", i), "", other, 1, 5)); err != nil {
					t.Error(err)
				}
			})
		}
		release := calls[0]
		calls[0] = func() {
			eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 16 })
			release()
		}
		together(calls...)
		if n := e.status(time.Now()).PrefillTokens - before; n != int64(length)+15 {
			t.Errorf("sixteen requests for %d tokens computed %d, want %d", length, n, length+15)
		}
	}
	// A second turn goes on from the pages of the first, generated tokens included.
	first, err := collect(t.Context(), e, ask("first", "", prompt[:100], 1, 100))
	if err != nil {
		t.Fatal(err)
	}
	second, err := collect(t.Context(), e, ask("second", "", slices.Concat(prompt[:100], first.sequences[0].Tokens, []int32{1, 2, 3}), 1, 1))
	if err != nil || second.prompt.CachedTokens != 192 {
		t.Errorf("the second turn took %d tokens from the first, want 192 of 199 computed: %v", second.prompt.CachedTokens, err)
	}
}

// Pages of a version that nobody holds any more are not kept as a cache.
func TestPagesOfAVersionGoWithIt(t *testing.T) {
	e := start(t, `{}`)
	d := create(t, e, "a", 1, 4)
	if _, err := collect(t.Context(), e, ask("q", "a", randomTokens(rand.New(rand.NewPCG(2, 6)), 200), 1, 4)); err != nil {
		t.Fatal(err)
	}
	cached := func() (n int) {
		hook(t, e, func() {
			c := e.loaded.sampling[0].sampler.cache
			n = c.Pages() - c.Free()
		})
		return n
	}
	if n := cached(); n != 3 {
		t.Errorf("%d pages are cached for the version that is the latest, want 3", n)
	}
	d.step()
	eventually(t, "no page is cached", func() bool { return cached() == 0 })
}

// A sequence for whose adapter there is no room beside those that are running gets its turn, however many of theirs wait.
func TestAdapterThatDoesNotFitBesideOthers(t *testing.T) {
	e, f, _ := startScratch(t)
	for i, id := range []string{"a", "b"} {
		create(t, e, id, uint64(i), 16)
	}
	behind := -1 // sequences of a that wait when b's runs
	hook(t, e, func() {
		l := e.loaded
		l.config.MaxBatch = 2
		l.adapters.limit = 3 * l.adapters.weightBytes(e.runs["a"].layout) // half is for sampling: one adapter
		if err := l.adapters.trim(); err != nil {
			t.Error(err)
		}
		f.gather = func([]int32) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			if slices.ContainsFunc(e.running, func(s *sequence) bool { return s.request.ID == "b" }) {
				behind = e.waiting.count
			}
			return nil
		}
	})
	release := block(t, e, nil)
	ctx, cancel := context.WithCancel(t.Context())
	together(func() {
		_, _ = collect(ctx, e, ask("a", "a", []int32{1}, 1000, 8)) // it is cancelled
	}, func() {
		defer cancel()
		eventually(t, "the first wait", func() bool { return e.status(time.Now()).WaitingSamples == 1000 })
		go func() {
			eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 1001 })
			release()
		}()
		q := ask("b", "b", []int32{1}, 1, 2)
		q.Share.Key = "another"
		if _, err := collect(t.Context(), e, q); err != nil {
			t.Error(err)
		}
	})
	hook(t, e, func() {
		if behind < 100 {
			t.Errorf("when the other adapter had its turn %d sequences waited behind it", behind)
		}
	})
}

func TestCancel(t *testing.T) {
	e := start(t, `{"max_batch": 3}`)
	idle := func() bool {
		s := e.status(time.Now())
		return s.RunningSamples == 0 && s.WaitingSamples == 0 && s.KVPagesFree == s.KVPages
	}
	// The receiver may come so late on a loaded machine that everything has been generated when it cancels; then once more.
	inTime := func(sample func() bool) {
		for range 20 {
			if sample() {
				return
			}
		}
	}
	t.Run("one sequence", func(t *testing.T) {
		var reasons map[int]plugins.StopReason
		var tokens map[int]int
		var err error
		inTime(func() bool {
			reasons, tokens = map[int]plugins.StopReason{}, map[int]int{}
			err = e.Sample(t.Context(), ask("q", "", []int32{1}, 2, 500), func(event plugins.SampleEvent) error {
				if s := event.Tokens; s != nil {
					if tokens[s.Sequence] += len(s.Tokens); s.Sequence == 0 && tokens[0] == len(s.Tokens) {
						return e.Cancel(context.Background(), plugins.CancelRequest{ID: "q", Sequence: 0})
					}
				}
				if f := event.Finished; f != nil {
					reasons[f.Sequence] = f.Reason
				}
				return nil
			})
			return reasons[0] != plugins.StopLength
		})
		if err != nil || reasons[0] != plugins.StopCancelled || reasons[1] != plugins.StopLength || tokens[0] >= 500 || tokens[1] != 500 {
			t.Errorf("%v, %v, %v", reasons, tokens, err)
		}
		eventually(t, "pages are freed", idle)
	})
	t.Run("all sequences, waiting ones too", func(t *testing.T) {
		var finished []plugins.StopReason
		var err error
		inTime(func() bool {
			finished = nil
			err = e.Sample(t.Context(), ask("q", "", []int32{1}, 10, 500), func(event plugins.SampleEvent) error {
				if event.Finished != nil {
					finished = append(finished, event.Finished.Reason)
				}
				if event.Prompt != nil {
					return e.Cancel(context.Background(), plugins.CancelRequest{ID: "q", Sequence: -1})
				}
				return nil
			})
			return !slices.Contains(finished, plugins.StopLength)
		})
		if err != nil || len(finished) != 10 || slices.ContainsFunc(finished, func(r plugins.StopReason) bool { return r != plugins.StopCancelled }) {
			t.Errorf("%v, %v", finished, err)
		}
		eventually(t, "pages are freed", idle)
	})
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := e.Sample(ctx, ask("q", "", []int32{1}, 4, 500), func(plugins.SampleEvent) error { cancel(); return nil })
		if !errors.Is(err, plugins.ErrCancelled) {
			t.Errorf("%v", err)
		}
		eventually(t, "pages are freed", idle)
	})
	t.Run("the receiver fails", func(t *testing.T) {
		broken := errors.New("broken pipe")
		if err := e.Sample(t.Context(), ask("q", "", []int32{1}, 4, 500), func(plugins.SampleEvent) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		eventually(t, "pages are freed", idle)
	})
	if err := e.Cancel(t.Context(), plugins.CancelRequest{ID: "unknown", Sequence: -1}); err != nil {
		t.Error(err)
	}
}

func TestSampleRefuses(t *testing.T) {
	e := start(t, `{"max_waiting": 20}`)
	create(t, e, "a", 1, 1)
	for _, c := range []struct {
		name, field string
		change      func(*plugins.SampleRequest)
		kind        error
	}{
		{"token outside", "prompt[1]", func(q *plugins.SampleRequest) { q.Prompt = []int32{1, tinyVocabulary} }, plugins.ErrInvalid},
		{"context", "max_tokens", func(q *plugins.SampleRequest) { q.MaxTokens = tinyContext }, plugins.ErrInvalid},
		{"temperature", "temperature", func(q *plugins.SampleRequest) { q.Temperature = -1 }, plugins.ErrInvalid},
		{"tiny temperature", "temperature", func(q *plugins.SampleRequest) { q.Temperature = 1e-40 }, plugins.ErrInvalid},
		{"not a number", "temperature", func(q *plugins.SampleRequest) { q.Temperature = math.NaN() }, plugins.ErrInvalid},
		{"top p", "top_p", func(q *plugins.SampleRequest) { q.TopP = 0 }, plugins.ErrInvalid},
		{"huge bias", "logit_bias[3]", func(q *plugins.SampleRequest) { q.LogitBias = map[int32]float64{3: 1e7} }, plugins.ErrInvalid},
		{"bias outside", "logit_bias[89]", func(q *plugins.SampleRequest) { q.LogitBias = map[int32]float64{tinyVocabulary: 1} }, plugins.ErrInvalid},
		{"penalty", "repetition_penalty", func(q *plugins.SampleRequest) { q.RepetitionPenalty = 0 }, plugins.ErrInvalid},
		{"unknown adapter", "adapter", func(q *plugins.SampleRequest) { q.Adapter = "b" }, plugins.ErrNotFound},
		{"unknown version", "version", func(q *plugins.SampleRequest) { q.Adapter, q.Version = "a", 7 }, plugins.ErrNotFound},
		{"too many", "num_samples", func(q *plugins.SampleRequest) { q.NumSamples = 21 }, plugins.ErrTooLarge},
		{"nothing but stop tokens", "min_tokens", func(q *plugins.SampleRequest) {
			q.MinTokens = 1
			for i := range int32(tinyVocabulary) {
				q.StopTokens = append(q.StopTokens, i)
			}
		}, plugins.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := ask("q", "", []int32{1, 2}, 1, 4)
			c.change(&q)
			_, err := collect(t.Context(), e, q)
			var own *plugins.Error
			if !errors.As(err, &own) || !errors.Is(err, c.kind) || own.Field != c.field {
				t.Errorf("got %v, want %v about %s", err, c.kind, c.field)
			}
		})
	}
	// Extreme settings that are allowed still draw.
	q := ask("q", "", []int32{1, 2}, 2, 5)
	q.Temperature, q.LogitBias = 1e-30, map[int32]float64{3: 1e6, 4: -1e6}
	if got, err := collect(t.Context(), e, q); err != nil || got.sequences[0].Tokens[0] != 3 {
		t.Errorf("%v, %v", got.sequences, err)
	}
	q.Temperature, q.LogitBias = 1e300, nil
	if _, err := collect(t.Context(), e, q); err != nil {
		t.Error(err)
	}
	taken := make(chan error)
	err := e.Sample(t.Context(), ask("same", "", []int32{1}, 1, 50), func(event plugins.SampleEvent) error {
		if event.Prompt != nil {
			go func() { _, err := collect(context.Background(), e, ask("same", "", []int32{1}, 1, 1)); taken <- err }()
			if err := <-taken; !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "running") {
				t.Errorf("an id was used twice: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Where nobody reads tokens before the end they come many at once, and are those that come one by one.
func TestTokensAtTheEnd(t *testing.T) {
	const tokens = 200
	e := start(t, "")
	create(t, e, "a", 1, 4)
	q := ask("q", "a", []int32{1, 2, 3}, 3, tokens)
	q.TopKSampledLogprobs = 2
	want, err := collect(t.Context(), e, q)
	if err != nil {
		t.Fatal(err)
	}
	q.AtEnd = true
	got, events := make([]plugins.SampledTokens, q.NumSamples), 0
	if err := e.Sample(t.Context(), q, func(event plugins.SampleEvent) error {
		if piece := event.Tokens; piece != nil {
			events++
			s := &got[piece.Sequence]
			s.Tokens, s.Logprobs = append(s.Tokens, piece.Tokens...), append(s.Logprobs, piece.Logprobs...)
			s.Top.IDs, s.Top.Logprobs = append(s.Top.IDs, piece.Top.IDs...), append(s.Top.Logprobs, piece.Top.Logprobs...)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if most := 4 * q.NumSamples; events > most { // the prompt's event, and the end of another sequence, take what is there
		t.Errorf("%d events, at most %d are needed", events, most)
	}
	for i, s := range got {
		if !slices.Equal(s.Tokens, want.sequences[i].Tokens) || !slices.Equal(s.Top.IDs, want.sequences[i].Top.IDs) {
			t.Errorf("sequence %d: %v, want %v", i, s.Tokens, want.sequences[i].Tokens)
		}
		equalBits(t, "log-probabilities", s.Logprobs, want.sequences[i].Logprobs)
		equalBits(t, "of the likeliest", s.Top.Logprobs, want.sequences[i].Top.Logprobs)
	}
}

// What decoding allocates is for sequences and pages, not for tokens.
func TestDecodingAllocatesNothingPerToken(t *testing.T) {
	const skipped, tokens = 50, 400
	for _, c := range []struct {
		name      string
		sequences int
		set       func(*plugins.SampleRequest)
	}{
		{"one sequence", 1, func(*plugins.SampleRequest) {}},
		{"greedy", 4, func(q *plugins.SampleRequest) { q.Temperature = 0 }},
		{"temperature, top-p", 4, func(q *plugins.SampleRequest) { q.Temperature, q.TopP = 0.7, 0.9 }},
		{"top-k, penalties", 4, func(q *plugins.SampleRequest) { q.TopK, q.FrequencyPenalty, q.RepetitionPenalty = 20, 0.1, 1.1 }},
		{"likeliest tokens", 4, func(q *plugins.SampleRequest) { q.TopKSampledLogprobs = 5 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := start(t, `{"threads": 2}`)
			create(t, e, "a", 1, 4)
			q := ask("q", "a", []int32{1, 2, 3}, c.sequences, tokens)
			c.set(&q)
			// What the rest of the process allocates meanwhile is counted as well, so the least of some rounds is looked at.
			least := math.Inf(1)
			const most = 0.25 // for pages and room that doubles
			for range 5 {
				var before, after runtime.MemStats
				first, seen := 0, 0
				if err := e.Sample(t.Context(), q, func(event plugins.SampleEvent) error {
					if event.Tokens == nil {
						return nil
					}
					if seen += len(event.Tokens.Tokens); first == 0 && seen >= skipped*c.sequences {
						first = seen
						runtime.ReadMemStats(&before)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				runtime.ReadMemStats(&after)
				if seen != tokens*c.sequences {
					t.Fatalf("%d tokens", seen)
				}
				if least = min(least, float64(after.Mallocs-before.Mallocs)/float64(seen-first)); least <= most {
					break
				}
			}
			if least > most {
				t.Errorf("%.2f allocations per token", least)
			}
		})
	}
}
