package plugins

import (
	"encoding/binary"
	"math"
)

// Packed little-endian slices, the form in which tokens and floats cross. nil and empty both become an empty field, which becomes nil.

func packInts(v []int32) []byte {
	if len(v) == 0 {
		return nil
	}
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(x))
	}
	return b
}

func unpackInts(field string, b []byte) ([]int32, error) {
	if len(b)%4 != 0 {
		return nil, Invalidf(field, "%d bytes are not a whole number of 32-bit values", len(b))
	}
	if len(b) == 0 {
		return nil, nil
	}
	v := make([]int32, len(b)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v, nil
}

func packFloats(v []float32) []byte {
	if len(v) == 0 {
		return nil
	}
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return b
}

func unpackFloats(field string, b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return nil, Invalidf(field, "%d bytes are not a whole number of 32-bit values", len(b))
	}
	if len(b) == 0 {
		return nil, nil
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v, nil
}
