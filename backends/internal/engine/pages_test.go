package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// A datum that fits only if the sampler lends its pages trains, beside a sequence that is sampled meanwhile; afterwards the sampler has its pages back. All of it has the bits that it has with memory for everything, and
// the limit is kept.
func TestPagesAreLent(t *testing.T) {
	const long = 1000
	type account struct {
		weights  map[string][]float32
		logprobs []float32
		sampled  [][]float32
	}
	prompts := func(random *rand.Rand) (all [][]int32) {
		for range 12 {
			all = append(all, randomTokens(random, 560+random.IntN(60)))
		}
		return all
	}
	// play trains two steps and has a crowd sampled before, between and after; tight is called before the first pass.
	play := func(e *Engine, f *faulty, tight func(need int64)) (a account, err error) {
		random := rand.New(rand.NewPCG(21, 21))
		data := []plugins.Datum{wholeDatum(random, 10), wholeDatum(random, long)}
		crowd := prompts(random)
		d := create(t, e, "a", 1, 4)
		sample := func(round string) {
			release := block(t, e, nil)
			answers := make([]sampled, len(crowd))
			var calls []func()
			for i, prompt := range crowd {
				calls = append(calls, func() {
					var err error
					if answers[i], err = collect(t.Context(), e, ask(fmt.Sprint(round, i), "a", prompt, 1, 20)); err != nil {
						t.Error(err)
					}
				})
			}
			calls = append(calls, func() {
				eventually(t, "all wait", func() bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					return e.waiting.count == len(crowd)
				})
				release()
			})
			together(calls...)
			for _, s := range answers {
				a.sampled = append(a.sampled, s.sequences[0].Logprobs)
			}
		}
		sample("before") // so that prompts are cached
		hook(t, e, func() {
			e.loaded.plan.training = 1 << 40 // made for more memory
			e.loaded.shrink()
			need, err := e.loaded.datumBytes(long, 4, false)
			if err != nil {
				t.Fatal(err)
			}
			tight(need)
		})
		for round := range 2 {
			beside := ask(fmt.Sprint("beside", round), "a", crowd[0][:100], 1, 200)
			done := make(chan error, 1)
			go func() {
				got, err := collect(t.Context(), e, beside)
				if err == nil {
					a.sampled = append(a.sampled, got.sequences[0].Logprobs)
				}
				done <- err
			}()
			r, failed := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: data, Loss: "cross_entropy"})
			if err := <-done; err != nil {
				t.Error(err)
			}
			if failed != nil {
				return a, failed
			}
			a.logprobs = append(a.logprobs, r.Logprobs[1]...)
			d.step()
			sample(fmt.Sprint("after", round))
		}
		a.weights = d.weights()
		return a, nil
	}
	const section = `{"threads": 1, "recompute": "off", "kv_cache_tokens": 8192, "prefill_tokens": 256}`
	const less = 9 << 20 // of memory than the pass takes: more than half of the cache

	e, f := startShape(t, middling, 1024, section)
	want, err := play(e, f, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}

	e, f = startShape(t, middling, 1024, section)
	most, over := 0, int64(0)
	got, err := play(e, f, func(need int64) {
		memory, cache := e.loaded.memory, e.loaded.sampling[0].sampler.cache
		memory.limit.Store(memory.used.Load() + need - less)
		f.alloc = func(int) error {
			most = max(most, cache.Absent())
			over = max(over, -memory.free())
			return nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() {
		p := e.loaded.sampling[0].sampler
		if bytes := int64(most) * pagesBytes(p.replica.models); bytes < less {
			t.Errorf("pages of %d bytes were lent, %d were missing", bytes, less)
		}
		if over > 0 {
			t.Errorf("the limit was passed by %d bytes", over)
		}
		if p.cache.Available() <= p.cache.Pages()/2 {
			t.Errorf("of %d pages the sampler has only %d back", p.cache.Pages(), p.cache.Available())
		}
	})
	equalTensors(t, "weights", got.weights, want.weights)
	equalBits(t, "log-probabilities", got.logprobs, want.logprobs)
	for i := range want.sampled {
		equalBits(t, fmt.Sprint("sample ", i), got.sampled[i], want.sampled[i])
	}

	e, f = startShape(t, middling, 1024, section)
	if _, err := play(e, f, func(need int64) {
		e.loaded.memory.limit.Store(e.loaded.memory.used.Load() + need - less)
		e.loaded.sampling[0].sampler.lends = false
	}); !errors.Is(err, plugins.ErrCapacity) {
		t.Errorf("without lent pages the datum does not fit, but: %v", err)
	}
}

// So many pages as the longest sequence takes are never lent.
func TestLendable(t *testing.T) {
	for _, c := range []struct {
		positions, context, blocks int // blocks of 16 pages that can be lent
		rest                       int // pages beside them
	}{
		{1024, 1024, 0, 0},
		{2048, 1024, 1, 0},
		{8192, 1024, 7, 0},
		{8192 + 3*64, 1024, 7, 3},
		{8192, 1025, 6, 0},
	} {
		e := start(t, fmt.Sprintf(`{"kv_cache_tokens": %d}`, c.positions))
		hook(t, e, func() {
			l := e.loaded
			l.plan.kept = (c.context + 63) / 64
			want := int64(16*c.blocks+c.rest) * pagesBytes(l.sampling[0].models)
			if n := l.returnable(&l.plan); n != want {
				t.Errorf("%+v: %d bytes can be lent, want %d", c, n, want)
			}
			before, given := l.memory.used.Load(), 0
			for l.givePages(true) {
				given++
			}
			if n := before - l.memory.used.Load(); n != want {
				t.Errorf("%+v: %d bytes were given back in %d blocks, want %d", c, n, given, want)
			}
		})
	}
}
