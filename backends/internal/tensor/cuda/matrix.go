package cuda

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// matrix is a weight row by row, every row filled up with zeros to a multiple of 8 elements, so that each begins at a multiple of 16 bytes; or, after Options.Products of ProductsBulk or ProductsClusters, in blocks where it can be.
type matrix struct {
	device *device
	dtype  tensor.DType
	out    int
	in     int
	pitch  int
	blocks bool // in blocks (cudart.BFloat16Blocks), where rows are as long and begin where they do otherwise
	at     uintptr
	bytes  int

	written *written // by whom; views have it in common

	columns    int            // in eight bits: for how many it has a scale; else 0
	unfinished map[int]*group // of one in eight bits: those of which some rows have been packed, by their numbers
}

// written says who has written a matrix: the base's are packed from files, once for all, and an adapter's anew after each of its steps.
type written struct{ packed, again bool }

// frozen says that nothing in the stream writes the matrix any more.
func (m *matrix) frozen() bool { return m.written.packed && !m.written.again }

func (m *matrix) Out() int            { return m.out }
func (m *matrix) In() int             { return m.in }
func (m *matrix) DType() tensor.DType { return m.dtype }
func (m *matrix) Bytes() int          { return m.bytes }

// Rows implements tensor.Matrix.
func (m *matrix) Rows(from, to int) tensor.Matrix {
	return &matrix{device: m.device, dtype: m.dtype, out: to - from, in: m.in, pitch: m.pitch, blocks: m.blocks, written: m.written, at: m.at + uintptr(m.size(from)), bytes: m.size(to - from), columns: m.columns}
}

// size is what so many rows from the first one take.
func (m *matrix) size(rows int) int {
	if m.columns > 0 {
		return tensor.GroupedE4M3Bytes(rows, m.in, m.columns)
	}
	return rows * m.pitch * m.dtype.Size()
}

func (m *matrix) Free() { m.device.release(m.at) }

func (m *matrix) weight() cudart.Weight {
	if m.columns > 0 {
		return cudart.Weight{At: cudart.Address(m.at), Out: int64(m.out), In: int64(m.in), Pitch: int64(m.columns)}
	}
	return cudart.Weight{At: cudart.Address(m.at), Out: int64(m.out), In: int64(m.in), Pitch: int64(m.pitch)}
}

// kind is the type of the matrix as kernels take it.
func (m *matrix) kind() cudart.Type {
	if m.columns > 0 {
		return cudart.E4M3
	}
	if m.blocks {
		return cudart.BFloat16Blocks
	}
	return typeOf(m.dtype)
}

// kinds are all types of matrices.
var kinds = []cudart.Type{cudart.Float32, cudart.BFloat16, cudart.E4M3, cudart.BFloat16Blocks}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	if in > tensor.MaxElements-8 {
		return nil, fmt.Errorf("cuda: matrix %d × %d of %v: too large", out, in, t)
	}
	pitch := (in + 7) / 8 * 8
	n, ok := tensor.Product(out, pitch)
	if !ok {
		return nil, fmt.Errorf("cuda: matrix %d × %d of %v: too large", out, in, t)
	}
	m := &matrix{device: d, dtype: t, out: out, in: in, pitch: pitch, bytes: n * t.Size(), written: &written{}}
	m.blocks = t == tensor.BFloat16 && d.v.Bulk() && cudart.InBlocks(int64(out), int64(in))
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
	w.written.packed = true
	width := w.in * tensor.SourceSizes[source]
	most := max(1, packBytes/width)
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		err := d.withList("pack rows", func(at []cudart.Address) error {
			return d.v.PackRows(w.weight(), w.kind(), int64(row+from), int64(rows), at[0], sourceTypes[source])
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
		w.written.again = true
		d.repacks = append(d.repacks, cudart.RepackJob{Weight: w.weight(), Source: view(s.Src), Type: w.kind()})
	}
	return d.failed("repack", d.v.Repack(d.repacks))
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	w := m.(*matrix)
	return d.withList("gather rows", func(at []cudart.Address) error { return d.v.GatherRows(view(dst), w.weight(), w.kind(), at[0]) }, bytesOf(ids))
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
	return d.failed(op, d.v.Product(view(y), view(x), typeOf(x.DType), []cudart.RowGroup{{To: int64(y.Rows), Weight: w.weight()}}, w.kind(), transposed, accumulate))
}

// MatMuls gives the products of a stage to the device together, because those of few rows are one launch. A product that is added to one of the stage before is done together with that one, if the device does both in
// one launch: an adapter's rides in the base weight's. Such pairs are the last of their stage, because the others may give what the second reads.
func (d *device) MatMuls(stages ...[]tensor.Multiplication) (err error) {
	defer func() { err = errors.Join(err, d.failed("matmuls", d.v.ShareRows(cudart.View{}, cudart.Float32))) }()
	var done, later [mostPairs]bool // what of a stage is done, and of the next
	for i, products := range stages {
		var next []tensor.Multiplication
		if i+1 < len(stages) {
			next = stages[i+1]
		}
		done, later = later, [mostPairs]bool{}
		d.single, d.paired, d.rowGroups = d.single[:0], d.paired[:0], d.rowGroups[:0]
		for k, p := range products {
			few := k < mostPairs
			if few && done[k] {
				continue
			}
			if at := second(p, next); few && at >= 0 && !later[at] {
				if pair, ok := d.pair(p, next[at]); ok && d.v.Rides(pair) {
					d.paired, later[at] = append(d.paired, pair), true
					continue
				}
			}
			d.single = d.multiplications(d.single, p)
		}
		if i > 0 { // a stage before may have written what it shared
			if err := d.v.ShareRows(cudart.View{}, cudart.Float32); err != nil {
				return d.failed("matmuls", err)
			}
		}
		for _, list := range [][]cudart.Multiplication{d.single, d.paired} {
			if err := d.v.Products(list); err != nil {
				return d.failed("matmuls", err)
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

// multiplications appends p to list as the device takes it: for matrices of each type one product.
func (d *device) multiplications(list []cudart.Multiplication, p tensor.Multiplication) []cudart.Multiplication {
	for _, t := range kinds {
		if groups := d.ofType(p.Groups, t); len(groups) > 0 {
			list = append(list, multiplication(p, groups, t))
		}
	}
	return list
}

// pair is p and q after it as one product; false if not all matrices are bfloat16: those of p all row by row or all in blocks, those of q row by row.
func (d *device) pair(p, q tensor.Multiplication) (m cudart.Multiplication, ok bool) {
	if len(p.Groups) == 0 {
		return m, false
	}
	of := p.Groups[0].Matrix.(*matrix).kind()
	groups, tails := d.ofType(p.Groups, of), d.ofType(q.Groups, cudart.BFloat16)
	if of != cudart.BFloat16 && of != cudart.BFloat16Blocks || len(groups) != len(p.Groups) || len(tails) != len(q.Groups) {
		return m, false
	}
	m = multiplication(p, groups, of)
	m.Tail = cudart.Tail{X: view(q.X), XType: typeOf(q.X.DType), Groups: tails}
	return m, true
}

func multiplication(p tensor.Multiplication, groups []cudart.RowGroup, t cudart.Type) cudart.Multiplication {
	m := cudart.Multiplication{Y: view(p.Y), X: view(p.X), XType: typeOf(p.X.DType), Groups: groups, Type: t, Transposed: p.Transposed, Accumulate: p.Accumulate, Frozen: true}
	for _, g := range p.Groups {
		m.Frozen = m.Frozen && g.Matrix.(*matrix).frozen()
	}
	return m
}

// ofType gives the groups whose matrices have a type. They are the device's until the next call of MatMuls.
func (d *device) ofType(groups []tensor.RowGroup, t cudart.Type) []cudart.RowGroup {
	from := len(d.rowGroups)
	for _, g := range groups {
		if g.Matrix.(*matrix).kind() == t {
			d.rowGroups = append(d.rowGroups, rowGroup(g))
		}
	}
	return d.rowGroups[from:len(d.rowGroups):len(d.rowGroups)]
}

func (d *device) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul groups", y, x, groups, accumulate, false)
}

func (d *device) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.grouped("matmul transposed groups", dx, dy, groups, accumulate, true)
}

func (d *device) grouped(op string, y, x tensor.Tensor, groups []tensor.RowGroup, accumulate, transposed bool) error {
	d.rowGroups = d.rowGroups[:0]
	d.single = d.multiplications(d.single[:0], tensor.Multiplication{Y: y, X: x, Groups: groups, Accumulate: accumulate, Transposed: transposed})
	for _, m := range d.single {
		if err := d.v.Product(m.Y, m.X, m.XType, m.Groups, m.Type, transposed, accumulate); err != nil {
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
	d.outer, d.outerGroups = d.outer[:0], d.outerGroups[:0]
	for _, p := range products {
		if p.Positions != nil && d.v.OuterGroupsLoaded() {
			d.outerGroups = append(d.outerGroups, cudart.OuterGroupJob{OuterProduct: cudart.OuterProduct{G: view(p.G), A: view(p.A), B: view(p.B), First: p.First, Apart: int64(p.Apart)}, Positions: p.Positions})
			continue
		}
		d.outer = append(d.outer, cudart.OuterProduct{G: view(p.G), A: view(p.A), B: view(p.B), First: p.First, Apart: int64(p.Apart)})
	}
	err := d.v.OuterProducts(d.outer)
	if err == nil && len(d.outerGroups) > 0 {
		err = d.v.OuterGroups(d.outerGroups)
	}
	return d.failed("outer products", err)
}
