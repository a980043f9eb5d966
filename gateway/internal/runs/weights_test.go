package runs

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A sample that begins in a process which is replaced meanwhile, while its weights are in the next one already, begins again there: it does not wait for files that nobody writes.
func TestAcquireInAReplacedProcess(t *testing.T) {
	w := newWorld(t, nil)
	run := w.trained(w.session(), 0)
	saved := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 1}))
	w.Core.mu.Lock()
	snap := w.runs[run].pins[w.samplers[saved.SavedSampler.SamplerID].Version]
	old := w.models[0].slots[0].known
	w.Core.mu.Unlock()
	w.restartBackend()
	w.eventually(func() bool { r := w.runs[run]; return r.rebuild == nil && r.boot != "" && r.boot != old.BootID })
	w.Core.mu.Lock()
	hot, dir := snap.hot, snap.dir
	snap.hot, snap.dir = true, "" // before they are written
	w.Core.mu.Unlock()
	defer func() {
		w.Core.mu.Lock()
		snap.hot, snap.dir = hot, dir
		w.Core.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, _, err := w.acquire(ctx, old, source{snap: snap}); !errors.Is(err, errReplaced) {
		t.Errorf("got %v", err)
	}
}
