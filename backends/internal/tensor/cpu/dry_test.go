package cpu_test

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// TestDryMatrices: a matrix takes what the device that computes nothing says.
func TestDryMatrices(t *testing.T) {
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, shape := range [][2]int{{1, 1}, {6, 33}, {32, 7}, {33, 64}, {65, 128}, {200, 31}} {
			m, err := d.NewMatrix(dtype, shape[0], shape[1])
			if err != nil {
				t.Fatal(err)
			}
			want, err := dry.Device{}.NewMatrix(dtype, shape[0], shape[1])
			if err != nil {
				t.Fatal(err)
			}
			if m.Bytes() != want.Bytes() {
				t.Errorf("%v of %v takes %d bytes, planned %d", dtype, shape, m.Bytes(), want.Bytes())
			}
			m.Free()
		}
	}
	for _, shape := range [][3]int{{1, 1, 2}, {33, 77, 64}, {256, 300, 128}} {
		m, err := d.NewE4M3Matrix(shape[0], shape[1], shape[2])
		if err != nil {
			t.Fatal(err)
		}
		want, err := dry.Device{}.NewE4M3Matrix(shape[0], shape[1], shape[2])
		if err != nil {
			t.Fatal(err)
		}
		if m.Bytes() != want.Bytes() {
			t.Errorf("%v in eight bits takes %d bytes, planned %d", shape, m.Bytes(), want.Bytes())
		}
		m.Free()
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
