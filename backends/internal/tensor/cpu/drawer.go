package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// AdjustElements implements tensor.Drawer.
func (d *device) AdjustElements(x tensor.Tensor, list []tensor.Adjustment) error {
	return failed("adjust elements", C.op_adjust_elements(d.c, view(x), (*C.adjustment)(unsafe.Pointer(&list[0])), C.int64_t(len(list))))
}

// MaskColumns implements tensor.Drawer.
func (d *device) MaskColumns(x tensor.Tensor, rows []int32, bits []uint64) error {
	return failed("mask columns", C.op_mask_columns(d.c, view(x), (*C.int32_t)(unsafe.Pointer(&rows[0])), (*C.uint64_t)(unsafe.Pointer(&bits[0])), C.int64_t(len(rows))))
}

// DrawTokens implements tensor.Drawer.
func (d *device) DrawTokens(dst, logits, probs tensor.Tensor, draws []tensor.Draw) error {
	return failed("draw tokens", C.op_draw_tokens(d.c, view(dst), view(logits), view(probs), (*C.draw_settings)(unsafe.Pointer(&draws[0]))))
}
