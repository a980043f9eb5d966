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
	dtype   tensor.DType
	out, in int
	columns int // that have one scale, of a matrix in eight bits; else 0
	addr    uintptr
	bytes   int
}

func (m *matrix) Out() int            { return m.out }
func (m *matrix) In() int             { return m.in }
func (m *matrix) DType() tensor.DType { return m.dtype }
func (m *matrix) Bytes() int          { return m.bytes }
func (m *matrix) Free()               { release(m.addr, m.bytes) }

// depth is the inner axis as it is stored.
func depth(t tensor.DType, in int) int {
	if t == tensor.BFloat16 {
		return in + in%2
	}
	return in
}

// Rows implements tensor.Matrix: MatrixRows is a multiple of a panel.
func (m *matrix) Rows(from, to int) tensor.Matrix {
	return &matrix{dtype: m.dtype, out: to - from, in: m.in, columns: m.columns, addr: m.addr + uintptr(from*m.rowBytes()), bytes: (to - from) * m.rowBytes()}
}

// rowBytes is what a row takes of its panel.
func (m *matrix) rowBytes() int {
	if m.columns > 0 {
		return tensor.E4M3Bytes(panel, m.in, m.columns) / panel
	}
	return depth(m.dtype, m.in) * m.dtype.Size()
}

// of is a matrix of this package as C takes it.
func of(m tensor.Matrix) C.matrix {
	w := m.(*matrix)
	c := C.matrix{addr: C.uintptr_t(w.addr), out: C.int64_t(w.out), in: C.int64_t(w.in), _type: C.int32_t(w.dtype)}
	if w.columns > 0 {
		c._type, c.columns = C.E4M3, C.int32_t(w.columns)
	}
	return c
}

func (d *device) NewMatrix(t tensor.DType, out, in int) (tensor.Matrix, error) {
	if out > tensor.MaxElements-panel || in > tensor.MaxElements-1 {
		return nil, fmt.Errorf("cpu: matrix %d × %d of %v: too large", out, in, t)
	}
	n, ok := tensor.Product((out+panel-1)/panel*panel, depth(t, in))
	if !ok {
		return nil, fmt.Errorf("cpu: matrix %d × %d of %v: too large", out, in, t)
	}
	addr, err := memory("matrix", n*t.Size(), true)
	if err != nil {
		return nil, err
	}
	return &matrix{dtype: t, out: out, in: in, addr: addr, bytes: n * t.Size()}, nil
}

// sourceTypes are the element types of weight files in C.
var sourceTypes = map[string]C.int{"F32": 1, "BF16": 2, "F16": 3}

func (d *device) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	return failed("pack rows", C.op_pack(d.c, of(m), C.int64_t(row), C.int64_t(n), sourceTypes[source], unsafe.Pointer(&data[0])))
}

func (d *device) Repack(sources ...tensor.MatrixSource) error {
	list := d.sources[:0]
	for _, s := range sources {
		list = append(list, C.matrix_source{to: of(s.Matrix), from: view(s.Src)})
	}
	d.sources = list
	return failed("repack", C.op_repack(d.c, &list[0], C.int64_t(len(list))))
}

func (d *device) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	return failed("gather rows", C.op_gather(d.c, view(dst), of(m), (*C.int32_t)(&ids[0])))
}

// The Go structure is the C one.
const (
	_ = uint(unsafe.Sizeof(tensor.Element{}) - C.sizeof_element)
	_ = uint(C.sizeof_element - unsafe.Sizeof(tensor.Element{}))
)

func (d *device) GatherElements(dst, src tensor.Tensor, at []tensor.Element) error {
	return failed("gather elements", C.op_gather_elements(d.c, view(dst), view(src), (*C.element)(unsafe.Pointer(&at[0]))))
}

func (d *device) MatMul(y, x tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	return d.run("matmul", append(d.products[:0], product(y, x, m, accumulate, false)))
}

func (d *device) MatMulTransposed(dx, dy tensor.Tensor, m tensor.Matrix, accumulate bool) error {
	return d.run("matmul transposed", append(d.products[:0], product(dx, dy, m, accumulate, true)))
}

func (d *device) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.run("matmul groups", d.grouped(y, x, groups, accumulate, false))
}

func (d *device) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	return d.run("matmul transposed groups", d.grouped(dx, dy, groups, accumulate, true))
}

func (d *device) MatMuls(stages ...[]tensor.Multiplication) error {
	d.products, d.ends = d.products[:0], d.ends[:0]
	for _, products := range stages {
		for len(products) > 0 {
			n := 1 // that read the same rows
			for n < len(products) && sameRows(products[n].X, products[0].X) {
				n++
			}
			for i, more := 0, true; more; i++ { // the products' groups in turn, because those that have their rows in common are packed once when they are neighbours
				more = false
				for _, m := range products[:n] {
					if i < len(m.Groups) {
						p := groupProduct(m.Y, m.X, m.Groups[i], m.Accumulate, m.Transposed)
						p.cut, p.continues = cut(m.Segments), C.bool(m.Continues)
						d.products = append(d.products, p)
						more = more || i+1 < len(m.Groups)
					}
				}
			}
			products = products[n:]
		}
		d.ends = append(d.ends, C.int64_t(len(d.products)))
	}
	return failed("matmuls", C.op_stages(d.c, &d.products[0], &d.ends[0], C.int64_t(len(d.ends))))
}

// sameRows tells whether a and b are the same view.
func sameRows(a, b tensor.Tensor) bool {
	return a.Buffer == b.Buffer && a.Offset == b.Offset && a.Stride == b.Stride
}

// cut is segments as C takes them.
func cut(s tensor.Segments) C.segments {
	c := C.segments{count: C.int64_t(s.Count)}
	for i, end := range s.Ends {
		c.ends[i] = C.int32_t(end)
	}
	return c
}

func (d *device) grouped(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate, transposed bool) []C.product {
	list := d.products[:0]
	for _, g := range groups {
		list = append(list, groupProduct(y, x, g, accumulate, transposed))
	}
	return list
}

func product(y, x tensor.Tensor, m tensor.Matrix, accumulate, transposed bool) C.product {
	return C.product{y: view(y), x: view(x), w: of(m), accumulate: C.bool(accumulate), transposed: C.bool(transposed)}
}

func groupProduct(y, x tensor.Tensor, g tensor.RowGroup, accumulate, transposed bool) C.product {
	p := product(y.Slice(g.From, g.To), x.Slice(g.From, g.To), g.Matrix, accumulate, transposed)
	p.factor, p.round = C.float(g.Factor), C.int32_t(g.Round)
	return p
}

// run runs products, which are d's own memory.
func (d *device) run(op string, products []C.product) error {
	d.products = products
	return failed(op, C.op_products(d.c, &products[0], C.int64_t(len(products))))
}

func (d *device) OuterProduct(g, a, b tensor.Tensor) error {
	return d.outers("outer product", append(d.outer[:0], C.outer_product{g: view(g), a: view(a), b: view(b)}))
}

func (d *device) OuterProducts(products []tensor.OuterProduct) error {
	list := d.outer[:0]
	for _, p := range products {
		list = append(list, C.outer_product{g: view(p.G), a: view(p.A), b: view(p.B), first: C.bool(p.First), apart: C.int64_t(p.Apart)})
	}
	return d.outers("outer products", list)
}

// outers runs products, which are d's own memory.
func (d *device) outers(op string, products []C.outer_product) error {
	d.outer = products
	return failed(op, C.op_outers(d.c, &products[0], C.int64_t(len(products))))
}
