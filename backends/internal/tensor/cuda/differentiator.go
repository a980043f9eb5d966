package cuda

import (
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// The kernels' forms are the interface's.
const (
	_ = uint(tensor.LossLinear - cudart.LossLinear)
	_ = uint(cudart.LossDatum - tensor.LossDatum)
	_ = uint(unsafe.Sizeof(tensor.LossTerm{}) - unsafe.Sizeof(cudart.LossTerm{}))
	_ = uint(unsafe.Sizeof(cudart.LossTerm{}) - unsafe.Sizeof(tensor.LossTerm{}))
	_ = uint(unsafe.Sizeof(tensor.RatioPosition{}) - unsafe.Sizeof(cudart.RatioPosition{}))
	_ = uint(unsafe.Sizeof(cudart.RatioPosition{}) - unsafe.Sizeof(tensor.RatioPosition{}))
)

// Differentiate implements tensor.Differentiator.
func (d *device) Differentiate(slopes, values, lse, ratios tensor.Tensor, terms []tensor.LossTerm) error {
	var out cudart.View
	var of cudart.Address
	if slopes.Buffer != nil {
		out = view(slopes)
	}
	if ratios.Buffer != nil {
		of = view(ratios).At
	}
	d.terms = d.terms[:0]
	for _, t := range terms {
		d.terms = append(d.terms, cudart.LossTerm{Low: t.Low, High: t.High, Beta: t.Beta, Weight: t.Weight, Recorded: t.Recorded, Row: t.Row, Form: int32(t.Form), Datum: t.Datum})
	}
	return d.failed("differentiate", d.v.Differentiate(out, view(values), view(lse), of, d.terms))
}

// DatumRatios implements tensor.Differentiator.
func (d *device) DatumRatios(ratios, logprobs tensor.Tensor, positions []tensor.RatioPosition, ends []int32) error {
	return d.withList("ratios of data", func(at []cudart.Address) error {
		return d.v.DatumRatios(view(ratios).At, view(logprobs), at[0], at[1], len(ends))
	}, bytesOf(positions), bytesOf(ends))
}

// SoftmaxGradientBy implements tensor.Differentiator.
func (d *device) SoftmaxGradientBy(logits, lse tensor.Tensor, targets []int32, c tensor.Tensor) error {
	return d.withList("softmax gradient", func(at []cudart.Address) error {
		return d.v.SoftmaxGradient(view(logits), view(lse), at[0], view(c).At, int64(len(targets)/logits.Rows))
	}, bytesOf(targets))
}

// StartDownload implements tensor.Differentiator.
func (d *device) StartDownload(dst []float32, src tensor.Tensor) (func() error, error) {
	f, err := d.v.Fetch(view(src).At, len(bytesOf(dst)))
	if err != nil {
		return nil, d.failed("download", err)
	}
	return func() error { return d.failed("download", f.Wait(bytesOf(dst))) }, nil
}
