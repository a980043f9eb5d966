package cuda

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// cuBLASLt is used where it is asked for and gives the bits of the kernels. What is missing, too old, different or of no use is an error that names it when it was asked for, and no reason to stop else; it is found out once.
func TestCuBLASLtIsChecked(t *testing.T) {
	libraries := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	path := filepath.Join(libraries[1], "libcublasLt.so.12")
	weights := [][2]int{{24, 32}}
	for _, c := range []struct {
		name, products, variable, value string
		options                         Options
		want                            string // the error; "used", "unused", and "none": not checked either
	}{
		{"right", "cublaslt", "FAKE_CUBLASLT_BITS", "", Options{Weights: weights}, "used"},
		{"adding, too", "cublaslt", "FAKE_CUBLASLT_BITS", "begin", Options{Weights: weights}, "used"},
		{"kernels", "own", "FAKE_CUBLASLT_BITS", "", Options{Weights: weights}, "none"},
		{"no model", "cublaslt", "FAKE_CUBLASLT_BITS", "", Options{}, "none"},
		{"other bits", "cublaslt", "FAKE_CUBLASLT_BITS", "other", Options{Weights: weights}, "products as they are asked for cannot be had: the cuBLASLt " + path + ", version 12.8.4: products of up to 256 rows, 24 columns, 32 deep, and of 7 more of 8 shapes: element (0, "},
		{"other bits, not asked for", "auto", "FAKE_CUBLASLT_BITS", "other", Options{Weights: weights}, "unused"},
		{"other bits for one shape", "cublaslt", "FAKE_CUBLASLT_ALGORITHMS", "32:uo", Options{Weights: weights}, "version 12.8.4: products of up to 256 rows, 32 columns, 24 deep, transposed, and of 3 more of 8 shapes: cublasLtMatmul: not supported (15); none of 2 algorithms is right"},
		{"other bits by the first algorithm", "cublaslt", "FAKE_CUBLASLT_ALGORITHMS", "uor", Options{Weights: weights}, "used"},
		{"no algorithm", "cublaslt", "FAKE_CUBLASLT_OFFERS", "split", Options{Weights: weights}, "version 12.8.4: it has no algorithm for this model's products"},
		{"no algorithm, not asked for", "auto", "FAKE_CUBLASLT_OFFERS", "split", Options{Weights: weights}, "unused"},
		{"too old", "cublaslt", "FAKE_CUBLASLT_VERSION", "110000", Options{Weights: weights}, path + " is version 11.0.0: 12.0.0 is needed"},
		{"too old, not asked for", "auto", "FAKE_CUBLASLT_VERSION", "110000", Options{Weights: weights}, "unused"},
		{"missing", "cublaslt", "FAKE_CUBLASLT_BITS", "", Options{Weights: weights, Libraries: libraries[:1]}, "cuBLASLt was not found: libcublasLt.so.12 could not be loaded (" + filepath.Join(libraries[0], "libcublasLt.so.12") + ": "},
		{"a fault", "cublaslt", "FAKE_CUDA_FAIL", "cuLaunchKernel:5:719", Options{Weights: weights}, "CUDA_ERROR_LAUNCH_FAILED"},
		{"no handle", "cublaslt", "FAKE_CUBLASLT_FAIL", "cublasLtCreate:1:1", Options{Weights: weights}, "version 12.8.4: exit status 1: products by cuBLASLt, up to 256 rows, 24 columns, 32 deep: cublasLtCreate: not initialized (1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.options
			if o.Products = c.products; o.Libraries == nil {
				o.Libraries = libraries
			}
			driver, err := cudart.Open(cudart.Options{Directories: o.Libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			if l, err := driver.OpenCuBLASLt(cudart.Options{Directories: o.Libraries}); err == nil && c.options.Libraries != nil {
				l.Close()
				t.Skip("this machine has a cuBLASLt")
			} else {
				l.Close()
			}
			known := &known{}
			info, err := driver.Information(0)
			if err != nil {
				t.Fatal(err)
			}
			known.warpgroups.of(kindOf(driver, info), func() verdict { return verdict{} }) // not asked here
			for range 2 {
				t.Setenv(c.variable, c.value)
				v, err := openDevice(driver, 0, o, known)
				if err != nil {
					if !strings.Contains(err.Error(), c.want) {
						t.Errorf("error %v, want %q in it", err, c.want)
					}
					continue
				}
				if c.want != "used" && c.want != "unused" && c.want != "none" {
					t.Errorf("no error; want %q", c.want)
				}
				if v.LibraryProducts() != (c.want == "used") || (v.library != nil) != (c.want == "used") {
					t.Errorf("the device uses cuBLASLt: %v", v.LibraryProducts())
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
				v.library.Close()
			}
			if n := len(known.cublaslt.found); (n == 0) != (c.want == "none" || strings.Contains(c.want, "was not found") || strings.Contains(c.want, "is needed")) || n > 1 {
				t.Errorf("%d findings", n)
			}
		})
	}
}

// openDriver gives the driver, which is closed with the test, and what it says of its first device.
func openDriver(t *testing.T, o Options) (*cudart.Driver, cudart.Information) {
	t.Helper()
	driver, err := cudart.Open(cudart.Options{Directories: o.Libraries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(driver.Close)
	info, err := driver.Information(0)
	if err != nil {
		t.Fatal(err)
	}
	return driver, info
}

// By itself cuBLASLt computes what it is faster at.
func TestWorthwhile(t *testing.T) {
	shape := func(rows int64) cudart.ProductShape { return cudart.ProductShape{Columns: 8, Depth: 16, Rows: rows} }
	products := []cudart.LibraryProduct{
		{ProductShape: shape(256), Kernels: 100 * time.Microsecond, Library: 101 * time.Microsecond},
		{ProductShape: shape(512), Kernels: 100 * time.Microsecond, Library: 94 * time.Microsecond},
		{ProductShape: shape(1024), Kernels: 100 * time.Microsecond, Library: 96 * time.Microsecond},
		{ProductShape: shape(2048), Kernels: 300 * time.Microsecond, Library: 100 * time.Microsecond},
	}
	if got, want := worthwhile(products, ProductsAuto), []cudart.LibraryProduct{products[1], products[3]}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := worthwhile(products, ProductsCuBLASLt); len(got) != 4 {
		t.Errorf("%d of 4", len(got))
	}
}

// A library with the kernels' bits that is faster at nothing computes nothing, and names the bits all the same: at the next start it may be faster by a hair.
func TestCuBLASLtIsNamedWhereItIsSlower(t *testing.T) {
	o := Options{Libraries: shim.WithCuBLASLt(shim.Require(t, shim.Options{})), Products: ProductsAuto, Weights: [][2]int{{8, 16}}}
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	driver, info := openDriver(t, o)
	known := &known{}
	for _, c := range []struct {
		name    string
		library time.Duration
		used    bool
	}{{"slower", 96, false}, {"faster", 94, true}} {
		use, err := o.cublaslt(driver, info, 0, false, known)
		if err != nil {
			t.Fatal(err)
		}
		use.library.Close()
		for kind, f := range known.cublaslt.found {
			for i := range f.Products {
				f.Products[i].Kernels, f.Products[i].Library = 100, c.library
			}
			known.cublaslt.found[kind] = f
		}
		v, err := openDevice(driver, 0, o, known)
		if err != nil {
			t.Fatal(err)
		}
		if v.library == nil || v.LibraryProducts() != c.used {
			t.Errorf("%s: library %v, used: %v", c.name, v.library, v.LibraryProducts())
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		v.library.Close()
	}
}

// Shapes in which the library has other bits stay with the kernels, which is said once, and others use it. The bits are named as if it had all, because they are the same.
func TestCuBLASLtLeavesShapesOut(t *testing.T) {
	o := Options{Libraries: shim.WithCuBLASLt(shim.Require(t, shim.Options{})), Products: ProductsAuto, Weights: [][2]int{{24, 32}}}
	t.Setenv("FAKE_CUDA_MAJOR", "8")
	t.Setenv("FAKE_CUBLASLT_ALGORITHMS", "32:o")
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(before)
	driver, info := openDriver(t, o)
	known := &known{}
	use, err := o.cublaslt(driver, info, 0, false, known)
	if err != nil {
		t.Fatal(err)
	}
	use.library.Close()
	for kind, f := range known.cublaslt.found {
		if len(f.Products) != 4 || len(f.LeftOut) != 4 {
			t.Errorf("%d products, %d left out", len(f.Products), len(f.LeftOut))
		}
		for i := range f.Products {
			if f.Products[i].Kernels, f.Products[i].Library = 100, 50; f.Products[i].Columns != 24 {
				t.Errorf("%v", f.Products[i])
			}
		}
		known.cublaslt.found[kind] = f
	}
	v, err := openDevice(driver, 0, o, known)
	if err != nil {
		t.Fatal(err)
	}
	if !v.LibraryProducts() {
		t.Error("no shape uses the library")
	}
	d := &device{v: v.Device, driver: driver, library: v.library}
	if got, want := d.Arithmetic(), "cuda-sm80-driver12080-cublaslt12.8.4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	v.library.Close()
	if text := said.String(); strings.Count(text, "kernels keep the products") != 1 || !strings.Contains(text, "shapes=4 of=8") || !strings.Contains(text, "up to 2048 rows, 32 columns, 24 deep, transposed: element (0, ") {
		t.Errorf("said: %s", text)
	}
	o.Products = ProductsCuBLASLt // then it is an error
	if _, err := openDevice(driver, 0, o, known); !errors.Is(err, ErrProducts) || !strings.Contains(err.Error(), "up to 256 rows, 32 columns, 24 deep, transposed") {
		t.Errorf("error %v", err)
	}
}

// The library's version is part of what names the bits.
func TestArithmeticWithCuBLASLt(t *testing.T) {
	o := Options{Device: "cuda:0", Libraries: shim.WithCuBLASLt(shim.Require(t, shim.Options{})), Products: ProductsCuBLASLt, Weights: [][2]int{{8, 16}}}
	t.Setenv("FAKE_CUDA_MAJOR", "8") // without warpgroups, for whose check there is another test
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := d.Arithmetic(), "cuda-sm80-driver12080-cublaslt12.8.4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	o.Products = ProductsAuto
	if d, err = New(o); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Arithmetic(), "cuda-sm80-driver12080-cublaslt12.8.4"; got != want {
		t.Errorf("chosen by time: %q, want %q", got, want)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	o.Products = ProductsOwn
	if d, err = New(o); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Arithmetic(), "cuda-sm80-driver12080"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
