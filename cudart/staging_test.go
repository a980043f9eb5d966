package cudart

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copies counts the copies to the device that f puts into streams.
func copies(t *testing.T, f func() error) int {
	t.Helper()
	file := filepath.Join(t.TempDir(), "calls")
	t.Setenv("FAKE_CUDA_COUNT", file)
	defer t.Setenv("FAKE_CUDA_COUNT", "")
	if err := f(); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(calls), "cuMemcpyHtoDAsync_v2\n")
}

// A list is copied once until the host waits, however often it is put, recorded or not; what lies in memory that has been filled anew, what could not be
// copied and what another stream has is copied again.
func TestListsAreCopiedOnce(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	list := []byte("positions")
	put := func(n int, data []byte) func() error {
		return func() error {
			for range n {
				if _, _, err := v.Put(data); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, c := range []struct {
		name string
		do   func() error
		want int
	}{
		{"at first", put(5, list), 1},
		{"again", put(5, list), 0},
		{"the beginning of it", put(1, list[:4]), 1},
		{"as long", put(1, []byte("positiont")), 1},
		{"recorded", func() error { return v.Record(put(5, []byte("recorded"))) }, 1},
		{"recorded again", func() error { return v.Record(put(5, []byte("recorded"))) }, 0},
		{"after the host has waited", func() error { return errors.Join(v.Synchronize(), put(2, list)()) }, 1},
		{"a long one", put(3, make([]byte, mostRemembered+1)), 3},
		{"in the half before", func() error { return errors.Join(put(1, make([]byte, stageHalf))(), put(1, list)()) }, 1},
		{"in a half that is filled anew", func() error { return errors.Join(put(1, make([]byte, stageHalf))(), put(1, list)()) }, 2},
		{"in the second stream", func() error {
			join, err := v.Aside(put(2, list))
			return errors.Join(err, join())
		}, 2},
		{"what only that had", func() error {
			join, err := v.Aside(put(1, []byte("aside")))
			return errors.Join(err, join(), put(1, []byte("aside"))())
		}, 2},
	} {
		if got := copies(t, c.do); got != c.want {
			t.Errorf("%s: %d copies, want %d", c.name, got, c.want)
		}
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuMemcpyHtoDAsync_v2:1:1")
	if _, _, err := v.Put([]byte("lost")); err == nil {
		t.Error("a copy that fails is no error")
	}
	if err := v.Record(put(1, []byte("lost, too"))); err != nil { // the first call of those that are counted has failed
		t.Error(err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "")
	if got := copies(t, put(2, []byte("lost"))); got != 1 {
		t.Errorf("%d copies of what was not copied", got)
	}
}

// Kernels read the lists that they were given, in whatever order lists come, are recorded, come again and overwrite one another before the device does
// anything.
func TestListsThatComeAgain(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	v := openDevice(t, openDriver(t), 0)
	const columns, results = 64, 400
	x := View{At: alloc(t, v, 4*columns), Rows: 1, Cols: columns, Stride: columns}
	y := View{At: alloc(t, v, 4*results), Rows: 1, Cols: 1, Stride: 1}
	values := make([]float32, columns)
	for i := range values {
		values[i] = float32(i)
	}
	if err := v.Upload(x.At, 4*columns, bytesOf(values), 4*columns, 1); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	want, got := make([]float32, results), make([]float32, results)
	gather := func(i int) error {
		column := int32(random.IntN(8)) // few different lists
		want[i] = float32(column)
		at, release, err := v.Put(bytesOf([]Element{{Column: column}}))
		if err != nil {
			return err
		}
		to := y
		to.At += Address(4 * i)
		return errors.Join(v.GatherElements(to, x, at), release())
	}
	for i := 0; i < results; {
		var err error
		switch random.IntN(8) {
		case 0:
			_, _, err = v.Put(make([]byte, random.IntN(stageHalf)))
		case 1:
			if random.IntN(10) == 0 {
				err = v.Synchronize()
			}
		case 2:
			n := min(results-i, 40)
			err = v.Record(func() error {
				for j := range n {
					if err := gather(i + j); err != nil {
						return err
					}
				}
				return nil
			})
			i += n
		default:
			err = gather(i)
			i++
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Download(bytesOf(got), y.At, 4*results, 4*results, 1); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("element %d is %g, want %g", i, got[i], want[i])
		}
	}
}
