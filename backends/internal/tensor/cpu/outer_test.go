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

// TestOuterProductsPast compares, bit for bit, the gradients of a pass with many adapters, which are written past the caches, with the same products added to zeros, which are not.
func TestOuterProductsPast(t *testing.T) {
	const least = 2 << 20 // bytes of gradients in one operation from which on they pass the caches
	for _, isa := range cpu.ISAs() {
		for _, rank := range []int{4, 8, 16, 20, 24, 32, 33, 48, 64} {
			for _, size := range []struct{ rows, wide, threads int }{{1, 1104, 1}, {32, 1024, 2}, {77, 1104, 2}, {128, 1100, 1}, {128, 1024, 2}, {129, 1104, 2}, {300, 1024, 1}} {
				t.Run(fmt.Sprintf("%s/rank=%d/rows=%d/wide=%d", isa, rank, size.rows, size.wide), func(t *testing.T) {
					d := open(t, cpu.Options{Threads: size.threads, ISA: isa})
					random := rand.New(rand.NewPCG(2, uint64(rank)))
					put := func(r, c int, value func() float32) tensor.Tensor {
						x, err := d.Alloc(tensor.Float32, r, c)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { d.Free(x) })
						values := make([]float32, r*c)
						for i := range values {
							values[i] = value()
						}
						if err := d.Upload(x, values); err != nil {
							t.Fatal(err)
						}
						return x
					}
					normal := func() float32 { return float32(random.NormFloat64()) }
					zero := func() float32 { return 0 }
					never := func() float32 { return float32(math.NaN()) } // stays where nothing is written
					a, b := put(size.rows, size.wide, normal), put(size.rows, rank, normal)
					for _, shape := range []struct {
						name       string
						rows, cols int
						a, b       tensor.Tensor
					}{{"tall", size.wide, rank, a, b}, {"flat", rank, size.wide, b, a}} {
						want := put(shape.rows, shape.cols, zero)
						if err := d.OuterProducts([]tensor.OuterProduct{{G: want, A: shape.a, B: shape.b}}); err != nil {
							t.Fatal(err)
						}
						adapters := least/(shape.rows*shape.cols*4) + 1
						all := put(adapters*shape.rows, shape.cols, never)
						var products []tensor.OuterProduct
						for i := range adapters {
							products = append(products, tensor.OuterProduct{G: all.Slice(i*shape.rows, (i+1)*shape.rows), A: shape.a, B: shape.b, First: true})
						}
						if err := d.OuterProducts(products); err != nil {
							t.Fatal(err)
						}
						expected, got := make([]float32, shape.rows*shape.cols), make([]float32, adapters*shape.rows*shape.cols)
						if err := d.Download(expected, want); err != nil {
							t.Fatal(err)
						}
						if err := d.Download(got, all); err != nil {
							t.Fatal(err)
						}
						for i, v := range got {
							if w := expected[i%len(expected)]; math.Float32bits(v) != math.Float32bits(w) {
								t.Fatalf("%s, adapter %d, element %d: %v, and %v added to zero", shape.name, i/len(expected), i%len(expected), v, w)
							}
						}
					}
				})
			}
		}
	}
}
