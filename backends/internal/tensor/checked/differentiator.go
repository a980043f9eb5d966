package checked

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Differentiate implements tensor.Differentiator.
func (d *remoteDevice) Differentiate(slopes, values, lse, ratios tensor.Tensor, terms []tensor.LossTerm) error {
	c := d.check("differentiate")
	c.shaped("values", values, 1, len(terms))
	c.shaped("lse", lse, lse.Rows, 1)
	if slopes.Buffer != nil {
		c.shaped("slopes", slopes, 1, len(terms))
	}
	data := 0
	if ratios.Buffer != nil {
		c.shaped("ratios", ratios, 1, ratios.Cols)
		c.pairs("ratios", ratios)
		data = ratios.Cols / 2
	}
	for i, t := range terms {
		if t.Row < 0 || int(t.Row) >= lse.Rows || t.Form < tensor.LossLinear || t.Form > tensor.LossDatum || !(t.Low <= t.High) || math.IsNaN(t.Beta) ||
			t.Form == tensor.LossDatum && slopes.Buffer != nil && (t.Datum < 0 || int(t.Datum) >= data) {
			c.fail("terms[%d] is %+v: must have one of %d rows, a form, Low not above High, a number as Beta, and with LossDatum one of %d ratios", i, t, lse.Rows, data)
			break
		}
	}
	if c.err != nil || len(terms) == 0 {
		return c.err
	}
	return d.remote.Differentiate(slopes, values, lse, ratios, terms)
}

// DatumRatios implements tensor.Differentiator.
func (d *remoteDevice) DatumRatios(ratios, logprobs tensor.Tensor, positions []tensor.RatioPosition, ends []int32) error {
	c := d.check("ratios of data")
	c.shaped("logprobs", logprobs, 1, logprobs.Cols)
	c.shaped("ratios", ratios, 1, 2*len(ends))
	c.pairs("ratios", ratios)
	for i, p := range positions {
		if p.Column < 0 || int(p.Column) >= logprobs.Cols {
			c.fail("positions[%d] is %+v: must have one of %d log-probabilities", i, p, logprobs.Cols)
			break
		}
	}
	from := int32(0)
	for i, to := range ends {
		if to < from || int(to) > len(positions) {
			c.fail("ends[%d] is %d: must be in %d … %d", i, to, from, len(positions))
			break
		}
		from = to
	}
	if c.err != nil || len(ends) == 0 {
		return c.err
	}
	return d.remote.DatumRatios(ratios, logprobs, positions, ends)
}

// pairs checks a tensor of numbers in float64, each in the place of two elements.
func (c *check) pairs(name string, t tensor.Tensor) {
	if t.Offset%2 != 0 || t.Cols%2 != 0 {
		c.fail("%s begins at element %d and has %d: must be in pairs", name, t.Offset, t.Cols)
	}
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
