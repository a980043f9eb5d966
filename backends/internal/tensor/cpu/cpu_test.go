package cpu_test

import (
	"fmt"
	"testing"

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
		t.Run(isa, func(t *testing.T) { optest.RunAll(t, open(t, cpu.Options{ISA: isa, Threads: 2})) })
	}
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
