package checked

import (
	"reflect"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// matrix is one of kernels' and the device that it belongs to.
type matrix struct {
	device *device
	tensor.Matrix
	view, freed bool
}

func (m *matrix) Rows(from, to int) tensor.Matrix {
	if m.freed || from < 0 || from >= to || to > m.Out() || from%tensor.MatrixRows != 0 {
		return nil
	}
	return &matrix{device: m.device, Matrix: m.Matrix.Rows(from, to), view: true}
}

func (m *matrix) Free() {
	if m.freed || m.view {
		return
	}
	m.freed = true
	m.device.live--
	m.Matrix.Free()
}

// matrix gives kernels' own matrix; nil if it is not one that this device can use. Devices of one kind may use each other's.
func (c *check) matrix(d *device, m tensor.Matrix) tensor.Matrix {
	own, ok := m.(*matrix)
	switch {
	case !ok || !d.like(own.device):
		c.fail("the matrix is not one of a device like this")
	case own.freed:
		c.fail("the matrix has been freed")
	}
	if c.err != nil {
		return nil
	}
	return own.Matrix
}

// like tells whether two devices have the same kind of kernels.
func (d *device) like(other *device) bool {
	return d == other || reflect.TypeOf(d.kernels) == reflect.TypeOf(other.kernels)
}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	c := d.check("new matrix")
	if _, ok := tensor.Product(out, in); !ok || !validType(t) {
		c.fail("%d × %d of %v: not a size that can be had", out, in, t)
	}
	if c.err != nil {
		return nil, c.err
	}
	m, err := d.kernels.NewMatrix(t, out, in)
	if err != nil {
		return nil, err
	}
	d.live++
	return &matrix{device: d, Matrix: m}, nil
}

func (d *device) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	c := d.check("pack rows")
	w := c.matrix(d, m)
	width, ok := tensor.SourceSizes[source]
	if !ok {
		c.fail("source type %q: must be F32, BF16 or F16", source)
	}
	if c.err != nil {
		return c.err
	}
	c.plain(w)
	if row < 0 || n < 0 || row > w.Out() || n > w.Out()-row {
		c.fail("rows %d to %d of a matrix of %d", row, row+n, w.Out())
	} else if size, ok := tensor.Product(n, w.In(), width); !ok || len(data) != size {
		c.fail("%d bytes of data: %d rows of %d %s need %d", len(data), n, w.In(), source, size)
	}
	if c.err != nil || len(data) == 0 {
		return c.err
	}
	return d.kernels.PackRows(w, row, n, source, data)
}

func (d *device) Repack(list ...tensor.MatrixSource) error {
	c := d.check("repack")
	d.sources = d.sources[:0]
	for _, s := range list {
		w := c.matrix(d, s.Matrix)
		if w != nil {
			c.plain(w)
			c.shaped("src", s.Src, w.Out(), w.In())
		}
		if !s.Src.Empty() {
			d.sources = append(d.sources, tensor.MatrixSource{Matrix: w, Src: s.Src})
		}
	}
	if c.err != nil || len(d.sources) == 0 {
		return c.err
	}
	return d.kernels.Repack(d.sources...)
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	c := d.check("gather rows")
	w := c.matrix(d, m)
	if w != nil {
		c.shaped("dst", dst, len(ids), w.In())
		c.indices("ids", ids, -1, w.Out(), "must be at least -1, and less than the matrix's rows,")
	}
	if c.err != nil || dst.Empty() {
		return c.err
	}
	return d.kernels.GatherRows(dst, w, ids)
}

// rows checks the rows that go into a product: float32, or the matrix's own type.
func (c *check) rows(name string, t tensor.Tensor, weights tensor.DType, rows, cols int) {
	c.size(name, t, rows, cols)
	if t.DType != tensor.Float32 && t.DType != weights {
		c.fail("%s is %v: must be float32 or the matrix's %v", name, t.DType, weights)
	}
	c.view(name, t)
}

func (d *device) GatherElements(dst, src tensor.Tensor, at []tensor.Element) error {
	c := d.check("gather elements")
	c.float("src", src)
	c.shaped("dst", dst, 1, len(at))
	for i, e := range at {
		if e.Row < 0 || int(e.Row) >= src.Rows || e.Column < -1 || int(e.Column) >= src.Cols {
			c.fail("at[%d] is row %d, column %d: must be a row, and -1 or a column, of %d × %d", i, e.Row, e.Column, src.Rows, src.Cols)
			break
		}
	}
	if c.err != nil || len(at) == 0 {
		return c.err
	}
	return d.kernels.GatherElements(dst, src, at)
}

func (d *device) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul")
	w := c.matrix(d, m)
	if w != nil {
		c.shaped("y", y, y.Rows, w.Out())
		c.rows("x", x, w.DType(), y.Rows, w.In())
	}
	if c.err != nil || y.Empty() {
		return c.err
	}
	return d.kernels.MatMul(y, x, w, accumulate)
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	c := d.check("matmul transposed")
	w := c.matrix(d, m)
	if w != nil {
		c.shaped("dx", dx, dx.Rows, w.In())
		c.rows("dy", dy, w.DType(), dx.Rows, w.Out())
	}
	if c.err != nil || dx.Empty() {
		return c.err
	}
	return d.kernels.MatMulTransposed(dx, dy, w, accumulate)
}

func (d *device) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	c := d.check("matmul groups")
	own := d.grouped(&c, "y", "x", y, x, groups, false)
	if c.err != nil || len(own) == 0 {
		return c.err
	}
	return d.kernels.MatMulGroups(y, x, own, accumulate)
}

func (d *device) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	c := d.check("matmul transposed groups")
	own := d.grouped(&c, "dx", "dy", dx, dy, groups, true)
	if c.err != nil || len(own) == 0 {
		return c.err
	}
	return d.kernels.MatMulTransposedGroups(dx, dy, own, accumulate)
}

func (d *device) MatMuls(stages ...[]tensor.Multiplication) error {
	c := d.check("matmuls")
	if d.staged(&c, stages); c.err != nil || len(d.stages) == 0 {
		return c.err
	}
	return d.kernels.MatMuls(d.stages...)
}

// staged checks the products of stages, of which d.stages has those with rows afterwards.
func (d *device) staged(c *check, stages [][]tensor.Multiplication) {
	d.products, d.ends, d.groups, d.stages = d.products[:0], d.ends[:0], d.groups[:0], d.stages[:0]
	for _, products := range stages {
		for i, p := range products {
			from := len(d.groups)
			d.appendGroups(c, "y", "x", p.Y, p.X, p.Groups, p.Transposed)
			c.cut(d, products[:i], p, d.groups[from:])
			if c.err != nil {
				return
			}
			d.products, d.ends = append(d.products, p), append(d.ends, len(d.groups))
		}
	}
	at, from := 0, 0 // of products and of groups
	for _, products := range stages {
		with := d.products[at:at] // those that have groups with rows
		for range products {
			p := d.products[at]
			if p.Groups = d.groups[from:d.ends[at]]; len(p.Groups) > 0 {
				with = append(with, p)
			}
			from = d.ends[at]
			at++
		}
		if len(with) > 0 {
			d.stages = append(d.stages, with)
		}
	}
}

// cut checks what a product says of its inner axis. groups are those that have rows; before is the stage before the product.
func (c *check) cut(d *device, before []tensor.Multiplication, p tensor.Multiplication, groups []tensor.RowGroup) {
	if c.err != nil || p.Segments.Count == 0 && !p.Continues {
		return
	}
	for _, g := range groups {
		inner := g.Matrix.In()
		if p.Transposed {
			inner = g.Matrix.Out()
		}
		c.segments(d, p.Segments, inner)
	}
	if p.Accumulate && p.Segments.Count > 1 {
		c.fail("segments are not added to what the output holds")
	}
	if !p.Continues || c.err != nil {
		return
	}
	for i := len(before) - 1; i >= 0; i-- {
		first := before[i]
		if first.Continues || first.Y.Buffer != p.Y.Buffer || first.Y.Offset != p.Y.Offset {
			continue
		}
		whole := func(p tensor.Multiplication) bool {
			return p.Transposed && len(p.Groups) == 1 && p.Groups[0].From == 0 && p.Groups[0].To == p.Y.Rows && p.Groups[0].Factor == 0
		}
		if a, b := first, p; !whole(a) || !whole(b) || a.Y != b.Y || a.Segments.Count != b.Segments.Count || len(groups) > 0 && c.matrix(d, a.Groups[0].Matrix).DType() != groups[0].Matrix.DType() ||
			a.Groups[0].Matrix.In() != b.Groups[0].Matrix.In() {
			c.fail("a product continues another one that is not like it")
		}
		return
	}
	c.fail("a product continues none")
}

// grouped gives the groups that have rows, with kernels' matrices. y is what is written, x what is read.
func (d *device) grouped(c *check, nameY, nameX string, y, x tensor.Tensor, groups []tensor.RowGroup, transposed bool) []tensor.RowGroup {
	d.groups = d.groups[:0]
	d.appendGroups(c, nameY, nameX, y, x, groups, transposed)
	return d.groups
}

// appendGroups appends what grouped gives to d.groups; after a failure its content has no meaning.
func (d *device) appendGroups(c *check, nameY, nameX string, y, x tensor.Tensor, groups []tensor.RowGroup, transposed bool) {
	c.float(nameY, y)
	c.view(nameX, x)
	if x.Rows != y.Rows {
		c.fail("%s has %d rows, %s %d", nameX, x.Rows, nameY, y.Rows)
	}
	d.take(y.Rows)
	for i, g := range groups {
		w := c.matrix(d, g.Matrix)
		if w == nil {
			return
		}
		out, in := w.Out(), w.In()
		if transposed {
			out, in = in, out
		}
		switch {
		case g.From < 0 || g.From > g.To || g.To > y.Rows:
			c.fail("groups[%d]: rows %d to %d of %d", i, g.From, g.To, y.Rows)
		case out > y.Cols || in > x.Cols:
			c.fail("groups[%d]: the matrix is %d × %d: %s has %d columns, %s %d", i, w.Out(), w.In(), nameY, y.Cols, nameX, x.Cols)
		case x.DType != tensor.Float32 && x.DType != w.DType():
			c.fail("groups[%d]: %s is %v: must be float32 or the matrix's %v", i, nameX, x.DType, w.DType())
		case g.Factor != 0 && !validType(g.Round):
			c.fail("groups[%d]: rounds to %v: must be float32 or bfloat16", i, g.Round)
		}
		if c.err != nil {
			return
		}
		for row := g.From; row < g.To; row++ {
			if d.taken[row] {
				c.fail("groups[%d]: row %d is another group's as well", i, row)
				return
			}
			d.taken[row] = true
		}
		if g.From < g.To && out > 0 {
			g.Matrix = w
			d.groups = append(d.groups, g)
		}
	}
}

func (d *device) OuterProduct(g, a, b tensor.Tensor) error {
	c := d.check("outer product")
	c.outer(tensor.OuterProduct{G: g, A: a, B: b})
	if c.err != nil || g.Empty() {
		return c.err
	}
	return d.kernels.OuterProduct(g, a, b)
}

func (d *device) OuterProducts(products []tensor.OuterProduct) error {
	c := d.check("outer products")
	for i, p := range products {
		c.outer(p)
		for _, before := range products[:i] {
			if !p.G.Empty() && p.G.Buffer == before.G.Buffer && p.G.Offset == before.G.Offset {
				c.fail("two products add to one g")
			}
		}
	}
	if c.err != nil || len(products) == 0 {
		return c.err
	}
	return d.kernels.OuterProducts(products)
}

func (c *check) outer(p tensor.OuterProduct) {
	c.float("g", p.G)
	c.shaped("a", p.A, p.A.Rows, p.G.Rows)
	c.shaped("b", p.B, p.A.Rows, p.G.Cols)
	if p.Apart < 0 || p.Apart > p.A.Rows {
		c.fail("%d of %d rows are apart", p.Apart, p.A.Rows)
	}
	if p.First && p.A.Rows == p.Apart {
		c.fail("a first product needs rows")
	}
	if p.Positions != nil && len(p.Positions) != p.A.Rows {
		c.fail("%d positions for %d rows", len(p.Positions), p.A.Rows)
	}
}

func (d *device) StartCopies(copies []tensor.MatrixCopy) (func() error, error) {
	c := d.check("copy matrices")
	own := make([]tensor.MatrixCopy, 0, len(copies))
	for i, j := range copies {
		dst := c.matrix(d, j.Dst)
		src := c.matrix(d, j.Src)
		if dst != nil && j.Dst.(*matrix).device != d {
			c.fail("copies[%d]: the destination is of %s", i, j.Dst.(*matrix).device.name)
		}
		if c.err != nil {
			return nil, c.err
		}
		switch {
		case tensor.ScaleColumns(dst) != tensor.ScaleColumns(src):
			c.fail("copies[%d]: one matrix is in eight bits with a scale for each %d columns, the other with %d", i, tensor.ScaleColumns(src), tensor.ScaleColumns(dst))
		case dst.DType() != src.DType() || dst.In() != src.In():
			c.fail("copies[%d]: %d × %d of %v to %d × %d of %v", i, src.Out(), src.In(), src.DType(), dst.Out(), dst.In(), dst.DType())
		case j.Row < 0 || j.Row%tensor.MatrixRows != 0 || src.Out() > dst.Out()-j.Row || src.Out()%tensor.MatrixRows != 0 && j.Row+src.Out() != dst.Out():
			c.fail("copies[%d]: %d rows to row %d of %d: must be multiples of %d, but for the end", i, src.Out(), j.Row, dst.Out(), tensor.MatrixRows)
		}
		own = append(own, tensor.MatrixCopy{Dst: dst, Row: j.Row, Src: src})
	}
	if c.err != nil {
		return nil, c.err
	}
	if len(own) == 0 {
		return func() error { return nil }, nil
	}
	return d.kernels.StartCopies(own)
}
