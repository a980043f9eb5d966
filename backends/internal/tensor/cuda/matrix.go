package cuda

import (
	"errors"
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
}

func (m *matrix) Out() int            { return m.out }
func (m *matrix) In() int             { return m.in }
func (m *matrix) DType() tensor.DType { return m.dtype }
func (m *matrix) Bytes() int          { return m.bytes }

// Rows implements tensor.Matrix.
func (m *matrix) Rows(from, to int) tensor.Matrix {
	row := m.pitch * m.dtype.Size()
	return &matrix{device: m.device, dtype: m.dtype, out: to - from, in: m.in, pitch: m.pitch, at: m.at + uintptr(from*row), bytes: (to - from) * row}
}

func (m *matrix) Free() { m.device.release(m.at) }

func (m *matrix) weight() cudart.Weight {
	return cudart.Weight{At: cudart.Address(m.at), Out: int64(m.out), In: int64(m.in), Pitch: int64(m.pitch)}
}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	if in > tensor.MaxElements-8 {
		return nil, fmt.Errorf("cuda: matrix %d × %d of %v: too large", out, in, t)
	}
	pitch := (in + 7) / 8 * 8
	n, ok := tensor.Product(out, pitch)
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
var sourceTypes = map[string]cudart.Type{"F32": cudart.Float32, "BF16": cudart.BFloat16, "F16": cudart.Float16}

// packBytes bounds what PackRows has on the device beside the matrix itself.
const packBytes = 64 << 20

func (d *device) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	w := m.(*matrix)
	width := w.in * tensor.SourceSizes[source]
	most := max(1, packBytes/width)
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		err := d.withList("pack rows", func(at []cudart.Address) error {
			return d.v.PackRows(w.weight(), typeOf(w.dtype), int64(row+from), int64(rows), at[0], sourceTypes[source])
		}, data[from*width:(from+rows)*width])
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *device) Repack(list ...tensor.MatrixSource) error {
	d.repacks = d.repacks[:0]
	for _, s := range list {
		w := s.Matrix.(*matrix)
		d.repacks = append(d.repacks, cudart.RepackJob{Weight: w.weight(), Source: view(s.Src), Type: typeOf(w.dtype)})
	}
	return d.failed("repack", d.v.Repack(d.repacks))
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	w := m.(*matrix)
	return d.withList("gather rows", func(at []cudart.Address) error { return d.v.GatherRows(view(dst), w.weight(), typeOf(w.dtype), at[0]) }, bytesOf(ids))
}

func (d *device) GatherElements(dst, src tensor.Tensor, at []tensor.Element) error {
	return d.withList("gather elements", func(list []cudart.Address) error { return d.v.GatherElements(view(dst), view(src), list[0]) }, bytesOf(at))
}

func (d *device) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	return d.product("matmul", y, x, m.(*matrix), accumulate, false)
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	return d.product("matmul transposed", dx, dy, m.(*matrix), accumulate, true)
}

func (d *device) product(op string, y, x tensor.Tensor, w *matrix, accumulate, transposed bool) error {
	return d.failed(op, d.v.Product(view(y), view(x), typeOf(x.DType), []cudart.RowGroup{{To: int64(y.Rows), Weight: w.weight()}}, typeOf(w.dtype), transposed, accumulate))
}

func (d *device) MatMuls(stages ...[]tensor.Multiplication) (err error) {
	defer func() { err = errors.Join(err, d.failed("matmuls", d.v.ShareRows(cudart.View{}, cudart.Float32))) }()
	for _, products := range stages {
		for i, p := range products {
			if i == 0 || view(p.X) != view(products[i-1].X) { // also what a stage before has written
				if err := d.v.ShareRows(view(p.X), typeOf(p.X.DType)); err != nil {
					return d.failed("matmuls", err)
				}
			}
			if err := d.grouped("matmuls", p.Y, p.X, p.Groups, p.Accumulate, p.Transposed); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *device) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul groups", y, x, groups, accumulate, false)
}

func (d *device) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul transposed groups", dx, dy, groups, accumulate, true)
}

func (d *device) grouped(op string, y, x tensor.Tensor, groups []tensor.RowGroup, accumulate, transposed bool) error {
	for t := range d.groups {
		d.groups[t] = d.groups[t][:0]
	}
	for _, g := range groups {
		w, t := g.Matrix.(*matrix), 0
		if w.dtype == tensor.BFloat16 {
			t = 1
		}
		d.groups[t] = append(d.groups[t], cudart.RowGroup{From: int64(g.From), To: int64(g.To), Weight: w.weight(), Factor: g.Factor, Round: typeOf(g.Round)})
	}
	for t, dtype := range []cudart.Type{cudart.Float32, cudart.BFloat16} {
		if err := d.v.Product(view(y), view(x), typeOf(x.DType), d.groups[t], dtype, transposed, accumulate); err != nil {
			return d.failed(op, err)
		}
	}
	return nil
}

func (d *device) OuterProduct(g, a, b tensor.Tensor) error {
	return d.failed("outer product", d.v.OuterProducts([]cudart.OuterProduct{{G: view(g), A: view(a), B: view(b)}}))
}

func (d *device) OuterProducts(products []tensor.OuterProduct) error {
	d.outer = d.outer[:0]
	for _, p := range products {
		d.outer = append(d.outer, cudart.OuterProduct{G: view(p.G), A: view(p.A), B: view(p.B)})
	}
	return d.failed("outer products", d.v.OuterProducts(d.outer))
}
