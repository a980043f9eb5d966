// Package tensor has the types that device memory is seen through, and the operations that every device must have. It knows no model, no
// adapter and no file. Package optest checks a device against a float64 reference; packages cpu and cuda implement it.
package tensor

import (
	"fmt"
	"math"
)

// DType is the type of a tensor's or matrix's elements.
type DType uint8

// The element types. Sums are float32 on every path, whatever the type of what is summed.
const (
	Float32 DType = iota + 1
	BFloat16
)

// Size gives the bytes of one element.
func (d DType) Size() int {
	if d == BFloat16 {
		return 2
	}
	return 4
}

// String gives the name used in configuration files.
func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case BFloat16:
		return "bfloat16"
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Tensor is a view of Rows × Cols elements in device memory, row r beginning Stride elements after row r-1. It is a value: slicing makes
// another view of the same memory. The memory lives until the Buffer is freed by its owner.
type Tensor struct {
	Buffer             *Buffer
	Offset             int // elements from the buffer's start
	Rows, Cols, Stride int
	DType              DType
}

// Buffer is one allocation on a device. Its owner frees it with the device that made it; views do not own.
type Buffer struct {
	Addr  uintptr // device address; an integer in Go, also on the CPU, where the memory is C's
	Bytes int
}

// Address gives the device address of element (0, 0).
func (t Tensor) Address() uintptr { return t.Buffer.Addr + uintptr(t.Offset*t.DType.Size()) }

// Empty tells whether the tensor has no elements; it needs no buffer then.
func (t Tensor) Empty() bool { return t.Rows == 0 || t.Cols == 0 }

// Slice gives rows [from, to).
func (t Tensor) Slice(from, to int) Tensor {
	t.Offset += from * t.Stride
	t.Rows = to - from
	return t
}

// Columns gives columns [from, to).
func (t Tensor) Columns(from, to int) Tensor {
	t.Offset += from
	t.Cols = to - from
	return t
}

// Reshape sees contiguous memory as rows × cols. It is an error of the caller if the tensor is not contiguous or the sizes differ.
func (t Tensor) Reshape(rows, cols int) Tensor {
	if (t.Rows > 1 && t.Stride != t.Cols) || rows*cols != t.Rows*t.Cols {
		panic(fmt.Sprintf("tensor: reshape %d×%d (stride %d) to %d×%d", t.Rows, t.Cols, t.Stride, rows, cols))
	}
	t.Rows, t.Cols, t.Stride = rows, cols, cols
	return t
}

// MaxElements keeps sizes in bytes, and sums of two of them, within int64.
const MaxElements = math.MaxInt64 / 64

// Product multiplies sizes; false if one is negative or the product is over MaxElements.
func Product(sizes ...int) (int, bool) {
	n := 1
	for _, s := range sizes {
		if s < 0 || (s > 0 && n > MaxElements/s) {
			return 0, false
		}
		n *= s
	}
	return n, true
}
