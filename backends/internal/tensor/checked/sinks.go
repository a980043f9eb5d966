package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// sinks checks the arguments of Sink.
func (c *check) sinks(o, lse, sinks tensor.Tensor) {
	c.float("o", o)
	c.shaped("lse", lse, o.Rows, sinks.Cols)
	c.shaped("sinks", sinks, 1, sinks.Cols)
	if sinks.Cols < 1 || o.Cols%max(sinks.Cols, 1) != 0 {
		c.fail("%d columns do not divide into %d heads", o.Cols, sinks.Cols)
	}
}

func (d *device) Sink(o, lse, sinks tensor.Tensor) error {
	c := d.check("sink")
	c.sinks(o, lse, sinks)
	if c.err != nil || o.Empty() {
		return c.err
	}
	return d.kernels.Sink(o, lse, sinks)
}

// SinkKeep implements tensor.Fuser.
func (d *remoteDevice) SinkKeep(kept, o, lse, sinks tensor.Tensor) error {
	c := d.check("sink and keep")
	c.sinks(o, lse, sinks)
	c.rounded("what is kept", kept, o.Rows, o.Cols)
	if c.err != nil || o.Empty() {
		return c.err
	}
	return d.remote.SinkKeep(kept, o, lse, sinks)
}

// clamped checks the settings of a clamped gated product.
func (c *check) clamped(g tensor.Clamp) {
	const most = 1e6
	if !(g.Alpha > 0 && g.Alpha < most) || !(g.Limit > 0 && g.Limit < most) {
		c.fail("alpha %v and limit %v: must be above 0 and below %v", g.Alpha, g.Limit, float32(most))
	}
}

func (d *device) SwiGLUClamped(y, gate, up tensor.Tensor, g tensor.Clamp) error {
	c := d.check("clamped swiglu")
	d.forProducts(&c, "y", y)
	d.gated(&c, y, gate, up)
	c.clamped(g)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.SwiGLUClamped(y, gate, up, g)
}

// SwiGLUClampedKeep implements tensor.Fuser.
func (d *remoteDevice) SwiGLUClampedKeep(y, keptGate, keptUp, gate, up tensor.Tensor, g tensor.Clamp) error {
	c := d.check("clamped swiglu and keep")
	d.kept(&c, y, keptGate, keptUp, gate, up)
	c.clamped(g)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.remote.SwiGLUClampedKeep(y, keptGate, keptUp, gate, up, g)
}

func (d *device) SwiGLUClampedBackward(dgate, dup, dy, gate, up tensor.Tensor, g tensor.Clamp) error {
	c := d.check("clamped swiglu backward")
	c.float("dy", dy)
	c.shaped("dgate", dgate, dy.Rows, dy.Cols)
	c.shaped("dup", dup, dy.Rows, dy.Cols)
	d.gated(&c, dy, gate, up)
	c.clamped(g)
	if c.err != nil || dy.Empty() {
		return c.err
	}
	return d.kernels.SwiGLUClampedBackward(dgate, dup, dy, gate, up, g)
}

func (d *device) AddRouted(rows, bias tensor.Tensor, table tensor.Table) error {
	c := d.check("routed biases")
	c.table(table)
	c.shaped("rows", rows, table.Rows(), rows.Cols)
	c.shaped("bias", bias, table.Experts, rows.Cols)
	if c.err != nil || rows.Empty() {
		return c.err
	}
	return d.kernels.AddRouted(rows, bias, table)
}

func (d *device) AddRoutedBackward(dp, dy, bias, choice tensor.Tensor) error {
	c := d.check("routed biases backward")
	c.float("dp", dp)
	c.shaped("dy", dy, dp.Rows, bias.Cols)
	c.float("bias", bias)
	c.shaped("choice", choice, dp.Rows, dp.Cols)
	c.routes(dp.Cols, bias.Rows)
	if c.err != nil || dp.Empty() {
		return c.err
	}
	return d.kernels.AddRoutedBackward(dp, dy, bias, choice)
}
