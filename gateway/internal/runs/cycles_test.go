package runs

import "testing"

// TestClockCyclesCountOn: no number of a clock cycle comes twice, whether the backend's process is replaced or the server is restarted.
func TestClockCyclesCountOn(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 1)
	seq, last := int64(0), int64(0)
	train := func(when string) {
		t.Helper()
		seq += 2
		pass := w.good(w.ForwardBackward(t.Context(), w.pass(run, seq-1))).ForwardBackward.Metrics["clock_cycle:unique"]
		step := w.good(w.OptimStep(t.Context(), w.step(run, seq))).OptimStep.Metrics["clock_cycle"]
		if int64(pass) <= last || step < pass {
			t.Fatalf("%s: a pass in cycle %v, its step in cycle %v, after cycle %d", when, pass, step, last)
		}
		last = int64(step)
	}
	train("at first")
	train("next")
	if last > 10 {
		t.Fatalf("two passes and two steps end in cycle %d", last)
	}
	for range 2 {
		before := last
		w.restartBackend()
		train("in a new process")
		if last > before+100 {
			t.Fatalf("one pass and its step led from cycle %d to %d", before, last)
		}
	}
	for range 2 {
		before := last
		w.restart()
		train("after a restart of the server")
		if last <= before/cycleBlock*cycleBlock+cycleBlock || last > before/cycleBlock*cycleBlock+cycleBlock+100 {
			t.Fatalf("after cycle %d and a restart of the server came cycle %d", before, last)
		}
		train("next")
	}
	for _, first := range w.Core.models[0].cycles.before {
		if first < cycleBlock {
			t.Errorf("a process of this server began at cycle %d", first)
		}
	}
}
