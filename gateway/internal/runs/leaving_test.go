package runs

import (
	"slices"
	"strings"
	"testing"
)

// leave asks the process of a backend to end.
func (p *pool) leave(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.members[name].leaving)
}

// released is why the processes of a backend were given back.
func (p *pool) released(name string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.members[name].released)
}

// TestPoolLeaving: a backend that is to end is given back when its runs are elsewhere; its next process takes work again; and the results are those of a run that never moved. The last one is given back at once.
func TestPoolLeaving(t *testing.T) {
	const steps = 10
	want := neverMoved(t, steps)
	w, p := pooled(t, 2, nil)
	run := w.newRun(w.session(), 0)
	first := w.home(run)
	other := p.names[1-slices.Index(p.names, first)]
	done := make(chan []string)
	go func() { done <- w.learn(run, 0, steps) }()
	w.eventually(func() bool { return w.runs[run].live.step >= 2 })
	p.leave(first)
	w.eventually(func() bool { return len(p.released(first)) == 1 })
	if got := w.home(run); got != other {
		t.Errorf("the run is in %s, and %s was given back", got, first)
	}
	if why := p.released(first)[0]; !strings.Contains(why, "nothing of it is used") {
		t.Error(why)
	}
	p.begin(first)
	w.eventually(func() bool { s := w.models[0].slots[slices.Index(p.names, first)]; return s.usable() })
	w.ok(w.Drain(t.Context(), first, true)) // by somebody: that stays
	p.leave(first)
	w.eventually(func() bool { return len(p.released(first)) == 2 })
	p.begin(first)
	w.eventually(func() bool { s := w.models[0].slots[slices.Index(p.names, first)]; return s.running && s.drained })
	p.leave(other)
	w.eventually(func() bool { return len(p.released(other)) == 1 })
	if why := p.released(other)[0]; strings.Contains(why, "nothing of it is used") {
		t.Errorf("there was no other one, and it was waited for: %s", why)
	}
	p.begin(other)
	if got := <-done; !slices.Equal(got, want) {
		t.Errorf("the results differ from those of a run that never moved:\n%v\n%v", got, want)
	}
}
