package runs

import (
	"context"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// slowVersions writes weights in the background only when the test says so, each time for one version.
type slowVersions struct {
	plugins.Backend
	goOn chan struct{}
}

func (b slowVersions) SaveAdapter(ctx context.Context, req plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if req.Position == 0 && req.Scope == plugins.ScopeWeights {
		select {
		case <-b.goOn:
		case <-ctx.Done():
			return plugins.SaveAdapterResult{}, ctx.Err()
		}
	}
	return b.Backend.SaveAdapter(ctx, req)
}

// However many versions of samplers wait for the disk, a run's state is written after the one that is written just then, and the next run's after that: else a server that is always busy would have to compute everything again.
func TestPointsAmongManyVersions(t *testing.T) {
	goOn := make(chan struct{})
	w := newWorld(t, func(w *world) {
		w.config.PointOperations, w.config.DiskShare = 4, 1
		w.wrap = func(b plugins.Backend) plugins.Backend { return slowVersions{b, goOn} }
	})
	ctx := t.Context()
	session := w.session()
	list := []string{w.newRun(session, 0), w.newRun(session, 1)}
	for n, run := range list {
		for i := range int64(3) {
			w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, i+1), SamplerSeq: 3*int64(n) + i}))
		}
	}
	state := func(n int) (points, versions int, waits bool) {
		r := w.runs[list[n]]
		for _, s := range r.pins {
			if s.dir != "" {
				versions++
			}
		}
		return len(r.points), versions, r.writing
	}
	step := func(n int, seq int64) {
		w.good(w.ForwardBackward(ctx, w.pass(list[n], seq)))
		w.good(w.OptimStep(ctx, w.step(list[n], seq+1)))
	}
	step(0, 4)
	w.eventually(func() bool { _, _, waits := state(0); return waits })
	step(1, 4)
	w.Core.mu.Lock()
	if _, _, waits := state(1); waits {
		t.Error("two states are held in the backend's memory at a time")
	}
	w.Core.mu.Unlock()
	goOn <- struct{}{}
	w.eventually(func() bool { points, _, waits := state(0); return points == 1 && !waits })
	step(1, 6)
	w.eventually(func() bool { _, _, waits := state(1); return waits })
	goOn <- struct{}{}
	w.eventually(func() bool { points, _, _ := state(1); return points == 1 })
	w.Core.mu.Lock()
	_, first, _ := state(0)
	_, second, _ := state(1)
	w.Core.mu.Unlock()
	if first+second > 2 {
		t.Errorf("%d versions were written before the states", first+second)
	}
	close(goOn)
	w.eventually(func() bool {
		_, first, _ := state(0)
		_, second, _ := state(1)
		return first == 1 && second == 1 // three samplers of each have the same version, but for those after a step
	})
}

// shortLived is a process that does only the first operations of each adapter, until it is over.
type shortLived struct {
	plugins.Backend
	over chan struct{}
}

func (b shortLived) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	if req.Position > 4 {
		<-b.over
	}
	return b.Backend.ForwardBackward(ctx, req)
}

// A rebuild that takes long writes the state that it has reached: where processes do not live as long as it takes, each brings it further.
func TestRebuildThatIsCutOff(t *testing.T) {
	const steps = 12
	w := newWorld(t, func(w *world) { w.config.DiskShare = 1 })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	for i := range int64(steps) {
		w.good(w.ForwardBackward(ctx, w.pass(run, 2*i+1)))
		w.good(w.OptimStep(ctx, w.step(run, 2*i+2)))
	}
	w.config.PointOperations = 4
	lives, before := 0, make(chan struct{})
	for lose := (*world).restart; ; lose = (*world).restartBackend {
		over := make(chan struct{})
		w.mu.Lock()
		w.wrap = func(b plugins.Backend) plugins.Backend { return shortLived{b, over} }
		w.mu.Unlock()
		lose(w)
		close(before)
		before = over
		lives++
		rebuilt := false
		w.eventually(func() bool {
			r := w.runs[run]
			rebuilt = r.rebuild == nil && r.boot != ""
			return rebuilt || slices.ContainsFunc(r.points, func(p *recoveryPoint) bool { return p.Seq == int64(4*lives) })
		})
		if rebuilt {
			break
		}
	}
	close(before)
	if lives != steps/2 {
		t.Errorf("it took %d processes, each of which could do 2 of %d steps", lives, steps)
	}
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if r := w.runs[run]; r.Inexact != "" || r.live.step != steps {
		t.Errorf("the run is at step %d of %d: %s", r.live.step, steps, r.Inexact)
	}
}
