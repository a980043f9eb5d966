package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Finishes implements tensor.Finisher.
func (d *remoteDevice) Finishes() bool { return d.remote.Finishes() }

// MatMulsAdd implements tensor.Finisher.
func (d *remoteDevice) MatMulsAdd(add tensor.Tensor, stages ...[]tensor.Multiplication) error {
	c := d.check("matmuls and add")
	d.staged(&c, stages)
	y := c.written("first", 0, stages)
	c.shaped("what is added", add, y.Rows, y.Cols)
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.remote.MatMulsAdd(add, d.stages...)
}

// MatMulsGated implements tensor.Finisher.
func (d *remoteDevice) MatMulsGated(hidden, keptGate, keptUp tensor.Tensor, stages ...[]tensor.Multiplication) error {
	c := d.check("matmuls and gate")
	d.staged(&c, stages)
	gate, up := c.written("first", 0, stages), c.written("second", 1, stages)
	c.shaped("up", up, gate.Rows, gate.Cols)
	c.rounded("hidden", hidden, gate.Rows, gate.Cols)
	if (keptGate.Buffer == nil) != (keptUp.Buffer == nil) {
		c.fail("of gate and up one is kept and one is not")
	}
	if keptGate.Buffer != nil {
		c.rounded("the kept gate", keptGate, gate.Rows, gate.Cols)
		c.rounded("the kept up", keptUp, gate.Rows, gate.Cols)
	}
	if c.err != nil || gate.Empty() {
		return c.err
	}
	return d.remote.MatMulsGated(hidden, keptGate, keptUp, d.stages...)
}

// written gives what a product of the first stage writes, which must be all of its rows by one matrix, not added to what is there.
func (c *check) written(name string, number int, stages [][]tensor.Multiplication) tensor.Tensor {
	if c.err != nil {
		return tensor.Tensor{}
	}
	if len(stages) == 0 || len(stages[0]) <= number {
		c.fail("there is no %s product", name)
		return tensor.Tensor{}
	}
	p := &stages[0][number]
	if len(p.Groups) != 1 || p.Groups[0].From != 0 || p.Groups[0].To != p.Y.Rows || p.Groups[0].Factor != 0 || p.Accumulate || p.Transposed {
		c.fail("the %s product is not that of all rows with one matrix", name)
	}
	return p.Y
}
