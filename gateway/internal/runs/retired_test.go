package runs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// held counts what a core keeps in memory.
func (w *world) held() string {
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	m := w.models[0]
	return fmt.Sprintf("%d sessions, %d runs, %d samplers, %d checkpoints, %d futures, %d owners and %d bytes with samples, %d bytes of passes, %d queues, %d waiting, %d running, %d busy, %d suspects, %d frozen",
		len(w.sessions), len(w.runs), len(w.samplers), len(w.checkpoints), len(w.futures), len(w.owners), w.promptBytes, w.passBytes, len(m.samples.owners), len(m.samples.waiting), m.samples.running,
		len(m.slots[0].inquest.busy), len(m.slots[0].inquest.suspects), len(m.slots[0].frozen))
}

// quiet waits until nothing of ended sessions goes on, and sweeps.
func (w *world) quiet() {
	w.t.Helper()
	w.eventually(func() bool {
		for _, s := range w.sessions {
			if s.pending > 0 {
				return false
			}
		}
		return len(w.futures) == 0
	})
	w.sweep(w.t.Context(), time.Second)
}

// life is a session from its beginning to its end: training, a save, samples of the base model and of an unnamed save.
func (w *world) life() (session, run, sampler string) {
	w.t.Helper()
	ctx := w.t.Context()
	session = w.session()
	run = w.trained(session, 0)
	out := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 0}))
	sampler = out.SavedSampler.SamplerID
	w.sampled(w.sample(sampler, 0))
	named := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 6), Name: "state"}))
	w.ok(w.DeleteCheckpoint(ctx, owner, named.Saved.Path, ""))
	w.ok(w.FinishSession(ctx, owner, session, "success", "done"))
	return session, run, sampler
}

func TestMemoryOfSessionsThatCameAndWent(t *testing.T) {
	w, clock := clocked(t, nil)
	empty := w.held()
	for range 20 {
		w.life()
	}
	w.quiet()
	if w.held() == empty {
		t.Fatal("a session that has just ended must not leave the memory yet")
	}
	clock.add(retireAfter + time.Second)
	w.quiet()
	if got := w.held(); got != empty {
		t.Errorf("the core holds %s, at first it held %s", got, empty)
	}
	w.restart()
	if got := w.held(); got != empty {
		t.Errorf("after a restart the core holds %s, at first it held %s", got, empty)
	}
}

func TestRetiredSessionStaysReadable(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	first, run, sampler := w.life()
	second, _, _ := w.life()
	before, err := w.Session(ctx, owner, first)
	w.ok(err)
	described, err := w.Run(ctx, owner, run, ScopeOwned)
	w.ok(err)
	leave := func() {
		t.Helper()
		clock.add(retireAfter + time.Second)
		w.quiet()
		w.Core.mu.Lock()
		defer w.Core.mu.Unlock()
		if n := len(w.sessions) + len(w.runs) + len(w.samplers); n != 0 {
			t.Fatalf("%d sessions, runs and samplers are in memory", n)
		}
	}
	for _, c := range []struct {
		name string
		ask  func() error
		kind Kind // 0: it succeeds
	}{ // what needs the results and the journal first: they are kept for ten minutes only
		{"repeated operation", func() error { _, err := w.OptimStep(ctx, w.step(run, 4)); return err }, 0},
		{"result of a step", func() error { _, err := w.Wait(ctx, owner, run+":4", 0); return err }, 0},
		{"result of a sample", func() error { _, err := w.Wait(ctx, owner, sampler+":0", 0); return err }, 0},
		{"foreign result", func() error { _, err := w.Wait(ctx, other, run+":4", 0); return err }, KindNotFound},
		{"timeline", func() error {
			token, _, err := w.TraceToken(ctx, Requester{Owner: owner}, first)
			if err != nil {
				return err
			}
			_, events, err := w.Trace(ctx, token)
			if err == nil && len(events) != 8 {
				t.Errorf("%d events", len(events))
			}
			return err
		}, 0},
		{"heartbeat", func() error { return w.Heartbeat(ctx, owner, first) }, KindGone},
		{"foreign heartbeat", func() error { return w.Heartbeat(ctx, other, first) }, KindNotFound},
		{"finish again", func() error { return w.FinishSession(ctx, owner, first, "success", "") }, 0},
		{"new run", func() error {
			_, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: first, ModelSeq: 1, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
			return err
		}, KindForbidden},
		{"new sampler", func() error {
			_, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: first, Seq: 4, BaseModel: base})
			return err
		}, KindForbidden},
		{"new operation", func() error { _, err := w.OptimStep(ctx, w.step(run, 9)); return err }, KindNotFound},
		{"sample", func() error { _, err := w.Sample(ctx, w.sample(sampler, 1)); return err }, KindNotFound},
		{"checkpoints", func() error { _, err := w.RunCheckpoints(ctx, owner, run); return err }, 0},
		{"session", func() error {
			got, err := w.Session(ctx, owner, first)
			before.LastHeartbeat, got.LastHeartbeat = time.Time{}, time.Time{}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", before) {
				t.Errorf("got %+v, want %+v", got, before)
			}
			return err
		}, 0},
		{"run", func() error {
			got, err := w.Run(ctx, owner, run, ScopeOwned)
			got.LoRA.Seed, described.LoRA.Seed = nil, nil
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", described) {
				t.Errorf("got %+v, want %+v", got, described)
			}
			return err
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			leave()
			err := c.ask()
			var e *Error
			if c.kind == 0 && err != nil || c.kind != 0 && (!errors.As(err, &e) || e.Kind != c.kind) {
				t.Errorf("got %v", err)
			}
		})
	}

	leave()
	if ids, total, err := w.Sessions(ctx, owner, Page{}); err != nil || total != 2 || ids[0] != second || ids[1] != first {
		t.Errorf("listed %v of %d, %v", ids, total, err)
	}
	found, _, err := w.SearchSessions(ctx, owner, SessionQuery{SessionID: first, Statuses: []SessionStatus{{Type: StatusFinished, Reason: "success"}}})
	if err != nil || len(found) != 1 || found[0].ID != first {
		t.Errorf("found %+v, %v", found, err)
	}
	w.ok(w.AssignProject(ctx, owner, first, "later"))
	leave()
	if runs, total, err := w.Runs(ctx, owner, RunQuery{ProjectID: "later"}); err != nil || total != 1 || runs[0].ID != run || runs[0].Live {
		t.Errorf("runs %+v of %d, %v", runs, total, err)
	}
	// Its results go in their time, also over a restart, and those of samples a day later.
	w.restart()
	leave()
	_, err = w.Wait(ctx, owner, run+":4", 0)
	w.refused(err, KindNotFound)
	_, err = w.Wait(ctx, owner, sampler+":0", 0)
	w.ok(err)
	clock.add(w.cfg.SamplesKept)
	leave()
	_, err = w.Wait(ctx, owner, sampler+":0", 0)
	w.refused(err, KindNotFound)
	for _, next := range []string{resultsNext, samplesNext} {
		if left, err := w.store.List(ctx, inRetired, next, store.Range{}, 0); err != nil || len(left) != 0 {
			t.Errorf("the schedule has %v of %s, %v", left, next, err)
		}
	}
}

func TestSessionWithACheckpoint(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	session := w.session()
	w.ok(w.AssignProject(ctx, owner, session, "before"))
	run := w.trained(session, 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	in := func() bool {
		w.quiet()
		w.Core.mu.Lock()
		defer w.Core.mu.Unlock()
		return w.sessions[session] != nil && w.runs[run] != nil
	}
	told := func(when, project string) {
		t.Helper()
		if list, err := w.StorageUsage(ctx, owner, ""); err != nil || len(list) != 1 || list[0].ProjectID != project || list[0].Checkpoints != 1 {
			t.Errorf("%s: storage %+v, %v", when, list, err)
		}
		if list, total, err := w.Checkpoints(ctx, owner, Page{}, nil); err != nil || total != 1 || list[0].Path != path {
			t.Errorf("%s: checkpoints %+v, %v", when, list, err)
		}
		w.Core.mu.Lock()
		defer w.Core.mu.Unlock()
		if s, p := w.whereabouts(run); s != session || p != project {
			t.Errorf("%s: it is of session %s in project %s", when, s, p)
		}
	}
	clock.add(time.Hour)
	if in() {
		t.Fatal("a session must leave the memory also with a checkpoint")
	}
	told("retired", "before")
	w.restart()
	if in() {
		t.Fatal("a start must not read it either")
	}
	told("after a restart", "before")
	w.ok(w.AssignProject(ctx, owner, session, "behind"))
	told("moved", "behind")
	clock.add(time.Hour)
	if in() {
		t.Fatal("it must leave again")
	}
	w.restart()
	told("moved, after a restart", "behind")
	if info, err := w.Session(ctx, owner, session); err != nil || info.Checkpoints != 1 || info.StorageBytes == 0 {
		t.Errorf("session %+v, %v", info, err)
	}
	if list, err := w.RunCheckpoints(ctx, owner, run); err != nil || len(list) != 1 {
		t.Errorf("checkpoints %+v, %v", list, err)
	}
	if runs, total, err := w.Runs(ctx, owner, RunQuery{ProjectID: "behind"}); err != nil || total != 1 || runs[0].LastCheckpoint == nil {
		t.Errorf("runs %+v of %d, %v", runs, total, err)
	}
	if _, total, err := w.Runs(ctx, owner, RunQuery{ProjectID: "before"}); err != nil || total != 0 {
		t.Errorf("%d runs are still in the project before, %v", total, err)
	}
}
