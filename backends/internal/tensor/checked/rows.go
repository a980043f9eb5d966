package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

func (d *device) Round(dst, src tensor.Tensor) error {
	c := d.check("round")
	c.view("dst", dst)
	c.size("src", src, dst.Rows, dst.Cols)
	c.view("src", src)
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.Round(dst, src)
}

func (d *device) Add(dst, src tensor.Tensor) error {
	c := d.check("add")
	c.float("dst", dst)
	c.shaped("src", src, dst.Rows, dst.Cols)
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.Add(dst, src)
}

func (d *device) Scale(dst tensor.Tensor, factor float32, as tensor.DType) error {
	c := d.check("scale")
	c.float("dst", dst)
	if !validType(as) {
		c.fail("rounding to %v: must be float32 or bfloat16", as)
	}
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.Scale(dst, factor, as)
}

func (d *device) AddRow(dst, row tensor.Tensor) error {
	c := d.check("add row")
	c.float("dst", dst)
	c.shaped("row", row, 1, dst.Cols)
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.AddRow(dst, row)
}

func (d *device) Zero(dst tensor.Tensor) error {
	c := d.check("zero")
	c.view("dst", dst)
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.Zero(dst)
}

func (d *device) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	c := d.check("rms norm")
	d.forProducts(&c, "y", y)
	c.shaped("x", x, y.Rows, y.Cols)
	c.shaped("weight", weight, 1, y.Cols)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.RMSNorm(y, x, weight, eps)
}

func (d *device) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	c := d.check("rms norm backward")
	c.float("dx", dx)
	c.shaped("dy", dy, dx.Rows, dx.Cols)
	c.shaped("x", x, dx.Rows, dx.Cols)
	c.shaped("weight", weight, 1, dx.Cols)
	if c.err != nil || dx.Empty() {
		return c.err
	}
	return d.kernels.RMSNormBackward(dx, dy, x, weight, eps, accumulate)
}

func (d *device) Rope(x tensor.Tensor, positions []int32, table tensor.Tensor, heads int, inverse bool) error {
	c := d.check("rope")
	c.float("x", x)
	c.float("table", table)
	if heads < 1 || x.Cols%max(heads, 1) != 0 {
		c.fail("%d columns do not divide into %d heads", x.Cols, heads)
	} else if table.Cols%2 != 0 || table.Cols > x.Cols/heads {
		c.fail("table has %d columns: must be even and at most the head's dimension %d", table.Cols, x.Cols/heads)
	}
	if len(positions) != x.Rows {
		c.fail("%d positions for %d rows", len(positions), x.Rows)
	}
	c.indices("positions", positions, 0, table.Rows, "must not be negative, and less than the table's rows,")
	if c.err != nil || x.Empty() {
		return c.err
	}
	return d.kernels.Rope(x, positions, table, heads, inverse)
}

func (d *device) SwiGLU(y, gate, up tensor.Tensor) error {
	c := d.check("swiglu")
	d.forProducts(&c, "y", y)
	d.gated(&c, y, gate, up)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.SwiGLU(y, gate, up)
}

func (d *device) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	c := d.check("swiglu backward")
	c.float("dy", dy)
	c.shaped("dgate", dgate, dy.Rows, dy.Cols)
	c.shaped("dup", dup, dy.Rows, dy.Cols)
	d.gated(&c, dy, gate, up)
	if c.err != nil || dy.Empty() {
		return c.err
	}
	return d.kernels.SwiGLUBackward(dgate, dup, dy, gate, up)
}

func (d *device) LogSumExp(lse, logits tensor.Tensor) error {
	c := d.check("log-sum-exp")
	c.float("logits", logits)
	c.shaped("lse", lse, logits.Rows, 1)
	if logits.Rows > 0 && logits.Cols == 0 {
		c.fail("logits have no columns")
	}
	if c.err != nil || logits.Rows == 0 {
		return c.err
	}
	return d.kernels.LogSumExp(lse, logits)
}

func (d *device) LogSumExps(lse, logits tensor.Tensor, s tensor.Segments) error {
	c := d.check("log-sum-exps")
	c.float("logits", logits)
	c.segments(d, s, logits.Cols)
	c.shaped("lse", lse, logits.Rows, s.Count)
	if c.err != nil || lse.Empty() {
		return c.err
	}
	return d.kernels.LogSumExps(lse, logits, s)
}

// segments checks those of an axis of n elements.
func (c *check) segments(d *device, s tensor.Segments, n int) {
	switch {
	case !d.kernels.Segmented():
		c.fail("the device has no segments")
		return
	case s.Count < 1 || s.Count > tensor.MaxSegments || s.Count&(s.Count-1) != 0:
		c.fail("%d segments: must be 1, 2, 4 or 8", s.Count)
		return
	}
	from := int32(0)
	for i, end := range s.Ends[:s.Count] {
		if end < from || int(end) > n || end%2 != 0 && int(end) != n {
			c.fail("segment %d from %d to %d of %d: must ascend to even ends", i, from, end, n)
		}
		from = end
	}
	if int(from) != n {
		c.fail("the last segment ends at %d of %d", from, n)
	}
}

func (d *device) Softmax(p, logits, lse tensor.Tensor) error {
	c := d.check("softmax")
	c.float("p", p)
	c.shaped("logits", logits, p.Rows, p.Cols)
	c.shaped("lse", lse, p.Rows, 1)
	if c.err != nil || p.Empty() {
		return c.err
	}
	return d.kernels.Softmax(p, logits, lse)
}

func (d *device) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, coefficients []float32) error {
	c := d.softmaxGradient(logits, lse, targets)
	if len(targets) != len(coefficients) {
		c.fail("%d targets and %d coefficients", len(targets), len(coefficients))
	}
	if c.err != nil || logits.Empty() {
		return c.err
	}
	if len(targets) == 0 {
		return d.kernels.Zero(logits)
	}
	return d.kernels.SoftmaxGradient(logits, lse, targets, coefficients)
}

// softmaxGradient checks what both forms of the operation take.
func (d *device) softmaxGradient(logits, lse tensor.Tensor, targets []int32) check {
	c := d.check("softmax gradient")
	c.float("logits", logits)
	c.shaped("lse", lse, logits.Rows, 1)
	if len(targets)%max(logits.Rows, 1) != 0 || (logits.Rows == 0 && len(targets) != 0) {
		c.fail("%d targets do not divide into %d rows", len(targets), logits.Rows)
	}
	c.indices("targets", targets, -1, logits.Cols, "must be -1 (none of these columns) or a column; columns:")
	return c
}

func (d *device) SumSquares(xs ...tensor.Tensor) (func() ([]float64, error), error) {
	c := d.check("sum of squares")
	for _, x := range xs {
		c.float("x", x)
	}
	if c.err != nil {
		return nil, c.err
	}
	if len(xs) == 0 {
		return func() ([]float64, error) { return nil, nil }, nil
	}
	return d.kernels.SumSquares(xs...)
}

func (d *device) AdamW(updates ...tensor.AdamWUpdate) (func() ([]tensor.AdamWSums, error), error) {
	c := d.check("adamw")
	d.updates = d.updates[:0]
	for i := range updates {
		u := &updates[i]
		c.float("p", u.P)
		for _, t := range [...]struct {
			name string
			t    tensor.Tensor
		}{{"newP", u.NewP}, {"newM", u.NewM}, {"newV", u.NewV}, {"m", u.M}, {"v", u.V}, {"g", u.G}} {
			c.shaped(t.name, t.t, u.P.Rows, u.P.Cols)
		}
		if u.Step < 1 {
			c.fail("step %d: counts from 1", u.Step)
		}
		if !(u.Beta1 >= 0 && u.Beta1 < 1) || !(u.Beta2 >= 0 && u.Beta2 < 1) {
			c.fail("betas %v and %v: must be in [0, 1)", u.Beta1, u.Beta2)
		}
		if n := u.P.Rows * tensor.SumPieces(u.P.Cols); u.Pieces != nil && len(u.Pieces) != n {
			c.fail("room for the sums of %d pieces: must be for %d", len(u.Pieces), n)
		}
		if !(u.MaxNorm >= 0) {
			c.fail("largest norm %v: must not be negative", u.MaxNorm)
		}
		if !u.P.Empty() {
			d.updates = append(d.updates, *u)
		}
	}
	switch {
	case c.err != nil:
		return nil, c.err
	case len(d.updates) == 0:
		return func() ([]tensor.AdamWSums, error) { return make([]tensor.AdamWSums, len(updates)), nil }, nil
	case len(d.updates) == len(updates):
		return d.kernels.AdamW(d.updates...)
	}
	wait, err := d.kernels.AdamW(d.updates...)
	if err != nil {
		return nil, err
	}
	sums, given := make([]tensor.AdamWSums, len(updates)), make([]int, 0, len(updates))
	for i := range updates {
		if !updates[i].P.Empty() {
			given = append(given, i)
		}
	}
	return func() ([]tensor.AdamWSums, error) {
		some, err := wait()
		for k, s := range some {
			sums[given[k]] = s
		}
		return sums, err
	}, nil
}
