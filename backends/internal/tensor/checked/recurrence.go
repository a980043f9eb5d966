package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

func (d *device) HasRecurrence() bool { return d.kernels.HasRecurrence() }

// states checks runs against the rows of the batch and the slots, and gives those that have rows. Without slots none may have one.
func (d *device) states(c *check, rows, slots int, runs []tensor.StateRun) []tensor.StateRun {
	d.stateRuns = d.stateRuns[:0]
	if c.err != nil {
		return nil
	}
	d.take(rows)
	if cap(d.slots) < slots {
		d.slots = make([]bool, slots)
	}
	d.slots = d.slots[:slots]
	clear(d.slots)
	for i, r := range runs {
		if r.Row < 0 || r.Count < 0 || r.Row > rows || r.Count > rows-r.Row {
			c.fail("runs[%d]: rows %d + %d: there are %d rows", i, r.Row, r.Count, rows)
			return nil
		}
		if r.Slot < tensor.NoSlot || r.Slot >= slots {
			c.fail("runs[%d]: slot %d of %d", i, r.Slot, slots)
			return nil
		}
		for k := r.Row; k < r.Row+r.Count; k++ {
			if d.taken[k] {
				c.fail("runs[%d]: row %d is another run's as well", i, k)
				return nil
			}
			d.taken[k] = true
		}
		if r.Slot >= 0 {
			if d.slots[r.Slot] {
				c.fail("runs[%d]: slot %d is another run's as well", i, r.Slot)
				return nil
			}
			d.slots[r.Slot] = true
		}
		if r.Count > 0 {
			d.stateRuns = append(d.stateRuns, r)
		}
	}
	return d.stateRuns
}

// filter checks the weight of a convolution over so many channels, and gives its width.
func (c *check) filter(weight tensor.Tensor, channels int) int {
	c.shaped("weight", weight, weight.Rows, channels)
	if weight.Rows < 1 || weight.Rows > tensor.MaxConvWidth {
		c.fail("weight has %d rows: must have 1 to %d", weight.Rows, tensor.MaxConvWidth)
	}
	return weight.Rows
}

func (d *device) Conv(y, x, weight, tails tensor.Tensor, runs []tensor.StateRun) error {
	c := d.check("conv")
	c.float("y", y)
	c.shaped("x", x, y.Rows, y.Cols)
	width := c.filter(weight, y.Cols)
	if tails.Buffer != nil || tails.Rows != 0 {
		c.shaped("tails", tails, tails.Rows, (width-1)*y.Cols)
	}
	some := d.states(&c, y.Rows, tails.Rows, runs)
	if c.err != nil || y.Empty() || len(some) == 0 {
		return c.err
	}
	return d.kernels.Conv(y, x, weight, tails, some)
}

func (d *device) ConvBackward(dx, dy, x, weight tensor.Tensor, runs []tensor.StateRun) error {
	c := d.check("conv backward")
	c.float("dx", dx)
	c.shaped("dy", dy, dx.Rows, dx.Cols)
	c.shaped("x", x, dx.Rows, dx.Cols)
	c.filter(weight, dx.Cols)
	some := d.states(&c, dx.Rows, 0, runs)
	if c.err != nil || dx.Empty() || len(some) == 0 {
		return c.err
	}
	return d.kernels.ConvBackward(dx, dy, x, weight, some)
}

// delta checks what the delta rule reads, of so many rows.
func (c *check) delta(in *tensor.DeltaInputs, rows int) {
	if in.KeyHeads < 1 || in.ValueHeads < 1 || in.ValueHeads%max(in.KeyHeads, 1) != 0 {
		c.fail("%d value heads of %d key heads: must be a multiple", in.ValueHeads, in.KeyHeads)
	}
	if in.KeyDim < 1 || in.KeyDim > tensor.MaxDeltaDim || in.ValueDim < 1 || in.ValueDim > tensor.MaxDeltaDim {
		c.fail("heads of dimensions %d and %d: must be 1 to %d", in.KeyDim, in.ValueDim, tensor.MaxDeltaDim)
	}
	if _, ok := tensor.Product(in.ValueHeads, tensor.MaxDeltaDim, tensor.MaxDeltaDim); !ok {
		c.fail("%d value heads: too many", in.ValueHeads)
	}
	if c.err != nil {
		return
	}
	c.shaped("mixed", in.Mixed, rows, in.MixedSize())
	c.shaped("a", in.A, rows, in.ValueHeads)
	c.shaped("b", in.B, rows, in.ValueHeads)
	c.shaped("decay", in.ALog, 1, in.ValueHeads)
	c.shaped("bias", in.Bias, 1, in.ValueHeads)
}

func (d *device) DeltaRule(o tensor.Tensor, in tensor.DeltaInputs, states tensor.Tensor, runs []tensor.StateRun) error {
	c := d.check("delta rule")
	c.delta(&in, o.Rows)
	c.shaped("o", o, o.Rows, in.ValueHeads*in.ValueDim)
	if states.Buffer != nil || states.Rows != 0 {
		c.shaped("states", states, states.Rows, in.StateSize())
	}
	some := d.states(&c, o.Rows, states.Rows, runs)
	if c.err != nil || len(some) == 0 {
		return c.err
	}
	return d.kernels.DeltaRule(o, in, states, some)
}

func (d *device) DeltaRuleBackward(dmixed, da, db, do tensor.Tensor, in tensor.DeltaInputs, runs []tensor.StateRun) error {
	c := d.check("delta rule backward")
	c.delta(&in, do.Rows)
	c.shaped("do", do, do.Rows, in.ValueHeads*in.ValueDim)
	c.shaped("dmixed", dmixed, do.Rows, in.MixedSize())
	c.shaped("da", da, do.Rows, in.ValueHeads)
	c.shaped("db", db, do.Rows, in.ValueHeads)
	some := d.states(&c, do.Rows, 0, runs)
	if c.err != nil || len(some) == 0 {
		return c.err
	}
	return d.kernels.DeltaRuleBackward(dmixed, da, db, do, in, some)
}

func (d *device) GatedNorm(y, x, z, weight tensor.Tensor, eps float32) error {
	c := d.check("gated norm")
	c.float("y", y)
	c.shaped("x", x, y.Rows, y.Cols)
	c.shaped("z", z, y.Rows, y.Cols)
	c.shaped("weight", weight, 1, y.Cols)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.GatedNorm(y, x, z, weight, eps)
}

func (d *device) GatedNormBackward(dx, dz, dy, x, z, weight tensor.Tensor, eps float32) error {
	c := d.check("gated norm backward")
	c.float("dx", dx)
	c.shaped("dz", dz, dx.Rows, dx.Cols)
	c.shaped("dy", dy, dx.Rows, dx.Cols)
	c.shaped("x", x, dx.Rows, dx.Cols)
	c.shaped("z", z, dx.Rows, dx.Cols)
	c.shaped("weight", weight, 1, dx.Cols)
	if c.err != nil || dx.Empty() {
		return c.err
	}
	return d.kernels.GatedNormBackward(dx, dz, dy, x, z, weight, eps)
}

func (d *device) SigmoidGate(y, x, gate tensor.Tensor) error {
	c := d.check("sigmoid gate")
	c.float("y", y)
	c.shaped("x", x, y.Rows, y.Cols)
	c.shaped("gate", gate, y.Rows, y.Cols)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.SigmoidGate(y, x, gate)
}

func (d *device) SigmoidGateBackward(dx, dgate, dy, x, gate tensor.Tensor) error {
	c := d.check("sigmoid gate backward")
	c.float("dx", dx)
	c.shaped("dgate", dgate, dx.Rows, dx.Cols)
	c.shaped("dy", dy, dx.Rows, dx.Cols)
	c.shaped("x", x, dx.Rows, dx.Cols)
	c.shaped("gate", gate, dx.Rows, dx.Cols)
	if c.err != nil || dx.Empty() {
		return c.err
	}
	return d.kernels.SigmoidGateBackward(dx, dgate, dy, x, gate)
}
