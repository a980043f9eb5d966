package checked

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Differentiate implements tensor.Differentiator.
func (d *remoteDevice) Differentiate(slopes, values, lse tensor.Tensor, terms []tensor.LossTerm) error {
	c := d.check("differentiate")
	c.shaped("values", values, 1, len(terms))
	c.shaped("lse", lse, lse.Rows, 1)
	if slopes.Buffer != nil {
		c.shaped("slopes", slopes, 1, len(terms))
	}
	for i, t := range terms {
		if t.Row < 0 || int(t.Row) >= lse.Rows || t.Form < tensor.LossLinear || t.Form > tensor.LossQuadratic || !(t.Low <= t.High) || math.IsNaN(t.Beta) {
			c.fail("terms[%d] is %+v: must have one of %d rows, a form, Low not above High, and a number as Beta", i, t, lse.Rows)
			break
		}
	}
	if c.err != nil || len(terms) == 0 {
		return c.err
	}
	return d.remote.Differentiate(slopes, values, lse, terms)
}

// StartDownload implements tensor.Differentiator.
func (d *remoteDevice) StartDownload(dst []float32, src tensor.Tensor) (func() error, error) {
	c := d.check("download")
	c.float("src", src)
	c.length("dst", len(dst), src.Rows, src.Cols)
	if src.Rows > 1 && src.Stride != src.Cols {
		c.fail("src has a stride of %d: must be contiguous", src.Stride)
	}
	if c.err != nil {
		return nil, c.err
	}
	if len(dst) == 0 {
		return func() error { return nil }, nil
	}
	return d.remote.StartDownload(dst, src)
}

// SoftmaxGradientBy implements tensor.Differentiator.
func (d *remoteDevice) SoftmaxGradientBy(logits, lse tensor.Tensor, targets []int32, coefficients tensor.Tensor) error {
	c := d.softmaxGradient(logits, lse, targets)
	c.shaped("coefficients", coefficients, 1, len(targets))
	if c.err != nil || logits.Empty() {
		return c.err
	}
	if len(targets) == 0 {
		return d.kernels.Zero(logits)
	}
	return d.remote.SoftmaxGradientBy(logits, lse, targets, coefficients)
}
