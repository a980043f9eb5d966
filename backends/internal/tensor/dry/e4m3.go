package dry

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// HasE4M3 implements tensor.Device: as packages cpu and cuda do.
func (Device) HasE4M3() bool { return true }

// NewE4M3Matrix implements tensor.Device.
func (Device) NewE4M3Matrix(out, in, columns int) (tensor.Matrix, error) {
	return e4m3{matrix{dtype: tensor.BFloat16, out: out, in: in}, columns, tensor.E4M3Bytes}, nil
}

// NewE4M3Matrix implements tensor.Device: as package cuda fills matrices up.
func (Remote) NewE4M3Matrix(out, in, columns int) (tensor.Matrix, error) {
	return e4m3{matrix{dtype: tensor.BFloat16, out: out, in: in}, columns, tensor.GroupedE4M3Bytes}, nil
}

// PackE4M3 implements tensor.Device.
func (Device) PackE4M3(tensor.Matrix, int, int, []byte, []float32) error { return nil }

// e4m3 is a matrix in eight bits.
type e4m3 struct {
	matrix
	columns int
	bytes   func(out, in, columns int) int
}

// Bytes implements tensor.Matrix.
func (m e4m3) Bytes() int { return m.bytes(m.out, m.in, m.columns) }

// ScaleColumns is what tensor.ScaleColumns gives.
func (m e4m3) ScaleColumns() int { return m.columns }

// Rows implements tensor.Matrix.
func (m e4m3) Rows(from, to int) tensor.Matrix {
	rows := m.matrix.Rows(from, to)
	if rows == nil {
		return nil
	}
	return e4m3{rows.(matrix), m.columns, m.bytes}
}
