package runs

import (
	"slices"
	"testing"
	"time"
)

// The state that a client sees of a sequence of numbers survives as well: what was skipped stays skipped, what waits for a missing number waits on.
func TestNumbersSurviveARestart(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.GapWait = 300 * time.Millisecond })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.ForwardBackward(ctx, w.pass(run, 4))) // 2 and 3 are skipped
	late, err := w.ForwardBackward(ctx, w.pass(run, 3))
	w.bad(late, err)(t, "missing for too long")
	w.config.GapWait = time.Hour // from here on nothing may be given up, however slow the machine is
	w.restart()
	waiting, err := w.ForwardBackward(ctx, w.pass(run, 6))
	w.ok(err)
	w.restart()
	late, err = w.ForwardBackward(ctx, w.pass(run, 2))
	w.bad(late, err)(t, "missing for too long")
	w.failure(w.outcome(run+":3"), CategoryUser, "missing for too long")
	between, err := w.OptimStep(ctx, w.step(run, 5))
	w.good(between, err)
	w.good(waiting, nil)
}

// An operation that comes after its number was given up is never run: not by a restart either that finds it without its result.
func TestLateOperationIsNotReplayed(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.NoteRefused(owner, run, 2)
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	f := w.failing(inResults)
	late, err := w.OptimStep(ctx, w.step(run, 2))
	w.ok(err)
	w.eventually(func() bool { return f.refused.Load() > 0 })
	w.restart()
	w.bad(late, nil)(t, "missing for too long")
	if out := w.good(w.OptimStep(ctx, w.step(run, 4))); out.OptimStep.Step != 1 {
		t.Errorf("step %d, want 1: the late one was run", out.OptimStep.Step)
	}
}

// What a restart finds missing below a number that has a result was skipped, and stays so, however often the server goes down before that is in the journal.
func TestSkipsFoundByARestart(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.GapWait = 100 * time.Millisecond })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	f := w.failing(inSkips)
	behind, err := w.OptimStep(ctx, w.step(run, 6)) // 2 to 5 never come in time
	w.ok(err)
	w.eventually(func() bool { return f.refused.Load() > 0 })
	late, err := w.ForwardBackward(ctx, w.pass(run, 5))
	w.bad(late, err)(t, "missing for too long")
	w.restart() // 5 has a result, and nothing says that 2 to 4 were skipped
	if out := w.good(behind, nil); out.OptimStep.Step != 1 {
		t.Errorf("step %d, want 1", out.OptimStep.Step)
	}
	f = w.failing(inResults)
	late, err = w.OptimStep(ctx, w.step(run, 4))
	w.ok(err)
	w.eventually(func() bool { return f.refused.Load() > 0 })
	w.restart()
	w.bad(late, nil)(t, "missing for too long")
	if out := w.good(w.OptimStep(ctx, w.step(run, 7))); out.OptimStep.Step != 2 {
		t.Errorf("step %d, want 2", out.OptimStep.Step)
	}
}

// A pass that came too late has failed, but not within the run: the next step does not miss it, and no more after a rebuild.
func TestLatePassIsNoPartOfTheRun(t *testing.T) {
	for name, lose := range map[string]func(*world){"nothing is lost": func(*world) {}, "the backend": (*world).restartBackend, "the server": (*world).restart} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(w *world) { w.config.GapWait = 50 * time.Millisecond })
			ctx := t.Context()
			run := w.newRun(w.session(), 0)
			w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
			w.good(w.OptimStep(ctx, w.step(run, 2)))
			score := w.pass(run, 4)
			score.ForwardOnly = true
			w.good(w.ForwardBackward(ctx, score))
			late, err := w.ForwardBackward(ctx, w.pass(run, 3))
			w.bad(late, err)(t, "missing for too long")
			lose(w)
			w.good(w.OptimStep(ctx, w.step(run, 5)))
		})
	}
}

// A number that was refused while lower ones were missing can be used after all, and its operation is run by a restart too.
func TestRefusedNumberIsUsedAfterAll(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.GapWait = time.Hour }) // number 1 is not given up, however slow the machine is
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.NoteRefused(owner, run, 2)
	second, err := w.OptimStep(ctx, w.step(run, 2))
	w.ok(err)
	w.restart()
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(second, nil)
}

func TestSequencerRestore(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		h    runHistory
		next int64
		held []int64
		gone []int64
	}{
		{"nothing", runHistory{}, 1, nil, nil},
		{"all there", runHistory{known: []int64{1, 2, 3}, decided: 3}, 4, nil, nil},
		{"some unfinished", runHistory{known: []int64{1, 2, 3}, decided: 1}, 4, nil, nil},
		{"a gap above what is decided", runHistory{known: []int64{1, 2, 5, 6}, decided: 2}, 3, []int64{5, 6}, nil},
		{"a gap below what is decided", runHistory{known: []int64{1, 5}, decided: 5}, 6, nil, []int64{2, 3, 4}},
		{"a journalled gap", runHistory{known: []int64{1, 4}, skipped: []span64{{2, 4}}, decided: 1}, 5, nil, []int64{2, 3}},
		{"one that came late", runHistory{known: []int64{1, 2, 4}, skipped: []span64{{2, 4}}, decided: 4}, 5, nil, []int64{2, 3}},
		{"a refused number at the end", runHistory{known: []int64{1}, skipped: []span64{{2, 3}}, decided: 1}, 3, nil, []int64{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSequencer(time.Second)
			s.restore(c.h, now)
			var held []int64
			for n := range s.held {
				held = append(held, n)
			}
			slices.Sort(held)
			if s.next != c.next || !slices.Equal(held, c.held) {
				t.Errorf("next %d, held %v; want %d, %v", s.next, held, c.next, c.held)
			}
			for n := range int64(8) {
				if s.wasSkipped(n) != slices.Contains(c.gone, n) {
					t.Errorf("number %d: skipped %t", n, s.wasSkipped(n))
				}
			}
		})
	}
}

// An earlier process skipped a number, and ended before it skipped a lower one too.
func TestSkipsBelowThoseOfAnEarlierProcess(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newSequencer(time.Second)
	s.restore(runHistory{known: []int64{1, 3, 5, 6}, skipped: []span64{{4, 5}}, decided: 1}, now)
	if ready := s.overdue(now.Add(time.Second)); !slices.Equal(ready, []int64{3, 5, 6}) {
		t.Errorf("%v are ready", ready)
	}
	if fresh := s.newlySkipped(); !slices.Equal(fresh, []span64{{2, 3}}) {
		t.Errorf("%v were skipped", fresh)
	}
	for n := range int64(8) {
		if got, want := s.wasSkipped(n), n == 2 || n == 4; got != want {
			t.Errorf("number %d: skipped %t", n, got)
		}
	}
	// The lower one may come in time, too: then nothing is waited for that was skipped.
	s = newSequencer(time.Second)
	s.restore(runHistory{known: []int64{1, 3, 5, 6}, skipped: []span64{{4, 5}}, decided: 1}, now)
	if ready, ok := s.arrive(2, now); !ok || !slices.Equal(ready, []int64{2, 3, 5, 6}) {
		t.Errorf("%v are ready", ready)
	}
}
