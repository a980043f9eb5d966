package runs

import (
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// TestDrainIsKept: what somebody drained stays so over restarts of the server, until it is taken back, or the configuration has other backends.
func TestDrainIsKept(t *testing.T) {
	w, p := pooled(t, 3, func(w *world) { w.config.Models[0].BackendsID = "three" })
	first, second, third := p.names[0], p.names[1], p.names[2]
	drained := func() (names []string) {
		for _, b := range w.BackendInfos() {
			if b.Drained {
				names = append(names, b.Name)
			}
		}
		return names
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := drained(); !slices.Equal(got, want) {
			t.Errorf("%s: drained are %v, want %v", when, got, want)
		}
	}
	reopen := func() {
		w.close()
		for _, name := range p.names {
			p.begin(name)
		}
		w.open()
	}
	w.ok(w.Drain(t.Context(), first, true))
	w.ok(w.Drain(t.Context(), third, true))
	w.refused(w.Drain(t.Context(), second, true), KindInvalid, second, "no other backend")
	w.refused(w.Drain(t.Context(), "nobody", true), KindNotFound, "nobody")
	reopen()
	expect("after a restart", first, third)
	run := w.newRun(w.session(), 0)
	if home := w.home(run); home != second {
		t.Errorf("a run was put into %s", home)
	}
	w.ok(w.Drain(t.Context(), third, false))
	reopen()
	expect("after one was taken back", first)

	// One that is to end by itself is drained until it has ended, unless somebody drains it too.
	w.eventually(func() bool { return w.models[0].slots[1].running && w.models[0].slots[2].running })
	p.leave(third)
	w.eventually(func() bool { return len(p.released(third)) > 0 })
	reopen()
	expect("after a backend had been asked to end", first)

	w.config.Models[0].BackendsID = "others"
	reopen()
	expect("with other backends")
	left := 0
	w.ok(w.store.All(t.Context(), inDrains, func(store.Record) error { left++; return nil }))
	if left > 0 {
		t.Errorf("%d records are left", left)
	}
}
