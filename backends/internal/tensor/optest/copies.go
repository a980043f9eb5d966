package optest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// rowsToMemory checks that rows arrive where they are to begin, and that what lies between them stays.
func rowsToMemory(t *testing.T, d tensor.Device) {
	for _, c := range []struct{ rows, cols, pitch, behind int }{{1, 5, 5, 0}, {3, 7, 7, 0}, {3, 7, 11, 0}, {3, 7, 11, 4}, {4, 1, 300, 2}, {0, 5, 6, 1}, {70, 33000, 33005, 0}} {
		h := start(t, d)
		values := normal(7, c.rows*c.cols)
		got := make([]float32, max(0, (c.rows-1)*c.pitch+c.cols)+c.behind)
		for i := range got {
			got[i] = -3
		}
		want := slices.Clone(got)
		for r := range c.rows {
			copy(want[r*c.pitch:], values[r*c.cols:(r+1)*c.cols])
		}
		h.ok(d.DownloadRows(got, c.pitch, h.view(c.rows, c.cols, values)))
		sameBits(t, fmt.Sprintf("%d rows of %d, %d apart", c.rows, c.cols, c.pitch), got, want)
	}
}

// matrixCopies checks that a matrix that is put together from others, in any order and while the device does something else, is the one that was packed at once: its rows, and products with it.
func matrixCopies(t *testing.T, d tensor.Device) {
	const out, in = 3*tensor.MatrixRows + 9, 41
	values := normal(2, out*in)
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		t.Run(fmt.Sprint(dtype), func(t *testing.T) {
			h := start(t, d)
			whole := h.matrix(dtype, out, in, values)
			var copies []tensor.MatrixCopy
			dst := h.matrix(dtype, out, in, normal(3, out*in)) // to be overwritten
			for _, part := range [][2]int{{128, out}, {0, 128}} {
				src := h.matrix(dtype, part[1]-part[0], in, values[part[0]*in:part[1]*in])
				if part[0] > 0 { // as views, of the middle and of the end
					copies = append(copies, tensor.MatrixCopy{Dst: dst, Row: 192, Src: src.Rows(64, src.Out())}, tensor.MatrixCopy{Dst: dst.Rows(64, 192), Row: 64, Src: src.Rows(0, 64)})
					continue
				}
				copies = append(copies, tensor.MatrixCopy{Dst: dst, Row: part[0], Src: src})
			}
			finish, err := d.StartCopies(copies)
			h.ok(err)
			x := h.view(5, in, normal(4, 5*in))
			products := func(m tensor.Matrix) []float32 {
				y := h.view(5, out, make([]float32, 5*out))
				h.ok(d.MatMul(y, x, m, false))
				return h.read(y)
			}
			want := products(whole)
			h.ok(finish())
			sameBits(t, "product", products(dst), want)
			ids := make([]int32, out)
			for i := range ids {
				ids[i] = int32(i)
			}
			rows := func(m tensor.Matrix) []float32 {
				y := h.view(out, in, make([]float32, out*in))
				h.ok(d.GatherRows(y, m, ids))
				return h.read(y)
			}
			sameBits(t, "rows", rows(dst), rows(whole))
		})
	}
	finish, err := d.StartCopies(nil)
	if err == nil {
		err = finish()
	}
	if err != nil {
		t.Error(err)
	}
}
