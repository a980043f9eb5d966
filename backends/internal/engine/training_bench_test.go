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
