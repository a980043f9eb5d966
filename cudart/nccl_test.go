package cudart

import (
	"path/filepath"
	"strings"
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
