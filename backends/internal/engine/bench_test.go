package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// benchmark loads a model of 41 million parameters in bfloat16, and makes adapters a0, a1, … on it.
func benchmark(b *testing.B, adapters int) *Engine {
	b.Helper()
	dir := b.TempDir()
	if err := writeModel(dir, shape{32000, 512, 1536, 8, 8, 4, 64}); err != nil {
		b.Fatal(err)
	}
	e := open(b)
	if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(`{"dtype": "bfloat16"}`)}, nil); err != nil {
		b.Fatal(err)
	}
	for i := range adapters {
		create(b, e, fmt.Sprint("a", i), uint64(i), 16)
	}
	return e
}

// BenchmarkDecode generates tokens with a number of sequences at once, on the base model, on one adapter, and each on an adapter of its own.
func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name                string
		sequences, adapters int
	}{{"1 sequence, base", 1, 0}, {"1 sequence, 1 adapter", 1, 1}, {"8 sequences, base", 8, 0}, {"8 sequences, 1 adapter", 8, 1}, {"8 sequences, 8 adapters", 8, 8}, {"32 sequences, 32 adapters", 32, 32}} {
		b.Run(c.name, func(b *testing.B) {
			e := benchmark(b, c.adapters)
			const tokens = 64
			prompt := randomTokens(rand.New(rand.NewPCG(1, 1)), 32)
			round := func() {
				var calls []func()
				for i := range c.sequences {
					id := ""
					if c.adapters > 0 {
						id = fmt.Sprint("a", i%c.adapters)
					}
					calls = append(calls, func() {
						if _, err := collect(b.Context(), e, ask(fmt.Sprint("q", i), id, prompt, 1, tokens)); err != nil {
							b.Error(err)
						}
					})
				}
				together(calls...)
			}
			round()
			n := 0
			for b.Loop() {
				round()
				n += c.sequences * tokens
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkTrain runs one clock cycle of 2,048 tokens: forward, backward and a step, of one run and of eight.
func BenchmarkTrain(b *testing.B) {
	for _, runs := range []int{1, 8} {
		b.Run(fmt.Sprint(runs, " runs"), func(b *testing.B) {
			e := benchmark(b, 0)
			random := rand.New(rand.NewPCG(2, 2))
			var drivers []*driver
			for i := range runs {
				drivers = append(drivers, create(b, e, fmt.Sprint("r", i), 1, 16))
			}
			const tokens, length = 2048, 128
			data := make([]plugins.Datum, tokens/length/runs)
			for i := range data {
				data[i] = plugins.Datum{Tokens: randomTokens(random, length), Targets: randomTokens(random, length), K: 1, Weights: make([]float32, length)}
				for k := range data[i].Weights {
					data[i].Weights[k] = 1
				}
			}
			n := 0
			for b.Loop() {
				var calls []func()
				for _, d := range drivers {
					calls = append(calls, func() { d.pass(data); d.step() })
				}
				together(calls...)
				n += tokens
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkTenants trains the same tokens for one run and for 32, forward and backward and a step of each, on a fourteenth of Qwen3-0.6B's layers and vocabulary with random weights. The two take turns, so that what else the
// machine does meets both. "ratio" is the engine's time per token for 32 over that for one, of the fastest turn of each, and "cpu-ratio" the same of the process's time, clients included.
func BenchmarkTenants(b *testing.B) {
	const tenants, sequences, length = 32, 2, 128
	dir := b.TempDir()
	if err := writeModel(dir, shape{151936 / 14 / 64 * 64, 1024, 3072, 2, 16, 8, 128}); err != nil {
		b.Fatal(err)
	}
	e := open(b)
	if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(`{"dtype": "bfloat16", "kv_cache_tokens": 1024}`)}, nil); err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 2))
	data := make([]plugins.Datum, tenants*sequences)
	for i := range data {
		data[i] = wholeDatum(random, length)
	}
	var all []*driver
	for i := range tenants {
		all = append(all, create(b, e, fmt.Sprint("t", i), uint64(i), 32))
	}
	turn := func(drivers []*driver) (engine, processor time.Duration) {
		before, spent := e.counters.cycleTime.Load(), processorTime(b)
		each := len(data) / len(drivers)
		release := block(b, e, nil)
		var waits []func() float64
		for i, d := range drivers {
			waits = append(waits, d.passCycle(data[i*each:(i+1)*each]), d.stepCycle())
		}
		release()
		for _, wait := range waits {
			wait()
		}
		for idle := false; !idle; time.Sleep(time.Millisecond) { // the cycle ends after its last step is answered
			e.mu.Lock()
			idle = e.parked
			e.mu.Unlock()
		}
		return time.Duration(e.counters.cycleTime.Load() - before), processorTime(b) - spent
	}
	turn(all) // memory grows, threads start
	var engine, processor [2]time.Duration
	for n := 0; b.Loop(); n++ {
		for i, drivers := range [][]*driver{all[:1], all} {
			t, p := turn(drivers)
			if n == 0 {
				engine[i], processor[i] = t, p
			}
			engine[i], processor[i] = min(engine[i], t), min(processor[i], p)
		}
	}
	b.ReportMetric(float64(len(data)*length)/engine[1].Seconds(), "tokens/s")
	b.ReportMetric(engine[1].Seconds()/engine[0].Seconds(), "ratio")
	b.ReportMetric(processor[1].Seconds()/processor[0].Seconds(), "cpu-ratio")
}

// BenchmarkPlacements trains 16 sequences of 512 tokens, forward and backward and a step, in the shape of Qwen3-0.6B with random weights: on one device with two threads, and on two devices with one thread each. The
// placements take turns, so that what else the machine does meets all of them, and the fastest turn of each counts. Beside the rates stand the processor time of a turn and the ratios to the one device. The model is cut
// by a number that divides its layers and its vocabulary alike: layers and head keep their width and their share of the work, so that a part takes that part of the whole model's time. part=1 is the whole:
//
//	go test -run none -bench Placements/part=14/ -benchtime 3x ./backends/internal/engine
func BenchmarkPlacements(b *testing.B) {
	for _, part := range []int{1, 14, 28} {
		b.Run(fmt.Sprintf("part=%d", part), func(b *testing.B) {
			dir := b.TempDir()
			const vocabulary, layers, multiple = 151936, 28, 64
			size := vocabulary / part / multiple * multiple
			if err := writeModel(dir, shape{size, 1024, 3072, layers / part, 16, 8, 128}); err != nil {
				b.Fatal(err)
			}
			b.Run("train", func(b *testing.B) { benchmarkPlacements(b, dir, size) })
		})
	}
}

// trained is a placement in BenchmarkPlacements.
type trained struct {
	name            string
	driver          *driver
	wall, processor time.Duration // of its fastest turn
}

func benchmarkPlacements(b *testing.B, dir string, vocabulary int) {
	const sequences, length = 16, 512
	random := rand.New(rand.NewPCG(2, 2))
	data := make([]plugins.Datum, sequences)
	for i := range data {
		// Of the whole vocabulary: each rank of a cut model has some of the tokens.
		data[i] = plugins.Datum{Tokens: randomTokensOf(random, vocabulary, length), Targets: randomTokensOf(random, vocabulary, length), K: 1, Weights: make([]float32, length)}
		for k := range data[i].Weights {
			data[i].Weights[k] = 1
		}
	}
	var all []*trained
	for _, p := range []struct{ plugin, devices string }{{"single", `"device": "cpu"`}, {"dataparallel", `"devices": ["cpu", "cpu"]`}, {"tensorparallel", `"devices": ["cpu", "cpu"]`}} {
		o := testOptions()
		o.Plugin = p.plugin
		e := New(o)
		defer func() {
			if err := e.Close(); err != nil {
				b.Error(err)
			}
		}()
		section := fmt.Sprintf(`{%s, "threads": 2, "dtype": "bfloat16", "kv_cache_tokens": 1024, "memory_mib": 8192}`, p.devices)
		if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(section)}, nil); err != nil {
			b.Fatal(err)
		}
		t := &trained{name: p.plugin, driver: create(b, e, "a", 1, 32), wall: math.MaxInt64, processor: math.MaxInt64}
		t.driver.pass(data[:2]) // memory grows, threads start
		t.driver.step()
		all = append(all, t)
	}
	b.ResetTimer()
	for range b.N {
		for _, t := range all {
			begin, before := time.Now(), processorTime(b)
			t.driver.pass(data)
			t.driver.step()
			t.wall, t.processor = min(t.wall, time.Since(begin)), min(t.processor, processorTime(b)-before)
		}
	}
	for _, t := range all {
		b.ReportMetric(sequences*length/t.wall.Seconds(), t.name+"-tok/s")
		b.ReportMetric(t.processor.Seconds(), t.name+"-cpu-s")
		b.ReportMetric(all[0].wall.Seconds()/t.wall.Seconds(), t.name+"-ratio")
	}
}

// processorTime is what this process has taken.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
