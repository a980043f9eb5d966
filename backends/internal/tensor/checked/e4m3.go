package checked

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// ScaleColumns is what tensor.ScaleColumns gives.
func (m *matrix) ScaleColumns() int { return tensor.ScaleColumns(m.Matrix) }

// HasE4M3 implements tensor.Device.
func (d *device) HasE4M3() bool { return d.kernels.HasE4M3() }

// e4m3 refuses matrices in eight bits where there are no kernels for them.
func (c *check) e4m3(d *device) {
	if !d.HasE4M3() {
		c.fail("this device has no kernels for matrices in eight bits")
	}
}

// plain refuses a matrix in eight bits, which is packed by PackE4M3 alone.
func (c *check) plain(w tensor.Matrix) {
	if tensor.ScaleColumns(w) > 0 {
		c.fail("the matrix is in eight bits: pack it from numbers of eight bits and their scales")
	}
}

func (d *device) NewE4M3Matrix(out, in, columns int) (tensor.Matrix, error) {
	c := d.check("new matrix in eight bits")
	c.e4m3(d)
	if _, ok := tensor.Product(out, in); !ok || out > tensor.MaxElements-tensor.E4M3Rows {
		c.fail("%d × %d: not a size that can be had", out, in)
	}
	if columns < 2 || columns%2 != 0 || columns > math.MaxInt32 {
		c.fail("a scale for %d columns: must be for an even number", columns)
	}
	if c.err != nil {
		return nil, c.err
	}
	m, err := d.kernels.NewE4M3Matrix(out, in, columns)
	if err != nil {
		return nil, err
	}
	d.live++
	return &matrix{device: d, Matrix: m}, nil
}

func (d *device) PackE4M3(m tensor.Matrix, row, n int, codes []byte, scales []float32) error {
	c := d.check("pack rows in eight bits")
	c.e4m3(d)
	w := c.matrix(d, m)
	if c.err != nil {
		return c.err
	}
	columns := tensor.ScaleColumns(w)
	if columns == 0 {
		c.fail("the matrix is of %v", w.DType())
		return c.err
	}
	across := (w.In() + columns - 1) / columns
	if row < 0 || n < 0 || row > w.Out() || n > w.Out()-row {
		c.fail("rows %d to %d of a matrix of %d", row, row+n, w.Out())
	} else if len(codes) != n*w.In() || len(scales) != n*across {
		c.fail("%d numbers and %d scales: %d rows of %d need %d and %d", len(codes), len(scales), n, w.In(), n*w.In(), n*across)
	}
	if c.err != nil || len(codes) == 0 {
		return c.err
	}
	for i, s := range scales {
		if m := math.Abs(float64(s)); !(m >= tensor.E4M3LeastScale) || math.IsInf(m, 0) {
			c.fail("scales[%d] is %v: must be finite, and %v at least in magnitude", i, s, tensor.E4M3LeastScale)
			return c.err
		}
	}
	return d.kernels.PackE4M3(w, row, n, codes, scales)
}
