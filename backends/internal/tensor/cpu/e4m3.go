package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// ScaleColumns is what tensor.ScaleColumns gives.
func (m *matrix) ScaleColumns() int { return m.columns }

// HasE4M3 implements tensor.Device.
func (d *device) HasE4M3() bool { return true }

// The rows that have a scale in common are those of a panel.
const (
	_ = uint(panel - tensor.E4M3Rows)
	_ = uint(tensor.E4M3Rows - panel)
)

func (d *device) NewE4M3Matrix(out, in, columns int) (tensor.Matrix, error) {
	if _, ok := tensor.Product(out+panel, in+columns, 2); !ok {
		return nil, fmt.Errorf("cpu: matrix %d × %d in eight bits: too large", out, in)
	}
	bytes := tensor.E4M3Bytes(out, in, columns)
	addr, err := memory("matrix", bytes, true)
	if err != nil {
		return nil, err
	}
	return &matrix{dtype: tensor.BFloat16, out: out, in: in, columns: columns, addr: addr, bytes: bytes}, nil
}

func (d *device) PackE4M3(m tensor.Matrix, row, n int, codes []byte, scales []float32) error {
	switch C.op_pack_e4m3(d.c, of(m), C.int64_t(row), C.int64_t(n), (*C.uint8_t)(&codes[0]), (*C.float)(&scales[0])) {
	case 1:
		return fmt.Errorf("cpu: pack rows in eight bits: %w", tensor.ErrNotFinite)
	case 2:
		return errors.New("cpu: pack rows in eight bits: rows that have a scale in common have different ones")
	}
	return nil
}
