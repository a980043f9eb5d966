package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// clock is a time that only moves when it is told to, or a little at every look.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Microsecond)
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)} }

func clocked(t *testing.T, change func(*world)) (*world, *clock) {
	c := newClock()
	return newWorld(t, func(w *world) {
		w.config.Now = c.time
		if change != nil {
			change(w)
		}
	}), c
}

func TestSessionLife(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	req := NewSession{Owner: owner, Tags: []string{"a"}, UserMetadata: json.RawMessage(`{"x": [1, null]}`), SDKVersion: "0.38.0", ProjectID: "p", DisplayName: "My run", IdempotencyKey: "key"}
	s, err := w.CreateSession(ctx, req)
	w.ok(err)
	again, err := w.CreateSession(ctx, req)
	if err != nil || again.ID != s.ID {
		t.Errorf("a repeat: %s, %v", again.ID, err)
	}
	req.Owner = other
	if theirs, err := w.CreateSession(ctx, req); err != nil || theirs.ID == s.ID {
		t.Errorf("the same key of another owner: %s, %v", theirs.ID, err)
	}
	_, err = w.CreateSession(ctx, NewSession{Owner: owner, UserMetadata: json.RawMessage(`[1]`)})
	w.refused(err, KindInvalid, "user_metadata")

	w.ok(w.Heartbeat(ctx, owner, s.ID))
	w.refused(w.Heartbeat(ctx, other, s.ID), KindNotFound)
	w.refused(w.Heartbeat(ctx, owner, "nope"), KindNotFound)
	w.refused(w.AssignProject(ctx, other, s.ID, "q"), KindNotFound)
	w.ok(w.AssignProject(ctx, owner, s.ID, "q"))
	run := w.newRun(s.ID, 0)
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 1), Name: "kept"}))

	// Half of the time twice, with a heartbeat between.
	clock.add(200 * time.Second)
	w.ok(w.Heartbeat(ctx, owner, s.ID))
	clock.add(200 * time.Second)
	w.sweep(ctx, time.Second)
	w.ok(w.Heartbeat(ctx, owner, s.ID))
	// The clock starts again after a restart.
	clock.add(299 * time.Second)
	w.restart()
	clock.add(2 * time.Second)
	w.sweep(ctx, time.Second)
	w.ok(w.Heartbeat(ctx, owner, s.ID))
	clock.add(301 * time.Second)
	w.sweep(ctx, time.Second)
	w.refused(w.Heartbeat(ctx, owner, s.ID), KindNotFound, "expired")
	_, err = w.CreateRun(ctx, NewRun{Owner: owner, SessionID: s.ID, ModelSeq: 1, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.refused(err, KindForbidden, "Invalid session_id")
	info, err := w.Session(ctx, owner, s.ID)
	w.ok(err)
	if info.Status.Type != StatusCancelled || info.ProjectID != "q" || string(info.UserMetadata) != `{"x":[1,null]}` || info.Checkpoints != 1 || info.StorageBytes == 0 {
		t.Errorf("session %+v", info)
	}

	// Results stay for a while, then they go; the run and its checkpoint stay.
	w.outcome(run + ":1")
	clock.add(11 * time.Minute)
	w.sweep(ctx, time.Second)
	_, err = w.Wait(ctx, owner, run+":1", 0)
	w.refused(err, KindNotFound)
	left, err := w.store.List(ctx, inOperations, run, store.Range{}, 0)
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if list, err := w.RunCheckpoints(ctx, owner, run); err != nil || len(list) != 1 {
		t.Errorf("checkpoints %v, %v", list, err)
	}
}

// A process that was stopped for an hour has heard nobody meanwhile: the silence of sessions goes on where it was.
func TestSessionOutlivesAPauseOfTheServer(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.SweepEvery = 24 * time.Hour })
	ctx := t.Context()
	id := w.session()
	late := func(d time.Duration) { // the sweep after a pause of d
		clock.add(d)
		w.sweep(ctx, w.config.SweepEvery+d)
	}
	clock.add(200 * time.Second)
	late(48 * time.Hour)
	w.ok(w.Heartbeat(ctx, owner, id))
	clock.add(200 * time.Second)
	late(48 * time.Hour)
	clock.add(101 * time.Second)
	w.sweep(ctx, w.config.SweepEvery)
	w.refused(w.Heartbeat(ctx, owner, id), KindNotFound, "expired")
}

// Samples keep a silent session for some time, polls make it heard, and operations of runs keep it until they are done.
func TestSilentSessionWithWork(t *testing.T) {
	w, clock := clocked(t, func(w *world) {
		w.config.GapWait = time.Hour
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "token", "seconds": 600}]}`
	})
	ctx := t.Context()
	after := func(d time.Duration, session string, want StatusType) {
		t.Helper()
		clock.add(d)
		w.sweep(ctx, time.Second)
		info, err := w.Session(ctx, owner, session)
		w.ok(err)
		if info.Status.Type != want {
			t.Fatalf("after %s: %+v, want %s", d, info.Status, want)
		}
	}
	sampling, training := w.session(), w.session()
	long := w.sample(w.baseSampler(sampling, 0), 0)
	long.Params.MaxTokens = intp(100)
	sample, err := w.Sample(ctx, long)
	w.ok(err)
	also := w.sample(w.baseSampler(training, 0), 0)
	also.Params.MaxTokens = intp(100)
	beside, err := w.Sample(ctx, also)
	w.ok(err)
	step, err := w.OptimStep(ctx, w.step(w.newRun(training, 0), 2)) // waits for number 1
	w.ok(err)

	after(19*time.Minute, sampling, StatusActive)
	if _, err := w.Wait(ctx, owner, sample.RequestID, 0); !errors.Is(err, ErrPending) {
		t.Fatal(err)
	}
	after(19*time.Minute, sampling, StatusActive)
	if list, _, err := w.Completions(ctx, CompletionQuery{Owner: owner, SamplerID: long.SamplerID}); err != nil || len(list) > 0 {
		t.Fatal(list, err)
	}
	after(19*time.Minute, sampling, StatusActive)
	_, err = w.Wait(ctx, other, sample.RequestID, 0) // a stranger's poll is not the client's
	w.refused(err, KindNotFound)
	after(2*time.Minute, sampling, StatusCancelled)
	w.failure(w.outcome(sample.RequestID), CategoryUser, "session has ended")

	after(100*time.Hour, training, StatusActive)
	for _, id := range []string{beside.RequestID, step.RequestID} {
		if _, err := w.Wait(ctx, owner, id, 0); !errors.Is(err, ErrPending) {
			t.Errorf("%s: %v", id, err)
		}
	}
	w.ok(w.FinishSession(ctx, owner, training, "interrupted", ""))
	w.failure(w.outcome(beside.RequestID), CategoryUser, "session has ended")
}

func TestFinishedSession(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	id := w.session()
	run := w.trained(id, 0)
	w.refused(w.FinishSession(ctx, owner, id, "because", ""), KindInvalid, "because")
	w.refused(w.FinishSession(ctx, other, id, "success", ""), KindNotFound)
	w.ok(w.FinishSession(ctx, owner, id, "errored", "why"))
	w.ok(w.FinishSession(ctx, owner, id, "success", ""))
	w.refused(w.Heartbeat(ctx, owner, id), KindGone)
	_, err := w.OptimStep(ctx, w.step(run, 5))
	w.refused(err, KindNotFound, "session has ended")
	if again, err := w.OptimStep(ctx, w.step(run, 4)); err != nil || again.RequestID != run+":4" {
		t.Errorf("a repeat after the end: %v, %v", again, err)
	}
	w.outcome(run + ":4")
	w.restart()
	info, err := w.Session(ctx, owner, id)
	w.ok(err)
	if s := info.Status; s.Type != StatusFinished || s.Reason != "errored" || s.Detail != "why" {
		t.Errorf("status %+v", s)
	}
	if r, err := w.Run(ctx, owner, run, ScopeOwned); err != nil || r.Corrupted || r.Live {
		t.Errorf("run %+v, %v", r, err)
	}
}

func TestSessionWithWorkDoesNotExpire(t *testing.T) {
	clock := newClock()
	w, open := gated(t, "forward_backward", func(w *world) { w.config.Now = clock.time })
	id := w.session()
	run := w.newRun(id, 0)
	s, err := w.ForwardBackward(t.Context(), w.pass(run, 1))
	w.ok(err)
	clock.add(time.Hour)
	w.sweep(t.Context(), time.Second)
	close(open)
	w.good(s, nil)
	w.ok(w.Heartbeat(t.Context(), owner, id))
}

func TestSessionListAndSearch(t *testing.T) {
	w, _ := clocked(t, nil)
	ctx := t.Context()
	var ids []string
	for i := range 5 {
		s, err := w.CreateSession(ctx, NewSession{
			Owner: owner, ProjectID: fmt.Sprint("p", i%2), DisplayName: fmt.Sprint("Run number ", i), UserMetadata: json.RawMessage(fmt.Sprintf(`{"i": %d, "o": {"a": [1]}}`, i)),
		})
		w.ok(err)
		ids = append([]string{s.ID}, ids...)
	}
	_, err := w.CreateSession(ctx, NewSession{Owner: other})
	w.ok(err)
	w.ok(w.FinishSession(ctx, owner, ids[0], "success", ""))
	page, total, err := w.Sessions(ctx, owner, Page{Limit: 2, Offset: 1})
	if err != nil || total != 5 || !slices.Equal(page, ids[1:3]) {
		t.Errorf("page %v of %d, %v", page, total, err)
	}
	raw := func(s string) map[string]json.RawMessage {
		m := map[string]json.RawMessage{}
		w.ok(json.Unmarshal([]byte(s), &m))
		return m
	}
	for _, c := range []struct {
		name string
		q    SessionQuery
		want []string
	}{
		{"all", SessionQuery{}, ids},
		{"project", SessionQuery{ProjectIDs: []string{"p1"}}, []string{ids[1], ids[3]}},
		{"id", SessionQuery{SessionID: ids[2]}, ids[2:3]},
		{"words", SessionQuery{DisplayName: "NUMBER 3"}, ids[1:2]},
		{"metadata", SessionQuery{UserMetadata: raw(`{"i": 4.0}`)}, ids[:1]},
		{"nested metadata", SessionQuery{UserMetadata: raw(`{"o": {"a": [1]}}`)}, ids},
		{"other metadata", SessionQuery{UserMetadata: raw(`{"i": "4"}`)}, nil},
		{"active", SessionQuery{Statuses: []SessionStatus{{Type: StatusActive}}}, ids[1:]},
		{"finished with a reason", SessionQuery{Statuses: []SessionStatus{{Type: StatusFinished, Reason: "errored"}}}, nil},
		{"finished", SessionQuery{Statuses: []SessionStatus{{Type: StatusFinished}}}, ids[:1]},
		{"of somebody else", SessionQuery{Owners: []string{other}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for c.q.Limit = 2; ; { // pages of two
				list, next, err := w.SearchSessions(ctx, owner, c.q)
				w.ok(err)
				for _, s := range list {
					got = append(got, s.ID)
				}
				if next == nil {
					break
				}
				c.q.Cursor = next
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	_, _, err = w.SearchSessions(ctx, owner, SessionQuery{Limit: 201})
	w.refused(err, KindInvalid)
}

func TestBadRuns(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	good := NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}}
	for _, c := range []struct {
		name   string
		change func(*NewRun)
		kind   Kind
		words  string
	}{
		{"rank 3", func(r *NewRun) { r.LoRA.Rank = 3 }, KindInvalid, "power of two"},
		{"rank 0", func(r *NewRun) { r.LoRA.Rank = 0 }, KindInvalid, "power of two"},
		{"huge rank", func(r *NewRun) { r.LoRA.Rank = 1 << 40 }, KindInvalid, "512"},
		{"nothing to train", func(r *NewRun) { r.LoRA.TrainAttn = false }, KindInvalid, "at least one"},
		{"unknown model", func(r *NewRun) { r.BaseModel = "nope" }, KindInvalid, base},
		{"no model", func(r *NewRun) { r.BaseModel = "" }, KindInvalid, "base_model is required"},
		{"optimizer", func(r *NewRun) { r.Optimizer = "dimuon" }, KindInvalid, "dimuon"},
		{"metadata", func(r *NewRun) { r.UserMetadata = json.RawMessage(`1`) }, KindInvalid, "user_metadata"},
		{"number", func(r *NewRun) { r.ModelSeq = -1 }, KindInvalid, "model_seq_id"},
		{"no session", func(r *NewRun) { r.SessionID = "" }, KindInvalid, "session_id"},
		{"unknown session", func(r *NewRun) { r.SessionID = "x" }, KindForbidden, "Invalid session_id"},
		{"foreign session", func(r *NewRun) { r.Owner = other }, KindForbidden, "Invalid session_id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := good
			c.change(&req)
			_, err := w.CreateRun(t.Context(), req)
			w.refused(err, c.kind, c.words)
		})
	}
	big := good
	big.LoRA.Rank = 128 // the backend allows 64
	w.bad(w.CreateRun(t.Context(), big))(t, "at most 64")
	big.LoRA.Rank = 64
	_, err := w.CreateRun(t.Context(), big)
	w.refused(err, KindInvalid, "used before")
	list, total, err := w.Runs(t.Context(), owner, RunQuery{})
	if err != nil || total != 1 || list[0].Live {
		t.Errorf("runs %+v of %d, %v", list, total, err)
	}
}

// An owner's runs are listed newest first and in pages, also those that a version without such lists has made, and nobody else's.
func TestRunsOfAnOwner(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	var want []string
	for i := range 5 {
		want = append([]string{w.newRun(session, int64(i))}, want...)
	}
	theirs, err := w.CreateSession(t.Context(), NewSession{Owner: other})
	w.ok(err)
	made, err := w.CreateRun(t.Context(), NewRun{Owner: other, SessionID: theirs.ID, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainMLP: true}})
	w.ok(err)
	compare := func(when string) {
		t.Helper()
		for _, c := range []struct {
			owner string
			page  Page
			want  []string
			total int
		}{
			{owner, Page{}, want, 5}, {owner, Page{Limit: 2, Offset: 1}, want[1:3], 5}, {owner, Page{Limit: 10, Offset: 4}, want[4:], 5}, {other, Page{}, []string{made.RunID}, 1}, {"nobody", Page{}, nil, 0},
		} {
			list, total, err := w.Runs(t.Context(), c.owner, RunQuery{Page: c.page})
			w.ok(err)
			var got []string
			for _, r := range list {
				got = append(got, r.ID)
			}
			if !slices.Equal(got, c.want) || total != c.total {
				t.Errorf("%s, %s %+v: %v of %d, want %v of %d", when, c.owner, c.page, got, total, c.want, c.total)
			}
		}
	}
	compare("new")
	w.ok(w.store.Commit(t.Context(), store.Batch{
		DeleteUnder: []store.ParentKey{{Collection: inOwned, Parent: owner}, {Collection: inOwned, Parent: other}}, Delete: []store.RecordKey{{Collection: inUpgrades, Key: upgradedLists}},
	}))
	w.restart()
	compare("of an older version")
}
