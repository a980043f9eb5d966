package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

func (d *device) Round(dst, src tensor.Tensor) error {
	return failed("round", C.op_round(d.c, view(dst), view(src)))
}

func (d *device) Add(dst, src tensor.Tensor) error {
	return failed("add", C.op_add(d.c, view(dst), view(src)))
}

func (d *device) Scale(dst tensor.Tensor, factor float32, as tensor.DType) error {
	return failed("scale", C.op_scale(d.c, view(dst), C.float(factor), C.int(as)))
}

func (d *device) AddRow(dst, row tensor.Tensor) error {
	return failed("add row", C.op_add_row(d.c, view(dst), view(row)))
}

func (d *device) Zero(dst tensor.Tensor) error {
	return failed("zero", C.op_zero(d.c, view(dst)))
}

func (d *device) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	return failed("rms norm", C.op_rmsnorm(d.c, view(y), view(x), view(weight), C.float(eps)))
}

func (d *device) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	return failed("rms norm backward", C.op_rmsnorm_backward(d.c, view(dx), view(dy), view(x), view(weight), C.float(eps), C.bool(accumulate)))
}

func (d *device) Rope(x tensor.Tensor, positions []int32, table tensor.Tensor, heads int, inverse bool) error {
	return failed("rope", C.op_rope(d.c, view(x), (*C.int32_t)(&positions[0]), view(table), C.int64_t(heads), C.bool(inverse)))
}

func (d *device) SwiGLU(y, gate, up tensor.Tensor) error {
	return failed("swiglu", C.op_swiglu(d.c, view(y), view(gate), view(up)))
}

func (d *device) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	return failed("swiglu backward", C.op_swiglu_backward(d.c, view(dgate), view(dup), view(dy), view(gate), view(up)))
}

func (d *device) LogSumExp(lse, logits tensor.Tensor) error {
	return failed("log-sum-exp", C.op_logsumexp(d.c, view(lse), view(logits), C.segments{}))
}

func (d *device) LogSumExps(lse, logits tensor.Tensor, s tensor.Segments) error {
	return failed("log-sum-exps", C.op_logsumexp(d.c, view(lse), view(logits), cut(s)))
}

func (d *device) Softmax(p, logits, lse tensor.Tensor) error {
	return failed("softmax", C.op_softmax(d.c, view(p), view(logits), view(lse)))
}

func (d *device) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, coefficients []float32) error {
	return failed("softmax gradient", C.op_softmax_gradient(d.c, view(logits), view(lse), (*C.int32_t)(&targets[0]), (*C.float)(&coefficients[0]), C.int64_t(len(targets)/logits.Rows)))
}

func (d *device) SumSquares(xs ...tensor.Tensor) (func() ([]float64, error), error) {
	sums := make([]float64, len(xs))
	for i, x := range xs {
		var err error
		if sums[i], err = d.sumSquares("sum of squares", x); err != nil {
			return nil, err
		}
	}
	return func() ([]float64, error) { return sums, nil }, nil
}

func (d *device) sumSquares(op string, x tensor.Tensor) (sum float64, err error) {
	err = failed(op, C.op_sum_squares(d.c, view(x), (*C.double)(&sum)))
	return
}

func (d *device) AdamW(updates ...tensor.AdamWUpdate) (func() ([]tensor.AdamWSums, error), error) {
	sums := make([]tensor.AdamWSums, len(updates))
	for i := range updates {
		if err := d.adamW(&updates[i], &sums[i]); err != nil {
			return nil, err
		}
	}
	return func() ([]tensor.AdamWSums, error) { return sums, nil }, nil
}

func (d *device) adamW(u *tensor.AdamWUpdate, sums *tensor.AdamWSums) (err error) {
	const op = "adamw"
	factor := 1.0
	if u.MaxNorm > 0 {
		if sums.G, err = d.sumSquares(op, u.G); err != nil {
			return err
		}
		factor = math.Min(1, u.MaxNorm/(math.Sqrt(sums.G)+1e-6))
	}
	step := C.adamw_step{
		learning_rate: C.double(u.LearningRate), beta1: C.double(u.Beta1), beta2: C.double(u.Beta2), eps: C.double(u.Eps),
		weight_decay: C.double(u.WeightDecay), grad_scale: C.double(factor),
		correction1: C.double(1 - math.Pow(u.Beta1, float64(u.Step))), root_correction2: C.double(math.Sqrt(1 - math.Pow(u.Beta2, float64(u.Step)))),
	}
	var written [4]C.double
	var pieces *C.double
	if len(u.Pieces) > 0 {
		pieces = (*C.double)(&u.Pieces[0])
	}
	err = failed(op, C.op_adamw(d.c, view(u.NewP), view(u.NewM), view(u.NewV), view(u.P), view(u.M), view(u.V), view(u.G), step, C.bool(u.MaxNorm <= 0), &written[0], pieces))
	sums.NewP, sums.NewM, sums.NewV = float64(written[0]), float64(written[1]), float64(written[2])
	if u.MaxNorm <= 0 { // else it is there, because the step needs it
		sums.G = float64(written[3])
	}
	return err
}
