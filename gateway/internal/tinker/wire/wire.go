// Package wire has the bodies of the Tinker API as the official Python SDK (0.3 to 0.38) sends and reads them, in JSON and protobuf (package
// tinkerpb), and their translation from and to the plain types of package runs. It checks that bytes are what they say they are; whether a value makes
// sense is for package runs. It knows no HTTP, no state and no user.
package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// FieldError is a value that can be decoded but not be meant. Its text names the field first and says what is allowed.
type FieldError struct{ Field, Message string }

// Error gives the field and what is wrong with it.
func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

func int32s(b []byte) []int32 {
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func int64s(b []byte) []int64 {
	out := make([]int64, len(b)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return out
}

func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func bytesOfInt32s(v []int32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	return out
}

func bytesOfInt64s(v []int64) []byte {
	out := make([]byte, 0, 8*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint64(out, uint64(x))
	}
	return out
}

func bytesOfFloat32s(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

// maxElements bounds the decoded tensors of a request: a sparse one can name a shape far larger than its bytes. A body of dense ones has no more.
const maxElements = 16 << 20

// maxDimensions bounds a shape.
const maxDimensions = 8

// elements multiplies a shape, refusing negative dimensions and products above maxElements.
func elements(field string, shape []int64) (int64, error) {
	if len(shape) > maxDimensions {
		return 0, fieldErrorf(field, "the shape has %d dimensions, at most %d are allowed", len(shape), maxDimensions)
	}
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fieldErrorf(field, "shape %v has a negative dimension", shape)
		}
		if d > 0 && n > maxElements/d {
			return 0, fieldErrorf(field, "shape %v has more than %d elements", shape, maxElements)
		}
		n *= d
	}
	return n, nil
}

// sparseRows checks compressed sparse rows and calls visit for every stored cell in order with its index into the values and into the dense array.
func sparseRows(field string, rows, cols int64, crow, col []int64, values int, visit func(value int, cell int64)) error {
	if int64(len(crow)) != rows+1 || len(col) != values {
		return fieldErrorf(field, "%d row offsets and %d columns do not fit %d rows and %d values", len(crow), len(col), rows, values)
	}
	if crow[0] != 0 || crow[rows] != int64(values) {
		return fieldErrorf(field, "row offsets must run from 0 to %d", values)
	}
	for r := range rows {
		if crow[r] < 0 || crow[r] > crow[r+1] || crow[r+1] > int64(values) {
			return fieldErrorf(field, "row offsets must not fall or pass %d", values)
		}
		for i := crow[r]; i < crow[r+1]; i++ {
			if c := col[i]; c < 0 || c >= cols {
				return fieldErrorf(field, "column %d is not in 0…%d", c, cols-1)
			} else if i > crow[r] && c <= col[i-1] {
				return fieldErrorf(field, "columns of row %d must rise", r)
			}
			visit(int(i), r*cols+col[i])
		}
	}
	return nil
}
