package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// drawingDevice is device for kernels that draw tokens as well.
type drawingDevice struct {
	*device
	drawer tensor.Drawer
}

// AdjustElements implements tensor.Drawer.
func (d *drawingDevice) AdjustElements(x tensor.Tensor, list []tensor.Adjustment) error {
	c := d.check("adjust elements")
	c.float("x", x)
	for i, a := range list {
		if a.Row < 0 || int(a.Row) >= x.Rows || a.Column < 0 || int(a.Column) >= x.Cols {
			c.fail("list[%d] is row %d, column %d: must be a row and a column of %d × %d", i, a.Row, a.Column, x.Rows, x.Cols)
			break
		}
	}
	if c.err != nil || len(list) == 0 {
		return c.err
	}
	return d.drawer.AdjustElements(x, list)
}

// MaskColumns implements tensor.Drawer.
func (d *drawingDevice) MaskColumns(x tensor.Tensor, rows []int32, bits []uint64) error {
	c := d.check("mask columns")
	c.float("x", x)
	for i, r := range rows {
		if r < 0 || int(r) >= x.Rows || i > 0 && r <= rows[i-1] {
			c.fail("rows[%d] is %d: must be a row of %d, and above the one before", i, r, x.Rows)
			break
		}
	}
	if want := len(rows) * tensor.MaskWords(x.Cols); len(bits) != want {
		c.fail("%d words of masks for %d rows of %d columns: must be %d", len(bits), len(rows), x.Cols, want)
	}
	if c.err != nil || len(rows) == 0 || x.Cols == 0 {
		return c.err
	}
	return d.drawer.MaskColumns(x, rows, bits)
}

// DrawTokens implements tensor.Drawer.
func (d *drawingDevice) DrawTokens(dst, logits, probs tensor.Tensor, draws []tensor.Draw) error {
	c := d.check("draw tokens")
	c.float("logits", logits)
	c.shaped("probs", probs, logits.Rows, logits.Cols)
	c.shaped("dst", dst, logits.Rows, 2)
	if logits.Rows > 0 && (logits.Cols < 1 || logits.Cols > tensor.MaxColumns) {
		c.fail("logits have %d columns: must have 1 to %d", logits.Cols, tensor.MaxColumns)
	}
	if len(draws) != logits.Rows {
		c.fail("%d draws for %d rows", len(draws), logits.Rows)
	}
	for i, one := range draws {
		if !(one.U >= 0 && one.U < 1) || !(one.TopP >= 0) || !(one.MinP >= 0) || one.TopK < 0 {
			c.fail("draws[%d] is %+v: U must be in [0, 1) and nothing negative", i, one)
			break
		}
	}
	if c.err != nil || logits.Rows == 0 {
		return c.err
	}
	return d.drawer.DrawTokens(dst, logits, probs, draws)
}
