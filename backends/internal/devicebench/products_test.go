package main

import (
	"testing"

	"github.com/tinsmith/tinsmith/cudart"
)

// The report says for how many shapes cuBLASLt has the kernels' bits, and which it has not.
func TestComparedWithCuBLASLt(t *testing.T) {
	shape := func(rows int64) cudart.ProductShape { return cudart.ProductShape{Columns: 8, Depth: 16, Rows: rows} }
	products := []cudart.LibraryProduct{{ProductShape: shape(256), Kernels: 100, Library: 96}, {ProductShape: shape(512), Kernels: 100, Library: 94}}
	left := []cudart.LeftOut{{ProductShape: shape(1024), Reason: "element (0, 1) is 0x1 and not 0x2"}, {ProductShape: shape(2048), Reason: "there is none", None: true}}
	for _, c := range []struct {
		name  string
		found cudart.LibraryCheck
		want  string
	}{
		{"all", cudart.LibraryCheck{Products: products}, "equal; faster, and so used, for 1 of 2 shapes"},
		{"not added to", cudart.LibraryCheck{Products: products, Accumulates: "other bits"}, "equal; faster, and so used, for 1 of 2 shapes; not where an output is added to: other bits"},
		{"some", cudart.LibraryCheck{Products: products, LeftOut: left}, "equal for 2 of 4 shapes; faster, and so used, for 1 of 4 shapes; left to the kernels: up to 1024 rows, 8 columns, 16 deep (element (0, 1) is 0x1 and not 0x2); " +
			"up to 2048 rows, 8 columns, 16 deep (there is none)"},
		{"none", cudart.LibraryCheck{LeftOut: left[:1]}, "equal for 0 of 1 shapes; faster, and so used, for 0 of 1 shapes; left to the kernels: up to 1024 rows, 8 columns, 16 deep (element (0, 1) is 0x1 and not 0x2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := comparedWithCuBLASLt(c.found); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
