package cudart

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Memory is taken from the driver when no group is in a section. Who waits for that keeps a group's other devices from nothing, but groups that have not begun.
func TestMemoryWaitsForHalfLaunchedOperations(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	n, err := OpenNCCL(Options{Directories: []string{shim.Require(t, shim.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	d := openDriver(t)
	home, devices := openDevice(t, d, 0), []*Device{openDevice(t, d, 0), openDevice(t, d, 1)}
	var ends [2][]*Communicator
	for i := range ends {
		if ends[i], err = n.Connect(devices); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "calls")
	t.Setenv("FAKE_CUDA_COUNT", file)
	taken := func() bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "cuMemAlloc_v2\n")
	}
	until := func(done func() bool) {
		launches.mu.Lock()
		defer launches.mu.Unlock()
		for !done() {
			launches.mu.Unlock()
			launches.mu.Lock()
		}
	}
	first := ends[0][0].Hold()
	var memory, other sync.WaitGroup
	memory.Go(func() {
		a, err := home.Alloc(10 << 20)
		if err == nil {
			err = home.Free(a)
		}
		if err != nil {
			t.Error(err)
		}
	})
	until(func() bool { return launches.waiting == 1 })
	second := ends[0][1].Hold()
	other.Go(func() {
		release := ends[1][0].Hold()
		defer release()
		if !taken() {
			t.Error("a group began its section before who had waited for memory longer")
		}
	})
	first()
	if taken() {
		t.Error("memory was taken while a device of a group had not launched its part")
	}
	second()
	memory.Wait()
	other.Wait()
	if !taken() {
		t.Error("no memory was taken: the test shows nothing")
	}
	for _, group := range ends {
		for _, c := range group {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
