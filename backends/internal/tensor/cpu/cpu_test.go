package cpu_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/optest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o cpu.Options) tensor.Device {
	t.Helper()
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestOperations(t *testing.T) {
	for _, isa := range cpu.ISAs() {
		t.Run(isa, func(t *testing.T) { optest.RunAll(t, open(t, cpu.Options{ISA: isa, Threads: 2}), optest.Options{}) })
	}
}

func TestRaggedLengths(t *testing.T) {
	optest.RunRagged(t, open(t, cpu.Options{Threads: 2}), optest.Options{})
}

// Neither the number of threads nor the instruction set changes a bit.
func TestEqualBits(t *testing.T) {
	best := open(t, cpu.Options{Threads: 1})
	for _, isa := range cpu.ISAs() {
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s %d threads", isa, threads), func(t *testing.T) {
				d := open(t, cpu.Options{ISA: isa, Threads: threads})
				if d.Arithmetic() != best.Arithmetic() {
					if threads == 1 {
						t.Skip("another arithmetic: ", d.Arithmetic())
					}
					optest.RunEqual(t, open(t, cpu.Options{ISA: isa, Threads: 1}), d)
					return
				}
				optest.RunEqual(t, best, d)
			})
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []cpu.Options{{Threads: -1}, {Threads: 5000}, {ISA: "avx1024"}} {
		if _, err := cpu.New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestCloseTellsOfMemoryNotFreed(t *testing.T) {
	d, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	x, err := d.Alloc(tensor.Float32, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(x)
	if err := d.Close(); err == nil {
		t.Error("no error")
	}
	if err := d.Zero(x); err == nil {
		t.Error("a closed device works")
	}
}

// Kernels flush denormals; the thread that called them must get its own setting back.
func TestDenormalsSurviveOutside(t *testing.T) {
	d := open(t, cpu.Options{Threads: 1})
	x, err := d.Alloc(tensor.Float32, 1, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(x)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.Add(x, x); err != nil {
		t.Fatal(err)
	}
	tiny := []float32{math.SmallestNonzeroFloat32}
	if tiny[0]*2 == 0 || tiny[0]+tiny[0] == 0 {
		t.Error("denormals are flushed after an operation")
	}
}

// Threads that sleep, wake late or find nothing left to do must neither lose nor repeat a unit of work.
func TestManyShortOperations(t *testing.T) {
	const few, many, out, in = 3, 30, 2560, 96 // enough work that threads are woken
	d := open(t, cpu.Options{Threads: 4})
	m, err := d.NewMatrix(tensor.Float32, out, in)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	w, all, y := allocate(t, d, out, in), allocate(t, d, many, in), allocate(t, d, many, out)
	if err := d.Repack(tensor.MatrixSource{Matrix: m, Src: w}); err != nil {
		t.Fatal(err)
	}
	first := map[int][]float32{}
	for i := range 3000 {
		rows := few // each thread has a range of the columns
		if i%3 == 2 {
			rows = many // which threads take in turn
		}
		y, x := y.Slice(0, rows), all.Slice(0, rows)
		if err := errors.Join(d.Zero(y), d.MatMul(y, x, m, true)); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, rows*out)
		if err := d.Download(got, y); err != nil {
			t.Fatal(err)
		}
		if first[rows] == nil {
			first[rows] = got
		}
		if !slices.Equal(got, first[rows]) {
			t.Fatalf("operation %d of %d rows gives another result than the first", i, rows)
		}
		if i%500 == 0 {
			time.Sleep(time.Millisecond) // long enough for the threads to fall asleep
		}
	}
}

func allocate(t testing.TB, d tensor.Device, rows, cols int) tensor.Tensor {
	t.Helper()
	x, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Free(x) })
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(i%17) - 8
	}
	if err := d.Upload(x, values); err != nil {
		t.Fatal(err)
	}
	return x
}

// Memory that was given back is zero when it is had again, whatever was on it: a small piece, a mapping that was kept, one too large for that.
func TestMemoryIsZeroAgain(t *testing.T) {
	d := open(t, cpu.Options{Threads: 1})
	for _, c := range []struct {
		name       string
		rows, cols int
	}{{"small", 3, 100}, {"a mapping", 1, 1 << 19}, {"a mapping with a ragged end", 1, 1<<19 + 5}, {"too large to be kept", 1, 1 << 23}} {
		t.Run(c.name, func(t *testing.T) {
			values := slices.Repeat([]float32{1}, c.rows*c.cols)
			for range 3 {
				x, err := d.Alloc(tensor.Float32, c.rows, c.cols)
				if err != nil {
					t.Fatal(err)
				}
				y, err := d.Alloc(tensor.Float32, c.rows, c.cols)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Download(values, x); err != nil {
					t.Fatal(err)
				}
				if i := slices.IndexFunc(values, func(v float32) bool { return v != 0 }); i >= 0 {
					t.Fatalf("element %d is %v", i, values[i])
				}
				for i := range values {
					values[i] = 1
				}
				for _, z := range []tensor.Tensor{x, y} {
					if err := d.Upload(z, values); err != nil {
						t.Fatal(err)
					}
				}
				for _, z := range []tensor.Tensor{x, y} {
					if err := d.Download(values, z); err != nil {
						t.Fatal(err)
					}
					if i := slices.IndexFunc(values, func(v float32) bool { return v != 1 }); i >= 0 {
						t.Fatalf("element %d is %v after it was set", i, values[i])
					}
				}
				d.Free(x)
				d.Free(y)
			}
		})
	}
}
