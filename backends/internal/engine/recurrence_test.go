package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// withoutRecurrence is a device without the kernels of recurrent layers, which counts the matrices that were made on it.
type withoutRecurrence struct {
	tensor.Device
	matrices int
}

func (*withoutRecurrence) HasRecurrence() bool { return false }

func (d *withoutRecurrence) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	d.matrices++
	return d.Device.NewMatrix(t, out, in)
}

func (*withoutRecurrence) SigmoidGate(_, _, _ tensor.Tensor) error {
	return errors.New("there is no kernel for it")
}

// TestDeviceWithoutRecurrence: a model of an architecture with recurrent layers is refused by name before anything is packed, whichever layers it has.
func TestDeviceWithoutRecurrence(t *testing.T) {
	const linear, full = "linear_attention", "full_attention"
	for _, layers := range [][]string{{linear, full, linear}, {full, full, linear}, {full, full, full}} {
		t.Run(fmt.Sprint(layers), func(t *testing.T) {
			dir := t.TempDir()
			if err := writeLayers(dir, denseHybrid, layers...); err != nil {
				t.Fatal(err)
			}
			var d *withoutRecurrence
			o := testOptions()
			o.OpenDevice = func(c Config) (tensor.Device, error) {
				inner, err := cpu.New(cpu.Options{Threads: c.Threads})
				d = &withoutRecurrence{Device: inner}
				return d, err
			}
			e := New(o)
			t.Cleanup(func() {
				if err := e.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
					t.Error(err)
				}
			})
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "hybrid", Config: []byte(`{}`)}, nil)
			if err == nil || !strings.Contains(err.Error(), "Qwen3_5ForCausalLM") || !strings.Contains(err.Error(), "no kernels") {
				t.Errorf("loaded with %v, want that the device has no kernels", err)
			}
			if d != nil && d.matrices > 0 {
				t.Errorf("%d matrices were made first", d.matrices)
			}
		})
	}
}
