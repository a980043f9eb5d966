package pack

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"testing"
)

// fields is one of everything.
type fields struct {
	Uint     uint64
	Int      int64
	Float    float64
	Bool     bool
	Text     string
	Bytes    []byte
	Int32s   []int32
	Float32s []float32
}

func (f fields) encode() []byte {
	e := Encoder{B: []byte{7}}
	e.Uint(f.Uint)
	e.Int(f.Int)
	e.Float(f.Float)
	e.Bool(f.Bool)
	e.Text(f.Text)
	e.Bytes(f.Bytes)
	e.Int32s(f.Int32s)
	e.Float32s(f.Float32s)
	return e.B
}

func decode(b []byte) (fields, error) {
	d := NewDecoder(b)
	if d.Byte() != 7 {
		d.Fail()
	}
	f := fields{d.Uint(), d.Int(), d.Float(), d.Bool(), d.Text(), d.Bytes(), d.Int32s(), d.Float32s()}
	return f, d.End()
}

func TestFieldsComeBack(t *testing.T) {
	for _, c := range []struct {
		name string
		want fields
	}{
		{"zero", fields{}},
		{"empty and not nil", fields{Bytes: []byte{}, Int32s: []int32{}, Float32s: []float32{}}},
		{"largest", fields{math.MaxUint64, math.MaxInt64, math.Inf(1), true, "ä\x00", []byte{0, 255}, []int32{math.MinInt32, math.MaxInt32}, []float32{math.MaxFloat32, 1e-45}}},
		{"smallest", fields{0, math.MinInt64, math.Copysign(0, -1), false, "", nil, []int32{-1}, []float32{float32(math.Inf(-1))}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.want.encode()
			got, err := decode(b)
			if err != nil || !reflect.DeepEqual(got, c.want) || math.Signbit(got.Float) != math.Signbit(c.want.Float) {
				t.Fatalf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
			for n := range b {
				if _, err := decode(b[:n]); err == nil {
					t.Errorf("%d of %d bytes are taken for the whole", n, len(b))
				}
			}
			if _, err := decode(append(b, 0)); err == nil {
				t.Error("a byte too many is not seen")
			}
		})
	}
}

func TestArraysAreLittleEndian(t *testing.T) {
	var want bytes.Buffer
	values := []any{[]int32{1, -2}, []int64{3, -4}, []float32{0.5, -1.5}}
	for _, v := range values {
		if err := binary.Write(&want, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	got := AppendFloat32s(AppendInt64s(AppendInt32s(nil, values[0].([]int32)), values[1].([]int64)), values[2].([]float32))
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %x, want %x", got, want.Bytes())
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(fields{1, -1, 2, true, "text", []byte("bytes"), []int32{1}, []float32{2}}.encode())
	f.Add([]byte{7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			return
		}
		if again, err := decode(got.encode()); err != nil || !bytes.Equal(again.encode(), got.encode()) {
			t.Fatalf("%+v came back as %+v, %v", got, again, err)
		}
	})
}
