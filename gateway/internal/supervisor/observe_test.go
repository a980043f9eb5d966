package supervisor

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestObserve(t *testing.T) {
	s := newSupervisor(t, "fake", nil)
	var seen atomic.Int64
	s.Observe(func() {
		_ = s.State() // which an observer may ask for
		seen.Add(1)
	})
	before := seen.Load()
	startReady(t, s)
	if seen.Load() == before {
		t.Error("that it became ready was not observed")
	}
	for _, c := range []struct {
		name string
		edit func(*State)
		told int64
	}{
		{"a report of work", func(st *State) { st.Status.TrainedTokens += 5 }, 1},
		{"a report that says the same, later", func(st *State) {
			st.Status.Time, st.Reported, st.Status.LastProgressAge = time.Now(), time.Now(), st.Status.LastProgressAge+time.Second
		}, 0},
		{"a loss", func(st *State) { st.Restarts++ }, 1},
		{"progress", func(st *State) { st.Progress = plugins.LoadProgress{Done: 3, Total: 7} }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone := Supervisor{changed: make(chan struct{})}
			count := int64(0)
			alone.Observe(func() { count++ })
			alone.change(c.edit)
			if count != c.told {
				t.Errorf("told %d times", count)
			}
		})
	}
}
