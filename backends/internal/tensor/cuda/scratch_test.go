package cuda_test

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// With as much scratch memory as the contract says no operation asks the driver for memory: products of float32 rows with bfloat16 weights, with an adapter's beside them, whoever computes them, and attention.
func TestScratch(t *testing.T) {
	t.Setenv("FAKE_CUDA_FAIL", "")
	lost := 0
	d := open(t, cuda.Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{})}, Lost: func(error) { lost++ }})
	scratch := d.(tensor.Scratcher)
	tensorOf := func(rows, cols int) tensor.Tensor {
		t.Helper()
		x, err := d.Alloc(tensor.Float32, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Free(x) })
		return x
	}
	matrixOf := func(out, in int) tensor.Matrix {
		t.Helper()
		m, err := d.NewMatrix(tensor.BFloat16, out, in)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Free)
		return m
	}
	check := func(what string, bytes int64, f func() error) {
		t.Helper()
		scratch.ReleaseScratch()
		d.Trim()
		if err := scratch.ReserveScratch(bytes); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:719")
		err := f()
		t.Setenv("FAKE_CUDA_FAIL", "")
		if err != nil || lost != 0 {
			t.Fatalf("%s with %d bytes: error %v, %d allocations", what, bytes, err, lost)
		}
	}
	for _, c := range []struct{ rows, in, out, rank int }{{5, 264, 40, 4}, {140, 264, 136, 32}, {140, 260, 136, 260}, {140, 520, 264, 264}, {140, 264, 40, 8}, {3, 30, 16, 2}} {
		x, y, inner := tensorOf(c.rows, c.in), tensorOf(c.rows, c.out), tensorOf(c.rows, c.rank)
		w, a, b := matrixOf(c.out, c.in), matrixOf(c.rank, c.in), matrixOf(c.out, c.rank)
		product := func(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) tensor.Multiplication {
			return tensor.Multiplication{Y: y, X: x, Groups: []tensor.RowGroup{{To: c.rows, Matrix: m}}, Accumulate: accumulate}
		}
		stages := [][]tensor.Multiplication{{product(y, x, w, false), product(inner, x, a, false)}, {product(y, inner, b, true)}}
		check(fmt.Sprint("products ", c), tensor.ProductScratch(stages...), func() error { return d.MatMuls(stages...) })
		check(fmt.Sprint("product ", c), tensor.ProductScratch(stages[0][:1]), func() error { return d.MatMul(y, x, w, false) })
	}
	for _, rows := range []int{511, 512} { // from here on parts of matrices in eight bits are expanded before, by devices with warpgroups from 256 on
		x, y, inner := tensorOf(rows, 264), tensorOf(rows, 136), tensorOf(rows, 8)
		eight, err := d.NewE4M3Matrix(136, 264, 128)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(eight.Free)
		product := func(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) tensor.Multiplication {
			return tensor.Multiplication{Y: y, X: x, Groups: []tensor.RowGroup{{To: rows, Matrix: m}}, Accumulate: accumulate}
		}
		stages := [][]tensor.Multiplication{{product(y, x, eight, false), product(inner, x, matrixOf(8, 264), false)}, {product(y, inner, matrixOf(136, 8), true)}}
		check(fmt.Sprint("product in eight bits of rows ", rows), tensor.ProductScratch(stages...), func() error { return d.MatMuls(stages...) })
		back := tensor.Multiplication{Y: x, X: y, Groups: stages[0][0].Groups, Transposed: true}
		check(fmt.Sprint("transposed product in eight bits of rows ", rows), tensor.ProductScratch([]tensor.Multiplication{back}), func() error { return d.MatMuls([]tensor.Multiplication{back}) })
	}
	var layers []tensor.Multiplication // with rows of their own
	for range 3 {
		m := tensor.Multiplication{Y: tensorOf(5, 40), X: tensorOf(5, 264), Groups: []tensor.RowGroup{{To: 5, Matrix: matrixOf(40, 264)}}}
		layers = append(layers, m, m)
		layers[len(layers)-1].Y = tensorOf(5, 40)
	}
	check("layers", tensor.ProductScratch(layers), func() error { return d.MatMuls(layers) })
	layers = nil // those of adapters for many rows
	for range 3 {
		layers = append(layers, tensor.Multiplication{Y: tensorOf(130, 8), X: tensorOf(130, 264), Groups: []tensor.RowGroup{{To: 130, Matrix: matrixOf(8, 264)}}})
	}
	check("adapters of many rows", tensor.ProductScratch(layers), func() error { return d.MatMuls(layers) })
	routed := func(y, x tensor.Tensor, m tensor.Matrix) tensor.RoutedProduct {
		return tensor.RoutedProduct{Y: y, X: x, Groups: []tensor.RoutedGroup{{To: x.Rows, Stack: tensor.NewStack(m, 3, 40)}}}
	}
	experts := []tensor.RoutedProduct{}
	for _, in := range []int{264, 264, 40, 520} {
		m, x := matrixOf(tensor.StackRows(3, 40), in), tensorOf(10, in)
		experts = append(experts, routed(tensorOf(10, 40), x, m), routed(tensorOf(10, 40), x, m))
	}
	table := tensor.Table{Words: tensorOf(1, tensor.TableWords(10, 1, 3)), Tokens: 10, Slots: 1, Experts: 3}
	check("experts", tensor.RoutedScratch(experts...), func() error { return d.MatMulRouted(table, experts...) })
	const heads, dim, keys = 2, 32, 2*2048 + 1
	ids := make([]int32, (keys+tensor.PageSize-1)/tensor.PageSize)
	for i := range ids {
		ids[i] = int32(i)
	}
	p, err := d.NewPages(tensor.BFloat16, 1, len(ids), 1, dim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Free)
	o, q, lse := tensorOf(1, heads*dim), tensorOf(1, heads*dim), tensorOf(1, heads)
	check("attention", tensor.AttentionScratch(1, heads, dim, keys), func() error {
		return d.Attention(o, lse, q, p, 0, []tensor.AttentionRun{{Count: 1, First: keys - 1, Pages: ids}}, heads, 1)
	})
	check("attention to a window", 0, func() error {
		return d.Attention(o, lse, q, p, 0, []tensor.AttentionRun{{Count: 1, First: keys - 1, Pages: ids, Window: tensor.MaxWindow}}, heads, 1)
	})
	const rows = 70
	o, q, lse = tensorOf(rows, heads*dim), tensorOf(rows, heads*dim), tensorOf(rows, heads)
	dq, dk, dv := tensorOf(rows, heads*dim), tensorOf(rows, dim), tensorOf(rows, dim)
	run := []tensor.AttentionRun{{Count: rows, Pages: ids[:2]}}
	if err := d.Attention(o, lse, q, p, 0, run, heads, 1); err != nil {
		t.Fatal(err)
	}
	check("attention backward", tensor.AttentionBackwardScratch(rows, heads), func() error { return d.AttentionBackward(dq, dk, dv, o, o, lse, q, p, 0, run, heads, 1) })
	for _, lengths := range [][]int{{1}, {33, 5}, {700, 700}, {40, 32*32*2 + 1}} { // more than one span
		rows := 0
		var runs []tensor.StateRun
		for _, n := range lengths {
			runs = append(runs, tensor.StateRun{Row: rows, Count: n, Slot: tensor.NoSlot})
			rows += n
		}
		in := tensor.DeltaInputs{KeyHeads: 1, ValueHeads: 2, KeyDim: 3, ValueDim: 5}
		in.Mixed, in.A, in.B, in.ALog, in.Bias = tensorOf(rows, in.MixedSize()), tensorOf(rows, 2), tensorOf(rows, 2), tensorOf(1, 2), tensorOf(1, 2)
		dmixed, da, db, do := tensorOf(rows, in.MixedSize()), tensorOf(rows, 2), tensorOf(rows, 2), tensorOf(rows, 10)
		x, weight := tensorOf(rows, in.MixedSize()), tensorOf(4, in.MixedSize())
		check(fmt.Sprint("conv backward ", lengths), tensor.ConvBackwardScratch(in.MixedSize(), 4, runs), func() error { return d.ConvBackward(dmixed, dmixed, x, weight, runs) })
		check(fmt.Sprint("delta rule backward ", lengths), tensor.DeltaBackwardScratch(&in, runs), func() error { return d.DeltaRuleBackward(dmixed, da, db, do, in, runs) })
	}
}
