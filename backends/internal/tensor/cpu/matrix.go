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
	return failed("matmul", C.op_matmul(d.c, vy, vx, cm, C.bool(accumulate)))
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul transposed")
	w, cm := c.matrix(m)
	vx := c.shaped("dx", dx, dx.Rows, w.in)
	vy := c.rows("dy", dy, w.dtype, dx.Rows, w.out)
	if c.err != nil {
		return c.err
	}
	return failed("matmul transposed", C.op_matmul_transposed(d.c, vx, vy, cm, C.bool(accumulate)))
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
	c := d.check("outer product")
	vg := c.float("g", g)
	va := c.shaped("a", a, a.Rows, g.Rows)
	vb := c.shaped("b", b, a.Rows, g.Cols)
	if c.err != nil {
		return c.err
	}
	return failed("outer product", C.op_outer(d.c, vg, va, vb))
}
