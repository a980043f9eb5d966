package runs

import (
	"context"
	"encoding/json"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// BenchmarkSubmitSample measures durable submissions per second with 64 clients in flight.
func BenchmarkSubmitSample(b *testing.B) {
	w := newWorld(b, func(w *world) { w.config.MaxQueuedSamples = 1 << 40 })
	s, err := w.CreateSession(b.Context(), NewSession{Owner: owner, UserMetadata: json.RawMessage(`{}`)})
	if err != nil {
		b.Fatal(err)
	}
	smp, err := w.CreateSampler(b.Context(), NewSampler{Owner: owner, SessionID: s.ID, BaseModel: base})
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, err := w.Sample(b.Context(), Sample{Owner: owner, SamplerID: smp.ID, Seq: n.Add(1), Prompt: []int32{2, 3, 4}, NumSamples: 1, Params: SamplingParams{MaxTokens: intp(1), Temperature: 1, TopP: 1}})
			if err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "submits/s")
}

// deaf is a backend that takes samples and never answers.
type deaf struct{ plugins.Backend }

func (deaf) Sample(ctx context.Context, _ plugins.SampleRequest, _ func(plugins.SampleEvent) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// BenchmarkWaitingSamples measures what a sample takes in memory while it waits, its 100 prompt tokens among it.
func BenchmarkWaitingSamples(b *testing.B) {
	const waiting, prompt = 10000, 100
	for range b.N {
		w := newWorld(b, func(w *world) {
			w.config.MaxRunningSample = 1
			w.wrap = func(p plugins.Backend) plugins.Backend { return deaf{p} }
		})
		session := w.session()
		smp := w.baseSampler(session, 0)
		var before, after runtime.MemStats
		for i := range int64(waiting + 1) {
			if i == 1 { // the first one is with the backend
				w.ok(w.store.Compact(b.Context())) // nothing waits to be written to the database
				runtime.GC()
				runtime.ReadMemStats(&before)
			}
			_, err := w.Sample(b.Context(), Sample{Owner: owner, SamplerID: smp, Seq: i, Prompt: make([]int32, prompt), NumSamples: 1, Params: SamplingParams{MaxTokens: intp(1), Temperature: 1, TopP: 1}})
			w.ok(err)
		}
		w.ok(w.store.Compact(b.Context()))
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/waiting, "B/sample")
		b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
	}
}
