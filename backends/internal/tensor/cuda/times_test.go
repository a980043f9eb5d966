package cuda

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Kernels are timed while that is asked for, through the checks before a device; with the variable from the beginning, and what was found is logged at the
// end.
func TestKernelTimes(t *testing.T) {
	for _, variable := range []string{"", "1"} {
		t.Run("variable "+variable, func(t *testing.T) {
			t.Setenv(TimesVariable, variable)
			var said bytes.Buffer
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
			defer slog.SetDefault(before)
			d, err := New(Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{})}})
			if err != nil {
				t.Fatal(err)
			}
			add := func() {
				t.Helper()
				x, err := d.Alloc(tensor.Float32, 2, 3)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Free(x)
				if err := d.Add(x, x); err != nil {
					t.Fatal(err)
				}
				if err := d.Download(make([]float32, 6), x); err != nil {
					t.Fatal(err)
				}
			}
			want := 1
			add()
			if variable != "" {
				want++
			}
			if !TimeKernels(d, true) {
				t.Error("its kernels are not timed")
			}
			add()
			TimeKernels(d, false)
			add()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			got := 0
			for _, k := range KernelTimes(d) {
				if k.Name == "add" {
					got = k.Launches
				}
			}
			if got != want {
				t.Errorf("%d launches of add, want %d", got, want)
			}
			if logged := strings.Contains(said.String(), "kernel=add launches=2"); logged != (variable != "") {
				t.Errorf("logged %q", said.String())
			}
		})
	}
	processor, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if TimeKernels(processor, true) || KernelTimes(processor) != nil {
		t.Error("the processor times kernels")
	}
	if err := processor.Close(); err != nil {
		t.Error(err)
	}
}
