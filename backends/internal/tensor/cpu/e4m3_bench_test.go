package cpu_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// BenchmarkE4M3 has products with weights in eight bits beside those with the weights of bfloat16 that they stand for, in turn: how many times as fast the best run is. There are as many matrices as do not fit the caches, as
// a model has.
func BenchmarkE4M3(b *testing.B) {
	const bytes = 256 << 20 // of bfloat16
	for _, isa := range cpu.ISAs() {
		if isa == "sse2" {
			continue
		}
		for _, threads := range []int{1, 2} {
			d := open(b, cpu.Options{ISA: isa, Threads: threads})
			for _, s := range []struct {
				rows, out, in int
				transposed    bool
			}{
				{1, 4096, 4096, false}, {1, 12288, 4096, false}, {1, 4096, 12288, false}, {2, 4096, 4096, false}, {4, 4096, 4096, false}, {8, 4096, 4096, false}, {16, 4096, 4096, false}, {32, 4096, 4096, false},
				{128, 4096, 4096, false}, {512, 4096, 4096, false}, {8, 4096, 4096, true}, {32, 4096, 4096, true}, {128, 4096, 4096, true}, {512, 4096, 4096, true},
			} {
				name := fmt.Sprintf("%s/threads=%d/%d×%d×%d", isa, threads, s.rows, s.out, s.in)
				if s.transposed {
					name += "/transposed"
				}
				b.Run(name, func(b *testing.B) {
					n := max(1, bytes/(2*s.out*s.in))
					var matrices [2][]tensor.Matrix
					codes, scales, plain := make([]byte, s.out*s.in), make([]float32, s.out*((s.in+127)/128)), make([]byte, 2*s.out*s.in)
					for i := range codes {
						codes[i] = byte(i*7) &^ 0x40
					}
					for i := range scales {
						scales[i] = 0.01
					}
					for range n {
						eight, err := d.NewE4M3Matrix(s.out, s.in, 128)
						if err != nil {
							b.Fatal(err)
						}
						defer eight.Free()
						m, err := d.NewMatrix(tensor.BFloat16, s.out, s.in)
						if err != nil {
							b.Fatal(err)
						}
						defer m.Free()
						if err := d.PackE4M3(eight, 0, s.out, codes, scales); err != nil {
							b.Fatal(err)
						}
						if err := d.PackRows(m, 0, s.out, "BF16", plain); err != nil {
							b.Fatal(err)
						}
						matrices[0], matrices[1] = append(matrices[0], eight), append(matrices[1], m)
					}
					x, y := allocate(b, d, s.rows, s.in), allocate(b, d, s.rows, s.out)
					best := [2]float64{math.Inf(1), math.Inf(1)}
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					for b.Loop() {
						for kind, all := range matrices {
							for _, m := range all {
								start := cpu.Clock(d)
								var err error
								if s.transposed {
									err = d.MatMulTransposed(x, y, m, false)
								} else {
									err = d.MatMul(y, x, m, false)
								}
								if err != nil {
									b.Fatal(err)
								}
								best[kind] = min(best[kind], cpu.Clock(d)-start)
							}
						}
					}
					b.ReportMetric(float64(matrices[0][0].Bytes())/best[0]/1e9, "GB/s")
					b.ReportMetric(float64(matrices[1][0].Bytes())/best[1]/1e9, "bf16-GB/s")
					b.ReportMetric(best[1]/best[0], "×bf16")
				})
			}
		}
	}
}
