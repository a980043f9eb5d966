package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

const panel = C.PANEL

// matrix is a weight in panels of 32 of its rows with the inner axis inside (kernels.h has the layout). The last panel is filled up with zeros, and so is an odd inner
// axis of bfloat16.
type matrix struct {
	device  *device
	dtype   tensor.DType
	out, in int
	addr    uintptr
	bytes   int
	view    bool // of another matrix's memory
}

func (m *matrix) Out() int            { return m.out }
func (m *matrix) In() int             { return m.in }
func (m *matrix) DType() tensor.DType { return m.dtype }
func (m *matrix) Bytes() int          { return m.bytes }

// Rows implements tensor.Matrix: MatrixRows is a multiple of a panel.
func (m *matrix) Rows(from, to int) tensor.Matrix {
	if m.addr == 0 || from < 0 || from >= to || to > m.out || from%tensor.MatrixRows != 0 {
		return nil
	}
	depth := m.in
	if m.dtype == tensor.BFloat16 {
		depth += m.in % 2
	}
	skipped := from * depth * m.dtype.Size()
	return &matrix{device: m.device, dtype: m.dtype, out: to - from, in: m.in, addr: m.addr + uintptr(skipped), bytes: (to - from) * depth * m.dtype.Size(), view: true}
}

func (m *matrix) Free() {
	if m.addr != 0 && !m.view {
		m.device.release(m.addr, m.bytes)
		m.addr = 0
	}
}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	if _, ok := product(out, in); !ok || !validType(t) || out > maxElements-panel || in > maxElements-1 {
		return nil, fmt.Errorf("cpu: matrix %d × %d of %v: not a size that can be had", out, in, t)
	}
	depth := in
	if t == tensor.BFloat16 {
		depth += in % 2
	}
	n, ok := product((out+panel-1)/panel*panel, depth)
	if !ok {
		return nil, fmt.Errorf("cpu: matrix %d × %d of %v: too large", out, in, t)
	}
	m := &matrix{device: d, dtype: t, out: out, in: in, bytes: n * t.Size()}
	var err error
	m.addr, err = d.memory("matrix", m.bytes)
	return m, err
}

// sourceTypes are the element types of weight files and their names in C.
var sourceTypes = map[string]struct {
	size int
	code C.int
}{"F32": {4, 1}, "BF16": {2, 2}, "F16": {2, 3}}

func (d *device) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	c := d.check("pack rows")
	w, cm := c.matrix(m)
	s, ok := sourceTypes[source]
	if !ok {
		c.fail("source type %q: must be F32, BF16 or F16", source)
	}
	if row < 0 || n < 0 || row > w.out || n > w.out-row {
		c.fail("rows %d to %d of a matrix of %d", row, row+n, w.out)
	}
	if c.err == nil {
		if size, ok := product(n, w.in, s.size); !ok || len(data) != size {
			c.fail("%d bytes of data: %d rows of %d %s need %d", len(data), n, w.in, source, size)
		}
	}
	if c.err != nil || len(data) == 0 {
		return c.err
	}
	return failed("pack rows", C.op_pack(d.c, cm, C.int64_t(row), C.int64_t(n), s.code, unsafe.Pointer(&data[0])))
}

func (d *device) Repack(m tensor.Matrix, src tensor.Tensor) error {
	c := d.check("repack")
	w, cm := c.matrix(m)
	v := c.shaped("src", src, w.out, w.in)
	if c.err != nil {
		return c.err
	}
	return failed("repack", C.op_repack(d.c, cm, v))
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	c := d.check("gather rows")
	w, cm := c.matrix(m)
	v := c.shaped("dst", dst, len(ids), w.in)
	for i, id := range ids {
		if id < 0 || int(id) >= w.out {
			c.fail("ids[%d] is %d: the matrix has %d rows", i, id, w.out)
			break
		}
	}
	if c.err != nil || len(ids) == 0 {
		return c.err
	}
	return failed("gather rows", C.op_gather(d.c, v, cm, (*C.int32_t)(&ids[0])))
}

func (d *device) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul")
	w, cm := c.matrix(m)
	vy := c.shaped("y", y, y.Rows, w.out)
	vx := c.rows("x", x, w.dtype, y.Rows, w.in)
	if c.err != nil {
		return c.err
	}
	return d.products(c.op, vy, vx, append(d.groups[:0], C.row_group{to: vy.rows, w: cm}), accumulate, false)
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul transposed")
	w, cm := c.matrix(m)
	vx := c.shaped("dx", dx, dx.Rows, w.in)
	vy := c.rows("dy", dy, w.dtype, dx.Rows, w.out)
	if c.err != nil {
		return c.err
	}
	return d.products(c.op, vx, vy, append(d.groups[:0], C.row_group{to: vx.rows, w: cm}), accumulate, true)
}

func (d *device) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul groups", [2]string{"y", "x"}, y, x, groups, accumulate, false)
}

func (d *device) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul transposed groups", [2]string{"dx", "dy"}, dx, dy, groups, accumulate, true)
}

func (d *device) grouped(op string, names [2]string, y, x tensor.Tensor, groups []tensor.RowGroup, accumulate, transposed bool) error {
	c := d.check(op)
	vy, vx := c.float(names[0], y), c.view(names[1], x)
	if x.Rows != y.Rows {
		c.fail("%s has %d rows, %s %d", names[1], x.Rows, names[0], y.Rows)
	}
	d.groups = d.groups[:0]
	d.take(max(y.Rows, 0))
	for i, g := range groups {
		w, cm := c.matrix(g.Matrix)
		out, in := w.out, w.in
		if transposed {
			out, in = in, out
		}
		switch {
		case g.From < 0 || g.From > g.To || g.To > y.Rows:
			c.fail("groups[%d]: rows %d to %d of %d", i, g.From, g.To, y.Rows)
		case out > y.Cols || in > x.Cols:
			c.fail("groups[%d]: the matrix is %d × %d: %s has %d columns, %s %d", i, w.out, w.in, names[0], y.Cols, names[1], x.Cols)
		case x.DType != tensor.Float32 && x.DType != w.dtype:
			c.fail("groups[%d]: %s is %v: must be float32 or the matrix's %v", i, names[1], x.DType, w.dtype)
		case g.Factor != 0 && !validType(g.Round):
			c.fail("groups[%d]: rounds to %v: must be float32 or bfloat16", i, g.Round)
		}
		if c.err != nil {
			return c.err
		}
		for row := g.From; row < g.To; row++ {
			if d.taken[row] {
				c.fail("groups[%d]: row %d is another group's as well", i, row)
				return c.err
			}
			d.taken[row] = true
		}
		d.groups = append(d.groups, C.row_group{from: C.int64_t(g.From), to: C.int64_t(g.To), w: cm, factor: C.float(g.Factor), round: C.int32_t(g.Round)})
	}
	if c.err != nil {
		return c.err
	}
	return d.products(op, vy, vx, d.groups, accumulate, transposed)
}

// products runs groups, which are d's own memory.
func (d *device) products(op string, y, x C.view, groups []C.row_group, accumulate, transposed bool) error {
	d.groups = groups
	if len(groups) == 0 {
		return nil
	}
	return failed(op, C.op_products(d.c, y, x, &groups[0], C.int64_t(len(groups)), C.bool(accumulate), C.bool(transposed)))
}

// take makes d.taken that many rows, none of them taken.
func (d *device) take(rows int) {
	if cap(d.taken) < rows {
		d.taken = make([]bool, rows)
	}
	d.taken = d.taken[:rows]
	clear(d.taken)
}

// rows checks the rows that go into a product: float32, or the matrix's own type.
func (c *checker) rows(name string, t tensor.Tensor, weights tensor.DType, rows, cols int) C.view {
	if t.Rows != rows || t.Cols != cols {
		c.fail("%s is %d × %d: must be %d × %d", name, t.Rows, t.Cols, rows, cols)
	}
	if t.DType != tensor.Float32 && t.DType != weights {
		c.fail("%s is %v: must be float32 or the matrix's %v", name, t.DType, weights)
	}
	return c.view(name, t)
}

func (d *device) OuterProduct(g, a, b tensor.Tensor) error {
	return d.outers("outer product", []tensor.OuterProduct{{G: g, A: a, B: b}})
}

func (d *device) OuterProducts(products []tensor.OuterProduct) error {
	return d.outers("outer products", products)
}

func (d *device) outers(op string, products []tensor.OuterProduct) error {
	c := d.check(op)
	d.outer = d.outer[:0]
	for _, p := range products {
		vg := c.float("g", p.G)
		va := c.shaped("a", p.A, p.A.Rows, p.G.Rows)
		vb := c.shaped("b", p.B, p.A.Rows, p.G.Cols)
		for i := range d.outer {
			if d.outer[i].g.addr == vg.addr && vg.addr != 0 {
				c.fail("two products add to one g")
			}
		}
		d.outer = append(d.outer, C.outer_product{g: vg, a: va, b: vb})
	}
	if c.err != nil || len(d.outer) == 0 {
		return c.err
	}
	return failed(op, C.op_outers(d.c, &d.outer[0], C.int64_t(len(d.outer))))
}
