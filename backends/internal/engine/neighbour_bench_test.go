package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// BenchmarkNeighbour has one key sample 4 tokens again and again, alone and while another key has 4,000 long sequences waiting, on the built-in model.
// Beside the times are how long a step of the crowd's full batch takes, and the crowd's tokens per second while the neighbour samples.
func BenchmarkNeighbour(b *testing.B) {
	for _, c := range []struct {
		name           string
		prompt, tokens int // of the crowd
	}{
		{"long answers", 32, 1000},
		{"long prompts", 2000, 200},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, _ := onTimed(b, tinyChat, `{"threads": 2}`)
			random := rand.New(rand.NewPCG(1, 1))
			number := 0
			sample := func() time.Duration {
				number++
				q := ask(fmt.Sprint("small", number), "", randomTokens(random, 16), 1, 4)
				q.Share = plugins.Share{Key: "neighbour"}
				begin := time.Now()
				if _, err := collect(b.Context(), e, q); err != nil {
					b.Error(err)
				}
				return time.Since(begin)
			}
			report := func(name string, times []time.Duration) {
				slices.Sort(times)
				b.ReportMetric(times[len(times)/2].Seconds()*1000, name+"p50-ms")
				b.ReportMetric(times[len(times)*95/100].Seconds()*1000, name+"p95-ms")
			}
			var quiet, beside []time.Duration
			var passed []float64 // steps of the full batch meanwhile
			for range 300 {
				quiet = append(quiet, sample())
			}
			ctx, cancel := context.WithCancel(b.Context())
			var crowd sync.WaitGroup
			defer crowd.Wait()
			defer cancel()
			for i := range 40 {
				q := ask(fmt.Sprint("crowd", i), "", randomTokens(random, c.prompt), 100, c.tokens)
				q.Share, q.AtEnd, q.Seed = plugins.Share{Key: "crowd"}, true, uint64(i)
				crowd.Go(func() { _, _ = collect(ctx, e, q) }) // it is cancelled
			}
			tokens := func() int64 { return e.counters.sampledTokens.Load() }
			for e.status(time.Now()).RunningSamples < 64 || tokens() < 10_000 {
				time.Sleep(time.Millisecond)
			}
			before, begin := tokens(), time.Now()
			time.Sleep(2 * time.Second)
			full := 64 * 1000 * time.Since(begin).Seconds() / float64(tokens()-before)
			before, begin = tokens(), time.Now()
			for b.Loop() {
				tokensBefore := tokens()
				beside = append(beside, sample())
				passed = append(passed, float64(tokens()-tokensBefore-4)/64)
			}
			b.ReportMetric(float64(tokens()-before)/time.Since(begin).Seconds(), "tokens/s")
			b.ReportMetric(full, "full-step-ms")
			slices.Sort(passed)
			b.ReportMetric(passed[len(passed)/2], "p50-full-steps")
			b.ReportMetric(passed[len(passed)*95/100], "p95-full-steps")
			report("quiet-", quiet)
			report("", beside)
		})
	}
}
