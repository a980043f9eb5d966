package runs

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// learners are so many runs that have made a step each, behind a gate of their passes.
func (w *world) learners(n int64, open chan struct{}) (list []string) {
	w.t.Helper()
	ctx, session := w.t.Context(), w.session()
	for i := range n {
		run := w.newRun(session, i)
		list = append(list, run)
		pass, err := w.ForwardBackward(ctx, w.pass(run, 1))
		open <- struct{}{}
		w.good(pass, err)
		w.good(w.OptimStep(ctx, w.step(run, 2)))
	}
	return list
}

// Of many runs only some are rebuilt at a time; the next is the one whose client waits longest, then the one that only a sample waits for, and those that nobody waits for come last.
func TestRebuildsTakeTurns(t *testing.T) {
	const more = 4
	w, open := gated(t, "forward_backward", nil)
	ctx := t.Context()
	list := w.learners(rebuildsAtOnce+more, open)
	w.restartBackend()
	queue := func() *rebuildQueue { return &w.byName[base].slots[0].rebuilds }
	w.eventually(func() bool { return queue().going == rebuildsAtOnce && len(queue().waiting) == more })
	var waiting []string
	w.Core.mu.Lock()
	for _, run := range list {
		if w.runs[run].rebuild.in == nil {
			waiting = append(waiting, run)
		}
	}
	w.Core.mu.Unlock()
	if len(waiting) != more {
		t.Fatalf("%d runs wait, not %d", len(waiting), more)
	}
	for i, run := range []string{waiting[3], waiting[1]} {
		_, err := w.SaveWeights(ctx, SaveWeights{Operation: at(run, 3), Name: "wanted-" + itoa(int64(i))})
		w.ok(err)
	}
	_, err := w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(waiting[2], 3), SamplerSeq: 0})
	w.ok(err)
	for _, next := range []string{waiting[3], waiting[1], waiting[2], waiting[0]} {
		open <- struct{}{} // one of those that are rebuilt ends
		w.eventually(func() bool {
			r := w.runs[next]
			return r.rebuild == nil || r.rebuild.in != nil
		})
	}
	close(open)
	w.eventually(func() bool {
		for _, run := range list {
			if w.runs[run].rebuild != nil {
				return false
			}
		}
		return queue().going == 0 && len(queue().waiting) == 0
	})
}

// A process that goes away takes none of the places with it, and a run that ends while it waits leaves the queue.
func TestRebuildTurnsAreGivenBack(t *testing.T) {
	const more = 2
	w, open := gated(t, "forward_backward", nil)
	list := w.learners(rebuildsAtOnce+more, open)
	queue := func() *rebuildQueue { return &w.byName[base].slots[0].rebuilds }
	full := func(waiting int) bool { return queue().going == rebuildsAtOnce && len(queue().waiting) == waiting }
	w.restartBackend()
	w.eventually(func() bool { return full(more) })
	var left string
	w.Core.mu.Lock()
	left = queue().waiting[0].run.ID
	w.loseRun(w.runs[left], "the test has ended it")
	w.Core.mu.Unlock()
	w.eventually(func() bool { return full(more - 1) })
	next := make(chan struct{})
	w.mu.Lock()
	w.wrap = func(b plugins.Backend) plugins.Backend { return gate{b, "forward_backward", next} }
	w.mu.Unlock()
	w.restartBackend()
	close(open) // what the process before had comes back
	w.eventually(func() bool {
		now, _ := w.byName[base].slots[0].current()
		n := 0
		for _, run := range list {
			if b := w.runs[run].rebuild; b != nil && b.in != nil && b.boot == now.BootID && b.loaded {
				n++
			}
		}
		return n == rebuildsAtOnce && full(more-1)
	})
	close(next)
	w.eventually(func() bool {
		for _, run := range list {
			if r := w.runs[run]; run != left && (r.rebuild != nil || r.State != stateLive) {
				return false
			}
		}
		return queue().going == 0 && len(queue().waiting) == 0
	})
}
