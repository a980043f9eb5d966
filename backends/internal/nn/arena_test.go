package nn_test

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// counting is a device that counts allocations.
type counting struct {
	tensor.Device
	allocations int
}

func (c *counting) Alloc(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	c.allocations++
	return c.Device.Alloc(d, rows, cols)
}

// TestArena passes the same pattern several times: after the first pass the arena is one allocation, and then none is made.
func TestArena(t *testing.T) {
	device, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := &counting{Device: device}
	a := nn.NewArena(d)
	get := func(rows, cols int) tensor.Tensor {
		x, err := a.Get(rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		if x.Rows != rows || x.Cols != cols || x.Stride != cols || (x.Offset+rows*cols)*4 > x.Buffer.Bytes || x.Address()%64 != 0 {
			t.Fatalf("%d × %d is %+v", rows, cols, x)
		}
		return x
	}
	pass := func() {
		if err := a.Release(nn.Mark{}); err != nil {
			t.Fatal(err)
		}
		kept := get(3, 5)
		if err := device.Upload(kept, make([]float32, 15)); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			m := a.Mark()
			for _, x := range []tensor.Tensor{get(1000, 1001), get(7, 300_000), get(1, 1)} {
				if x.Buffer == kept.Buffer && x.Offset < 15 {
					t.Fatal("two live tensors overlap")
				}
			}
			if err := a.Release(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	pass()
	first := d.allocations
	pass()
	second := d.allocations
	pass()
	pass()
	if first < 2 || second != first+1 || d.allocations != second {
		t.Errorf("allocations after passes: %d, %d, %d", first, second, d.allocations)
	}
	if a.Bytes() < 4*(1000*1001+7*300_000) {
		t.Errorf("%d bytes held", a.Bytes())
	}
	a.Free()
	if a.Bytes() != 0 {
		t.Errorf("%d bytes held after Free", a.Bytes())
	}
	get(2, 2)
	a.Free()
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}
