package runs

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// countedRight compares what is counted of runs while they change with a count of all of them. mu of the core is held.
func (w *world) countedRight() {
	w.t.Helper()
	for _, m := range w.models {
		all, want := w.residents(m), newResidents(len(m.slots))
		active := []string{}
		for _, r := range w.runs {
			if r.model != m || r.home == nil || !r.usable() {
				continue
			}
			is := residence{home: r.home, at: r.home, active: w.active(r), rebuilt: r.rebuild != nil}
			if r.moving != nil {
				is.at = r.moving.to
			}
			counted := *r
			counted.resident = is
			want.add(&counted, 1)
			delete(want.places[is.home.index].homes, &counted)
			want.places[is.home.index].homes[r] = struct{}{}
			if w.Core.cfg.now().Sub(r.LastRequest) < activeFor {
				active = append(active, r.ID)
			}
		}
		for i, place := range want.places {
			if got := all.places[i]; !maps.Equal(got.homes, place.homes) || got.leaving != place.leaving || got.runs != place.runs || got.active != place.active {
				w.t.Errorf("backend %d is thought to have %+v, and has %+v", i, got, place)
			}
		}
		if all.rebuilding != want.rebuilding {
			w.t.Errorf("%d are thought to be rebuilt, and %d are", all.rebuilding, want.rebuilding)
		}
		if got, want := spreads(all), spreads(&want); !slices.Equal(got, want) {
			w.t.Errorf("owners are thought to have active runs at %v, and have them at %v", got, want)
		}
		var recent []string
		for e := all.recent.Front(); e != nil; e = e.Next() {
			r := e.Value.(*run)
			if before := e.Prev(); before != nil && before.Value.(*run).LastRequest.After(r.LastRequest) {
				w.t.Errorf("run %s had its last request before the one behind it", r.ID)
			}
			recent = append(recent, r.ID)
		}
		if slices.Sort(recent); !slices.Equal(recent, slices.Sorted(slices.Values(active))) {
			w.t.Errorf("%v are thought to have had a request a moment ago, and had one %v", recent, active)
		}
	}
}

// spreads are those of all owners, as a text each.
func spreads(all *residents) []string {
	var out []string
	for owner, of := range all.owners {
		text := fmt.Sprint(owner, " ", of.all)
		for kind, places := range []map[*slot]int{of.homes, of.placed} {
			for _, s := range slices.SortedFunc(maps.Keys(places), func(a, b *slot) int { return a.index - b.index }) {
				text += fmt.Sprint(" ", kind, ":", s.index, "=", places[s])
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// movedClock is the time, and what moves it on.
func movedClock() (now func() time.Time, later func(time.Duration)) {
	passed := new(atomic.Int64)
	return func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }, func(d time.Duration) { passed.Add(int64(d)) }
}

// Runs are counted where they are as they come, work, rest, move and end.
func TestPoolCountsRuns(t *testing.T) {
	now, later := movedClock()
	w, p := pooled(t, 3, func(w *world) { w.config.Now = now })
	session := w.session()
	count := func(wanted ...int) {
		t.Helper()
		w.Core.mu.Lock()
		defer w.Core.mu.Unlock()
		w.countedRight()
		got := []int{0, 0, 0}
		for _, place := range w.residents(w.models[0]).places {
			got[0], got[1], got[2] = got[0]+place.runs, got[1]+place.active, got[2]+place.leaving
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("there are %v runs, active ones and leaving ones, want %v", got, wanted)
		}
	}
	count(0, 0, 0)
	made := []string{}
	for n := range int64(6) {
		made = append(made, w.trained(session, n))
	}
	count(6, 6, 0)
	later(activeFor / 2)
	w.good(w.ForwardBackward(t.Context(), w.pass(made[0], 5)))
	count(6, 6, 0)
	later(activeFor/2 + time.Second)
	count(6, 1, 0)
	later(activeFor)
	count(6, 0, 0)
	w.ok(w.Drain(t.Context(), p.names[1], true))
	w.eventually(func() bool {
		has := w.residents(w.models[0]).places[1]
		return has.runs == 0 && len(has.homes) == 0
	})
	count(6, 0, 0)
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.eventually(func() bool {
		return w.residents(w.models[0]).places[0].runs == 0 && w.residents(w.models[0]).places[2].runs == 0
	})
	count(0, 0, 0)
}
