package engine

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// A save copies an adapter from the device some bytes at a time. In between the device does other things, the adapter may even be moved out of memory, and the checkpoint is the same byte for byte.
func TestSaveInVisits(t *testing.T) {
	e, f, _ := startScratch(t)
	d := create(t, e, "a", 1, 4)
	data := randomData(rand.New(rand.NewPCG(5, 5)), 3, 20)
	d.pass(data)
	d.step()
	d.pass(data)
	save := func(visit int, crowded bool) (files map[string][]byte, visits int) {
		copied, largest, moving := 0, 0, false // bytes of this visit, and of the largest piece
		moveOut := func() {                    // what is asked for in a visit comes next, before another visit
			visits, copied, moving = visits+1, 0, true
			for moved := crowded; moved; {
				var err error
				if moved, err = e.loaded.adapters.moveOut(0); err != nil {
					t.Error(err)
				}
			}
			moving = false
		}
		hook(t, e, func() {
			e.visit = visit
			f.download = func(n int) error {
				if moving {
					return nil
				}
				if copied == 0 {
					e.call(moveOut)
				}
				copied, largest = copied+4*n, max(largest, 4*n)
				if copied > max(visit, largest) && !crowded {
					t.Errorf("with visits of %d bytes, %d were copied in one", visit, copied)
				}
				return nil
			}
		})
		path := filepath.Join(t.TempDir(), "c")
		if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Position: d.position(), Scope: plugins.ScopeAccumulator, Path: path}); err != nil {
			t.Fatal(err)
		}
		hook(t, e, func() { f.download = nil })
		return archive(t, path), visits
	}
	want, visits := save(visitBytes, false)
	if visits != 3 { // one for each file
		t.Errorf("a small adapter was copied in %d visits", visits)
	}
	for _, c := range []struct {
		name        string
		visit       int
		crowded     bool // the adapter is moved out of memory after each visit
		least, most int  // visits
	}{
		{"a row at a time", 1, false, 500, math.MaxInt},
		{"less than a tensor", 300, false, 100, math.MaxInt},
		{"several tensors", 4 << 10, false, 20, 400},
		{"moved out in between", 300, true, 3, 6}, // each file's rest at once when it is back
	} {
		t.Run(c.name, func(t *testing.T) {
			got, visits := save(c.visit, c.crowded)
			if visits < c.least || visits > c.most {
				t.Errorf("there were %d visits", visits)
			}
			if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
				t.Fatalf("files %v, want %v", a, b)
			}
			for name := range want {
				if !bytes.Equal(got[name], want[name]) {
					t.Errorf("%s is not the same", name)
				}
			}
		})
	}
}
