package cuda_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// The device does nothing before somebody waits for it, so what it has done tells what has been waited for: at each call what was launched before the one before, and no more.
func TestPace(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	d := open(t, cuda.Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{})}})
	x, err := d.Alloc(tensor.Float32, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(x)
	if err := d.Upload(x, []float32{1}); err != nil {
		t.Fatal(err)
	}
	now := make([]float32, 1)
	if err := d.Download(now, x); err != nil || now[0] != 1 {
		t.Fatal(now, err)
	}
	double := func() {
		if err := d.Add(x, x); err != nil {
			t.Fatal(err)
		}
	}
	paced := d.(tensor.Paced)
	var seen []float32
	pace := func() {
		if err := paced.Pace(); err != nil {
			t.Fatal(err)
		}
		at := x.Address() // in the processor's memory
		seen = append(seen, **(**float32)(unsafe.Pointer(&at)))
	}
	for range 4 {
		double()
		pace()
	}
	pace()
	pace()
	if want := []float32{1, 2, 4, 8, 16, 16}; !slices.Equal(seen, want) {
		t.Errorf("done at each call: %v, want %v", seen, want)
	}
}
