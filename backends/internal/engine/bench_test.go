package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

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

// BenchmarkPlacements trains 16 sequences of 512 tokens, forward and backward and a step, on a model of the width of Qwen3-0.6B with random weights: on one device with two threads, and on two devices with one thread each.
// With 28 layers it is the real model; with 2 it is quicker to run, and the output head weighs more:
//
//	go test -run none -bench Placements/layers=2/ -benchtime 1x ./backends/internal/engine
func BenchmarkPlacements(b *testing.B) {
	for _, layers := range []int{28, 2} {
		b.Run(fmt.Sprint("layers=", layers), func(b *testing.B) {
			dir := b.TempDir()
			if err := writeModel(dir, shape{151936, 1024, 3072, layers, 16, 8, 128}); err != nil {
				b.Fatal(err)
			}
			for _, p := range []placement{
				{"single", "single", `{"plugin": "single", "threads": 2, "dtype": "bfloat16"}`},
				{"dataparallel", "dataparallel", `{"plugin": "dataparallel", "devices": ["cpu", "cpu"], "threads": 2, "dtype": "bfloat16"}`},
				{"tensorparallel", "tensorparallel", `{"plugin": "tensorparallel", "devices": ["cpu", "cpu"], "threads": 2, "dtype": "bfloat16"}`},
			} {
				b.Run(p.name, func(b *testing.B) { benchmarkPlacement(b, dir, p) })
			}
		})
	}
}

func benchmarkPlacement(b *testing.B, dir string, p placement) {
	o := testOptions()
	o.Plugin = p.plugin
	e := New(o)
	defer func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	}()
	if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(p.section)}, nil); err != nil {
		b.Fatal(err)
	}
	d := create(b, e, "a", 1, 32)
	random := rand.New(rand.NewPCG(2, 2))
	const sequences, length = 16, 512
	data := make([]plugins.Datum, sequences)
	for i := range data {
		data[i] = plugins.Datum{Tokens: randomTokens(random, length), Targets: randomTokens(random, length), K: 1, Weights: make([]float32, length)}
		for k := range data[i].Weights {
			data[i].Weights[k] = 1
		}
	}
	n := 0
	for b.Loop() {
		d.pass(data)
		d.step()
		n += sequences * length
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
}
