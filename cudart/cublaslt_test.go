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

// The library has the bits of the kernels for products that begin at zero; those that go on from what y holds are told apart. A shape in which it has other bits, or fails, is left out, and what fails for all is an error.
func TestCheckCuBLASLt(t *testing.T) {
	all := 2 * len(rowsClasses)
	const first, element = "up to 256 rows, 40 columns, 24 deep", "element (0, "
	for _, c := range []struct {
		name, variable, value, want string
		products                    int
		left, accumulates           string // what is said of the first
	}{
		{"as documented", "FAKE_CUBLASLT_BITS", "", "", all, "", first + ", accumulated: element (0, "},
		{"what y holds begins the chain", "FAKE_CUBLASLT_BITS", "begin", "", all, "", ""},
		{"other bits", "FAKE_CUBLASLT_BITS", "other", "", 0, first + ": " + element, ""},
		{"other algorithms before it", "FAKE_CUBLASLT_OFFERS", "more", "", all, "", "accumulated: element (0, "},
		{"nothing but sums in pieces", "FAKE_CUBLASLT_OFFERS", "split", "", 0, first + ": there is no algorithm that sums each element in one piece", ""},
		{"the second is right", "FAKE_CUBLASLT_ALGORITHMS", "or", "", all, "", "accumulated: element (0, "},
		{"the eighth is right", "FAKE_CUBLASLT_ALGORITHMS", "40:oufoufor", "", all, "", "accumulated: element (0, "},
		{"the ninth is right", "FAKE_CUBLASLT_ALGORITHMS", "40:oufoufoor", "", all / 2, first + ": " + element, "up to 256 rows, 24 columns, 40 deep, transposed, accumulated: "},
		{"other bits in one orientation", "FAKE_CUBLASLT_ALGORITHMS", "24:o", "", all / 2, "up to 256 rows, 24 columns, 40 deep, transposed: " + element, ""},
		{"no algorithm works", "FAKE_CUBLASLT_ALGORITHMS", "40:fu", "", all / 2, first + ": cublasLtMatmul: failed (13); none of 2 algorithms is right", ""},
		{"no handle", "FAKE_CUBLASLT_FAIL", "cublasLtCreate:1:1", "products by cuBLASLt, " + first + ": cublasLtCreate: not initialized (1)", 0, "", ""},
		{"no description", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulDescSetAttribute:2:7", "", all - 1, first + ": cublasLtMatmulDescSetAttribute: invalid value (7)", ""},
		{"no layout", "FAKE_CUBLASLT_FAIL", "cublasLtMatrixLayoutCreate:3:3", "", all - 1, first + ": cublasLtMatrixLayoutCreate: failed (3)", ""},
		{"no preference", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulPreferenceSetAttribute:6:7", "", all - 1, first + ": cublasLtMatmulPreferenceSetAttribute: invalid value (7)", ""},
		{"no offers", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic:1:14", "", all - 1, first + ": cublasLtMatmulAlgoGetHeuristic: failed (14)", ""},
		{"nothing known of an offer", "FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoConfigGetAttribute:2:7", "", all - 1, first + ": cublasLtMatmulAlgoConfigGetAttribute: invalid value (7)", ""},
		{"a refused product", "FAKE_CUBLASLT_FAIL", "cublasLtMatmul:2:15", "", all - 1, first + ": cublasLtMatmul: not supported (15)", ""},
		{"a failed product", "FAKE_CUBLASLT_FAIL", "cublasLtMatmul:3:13", "", all - 1, first + ": cublasLtMatmul: failed (13)", ""},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:3:719", "CUDA_ERROR_LAUNCH_FAILED", 0, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, l := fakeCuBLASLt(t)
			allocations := v.Allocations()
			t.Setenv(c.variable, c.value)
			found, err := v.CheckCuBLASLt(l, [][2]int64{{40, 24}})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q in it", err, c.want)
			}
			if c.variable == "FAKE_CUDA_FAIL" {
				return // the device is lost
			}
			if c.value == "begin" && found.Accumulates != "" || !strings.Contains(found.Accumulates, c.accumulates) {
				t.Errorf("accumulates %q, want %q in it", found.Accumulates, c.accumulates)
			}
			left := ""
			if len(found.LeftOut) > 0 {
				left = fmt.Sprint(found.LeftOut[0].ProductShape, ": ", found.LeftOut[0].Reason)
				if none := c.value == "split"; found.LeftOut[0].None != none {
					t.Errorf("no algorithm: %v", !none)
				}
			}
			if err == nil && (len(found.Products) != c.products || len(found.LeftOut) != all-c.products || found.Version != "12.8.4") || (left == "") != (c.left == "") || !strings.HasPrefix(left, c.left) {
				t.Errorf("version %s, %d products, %d left out, the first: %q; want %d and %q", found.Version, len(found.Products), len(found.LeftOut), left, c.products, c.left)
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

// How many algorithms are tried in vain has a bound for all shapes together; each shape's first is tried, and what finds one does not count.
func TestCheckCuBLASLtIsBounded(t *testing.T) {
	for _, c := range []struct {
		algorithms string
		further    int
		left       []string // how the reasons end
	}{
		{"16:oooo", 4, []string{"; none of 4 algorithms is right", "; none of 2 algorithms is right", ""}},
		{"16:oor", 2, nil},
		{"16:oor", 1, []string{"; none of 2 algorithms is right", "", ""}},
	} {
		t.Run(fmt.Sprint(c.algorithms, " ", c.further), func(t *testing.T) {
			v, l := fakeCuBLASLt(t)
			t.Setenv("FAKE_CUBLASLT_ALGORITHMS", c.algorithms)
			check := libraryCheck{device: v, library: l, random: rand.New(rand.NewPCG(1, 2)), elements: mostChecked, further: c.further}
			found, err := check.check(shapesOf([][2]int64{{16, 40}}, rowsClasses[:3]))
			if err != nil {
				t.Fatal(err)
			}
			if len(found.LeftOut) != len(c.left) || len(found.Products) != 6-len(c.left) {
				t.Fatalf("products: %v; left out: %v", found.Products, found.LeftOut)
			}
			for i, want := range c.left {
				if s := found.LeftOut[i]; s.Columns != 16 || !strings.HasSuffix(s.Reason, want) || want == "" && strings.Contains(s.Reason, "none of") {
					t.Errorf("%v: %q, want %q at its end", s.ProductShape, s.Reason, want)
				}
			}
		})
	}
}

// Many columns are checked with fewer rows than the algorithm is for.
func TestCheckCuBLASLtOfManyColumns(t *testing.T) {
	v, l := fakeCuBLASLt(t)
	file := filepath.Join(t.TempDir(), "count")
	t.Setenv("FAKE_CUBLASLT_COUNT", file)
	c := libraryCheck{device: v, library: l, random: rand.New(rand.NewPCG(1, 2)), elements: 141 * 72}
	found, err := c.check([]ProductShape{{Columns: 72, Depth: 8, Rows: 2048}, {Columns: 8, Depth: 72, Transposed: true, Rows: 2048}})
	if err != nil || len(found.Products) != 2 {
		t.Fatalf("%v, error %v", found, err)
	}
	products := counted(t, file)
	for _, want := range []string{"141×72×8×0", "1025×8×72×0", "1269×8×72×0"} {
		if !slices.Contains(products, want) {
			t.Errorf("no %s among %v", want, products)
		}
	}
}

// offered gives products with the first algorithm that the library offers for each shape.
func offered(t *testing.T, v *Device, l *CuBLASLt, shapes ...ProductShape) (products []LibraryProduct) {
	t.Helper()
	for _, s := range shapes {
		if err := v.UseCuBLASLt(l, nil, false); err != nil {
			t.Fatal(err)
		}
		algorithms, err := v.library.offers(v, s, 1)
		if err != nil || len(algorithms) != 1 {
			t.Fatalf("%v: %v, error %v", s, algorithms, err)
		}
		products = append(products, LibraryProduct{ProductShape: s, Algorithm: algorithms[0]})
	}
	if err := v.UseCuBLASLt(nil, nil, false); err != nil {
		t.Fatal(err)
	}
	return products
}

// A product is computed by the very algorithm that was checked, whatever the library would offer now.
func TestCuBLASLtAlgorithmIsTheCheckedOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	v, l := fakeCuBLASLt(t)
	t.Setenv("FAKE_CUBLASLT_ALGORITHMS", "uor")
	c := libraryCheck{device: v, library: l, random: rand.New(rand.NewPCG(1, 2)), elements: mostChecked, further: mostFurther}
	s := ProductShape{Columns: 72, Depth: 40, Rows: 256}
	found, err := c.check([]ProductShape{s})
	if err != nil || len(found.Products) != 1 {
		t.Fatalf("%v, error %v", found, err)
	}
	t.Setenv("FAKE_CUBLASLT_ALGORITHMS", "o")
	t.Setenv("FAKE_CUBLASLT_COUNT", file)
	o, err := c.operands(s)
	if err != nil {
		t.Fatal(err)
	}
	o.x.Rows, o.y.Rows = 140, 140
	result := func(products []LibraryProduct) []byte {
		t.Helper()
		got := make([]byte, 4*o.y.Rows*o.y.Stride)
		use := l
		if products == nil {
			use = nil
		}
		if err := errors.Join(v.UseCuBLASLt(use, products, false), v.Product(o.y, o.x, BFloat16, []RowGroup{{To: 140, Weight: o.w}}, BFloat16, false, false), v.Download(got, o.y.At, len(got), len(got), 1)); err != nil {
			t.Fatal(err)
		}
		if n := len(counted(t, file)); n != len(products) {
			t.Errorf("%d products by the library, want %d", n, len(products))
		}
		return got
	}
	want := result(nil)
	if !bytes.Equal(result(found.Products), want) {
		t.Error("other bits than were checked")
	}
	if bytes.Equal(result(offered(t, v, l, s)), want) {
		t.Error("the other algorithm has the same bits, so this test says nothing")
	}
	if err := errors.Join(v.UseCuBLASLt(nil, nil, false), o.free(v)); err != nil {
		t.Error(err)
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
	shapes := offered(t, v, l, ProductShape{Columns: columns, Depth: depth, Rows: 256}, ProductShape{Columns: depth, Depth: columns, Transposed: true, Rows: 256}, ProductShape{Columns: depth, Depth: columns, Transposed: true, Rows: 512})
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
	// The library is not asked for algorithms again, and a product that the library refuses is the kernels', with all after it.
	t.Run("refused", func(t *testing.T) {
		want := run(call{to: 140, xType: Float32})
		if err := v.UseCuBLASLt(l, shapes, false); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUBLASLT_FAIL", "cublasLtMatmulAlgoGetHeuristic:1:15")
		for range 3 {
			run(call{to: 140, xType: Float32})
		}
		if !v.LibraryProducts() {
			t.Error("asked again")
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
