package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Add is y += x.
func (v *Device) Add(y, x View) error {
	a := C.two_views{y: y.c(), x: x.c()}
	return v.rowwise(kAdd, y.Rows, y.Cols, bytesIn(&a))
}

// AddRow adds row, of one row, to every row of y.
func (v *Device) AddRow(y, row View) error {
	a := C.two_views{y: y.c(), x: row.c()}
	return v.rowwise(kAddRow, y.Rows, y.Cols, bytesIn(&a))
}

// Scale is y = factor · y, rounded to the values of as.
func (v *Device) Scale(y View, factor float32, as Type) error {
	a := C.scale_arguments{y: y.c(), factor: C.float(factor), _type: C.int32_t(as)}
	return v.rowwise(kScale, y.Rows, y.Cols, bytesIn(&a))
}

// Clear writes zeros.
func (v *Device) Clear(y View, t Type) error {
	a := C.fill_arguments{y: y.c(), _type: C.int32_t(t)}
	return v.rowwise(kFillZero, y.Rows, y.Cols, bytesIn(&a))
}

// Round is y = x, in y's type.
func (v *Device) Round(y View, to Type, x View, from Type) error {
	a := C.round_arguments{y: y.c(), x: x.c(), y_type: C.int32_t(to), x_type: C.int32_t(from)}
	return v.rowwise(kRoundRows, y.Rows, y.Cols, bytesIn(&a))
}

// PackRows writes rows [row, row+rows) of w, in type t, from contiguous elements of type from.
func (v *Device) PackRows(w Weight, t Type, row, rows int64, source Address, from Type) error {
	a := C.pack_arguments{w: w.c(), source: C.uint64_t(source), row: C.int64_t(row), rows: C.int64_t(rows), source_type: C.int32_t(from), _type: C.int32_t(t)}
	return v.rowwise(kPackRows, rows, w.In, bytesIn(&a))
}

// RepackJob is a weight, of Type, and the float32 matrix that all of it is written from.
type RepackJob struct {
	Weight Weight
	Source View
	Type   Type
	_      int32
}

const (
	_ = uint(unsafe.Sizeof(RepackJob{}) - C.sizeof_repack_job)
	_ = uint(C.sizeof_repack_job - unsafe.Sizeof(RepackJob{}))
)

// repackBlocks is about how many blocks Repack launches: with many weights each gets few.
const repackBlocks = 1 << 14

// Repack does all jobs, none of which is empty, in one launch, or as few as a grid allows.
func (v *Device) Repack(jobs []RepackJob) error {
	for len(jobs) > 0 {
		n := min(len(jobs), maxY)
		var units int64
		for _, j := range jobs[:n] {
			units = max(units, (j.Weight.Out*max(j.Weight.In, 1)+C.PIECE-1)/C.PIECE)
		}
		at, release, err := v.Put(bytesOf(jobs[:n]))
		if err != nil {
			return err
		}
		a := C.repack_arguments{jobs: C.uint64_t(at)}
		if err := errors.Join(v.launch(kRepack, min(units, max(8, repackBlocks/int64(n))), int64(n), 1, bytesIn(&a)), release()); err != nil {
			return err
		}
		jobs = jobs[n:]
	}
	return nil
}

// GatherRows writes rows ids (int32, one per row of y; -1 for a row of zeros) of w as float32.
func (v *Device) GatherRows(y View, w Weight, t Type, ids Address) error {
	if t == E4M3 {
		return v.gatherE4M3(y, w, ids)
	}
	a := C.gather_arguments{y: y.c(), w: w.c(), ids: C.uint64_t(ids), _type: C.int32_t(t)}
	return v.rowwise(kGatherRows, y.Rows, y.Cols, bytesIn(&a))
}

// Element is a place in a matrix; column -1 is none, and counts as 0.
type Element struct{ Row, Column int32 }

const (
	_ = uint(unsafe.Sizeof(Element{}) - C.sizeof_element)
	_ = uint(C.sizeof_element - unsafe.Sizeof(Element{}))
)

// GatherElements writes the elements of x that the list at (of Element, one per column of y) names to y's only row.
func (v *Device) GatherElements(y, x View, at Address) error {
	a := C.gather_elements_arguments{y: y.c(), x: x.c(), at: C.uint64_t(at)}
	return v.rowwise(kGatherElements, 1, y.Cols, bytesIn(&a))
}

// normGrid says how many blocks the rows take: a narrow row is a warp's, a wide one a block's.
func normGrid(wide, narrow int, x View) (kernel int, blocks int64) {
	if x.Cols <= C.NARROW_ROW {
		return narrow, (x.Rows + 7) / 8
	}
	return wide, x.Rows
}

// RMSNorm is y = x / √(mean(x²) + eps) · scale, row by row, in type t; y may be x. scale has a float32 per column. With an add that has an address, x += add comes first, and y is not x.
func (v *Device) RMSNorm(y View, t Type, x, add View, scale Address, eps float32) error {
	if x.empty() {
		return nil
	}
	a := C.norm_arguments{y: y.c(), x: x.c(), add: add.c(), scale: C.uint64_t(scale), eps: C.float(eps), y_type: C.int32_t(t)}
	k, blocks := normGrid(kNorm, kNormNarrow, x)
	return v.launch(k, blocks, 1, 1, bytesIn(&a))
}

// RMSNormBackward is the gradient by x for dy; dx is overwritten (it may be dy) or added to.
func (v *Device) RMSNormBackward(dx, dy, x View, scale Address, eps float32, accumulate bool) error {
	if x.empty() {
		return nil
	}
	a := C.norm_backward_arguments{dx: dx.c(), dy: dy.c(), x: x.c(), scale: C.uint64_t(scale), eps: C.float(eps), accumulate: flag(accumulate)}
	k, blocks := normGrid(kNormBackward, kNormBackwardNarrow, x)
	return v.launch(k, blocks, 1, 1, bytesIn(&a))
}

// Rope turns every head of x by its row's position (int32); table has a position per row: cosines, then sines. inverse turns back.
func (v *Device) Rope(x View, positions Address, table View, heads int64, inverse bool) error {
	a := C.rope_arguments{x: x.c(), positions: C.uint64_t(positions), table: table.c(), heads: C.int64_t(heads), inverse: flag(inverse)}
	return v.rowwise(kRope, x.Rows, heads*(table.Cols/2), bytesIn(&a))
}

// SwiGLU is y = silu(gate) · up, in type t; gate and up are of type from.
func (v *Device) SwiGLU(y View, t Type, gate, up View, from Type) error {
	a := C.swiglu_arguments{y: y.c(), gate: gate.c(), up: up.c(), y_type: C.int32_t(t), from_type: C.int32_t(from)}
	return v.rowwise(kSwiGLU, y.Rows, y.Cols, bytesIn(&a))
}

// SwiGLUKeep is SwiGLU of float32, and writes gate and up rounded to bfloat16 to keptGate and keptUp.
func (v *Device) SwiGLUKeep(y View, t Type, keptGate, keptUp, gate, up View) error {
	a := C.swiglu_arguments{y: y.c(), gate: gate.c(), up: up.c(), kept_gate: keptGate.c(), kept_up: keptUp.c(), y_type: C.int32_t(t), from_type: C.FLOAT32}
	return v.rowwise(kSwiGLU, y.Rows, y.Cols, bytesIn(&a))
}

// SwiGLUBackward overwrites dgate and dup. gate and up are of type from; of Float32, dgate may be gate and dup may be up. dup may be dy.
func (v *Device) SwiGLUBackward(dgate, dup, dy, gate, up View, from Type) error {
	a := C.swiglu_backward_arguments{dgate: dgate.c(), dup: dup.c(), dy: dy.c(), gate: gate.c(), up: up.c(), from_type: C.int32_t(from)}
	return v.rowwise(kSwiGLUBackward, dy.Rows, dy.Cols, bytesIn(&a))
}

// LogSumExp writes one value per row of logits.
func (v *Device) LogSumExp(lse, logits View) error {
	if logits.empty() {
		return nil
	}
	a := C.log_sum_exp_arguments{lse: lse.c(), logits: logits.c()}
	return v.launch(kLogSumExp, logits.Rows, 1, 1, bytesIn(&a))
}

// Softmax is p = exp(logits - lse); p may be logits.
func (v *Device) Softmax(p, logits, lse View) error {
	a := C.softmax_arguments{p: p.c(), logits: logits.c(), lse: lse.c()}
	return v.rowwise(kSoftmax, p.Rows, p.Cols, bytesIn(&a))
}

// SoftmaxGradient overwrites logits with Σ coefficient · (1[column = target] - softmax); targets (int32) and coefficients (float32) are k per row.
func (v *Device) SoftmaxGradient(logits, lse View, targets, coefficients Address, k int64) error {
	a := C.softmax_gradient_arguments{logits: logits.c(), lse: lse.c(), targets: C.uint64_t(targets), coefficients: C.uint64_t(coefficients), k: C.int64_t(k)}
	return v.rowwise(kSoftmaxGradient, logits.Rows, logits.Cols, bytesIn(&a))
}
