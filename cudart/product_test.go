package cudart

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// warpCases have ragged rows, columns and inner axes: fewer tiles of the inner axis than there is room for, and more; one, two and 17 groups; rows that are copied in chunks, and those that kernels round.
func warpCases() []groupCase {
	cases := []groupCase{
		{rows: 1, columns: 1, depth: 1, weights: 1, xType: Float32},
		{rows: 5, columns: 33, depth: 264, weights: 2, xType: BFloat16, tail: 7},
		{rows: 3, columns: 40, depth: 72, weights: 17, xType: Float32, factor: 0.7},
		{rows: 17, columns: 31, depth: 40, weights: 17, xType: BFloat16, accumulate: true, tail: 16},
		{rows: 2, columns: 97, depth: 848, weights: 1, xType: BFloat16, tail: 32}, // more tiles than places in each shape
	}
	for i, rows := range []int64{1, 16, 17, 31, 33, 63, 64, 65, 127} {
		cases = append(cases,
			groupCase{rows: rows, columns: []int64{95, 33, 130}[i%3], depth: []int64{136, 63, 328, 8}[i%4], weights: 1, xType: BFloat16, accumulate: i%2 == 0, tail: []int64{0, 8, 40}[i%3]},
			groupCase{rows: rows, columns: []int64{32, 65, 97}[i%3], depth: []int64{65, 200, 31, 64}[i%4], weights: 1 + int64(i%2), xType: Float32, accumulate: i%2 == 1, tail: []int64{5, 0, 72}[i%3]})
	}
	return cases
}

// All shapes of tiles give the same bits, in any order of threads and with copies as early and as late as they may come. What they have in common with products by warpgroups, and with float64, is tested there.
func TestWarpShapes(t *testing.T) {
	for n, order := range orders("20261122", "987654321", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			random := rand.New(rand.NewPCG(11, uint64(n)))
			for i, c := range warpCases() {
				for k, transposed := range []bool{false, true} {
					if n > 0 && (n+i+k)%2 == 0 { // the first order has all
						continue
					}
					c.transposed = transposed
					shapes := []tile{}
					for i := range warpShapes {
						shapes = append(shapes, warpTile(i, transposed))
					}
					if err := v.checkGroupCase(c, random, shapes); err != nil {
						t.Errorf("%v: %v", c, err)
					}
				}
			}
		})
	}
}

// A device with 99 KiB of shared memory for a block, the least that there is, can launch every shape.
func TestWarpShapesShared(t *testing.T) {
	for i := range warpShapes {
		for _, transposed := range []bool{false, true} {
			k := kernelOf(warpTile(i, transposed).kernel)
			if want := warpShapes[i].kernel("product", transposed); k != want {
				t.Errorf("shape %d is kernel %v, want %v", i, k, want)
			}
			if k.shared > 99<<10 {
				t.Errorf("%s takes %d bytes of shared memory", k.name, k.shared)
			}
		}
	}
}

// The tiles of products of Qwen3-8B on an H200, of 132 multiprocessors.
func TestTileChoice(t *testing.T) {
	v := &Device{multiprocessors: 132}
	for _, c := range []struct {
		groups  []RowGroup
		columns int64
		want    string
	}{
		{[]RowGroup{{To: 1}}, 4096, "product_16x32"},
		{[]RowGroup{{To: 16}}, 151936, "product_16x32"},
		{[]RowGroup{{To: 17}}, 4096, "product_32x32"},
		{[]RowGroup{{To: 64}}, 4096, "product_64x32"},
		{[]RowGroup{{To: 64}}, 1024, "product_16x32"}, // of 32 rows or more they are fewer blocks than multiprocessors
		{[]RowGroup{{To: 64}}, 12288, "product_64x96"},
		{[]RowGroup{{To: 64}}, 151936, "product_64x96"},
		{[]RowGroup{{To: 64}}, 32, "product_16x32"}, // an adapter's
		{[]RowGroup{{To: 4096}}, 32, "product_32x32"},
		{[]RowGroup{{To: 127}}, 4096, "product_64x96"},
		{[]RowGroup{{To: 4096}}, 4096, "product_128x128"},
		{[]RowGroup{{To: 4}, {From: 4, To: 8}, {From: 8, To: 64}}, 4096, "product_64x96"},
		{[]RowGroup{{To: 2}, {From: 2, To: 4}, {From: 4, To: 6}, {From: 6, To: 6}, {From: 6, To: 8}}, 4096, "product_16x32"},
	} {
		shape, _ := v.bfloat16Tile([]part{{groups: c.groups, columns: c.columns}}, false)
		if got := kernelOf(shape.kernel).name; got != c.want {
			t.Errorf("%v, %d columns: %s, want %s", c.groups, c.columns, got, c.want)
		}
	}
}

// Products for warpgroups on an H200, of 132 multiprocessors, and their tiles.
func TestWarpgroupTileChoice(t *testing.T) {
	v := &Device{multiprocessors: 132}
	for _, c := range []struct {
		name                 string
		rows, columns, depth int64
		transposed           bool
		want                 string // "": by warps
	}{
		{"a layer of Qwen3-8B", 4096, 4096, 4096, false, "product_group_wide"},
		{"its keys", 4096, 1024, 4096, false, "product_group_wide"},
		{"gate", 4096, 12288, 4096, false, "product_group_wide"},
		{"the gradient of the head's input, by a chunk of 2,048 rows", 2048, 4096, 151936, true, "product_group_wide"},
		{"that of Qwen3-0.6B", 2048, 1024, 151936, true, "product_group"},
		{"that by 1,664 rows", 1664, 1024, 151936, true, "product_group"},
		{"that by 512 rows", 512, 1024, 151936, true, "product_group"},
		{"that by 420 rows", 420, 1024, 151936, true, "product_group"},
		{"keys of 128 rows", 128, 1024, 4096, false, ""},
		{"keys of 256 rows", 256, 1024, 4096, false, ""},
		{"127 rows", 127, 12288, 4096, false, ""},
		{"an adapter's", 4096, 32, 4096, false, ""},
		{"a short inner axis", 4096, 4096, 32, false, ""},
	} {
		w := Weight{Out: c.columns, In: c.depth, Pitch: c.depth}
		if c.transposed {
			w = Weight{Out: c.depth, In: c.columns, Pitch: c.columns}
		}
		got := ""
		if shape, ok := v.warpgroupTile(View{Cols: c.depth}, []RowGroup{{To: c.rows, Weight: w}}, c.transposed, c.columns); ok {
			got = kernelOf(shape.kernel).name
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Rows of float32 are rounded before the product, or by its kernel where there is no memory for that: with the same bits.
func TestRoundedBefore(t *testing.T) {
	const rows, columns, depth = 20, 40, 264
	random := rand.New(rand.NewPCG(12, 13))
	xData, wData := randomBits(random, rows*depth, Float32), randomBits(random, columns*depth, BFloat16)
	var want []byte
	for _, c := range []struct {
		name, variable, value string
		wrong                 bool
	}{{"as it is", "", "", false}, {"no memory", "FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:2", false}, {"the launch does nothing", "FAKE_CUDA_SKIP", "narrow_rows", true}} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			put := func(data []byte) Address {
				a := alloc(t, v, len(data))
				if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
					t.Fatal(err)
				}
				return a
			}
			x := View{At: put(xData), Rows: rows, Cols: depth, Stride: depth}
			y := View{At: put(make([]byte, 4*rows*columns)), Rows: rows, Cols: columns, Stride: columns}
			groups := []RowGroup{{To: rows, Weight: Weight{At: put(wData), Out: columns, In: depth, Pitch: depth}}}
			allocations := v.Allocations()
			if c.variable != "" {
				t.Setenv(c.variable, c.value)
			}
			got := make([]byte, 4*rows*columns)
			if err := errors.Join(v.Product(y, x, Float32, groups, BFloat16, false, false), v.Download(got, y.At, len(got), len(got), 1)); err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = got
			}
			if bytes.Equal(got, want) == c.wrong {
				t.Errorf("equal bits: %v", c.wrong)
			}
			if n := v.Allocations(); n != allocations {
				t.Errorf("%d allocations more", n-allocations)
			}
		})
	}
}
