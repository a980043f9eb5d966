package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// A bounded step has as many tokens as there is time for, unless that has the sampler give up more than half of its speed, or is hardly shorter than the
// whole step.
func TestBoundTokens(t *testing.T) {
	for _, c := range []struct {
		name    string
		seconds func(int) float64
		cycle   float64
		all     int
		want    int
	}{
		{"the whole step is short enough", byTokens, 0.07, 64, 64},
		{"half of it is", byTokens, 0.04, 64, 31},
		{"some of it are", byTokens, 0.02, 64, 15},
		{"few are, slowly", byTokens, 0.005, 64, 7},
		{"all take as long as one", byStep, 0.005, 64, 64},
		{"a single token", byTokens, 0.001, 1, 1},
		{"as long as the weights take, and some more", func(n int) float64 { return 0.05 + 0.0001*float64(n) }, 0.002, 64, 64},
		{"in proportion", func(n int) float64 { return 0.001 * float64(n) }, 0.002, 64, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pace{fixedStep: c.seconds, fixedCycle: c.cycle}
			if got := p.boundTokens(c.all); got != c.want {
				t.Errorf("%d of %d tokens, want %d", got, c.all, c.want)
			}
		})
	}
}

// What was found not to be worth it is tried again later.
func TestBoundIsDoubted(t *testing.T) {
	p := pace{fixedCycle: 0.004}
	for _, n := range []int{1, 3, 7, 15, 31, 64} {
		p.sampled(n, 10*time.Millisecond)
	}
	tries := 0
	for ; tries < 10_000 && p.boundTokens(64) == 64; tries++ {
	}
	if tries < 10 || tries == 10_000 {
		t.Errorf("a bounded step is tried again after %d others", tries)
	}
}

// Steps consider keys that have trained lately, but nobody his own training.
func TestTrainersBeside(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	type trained struct {
		key     string
		seconds int
	}
	for _, c := range []struct {
		name    string
		trained []trained
		samples []string
		seconds int // that have passed
		want    bool
	}{
		{"nobody trains", nil, []string{"a"}, 1, false},
		{"the same key", []trained{{"a", 0}, {"a", 1}}, []string{"a"}, 2, false},
		{"another one", []trained{{"b", 0}}, []string{"a"}, 1, true},
		{"another one, long ago", []trained{{"b", 0}}, []string{"a"}, 100, false},
		{"it and another one", []trained{{"b", 0}, {"a", 1}}, []string{"a"}, 2, true},
		{"it, and another one long ago", []trained{{"b", 0}, {"a", 99}}, []string{"a"}, 100, false},
		{"one of two", []trained{{"a", 0}}, []string{"a", "b"}, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var who trainers
			who.window = 10 * time.Second
			for _, one := range c.trained {
				who.trained(one.key, at(one.seconds))
			}
			lines := map[string]*line{"idle": {key: "idle"}}
			for _, key := range c.samples {
				lines[key] = &line{key: key, placed: 1}
			}
			if got := who.beside(lines, at(c.seconds)); got != c.want {
				t.Errorf("beside is %v, want %v", got, c.want)
			}
		})
	}
}

// While a key trains, another one's steps are bounded, all its sequences go on in turn, and they give what they give by themselves. Its own training
// bounds them not.
func TestBoundedSteps(t *testing.T) {
	const places, most = 16, 7 // byTokens and a cycle of 5 ms
	for _, c := range []struct {
		name, trainer string
		bounded       bool
	}{{"another key's training", "other", true}, {"the same key's training", "crowd", false}} {
		t.Run(c.name, func(t *testing.T) {
			var e *Engine
			steps, large, uneven := 0, 0, 0 // since training began
			last := int64(0)
			e = watched(t, fmt.Sprintf(`{"max_batch": %d}`, places), byTokens, func(tokens map[string]int) {
				through := e.loaded.sampling[0].sampler.step.through
				if e.step == last { // it is training that gathers
					return
				}
				last = e.step
				if e.trainers.last.IsZero() || slices.ContainsFunc(through, func(c chunk) bool { return c.to-c.from > 1 }) {
					return
				}
				steps++
				if tokens["crowd"] > most {
					large++
				}
				// Who goes on now is not one who went on after another that waits.
				newest := int64(0)
				for _, c := range through {
					newest = max(newest, c.sequence.went)
				}
				for _, s := range e.running {
					goes := slices.ContainsFunc(through, func(c chunk) bool { return c.sequence == s })
					if !goes && !s.done && s.pages != nil && len(s.tokens)-s.computed == 1 && s.went < newest {
						uneven++
					}
				}
			})
			hook(t, e, func() { e.pace.fixedCycle = 0.005; e.trainers.window = time.Hour })
			d := create(t, e, "trained", 1, 4)
			crowd := crowdOf("crowd", 2, 8, 120)
			want := collectAll(t, e, crowd)
			data := randomData(rand.New(rand.NewPCG(3, 3)), 1, 5)
			pass := func(ctx context.Context) error {
				_, err := e.ForwardBackward(ctx, plugins.ForwardBackwardRequest{Adapter: "trained", Position: d.position(), Loss: "cross_entropy", Data: data, Share: plugins.Share{Key: c.trainer, Weight: 1}})
				return err
			}
			if err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				var err error
				for ctx.Err() == nil && err == nil {
					err = pass(context.Background())
				}
				ended <- err
			}()
			got := collectAll(t, e, crowd)
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			for i := range crowd {
				if fmt.Sprint(got[i].sequences) != fmt.Sprint(want[i].sequences) {
					t.Errorf("request %d gives something else beside training", i)
				}
			}
			hook(t, e, func() {
				if c.bounded && (large > 0 || steps == 0) || !c.bounded && large == 0 {
					t.Errorf("%d of %d steps have more than %d tokens", large, steps, most)
				}
				if uneven > 0 {
					t.Errorf("%d times a sequence went on before one that had gone on earlier", uneven)
				}
			})
		})
	}
}

// BenchmarkBoundedSteps decodes 64 sequences on the built-in model in steps that are as long as cycles of other keys' training would be, and tells how
// many tokens that gives in a second.
func BenchmarkBoundedSteps(b *testing.B) {
	for _, cycle := range []time.Duration{0, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond} {
		b.Run(cycle.String(), func(b *testing.B) {
			e, _ := onTimed(b, tinyChat, `{"threads": 2}`)
			err := e.onDevice(func() error {
				if e.pace.fixedCycle = cycle.Seconds(); cycle > 0 {
					e.trainers = trainers{key: "other", last: time.Now(), window: time.Hour}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			q := ask("crowd", "", randomTokens(rand.New(rand.NewPCG(1, 1)), 8), 64, 400)
			q.Share, q.AtEnd = plugins.Share{Key: "crowd"}, true
			count := func() (tokens, steps int64) {
				if err := e.onDevice(func() error { steps = e.step; return nil }); err != nil {
					b.Fatal(err)
				}
				return e.counters.sampledTokens.Load(), steps
			}
			tokensBefore, stepsBefore := count()
			for b.Loop() {
				if _, err := collect(b.Context(), e, q); err != nil {
					b.Fatal(err)
				}
			}
			tokens, steps := count()
			tokens, steps = tokens-tokensBefore, steps-stepsBefore
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(b.Elapsed().Seconds()*1000/float64(steps), "ms/step")
			b.ReportMetric(float64(tokens)/float64(steps), "tokens/step")
		})
	}
}
