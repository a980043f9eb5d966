package cuda

import (
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// The kernels' forms are the interface's.
const (
	_ = uint(tensor.LossLinear - cudart.LossLinear)
	_ = uint(cudart.LossQuadratic - tensor.LossQuadratic)
	_ = uint(unsafe.Sizeof(tensor.LossTerm{}) - unsafe.Sizeof(cudart.LossTerm{}))
	_ = uint(unsafe.Sizeof(cudart.LossTerm{}) - unsafe.Sizeof(tensor.LossTerm{}))
)

// Differentiate implements tensor.Differentiator.
func (d *device) Differentiate(slopes, values, lse tensor.Tensor, terms []tensor.LossTerm) error {
	var out cudart.View
	if slopes.Buffer != nil {
		out = view(slopes)
	}
	d.terms = d.terms[:0]
	for _, t := range terms {
		d.terms = append(d.terms, cudart.LossTerm{Low: t.Low, High: t.High, Beta: t.Beta, Weight: t.Weight, Recorded: t.Recorded, Row: t.Row, Form: int32(t.Form)})
	}
	return d.failed("differentiate", d.v.Differentiate(out, view(values), view(lse), d.terms))
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
