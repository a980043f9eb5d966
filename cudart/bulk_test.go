package cudart

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The module has exactly the kernels of the table, with their numbers of threads, and those by bulk copies run in clusters.
func TestBulkTable(t *testing.T) {
	text, err := module(bulkModule)
	if err != nil {
		t.Fatal(err)
	}
	have, clusters := map[string]int{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1\b.*\n(?:\.reqnctapercluster (.*)\n)?`).FindAllStringSubmatch(string(text), -1) {
		have[m[1]], _ = strconv.Atoi(m[2])
		clusters[m[1]] = m[3]
	}
	if len(have) != len(bulkKernels) || kBulk+len(bulkKernels) > kWarpgroup+40 || kBehindClusters != kBulk+len(bulkKernels) {
		t.Errorf("%d kernels in the PTX, %d in the table, which begins at %d", len(have), len(bulkKernels), kBulk)
	}
	for _, k := range bulkKernels {
		want := ""
		switch {
		case strings.HasPrefix(k.name, "product_bulk"):
			want = "2, 1, 1"
		case strings.HasPrefix(k.name, "product_cluster"):
			want = "4, 1, 1"
		}
		if have[k.name] != k.threads || clusters[k.name] != want {
			t.Errorf("kernel %s: %d threads in the table, %d in the PTX; clusters of %q, want %q", k.name, k.threads, have[k.name], clusters[k.name], want)
		}
	}
	for number, name := range map[int]string{kProductBlocksTransposed: "product_blocks_transposed_16x32", kRoutedBlocks: "routed_blocks_16x32", kRoutedBlocksTransposed + 2: "routed_blocks_transposed_128x128",
		kProductBulkWide: "product_bulk_wide", kProductBulkTransposed: "product_bulk_transposed", kProductBulkGated: "product_bulk_gated", kNarrowBlocks: "narrow_blocks", kProductCluster: "product_cluster_16x32", kBehindClusters - 1: "product_cluster_64x64"} {
		if kernelOf(number).name != name {
			t.Errorf("number %d is %s, want %s", number, kernelOf(number).name, name)
		}
	}
}

// Blocks lie so that a tile of them is what the PTX manual's matrix descriptors with the 128-byte swizzle say of both operands' orientations: of w's rows with the inner axis along them ("K-major"), and of its columns ("MN-major").
func TestBlocksAreAsDescriptorsSay(t *testing.T) {
	const out, in = 256, 192
	v := openDevice(t, openDriver(t), 0)
	number := func(i int) int { // the bits of element i, that of no NaN
		if i >= 0x7f80 {
			i += 0x80
		}
		return i
	}
	source := make([]byte, 2*out*in)
	for i := range out * in {
		binary.LittleEndian.PutUint16(source[2*i:], uint16(number(i)))
	}
	at, w := alloc(t, v, len(source)), Weight{At: alloc(t, v, len(source)), Out: out, In: in, Pitch: in}
	if err := v.Upload(at, len(source), source, len(source), 1); err != nil {
		t.Fatal(err)
	}
	if err := v.PackRows(w, BFloat16Blocks, 0, 100, at, BFloat16); err != nil {
		t.Fatal(err)
	}
	if err := v.PackRows(w, BFloat16Blocks, 100, out-100, at+100*in*2, BFloat16); err != nil {
		t.Fatal(err)
	}
	packed := make([]byte, len(source))
	if err := v.Download(packed, w.At, len(packed), len(packed), 1); err != nil {
		t.Fatal(err)
	}
	// tile has blocks beside each other as copies bring them, at a multiple of 1,024 bytes.
	tile := func(blocks ...int) (to []byte) {
		for _, b := range blocks {
			to = append(to, packed[b*8192:(b+1)*8192]...)
		}
		return to
	}
	// at is what the hardware reads at an address: bits 4 to 6 are combined with bits 7 to 9.
	read := func(from []byte, address int) int {
		return int(binary.LittleEndian.Uint16(from[address^address>>7&7<<4:]))
	}
	const across = in / 64
	for t0 := range across { // 256 outputs, 64 places of the inner axis
		of := tile(t0, across+t0, 2*across+t0, 3*across+t0)
		for n := range out {
			for k := range 64 {
				const stride = 1024
				if got, want := read(of, n/8*stride+n%8*128+2*k), number(n*in+64*t0+k); got != want {
					t.Fatalf("rows of w: element (%d, %d) of tile %d is number %d, want %d", n, k, t0, got, want)
				}
			}
		}
	}
	for t0 := range out / 64 { // transposed: 192 outputs, 64 places of the inner axis, which is w's rows
		of := tile(t0*across, t0*across+1, t0*across+2)
		for n := range in {
			for k := range 64 {
				const leading, stride = 8192, 1024
				if got, want := read(of, n/64*leading+n%64*2+k/8*stride+k%8*128), number((64*t0+k)*in+n); got != want {
					t.Fatalf("columns of w: element (%d, %d) of tile %d is number %d, want %d", k, n, t0, got, want)
				}
			}
		}
	}
}

// What products and embeddings read is what was packed: from a file's elements, and from float32 matrices in one launch with others.
func TestBlocksAreReadBack(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	random := rand.New(rand.NewPCG(1, 2))
	o := operandsOf{v: v, random: random}
	defer func() {
		if err := o.free(); err != nil {
			t.Error(err)
		}
	}()
	byRows, x := o.weight(128, 192), o.rows(128, 192, Float32)
	blocks, again, rows := o.blocks(byRows), o.blocks(byRows), o.weight(128, 192)
	ids := []int32{127, -1, 0, 63, 64, 5}
	list := o.put(bytesOf(ids))
	got, want := o.rows(int64(len(ids)), 192, Float32), o.rows(int64(len(ids)), 192, Float32)
	if o.err != nil {
		t.Fatal(o.err)
	}
	if err := v.Repack([]RepackJob{{Weight: again, Source: x, Type: BFloat16Blocks}, {Weight: rows, Source: x, Type: BFloat16}}); err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]Weight{"packed": {blocks, byRows}, "repacked": {again, rows}} {
		t.Run(name, func(t *testing.T) {
			var values [2][]byte
			for i, to := range []View{got, want} {
				if err := v.GatherRows(to, pair[i], []Type{BFloat16Blocks, BFloat16}[i], list); err != nil {
					t.Fatal(err)
				}
				values[i] = make([]byte, 4*to.Rows*to.Stride)
				if err := v.Download(values[i], to.At, len(values[i]), len(values[i]), 1); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(values[0], values[1]) {
				t.Error(firstDifference(got, values[0], values[1]))
			}
		})
	}
}

// Products by bulk copies have the bits of those by warps, in whatever order threads run and copies arrive.
func TestBulkBits(t *testing.T) {
	for _, order := range orders("20261127", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			found, err := v.CheckBulk()
			if err != nil {
				t.Fatal(err)
			}
			if found.Rows <= 0 || found.Blocks <= 0 {
				t.Errorf("times %+v", found)
			}
		})
	}
}

// A kernel that does nothing, or faults, is found.
func TestBulkDiffers(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"nothing is computed", "FAKE_CUDA_SKIP", "product_bulk_wide", "products by bulk copies, 130 rows, 320 columns, 512 deep: with 256 columns of a block, element (0, 0) is"},
		{"rows are not put in blocks", "FAKE_CUDA_SKIP", "narrow_blocks", "products by bulk copies"},
		{"by warps", "FAKE_CUDA_SKIP", "product_blocks_64x96", "320 columns, 512 deep: by warps, element (0, 0) is"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:4:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a_bulk)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			t.Setenv(c.variable, c.value)
			if _, err := v.CheckBulk(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			t.Setenv(c.variable, "")
			if err := v.UseBulk(); err != nil || !v.Bulk() {
				t.Errorf("another try: %v", err)
			}
		})
	}
}

// Product takes bulk copies where they pay, warps elsewhere, and a tail rides in both; the bits are those of the weight row by row. Rows that products have in common are put in blocks once.
func TestBulkProduct(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseBulk(); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		rows, columns, depth int64
		transposed           bool
		adapters             int64 // which have rows in equal parts
		want                 string
	}{
		{rows: 130, columns: 128, depth: 256, adapters: 1, want: "product_bulk"},
		{rows: 130, columns: 192, depth: 320, transposed: true, adapters: 0, want: "product_bulk_transposed_wide"},
		{rows: 129, columns: 128, depth: 256, transposed: true, adapters: 3, want: "product_bulk_transposed"},
		{rows: 127, columns: 128, depth: 256, adapters: 1, want: "product_blocks_"},
		{rows: 3, columns: 192, depth: 128, transposed: true, adapters: 1, want: "product_blocks_transposed_"},
		{rows: 5, columns: 64, depth: 64, adapters: 5, want: "product_blocks_"},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			path := t.TempDir() + "/kernels"
			t.Setenv("FAKE_CUDA_KERNELS", path)
			o := operandsOf{v: v, random: random}
			defer func() {
				if err := o.free(); err != nil {
					t.Error(err)
				}
			}()
			const rank = 8
			x, y, s := o.rows(c.rows, c.depth, Float32), o.rows(c.rows, c.columns, Float32), o.rows(c.rows, rank, Float32)
			byRows := o.weight(oriented(c.transposed, c.columns, c.depth))
			blocks := o.blocks(byRows)
			tail := Tail{X: s, XType: Float32}
			for i := range c.adapters {
				tail.Groups = append(tail.Groups, RowGroup{From: i * c.rows / c.adapters, To: (i + 1) * c.rows / c.adapters, Weight: o.weight(oriented(c.transposed, c.columns, rank))})
			}
			before := randomBits(random, y.Rows*y.Stride, Float32)
			var results [2][]byte
			for i, of := range []struct {
				w Weight
				t Type
			}{{byRows, BFloat16}, {blocks, BFloat16Blocks}} {
				var err error
				results[i], err = o.result(y, before, func() error {
					m := Multiplication{Y: y, X: x, XType: Float32, Groups: []RowGroup{{To: c.rows, Weight: of.w}}, Tail: tail, Type: of.t, Transposed: c.transposed, Accumulate: true}
					return v.Products([]Multiplication{m, m}) // the second one finds the rows as they are in common
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := v.ShareRows(View{}, Float32); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(results[0], results[1]) {
				t.Error(firstDifference(y, results[1], results[0]))
			}
			ran, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(ran), "run "+c.want) {
				t.Errorf("%q ran, error %v, want %s", ran, err, c.want)
			}
		})
	}
}

// What cannot be done by bulk copies is not done, and said; what can has the bits of separate operations, which CheckBulk asks for.
func TestBulkRefuses(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	x := View{At: 1 << 20, Rows: 130, Cols: 256, Stride: 256}
	w := Weight{At: 1 << 21, Out: 128, In: 256, Pitch: 256}
	y := View{At: 1 << 22, Rows: 130, Cols: 128, Stride: 128}
	if done, err := v.ProductInto(IntoProduct{Result: Narrow, Y: y, X: x, XType: Float32, Weight: w}); done || err != nil {
		t.Errorf("without the module: done %v, error %v", done, err)
	}
	if err := v.UseBulk(); err != nil {
		t.Fatal(err)
	}
	part := RowGroup{To: 64, Weight: Weight{At: 1 << 23, Out: 128, In: 8, Pitch: 8}}
	for name, do := range map[string]func() (bool, error){
		"few rows": func() (bool, error) {
			return v.ProductInto(IntoProduct{Result: Narrow, Y: y, X: View{At: x.At, Rows: 5, Cols: 256, Stride: 256}, XType: Float32, Weight: w})
		},
		"rows at odd places": func() (bool, error) {
			return v.ProductInto(IntoProduct{Result: Add, Y: y, Add: View{At: 4, Stride: 128}, X: x, XType: Float32, Weight: w})
		},
		"an adapter of a part": func() (bool, error) {
			return v.ProductInto(IntoProduct{Result: Add, Y: y, Add: y, X: x, XType: Float32, Weight: w, Tail: Tail{X: x, XType: Float32, Groups: []RowGroup{part}}})
		},
		"gate's of a part": func() (bool, error) {
			return v.GatedProducts(GatedProduct{Hidden: y, X: x, XType: Float32, Gate: w, Up: w, GateTail: Tail{X: View{At: 1 << 20, Rows: 130, Cols: 8, Stride: 8}, XType: BFloat16, Groups: []RowGroup{part}}})
		},
	} {
		if done, err := do(); done || err != nil {
			t.Errorf("%s: done %v, error %v", name, done, err)
		}
	}
	up := w
	up.Out = 192
	if _, err := v.GatedProducts(GatedProduct{Hidden: y, X: x, XType: Float32, Gate: w, Up: up}); err == nil || !strings.Contains(err.Error(), "gate is 128 × 256 and up 192 × 256") {
		t.Errorf("error %v", err)
	}
}
