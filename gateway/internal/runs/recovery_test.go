package runs

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// trained makes a run with a few steps.
func (w *world) trained(session string, n int64) string {
	w.t.Helper()
	run := w.newRun(session, n)
	for i := range int64(2) {
		w.good(w.ForwardBackward(w.t.Context(), w.pass(run, 2*i+1)))
		w.good(w.OptimStep(w.t.Context(), w.step(run, 2*i+2)))
	}
	return run
}

// eventually waits for what the core does in the background. The condition is asked with the core's lock held.
func (w *world) eventually(condition func() bool) {
	w.t.Helper()
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		w.Core.mu.Lock()
		ok := condition()
		w.countedRight()
		w.Core.mu.Unlock()
		if ok {
			return
		}
	}
	w.t.Fatal("it did not come to pass")
}

func TestAcceptedWorkSurvivesARestart(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "create_adapter", "seconds": 60}, {"operation": "sample", "seconds": 60}]}`
	})
	ctx := t.Context()
	session := w.session()
	created, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	id := w.baseSampler(session, 0)
	sampled, err := w.Sample(ctx, w.sample(id, 0))
	w.ok(err)
	w.Core.mu.Lock()
	drawn := *w.runs[created.RunID].LoRA.Seed
	w.Core.mu.Unlock()
	w.fake = `{"vocab_size": 64, "max_context_length": 128}`
	w.restart()
	if out := w.outcome(created.RequestID); out.Failure != nil || out.CreatedRun.RunID != created.RunID {
		t.Errorf("creation: %+v", out)
	}
	info, err := w.Run(ctx, owner, created.RunID, ScopeOwned)
	w.ok(err)
	if *info.LoRA.Seed != drawn {
		t.Errorf("the seed was drawn again")
	}
	out := w.outcome(sampled.RequestID)
	if out.Failure != nil {
		t.Fatal(out.Failure)
	}
	if again := w.sampled(w.sample(id, 1)); fmt.Sprint(again.Sequences) != fmt.Sprint(out.Sample.Sequences) {
		t.Error("the sample that ran again has other tokens")
	}
	w.good(w.ForwardBackward(ctx, w.pass(created.RunID, 1)))
}

func TestSamplesSurviveALostBackend(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "sample", "seconds": 0.3}]}`
	})
	id := w.baseSampler(w.session(), 0)
	want := w.sampled(w.sample(id, 0))
	s, err := w.Sample(t.Context(), w.sample(id, 1))
	w.ok(err)
	w.restartBackend()
	if out := w.outcome(s.RequestID); out.Failure != nil || fmt.Sprint(out.Sample.Sequences) != fmt.Sprint(want.Sequences) {
		t.Errorf("got %+v", out)
	}
}

func TestBackendThatStaysDead(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	w.mu.Lock()
	w.failed = errors.New("crashed 5 times, last words: out of memory")
	w.mu.Unlock()
	s, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	w.failure(w.outcome(s.RequestID), CategoryServer, "out of memory")
	_, err = w.Sample(ctx, w.sample(w.baseSampler(session, 0), 0))
	w.refused(err, KindBackend, "out of memory")
}

func TestUnloadKeepsUnnamedSamplers(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.trained(session, 0)
	id := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 0})).SavedSampler.SamplerID
	want := w.sampled(w.sample(id, 0))
	s, err := w.UnloadRun(ctx, owner, run)
	if out := w.good(s, err); out.UnloadedRun.RunID != run {
		t.Errorf("outcome %+v", out)
	}
	if again, err := w.UnloadRun(ctx, owner, run); err != nil || again != s {
		t.Errorf("a repeat: %v, %v", again, err)
	}
	_, err = w.OptimStep(ctx, w.step(run, 6))
	w.refused(err, KindNotFound, "unloaded")
	if got := w.sampled(w.sample(id, 1)); fmt.Sprint(got.Sequences) != fmt.Sprint(want.Sequences) {
		t.Error("the sampler changed with the unload")
	}
}

func TestManyUnnamedSaves(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.MaxHotSnapshots, w.config.MaxFrozen = 2, 3 })
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	var ids []string
	var want []string
	for i := range int64(10) {
		w.good(w.ForwardBackward(ctx, w.pass(run, 3*i+1)))
		w.good(w.OptimStep(ctx, w.step(run, 3*i+2)))
		id := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 3*i+3), SamplerSeq: i})).SavedSampler.SamplerID
		ids = append(ids, id)
		want = append(want, fmt.Sprint(w.sampled(w.sample(id, 0)).Sequences))
	}
	w.eventually(func() bool { return len(w.runs[run].hotSnapshots()) <= 2 })
	for i, id := range ids {
		if got := fmt.Sprint(w.sampled(w.sample(id, 1)).Sequences); got != want[i] {
			t.Errorf("sampler %d: got %s, want %s", i, got, want[i])
		}
	}
	w.eventually(func() bool { return len(w.models[0].slots[0].frozen) <= 3 })
	if list, n, err := w.Checkpoints(ctx, owner, Page{}, nil); err != nil || n != 0 || len(list) != 0 {
		t.Errorf("unnamed saves are listed: %v, %v", list, err)
	}
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	w.eventually(func() bool {
		left, _ := filepath.Glob(filepath.Join(w.dir, "snapshots", "*", "*"))
		return len(left) == 0
	})
}

// An unnamed sampler with a time to live gives its version back, but not while another one of the same version lives.
func TestUnnamedSamplerWithTTL(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	save := func(seq, sampler int64, ttl *int64) string {
		return w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, seq), SamplerSeq: sampler, TTLSeconds: ttl})).SavedSampler.SamplerID
	}
	short, long := save(5, 0, ttl(60)), save(6, 1, ttl(120))
	want := fmt.Sprint(w.sampled(w.sample(short, 0)).Sequences)
	clock.add(time.Minute)
	w.sweep(ctx, time.Second)
	_, err := w.Sample(ctx, w.sample(short, 1))
	w.refused(err, KindNotFound, "expired")
	if got := fmt.Sprint(w.sampled(w.sample(long, 0)).Sequences); got != want {
		t.Error("the other sampler changed")
	}
	if n := w.Stats(); n.LiveRuns != 1 || n.Sessions != 1 || n.QueuedOperations != 0 || n.WaitingSamples != 0 {
		t.Errorf("stats %+v", n)
	}
	clock.add(time.Minute)
	w.sweep(ctx, time.Second)
	w.eventually(func() bool { return len(w.runs[run].pins) == 0 })
}
