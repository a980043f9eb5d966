package runs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// unnamedSteps trains a run for some steps, each followed by an unnamed sampler of which one sample is taken, and gives the samplers with what they said.
func (w *world) unnamedSteps(run string, from, steps int64) (ids, said []string) {
	w.t.Helper()
	for i := from; i < from+steps; i++ {
		w.good(w.ForwardBackward(w.t.Context(), w.pass(run, 3*i+1)))
		w.good(w.OptimStep(w.t.Context(), w.step(run, 3*i+2)))
		id := w.good(w.SaveWeightsForSampler(w.t.Context(), SaveWeightsForSampler{Operation: at(run, 3*i+3), SamplerSeq: i})).SavedSampler.SamplerID
		ids, said = append(ids, id), append(said, fmt.Sprint(w.sampled(w.sample(id, 0)).Sequences))
	}
	return ids, said
}

// onDisk is how many bytes the files of unnamed samplers have.
func (w *world) onDisk() int64 { return sizeOf(filepath.Join(w.dir, "snapshots")) }

// gone demands that a sample is refused because the weights made room, with some words.
func (w *world) gone(id string, seq int64, words ...string) {
	w.t.Helper()
	s, err := w.Sample(w.t.Context(), w.sample(id, seq))
	w.bad(Submitted{RequestID: s.RequestID}, err)(w.t, append(words, "sampling.unnamed_mib", "under a name")...)
}

// The files of a key's unnamed samplers are bounded, over many more steps than there is room for, and over a restart. The first and the newest of a run say what they said.
func TestUnnamedSamplersAreBounded(t *testing.T) {
	const steps, room = 60, 8
	one := int64(0)
	w := newWorld(t, func(w *world) { w.config.MaxHotSnapshots, w.config.DiskShare = 1, 1 })
	run := w.newRun(w.session(), 0)
	w.unnamedSteps(run, 0, 1)
	w.eventually(func() bool { one = w.unnamed[owner]; return one > 0 && one == w.onDisk() })
	w.Core.cfg.MaxUnnamedBytes, w.config.MaxUnnamedBytes = room*one+one/2, room*one+one/2
	session := w.session()
	run = w.newRun(session, 0)
	ids, said := w.unnamedSteps(run, 0, steps)
	settled := func() bool {
		onDisk := w.onDisk()
		return onDisk <= w.config.MaxUnnamedBytes && w.unnamed[owner] == onDisk
	}
	check := func(seq int64) {
		t.Helper()
		gone := 0
		for i, id := range ids {
			w.Core.mu.Lock()
			removed := w.samplers[id].Removed
			w.Core.mu.Unlock()
			if removed {
				gone++
				w.gone(id, seq, fmt.Sprintf("version %d of run %s", i+1, run))
			} else if got := fmt.Sprint(w.sampled(w.sample(id, seq)).Sequences); got != said[i] {
				t.Errorf("sampler %d says something else than before", i)
			}
			if removed && (i == 0 || i == len(ids)-1) {
				t.Errorf("sampler %d of %d is gone", i, len(ids))
			}
		}
		if gone < len(ids)-room-3 {
			t.Errorf("%d of %d are gone", gone, len(ids))
		}
	}
	w.eventually(settled)
	check(1)
	w.restart()
	w.eventually(settled)
	check(2)
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.eventually(func() bool {
		left, _ := filepath.Glob(filepath.Join(w.dir, "snapshots", run, "*"))
		return len(left) == 0
	})
}

// One that is asked again and again stays, whatever its age.
func TestUsedUnnamedSamplerStays(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.MaxHotSnapshots, w.config.DiskShare = 1, 1 })
	run := w.newRun(w.session(), 0)
	ids, said := w.unnamedSteps(run, 0, 2)
	w.eventually(func() bool { return w.samplers[ids[0]].snap.dir != "" && w.unnamed[owner] > 0 })
	w.Core.cfg.MaxUnnamedBytes = 5 * w.unnamed[owner]
	for i := range int64(20) {
		clock.add(time.Second)
		if got := fmt.Sprint(w.sampled(w.sample(ids[1], i+1)).Sequences); got != said[1] {
			t.Fatal("it says something else than before")
		}
		more, _ := w.unnamedSteps(run, 2+i, 1)
		ids = append(ids, more...)
	}
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if w.samplers[ids[1]].Removed || w.samplers[ids[0]].Removed || !w.samplers[ids[2]].Removed {
		t.Error("the wrong ones are gone")
	}
}

// Of two samplers of one version that a restart finds, of a run that has ended, one may say where the weights are and the other not yet. Both have them, in whatever order they are read.
func TestTwinsOfAnEndedRun(t *testing.T) {
	for name, dirs := range map[string][2]string{"first": {"snapshots/r/1~a", ""}, "second": {"", "snapshots/r/1~a"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			s := &session{}
			for i, dir := range dirs {
				s.samplers = append(s.samplers, &sampler{session: s, samplerRecord: samplerRecord{ID: fmt.Sprint("s", i), Owner: owner, RunID: "r", Unnamed: true, Version: 1, Seq: int64(i + 1), Dir: dir}})
			}
			for _, smp := range s.samplers {
				w.attachSnapshot(smp)
			}
			for _, smp := range s.samplers {
				if smp.snap.dir == "" || smp.snap.lost != "" {
					t.Errorf("%s: in %q, lost %q", smp.ID, smp.snap.dir, smp.snap.lost)
				}
			}
		})
	}
}

// A version that is gone and is the newest still comes back with the next unnamed save; the removal of its files does not take away what is written then.
func TestRemovedVersionIsSavedAgain(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.MaxHotSnapshots, w.config.DiskShare = 1, 1 })
	run := w.newRun(w.session(), 0)
	ids, said := w.unnamedSteps(run, 0, 1)
	w.eventually(func() bool { return w.samplers[ids[0]].snap.dir != "" })
	w.Core.mu.Lock()
	s := w.samplers[ids[0]].snap
	dir := s.dir
	s.hot = false
	w.uncount(owner, s)
	w.removeUnnamed([]*unnamedFile{{snap: s, runID: run, samplers: []*sampler{w.samplers[ids[0]]}}})
	w.Core.mu.Unlock()
	w.eventually(func() bool { _, err := os.Stat(w.file(dir)); return os.IsNotExist(err) })
	w.gone(ids[0], 1)
	again := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 4), SamplerSeq: 1})).SavedSampler.SamplerID
	w.eventually(func() bool { return w.samplers[again].snap.dir != "" })
	w.restart()
	for _, id := range []string{ids[0], again} {
		if got := fmt.Sprint(w.sampled(w.sample(id, 2)).Sequences); got != said[0] {
			t.Errorf("%s says something else than before", id)
		}
	}
	var left []store.Record
	w.ok(w.cfg.Store.All(context.Background(), inDeletions, func(r store.Record) error { left = append(left, r); return nil }))
	if len(left) > 0 {
		t.Errorf("%d deletions are left", len(left))
	}
}
