package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// fakeCuBLASLt opens a device and the library that goes with it.
func fakeCuBLASLt(t *testing.T) (*Device, *CuBLASLt) {
	t.Helper()
	dir := shim.Require(t, shim.Options{})
	d := openDriver(t)
	l, err := d.OpenCuBLASLt(Options{Directories: shim.WithCuBLASLt(dir)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return openDevice(t, d, 0), l
}

// The library has the bits of the kernels for products that begin at zero; those that go on from what y holds are told apart.
func TestCheckCuBLASLt(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want, accumulates string }{
		{"as documented", "FAKE_CUBLASLT_BITS", "", "", "up to 256 rows, 136 columns, 72 deep, accumulated: element (0, "},
		{"what y holds begins the chain", "FAKE_CUBLASLT_BITS", "begin", "", ""},
		{"other bits", "FAKE_CUBLASLT_BITS", "other", "products by cuBLASLt, up to 256 rows, 136 columns, 72 deep: element (0, ", ""},
		{"other algorithms before it", "FAKE_CUBLASLT_OFFERS", "more", "", "accumulated: element (0, "},
		{"no handle", "FAKE_CUBLASLT_FAIL", "cublasLtCreate:1:1", "cublasLtCreate: not initialized (1)", ""},
		{"no description", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulDescSetAttribute:2:7", "cublasLtMatmulDescSetAttribute: invalid value (7)", ""},
		{"no layout", "FAKE_CUBLASLT_FAIL", "cublasLtMatrixLayoutCreate:3:3", "cublasLtMatrixLayoutCreate: failed (3)", ""},
		{"no preference", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulPreferenceSetAttribute:6:7", "cublasLtMatmulPreferenceSetAttribute: invalid value (7)", ""},
		{"no choice", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic:1:14", "cublasLtMatmulAlgoGetHeuristic: failed (14)", ""},
		{"nothing known of a choice", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoConfigGetAttribute:2:7", "cublasLtMatmulAlgoConfigGetAttribute: invalid value (7)", ""},
		{"a refused product", "FAKE_CUBLASLT_FAIL", "cublasLtMatmul:2:15", "the library refused it", ""},
		{"a failed product", "FAKE_CUBLASLT_FAIL", "cublasLtMatmul:3:13", "cublasLtMatmul: failed (13)", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, l := fakeCuBLASLt(t)
			allocations := v.Allocations()
			t.Setenv(c.variable, c.value)
			found, err := v.CheckCuBLASLt(l, [][2]int64{{8, 16}})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if err == nil && (found.Accumulates == "") != (c.accumulates == "") || !strings.Contains(found.Accumulates, c.accumulates) {
				t.Errorf("accumulates %q, want %q in it", found.Accumulates, c.accumulates)
			}
			if err == nil && len(found.Products) != 2*len(rowsClasses) {
				t.Errorf("%d products", len(found.Products))
			}
			if v.LibraryProducts() || v.Allocations() != allocations {
				t.Errorf("the library is used: %v; %d allocations more", v.LibraryProducts(), v.Allocations()-allocations)
			}
			if c.variable == "FAKE_CUBLASLT_FAIL" { // a handle is given back only if nothing else is left
				t.Setenv(c.variable, "")
				if err := errors.Join(v.UseCuBLASLt(l, nil, false), v.UseCuBLASLt(nil, nil, false)); err != nil {
					t.Errorf("something was left: %v", err)
				}
			}
		})
	}
}

// Where the library offers nothing but sums in pieces, the kernels keep the product.
func TestCuBLASLtWithoutAlgorithm(t *testing.T) {
	v, l := fakeCuBLASLt(t)
	t.Setenv("FAKE_CUBLASLT_OFFERS", "split")
	found, err := v.CheckCuBLASLt(l, [][2]int64{{8, 16}})
	if err != nil || len(found.Products) != 0 {
		t.Errorf("%v, error %v", found.Products, err)
	}
}

// counted is the products that the library has been given since the last call, as lines of rows, columns, depth and beta.
func counted(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(data)), " ", "×"))
}

// Product takes the library for the shapes and numbers of rows that it is told, and the kernels else; the bits are the same.
func TestCuBLASLtProduct(t *testing.T) {
	const columns, depth = 72, 40
	file := filepath.Join(t.TempDir(), "count")
	t.Setenv("FAKE_CUBLASLT_COUNT", file)
	v, l := fakeCuBLASLt(t)
	random := rand.New(rand.NewPCG(5, 6))
	put := func(data []byte) Address {
		a := alloc(t, v, len(data))
		if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return a
	}
	const most = 300
	x := View{At: put(randomBits(random, most*80, Float32)), Stride: 80}
	narrow := View{At: put(randomBits(random, most*80, BFloat16)), Stride: 80}
	w := Weight{At: put(randomBits(random, columns*depth, BFloat16)), Out: columns, In: depth, Pitch: depth}
	before := randomBits(random, most*80, Float32)
	y := View{At: put(before), Stride: 80}
	shapes := []ProductShape{{Columns: columns, Depth: depth, Rows: 256}, {Columns: depth, Depth: columns, Transposed: true, Rows: 256}, {Columns: depth, Depth: columns, Transposed: true, Rows: 512}}
	type call struct {
		from, to               int64
		xType                  Type
		transposed, accumulate bool
		factor                 float32
		groups                 int
		shift                  Address // of y, in bytes
	}
	run := func(c call) []byte {
		t.Helper()
		x, y := x, y
		if c.xType == BFloat16 {
			x.At = narrow.At
		}
		y.At += c.shift
		x.Cols, y.Cols, x.Rows, y.Rows = depth, columns, c.to, c.to
		if c.transposed {
			x.Cols, y.Cols = columns, depth
		}
		groups := []RowGroup{{From: c.from, To: c.to, Weight: w, Factor: c.factor, Round: BFloat16}}
		if c.groups > 1 {
			groups = []RowGroup{{From: c.from, To: c.to - 1, Weight: w}, {From: c.to - 1, To: c.to, Weight: w}}
		}
		after := make([]byte, len(before))
		if err := errors.Join(v.Upload(y.At-c.shift, len(before), before, len(before), 1), v.Product(y, x, c.xType, groups, BFloat16, c.transposed, c.accumulate), v.Download(after, y.At-c.shift, len(after), len(after), 1)); err != nil {
			t.Fatal(err)
		}
		return after
	}
	for _, c := range []struct {
		name string
		call
		accumulate bool // the device may
		want       []string
	}{
		{"float32", call{to: 131, xType: Float32}, false, []string{"131×72×40×0"}},
		{"bfloat16", call{to: 256, xType: BFloat16}, false, []string{"256×72×40×0"}},
		{"transposed", call{to: 128, xType: Float32, transposed: true}, false, []string{"128×40×72×0"}},
		{"a part of the rows", call{from: 3, to: 291, xType: BFloat16, transposed: true}, false, []string{"288×40×72×0"}},
		{"few rows", call{to: 127, xType: Float32}, false, nil},
		{"more rows than asked for", call{to: 257, xType: Float32}, false, nil},
		{"accumulated", call{to: 130, xType: Float32, accumulate: true}, true, []string{"130×72×40×1"}},
		{"accumulated, by the kernels", call{to: 130, xType: Float32, accumulate: true}, false, nil},
		{"a factor", call{to: 130, xType: Float32, factor: 0.7}, false, nil},
		{"groups", call{to: 200, xType: Float32, groups: 2}, false, nil},
		{"y at no multiple of 16 bytes", call{to: 200, xType: Float32, shift: 4}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.accumulate {
				t.Setenv("FAKE_CUBLASLT_BITS", "begin")
			}
			want := run(c.call)
			if n := counted(t, file); len(n) != 0 {
				t.Fatalf("the library is used before it is asked for: %v", n)
			}
			allocations := v.Allocations()
			if err := v.UseCuBLASLt(l, shapes, c.accumulate); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got := run(c.call); !bytes.Equal(got, want) {
					t.Error("other bits")
				}
			}
			if n := counted(t, file); !slices.Equal(n, append(slices.Clone(c.want), c.want...)) {
				t.Errorf("the library had %v, want %v twice", n, c.want)
			}
			if err := v.Record(func() error { run(c.call); return nil }); err != nil {
				t.Fatal(err)
			}
			if n := counted(t, file); len(n) != 0 {
				t.Errorf("the library had %v of what is recorded", n)
			}
			if err := v.UseCuBLASLt(nil, nil, false); err != nil {
				t.Error(err)
			}
			if n := v.Allocations(); n != allocations {
				t.Errorf("%d allocations more", n-allocations)
			}
		})
	}
	// An algorithm is chosen once for each shape, and a product that the library refuses is the kernels', with all after it.
	t.Run("refused", func(t *testing.T) {
		want := run(call{to: 140, xType: Float32})
		if err := v.UseCuBLASLt(l, shapes, false); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic:2:15")
		for range 3 {
			run(call{to: 140, xType: Float32})
		}
		if !v.LibraryProducts() {
			t.Error("chosen again")
		}
		counted(t, file)
		t.Setenv("FAKE_CUBLASLT_FAIL", "cublasLtMatmul:1:15")
		for range 2 {
			if got := run(call{to: 140, xType: Float32}); !bytes.Equal(got, want) {
				t.Error("other bits")
			}
		}
		if n := counted(t, file); len(n) != 0 || v.LibraryProducts() {
			t.Errorf("the library is still used: %v", n)
		}
	})
	// One that may have done something is an error.
	t.Run("failed", func(t *testing.T) {
		if err := v.UseCuBLASLt(l, shapes, false); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUBLASLT_FAIL", "cublasLtMatmul:1:13")
		err := v.Product(View{At: y.At, Rows: 130, Cols: columns, Stride: 80}, View{At: x.At, Rows: 130, Cols: depth, Stride: 80}, Float32, []RowGroup{{To: 130, Weight: w}}, BFloat16, false, false)
		if err == nil || !strings.Contains(err.Error(), "cublasLtMatmul: failed (13)") {
			t.Errorf("error %v", err)
		}
	})
}

// What is missing or too old is an error that names it, and the driver's version decides which one is looked for.
func TestCuBLASLtRefusals(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	d := openDriver(t)
	o := Options{Directories: shim.WithCuBLASLt(dir)}
	library := filepath.Join(o.Directories[1], "libcublasLt.so.12")
	empty := t.TempDir()
	if _, err := openCuBLASLt([]string{"libcublasLt.so.none"}, Options{Directories: []string{empty}}); !errors.Is(err, ErrNoCuBLASLt) || !strings.Contains(err.Error(), filepath.Join(empty, "libcublasLt.so.none")+": ") {
		t.Errorf("error %v", err)
	}
	t.Run("too old", func(t *testing.T) {
		t.Setenv("FAKE_CUBLASLT_VERSION", "111103")
		if _, err := d.OpenCuBLASLt(o); err == nil || errors.Is(err, ErrNoCuBLASLt) || !strings.Contains(err.Error(), library+" is version 11.11.3: 12.0.0 is needed") {
			t.Errorf("error %v", err)
		}
	})
	for version, names := range map[string][]string{"12090": {"libcublasLt.so.12"}, "13000": {"libcublasLt.so.13", "libcublasLt.so.12"}} {
		t.Run("driver "+version, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_VERSION", version)
			l, err := openDriver(t).OpenCuBLASLt(Options{})
			if err == nil {
				defer l.Close()
				t.Skip("this machine has a cuBLASLt")
			}
			if n := strings.Count(err.Error(), " could not be loaded ("); n != len(names) || !strings.Contains(err.Error(), names[0]+" could not be loaded (") {
				t.Errorf("error %v; want %v", err, names)
			}
		})
	}
	for _, names := range [][]string{{"libcublasLt.so.12"}, {"libcublasLt.so.none", "libcublasLt.so.12"}} {
		l, err := openCuBLASLt(names, o)
		if err != nil {
			t.Fatal(err)
		}
		if l.Version() != "12.8.4" || l.Path() != library {
			t.Errorf("%s at %s", l.Version(), l.Path())
		}
		l.Close()
		l.Close()
	}
}

// The library that NVIDIA gives out has every function, and takes the descriptions of products as they are made here. It needs no device for that.
func TestRealCuBLASLt(t *testing.T) {
	folders, err := filepath.Glob("../.venv/lib/python3*/site-packages/nvidia/*/lib")
	if err != nil {
		t.Fatal(err)
	}
	l, err := openCuBLASLt([]string{"libcublasLt.so.13", "libcublasLt.so.12"}, Options{Directories: folders})
	if errors.Is(err, ErrNoCuBLASLt) {
		t.Skipf("cuBLASLt is not installed, so only ours was tested: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Logf("%s, version %s", l.Path(), l.Version())
	for _, s := range shapesOf([][2]int64{{264, 328}, {151936, 4096}}, rowsClasses) {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			p, err := l.describe(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.forget(p); err != nil {
				t.Error(err)
			}
		})
	}
}
