package cudart

import (
	"slices"
	"testing"
)

// What a kernel costs is known of every one, so that a device that is not there takes whatever a real one does.
func TestEveryKernelHasACost(t *testing.T) {
	for _, k := range slices.Concat(kernels, warpgroupKernels, groupAttentionKernels, outerGroupKernels) {
		if costs[family(k.name)] == nil {
			t.Errorf("%s: no cost of %q", k.name, family(k.name))
		}
	}
}

// Costs of launches are those that formulas give, of lists as of single operations; what several products of a launch read is counted once.
func TestLaunchesOfAbsentDevice(t *testing.T) {
	d := Absent()
	defer d.Close()
	if n, err := d.Devices(); err != nil || n != len(AbsentGPUs()) {
		t.Fatalf("%d devices, want %d: %v", n, len(AbsentGPUs()), err)
	}
	v, err := d.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	if v.Name() != "NVIDIA H200" || v.Multiprocessors() != 132 || !v.Absent() {
		t.Errorf("device 1 is %s with %d multiprocessors", v.Name(), v.Multiprocessors())
	}
	if err := v.UseWarpgroups(true); err != nil {
		t.Fatal(err)
	}
	var taken []Address
	memory := func(bytes int64) Address {
		a, err := v.Alloc(int(bytes))
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, a)
		return a
	}
	rows := func(rows, cols int64) View {
		return View{At: memory(4 * rows * cols), Rows: rows, Cols: cols, Stride: cols}
	}
	narrow := func(rows, cols int64) View {
		return View{At: memory(2 * rows * cols), Rows: rows, Cols: cols, Stride: cols}
	}
	weight := func(out, in int64) Weight { return Weight{At: memory(2 * out * in), Out: out, In: in, Pitch: in} }
	x, w, other := narrow(8, 512), weight(1024, 512), weight(256, 512)
	group := func(w Weight) []RowGroup { return []RowGroup{{To: 8, Weight: w}} }
	cache := Cache{At: memory(1 << 20), Layers: 1, Pages: 4, Heads: 2, Dim: 64, Type: BFloat16}
	sequences := []Sequence{{Count: 3, Pages: []int32{0}}, {Row: 3, Count: 1, First: 99, Pages: []int32{1, 2}}, {Row: 4, Count: 2, First: 98,
		Pages: []int32{1, 2}, Window: 10}}
	for _, c := range []struct {
		name     string
		run      func() error
		kernel   string
		flop     float64
		bytes    float64
		steps    int64
		launches int
	}{
		{"one product", func() error { return v.Product(rows(8, 1024), x, BFloat16, group(w), BFloat16, false, false) }, "product_16x32",
			2 * 8 * 1024 * 512, 2*1024*512 + 2*8*512 + 4*8*1024, 32, 1},
		{"two in a launch", func() error {
			return v.Products([]Multiplication{{Y: rows(8, 1024), X: x, XType: BFloat16, Groups: group(w), Type: BFloat16}, {Y: rows(8, 256), X: x,
				XType: BFloat16, Groups: group(other), Type: BFloat16, Accumulate: true}})
		}, "product_16x32", 2 * 8 * 1280 * 512, 2*1280*512 + 2*8*512 + 4*8*1024 + 8*8*256, 32, 1},
		{"groups of one weight", func() error {
			return v.Product(rows(8, 1024), x, BFloat16, []RowGroup{{To: 3, Weight: w}, {From: 3, To: 8, Weight: w}}, BFloat16, false, false)
		}, "product_16x32", 2 * 8 * 1024 * 512, 2*1024*512 + 2*8*512 + 4*8*1024, 32, 1},
		{"warpgroups", func() error {
			return v.Product(rows(4096, 4096), narrow(4096, 512), BFloat16, []RowGroup{{To: 4096, Weight: weight(4096, 512)}}, BFloat16, false, false)
		}, "product_group_wide", 2 * 4096 * 4096 * 512, 2*4096*512*2 + 4*4096*4096, 32, 1},
		{"outer products", func() error {
			return v.OuterProducts([]OuterProduct{{G: rows(8, 64), A: rows(100, 8), B: rows(100, 64), First: true}, {G: rows(4, 32), A: rows(50, 4),
				B: rows(50, 32)}})
		}, "outer_product", 2 * (100*8*64 + 50*4*32), 4 * (100*(8+64) + 8*64 + 50*(4+32) + 2*4*32), 100, 1},
		// Of two heads with two queries each: 1 + 2 + 3 pairs, 100, and 10 for each of two rows.
		{"attention", func() error {
			return v.Attention(View{}, rows(6, 256), View{}, rows(6, 256), Float32, cache, 0, sequences, 2, 1)
		},
			"tensor_attention_few_64",
			4 * 64 * 4 * (6 + 100 + 20), 2*2*2*64*(3+100+12) + 8*6*256, 0, 1},
		{"add", func() error { return v.Add(x, x) }, "add", 0, 3 * 4 * 8 * 512, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v.Launches()
			if err := v.Record(c.run); err != nil {
				t.Fatal(err)
			}
			got := v.Launches()
			if len(got) != c.launches {
				t.Fatalf("%+v, want %d launches", got, c.launches)
			}
			if l := got[0]; l.Kernel != c.kernel || l.FLOP != c.flop || l.Bytes != c.bytes || l.Steps != c.steps || l.Blocks < 1 {
				t.Errorf("%+v, want %s, %g operations, %g bytes, %d steps", l, c.kernel, c.flop, c.bytes, c.steps)
			}
		})
	}
	data := []byte{1, 2, 3}
	if err := v.Download(data, taken[0], 3, 3, 1); err != nil || data[0]|data[1]|data[2] != 0 {
		t.Errorf("what nobody has computed reads as %v: %v", data, err)
	}
	for _, a := range taken {
		if err := v.Free(a); err != nil {
			t.Error(err)
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}
