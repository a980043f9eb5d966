package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// The module has exactly the kernels of the table, with their numbers of threads, and the table is behind that of the other module.
func TestWarpgroupTable(t *testing.T) {
	text, err := module(warpgroupModule)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1\b`).FindAllStringSubmatch(string(text), -1) {
		have[m[1]], _ = strconv.Atoi(m[2])
	}
	if len(have) != len(warpgroupKernels) {
		t.Errorf("%d kernels in the PTX, %d in the table", len(have), len(warpgroupKernels))
	}
	for _, k := range warpgroupKernels {
		if have[k.name] != k.threads {
			t.Errorf("kernel %s: %d threads in the table, %d in the PTX", k.name, k.threads, have[k.name])
		}
	}
	if len(kernels) > kWarpgroup {
		t.Errorf("%d kernels reach into the numbers from %d on", len(kernels), kWarpgroup)
	}
	for number, name := range map[int]string{kProductGroup: "product_group", kProductGroupWide: "product_group_wide", kProductGroupTransposed: "product_group_transposed", kProductGroupTransposedWide: "product_group_transposed_wide"} {
		if kernelOf(number).name != name {
			t.Errorf("number %d is %s, want %s", number, kernelOf(number).name, name)
		}
	}
}

// Products by warpgroups have the bits of those by warps, in whatever order threads run: with an order, the products also read shared memory as late as they may.
func TestWarpgroupBits(t *testing.T) {
	for _, order := range orders("20261122", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			if err := v.CheckWarpgroups(); err != nil {
				t.Error(err)
			}
			if v.Warpgroups() {
				t.Error("a check has the device use them")
			}
		})
	}
}

// A kernel that computes something else, does nothing, or faults, is found.
func TestWarpgroupsDiffer(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"nothing is computed", "FAKE_CUDA_SKIP", "product_group_wide", "products by warpgroups, 130 rows, 260 columns, 328 deep: with 256 columns of a block, element (0, 0) is"},
		{"transposed only", "FAKE_CUDA_SKIP", "product_group_transposed", "328 deep, transposed, accumulated, of bfloat16: with 128 columns of a block"},
		{"rows are not rounded", "FAKE_CUDA_SKIP", "narrow_rows", "products by warpgroups"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:3:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a_warpgroup)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			t.Setenv(c.variable, c.value)
			if err := v.CheckWarpgroups(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			t.Setenv(c.variable, "")
			if err := v.UseWarpgroups(true); err != nil {
				t.Errorf("another try: %v", err)
			}
		})
	}
}

// Product chooses warpgroups where they pay, and gives the float64 result to the accuracy of bfloat16 inputs and float32 sums.
func TestWarpgroupProduct(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	d, err := Open(Options{Directories: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct {
		rows, columns, depth int64
		transposed, used     bool
	}{
		{129, 257, 320, false, true}, {256, 130, 264, true, true}, {128, 128, 256, false, true}, {300, 128, 301, true, true},
		{127, 257, 320, false, false}, {129, 127, 320, false, false}, {129, 257, 248, true, false},
	} {
		t.Run(fmt.Sprintf("%d rows, %d columns, %d deep, transposed %v", c.rows, c.columns, c.depth, c.transposed), func(t *testing.T) {
			v := openDevice(t, d, 0)
			if err := v.UseWarpgroups(true); err != nil {
				t.Fatal(err)
			}
			others := "product_group product_group_wide product_group_transposed product_group_transposed_wide"
			if c.used {
				others = ""
				for i := range warpShapes {
					others += kernels[kProduct+i].name + " " + kernels[kProductTransposed+i].name + " "
				}
			}
			t.Setenv("FAKE_CUDA_SKIP", others)
			random := rand.New(rand.NewPCG(1, 2))
			bits := func(rows, cols, pitch int64) ([]byte, []float64) { // bfloat16 in memory, and their values
				b, values := make([]byte, 2*rows*pitch), make([]float64, rows*cols)
				for r := range rows {
					for i := range cols {
						u := math.Float32bits(random.Float32()-0.5) &^ 0xffff
						values[r*cols+i] = float64(math.Float32frombits(u))
						b[2*(r*pitch+i)], b[2*(r*pitch+i)+1] = byte(u>>16), byte(u>>24)
					}
				}
				return b, values
			}
			w := Weight{Out: c.columns, In: c.depth}
			if c.transposed {
				w.Out, w.In = c.depth, c.columns
			}
			w.Pitch = (w.In + 7) / 8 * 8
			wBits, ws := bits(w.Out, w.In, w.Pitch)
			_, xs := bits(c.rows, c.depth, c.depth)
			x32 := make([]float32, len(xs))
			for i, f := range xs {
				x32[i] = float32(f)
			}
			y := View{At: alloc(t, v, int(4*c.rows*c.columns)), Rows: c.rows, Cols: c.columns, Stride: c.columns}
			x := View{At: alloc(t, v, 4*len(x32)), Rows: c.rows, Cols: c.depth, Stride: c.depth}
			w.At = alloc(t, v, len(wBits))
			for at, data := range map[Address][]byte{x.At: bytesOf(x32), w.At: wBits} {
				if err := v.Upload(at, len(data), data, len(data), 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := v.Product(y, x, Float32, []RowGroup{{To: c.rows, Weight: w}}, BFloat16, c.transposed, false); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4*c.rows*c.columns)
			if err := v.Download(got, y.At, len(got), len(got), 1); err != nil {
				t.Fatal(err)
			}
			for r := range c.rows {
				for i := range c.columns {
					sum, size := 0.0, 0.0
					for k := range c.depth {
						term := xs[r*c.depth+k]
						if c.transposed {
							term *= ws[k*w.In+i]
						} else {
							term *= ws[i*w.In+k]
						}
						sum, size = sum+term, size+math.Abs(term)
					}
					if g := float64(floats(got)[r*c.columns+i]); !(math.Abs(g-sum) <= 1e-5*size) {
						t.Fatalf("element (%d, %d) is %v, want %v", r, i, g, sum)
					}
				}
			}
		})
	}
}

// Where there is no memory for rounded rows, warps compute the product.
func TestWarpgroupsWithoutMemory(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseWarpgroups(true); err != nil {
		t.Fatal(err)
	}
	y := View{At: alloc(t, v, 4*128*128), Rows: 128, Cols: 128, Stride: 128}
	x := View{At: alloc(t, v, 4*128*256), Rows: 128, Cols: 256, Stride: 256}
	w := Weight{At: alloc(t, v, 2*128*256), Out: 128, In: 256, Pitch: 256}
	if err := v.Zero(x.At, 4*128*256); err != nil {
		t.Fatal(err)
	}
	if err := v.Zero(w.At, 2*128*256); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:2")
	t.Setenv("FAKE_CUDA_SKIP", "product_group")
	if err := v.Product(y, x, Float32, []RowGroup{{To: 128, Weight: w}}, BFloat16, false, false); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4*128*128)
	if err := v.Download(got, y.At, len(got), len(got), 1); err != nil {
		t.Fatal(err)
	}
	for i, f := range floats(got) {
		if f != 0 {
			t.Fatalf("element %d is %v", i, f)
		}
	}
}

// Products that have rows in common round them once: by warpgroups, and by warps after them. Afterwards the memory is free.
func TestSharedRows(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseWarpgroups(true); err != nil {
		t.Fatal(err)
	}
	const rows, depth = 130, 259
	random := rand.New(rand.NewPCG(3, 4))
	filled := func(data []byte) Address {
		a := alloc(t, v, len(data))
		if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return a
	}
	data := randomBits(random, rows*depth, Float32)
	x := View{At: filled(data), Rows: rows, Cols: depth, Stride: depth}
	var weights []Weight
	for _, out := range []int64{128, 200, 16} {
		w := Weight{Out: out, In: depth, Pitch: 264}
		w.At = filled(randomBits(random, out*w.Pitch, BFloat16))
		for r := range out {
			if err := v.Zero(w.At+Address(2*(r*w.Pitch+depth)), 2*(264-depth)); err != nil {
				t.Fatal(err)
			}
		}
		weights = append(weights, w)
	}
	allocations := v.Allocations()
	product := func(x View, w Weight) []byte {
		t.Helper()
		a, err := v.Alloc(int(4 * rows * w.Out))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4*rows*w.Out)
		y := View{At: a, Rows: x.Rows, Cols: w.Out, Stride: w.Out}
		if err := errors.Join(v.Product(y, x, Float32, []RowGroup{{To: x.Rows, Weight: w}}, BFloat16, false, false), v.Download(got, a, len(got), len(got), 1), v.Free(a)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	var want [][]byte
	for _, w := range weights {
		want = append(want, product(x, w))
	}
	if n := v.Allocations(); n != allocations {
		t.Errorf("%d allocations more after products by themselves", n-allocations)
	}
	if err := v.ShareRows(x, Float32); err != nil {
		t.Fatal(err)
	}
	for i, w := range weights {
		if !bytes.Equal(product(x, w), want[i]) {
			t.Errorf("%d columns: other bits", w.Out)
		}
		if i == 0 { // shows what the others read; a caller must not
			if err := v.Zero(x.At, len(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := x
	other.Rows-- // rows that are not shared
	if got := product(other, weights[1]); bytes.Equal(got[:4], want[1][:4]) {
		t.Error("rows that are not the shared ones are taken from them")
	}
	if err := v.ShareRows(View{}, Float32); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(product(x, weights[0]), want[0]) {
		t.Error("rows are still shared")
	}
	if n := v.Allocations(); n != allocations {
		t.Errorf("%d allocations more in the end", n-allocations)
	}
}
