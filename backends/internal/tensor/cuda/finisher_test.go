package cuda

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// bench makes what a test multiplies on a device.
type bench struct {
	*testing.T
	tensor.Device
	random *rand.Rand
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) filled(t tensor.DType, rows, cols int) tensor.Tensor {
	b.Helper()
	x, err := b.Alloc(tensor.Float32, rows, cols)
	b.ok(err)
	b.Cleanup(func() { b.Free(x) })
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(b.random.NormFloat64())
	}
	b.ok(b.Upload(x, values))
	if t == tensor.Float32 {
		return x
	}
	y, err := b.Alloc(t, rows, cols)
	b.ok(err)
	b.Cleanup(func() { b.Free(y) })
	b.ok(b.Round(y, x))
	return y
}

func (b *bench) matrix(out, in int) tensor.Matrix {
	b.Helper()
	m, err := b.NewMatrix(tensor.BFloat16, out, in)
	b.ok(err)
	b.Cleanup(m.Free)
	b.ok(b.Repack(tensor.MatrixSource{Matrix: m, Src: b.filled(tensor.Float32, out, in)}))
	return m
}

func (b *bench) values(x tensor.Tensor) []float32 {
	b.Helper()
	if x.DType == tensor.BFloat16 {
		wide, err := b.Alloc(tensor.Float32, x.Rows, x.Cols)
		b.ok(err)
		defer b.Free(wide)
		b.ok(b.Round(wide, x))
		x = wide
	}
	v := make([]float32, x.Rows*x.Cols)
	b.ok(b.Download(v, x))
	return v
}

// finishes is what TestFinisher runs on both devices: products that end in what comes next, by the device if it finishes them and by separate operations else.
func (b *bench) finishes() map[string][]float32 {
	results := map[string][]float32{}
	f := b.Device.(tensor.Finisher)
	const wide = 256
	for _, c := range []struct {
		name     string
		rows     int
		adapters []int // the rows of each
		x        tensor.DType
		keeps    bool
	}{
		{"one adapter", 200, []int{200}, tensor.BFloat16, true},
		{"none", 131, nil, tensor.Float32, false},
		{"two adapters", 200, []int{70, 130}, tensor.BFloat16, true},
		{"a part of the rows", 140, []int{30}, tensor.Float32, false},
		{"few rows", 5, []int{5}, tensor.BFloat16, true},
	} {
		x := b.filled(c.x, c.rows, wide)
		stage := func(base tensor.Matrix, y tensor.Tensor) (now []tensor.Multiplication, next *tensor.Multiplication) {
			inner := b.filled(tensor.Float32, c.rows, 8)
			var down, up []tensor.RowGroup
			from := 0
			for _, n := range c.adapters {
				down = append(down, tensor.RowGroup{From: from, To: from + n, Matrix: b.matrix(8, wide), Factor: 0.5, Round: tensor.BFloat16})
				up = append(up, tensor.RowGroup{From: from, To: from + n, Matrix: b.matrix(wide, 8)})
				from += n
			}
			now = []tensor.Multiplication{{Y: y, X: x, Groups: []tensor.RowGroup{{To: c.rows, Matrix: base}}}}
			if len(c.adapters) == 0 {
				return now, nil
			}
			return append(now, tensor.Multiplication{Y: inner, X: x, Groups: down}), &tensor.Multiplication{Y: y, X: inner, Groups: up, Accumulate: true}
		}
		y, add := b.filled(tensor.Float32, c.rows, wide), b.filled(tensor.Float32, c.rows, wide)
		now, next := stage(b.matrix(wide, wide), y)
		stages := [][]tensor.Multiplication{now}
		if next != nil {
			stages = append(stages, []tensor.Multiplication{*next})
		}
		if f.Finishes() {
			b.ok(f.MatMulsAdd(add, stages...))
		} else {
			b.ok(b.MatMuls(stages...))
			b.ok(b.Add(y, add))
		}
		results[c.name+", added"] = b.values(y)

		gate, up := b.filled(tensor.Float32, c.rows, wide), b.filled(tensor.Float32, c.rows, wide)
		hidden, keptGate, keptUp := b.filled(tensor.BFloat16, c.rows, wide), b.filled(tensor.BFloat16, c.rows, wide), b.filled(tensor.BFloat16, c.rows, wide)
		first, firstNext := stage(b.matrix(wide, wide), gate)
		second, secondNext := stage(b.matrix(wide, wide), up)
		stages = [][]tensor.Multiplication{slices.Concat(first[:1], second[:1], first[1:], second[1:])}
		if firstNext != nil {
			stages = append(stages, []tensor.Multiplication{*firstNext, *secondNext})
		}
		switch {
		case f.Finishes() && c.keeps:
			b.ok(f.MatMulsGated(hidden, keptGate, keptUp, stages...))
		case f.Finishes():
			b.ok(f.MatMulsGated(hidden, tensor.Tensor{}, tensor.Tensor{}, stages...))
		default:
			b.ok(b.MatMuls(stages...))
			b.ok(b.Device.(tensor.Fuser).SwiGLUKeep(hidden, keptGate, keptUp, gate, up))
		}
		results[c.name+", gated"] = b.values(hidden)
		if c.keeps {
			results[c.name+", gate"], results[c.name+", up"] = b.values(keptGate), b.values(keptUp)
		}
	}
	return results
}

// What products by bulk copies end in has the bits of separate operations; where they do not fit, the operations are separate.
func TestFinisher(t *testing.T) {
	t.Setenv("FAKE_CUDA_ORDER", "20261127")
	libraries := []string{shim.Require(t, shim.Options{})}
	run := func(products string) map[string][]float32 {
		b := &bench{t, bulkDevice(t, libraries, products), rand.New(rand.NewPCG(20261127, 6))}
		return b.finishes()
	}
	want := run(ProductsOwn)
	file := filepath.Join(t.TempDir(), "kernels")
	t.Setenv("FAKE_CUDA_KERNELS", file)
	got := run(ProductsBulk)
	if len(got) != len(want) || len(want) == 0 {
		t.Errorf("%d results, want %d", len(got), len(want))
	}
	for name := range want {
		if !slices.EqualFunc(got[name], want[name], func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			t.Errorf("%s: other bits", name)
		}
	}
	ran, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range []string{"product_bulk_gated", "product_bulk(_wide)?", "swiglu", "add"} { // the latter two where adapters have a part of the rows
		if !regexp.MustCompile(`(?m)^run ` + kernel + `$`).Match(ran) {
			t.Errorf("%s did not run", kernel)
		}
	}
}

// With as much scratch memory as the contract says for rows in blocks no product asks the driver for memory.
func TestBulkScratch(t *testing.T) {
	t.Setenv("FAKE_CUDA_FAIL", "")
	b := &bench{t, bulkDevice(t, []string{shim.Require(t, shim.Options{})}, ProductsBulk), rand.New(rand.NewPCG(20261127, 7))}
	scratch, f := b.Device.(tensor.Scratcher), b.Device.(tensor.Finisher)
	if !scratch.RowsInBlocks() {
		t.Error("rows are not in blocks")
	}
	const rows, side, rank = 130, 256, 8
	x, y, up, add := b.filled(tensor.Float32, rows, side), b.filled(tensor.Float32, rows, side), b.filled(tensor.Float32, rows, side), b.filled(tensor.Float32, rows, side)
	hidden, inner, other := b.filled(tensor.BFloat16, rows, side), b.filled(tensor.Float32, rows, rank), b.filled(tensor.Float32, rows, rank)
	product := func(y, x tensor.Tensor, out, in int, accumulate bool) tensor.Multiplication {
		return tensor.Multiplication{Y: y, X: x, Groups: []tensor.RowGroup{{To: rows, Matrix: b.matrix(out, in)}}, Accumulate: accumulate}
	}
	one := [][]tensor.Multiplication{{product(y, x, side, side, false), product(inner, x, rank, side, false)}, {product(y, inner, side, rank, true)}}
	two := [][]tensor.Multiplication{{one[0][0], product(up, x, side, side, false), one[0][1], product(other, x, rank, side, false)}, {one[1][0], product(up, other, side, rank, true)}}
	for name, c := range map[string]struct {
		stages [][]tensor.Multiplication
		do     func() error
	}{
		"products":    {two, func() error { return b.MatMuls(two...) }},
		"added":       {one, func() error { return f.MatMulsAdd(add, one...) }},
		"gated":       {two, func() error { return f.MatMulsGated(hidden, tensor.Tensor{}, tensor.Tensor{}, two...) }},
		"transposed":  {[][]tensor.Multiplication{{{Y: x, X: y, Groups: one[0][0].Groups, Transposed: true}}}, nil},
		"one product": {one[:1], nil},
	} {
		if c.do == nil {
			c.do = func() error { return b.MatMuls(c.stages...) }
		}
		b.ok(c.do()) // lists and the like are there then
		scratch.ReleaseScratch()
		b.Trim()
		b.ok(scratch.ReserveScratch(tensor.ProductScratch(c.stages...) + tensor.BlockScratch(c.stages...)))
		t.Setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:2") // there is none
		file := filepath.Join(t.TempDir(), "kernels")
		t.Setenv("FAKE_CUDA_KERNELS", file)
		err := c.do()
		t.Setenv("FAKE_CUDA_FAIL", "")
		ran, failed := os.ReadFile(file)
		if err != nil || failed != nil || !strings.Contains(string(ran), "run product_bulk") || strings.Contains(string(ran), "run product_blocks") {
			t.Errorf("%s: error %v, %v; these ran: %s", name, err, failed, ran)
		}
	}
}

// A device that does not finish products is asked for nothing else, and what cannot be finished is refused by name.
func TestFinisherRefuses(t *testing.T) {
	b := &bench{t, bulkDevice(t, []string{shim.Require(t, shim.Options{})}, ProductsOwn), rand.New(rand.NewPCG(20261127, 8))}
	f := b.Device.(tensor.Finisher)
	if f.Finishes() || b.Device.(tensor.Scratcher).RowsInBlocks() {
		t.Error("products end in more without weights in blocks")
	}
	x, y, hidden := b.filled(tensor.Float32, 4, 16), b.filled(tensor.Float32, 4, 16), b.filled(tensor.BFloat16, 4, 16)
	part := []tensor.Multiplication{{Y: y, X: x, Groups: []tensor.RowGroup{{To: 3, Matrix: b.matrix(16, 16)}}}}
	whole := []tensor.Multiplication{{Y: y, X: x, Groups: []tensor.RowGroup{{To: 4, Matrix: b.matrix(16, 16)}}}}
	for want, err := range map[string]error{
		"the first product is not that of all rows with one matrix": f.MatMulsAdd(x, part),
		"what is added is 4 × 8":                                    f.MatMulsAdd(b.filled(tensor.Float32, 4, 8), whole),
		"there is no second product":                                f.MatMulsGated(hidden, tensor.Tensor{}, tensor.Tensor{}, whole),
		"of gate and up one is kept and one is not":                 f.MatMulsGated(hidden, hidden, tensor.Tensor{}, append(whole, whole...)),
		"hidden is float32: must be bfloat16":                       f.MatMulsGated(x, tensor.Tensor{}, tensor.Tensor{}, append(whole, whole...)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
