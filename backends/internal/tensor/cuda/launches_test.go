package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Launches overlap for who asks for it, where another process has found equal bits and less time; else the error says why not.
func TestLaunchesAreChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	took := func(apart, dependent time.Duration) *launchesFinding {
		return &launchesFinding{DependentCheck: cudart.DependentCheck{Apart: apart, Dependent: dependent}}
	}
	for _, c := range []struct {
		name, launches, variable, value string
		found                           *launchesFinding
		want                            string
	}{
		{"faster", LaunchesDependent, "FAKE_CUDA_SKIP", "", took(2, 1), ""},
		{"not asked for", LaunchesAuto, "FAKE_CUDA_SKIP", "", took(2, 1), "unused"},
		{"slower", LaunchesDependent, "FAKE_CUDA_SKIP", "", took(1, 2), "dependent launches have the same bits and take longer: 2ns, and 1ns one after another"},
		{"kernels that do not wait", LaunchesDependent, "FAKE_CUDA_NO_WAIT", "1", nil, "check of dependent launches: exit status 1: dependent launches, 1 rows:"},
		{"no Hopper", LaunchesDependent, "FAKE_CUDA_MAJOR", "8", nil, "dependent launches are for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"kernels that cannot be loaded", LaunchesDependent, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:2:1", took(2, 1), "compiling the kernels (sm_90a)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver, err := cudart.Open(cudart.Options{Directories: libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			t.Setenv(c.variable, c.value)
			known := found(t, driver, nil)
			if c.found != nil {
				info, err := driver.Information(0)
				if err != nil {
					t.Fatal(err)
				}
				known.launches.found = map[string]launchesFinding{kindOf(driver, info): *c.found}
			}
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Launches: c.launches}, known)
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrLaunches) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if used := c.want == ""; v.DependentLaunches() != used || strings.Contains(v.routes.String(), "launches of graphs overlap") != used {
				t.Errorf("launches overlap: %v; routes %q", v.DependentLaunches(), v.routes.String())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What products ask for before launches before theirs have ended are weights that were packed from files and have not been written since: never an adapter's.
func TestOnlyTheBaseIsAskedFor(t *testing.T) {
	driver, err := cudart.Open(cudart.Options{Directories: []string{shim.Require(t, shim.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := driver.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{v: v, driver: driver, name: "cuda:0"}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bench{T: t, Device: d, random: rand.New(rand.NewPCG(1, 2))}
	const rows, side, rank = 3, 256, 8
	packed := func(out, in int) tensor.Matrix {
		m, err := d.NewMatrix(tensor.BFloat16, out, in)
		b.ok(err)
		t.Cleanup(m.Free)
		b.ok(d.PackRows(m, 0, out, "BF16", make([]byte, 2*out*in)))
		return m
	}
	base, head, shrink, expand := packed(side, side), packed(side, side), b.matrix(rank, side), b.matrix(side, rank)
	file := filepath.Join(t.TempDir(), "early")
	t.Setenv("FAKE_CUDA_EARLY", file)
	x, y, s := b.filled(tensor.Float32, rows, side), b.filled(tensor.Float32, rows, side), b.filled(tensor.Float32, rows, rank)
	step := func(w tensor.Matrix) (asked map[*matrix]int) {
		b.ok(os.WriteFile(file, nil, 0o600))
		group := func(m tensor.Matrix) []tensor.RowGroup { return []tensor.RowGroup{{To: rows, Matrix: m}} }
		b.ok(d.MatMuls([]tensor.Multiplication{{Y: s, X: x, Groups: group(shrink)}}, []tensor.Multiplication{{Y: y, X: x, Groups: group(w)}},
			[]tensor.Multiplication{{Y: y, X: s, Groups: group(expand), Accumulate: true}}))
		b.values(y)
		data, err := os.ReadFile(file)
		b.ok(err)
		asked = map[*matrix]int{}
		for line := range strings.Lines(string(data)) {
			var kernel string
			var at uintptr
			var bytes int
			if _, err := fmt.Sscan(line, &kernel, &at, &bytes); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			found := false
			for _, m := range []tensor.Matrix{base, head, shrink, expand} {
				if m := m.(*matrix); at >= m.at && at+uintptr(bytes) <= m.at+uintptr(m.bytes) {
					asked[m] += bytes
					found = true
				}
			}
			if !found {
				t.Errorf("%s asks for what is no matrix", kernel)
			}
		}
		return asked
	}
	want := func(name string, asked map[*matrix]int, m tensor.Matrix) {
		t.Helper()
		if len(asked) != 1 || asked[m.(*matrix)] != 2*side*side {
			t.Errorf("%s: %v bytes are asked for, want %d of the base", name, asked, 2*side*side)
		}
	}
	want("a whole matrix", step(base), base)
	want("a view", step(head.Rows(0, side)), head)
	b.ok(d.Repack(tensor.MatrixSource{Matrix: base, Src: b.filled(tensor.Float32, side, side)}))
	if asked := step(base.Rows(0, side)); len(asked) > 0 {
		t.Errorf("of one that is written again %v bytes are asked for", asked)
	}
}
