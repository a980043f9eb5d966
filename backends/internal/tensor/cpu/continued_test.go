package cpu_test

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// TestContinuedProductsOfLongAxes is a gradient by the input of two layers whose outputs are so many that the packed rows of a single block are more than are packed at a time.
func TestContinuedProductsOfLongAxes(t *testing.T) {
	const rows, out, in = 41, 1 << 20, 2 // of both together 32 rows are as much as is packed at a time
	d := open(t, cpu.Options{Threads: 2})
	m, err := d.NewMatrix(tensor.Float32, out, in)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	w, dy, dx := allocate(t, d, out, in), allocate(t, d, rows, out), allocate(t, d, rows, in)
	if err := d.Repack(tensor.MatrixSource{Matrix: m, Src: w}); err != nil {
		t.Fatal(err)
	}
	cut, _ := tensor.RankSegments(out, 0, 1)
	products := func(from, to int) []tensor.Multiplication {
		p := tensor.Multiplication{Y: dx.Slice(from, to), X: dy.Slice(from, to), Groups: []tensor.RowGroup{{To: to - from, Matrix: m}}, Transposed: true, Segments: cut}
		next := p
		next.Continues = true
		return []tensor.Multiplication{p, next}
	}
	got, want := make([]float32, rows*in), make([]float32, rows*in)
	if err := d.MatMuls(products(0, rows)); err != nil {
		t.Fatal(err)
	}
	if err := d.Download(got, dx); err != nil {
		t.Fatal(err)
	}
	for row := range rows {
		if err := d.MatMuls(products(row, row+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Download(want, dx); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("element %d is %v, alone %v", i, got[i], want[i])
		}
	}
}
