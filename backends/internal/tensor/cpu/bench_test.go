package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// The benchmarks print, beside the mean that the testing package takes, figures of the best run: GFLOP/s and its share of the multiply-add peak, GB/s and its share of the
// read bandwidth, both measured in the same process. The best run is what a machine shared with others can say about the code;
// with one thread, time is its processor time. Shapes are those of Qwen3-0.6B.

type benchmarkDevice struct {
	tensor.Device
	ceilings cpu.Ceilings
}

// measured has the ceilings by threads, measured once.
var measured sync.Map

func benchmarked(b *testing.B, threads int) benchmarkDevice {
	b.Helper()
	d := open(b, cpu.Options{Threads: threads})
	if c, ok := measured.Load(threads); ok {
		return benchmarkDevice{d, c.(cpu.Ceilings)}
	}
	c, err := cpu.Measure(d)
	if err != nil {
		b.Fatal(err)
	}
	measured.Store(threads, c)
	fmt.Printf("%d threads, %s: peak %.0f GFLOP/s float32, %.0f bfloat16, reads %.1f GB/s\n", threads, d.Arithmetic(), c.Float32/1e9, c.BFloat16/1e9, c.Read/1e9)
	return benchmarkDevice{d, c}
}

func (d benchmarkDevice) tensor(b *testing.B, rows, cols int) tensor.Tensor {
	b.Helper()
	x, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Free(x) })
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = r.Float32() - 0.5
	}
	if err := d.Upload(x, values); err != nil {
		b.Fatal(err)
	}
	return x
}

// run times f and reports flops and bytes per second of the best run.
func (d benchmarkDevice) run(b *testing.B, peak, flops, bytes float64, f func() error) (best float64) {
	b.Helper()
	best = math.Inf(1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		start := cpu.Clock(d.Device)
		if err := f(); err != nil {
			b.Fatal(err)
		}
		best = min(best, cpu.Clock(d.Device)-start)
	}
	b.ReportMetric(best*1e6, "best-µs")
	if flops > 0 {
		b.ReportMetric(flops/best/1e9, "GFLOP/s")
		b.ReportMetric(100*flops/best/peak, "%peak")
	}
	if bytes > 0 {
		b.ReportMetric(bytes/best/1e9, "GB/s")
		b.ReportMetric(100*bytes/best/d.ceilings.Read, "%read")
	}
	return best
}

func eachThreads(b *testing.B, f func(b *testing.B, d benchmarkDevice)) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) { f(b, benchmarked(b, threads)) })
	}
}

func BenchmarkMatMul(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			peak := d.ceilings.Float32
			if dtype == tensor.BFloat16 {
				peak = d.ceilings.BFloat16
			}
			for _, s := range []struct {
				rows, out, in int
				transposed    bool
			}{
				{512, 3072, 1024, false}, {512, 1024, 3072, false}, {512, 2048, 1024, false}, {64, 151936, 1024, false}, {512, 32, 1024, false}, {512, 1024, 32, false},
				{8, 151936, 1024, false}, {4, 3072, 1024, false}, {1, 3072, 1024, false}, {1, 151936, 1024, false},
				{512, 3072, 1024, true}, {512, 1024, 3072, true}, {64, 3072, 1024, true}, {64, 151936, 1024, true}, {256, 151936, 1024, false}, {256, 151936, 1024, true},
			} {
				name := fmt.Sprintf("%v/%d×%d×%d", dtype, s.rows, s.out, s.in)
				if s.transposed {
					name += "/transposed"
				}
				b.Run(name, func(b *testing.B) {
					m, err := d.NewMatrix(dtype, s.out, s.in)
					if err != nil {
						b.Fatal(err)
					}
					defer m.Free()
					w := d.tensor(b, s.out, s.in)
					if err := d.Repack(tensor.MatrixSource{Matrix: m, Src: w}); err != nil {
						b.Fatal(err)
					}
					x, y := d.tensor(b, s.rows, s.in), d.tensor(b, s.rows, s.out)
					var bytes float64
					if s.rows <= 8 {
						bytes = float64(m.Bytes())
					}
					d.run(b, peak, 2*float64(s.rows)*float64(s.out)*float64(s.in), bytes, func() error {
						if s.transposed {
							return d.MatMulTransposed(x, y, m, false)
						}
						return d.MatMul(y, x, m, false)
					})
				})
			}
		}
	})
}

// Packing is what loading a model and publishing an adapter's step cost.
func BenchmarkPack(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		const out, in = 3072, 1024
		for _, c := range []struct {
			source string
			size   int
			dtype  tensor.DType
		}{{"BF16", 2, tensor.BFloat16}, {"BF16", 2, tensor.Float32}, {"F16", 2, tensor.BFloat16}, {"F32", 4, tensor.BFloat16}, {"F32", 4, tensor.Float32}} {
			b.Run(fmt.Sprintf("%s to %v", c.source, c.dtype), func(b *testing.B) {
				m, err := d.NewMatrix(c.dtype, out, in)
				if err != nil {
					b.Fatal(err)
				}
				defer m.Free()
				data := make([]byte, out*in*c.size)
				d.run(b, 0, 0, float64(len(data)+m.Bytes()), func() error { return d.PackRows(m, 0, out, c.source, data) })
			})
		}
	})
}

func BenchmarkOuterProduct(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		for _, s := range [][3]int{{512, 8, 1024}, {512, 32, 3072}, {512, 3072, 32}, {512, 64, 1024}, {512, 1024, 8}, {64, 32000, 32}} {
			b.Run(fmt.Sprintf("%d×%d×%d", s[0], s[1], s[2]), func(b *testing.B) {
				g, x, y := d.tensor(b, s[1], s[2]), d.tensor(b, s[0], s[1]), d.tensor(b, s[0], s[2])
				d.run(b, d.ceilings.Float32, 2*float64(s[0])*float64(s[1])*float64(s[2]), 0, func() error { return d.OuterProduct(g, x, y) })
			})
		}
	})
}

// BenchmarkOuterProducts is the gradients of 16 adapters that have a sequence of 32 rows each: gradients that have not been touched for long, as a pass over a whole model meets them.
func BenchmarkOuterProducts(b *testing.B) {
	const rows, sequences, bytes = 32, 16, 256 << 20
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		for _, s := range [][2]int{{8, 1024}, {16, 1024}, {32, 1024}, {64, 1024}, {1024, 8}, {1024, 16}, {1024, 32}, {1024, 64}} {
			b.Run(fmt.Sprintf("%d×%d×%d×%d", sequences, rows, s[0], s[1]), func(b *testing.B) {
				var groups [][]tensor.OuterProduct
				for range bytes / (sequences * s[0] * s[1] * 4) {
					var group []tensor.OuterProduct
					for range sequences {
						group = append(group, tensor.OuterProduct{G: d.tensor(b, s[0], s[1])})
					}
					groups = append(groups, group)
				}
				x, y := d.tensor(b, rows*sequences, s[0]), d.tensor(b, rows*sequences, s[1])
				for _, group := range groups {
					for i := range group {
						group[i].A, group[i].B = x.Slice(i*rows, (i+1)*rows), y.Slice(i*rows, (i+1)*rows)
					}
				}
				next := 0
				size := float64(s[0] * s[1])
				d.run(b, d.ceilings.Float32, 2*rows*sequences*size, 8*sequences*size, func() error {
					next++
					return d.OuterProducts(groups[next%len(groups)])
				})
			})
		}
	})
}

func BenchmarkAttention(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		const queryHeads, heads, dim = 16, 8, 128
		for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			for _, s := range []struct{ rows, first int }{{512, 0}, {2048, 0}, {1, 511}, {1, 4095}} {
				positions := s.first + s.rows
				p, err := d.NewPages(dtype, 1, positions/64+1, heads, dim)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(p.Free)
				var ids []int32
				for i := range (positions + 63) / 64 {
					ids = append(ids, int32(i))
				}
				k, v := d.tensor(b, positions, heads*dim), d.tensor(b, positions, heads*dim)
				if err := d.WritePages(p, 0, k, v, []tensor.AttentionRun{{Count: positions, Pages: ids}}); err != nil {
					b.Fatal(err)
				}
				q, o, do, dq := d.tensor(b, s.rows, queryHeads*dim), d.tensor(b, s.rows, queryHeads*dim), d.tensor(b, s.rows, queryHeads*dim), d.tensor(b, s.rows, queryHeads*dim)
				lse := d.tensor(b, s.rows, queryHeads)
				runs := []tensor.AttentionRun{{Count: s.rows, First: s.first, Pages: ids}}
				pairs := float64(s.rows) * (float64(s.first) + float64(s.rows+1)/2)
				flops := 4 * pairs * queryHeads * dim
				var bytes float64
				if s.rows == 1 {
					bytes = 2 * float64(positions*heads*dim*dtype.Size())
				}
				b.Run(fmt.Sprintf("%v/%d rows at %d", dtype, s.rows, s.first), func(b *testing.B) {
					d.run(b, d.ceilings.Float32, flops, bytes, func() error { return d.Attention(o, lse, q, p, 0, runs, queryHeads, 0.088) })
				})
				if s.first == 0 {
					b.Run(fmt.Sprintf("%v/%d rows backward", dtype, s.rows), func(b *testing.B) {
						d.run(b, d.ceilings.Float32, 2.5*flops, 0, func() error { return d.AttentionBackward(dq, k, v, do, o, lse, q, p, 0, runs, queryHeads, 0.088) })
					})
				}
			}
		}
	})
}

func BenchmarkRows(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		const rows, cols, vocabulary = 4096, 3072, 151936
		x, y, z, w := d.tensor(b, rows, cols), d.tensor(b, rows, cols), d.tensor(b, rows, cols), d.tensor(b, 1, cols)
		logits, lse := d.tensor(b, 64, vocabulary), d.tensor(b, 64, 1)
		table := d.tensor(b, rows, 128)
		positions := make([]int32, rows)
		for i := range positions {
			positions[i] = int32(i)
		}
		half, err := d.Alloc(tensor.BFloat16, rows, cols)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { d.Free(half) })
		step := tensor.AdamWStep{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: 3}
		const n = rows * cols * 4
		for _, op := range []struct {
			name  string
			bytes float64 // read and written
			f     func() error
		}{
			{"rms norm", 2 * n, func() error { return d.RMSNorm(y, x, w, 1e-6) }},
			{"rms norm backward", 3 * n, func() error { return d.RMSNormBackward(z, y, x, w, 1e-6, false) }},
			{"swiglu", 3 * n, func() error { return d.SwiGLU(z, x, y) }},
			{"swiglu backward", 5 * n, func() error { return d.SwiGLUBackward(x, y, z, x, y) }},
			{"rope", 2 * n, func() error { return d.Rope(x, positions, table, cols/128, false) }},
			{"add", 3 * n, func() error { return d.Add(y, x) }},
			{"scale", 2 * n, func() error { return d.Scale(y, 1, tensor.BFloat16) }},
			{"round", 1.5 * n, func() error { return d.Round(half, x) }},
			{"sum of squares", n, func() error { _, err := d.SumSquares(x); return err }},
			{"adamw", 7 * n, func() error {
				_, err := d.AdamW(tensor.AdamWUpdate{NewP: x, NewM: y, NewV: z, P: x, M: y, V: z, G: x, AdamWStep: step})
				return err
			}},
			{"log-sum-exp", 64 * vocabulary * 4, func() error { return d.LogSumExp(lse, logits) }},
			{"softmax", 2 * 64 * vocabulary * 4, func() error { return d.Softmax(logits, logits, lse) }},
		} {
			b.Run(op.name, func(b *testing.B) { d.run(b, 0, 0, op.bytes, op.f) })
		}
	})
}

// Draws of 64 tokens; what plain ones read once is all that they need.
func BenchmarkDraws(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		const rows = 64
		for _, vocabulary := range []int{4096, 151936} {
			logits, probs, lse, dst := d.tensor(b, rows, vocabulary), d.tensor(b, rows, vocabulary), d.tensor(b, rows, 1), d.tensor(b, rows, 2)
			random := rand.New(rand.NewPCG(1, 2))
			values := make([]float32, rows*vocabulary)
			for i := range values {
				values[i] = float32(3 * random.NormFloat64())
			}
			for _, err := range []error{d.Upload(logits, values), d.LogSumExp(lse, logits), d.Softmax(probs, logits, lse)} {
				if err != nil {
					b.Fatal(err)
				}
			}
			for _, c := range []struct {
				name string
				draw tensor.Draw
			}{{"plain", tensor.Draw{TopP: 1}}, {"greedy", tensor.Draw{TopP: 1, TopK: 1}}, {"top-p 0.9", tensor.Draw{TopP: 0.9}}, {"top-k 50", tensor.Draw{TopP: 1, TopK: 50}}, {"min-p 0.1", tensor.Draw{TopP: 1, MinP: 0.1}}} {
				draws := make([]tensor.Draw, rows)
				for i := range draws {
					draws[i] = c.draw
					draws[i].U = random.Float64()
				}
				b.Run(fmt.Sprintf("%s of %d", c.name, vocabulary), func(b *testing.B) {
					d.run(b, 0, 0, float64(4*rows*vocabulary), func() error { return d.Device.(tensor.Drawer).DrawTokens(dst, logits, probs, draws) })
				})
			}
		}
	})
}

// The cost of an operation itself: a product and a sum of a tiny model's decoding step.
func BenchmarkSmall(b *testing.B) {
	eachThreads(b, func(b *testing.B, d benchmarkDevice) {
		m, err := d.NewMatrix(tensor.Float32, 256, 128)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(m.Free)
		x, y := d.tensor(b, 1, 128), d.tensor(b, 1, 256)
		b.Run("matmul 1×256×128", func(b *testing.B) { d.run(b, 0, 0, 0, func() error { return d.MatMul(y, x, m, false) }) })
		b.Run("add 1×128", func(b *testing.B) { d.run(b, 0, 0, 0, func() error { return d.Add(x, x) }) })
	})
}

// BenchmarkRecurrence has the shape of a layer of Qwen3.5-0.8B: 16 heads of 128 × 128. ns/head-token is what one head takes for one token.
func BenchmarkRecurrence(b *testing.B) {
	const heads, dim, mixed = 16, 128, 3 * 16 * 128
	for _, rows := range []int{1, 512, 2048} {
		d := benchmarked(b, 1)
		in := tensor.DeltaInputs{Mixed: d.tensor(b, rows, mixed), A: d.tensor(b, rows, heads), B: d.tensor(b, rows, heads), ALog: d.tensor(b, 1, heads), Bias: d.tensor(b, 1, heads),
			KeyHeads: heads, ValueHeads: heads, KeyDim: dim, ValueDim: dim}
		o, states := d.tensor(b, rows, heads*dim), d.tensor(b, 4, in.StateSize())
		run := func(name string, operations float64, f func(i int) error) { // for each element of a state
			b.Run(fmt.Sprintf("%s %d", name, rows), func(b *testing.B) {
				i := 0
				best := d.run(b, d.ceilings.Float32, operations*float64(rows)*heads*dim*dim, 0, func() error { i++; return f(i) })
				b.ReportMetric(best*1e9/float64(rows)/heads, "ns/head-token")
			})
		}
		run("delta rule", 7, func(i int) error {
			return d.DeltaRule(o, in, states, []tensor.StateRun{{Count: rows, Slot: i % 4}})
		})
		if rows == 1 {
			continue
		}
		dmixed, da, db := d.tensor(b, rows, mixed), d.tensor(b, rows, heads), d.tensor(b, rows, heads)
		run("delta rule backward", 26, func(int) error {
			return d.DeltaRuleBackward(dmixed, da, db, o, in, []tensor.StateRun{{Count: rows, Slot: tensor.NoSlot}})
		})
		weight, y := d.tensor(b, 4, mixed), d.tensor(b, rows, mixed)
		run("conv", 0, func(int) error {
			return d.Conv(y, in.Mixed, weight, tensor.Tensor{}, []tensor.StateRun{{Count: rows, Slot: tensor.NoSlot}})
		})
	}
}
