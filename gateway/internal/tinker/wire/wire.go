// Package wire has the bodies of the Tinker API as the official Python SDK (0.24 to 0.38) sends and reads them, in JSON and protobuf (package
// tinkerpb), and their translation from and to the plain types of the contract. It knows no HTTP, no state and no user.
package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/plugins"
)

// FieldError is a value that can be decoded but not be meant. It names the field and says what is allowed.
func fieldError(field, format string, args ...any) error { return plugins.Invalidf(field, format, args...) }

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

// elements multiplies a shape, refusing negative sizes and products above limit.
func elements(field string, shape []int64, limit int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fieldError(field, "shape %v has a negative dimension", shape)
		}
		if d > 0 && n > limit/d {
			return 0, fieldError(field, "shape %v has more than %d elements", shape, limit)
		}
		n *= d
	}
	return n, nil
}

func indexed(format string, i int) string { return fmt.Sprintf(format, i) }
