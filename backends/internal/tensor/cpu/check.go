package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// checker gathers the first thing that is wrong with the arguments of one operation, and turns them into what C takes.
type checker struct {
	op  string
	err error
}

func (d *device) check(op string) *checker {
	c := &checker{op: op}
	if d.c == nil {
		c.err = errClosed
	}
	return c
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("cpu: "+c.op+": "+format, args...)
	}
}

// view checks that a tensor lies within its buffer.
func (c *checker) view(name string, t tensor.Tensor) C.view {
	v := C.view{rows: C.int64_t(t.Rows), cols: C.int64_t(t.Cols), stride: C.int64_t(t.Stride), _type: C.int32_t(t.DType)}
	if !validType(t.DType) || t.Rows < 0 || t.Cols < 0 || t.Offset < 0 || (t.Rows > 1 && t.Stride < t.Cols) {
		c.fail("%s: not a tensor: %d × %d, stride %d, offset %d, %v", name, t.Rows, t.Cols, t.Stride, t.Offset, t.DType)
		return v
	}
	if t.Rows == 0 || t.Cols == 0 {
		return v
	}
	if t.Buffer == nil || t.Buffer.Addr == 0 {
		c.fail("%s: no buffer, or a freed one", name)
		return v
	}
	room := t.Buffer.Bytes / t.DType.Size()
	if t.Cols > room || t.Offset > room-t.Cols || (t.Rows > 1 && t.Rows-1 > (room-t.Cols-t.Offset)/t.Stride) {
		c.fail("%s: %d × %d, stride %d, offset %d does not lie within its buffer of %d elements", name, t.Rows, t.Cols, t.Stride, t.Offset, room)
		return v
	}
	v.addr = C.uintptr_t(t.Address())
	return v
}

// float is view for a tensor that must be float32.
func (c *checker) float(name string, t tensor.Tensor) C.view {
	if t.DType != tensor.Float32 {
		c.fail("%s is %v: must be float32", name, t.DType)
	}
	return c.view(name, t)
}

// shaped is float for a tensor that must be rows × cols.
func (c *checker) shaped(name string, t tensor.Tensor, rows, cols int) C.view {
	if t.Rows != rows || t.Cols != cols {
		c.fail("%s is %d × %d: must be %d × %d", name, t.Rows, t.Cols, rows, cols)
	}
	return c.float(name, t)
}

// length checks a slice that holds rows × cols values.
func (c *checker) length(name string, n, rows, cols int) {
	if size, ok := product(rows, cols); !ok || n != size {
		c.fail("%s has %d elements: must have %d × %d", name, n, rows, cols)
	}
}

// matrix checks that a matrix is one of this package's and not freed.
func (c *checker) matrix(m tensor.Matrix) (*matrix, C.matrix) {
	w, ok := m.(*matrix)
	if !ok {
		c.fail("the matrix is a %T, not of this device", m)
		return &matrix{}, C.matrix{}
	}
	if w.addr == 0 {
		c.fail("the matrix has been freed")
	}
	return w, C.matrix{addr: C.uintptr_t(w.addr), out: C.int64_t(w.out), in: C.int64_t(w.in), _type: C.int32_t(w.dtype)}
}
