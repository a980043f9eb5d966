package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

// scales are read from a tensor of a file: positive or negative numbers, none of them zero.
func (l *Loader) scales(name string, shape ...int) ([]float32, error) {
	t, err := l.find(name, shape...)
	if err != nil {
		return nil, err
	}
	if err := checkFloats(t); err != nil {
		return nil, err
	}
	if l.measures() {
		return nil, nil
	}
	values, err := t.Float32s()
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		if v == 0 || math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("tensor %q has %v as scale %d, it must be finite and not zero", t.Name, v, i)
		}
	}
	return values, nil
}

// bfloat16 rounds a finite number to the bits of the nearest bfloat16; what is too large becomes infinite.
func bfloat16(v float32) uint16 {
	return uint16(math.Float32bits(safetensors.RoundBFloat16(v)) >> 16)
}

// dequantized is a source whose rows are computed: fill writes rows [from, from+n) as bfloat16 to b.
func (s *scratch) dequantized(name string, out, in, fileRow int, fill func(b []byte, from, n int)) Source {
	return Source{Out: out, In: in, name: name, read: func(from, n int) (rowChunk, error) {
		b := s.take(2 * n * in)
		fill(b, from, n)
		if !safetensors.Finite("BF16", b) {
			return rowChunk{}, fmt.Errorf("tensor %q has a value that is not finite with its scale", name)
		}
		return rowChunk{rows: n, dtype: "BF16", data: b, file: n * fileRow}, nil
	}}
}

// e4m3 are the values of numbers of eight bits: a sign, four bits of exponent and three of fraction. Two of them are not numbers.
var e4m3 = func() (values [256]float32) {
	for i := range values {
		exponent, fraction := i>>3&15, float64(i&7)
		v := math.Ldexp(8+fraction, exponent-10)
		switch {
		case exponent == 0:
			v = math.Ldexp(fraction, -9)
		case i&0x7f == 0x7f:
			v = math.NaN()
		}
		values[i] = float32(math.Copysign(v, float64(1-2*(i>>7))))
	}
	return values
}()

// fp8 are matrices of F8_E4M3 that are one below another in a tensor, each of out × in with its scales.
func (l *Loader) fp8(t safetensors.Tensor, scaleName string, n, out, in int) ([]Source, error) {
	block := l.Config.Quantization.block
	down, across := (out+block[0]-1)/block[0], (in+block[1]-1)/block[1]
	shape := []int{down, across}
	if len(t.Shape) == 3 {
		shape = []int{n, down, across}
	}
	scales, err := l.scales(scaleName, shape...)
	if err != nil {
		return nil, err
	}
	var all []Source
	for i := range n {
		var data []byte // none where they are not read
		var own []float32
		if scales != nil {
			data, own = t.Data[i*out*in:(i+1)*out*in], scales[i*down*across:(i+1)*down*across]
		}
		s := l.scratch.fp8Rows(t.Name, out, in, block, data, own)
		s.numbers = l.fp8Numbers(out, in, block, data, own)
		all = append(all, s)
	}
	return all, nil
}

// fp8Rows are rows of F8_E4M3 with a scale for each block.
func (s *scratch) fp8Rows(name string, out, in int, block [2]int, data []byte, scales []float32) Source {
	across := (in + block[1] - 1) / block[1]
	return s.dequantized(name, out, in, in, func(b []byte, from, n int) {
		var values [256]uint16 // of a block
		for row := from; row < from+n; {
			end := min(from+n, (row/block[0]+1)*block[0])
			for k := range across {
				scale := scales[row/block[0]*across+k]
				for q, v := range e4m3 {
					values[q] = bfloat16(v * scale)
				}
				first, last := k*block[1], min((k+1)*block[1], in)
				for r := row; r < end; r++ {
					to := b[2*((r-from)*in+first):]
					for c, q := range data[r*in+first : r*in+last] {
						binary.LittleEndian.PutUint16(to[2*c:], values[q])
					}
				}
			}
			row = end
		}
	})
}

// packed is the matrix of NAME.weight_packed: signed integers, as many in 32 bits as fit, low ones first, each plus half of their range.
func (l *Loader) packed(name string, out, in int) (Source, error) {
	q := l.Config.Quantization
	each := 32 / q.bits
	width := (in + each - 1) / each
	t, err := l.find(name+".weight_packed", out, width)
	if err != nil {
		return Source{}, err
	}
	if t.DType != "I32" {
		return Source{}, fmt.Errorf("tensor %q has type %s, it must be I32", t.Name, t.DType)
	}
	for _, more := range []string{".weight_zero_point", ".weight_g_idx"} {
		if l.Has(name + more) {
			return Source{}, fmt.Errorf("tensor %q is there: only symmetric weights in the order of their columns are supported", l.files.inFile(name+more))
		}
	}
	if err := l.checkPackedShape(name+".weight_shape", out, in); err != nil {
		return Source{}, err
	}
	groups := 1
	if q.group > 0 {
		groups = (in + q.group - 1) / q.group
	}
	scales, err := l.scales(name+".weight_scale", out, groups)
	if err != nil {
		return Source{}, err
	}
	l.count(t, out*in)
	group := q.group
	if group == 0 {
		group = in
	}
	return l.scratch.packedRows(t.Name, out, in, q.bits, group, t.Data, scales), nil
}

// packedRows are rows of integers of so many bits, each group of columns with a scale.
func (s *scratch) packedRows(name string, out, in, bits, group int, data []byte, scales []float32) Source {
	each := 32 / bits
	width, groups := (in+each-1)/each, (in+group-1)/group
	half := 1 << (bits - 1)
	return s.dequantized(name, out, in, 4*width, func(b []byte, from, n int) {
		var values [16]uint16 // of a group of numbers of four bits
		for r := from; r < from+n; r++ {
			row := data[4*r*width : 4*(r+1)*width] // in little-endian words the bytes are in the order of the columns
			to := b[2*(r-from)*in : 2*(r-from+1)*in]
			for g := range groups {
				scale := scales[r*groups+g]
				first, last := g*group, min((g+1)*group, in)
				if bits == 8 {
					for c, q := range row[first:last] {
						binary.LittleEndian.PutUint16(to[2*(first+c):], bfloat16(float32(int(q)-half)*scale))
					}
					continue
				}
				for q := range values {
					values[q] = bfloat16(float32(q-half) * scale)
				}
				for c := first; c < last; c++ {
					binary.LittleEndian.PutUint16(to[2*c:], values[row[c/2]>>(c%2*4)&15])
				}
			}
		}
	})
}

// checkPackedShape compares the shape that a file states of a matrix that it holds packed.
func (l *Loader) checkPackedShape(name string, out, in int) error {
	t, err := l.find(name, 2)
	if err != nil {
		return err
	}
	size := map[string]int{"I64": 8, "I32": 4}[t.DType]
	if size == 0 {
		return fmt.Errorf("tensor %q has type %s, it must be I64 or I32", t.Name, t.DType)
	}
	if l.sizes {
		return nil
	}
	for i, want := range []int{out, in} {
		var got int64
		if size == 8 {
			got = int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
		} else {
			got = int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		}
		if got != int64(want) {
			return fmt.Errorf("tensor %q has %d as number %d, the configuration makes it %d", t.Name, got, i, want)
		}
	}
	return nil
}

// e2m1 are the values of numbers of four bits.
var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// MXFP4 are the matrices of NAME_blocks and NAME_scales, n of out × in: in blocks of 32 columns, of which two are in a byte, the low four bits first, with an exponent for each.
func (l *Loader) MXFP4(name string, n, out, in int) ([]Source, error) {
	const block = 32
	if in%block != 0 {
		return nil, fmt.Errorf("tensor %q has rows of %d elements, which are not blocks of %d", l.files.inFile(name+"_blocks"), in, block)
	}
	if q := l.Config.Quantization; q == nil || q.method != mxfp4Method {
		return nil, fmt.Errorf("tensor %q is there, but quantization_config does not say %s", l.files.inFile(name+"_blocks"), mxfp4Method)
	}
	across := in / block
	blocks, err := l.find(name+"_blocks", n, out, across, block/2)
	if err != nil {
		return nil, err
	}
	exponents, err := l.find(name+"_scales", n, out, across)
	if err != nil {
		return nil, err
	}
	for _, t := range []safetensors.Tensor{blocks, exponents} {
		if t.DType != "U8" {
			return nil, fmt.Errorf("tensor %q has type %s, it must be U8", t.Name, t.DType)
		}
	}
	l.count(blocks, n*out*in)
	if !l.measures() {
		for i, e := range exponents.Data {
			if e == 255 {
				return nil, fmt.Errorf("tensor %q has 255, which is not a number, as scale %d", exponents.Name, i)
			}
		}
	}
	var all []Source
	for i := range n {
		data, own := blocks.Data[i*out*in/2:(i+1)*out*in/2], exponents.Data[i*out*across:(i+1)*out*across]
		all = append(all, l.scratch.mxfp4Rows(blocks.Name, out, in, data, own))
	}
	return all, nil
}

// mxfp4Rows are rows of blocks of 32 columns with an exponent each.
func (s *scratch) mxfp4Rows(name string, out, in int, data, exponents []byte) Source {
	const block = 32
	across := in / block
	return s.dequantized(name, out, in, in/2+across, func(b []byte, from, n int) {
		var values [16]uint16 // of a block
		for g := from * across; g < (from+n)*across; g++ {
			scale := float32(math.Ldexp(1, int(exponents[g])-127))
			for q, v := range e2m1 {
				values[q] = bfloat16(v * scale)
			}
			to := b[2*block*(g-from*across):]
			for c, pair := range data[block/2*g : block/2*(g+1)] {
				binary.LittleEndian.PutUint16(to[4*c:], values[pair&15])
				binary.LittleEndian.PutUint16(to[4*c+2:], values[pair>>4])
			}
		}
	})
}
