package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// ScaleColumns is what tensor.ScaleColumns gives.
func (m *matrix) ScaleColumns() int { return m.columns }

// HasE4M3 implements tensor.Device.
func (d *device) HasE4M3() bool { return true }

// The rows that have a scale in common are those of a group, and views begin with one.
const (
	_ = uint(cudart.E4M3Rows - tensor.E4M3Rows)
	_ = uint(tensor.E4M3Rows - cudart.E4M3Rows)
	_ = uint(-(tensor.MatrixRows % tensor.E4M3Rows))
)

// NewE4M3Matrix implements tensor.Device.
func (d *device) NewE4M3Matrix(out, in, columns int) (tensor.Matrix, error) {
	if _, ok := tensor.Product(out+tensor.E4M3Rows, in+columns, 2); !ok || in > tensor.MaxElements-16 {
		return nil, fmt.Errorf("cuda: matrix %d × %d in eight bits: too large", out, in)
	}
	m := &matrix{device: d, dtype: tensor.BFloat16, out: out, in: in, columns: columns, bytes: tensor.GroupedE4M3Bytes(out, in, columns), written: &written{}}
	var err error
	if m.at, err = d.memory("matrix", m.bytes); err != nil {
		return nil, err
	}
	return m, nil
}

// group is the scales of a group of rows of a matrix in eight bits, and how many of its rows have been packed.
type group struct {
	scales []float32
	packed int
}

// PackE4M3 implements tensor.Device. The numbers are checked here: the host does not wait for the device.
func (d *device) PackE4M3(m tensor.Matrix, row, n int, codes []byte, scales []float32) error {
	w := m.(*matrix)
	if !finite(codes, scales, w) {
		return fmt.Errorf("cuda: pack rows in eight bits: %w", tensor.ErrNotFinite)
	}
	if err := w.agree(row, n, scales); err != nil {
		return err
	}
	w.written.packed = true
	across := len(scales) / n
	most := max(1, packBytes/(w.in+4*across))
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		err := d.withList("pack rows in eight bits", func(at []cudart.Address) error {
			return d.v.PackE4M3(w.weight(), int64(row+from), int64(rows), at[0], at[1])
		}, codes[from*w.in:(from+rows)*w.in], bytesOf(scales[from*across:(from+rows)*across]))
		if err != nil {
			return err
		}
	}
	return nil
}

// The largest number of the type E4M3, and what the largest product with a scale must be below, so that it is not rounded to infinity.
const (
	largestE4M3 = 448
	tooLarge    = 0x1.ffp127
)

// finite tells whether all numbers are some, and are finite with their scales.
func finite(codes []byte, scales []float32, w *matrix) bool {
	const each, ones, tops = 8, 0x0101010101010101, 0x8080808080808080
	whole := len(codes) / each * each
	for i := 0; i < whole; i += each { // without their signs, codes that are no number are the only ones whose highest bit one more sets
		if (binary.LittleEndian.Uint64(codes[i:])&^tops+ones)&tops != 0 {
			return false
		}
	}
	if bytes.ContainsAny(codes[whole:], "\x7f") || bytes.IndexByte(codes[whole:], 0xff) >= 0 {
		return false
	}
	huge := func(s float32) bool { return math.Abs(float64(float32(largestE4M3)*s)) >= tooLarge }
	if !slices.ContainsFunc(scales, huge) {
		return true
	}
	across := (w.in + w.columns - 1) / w.columns
	for i, c := range codes {
		if s := scales[i/w.in*across+i%w.in/w.columns]; huge(s) && !(math.Abs(float64(magnitude(c)*s)) < tooLarge) {
			return false
		}
	}
	return true
}

// magnitude is that of the number that eight bits are.
func magnitude(code byte) float32 {
	exponent, fraction := int(code>>3&15), float64(code&7)
	if exponent == 0 {
		return float32(math.Ldexp(fraction, -9))
	}
	return float32(math.Ldexp(8+fraction, exponent-10))
}

// agree checks that rows of one group have equal scales, also with those that were packed before. What a group has is known until all of its rows have been packed.
func (m *matrix) agree(row, n int, scales []float32) error {
	across := len(scales) / n
	for from := row; from < row+n; {
		number := from / tensor.E4M3Rows
		to := min(row+n, (number+1)*tensor.E4M3Rows)
		g := m.unfinished[number]
		if g == nil {
			g = &group{scales: slices.Clone(scales[(from-row)*across:][:across])}
		}
		for r := from; r < to; r++ {
			if !slices.Equal(g.scales, scales[(r-row)*across:][:across]) {
				return errors.New("cuda: pack rows in eight bits: rows that have a scale in common have different ones")
			}
		}
		if g.packed += to - from; g.packed < min(tensor.E4M3Rows, m.out-number*tensor.E4M3Rows) {
			if m.unfinished == nil {
				m.unfinished = map[int]*group{}
			}
			m.unfinished[number] = g
		} else {
			delete(m.unfinished, number)
		}
		from = to
	}
	return nil
}
