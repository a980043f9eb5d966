package cudart

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Parts of a weight that are expanded before a product of many rows give the bits of the kernels that expand as they multiply, however many parts there are.
func TestE4M3Parts(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	random := rand.New(rand.NewPCG(3, 8))
	put := func(data []byte) Address {
		t.Helper()
		at, err := v.Alloc(len(data))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := v.Free(at); err != nil {
				t.Error(err)
			}
		})
		if err := v.Upload(at, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return at
	}
	floats := func(n int64) (data []byte) {
		for range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(random.NormFloat64())))
		}
		return data
	}
	const rows, out, in, columns = leastExpandedRows + 1, 300, 520, 128
	codes := make([]byte, out*in)
	for i := range codes {
		codes[i] = byte(random.IntN(0x7f) | random.IntN(2)<<7)
	}
	var scales []byte
	for row := range out {
		for s := range (in + columns - 1) / columns {
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(float32(1+row/E4M3Rows)/float32(3+s)))
		}
	}
	const groups = (out + E4M3Rows - 1) / E4M3Rows
	w := Weight{At: put(make([]byte, groups*E4M3GroupBytes(in, columns))), Out: out, In: in, Pitch: columns}
	if err := v.PackE4M3(w, 0, out, put(codes), put(scales)); err != nil {
		t.Fatal(err)
	}
	for _, transposed := range []bool{false, true} {
		outputs, depth := outputsOf(w, transposed), depthOf(w, transposed)
		x := View{At: put(floats(rows * depth)), Rows: rows, Cols: depth, Stride: depth}
		before := floats(rows * outputs)
		result := func(most int64) []byte {
			y := View{At: put(before), Rows: rows, Cols: outputs, Stride: outputs}
			for from := int64(0); from < rows; from += most {
				n := min(most, rows-from)
				part := func(m View) View {
					return View{At: m.At + Address(4*from*m.Stride), Rows: n, Cols: m.Cols, Stride: m.Stride}
				}
				if err := v.Product(part(y), part(x), Float32, []RowGroup{{To: n, Weight: w, Factor: 0.5, Round: BFloat16}}, E4M3, transposed, true); err != nil {
					t.Fatal(err)
				}
			}
			data := make([]byte, len(before))
			if err := v.Download(data, y.At, len(data), len(data), 1); err != nil {
				t.Fatal(err)
			}
			return data
		}
		want := result(leastExpandedRows - 1) // too few to expand parts
		for _, bytes := range []int{expandedBytes, 1} {
			v.expandedBytes = bytes
			if step := v.expandedOutputs(w, transposed); (step < outputs) != (bytes == 1) {
				t.Errorf("%d bytes are for %d of %d outputs", bytes, step, outputs)
			}
			if !slices.Equal(result(rows), want) {
				t.Errorf("transposed %v, %d bytes: other bits", transposed, bytes)
			}
		}
		v.expandedBytes = expandedBytes
	}
}

// With warpgroups, parts of a weight are expanded from fewer rows on.
func TestExpandedFrom(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	const out, in, columns = 40, 264, 128
	w := Weight{At: alloc(t, v, 2*int(E4M3GroupBytes(in, columns))), Out: out, In: in, Pitch: columns}
	const most = leastExpandedRows
	x, y := View{At: alloc(t, v, 2*most*in), Rows: most, Cols: in, Stride: in}, View{At: alloc(t, v, 4*most*out), Rows: most, Cols: out, Stride: out}
	for _, c := range []struct {
		warpgroups bool
		rows       int64
		want       int
	}{{false, leastExpandedRows - 1, 0}, {false, leastExpandedRows, 1}, {true, leastExpandedGroupRows - 1, 0}, {true, leastExpandedGroupRows, 1}} {
		v.warpgroups = c.warpgroups
		x.Rows, y.Rows = c.rows, c.rows
		var err error
		if n := kernelsRun(t, "expand_e4m3", func() {
			err = v.Product(y, x, BFloat16, []RowGroup{{To: c.rows, Weight: w}}, E4M3, false, false)
		}); err != nil || n != c.want {
			t.Errorf("warpgroups %v, %d rows: %d launches expand the weight, want %d; error %v", c.warpgroups, c.rows, n, c.want, err)
		}
	}
}

// A device with 99 KiB of shared memory for a block, the least that there is, can launch every shape.
func TestE4M3ShapesShared(t *testing.T) {
	for i, s := range e4m3Shapes {
		if w := warpShapes[i]; s.rows != w.rows || s.columns != w.columns {
			t.Errorf("shape %d is %v, that of bfloat16 %v", i, s, w)
		}
	}
	for i, k := range e4m3Kernels {
		if of := kernelOf(kE4M3 + i); of != k || k.shared > 99<<10 {
			t.Errorf("kernel %d is %v, want %v with no more than 99 KiB of shared memory", i, of, k)
		}
	}
	if n := len(e4m3Kernels); kE4M3+n != kBehindE4M3 || kBehindE4M3 > kWarpgroup {
		t.Errorf("%d kernels end at %d, of %d", n, kBehindE4M3, kWarpgroup)
	}
}
