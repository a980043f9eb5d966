package cuda

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// What was found is what is read again, in the same circumstances only; a file that has been changed anywhere is none.
func TestRemembered(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "products")
	about := circumstances{Format: circumstancesFormat, What: "cublaslt", Device: "NVIDIA H200", UUID: "ab", Major: 9, Multiprocessors: 132, Kernels: "k", Driver: "12080 d", Library: "12.8.4 l", Weights: [][2]int{{24, 32}}, Warpgroups: true}
	want := cudart.LibraryCheck{Version: "12.8.4", Products: []cudart.LibraryProduct{{ProductShape: cudart.ProductShape{Columns: 24, Depth: 32, Rows: 256}, Algorithm: cudart.LibraryAlgorithm{1, 2, 1 << 63}, Kernels: 100, Library: 90, Riding: 110, Separate: 105}},
		LeftOut: []cudart.LeftOut{{Reason: "other bits"}}}
	var got cudart.LibraryCheck
	if err := about.recall(folder, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v before anything was found", err)
	}
	if err := about.remember(folder, want); err != nil {
		t.Fatal(err)
	}
	if err := about.recall(folder, &got); err != nil || len(got.Products) != 1 || got.Products[0] != want.Products[0] || got.LeftOut[0] != want.LeftOut[0] || got.Version != want.Version {
		t.Errorf("%+v, error %v", got, err)
	}
	for name, change := range map[string]func(c *circumstances){
		"format": func(c *circumstances) { c.Format++ }, "what": func(c *circumstances) { c.What = "warpgroups" }, "device": func(c *circumstances) { c.Device = "NVIDIA H100" }, "UUID": func(c *circumstances) { c.UUID = "ac" },
		"architecture": func(c *circumstances) { c.Major = 10 }, "multiprocessors": func(c *circumstances) { c.Multiprocessors = 114 }, "kernels": func(c *circumstances) { c.Kernels = "l" },
		"driver": func(c *circumstances) { c.Driver = "13000 d" }, "library": func(c *circumstances) { c.Library = "12.9.0 l" }, "weights": func(c *circumstances) { c.Weights = [][2]int{{32, 24}} },
		"warpgroups": func(c *circumstances) { c.Warpgroups = false },
	} {
		other := about
		change(&other)
		if err := other.recall(folder, &got); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("another %s: error %v", name, err)
		}
	}
	path, err := about.path(folder)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range whole {
		changed := bytes.Clone(whole)
		changed[at] ^= 4
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := about.recall(folder, &got); !errors.Is(err, errDamaged) {
			t.Fatalf("byte %d changed: error %v", at, err)
		}
	}
	for _, length := range []int{0, 10, len(whole) - 1} {
		if err := os.WriteFile(path, whole[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := about.recall(folder, &got); !errors.Is(err, errDamaged) {
			t.Errorf("%d bytes of it: error %v", length, err)
		}
	}
	for i := range mostRemembered + 5 { // another file in its place
		about.Driver = strings.Repeat("x", i)
		if err := about.remember(folder, want); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != mostRemembered {
		t.Errorf("%d files, error %v", len(files), err)
	}
	if err := about.recall(folder, &got); err != nil {
		t.Errorf("the newest one: %v", err)
	}
}

// A second process finds nothing out that the first has found, on the same device with the same libraries, and says so; what failed is asked again, and so
// is what cannot be read.
func TestChecksAreRemembered(t *testing.T) {
	libraries := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	o := Options{Libraries: libraries, Products: ProductsAuto, Weights: [][2]int{{24, 32}}, Remember: filepath.Join(t.TempDir(), "products")}
	var said bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(before)
	start := func(t *testing.T) Routes {
		t.Helper()
		said.Reset()
		driver, _ := openDriver(t, o)
		v, err := openDevice(driver, 0, o, &known{}) // as another process
		if err != nil {
			t.Fatal(err)
		}
		if v.library == nil || !v.Warpgroups() {
			t.Errorf("library %v, warpgroups: %v", v.library, v.Warpgroups())
		}
		err = v.Close()
		v.library.Close()
		if err != nil {
			t.Error(err)
		}
		return v.routes
	}
	first := start(t)
	if first.Remembered || !first.Warpgroups || first.Shapes != 8 {
		t.Errorf("first: %+v", first)
	}
	t.Run("nothing is computed", func(t *testing.T) {
		t.Setenv("FAKE_CUDA_SKIP", "product_group_wide product_group") // a check would find other bits
		t.Setenv("FAKE_CUBLASLT_BITS", "other")
		second := start(t)
		if !second.Remembered {
			t.Errorf("second: %+v", second)
		}
		second.Remembered = false
		if second != first {
			t.Errorf("second %+v, first %+v", second, first)
		}
	})
	t.Run("another device", func(t *testing.T) {
		t.Setenv("FAKE_CUDA_UUID", "7")
		if r := start(t); r.Remembered {
			t.Errorf("%+v", r)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		paths, err := filepath.Glob(filepath.Join(o.Remember, "*"))
		if err != nil || len(paths) != 4 {
			t.Fatalf("%d files, error %v", len(paths), err)
		}
		for _, p := range paths {
			if err := os.Truncate(p, 70); err != nil {
				t.Fatal(err)
			}
		}
		if r := start(t); r.Remembered || !strings.Contains(said.String(), "found out again") {
			t.Errorf("%+v; said %s", r, said.String())
		}
		if r := start(t); !r.Remembered {
			t.Errorf("written again: %+v", r)
		}
	})
	t.Run("a folder that cannot be", func(t *testing.T) {
		o.Remember = filepath.Join(os.Args[0], "products") // below a file
		if r := start(t); r.Remembered || !strings.Contains(said.String(), "not kept for the next start") {
			t.Errorf("%+v; said %s", r, said.String())
		}
	})
	t.Run("what failed", func(t *testing.T) {
		o.Remember = t.TempDir()
		t.Setenv("FAKE_CUDA_SKIP", "product_group_wide")
		driver, info := openDriver(t, o)
		if found := o.warpgroups(driver, info, 0, &known{}); found.err == nil || found.remembered {
			t.Errorf("%+v", found)
		}
		t.Setenv("FAKE_CUDA_SKIP", "")
		if found := o.warpgroups(driver, info, 0, &known{}); found.err != nil || found.remembered {
			t.Errorf("asked again: %+v", found)
		}
	})
}

// Routes say who computes products, and why nobody else does, in words that name the reason.
func TestRoutes(t *testing.T) {
	libraries := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	for _, c := range []struct {
		name, variable, value string
		options               Options
		want                  string
	}{
		{"own", "FAKE_CUDA_SKIP", "", Options{Products: ProductsOwn}, "products of many rows by warpgroups, none by cuBLASLt (products are to be the kernels')"},
		{"another architecture", "FAKE_CUDA_MAJOR", "10", Options{}, "products of many rows by warps, not by warpgroups (there are none for compute capability 10.0), none by cuBLASLt (products are to be the kernels')"},
		{"other bits", "FAKE_CUDA_SKIP", "product_group_transposed_wide", Options{}, "products by warpgroups, 130 rows"},
		{"no model", "FAKE_CUDA_MAJOR", "8", Options{Products: ProductsAuto}, "none by cuBLASLt (no weights are known)"},
		{"other bits of the library", "FAKE_CUBLASLT_BITS", "other", Options{Products: ProductsAuto, Weights: [][2]int{{24, 32}}}, "none by cuBLASLt (the cuBLASLt " + libraries[1]},
		{"the library", "FAKE_CUDA_MAJOR", "8", Options{Products: ProductsCuBLASLt, Weights: [][2]int{{24, 32}}}, "and by cuBLASLt 12.8.4 in 8 of 8 shapes, of which 8 with an adapter's product behind it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			o := c.options
			o.Libraries = libraries
			driver, _ := openDriver(t, o)
			v, err := openDevice(driver, 0, o, &known{})
			if err != nil {
				t.Fatal(err)
			}
			if got := v.routes.String(); !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q in it", got, c.want)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			v.library.Close()
		})
	}
}

// With an adapter a library that is faster by itself may be slower.
func TestWorthwhileWithAdapters(t *testing.T) {
	const µs = time.Microsecond
	for _, c := range []struct {
		name                               string
		kernels, library, riding, separate time.Duration
		used, apart                        bool
	}{
		{"faster both ways", 100 * µs, 80 * µs, 102 * µs, 90 * µs, true, true},
		{"faster by itself", 100 * µs, 85 * µs, 102 * µs, 110 * µs, true, false},
		{"as fast with an adapter", 100 * µs, 85 * µs, 102 * µs, 100 * µs, true, false},
		{"slower", 100 * µs, 99 * µs, 200 * µs, 100 * µs, false, false},
	} {
		worth := worthwhile([]cudart.LibraryProduct{{Kernels: c.kernels, Library: c.library, Riding: c.riding, Separate: c.separate}}, ProductsAuto)
		if len(worth) == 1 != c.used || c.used && worth[0].Apart != c.apart {
			t.Errorf("%s: %+v", c.name, worth)
		}
	}
	if worth := worthwhile([]cudart.LibraryProduct{{Kernels: 1, Library: 2, Riding: 1, Separate: 2}}, ProductsCuBLASLt); len(worth) != 1 || !worth[0].Apart {
		t.Errorf("where it is asked for: %+v", worth)
	}
}
