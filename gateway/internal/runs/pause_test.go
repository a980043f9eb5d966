package runs

import (
	"strings"
	"testing"
)

// What a client hears of a future that takes its time: nothing, that it has more here than is taken, or that the backend does nothing.
func TestPaused(t *testing.T) {
	w, open := gated(t, "sample", func(w *world) { w.config.MaxQueuedSamples = 1 })
	session := w.session()
	id := w.baseSampler(session, 0)
	s, err := w.Sample(t.Context(), w.sample(id, 0))
	w.ok(err)
	var idle string
	w.Core.cfg.Idle = func(string) string { return idle }
	expect := func(what string, limited bool, reason string) {
		t.Helper()
		if p := w.Paused(s.RequestID); p.Limited != limited || (p.Reason == "") != (reason == "") || !strings.Contains(p.Reason, reason) {
			t.Errorf("%s: %+v, want %v, %q", what, p, limited, reason)
		}
	}
	expect("a sample that waits", false, "")
	_, err = w.Sample(t.Context(), w.sample(id, 1))
	w.refused(err, KindBusy, "wait already")
	expect("behind a refusal", true, "1 samples of yours")
	idle = "the backend is restarting"
	expect("without a backend", false, idle)
	idle = ""
	w.Core.mu.Lock()
	a := w.owners[owner]
	a.refused = a.refused.Add(-2 * refusedFor)
	w.owners[owner] = a
	w.Core.mu.Unlock()
	expect("long behind it", false, "")
	close(open)
	if out := w.outcome(s.RequestID); out.Failure != nil {
		t.Error(out.Failure)
	}
	expect("a sample that is finished", false, "")
}
