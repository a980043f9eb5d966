package merge

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Types of floating-point numbers that are computed with.
const (
	typeFloat32  = "F32"
	typeFloat16  = "F16"
	typeBFloat16 = "BF16"
)

// dtypes are their names in configurations.
var dtypes = map[string]string{"float32": typeFloat32, "float16": typeFloat16, "bfloat16": typeBFloat16}

func isFloat(dtype string) bool {
	return dtype == typeFloat32 || dtype == typeFloat16 || dtype == typeBFloat16
}

// decodeFloats widens numbers, exactly.
func decodeFloats(out []float32, dtype string, data []byte) {
	switch dtype {
	case typeFloat32:
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case typeBFloat16:
		for i := range out {
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
		}
	case typeFloat16:
		for i := range out {
			out[i] = fromHalf(binary.LittleEndian.Uint16(data[2*i:]))
		}
	}
}

// encodeFloats rounds numbers to the nearest of a type, ties to even. What float16 cannot hold is an error.
func encodeFloats(out []byte, dtype string, values []float32) error {
	switch dtype {
	case typeFloat32:
		for i, v := range values {
			binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
		}
	case typeBFloat16:
		for i, v := range values {
			binary.LittleEndian.PutUint16(out[2*i:], toBFloat16(v))
		}
	case typeFloat16:
		for i, v := range values {
			h := toHalf(v)
			if h&0x7c00 == 0x7c00 && !math.IsInf(float64(v), 0) && !math.IsNaN(float64(v)) {
				return fmt.Errorf("the value %v does not fit into float16; export with --dtype bfloat16 or float32", v)
			}
			binary.LittleEndian.PutUint16(out[2*i:], h)
		}
	}
	return nil
}

func toBFloat16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40 // stays one
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func fromHalf(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exponent {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)/(1<<24)))
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

func toHalf(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, magnitude := uint16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00
	case magnitude >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2⁻¹⁴: a multiple of 2⁻²⁴
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(magnitude))*(1<<24)))
	}
	return sign | uint16((magnitude-0x38000000+0xfff+magnitude>>13&1)>>13)
}
