package cudart

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// What is missing, too old or asked for wrongly is an error that names it.
func TestNCCLRefusals(t *testing.T) {
	empty := t.TempDir()
	if n, err := OpenNCCL(Options{Directories: []string{empty}}); err == nil {
		t.Log("this machine has an NCCL")
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	} else if !strings.Contains(err.Error(), filepath.Join(empty, "libnccl.so.2")) {
		t.Errorf("error %v", err)
	}
	dir := shim.Require(t, shim.Options{})
	o := Options{Directories: []string{dir}}
	t.Run("too old", func(t *testing.T) {
		t.Setenv("FAKE_NCCL_VERSION", "21003")
		if _, err := OpenNCCL(o); err == nil || !strings.Contains(err.Error(), "libnccl.so.2 is version 2.10.3: 2.16.0 is needed") {
			t.Errorf("error %v", err)
		}
	})
	n, err := OpenNCCL(o)
	if err != nil {
		t.Fatal(err)
	}
	if n.Version() != "2.21.5" || n.Path() != filepath.Join(dir, "libnccl.so.2") {
		t.Errorf("%s at %s", n.Version(), n.Path())
	}
	d := openDriver(t)
	if _, err := n.Connect([]*Device{openDevice(t, d, 0), openDevice(t, d, 0)}); err == nil || !strings.Contains(err.Error(), "cuda:0 is there twice") {
		t.Errorf("error %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// Whatever the calling thread's context is, the library is called with that of the communicator's device: with none the CUDA runtime in it would make one on the first GPU.
func TestNCCLWorksInTheDevicesContext(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "3")
	n, err := OpenNCCL(Options{Directories: []string{shim.Require(t, shim.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	d := openDriver(t)
	other, devices := openDevice(t, d, 0), []*Device{openDevice(t, d, 1), openDevice(t, d, 2)}
	// elsewhere runs f on a thread whose context is another device's.
	elsewhere := func(what string, f func() error) {
		t.Helper()
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: nobody else gets the thread
			_, _, err := other.Memory()
			done <- errors.Join(err, f())
		}()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, end := range []struct {
		name string
		of   func(*Communicator) error
	}{{"close", (*Communicator).Close}, {"abort", (*Communicator).Abort}} {
		var ends []*Communicator
		elsewhere("connect", func() (err error) {
			ends, err = n.Connect(devices)
			return err
		})
		if len(ends) == 0 {
			t.Fatal("no communicators")
		}
		var both sync.WaitGroup
		for _, c := range ends {
			at := alloc(t, c.device, 4)
			both.Go(func() { elsewhere("broadcast", func() error { return c.Broadcast(at, 1, 0) }) })
		}
		both.Wait()
		for _, c := range ends {
			elsewhere(end.name, func() error { return end.of(c) })
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
