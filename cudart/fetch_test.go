package cudart

import (
	"bytes"
	"testing"
)

// Copies that were begun before the first of them is waited for are one wait, take what their memory held then, and use host memory again; one that fails leaves nothing behind.
func TestFetch(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	v := openDevice(t, openDriver(t), 0)
	const n = 5000
	at := alloc(t, v, n)
	fill := func(b byte) []byte {
		t.Helper()
		data := bytes.Repeat([]byte{b}, n)
		if err := v.Upload(at, n, data, n, 1); err != nil {
			t.Fatal(err)
		}
		return data
	}
	fetch := func(bytes int) *Fetch {
		t.Helper()
		f, err := v.Fetch(at, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for round, plan := range []string{"", "cuMemHostAlloc:1:2"} { // the second round takes none
		t.Setenv("FAKE_CUDA_FAIL", plan)
		one := fill(1)
		first := fetch(n)
		two := fill(2)
		second, none := fetch(n), fetch(0)
		fill(3)
		got := make([]byte, n)
		if err := second.Wait(got); err != nil || !bytes.Equal(got, two) {
			t.Errorf("round %d: the second one: %v, begins with %d", round, err, got[0])
		}
		t.Setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize:1:1") // nobody waits any more
		if err := first.Wait(got); err != nil || !bytes.Equal(got, one) {
			t.Errorf("round %d: the first one: %v, begins with %d", round, err, got[0])
		}
		if err := none.Wait(nil); err != nil {
			t.Errorf("round %d: nothing: %v", round, err)
		}
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2:1:1")
	if _, err := v.Fetch(at, n); err == nil {
		t.Error("no error of a copy that failed")
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize:1:1")
	if err := fetch(n).Wait(make([]byte, n)); err == nil {
		t.Error("no error of a wait that failed")
	}
	t.Setenv("FAKE_CUDA_FAIL", "")
	want, got := fill(4), make([]byte, n)
	if err := fetch(n).Wait(got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("after the errors: %v, begins with %d", err, got[0])
	}
}
