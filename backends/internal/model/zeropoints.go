package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

// What GPTQ and AWQ write: integers that go down the inner axis, with a scale and a zero point for each group of it and each output. An element is (integer − zero point) · scale.
const (
	gptqMethod = "gptq"
	awqMethod  = "awq"
)

func (q *quantizationJSON) gptq(out *Quantization) error {
	const first, second = "gptq", "gptq_v2"
	format := first
	if q.CheckpointFormat != nil {
		format = *q.CheckpointFormat
	}
	switch {
	case q.Bits != 4 && q.Bits != 8:
		return fmt.Errorf("bits is %d, only 4 and 8 are supported", q.Bits)
	case format != first && format != second:
		return fmt.Errorf("checkpoint_format is %.40q, only %s and %s are supported", format, first, second)
	case q.Marlin:
		return errors.New("is_marlin_format is true: only weights as GPTQ writes them are supported")
	case q.PackType != nil && *q.PackType != "int32":
		return fmt.Errorf("pack_dtype is %.40q, only int32 is supported", *q.PackType)
	}
	out.bits, out.lessOne = q.Bits, format == first
	return q.groupSize(out)
}

func (q *quantizationJSON) awq(out *Quantization) error {
	switch {
	case q.Bits != 4:
		return fmt.Errorf("bits is %d, only 4 is supported", q.Bits)
	case q.Version != nil && *q.Version != "gemm" && *q.Version != "GEMM":
		return fmt.Errorf("version is %.40q, only gemm is supported", *q.Version)
	}
	out.bits = q.Bits
	return q.groupSize(out)
}

func (q *quantizationJSON) groupSize(out *Quantization) error {
	switch n := q.GroupSize; {
	case n == nil:
		return errors.New("group_size is missing")
	case *n == -1: // all of a row
	case *n < 1 || *n > mostWidth:
		return fmt.Errorf("group_size is %d, it must be in 1 … %d, or -1", *n, mostWidth)
	default:
		out.group = *n
	}
	return nil
}

// awqPlaces is where an output of eight is in a word.
var awqPlaces = [8]int{0, 4, 1, 5, 2, 6, 3, 7}

// zeroPointed are the integers of NAME.qweight, in words of 32 bits, with NAME.scales and NAME.qzeros. A word of GPTQ has those of one output, one of AWQ those of one column. NAME.g_idx says which group a column is in, where there is one.
func (l *Loader) zeroPointed(name string, out, in int) (Source, error) {
	q := l.Config.Quantization
	each, group := 32/q.bits, q.group
	if group == 0 {
		group = in
	}
	if out%each != 0 || in%each != 0 {
		return Source{}, fmt.Errorf("tensor %q has %d × %d elements, which are no whole words of %d", l.files.inFile(name+".qweight"), out, in, each)
	}
	shape, groups := []int{in / each, out}, (in+group-1)/group
	if q.method == awqMethod {
		shape = []int{in, out / each}
	}
	t, err := l.words(name+".qweight", shape...)
	if err != nil {
		return Source{}, err
	}
	l.count(t, out*in)
	scales, err := l.scales(name+".scales", groups, out)
	if err != nil {
		return Source{}, err
	}
	zeros, err := l.zeroPoints(name+".qzeros", groups, out)
	if err != nil {
		return Source{}, err
	}
	order, err := l.groupOrder(name+".g_idx", in, group, groups)
	if err != nil {
		return Source{}, err
	}
	l.passZeroBias(name + ".bias")
	z := zeroPoints{bits: q.bits, group: group, across: q.method == awqMethod, out: out, in: in, data: t.Data, scales: scales, zeros: zeros, order: order}
	return l.scratch.dequantized(t.Name, out, in, in*q.bits/8, z.rows), nil
}

// passZeroBias lets a bias be that is zero: files of GPTQ have one for every matrix, also of models that have none.
func (l *Loader) passZeroBias(name string) {
	t, ok := l.files.Tensor(name)
	if ok && checkFloats(t) == nil && len(bytes.TrimLeft(t.Data, "\x00")) == 0 {
		l.used[t.Name] = true
	}
}

// words finds a tensor of integers that are packed into words of 32 bits.
func (l *Loader) words(name string, shape ...int) (safetensors.Tensor, error) {
	t, err := l.find(name, shape...)
	if err == nil && t.DType != "I32" {
		err = fmt.Errorf("tensor %q has type %s, it must be I32", t.Name, t.DType)
	}
	return t, err
}

// zeroPoints are groups × out of them; nil where they are not read.
func (l *Loader) zeroPoints(name string, groups, out int) ([]uint16, error) {
	q := l.Config.Quantization
	each, most := 32/q.bits, 1<<q.bits-1
	t, err := l.words(name, groups, out/each)
	if err != nil || l.measures() {
		return nil, err
	}
	zeros := make([]uint16, groups*out)
	for i := range zeros {
		place := i % each
		if q.method == awqMethod {
			place = awqPlaces[place]
		}
		v := int(binary.LittleEndian.Uint32(t.Data[i/each*4:])>>(place*q.bits)) & most
		if q.lessOne {
			if v == most { // some readers make it 0, some what is beyond the integers
				return nil, fmt.Errorf("tensor %q has %d as number %d: as checkpoint_format gptq has it, it is 0 to some readers and %d to others; write the files anew as gptq_v2", t.Name, v, i, v+1)
			}
			v++
		}
		zeros[i] = uint16(v)
	}
	return zeros, nil
}

// groupOrder is the group of each column, nil where they are in order.
func (l *Loader) groupOrder(name string, in, group, groups int) ([]int32, error) {
	if l.Config.Quantization.method == awqMethod || !l.Has(name) {
		return nil, nil
	}
	t, err := l.words(name, in)
	if err != nil || l.measures() {
		return nil, err
	}
	order, sorted := make([]int32, in), true
	for i := range order {
		g := int32(binary.LittleEndian.Uint32(t.Data[4*i:]))
		if g < 0 || int(g) >= groups {
			return nil, fmt.Errorf("tensor %q has %d as number %d, it must be in 0 … %d", t.Name, g, i, groups-1)
		}
		order[i], sorted = g, sorted && int(g) == i/group
	}
	if sorted {
		return nil, nil
	}
	return order, nil
}

// zeroPoints are the integers of a matrix, out × in, with what they mean.
type zeroPoints struct {
	bits, group int
	across      bool // a word has the integers of one column, as AWQ's; else of one output
	out, in     int
	data        []byte
	scales      []float32 // groups × out
	zeros       []uint16
	order       []int32 // the group of each column; nil: group after group
}

// integers writes those of an output's columns from first on.
func (z *zeroPoints) integers(to []uint8, row, first int) {
	each, mask := 32/z.bits, uint32(1)<<z.bits-1
	if z.across {
		at, step, shift := 4*(first*(z.out/each)+row/each), 4*(z.out/each), awqPlaces[row%each]*z.bits
		for i := range to {
			to[i] = uint8(binary.LittleEndian.Uint32(z.data[at+i*step:]) >> shift & mask)
		}
		return
	}
	for i := 0; i < len(to); {
		c := first + i
		word := binary.LittleEndian.Uint32(z.data[4*(c/each*z.out+row):]) >> (c % each * z.bits)
		for end := min(i+each-c%each, len(to)); i < end; i++ {
			to[i] = uint8(word & mask)
			word >>= z.bits
		}
	}
}

// rows writes n of them, from one on, as bfloat16. Words of neighbouring rows lie side by side, so a group of all these rows is read before the next one.
func (z *zeroPoints) rows(b []byte, from, n int) {
	codes := make([]uint8, z.group)
	var values [256]uint16
	for first := 0; first < z.in; first += z.group {
		some := codes[:min(z.group, z.in-first)]
		for r := range n {
			row := from + r
			z.integers(some, row, first)
			to := b[2*(r*z.in+first):]
			if z.order != nil {
				for i, q := range some {
					g := int(z.order[first+i])*z.out + row
					binary.LittleEndian.PutUint16(to[2*i:], bfloat16(float32(int(q)-int(z.zeros[g]))*z.scales[g]))
				}
				continue
			}
			g := first/z.group*z.out + row
			zero, scale := int(z.zeros[g]), z.scales[g]
			if len(some) < 1<<z.bits {
				for i, q := range some {
					binary.LittleEndian.PutUint16(to[2*i:], bfloat16(float32(int(q)-zero)*scale))
				}
				continue
			}
			for q := range 1 << z.bits {
				values[q] = bfloat16(float32(q-zero) * scale)
			}
			for i, q := range some {
				binary.LittleEndian.PutUint16(to[2*i:], values[q])
			}
		}
	}
}
