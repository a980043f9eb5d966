package engine

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// BenchmarkSmallTraining trains small models on eight sequences of 128 tokens, a pass and a step one after the other, and tells what share of the time passes outside the device's operations, and what is allocated.
func BenchmarkSmallTraining(b *testing.B) {
	for _, c := range []struct {
		name string
		s    shape // zero: the built-in model
	}{
		{"built-in model", shape{}},
		{"hidden size 256, 4 layers", shape{4096, 256, 768, 4, 8, 4, 32}},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := tinyChat
			if c.s.hidden > 0 {
				dir = b.TempDir()
				if err := writeModel(dir, c.s); err != nil {
					b.Fatal(err)
				}
			}
			e, device := onTimed(b, dir, `{"threads": 2, "dtype": "float32"}`)
			d := create(b, e, "a", 1, 32)
			const sequences, length = 8, 128
			random := rand.New(rand.NewPCG(1, 1))
			var data []plugins.Datum
			for range sequences {
				data = append(data, wholeDatum(random, length))
			}
			round := func() {
				d.pass(data)
				d.step()
			}
			round() // memory grows
			round()
			n, fastest := 0, time.Duration(math.MaxInt64)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			device.wall, device.calls = 0, 0
			begin := now()
			for b.Loop() {
				start := time.Now()
				round()
				fastest = min(fastest, time.Since(start))
				n += sequences * length
			}
			end := now()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(n)/end.wall.Sub(begin.wall).Seconds(), "tokens/s")
			b.ReportMetric(sequences*length/fastest.Seconds(), "best-tokens/s")
			b.ReportMetric((end.processor-begin.processor).Seconds()*1e6/float64(n), "processor-µs/token")
			b.ReportMetric(100*(1-device.wall.Seconds()/end.wall.Sub(begin.wall).Seconds()), "%-outside")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "allocs/step")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n), "allocated-B/token")
			b.ReportMetric(float64(device.calls)/float64(b.N), "calls/step")
		})
	}
}

// Training allocates in Go for each operation, not for each token: a pass over long sequences and its step take hardly more objects than over short ones.
func TestTrainingAllocatesNothingPerToken(t *testing.T) {
	const sequences, short, long = 4, 20, 400
	for _, c := range []struct {
		name        string
		forwardOnly bool
	}{
		{"forward and backward", false},
		{"forward alone", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := start(t, `{"threads": 2}`)
			d := create(t, e, "a", 1, 4)
			random := rand.New(rand.NewPCG(1, 1))
			// What the rest of the process allocates meanwhile is counted as well, so the least of some rounds counts.
			objects := func(length int) float64 {
				var data []plugins.Datum
				for range sequences {
					data = append(data, wholeDatum(random, length))
				}
				least := math.Inf(1)
				for range 7 { // memory grows in the first
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: data, Loss: "cross_entropy", ForwardOnly: c.forwardOnly}); err != nil {
						t.Fatal(err)
					}
					d.step()
					runtime.ReadMemStats(&after)
					least = min(least, float64(after.Mallocs-before.Mallocs))
				}
				return least
			}
			few, many := objects(short), objects(long)
			const most = 0.25 // for what belongs to batches and device steps
			if perToken := (many - few) / (sequences * (long - short)); perToken > most {
				t.Errorf("%.2f allocations per token: %.0f for %d tokens, %.0f for %d", perToken, few, sequences*short, many, sequences*long)
			} else {
				t.Logf("%.0f objects for %d tokens, %.0f for %d", few, sequences*short, many, sequences*long)
			}
		})
	}
}
