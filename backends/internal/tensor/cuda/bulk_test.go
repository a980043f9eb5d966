package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// found is what has been found of a device: warpgroups are right, and bulk copies as f says.
func found(t *testing.T, driver *cudart.Driver, f *bulkFinding) *known {
	t.Helper()
	info, err := driver.Information(0)
	if err != nil {
		t.Fatal(err)
	}
	k := &known{warpgroups: findings[verdict]{found: map[string]verdict{kindOf(driver, info): {}}}}
	if f != nil {
		k.bulk.found = map[string]bulkFinding{fmt.Sprint(kindOf(driver, info), " ", info.Warpgroups()): *f}
	}
	return k
}

func times(without, with time.Duration) *bulkFinding {
	return &bulkFinding{BulkCheck: cudart.BulkCheck{Rows: without, Blocks: with}}
}

// Clusters are for who asks for them beside bulk copies, and had where another process has found equal bits and less time; else the error says why not.
func TestClustersAreChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	took := func(warps, clusters time.Duration) *clustersFinding {
		return &clustersFinding{ClusterCheck: cudart.ClusterCheck{Warps: warps, Clusters: clusters}}
	}
	for _, c := range []struct {
		name, products, variable, value string
		bulk                            *bulkFinding
		found                           *clustersFinding
		want                            string
	}{
		{"faster", ProductsClusters, "FAKE_CUDA_SKIP", "", times(2, 1), took(2, 1), ""},
		{"not asked for", ProductsBulk, "FAKE_CUDA_SKIP", "", times(2, 1), took(2, 1), "unused"},
		{"slower", ProductsClusters, "FAKE_CUDA_SKIP", "", times(2, 1), took(1, 2), "products by clusters have the same bits and take longer: 2ns, and 1ns without"},
		{"bulk copies are slower", ProductsClusters, "FAKE_CUDA_SKIP", "", times(1, 2), took(2, 1), "products by bulk copies have the same bits and take longer"},
		{"other bits", ProductsClusters, "FAKE_CUDA_SKIP", "product_cluster_64x32", times(2, 1), nil, "check of products by clusters: exit status 1: products by clusters, 1 rows, columns [64], 256 deep: product 0, element (0, 0) is"},
		{"no Hopper", ProductsClusters, "FAKE_CUDA_MAJOR", "8", nil, nil, "bulk copies are for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"a module that cannot be loaded", ProductsClusters, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:3:1", times(2, 1), took(2, 1), "compiling the kernels (sm_90a_bulk)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver, err := cudart.Open(cudart.Options{Directories: libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			t.Setenv(c.variable, c.value)
			known := found(t, driver, c.bulk)
			if c.found != nil {
				known.clusters.found = map[string]clustersFinding{kindHere(t, driver): *c.found}
			}
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Products: c.products}, known)
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrProducts) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if used := c.want == ""; !v.Bulk() || v.Clusters() != used || strings.Contains(v.routes.String(), "products of few rows by clusters") != used {
				t.Errorf("weights can be in blocks: %v; clusters: %v; routes %q", v.Bulk(), v.Clusters(), v.routes.String())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func kindHere(t *testing.T, driver *cudart.Driver) string {
	t.Helper()
	info, err := driver.Information(0)
	if err != nil {
		t.Fatal(err)
	}
	return kindOf(driver, info)
}

// Products by bulk copies are for who asks for them, and had where another process has found equal bits and less time; else the error says why not.
func TestBulkIsChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	for _, c := range []struct {
		name, products, variable, value string
		found                           *bulkFinding
		want                            string
	}{
		{"faster", ProductsBulk, "FAKE_CUDA_SKIP", "", times(2, 1), ""},
		{"not asked for", ProductsAuto, "FAKE_CUDA_SKIP", "", times(2, 1), "unused"},
		{"slower", ProductsBulk, "FAKE_CUDA_SKIP", "", times(1, 2), "products by bulk copies have the same bits and take longer: 2ns, and 1ns without"},
		{"other bits", ProductsBulk, "FAKE_CUDA_SKIP", "narrow_blocks", nil, "check of products by bulk copies: exit status 1: products by bulk copies, 130 rows, 320 columns, 512 deep: with 128 columns of a block, element (0, 0) is"},
		{"no Hopper", ProductsBulk, "FAKE_CUDA_MAJOR", "8", nil, "bulk copies are for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"a module that cannot be loaded", ProductsBulk, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:3:1", times(2, 1), "compiling the kernels (sm_90a_bulk)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver, err := cudart.Open(cudart.Options{Directories: libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			t.Setenv(c.variable, c.value)
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Products: c.products}, found(t, driver, c.found))
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrProducts) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if v.Bulk() != (c.want == "") {
				t.Errorf("weights can be in blocks: %v", v.Bulk())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A check in another process finds equal bits, and says how long both ways take.
func TestBulkCheckElsewhere(t *testing.T) {
	got, err := CheckBulk(0, []string{shim.Require(t, shim.Options{})}, false)
	if err != nil || got.Rows <= 0 || got.Blocks <= 0 {
		t.Errorf("%+v, error %v", got, err)
	}
}

// operations does what reads or writes weights with some whose sides are multiples of 64 and some whose are not, and gives all results.
func operations(t *testing.T, d tensor.Device) (results map[string][]float32) {
	t.Helper()
	results = map[string][]float32{}
	random := rand.New(rand.NewPCG(20261127, 5))
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	numbers := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(random.NormFloat64())
		}
		return v
	}
	filled := func(rows, cols int) tensor.Tensor {
		x, err := d.Alloc(tensor.Float32, rows, cols)
		ok(err)
		t.Cleanup(func() { d.Free(x) })
		ok(d.Upload(x, numbers(rows*cols)))
		return x
	}
	matrix := func(out, in int) tensor.Matrix {
		m, err := d.NewMatrix(tensor.BFloat16, out, in)
		ok(err)
		t.Cleanup(m.Free)
		if m.Bytes() != 2*out*((in+7)/8*8) {
			t.Errorf("a matrix %d × %d takes %d bytes", out, in, m.Bytes())
		}
		values := numbers(out * in)
		raw := make([]byte, 0, 4*len(values))
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		first := out / 3
		ok(d.PackRows(m, 0, first, "F32", raw[:4*first*in]))
		ok(d.PackRows(m, first, out-first, "F32", raw[4*first*in:]))
		return m
	}
	result := func(name string, x tensor.Tensor) {
		v := make([]float32, x.Rows*x.Cols)
		ok(d.Download(v, x))
		results[name] = v
	}
	for _, rows := range []int{131, 40, 3} {
		w, a, b := matrix(256, 256), matrix(8, 256), matrix(256, 8)
		group := func(m tensor.Matrix, from, to int) []tensor.RowGroup {
			return []tensor.RowGroup{{From: from, To: to, Matrix: m}}
		}
		for _, adapted := range []int{rows, rows / 3} { // rows of the adapter
			name := fmt.Sprintf("%d rows, %d adapted", rows, adapted)
			x, y, s := filled(rows, 256), filled(rows, 256), filled(rows, 8)
			ok(d.MatMuls([]tensor.Multiplication{{Y: s, X: x, Groups: group(a, 0, adapted)}}, []tensor.Multiplication{{Y: y, X: x, Groups: group(w, 0, rows)}},
				[]tensor.Multiplication{{Y: y, X: s, Groups: group(b, 0, adapted), Accumulate: true}}))
			result(name, y)
			dx := filled(rows, 256)
			ok(d.MatMuls([]tensor.Multiplication{{Y: s, X: y, Groups: group(b, 0, adapted), Transposed: true}}, []tensor.Multiplication{{Y: dx, X: y, Groups: group(w, 0, rows), Transposed: true, Accumulate: true}},
				[]tensor.Multiplication{{Y: dx, X: s, Groups: group(a, 0, adapted), Transposed: true, Accumulate: true}}))
			result(name+", transposed", dx)
		}
		part, dy := filled(rows, 256), filled(rows, 64)
		ok(d.MatMulTransposed(part, dy, w.Rows(64, 128), false))
		result(fmt.Sprintf("%d rows, a part", rows), part)
		ok(d.MatMul(dy, part, w.Rows(0, 64), true))
		result(fmt.Sprintf("%d rows, another part", rows), dy)
		again := matrix(256, 256)
		ok(d.Repack(tensor.MatrixSource{Matrix: again, Src: filled(256, 256)}, tensor.MatrixSource{Matrix: a, Src: filled(8, 256)}))
		y := filled(5, 256)
		ok(d.GatherRows(y, again, []int32{127, 0, -1, 64, 63}))
		result(fmt.Sprintf("%d rows, embedding", rows), y)
		grouped := filled(rows, 256)
		ok(d.MatMulGroups(grouped, part, []tensor.RowGroup{{From: 0, To: 1, Matrix: again}, {From: 1, To: rows, Matrix: w}}, true))
		result(fmt.Sprintf("%d rows, groups", rows), grouped)
	}
	for _, tokens := range []int{12, 100, 400} { // for each shape of routed products
		const experts, slots, out, in = 3, 2, 64, 128
		table := tensor.Table{Words: filled(1, tensor.TableWords(tokens, slots, experts)), Tokens: tokens, Slots: slots, Experts: experts}
		choice, p := filled(tokens, slots), filled(tokens, slots)
		ok(d.Route(choice, p, filled(tokens, experts), true))
		ok(d.Dispatch(table, choice))
		stack := tensor.NewStack(matrix(tensor.StackRows(experts, out), in), experts, out)
		y, x := filled(tokens*slots, out), filled(tokens, in)
		ok(d.MatMulRouted(table, tensor.RoutedProduct{Y: y, X: x, Groups: []tensor.RoutedGroup{{To: tokens, Stack: stack}}, Gathered: true}))
		result(fmt.Sprintf("experts, %d tokens", tokens), y)
		dx := filled(tokens*slots, in)
		ok(d.MatMulRouted(table, tensor.RoutedProduct{Y: dx, X: y, Groups: []tensor.RoutedGroup{{To: tokens, Stack: stack}}, Transposed: true, Accumulate: true}))
		result(fmt.Sprintf("experts, %d tokens, transposed", tokens), dx)
	}
	return results
}

// bulkDevice opens a device with Options.Products, of which bulk copies and clusters have been found to be right and faster.
func bulkDevice(t *testing.T, libraries []string, products string) tensor.Device {
	t.Helper()
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		t.Fatal(err)
	}
	known := found(t, driver, times(2, 1))
	known.clusters.found = map[string]clustersFinding{kindHere(t, driver): {ClusterCheck: cudart.ClusterCheck{Warps: 2, Clusters: 1}}}
	v, err := openDevice(driver, 0, Options{Libraries: libraries, Products: products}, known)
	if err != nil {
		driver.Close()
		t.Fatal(err)
	}
	d := checked.New(&device{v: v.Device, driver: driver, name: "cuda:0"})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// What a device computes with weights in blocks has the bits of one with weights row by row.
func TestBulkOperations(t *testing.T) {
	t.Setenv("FAKE_CUDA_ORDER", "20261127")
	libraries := []string{shim.Require(t, shim.Options{})}
	run := func(products string) map[string][]float32 { return operations(t, bulkDevice(t, libraries, products)) }
	want := run(ProductsOwn)
	for products, also := range map[string]string{ProductsBulk: "", ProductsClusters: "product_cluster_"} {
		t.Run(products, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kernels")
			t.Setenv("FAKE_CUDA_KERNELS", file)
			got := run(products)
			for name := range want {
				if !slices.EqualFunc(got[name], want[name], func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
					t.Errorf("%s: other bits", name)
				}
			}
			ran, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, kernel := range []string{"product_bulk", "product_bulk_transposed", "product_blocks_", "product_blocks_transposed_", "routed_blocks_16x32", "routed_blocks_64x96", "routed_blocks_128x128", "routed_blocks_transposed_128x128", also} {
				if !strings.Contains(string(ran), "run "+kernel) {
					t.Errorf("%s did not run", kernel)
				}
			}
			if also == "" && strings.Contains(string(ran), "run product_cluster") {
				t.Error("clusters ran")
			}
		})
	}
}
