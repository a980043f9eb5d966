package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// TestOuterProductsTurned compares, bit for bit, outer products that are wide enough for units of several panels with their transposes, whose vectors run along the other side, and with products of a few columns each.
func TestOuterProductsTurned(t *testing.T) {
	const rows, wide = 300, 1100 // several blocks of rows, and a ragged last panel
	for _, isa := range cpu.ISAs() {
		for _, threads := range []int{1, 2} {
			for _, rank := range []int{1, 20, 32, 48, 64} {
				t.Run(fmt.Sprintf("%s/threads=%d/rank=%d", isa, threads, rank), func(t *testing.T) {
					d := open(t, cpu.Options{Threads: threads, ISA: isa})
					random := rand.New(rand.NewPCG(1, uint64(rank)))
					put := func(r, c int, value func(i, j int) float32) tensor.Tensor {
						x, err := d.Alloc(tensor.Float32, r, c)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { d.Free(x) })
						values := make([]float32, r*c)
						for i := range values {
							values[i] = value(i/c, i%c)
						}
						if err := d.Upload(x, values); err != nil {
							t.Fatal(err)
						}
						return x
					}
					before := make([]float32, wide*rank)
					for i := range before {
						before[i] = float32(random.NormFloat64())
					}
					normal := func(int, int) float32 { return float32(random.NormFloat64()) }
					a, b := put(rows, wide, normal), put(rows, rank, normal)
					tall := put(wide, rank, func(i, j int) float32 { return before[i*rank+j] })
					cut := put(wide, rank, func(i, j int) float32 { return before[i*rank+j] })
					flat := put(rank, wide, func(i, j int) float32 { return before[j*rank+i] })
					products := []tensor.OuterProduct{{G: tall, A: a, B: b}, {G: flat, A: b, B: a}}
					for from := 0; from < wide; from += 70 {
						to := min(from+70, wide)
						products = append(products, tensor.OuterProduct{G: cut.Slice(from, to), A: a.Columns(from, to), B: b})
					}
					if err := d.OuterProducts(products); err != nil {
						t.Fatal(err)
					}
					got, pieces, turned := make([]float32, wide*rank), make([]float32, wide*rank), make([]float32, wide*rank)
					for _, x := range []struct {
						to   []float32
						from tensor.Tensor
					}{{got, tall}, {pieces, cut}, {turned, flat}} {
						if err := d.Download(x.to, x.from); err != nil {
							t.Fatal(err)
						}
					}
					for i, v := range got {
						p, q := i/rank, i%rank
						if w := turned[q*wide+p]; math.Float32bits(v) != math.Float32bits(w) {
							t.Fatalf("row %d, column %d: %v, and %v in the transpose", p, q, v, w)
						}
						if w := pieces[i]; math.Float32bits(v) != math.Float32bits(w) {
							t.Fatalf("row %d, column %d: %v, and %v in pieces", p, q, v, w)
						}
						if v == before[i] {
							t.Fatalf("row %d, column %d was not computed", p, q)
						}
					}
				})
			}
		}
	}
}
