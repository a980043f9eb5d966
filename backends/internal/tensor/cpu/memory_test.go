package cpu_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// resident is this process's memory in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc/self/statm: ", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// Memory that was given back is kept for the next of its size, zeroed if that is asked for, and leaves the process at Trim.
func TestFreedMemoryIsKeptUntilTrim(t *testing.T) {
	d := open(t, cpu.Options{Threads: 1})
	const rows, cols, bytes = 2048, 16384, 2048 * 16384 * 4
	ones := make([]float32, cols)
	for i := range ones {
		ones[i] = 1
	}
	fill := func(alloc func(tensor.DType, int, int) (tensor.Tensor, error)) tensor.Tensor {
		x, err := alloc(tensor.Float32, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		for r := range rows {
			if err := d.Upload(x.Slice(r, r+1), ones); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	d.Trim()
	before := resident(t)
	first := fill(d.AllocUnset)
	d.Free(first)
	if kept := resident(t) - before; kept < bytes*9/10 {
		t.Errorf("%d bytes are resident after %d were given back, want them kept", kept, bytes)
	}
	again, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, cols)
	for r := range rows {
		if err := d.Download(got, again.Slice(r, r+1)); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != 0 {
				t.Fatalf("element %d of row %d is %v in memory that was to be cleared", i, r, v)
			}
		}
	}
	d.Free(again)
	d.Trim()
	if left := resident(t) - before; left > bytes/10 {
		t.Errorf("%d bytes of %d are still resident after Trim", left, bytes)
	}
}

// Blocks that are too small for mappings of their own are given back too, also where others between them are still in use.
func TestSmallMemoryIsGivenBack(t *testing.T) {
	d := open(t, cpu.Options{Threads: 1})
	const n, rows, cols = 400, 64, 4096 // of 1 MiB
	values := make([]float32, cols)
	for i := range values {
		values[i] = 1
	}
	d.Trim()
	before := resident(t)
	var all []tensor.Tensor
	for range n {
		x, err := d.AllocUnset(tensor.Float32, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		for r := range rows {
			if err := d.Upload(x.Slice(r, r+1), values); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, x)
	}
	for i, x := range all {
		if i%10 != 9 {
			d.Free(x)
		}
	}
	d.Trim()
	if left := resident(t) - before; left > n<<20/4 {
		t.Errorf("%d bytes are still resident, a tenth of %d is in use", left, n<<20)
	}
	for i, x := range all {
		if i%10 == 9 {
			d.Free(x)
		}
	}
}
