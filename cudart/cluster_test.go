package cudart

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// Products by clusters have the bits of those by warps, in whatever order threads run and copies arrive.
func TestClusterBits(t *testing.T) {
	for _, order := range orders("20261130", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			found, err := v.CheckClusters()
			if err != nil {
				t.Fatal(err)
			}
			if found.Warps <= 0 || found.Clusters <= 0 || v.Clusters() {
				t.Errorf("times %+v; clusters are used: %v", found, v.Clusters())
			}
		})
	}
}

// A kernel that does nothing, or faults, is found.
func TestClustersDiffer(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"nothing is computed", "FAKE_CUDA_SKIP", "product_cluster_16x32", "products by clusters, 1 rows, columns [64], 256 deep: product 0, element (0, 0) is"},
		{"of the largest tile", "FAKE_CUDA_SKIP", "product_cluster_64x64", "(product_cluster_64x64)"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:3:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a_bulk)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			if err := v.UseClusters(true); err == nil || !strings.Contains(err.Error(), "UseBulk comes first") {
				t.Errorf("without the module: %v", err)
			}
			t.Setenv(c.variable, c.value)
			if _, err := v.CheckClusters(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// Products takes clusters where all products of a launch are for them, and warps elsewhere; a tail rides in both, and adapters of some rows have a launch of
// their own. The bits are those of weights row by row.
func TestClusterProducts(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseBulk(); err != nil {
		t.Fatal(err)
	}
	if err := v.UseClusters(true); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		rows, depth int64
		outs        []int64
		rank        int64
		adapters    int64 // which have rows in equal parts
		transposed  bool
		xType       Type
		want        string
	}{
		{rows: 1, depth: 256, outs: []int64{64, 128}, rank: 8, adapters: 1, xType: Float32, want: "product_cluster_16x32"},
		{rows: 20, depth: 320, outs: []int64{128}, rank: 8, adapters: 1, xType: BFloat16, want: "product_cluster_32x32"},
		{rows: 64, depth: 256, outs: []int64{128}, rank: 8, xType: BFloat16, want: "product_cluster_64x32"},
		{rows: 64, depth: 256, outs: []int64{192, 192}, rank: 16, adapters: 1, xType: Float32, want: "product_cluster_64x64"},
		{rows: 12, depth: 256, outs: []int64{128, 64}, rank: 8, adapters: 3, xType: Float32, want: "product_cluster_16x32"},
		{rows: 65, depth: 256, outs: []int64{128}, rank: 8, adapters: 1, xType: Float32, want: "product_blocks_"},
		{rows: 5, depth: 192, outs: []int64{128}, rank: 8, adapters: 1, xType: BFloat16, want: "product_blocks_"},
		{rows: 5, depth: 256, outs: []int64{128}, rank: 72, adapters: 1, xType: Float32, want: "product_blocks_"},
		{rows: 5, depth: 256, outs: []int64{128}, rank: 8, adapters: 1, transposed: true, xType: Float32, want: "product_blocks_transposed_"},
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
			x, s := o.rows(c.rows, c.depth, c.xType), o.rows(c.rows, c.rank, Float32)
			var lists [2][]Multiplication
			var ys []View
			var before [][]byte
			for _, out := range c.outs {
				y := o.rows(c.rows, out, Float32)
				ys, before = append(ys, y), append(before, randomBits(random, y.Rows*y.Stride, Float32))
				tail := Tail{X: s, XType: Float32}
				for i := range c.adapters {
					g := RowGroup{From: i * c.rows / c.adapters, To: (i + 1) * c.rows / c.adapters, Weight: o.weight(oriented(c.transposed, out, c.rank))}
					tail.Groups = append(tail.Groups, g)
				}
				w := o.weight(oriented(c.transposed, out, c.depth))
				m := Multiplication{Y: y, X: x, XType: c.xType, Tail: tail, Type: BFloat16, Transposed: c.transposed, Accumulate: true}
				m.Groups = []RowGroup{{To: c.rows, Weight: w}}
				lists[0] = append(lists[0], m)
				m.Groups, m.Type = []RowGroup{{To: c.rows, Weight: o.blocks(w)}}, BFloat16Blocks
				lists[1] = append(lists[1], m)
			}
			if o.err != nil {
				t.Fatal(o.err)
			}
			var results [2][][]byte
			for i, list := range lists {
				for k, y := range ys {
					if _, err := o.result(y, before[k], nothing); err != nil {
						t.Fatal(err)
					}
				}
				if err := v.Products(list); err != nil {
					t.Fatal(err)
				}
				if err := v.ShareRows(View{}, Float32); err != nil {
					t.Fatal(err)
				}
				for k, y := range ys {
					data := make([]byte, len(before[k]))
					if err := v.Download(data, y.At, len(data), len(data), 1); err != nil {
						t.Fatal(err)
					}
					results[i] = append(results[i], data)
				}
			}
			for k := range ys {
				if !bytes.Equal(results[0][k], results[1][k]) {
					t.Errorf("product %d: %s", k, firstDifference(ys[k], results[1][k], results[0][k]))
				}
			}
			ran, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(ran), "run "+c.want) {
				t.Errorf("%q ran, error %v, want %s", ran, err, c.want)
			}
			if cluster := strings.HasPrefix(c.want, "product_cluster"); !cluster && strings.Contains(string(ran), "run product_cluster") {
				t.Errorf("%q ran", ran)
			}
		})
	}
}
