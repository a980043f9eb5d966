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
	c := d.check("round")
	if dst.Rows != src.Rows || dst.Cols != src.Cols {
		c.fail("dst is %d × %d, src is %d × %d", dst.Rows, dst.Cols, src.Rows, src.Cols)
	}
	vd, vs := c.view("dst", dst), c.view("src", src)
	if c.err != nil {
		return c.err
	}
	return failed("round", C.op_round(d.c, vd, vs))
}

func (d *device) Add(dst, src tensor.Tensor) error {
	c := d.check("add")
	vd, vs := c.float("dst", dst), c.shaped("src", src, dst.Rows, dst.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("add", C.op_add(d.c, vd, vs))
}

func (d *device) Scale(dst tensor.Tensor, factor float32, as tensor.DType) error {
	c := d.check("scale")
	v := c.float("dst", dst)
	if !validType(as) {
		c.fail("rounding to %v: must be float32 or bfloat16", as)
	}
	if c.err != nil {
		return c.err
	}
	return failed("scale", C.op_scale(d.c, v, C.float(factor), C.int(as)))
}

func (d *device) AddRow(dst, row tensor.Tensor) error {
	c := d.check("add row")
	vd, vr := c.float("dst", dst), c.shaped("row", row, 1, dst.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("add row", C.op_add_row(d.c, vd, vr))
}

func (d *device) Zero(dst tensor.Tensor) error {
	c := d.check("zero")
	v := c.view("dst", dst)
	if c.err != nil {
		return c.err
	}
	return failed("zero", C.op_zero(d.c, v))
}

func (d *device) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	c := d.check("rms norm")
	vy, vx, vw := c.float("y", y), c.shaped("x", x, y.Rows, y.Cols), c.shaped("weight", weight, 1, y.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("rms norm", C.op_rmsnorm(d.c, vy, vx, vw, C.float(eps)))
}

func (d *device) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	c := d.check("rms norm backward")
	vdx, vdy := c.float("dx", dx), c.shaped("dy", dy, dx.Rows, dx.Cols)
	vx, vw := c.shaped("x", x, dx.Rows, dx.Cols), c.shaped("weight", weight, 1, dx.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("rms norm backward", C.op_rmsnorm_backward(d.c, vdx, vdy, vx, vw, C.float(eps), C.bool(accumulate)))
}

func (d *device) Rope(x tensor.Tensor, positions []int32, table tensor.Tensor, heads int, inverse bool) error {
	c := d.check("rope")
	vx, vt := c.float("x", x), c.float("table", table)
	if heads < 1 || x.Cols%max(heads, 1) != 0 {
		c.fail("%d columns do not divide into %d heads", x.Cols, heads)
	} else if table.Cols%2 != 0 || table.Cols > x.Cols/heads {
		c.fail("table has %d columns: must be even and at most the head's dimension %d", table.Cols, x.Cols/heads)
	}
	if len(positions) != x.Rows {
		c.fail("%d positions for %d rows", len(positions), x.Rows)
	}
	for i, p := range positions {
		if p < 0 || int(p) >= table.Rows {
			c.fail("positions[%d] is %d: the table has %d rows", i, p, table.Rows)
			break
		}
	}
	if c.err != nil || len(positions) == 0 {
		return c.err
	}
	return failed("rope", C.op_rope(d.c, vx, (*C.int32_t)(&positions[0]), vt, C.int64_t(heads), C.bool(inverse)))
}

func (d *device) SwiGLU(y, gate, up tensor.Tensor) error {
	c := d.check("swiglu")
	vy, vg, vu := c.float("y", y), c.shaped("gate", gate, y.Rows, y.Cols), c.shaped("up", up, y.Rows, y.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("swiglu", C.op_swiglu(d.c, vy, vg, vu))
}

func (d *device) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	c := d.check("swiglu backward")
	rows, cols := dy.Rows, dy.Cols
	vdg, vdu, vdy := c.shaped("dgate", dgate, rows, cols), c.shaped("dup", dup, rows, cols), c.float("dy", dy)
	vg, vu := c.shaped("gate", gate, rows, cols), c.shaped("up", up, rows, cols)
	if c.err != nil {
		return c.err
	}
	return failed("swiglu backward", C.op_swiglu_backward(d.c, vdg, vdu, vdy, vg, vu))
}

func (d *device) LogSumExp(lse, logits tensor.Tensor) error {
	c := d.check("log-sum-exp")
	vl, vx := c.shaped("lse", lse, logits.Rows, 1), c.float("logits", logits)
	if logits.Rows > 0 && logits.Cols == 0 {
		c.fail("logits have no columns")
	}
	if c.err != nil {
		return c.err
	}
	return failed("log-sum-exp", C.op_logsumexp(d.c, vl, vx))
}

func (d *device) Softmax(p, logits, lse tensor.Tensor) error {
	c := d.check("softmax")
	vp, vx, vl := c.float("p", p), c.shaped("logits", logits, p.Rows, p.Cols), c.shaped("lse", lse, p.Rows, 1)
	if c.err != nil {
		return c.err
	}
	return failed("softmax", C.op_softmax(d.c, vp, vx, vl))
}

func (d *device) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, coefficients []float32) error {
	c := d.check("softmax gradient")
	vx, vl := c.float("logits", logits), c.shaped("lse", lse, logits.Rows, 1)
	if len(targets) != len(coefficients) {
		c.fail("%d targets and %d coefficients", len(targets), len(coefficients))
	}
	if logits.Rows == 0 || len(targets)%max(logits.Rows, 1) != 0 {
		if logits.Rows != 0 || len(targets) != 0 {
			c.fail("%d targets do not divide into %d rows", len(targets), logits.Rows)
		}
	}
	for i, t := range targets {
		if t < -1 || int(t) >= logits.Cols {
			c.fail("targets[%d] is %d: there are %d logits, and -1 is for none of them", i, t, logits.Cols)
			break
		}
	}
	if c.err != nil || logits.Rows == 0 {
		return c.err
	}
	if len(targets) == 0 {
		return d.Zero(logits)
	}
	return failed("softmax gradient", C.op_softmax_gradient(d.c, vx, vl, (*C.int32_t)(&targets[0]), (*C.float)(&coefficients[0]), C.int64_t(len(targets)/logits.Rows)))
}

func (d *device) SumSquares(x tensor.Tensor) (float64, error) {
	c := d.check("sum of squares")
	v := c.float("x", x)
	if c.err != nil {
		return 0, c.err
	}
	var sum C.double
	err := failed("sum of squares", C.op_sum_squares(d.c, v, &sum))
	return float64(sum), err
}

func (d *device) AdamW(newP, newM, newV, p, m, v, g tensor.Tensor, s tensor.AdamWStep) error {
	c := d.check("adamw")
	rows, cols := p.Rows, p.Cols
	vnp, vnm, vnv := c.shaped("newP", newP, rows, cols), c.shaped("newM", newM, rows, cols), c.shaped("newV", newV, rows, cols)
	vp, vm, vv, vg := c.float("p", p), c.shaped("m", m, rows, cols), c.shaped("v", v, rows, cols), c.shaped("g", g, rows, cols)
	if s.Step < 1 {
		c.fail("step %d: counts from 1", s.Step)
	}
	if !(s.Beta1 >= 0 && s.Beta1 < 1) || !(s.Beta2 >= 0 && s.Beta2 < 1) {
		c.fail("betas %v and %v: must be in [0, 1)", s.Beta1, s.Beta2)
	}
	if c.err != nil {
		return c.err
	}
	return failed("adamw", C.op_adamw(d.c, vnp, vnm, vnv, vp, vm, vv, vg, C.adamw_step{
		learning_rate: C.double(s.LearningRate), beta1: C.double(s.Beta1), beta2: C.double(s.Beta2), eps: C.double(s.Eps),
		weight_decay: C.double(s.WeightDecay), grad_scale: C.double(s.GradScale),
		correction1: C.double(1 - math.Pow(s.Beta1, float64(s.Step))), root_correction2: C.double(math.Sqrt(1 - math.Pow(s.Beta2, float64(s.Step)))),
	}))
}
