package cuda

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
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
	return d.failed("round", d.v.Round(vd, typeOf(dst.DType), vs, typeOf(src.DType)))
}

func (d *device) Add(dst, src tensor.Tensor) error {
	c := d.check("add")
	vd, vs := c.float("dst", dst), c.shaped("src", src, dst.Rows, dst.Cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("add", d.v.Add(vd, vs))
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
	return d.failed("scale", d.v.Scale(v, factor, typeOf(as)))
}

func (d *device) AddRow(dst, row tensor.Tensor) error {
	c := d.check("add row")
	vd, vr := c.float("dst", dst), c.shaped("row", row, 1, dst.Cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("add row", d.v.AddRow(vd, vr))
}

func (d *device) Zero(dst tensor.Tensor) error {
	c := d.check("zero")
	v := c.view("dst", dst)
	if c.err != nil {
		return c.err
	}
	if v.Stride == v.Cols || v.Rows == 1 {
		return d.failed("zero", d.v.Zero(v.At, dst.Rows*dst.Cols*dst.DType.Size()))
	}
	return d.failed("zero", d.v.Clear(v, typeOf(dst.DType)))
}

func (d *device) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	c := d.check("rms norm")
	vy, vx, vw := c.float("y", y), c.shaped("x", x, y.Rows, y.Cols), c.shaped("weight", weight, 1, y.Cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("rms norm", d.v.RMSNorm(vy, vx, vw.At, eps))
}

func (d *device) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	c := d.check("rms norm backward")
	vdx, vdy := c.float("dx", dx), c.shaped("dy", dy, dx.Rows, dx.Cols)
	vx, vw := c.shaped("x", x, dx.Rows, dx.Cols), c.shaped("weight", weight, 1, dx.Cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("rms norm backward", d.v.RMSNormBackward(vdx, vdy, vx, vw.At, eps, accumulate))
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
	return d.withList("rope", func(at []cudart.Address) error { return d.v.Rope(vx, at[0], vt, int64(heads), inverse) }, bytesOf(positions))
}

func (d *device) SwiGLU(y, gate, up tensor.Tensor) error {
	c := d.check("swiglu")
	vy, vg, vu := c.float("y", y), c.shaped("gate", gate, y.Rows, y.Cols), c.shaped("up", up, y.Rows, y.Cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("swiglu", d.v.SwiGLU(vy, vg, vu))
}

func (d *device) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	c := d.check("swiglu backward")
	rows, cols := dy.Rows, dy.Cols
	vdg, vdu, vdy := c.shaped("dgate", dgate, rows, cols), c.shaped("dup", dup, rows, cols), c.float("dy", dy)
	vg, vu := c.shaped("gate", gate, rows, cols), c.shaped("up", up, rows, cols)
	if c.err != nil {
		return c.err
	}
	return d.failed("swiglu backward", d.v.SwiGLUBackward(vdg, vdu, vdy, vg, vu))
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
	return d.failed("log-sum-exp", d.v.LogSumExp(vl, vx))
}

func (d *device) Softmax(p, logits, lse tensor.Tensor) error {
	c := d.check("softmax")
	vp, vx, vl := c.float("p", p), c.shaped("logits", logits, p.Rows, p.Cols), c.shaped("lse", lse, p.Rows, 1)
	if c.err != nil {
		return c.err
	}
	return d.failed("softmax", d.v.Softmax(vp, vx, vl))
}

func (d *device) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, coefficients []float32) error {
	c := d.check("softmax gradient")
	vx, vl := c.float("logits", logits), c.shaped("lse", lse, logits.Rows, 1)
	if len(targets) != len(coefficients) {
		c.fail("%d targets and %d coefficients", len(targets), len(coefficients))
	}
	if len(targets)%max(logits.Rows, 1) != 0 || (logits.Rows == 0 && len(targets) != 0) {
		c.fail("%d targets do not divide into %d rows", len(targets), logits.Rows)
	}
	for i, t := range targets {
		if t < -1 || int(t) >= logits.Cols {
			c.fail("targets[%d] is %d: there are %d logits", i, t, logits.Cols)
			break
		}
	}
	if c.err != nil || logits.Rows == 0 {
		return c.err
	}
	if len(targets) == 0 {
		return d.Zero(logits)
	}
	return d.withList("softmax gradient", func(at []cudart.Address) error {
		return d.v.SoftmaxGradient(vx, vl, at[0], at[1], int64(len(targets)/logits.Rows))
	}, bytesOf(targets), bytesOf(coefficients))
}

func (d *device) SumSquares(x tensor.Tensor) (float64, error) {
	c := d.check("sum of squares")
	v := c.float("x", x)
	if c.err != nil {
		return 0, c.err
	}
	sum, err := d.v.SumSquares(v)
	return sum, d.failed("sum of squares", err)
}

func (d *device) AdamW(newP, newM, newV, p, m, v, g tensor.Tensor, s tensor.AdamWStep) error {
	c := d.check("adamw")
	rows, cols := p.Rows, p.Cols
	j := cudart.AdamWJob{
		NewP: c.shaped("newP", newP, rows, cols), NewM: c.shaped("newM", newM, rows, cols), NewV: c.shaped("newV", newV, rows, cols),
		P: c.shaped("p", p, rows, cols), M: c.shaped("m", m, rows, cols), V: c.shaped("v", v, rows, cols), G: c.shaped("g", g, rows, cols),
		Beta1: float32(s.Beta1), Rest1: float32(1 - s.Beta1), Beta2: float32(s.Beta2), Rest2: float32(1 - s.Beta2),
		Decay: float32(1 - float64(s.LearningRate*s.WeightDecay)), Eps: float32(s.Eps), GradScale: float32(s.GradScale),
	}
	if s.Step < 1 {
		c.fail("step %d: counts from 1", s.Step)
	}
	if !(s.Beta1 >= 0 && s.Beta1 < 1) || !(s.Beta2 >= 0 && s.Beta2 < 1) {
		c.fail("betas %v and %v: must be in [0, 1)", s.Beta1, s.Beta2)
	}
	if c.err != nil {
		return c.err
	}
	j.MinusRate = float32(-s.LearningRate / (1 - math.Pow(s.Beta1, float64(s.Step))))
	j.Root = float32(math.Sqrt(1 - math.Pow(s.Beta2, float64(s.Step))))
	return d.failed("adamw", d.v.AdamW([]cudart.AdamWJob{j}))
}
