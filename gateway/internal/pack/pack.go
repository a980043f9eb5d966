// Package pack is the compact form of what the gateway stores in large numbers: integers as varints; text, bytes and arrays with their length in front; arrays of numbers and floating-point
// numbers as little-endian bytes. It knows no record: whoever writes fields reads them in the same order.
package pack

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Encoder appends fields to B.
type Encoder struct{ B []byte }

// Uint appends a number of at most ten bytes, small ones shorter.
func (e *Encoder) Uint(v uint64) { e.B = binary.AppendUvarint(e.B, v) }

// Int is Uint for numbers with a sign.
func (e *Encoder) Int(v int64) { e.B = binary.AppendVarint(e.B, v) }

// Float appends a number exactly.
func (e *Encoder) Float(v float64) { e.B = binary.LittleEndian.AppendUint64(e.B, math.Float64bits(v)) }

// Bool appends one byte.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Uint(1)
		return
	}
	e.Uint(0)
}

// Text appends a string.
func (e *Encoder) Text(s string) {
	e.Uint(uint64(len(s)))
	e.B = append(e.B, s...)
}

// Bytes appends bytes; nil comes back as nil.
func (e *Encoder) Bytes(v []byte) {
	e.length(len(v), v == nil)
	e.B = append(e.B, v...)
}

// Int32s appends numbers; nil comes back as nil.
func (e *Encoder) Int32s(v []int32) {
	e.length(len(v), v == nil)
	e.B = AppendInt32s(e.B, v)
}

// Float32s appends numbers exactly; nil comes back as nil.
func (e *Encoder) Float32s(v []float32) {
	e.length(len(v), v == nil)
	e.B = AppendFloat32s(e.B, v)
}

// length keeps nil and empty apart: 0 is nil, n+1 is n.
func (e *Encoder) length(n int, isNil bool) {
	if isNil {
		e.Uint(0)
		return
	}
	e.Uint(uint64(n) + 1)
}

// AppendInt32s appends the bytes of numbers, without their count.
func AppendInt32s(b []byte, v []int32) []byte {
	b, out := extend(b, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], uint32(x))
	}
	return b
}

// AppendInt64s appends the bytes of numbers, without their count.
func AppendInt64s(b []byte, v []int64) []byte {
	b, out := extend(b, 8*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint64(out[8*i:], uint64(x))
	}
	return b
}

// AppendFloat32s appends the bytes of numbers, without their count.
func AppendFloat32s(b []byte, v []float32) []byte {
	b, out := extend(b, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(x))
	}
	return b
}

// extend makes b longer by n bytes, which are out.
func extend(b []byte, n int) (longer, out []byte) {
	longer = slices.Grow(b, n)[:len(b)+n]
	return longer, longer[len(b):]
}

// Decoder reads fields back. After the first that does not fit everything reads as zero, and Err says so: it asks for no more memory than there are bytes.
type Decoder struct {
	b   []byte
	err error
}

// NewDecoder reads b. What Bytes gives is part of it; everything else is a copy.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// More tells whether something is left to read.
func (d *Decoder) More() bool { return len(d.b) > 0 }

// Err is nil while everything has fitted.
func (d *Decoder) Err() error { return d.err }

// End is Err, and an error too if something is left.
func (d *Decoder) End() error {
	if d.err == nil && len(d.b) > 0 {
		d.Fail()
	}
	return d.err
}

// Fail says that what was read is not what it should be.
func (d *Decoder) Fail() {
	if d.err == nil {
		d.err = fmt.Errorf("stored record: %d bytes before its end something does not fit", len(d.b))
	}
	d.b = nil
}

// Uint reads what Encoder.Uint wrote, and so on.
func (d *Decoder) Uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.Fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// Int reads an Int.
func (d *Decoder) Int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.Fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// Float reads a Float.
func (d *Decoder) Float() float64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

// Float32 reads one number of those that AppendFloat32s wrote.
func (d *Decoder) Float32() float32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Bool reads a Bool.
func (d *Decoder) Bool() bool { return d.Uint() != 0 }

// Byte reads one byte as it is.
func (d *Decoder) Byte() byte {
	b := d.take(1)
	if b == nil {
		return 0
	}
	return b[0]
}

// Text reads a Text.
func (d *Decoder) Text() string { return string(d.take(d.Uint())) }

// Bytes reads Bytes. They are part of what the decoder reads from.
func (d *Decoder) Bytes() []byte { return d.array(1) }

// Int32s reads Int32s.
func (d *Decoder) Int32s() []int32 {
	b := d.array(4)
	if b == nil {
		return nil
	}
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// Float32s reads Float32s.
func (d *Decoder) Float32s() []float32 {
	b := d.array(4)
	if b == nil {
		return nil
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// Count reads the number of things, a Uint, that take at least one byte each.
func (d *Decoder) Count() int {
	n := d.Uint()
	if n > uint64(len(d.b)) {
		d.Fail()
		return 0
	}
	return int(n)
}

// array reads the bytes of an array whose elements have so many each; nil for a nil one.
func (d *Decoder) array(size uint64) []byte {
	n := d.Uint()
	if n == 0 {
		return nil
	}
	if n-1 > uint64(len(d.b))/size {
		d.Fail()
		return nil
	}
	return d.take((n - 1) * size)
}

// take reads n bytes; nil if there are fewer.
func (d *Decoder) take(n uint64) []byte {
	if d.err != nil || n > uint64(len(d.b)) {
		d.Fail()
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}
