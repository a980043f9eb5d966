package cuda

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// matrix is a weight row by row, every row filled up with zeros to a multiple of 8 elements, so that each begins at a multiple of 16 bytes.
type matrix struct {
	device *device
	dtype  tensor.DType
	out    int
	in     int
	pitch  int
	at     uintptr
	bytes  int
	view   bool // of another matrix's memory
}

func (m *matrix) Out() int            { return m.out }
func (m *matrix) In() int             { return m.in }
func (m *matrix) DType() tensor.DType { return m.dtype }
func (m *matrix) Bytes() int          { return m.bytes }

// Rows implements tensor.Matrix.
func (m *matrix) Rows(from, to int) tensor.Matrix {
	if m.at == 0 || from < 0 || from >= to || to > m.out || from%tensor.MatrixRows != 0 {
		return nil
	}
	row := m.pitch * m.dtype.Size()
	return &matrix{device: m.device, dtype: m.dtype, out: to - from, in: m.in, pitch: m.pitch, at: m.at + uintptr(from*row), bytes: (to - from) * row, view: true}
}

func (m *matrix) Free() {
	if m.at != 0 && !m.view {
		m.device.release(m.at)
		m.at = 0
	}
}

func (m *matrix) weight() cudart.Weight {
	return cudart.Weight{At: cudart.Address(m.at), Out: int64(m.out), In: int64(m.in), Pitch: int64(m.pitch)}
}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	if out < 0 || in < 0 || in > maxElements-8 || !validType(t) {
		return nil, fmt.Errorf("cuda: matrix %d × %d of %v: not a size that can be had", out, in, t)
	}
	pitch := (in + 7) / 8 * 8
	n, ok := product(out, pitch)
	if !ok {
		return nil, fmt.Errorf("cuda: matrix %d × %d of %v: too large", out, in, t)
	}
	m := &matrix{device: d, dtype: t, out: out, in: in, pitch: pitch, bytes: n * t.Size()}
	var err error
	if m.at, err = d.memory("matrix", m.bytes); err != nil {
		return nil, err
	}
	return m, nil
}

// sourceTypes are the element types of weight files.
var sourceTypes = map[string]struct {
	size int
	code cudart.Type
}{"F32": {4, cudart.Float32}, "BF16": {2, cudart.BFloat16}, "F16": {2, cudart.Float16}}

// packBytes bounds what PackRows has on the device beside the matrix itself.
const packBytes = 64 << 20

func (d *device) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	c := d.check("pack rows")
	w := c.matrix(m)
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
	width := w.in * s.size
	most := max(1, packBytes/width)
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		err := d.withList("pack rows", func(at []cudart.Address) error {
			return d.v.PackRows(w.weight(), typeOf(w.dtype), int64(row+from), int64(rows), at[0], s.code)
		}, data[from*width:(from+rows)*width])
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *device) Repack(m tensor.Matrix, src tensor.Tensor) error {
	c := d.check("repack")
	w := c.matrix(m)
	v := c.shaped("src", src, w.out, w.in)
	if c.err != nil {
		return c.err
	}
	return d.failed("repack", d.v.Repack(w.weight(), typeOf(w.dtype), v))
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	c := d.check("gather rows")
	w := c.matrix(m)
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
	return d.withList("gather rows", func(at []cudart.Address) error { return d.v.GatherRows(v, w.weight(), typeOf(w.dtype), at[0]) }, bytesOf(ids))
}

func (d *device) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul")
	w := c.matrix(m)
	vy := c.shaped("y", y, y.Rows, w.out)
	vx := c.rows("x", x, w.dtype, y.Rows, w.in)
	if c.err != nil {
		return c.err
	}
	return d.failed(c.op, d.v.Product(vy, vx, typeOf(x.DType), []cudart.RowGroup{{To: int64(y.Rows), Weight: w.weight()}}, typeOf(w.dtype), false, accumulate))
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul transposed")
	w := c.matrix(m)
	vx := c.shaped("dx", dx, dx.Rows, w.in)
	vy := c.rows("dy", dy, w.dtype, dx.Rows, w.out)
	if c.err != nil {
		return c.err
	}
	return d.failed(c.op, d.v.Product(vx, vy, typeOf(dy.DType), []cudart.RowGroup{{To: int64(dx.Rows), Weight: w.weight()}}, typeOf(w.dtype), true, accumulate))
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
	d.take(max(y.Rows, 0))
	for t := range d.groups {
		d.groups[t] = d.groups[t][:0]
	}
	for i, g := range groups {
		w := c.matrix(g.Matrix)
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
		t := 0
		if w.dtype == tensor.BFloat16 {
			t = 1
		}
		d.groups[t] = append(d.groups[t], cudart.RowGroup{From: int64(g.From), To: int64(g.To), Weight: w.weight(), Factor: g.Factor, Round: typeOf(g.Round)})
	}
	if c.err != nil {
		return c.err
	}
	for t, dtype := range []cudart.Type{cudart.Float32, cudart.BFloat16} {
		if err := d.v.Product(vy, vx, typeOf(x.DType), d.groups[t], dtype, transposed, accumulate); err != nil {
			return d.failed(op, err)
		}
	}
	return nil
}

// rows checks the rows that go into a product: float32, or the matrix's own type.
func (c *checker) rows(name string, t tensor.Tensor, weights tensor.DType, rows, cols int) cudart.View {
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
		j := cudart.OuterProduct{G: c.float("g", p.G), A: c.shaped("a", p.A, p.A.Rows, p.G.Rows), B: c.shaped("b", p.B, p.A.Rows, p.G.Cols)}
		for _, before := range d.outer {
			if before.G.At == j.G.At && j.G.At != 0 {
				c.fail("two products add to one g")
			}
		}
		d.outer = append(d.outer, j)
	}
	if c.err != nil {
		return c.err
	}
	return d.failed(op, d.v.OuterProducts(d.outer))
}
