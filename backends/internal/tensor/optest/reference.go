package optest

import (
	"encoding/binary"
	"math"
)

// encode gives values as a weight file holds them; they must be exact in the type and within its normal range.
func encode(source string, values []float32) []byte {
	var b []byte
	for _, v := range values {
		u := math.Float32bits(v)
		switch source {
		case "F32":
			b = binary.LittleEndian.AppendUint32(b, u)
		case "BF16":
			b = binary.LittleEndian.AppendUint16(b, uint16(u>>16))
		case "F16":
			b = binary.LittleEndian.AppendUint16(b, uint16(u>>16&0x8000|(u>>23&255-112)<<10|u>>13&1023))
		}
	}
	return b
}

func dot(a, b []float64) float64 {
	var s float64
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func logSumExp(x []float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = math.Max(top, v)
	}
	var s float64
	for _, v := range x {
		s += math.Exp(v - top)
	}
	return top + math.Log(s)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// eachRow applies f to rows of cols values.
func eachRow(x []float64, cols int, f func(r int, row []float64) []float64) []float64 {
	var y []float64
	for r := 0; r*cols < len(x); r++ {
		y = append(y, f(r, x[r*cols:(r+1)*cols])...)
	}
	return y
}

func elementwise(n int, f func(i int) float64) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = f(i)
	}
	return y
}
