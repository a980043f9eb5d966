package cuda

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// AdjustElements implements tensor.Drawer.
func (d *device) AdjustElements(x tensor.Tensor, list []tensor.Adjustment) error {
	d.adjustments = d.adjustments[:0]
	for _, a := range list {
		d.adjustments = append(d.adjustments, cudart.Adjustment(a))
	}
	return d.failed("adjust elements", d.v.AdjustElements(view(x), d.adjustments))
}

// MaskColumns implements tensor.Drawer.
func (d *device) MaskColumns(x tensor.Tensor, rows []int32, bits []uint64) error {
	return d.failed("mask columns", d.v.MaskColumns(view(x), rows, bits))
}

// DrawTokens implements tensor.Drawer.
func (d *device) DrawTokens(dst, logits, probs tensor.Tensor, draws []tensor.Draw) error {
	d.draws = d.draws[:0]
	for _, one := range draws {
		d.draws = append(d.draws, cudart.Draw(one))
	}
	return d.failed("draw tokens", d.v.DrawTokens(view(dst), view(logits), view(probs), d.draws))
}
