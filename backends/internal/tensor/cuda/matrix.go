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

// MatMuls does a product that is added to one of the stage before together with that one, because both may be one launch: an adapter's rides in the base weight's. Such pairs are the last of their stage, because the others
// may give what the second reads.
func (d *device) MatMuls(stages ...[]tensor.Multiplication) (err error) {
	defer func() { err = errors.Join(err, d.failed("matmuls", d.v.ShareRows(cudart.View{}, cudart.Float32))) }()
	var done, later [mostPairs]bool // what of a stage is done, and of the next
	for i, products := range stages {
		var next []tensor.Multiplication
		if i+1 < len(stages) {
			next = stages[i+1]
		}
		var pairs [mostPairs]int // 1 + the second's place
		done, later = later, [mostPairs]bool{}
		for k, p := range products[:min(len(products), mostPairs)] {
			if done[k] {
				continue
			}
			if at := second(p, next); at >= 0 {
				pairs[k], later[at] = 1+at, true
			}
		}
		var shared *cudart.View
		for _, paired := range []bool{false, true} {
			for k, p := range products {
				few := k < mostPairs
				if few && done[k] || paired != (few && pairs[k] > 0) {
					continue
				}
				if x := view(p.X); shared == nil || x != *shared { // also what a stage before has written
					if err := d.v.ShareRows(x, typeOf(p.X.DType)); err != nil {
						return d.failed("matmuls", err)
					}
					shared = &x
				}
				if paired {
					err = d.pair(p, next[pairs[k]-1])
				} else {
					err = d.grouped("matmuls", p.Y, p.X, p.Groups, p.Accumulate, p.Transposed)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// mostPairs bounds the products of a stage that MatMuls looks at: those that come are a layer's.
const mostPairs = 16

// second gives the place of the product that is added to what p writes, -1 if there is none.
func second(p tensor.Multiplication, next []tensor.Multiplication) int {
	for k, q := range next[:min(len(next), mostPairs)] {
		if q.Accumulate && q.Transposed == p.Transposed && view(q.Y) == view(p.Y) {
			return k
		}
	}
	return -1
}

// pair does p, and q after it.
func (d *device) pair(p, q tensor.Multiplication) error {
	for _, groups := range [][]tensor.RowGroup{p.Groups, q.Groups} {
		for _, g := range groups {
			if g.Matrix.DType() != tensor.BFloat16 {
				if err := d.grouped("matmuls", p.Y, p.X, p.Groups, p.Accumulate, p.Transposed); err != nil {
					return err
				}
				return d.grouped("matmuls", q.Y, q.X, q.Groups, true, q.Transposed)
			}
		}
	}
	d.groups[1], d.tails = d.groups[1][:0], d.tails[:0]
	for _, g := range p.Groups {
		d.groups[1] = append(d.groups[1], rowGroup(g))
	}
	for _, g := range q.Groups {
		d.tails = append(d.tails, rowGroup(g))
	}
	tail := cudart.Tail{X: view(q.X), XType: typeOf(q.X.DType), Groups: d.tails}
	return d.failed("matmuls", d.v.ProductWithTail(view(p.Y), view(p.X), typeOf(p.X.DType), d.groups[1], tail, cudart.BFloat16, p.Transposed, p.Accumulate))
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
		t := 0
		if g.Matrix.DType() == tensor.BFloat16 {
			t = 1
		}
		d.groups[t] = append(d.groups[t], rowGroup(g))
	}
	for t, dtype := range []cudart.Type{cudart.Float32, cudart.BFloat16} {
		if err := d.v.Product(view(y), view(x), typeOf(x.DType), d.groups[t], dtype, transposed, accumulate); err != nil {
			return d.failed(op, err)
		}
	}
	return nil
}

func rowGroup(g tensor.RowGroup) cudart.RowGroup {
	return cudart.RowGroup{From: int64(g.From), To: int64(g.To), Weight: g.Matrix.(*matrix).weight(), Factor: g.Factor, Round: typeOf(g.Round)}
}

func (d *device) OuterProduct(g, a, b tensor.Tensor) error {
	return d.failed("outer product", d.v.OuterProducts([]cudart.OuterProduct{{G: view(g), A: view(a), B: view(b)}}))
}

func (d *device) OuterProducts(products []tensor.OuterProduct) error {
	d.outer = d.outer[:0]
	for _, p := range products {
		d.outer = append(d.outer, cudart.OuterProduct{G: view(p.G), A: view(p.A), B: view(p.B), First: p.First, Apart: int64(p.Apart)})
	}
	return d.failed("outer products", d.v.OuterProducts(d.outer))
}
