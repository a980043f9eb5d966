package runs

import (
	"encoding/json"
	"sync/atomic"
	"testing"
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
