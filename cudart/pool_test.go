package cudart

import (
	"errors"
	"math"
	"testing"
)

// Trim gives the driver what nobody uses and leaves what is in use, after all that was put off and put into streams is done with it; and a graph that was made over memory that is gone computes what its launches would.
func TestTrim(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	v := openDevice(t, openDriver(t), 0)
	sum := View{At: alloc(t, v, 4), Rows: 1, Cols: 1, Stride: 1}
	if err := errors.Join(v.Zero(sum.At, 4), v.Trim()); err != nil {
		t.Fatal(err)
	}
	before := used(t, v)
	const large = 8 << 20
	next := alloc(t, v, large) // while the memory of the pass before is there, so that it lies elsewhere
	var want float32
	for pass := range 4 { // of the second a graph is made, and started from then on
		x := View{At: next, Rows: 1, Cols: 1, Stride: 1}
		next = alloc(t, v, large)
		for range 14 {
			want += want
		}
		want += float32(pass + 1)
		bits := math.Float32bits(float32(pass + 1))
		if err := v.Upload(x.At, 4, []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}, 4, 1); err != nil {
			t.Fatal(err)
		}
		if pass > 0 {
			t.Setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:1:1")
		}
		if err := v.Record(func() error {
			for range 14 {
				if err := v.Add(sum, sum); err != nil {
					return err
				}
			}
			return errors.Join(v.Add(sum, x), v.Free(x.At), v.Trim())
		}); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_CUDA_FAIL", "")
		if now := used(t, v); now != before+large || v.pool.kept() != 0 {
			t.Errorf("pass %d: %d bytes are taken from the driver, want %d more than %d; %d are kept", pass, now, large, before, v.pool.kept())
		}
	}
	got := make([]byte, 4)
	if err := v.Download(got, sum.At, 4, 4, 1); err != nil || floats(got)[0] != want {
		t.Errorf("%v, want %v, error %v", floats(got)[0], want, err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuCtxSynchronize:1:1")
	if err := v.Trim(); err != nil {
		t.Errorf("with nothing to give it waits: %v", err)
	}
}
