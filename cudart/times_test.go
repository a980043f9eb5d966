package cudart

import (
	"bytes"
	"errors"
	"testing"
)

// What a device is given while it is timed is counted by name, recorded or not, in the second stream too, and computes what it computes otherwise. What the
// host has not waited for yet is not there.
func TestKernelTimes(t *testing.T) {
	for _, late := range []string{"0", "1"} {
		t.Run("late "+late, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_LATE", late)
			var v *Device
			counts := map[string]int{}
			t.Cleanup(func() { // behind the device's end
				if got := v.KernelTimes(); len(got) != len(counts) || got[0].Launches != counts[got[0].Name] {
					t.Errorf("%v after the end, %v before", got, counts)
				}
			})
			v = openDevice(t, openDriver(t), 0)
			a := alloc(t, v, 8)
			work := func() (*passes, error) {
				p := newPasses(t, v)
				c := pass{launches: 30, rows: 3, factor: 0.25}
				join := func() error { return nil }
				err := errors.Join(v.Record(func() error { return p.launch(c) }), v.Record(func() error { return p.launch(c) }), v.Record(func() error { return p.launch(c) }), p.launch(c))
				if err == nil {
					join, err = v.Aside(func() error { return v.Copy(a, v, a+4, 4) })
				}
				return p, errors.Join(err, join(), v.Zero(a, 8))
			}
			plain, err := work()
			if err != nil {
				t.Fatal(err)
			}
			want := plain.result()
			if got := v.KernelTimes(); len(got) != 0 {
				t.Errorf("%v without being asked", got)
			}
			v.TimeKernels(true)
			v.TimeKernels(true)
			t.Setenv("FAKE_CUDA_FAIL", "cuGraphLaunch:1:1") // there are no graphs meanwhile
			timed, err := work()
			if err != nil {
				t.Fatal(err)
			}
			if got := v.KernelTimes(); len(got) != 0 {
				t.Errorf("%v before the host has waited", got)
			}
			if got := timed.result(); !bytes.Equal(got, want) {
				t.Error("other results while kernels are timed")
			}
			t.Setenv("FAKE_CUDA_FAIL", "")
			for i, k := range v.KernelTimes() {
				if k.Seconds <= 0 {
					t.Errorf("%s has taken %g s", k.Name, k.Seconds)
				}
				if i > 0 && k.Seconds > v.KernelTimes()[i-1].Seconds {
					t.Errorf("%s is behind what took less", k.Name)
				}
				counts[k.Name] = k.Launches
			}
			for name, n := range map[string]int{"scale": 40, "add": 40, "gather_elements": 40, "cuMemcpyDtoD": 1, "cuMemsetD8": 1, "cuMemcpyDtoH": 2} {
				if counts[name] != n {
					t.Errorf("%d launches of %s, want %d: %v", counts[name], name, n, counts)
				}
			}
			v.TimeKernels(false)
			if _, err := work(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The times end with the device's events, also where the device is lost.
func TestKernelTimesOfALostDevice(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	p := newPasses(t, v)
	v.TimeKernels(true)
	t.Setenv("FAKE_CUDA_FAIL", "cuEventElapsedTime:1:1")
	if err := errors.Join(p.launch(pass{launches: 3, rows: 3}), v.Synchronize()); err == nil {
		t.Error("a time that the driver refuses is no error")
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuEventRecord:2:1")
	if err := p.launch(pass{launches: 3, rows: 3}); err == nil {
		t.Error("an event that the driver refuses is no error")
	}
	t.Setenv("FAKE_CUDA_FAIL", "")
	if got := v.KernelTimes(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
