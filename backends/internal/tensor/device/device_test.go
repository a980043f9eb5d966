package device_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/device"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// What a name opens where there is a GPU (here a driver that runs kernels on the processor).
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		name    string
		version string // of the driver
		want    string // the device's name, or part of the error
		warning string
	}{
		{"cpu", "", "cpu", ""},
		{"cuda:0", "", "cuda:0", ""},
		{"auto", "", "cuda:0", ""},
		{"cuda:1", "", "this machine has 1 CUDA devices", ""},
		{"cuda:0", "11040", "supports CUDA 11.4: 12.0 is needed", ""},
		{"auto", "11040", "cpu", "supports CUDA 11.4"},
		{"gpu", "", `device "gpu": must be cpu, cuda:N (N from 0) or auto`, ""},
		{"", "", `device "": must be`, ""},
	} {
		t.Run(c.name+" "+c.version, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_VERSION", c.version)
			var said bytes.Buffer
			d, err := device.Open(device.Options{Name: c.name, Threads: 1, CUDALibraries: []string{shim.Require(t, shim.Options{})}, Log: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if d.Name() != c.want {
				t.Errorf("opened %s, want %s", d.Name(), c.want)
			}
			if (said.Len() > 0) != (c.warning != "") || !strings.Contains(said.String(), c.warning) {
				t.Errorf("said %q, want %q in it", said.String(), c.warning)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
