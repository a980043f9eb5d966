package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// readings counts what is read from a store.
type readings struct {
	store.Store
	records, bytes atomic.Int64
}

func (r *readings) count(list ...store.Record) {
	for _, rec := range list {
		r.records.Add(1)
		r.bytes.Add(int64(len(rec.Value)))
	}
}

func (r *readings) Get(ctx context.Context, collection, key string) (store.Record, error) {
	rec, err := r.Store.Get(ctx, collection, key)
	if err == nil {
		r.count(rec)
	}
	return rec, err
}

func (r *readings) List(ctx context.Context, collection, parent string, within store.Range, limit int) ([]store.Record, error) {
	list, err := r.Store.List(ctx, collection, parent, within, limit)
	r.count(list...)
	return list, err
}

func (r *readings) Page(ctx context.Context, collection, parent string, q store.PageQuery) ([]store.Record, bool, error) {
	list, more, err := r.Store.Page(ctx, collection, parent, q)
	r.count(list...)
	return list, more, err
}

func (r *readings) All(ctx context.Context, collection string, yield func(store.Record) error) error {
	return r.Store.All(ctx, collection, func(rec store.Record) error {
		r.count(rec)
		return yield(rec)
	})
}

// watched has the core's readings counted.
func watched(t *testing.T, change func(*world)) (*world, *clock, func(do func()) (records, bytes int64)) {
	var now *readings
	w, clock := clocked(t, func(w *world) {
		w.around = func(s store.Store) store.Store {
			now = &readings{Store: s}
			return now
		}
		if change != nil {
			change(w)
		}
	})
	return w, clock, func(do func()) (int64, int64) {
		records, bytes := now.records.Load(), now.bytes.Load()
		before := now
		do()
		if now != before { // a restart
			records, bytes = 0, 0
		}
		return now.records.Load() - records, now.bytes.Load() - bytes
	}
}

// inMemory counts the bytes of the records that are in memory.
func (w *world) inMemory() int {
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	n := 0
	for _, s := range w.sessions {
		n += len(mustJSON(s.sessionRecord))
	}
	for _, r := range w.runs {
		n += len(mustJSON(r.runRecord))
	}
	return n
}

// metadata is an object of about so many bytes.
func metadata(name string, bytes int) json.RawMessage {
	return mustJSON(map[string]string{"name": name, "text": strings.Repeat("x", bytes)})
}

func TestListsReadTheirPage(t *testing.T) {
	w, clock, reads := watched(t, nil)
	ctx := t.Context()
	const n, large = 60, 100 << 10
	var ids []string
	heap := func() int64 {
		w.records() // nothing waits in memory for the database any more
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	empty := heap()
	for i := range n {
		s, err := w.CreateSession(ctx, NewSession{Owner: owner, UserMetadata: metadata(fmt.Sprint(i), large), ProjectID: "p"})
		w.ok(err)
		_, err = w.CreateRun(ctx, NewRun{Owner: owner, SessionID: s.ID, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}, UserMetadata: metadata(fmt.Sprint(i), large)})
		w.ok(err)
		ids = append(ids, s.ID)
		clock.add(time.Second)
	}
	w.eventually(func() bool { return len(w.futures) == 0 })
	small := func(when string) {
		t.Helper()
		if bytes := w.inMemory(); bytes > 2*n<<10 {
			t.Errorf("%s: %d bytes of records are in memory", when, bytes)
		}
	}
	small("active")
	if more := heap() - empty; more > n*large/2 {
		t.Errorf("%d bytes of the heap are in use, for %d of metadata", more, 2*n*large)
	}
	end := func() {
		for _, id := range ids {
			w.ok(w.FinishSession(ctx, owner, id, "success", strings.Repeat("d", large)))
		}
		small("ended")
		clock.add(retireAfter + time.Second)
		w.quiet()
		w.restart()
	}
	for _, when := range []string{"active", "ended"} {
		if when == "ended" {
			end()
		}
		for _, c := range []struct {
			name    string
			ask     func() error
			records int64
			bytes   int64
		}{
			{"sessions", func() error { _, _, err := w.Sessions(ctx, owner, Page{Limit: 1}); return err }, 1, 0},
			{"sessions far behind", func() error {
				got, total, err := w.Sessions(ctx, owner, Page{Limit: 1, Offset: n - 1})
				if err == nil && (total != n || len(got) != 1 || got[0] != ids[0]) {
					err = fmt.Errorf("got %v of %d", got, total)
				}
				return err
			}, 1, 0},
			{"runs", func() error { _, _, err := w.Runs(ctx, owner, RunQuery{Page: Page{Limit: 2}}); return err }, 6, 3 * large},
			{"runs of a project", func() error {
				got, total, err := w.Runs(ctx, owner, RunQuery{Page: Page{Limit: 2}, ProjectID: "p"})
				if err == nil && (total != n || len(got) != 2 || len(got[0].UserMetadata) < large) {
					err = fmt.Errorf("got %+v of %d", got, total)
				}
				return err
			}, 6, 3 * large},
			{"search", func() error {
				got, _, err := w.SearchSessions(ctx, owner, SessionQuery{SessionID: ids[n/2]})
				if err == nil && (len(got) != 1 || len(got[0].UserMetadata) < large || when == "ended" && len(got[0].Status.Detail) != large) {
					err = fmt.Errorf("got %+v", got)
				}
				return err
			}, n + 2, n*1024 + 3*large},
			{"session", func() error {
				got, err := w.Session(ctx, owner, ids[3])
				if err == nil && len(got.UserMetadata) < large {
					err = fmt.Errorf("got %+v", got)
				}
				return err
			}, 6, 3 * large},
		} {
			t.Run(when+"/"+c.name, func(t *testing.T) {
				records, bytes := reads(func() {
					if err := c.ask(); err != nil {
						t.Error(err)
					}
				})
				if records > c.records || bytes > c.bytes {
					t.Errorf("it reads %d records with %d bytes, needed are %d with %d", records, bytes, c.records, c.bytes)
				}
			})
		}
	}
	small("in the end")
}

func TestStartReadsWhatIsNotOver(t *testing.T) {
	w, clock, reads := watched(t, nil)
	ctx := t.Context()
	few, _ := reads(w.restart)
	for range 50 {
		w.ok(w.FinishSession(ctx, owner, w.session(), "success", ""))
	}
	active := w.session()
	clock.add(retireAfter + time.Second)
	w.quiet()
	w.ok(w.Heartbeat(ctx, owner, active))
	many, _ := reads(w.restart)
	if many > few+3 {
		t.Errorf("a start reads %d records, and %d before there were 50 ended sessions and an active one", many, few)
	}
	w.ok(w.Heartbeat(ctx, owner, active))
}

func TestSearchGoesOn(t *testing.T) {
	w, clock, reads := watched(t, nil)
	ctx := t.Context()
	const n, large = 150, 250 << 10
	for i := range n {
		_, err := w.CreateSession(ctx, NewSession{Owner: owner, UserMetadata: metadata(fmt.Sprint(i), large)})
		w.ok(err)
		clock.add(time.Second)
	}
	search := func(q SessionQuery) (found, answers int) {
		t.Helper()
		seen := map[string]bool{}
		for {
			var list []SessionInfo
			var next *SessionCursor
			var err error
			_, bytes := reads(func() { list, next, err = w.SearchSessions(ctx, owner, q) })
			w.ok(err)
			if bytes > searchBytes+2*searchPage {
				t.Errorf("one search reads %d bytes", bytes)
			}
			size := 0
			for _, s := range list {
				if seen[s.ID] {
					t.Errorf("session %s is found twice", s.ID)
				}
				seen[s.ID] = true
				size += len(s.UserMetadata)
			}
			if size > maxListBytes+2*large {
				t.Errorf("one answer has %d bytes of metadata", size)
			}
			if answers++; next == nil {
				return len(seen), answers
			}
			q.Cursor = next
		}
	}
	if found, answers := search(SessionQuery{Limit: 200}); found != n || answers < 4 {
		t.Errorf("%d are found in %d answers", found, answers)
	}
	if found, answers := search(SessionQuery{UserMetadata: map[string]json.RawMessage{"name": json.RawMessage(`"3"`)}}); found != 1 || answers < 2 {
		t.Errorf("by metadata %d are found in %d answers", found, answers)
	}
	if found, _ := search(SessionQuery{Limit: 7}); found != n {
		t.Errorf("%d are found by seven", found)
	}
}

func TestLimitsOfActiveSessions(t *testing.T) {
	w, _ := clocked(t, func(w *world) { w.config.MaxSessions, w.config.MaxSessionBytes = 3, 30<<10 })
	ctx := t.Context()
	create := func(key string) (string, error) {
		s, err := w.CreateSession(ctx, NewSession{Owner: owner, UserMetadata: metadata("", 100), IdempotencyKey: key})
		return s.ID, err
	}
	var ids []string
	for range 3 {
		id, err := create("")
		w.ok(err)
		ids = append(ids, id)
	}
	_, err := create("")
	w.refused(err, KindBusy, "3 sessions", "sessions.max_active")
	theirs, err := w.CreateSession(ctx, NewSession{Owner: other})
	w.ok(err)
	w.restart()
	_, err = create("")
	w.refused(err, KindBusy, "3 sessions")
	w.ok(w.FinishSession(ctx, owner, ids[0], "success", ""))
	fresh, err := create("key")
	w.ok(err)
	if again, err := create("key"); err != nil || again != fresh {
		t.Errorf("a repeat: %s, %v", again, err)
	}
	// Models and sampling sessions take memory as well.
	for i := range int64(3) {
		w.newRun(fresh, i)
	}
	_, err = w.CreateRun(ctx, NewRun{Owner: owner, SessionID: fresh, ModelSeq: 3, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.refused(err, KindBusy, "sessions.max_memory_mib")
	sampler := func(owner, session string, n int64) error {
		_, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: n, BaseModel: base})
		return err
	}
	n := int64(0)
	for err = nil; err == nil && n < 100; n++ {
		err = sampler(owner, fresh, n)
	}
	w.refused(err, KindBusy, "sessions.max_memory_mib")
	w.ok(sampler(owner, fresh, 0)) // a repeat
	w.ok(sampler(other, theirs.ID, 0))
	for _, id := range []string{ids[1], ids[2], fresh} {
		w.ok(w.FinishSession(ctx, owner, id, "success", ""))
	}
	w.ok(w.FinishSession(ctx, other, theirs.ID, "success", ""))
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if len(w.Core.held) != 0 {
		t.Errorf("after the end of all sessions %v are counted", w.Core.held)
	}
}

func TestLimitsOfCheckpoints(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.MaxCheckpoints, w.config.MaxTextBytes = 3, 10<<10 })
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	texts := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n)} }
	first := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a", UserMetadata: texts(6 << 10)})).Saved.Path
	_, err := w.SaveWeights(ctx, SaveWeights{Operation: at(run, 6), Name: "b", UserMetadata: texts(6 << 10)})
	w.refused(err, KindForbidden, "user_metadata", "limit")
	_, err = w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: first, ProjectID: "p"})
	w.refused(err, KindForbidden, "user_metadata")
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 7), Name: "b", UserMetadata: texts(2 << 10)}))
	w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 8), Name: "c"}))
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: at(run, 9), Name: "d"})
	w.refused(err, KindForbidden, "3 checkpoints")
	w.ok(w.DeleteCheckpoint(ctx, owner, first, ""))
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 10), Name: "d", UserMetadata: texts(6 << 10)}))
	w.restart()
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: at(run, 11), Name: "e"})
	w.refused(err, KindForbidden, "3 checkpoints")
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if len(w.saving) != 0 || w.lists.texts[owner] != 2<<10+6<<10+2 {
		t.Errorf("counted are %v being saved and %v", w.saving, w.lists.texts)
	}
}

func TestAnswersOfLargeCheckpoints(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	const large = 250 << 10
	for i := range int64(40) {
		w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5+i), Name: fmt.Sprint(i), UserMetadata: map[string]string{"k": strings.Repeat("x", large)}}))
	}
	_, _, err := w.Checkpoints(ctx, owner, Page{}, nil)
	w.refused(err, KindInvalid, "limit", "40 checkpoints")
	if list, total, err := w.Checkpoints(ctx, owner, Page{Limit: 20, Offset: 15}, nil); err != nil || len(list) != 20 || total != 40 || list[0].Name != "24" {
		t.Errorf("%d of %d, %v", len(list), total, err)
	}
	_, err = w.RunCheckpoints(ctx, owner, run)
	w.refused(err, KindInvalid, "/checkpoints")
	list, err := w.ServedModels(ctx, owner)
	w.ok(err)
	bytes := 0
	for _, m := range list {
		bytes += len(m.UserMetadata)
	}
	if len(list) < 42 || bytes > maxInline {
		t.Errorf("%d models with %d bytes of metadata", len(list), bytes)
	}
}

// A label that PostgreSQL could not hold is refused, whatever the database: else no backup could be restored there.
func TestLabelsThatNotEveryDatabaseHolds(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	for _, label := range []string{"a\x00b", "a\xff"} {
		_, err := w.CreateSession(t.Context(), NewSession{Owner: owner, ProjectID: label})
		w.refused(err, KindInvalid, "project_id", "zero bytes")
		w.refused(w.AssignProject(t.Context(), owner, session, label), KindInvalid, "project_id", "zero bytes")
	}
	w.ok(w.AssignProject(t.Context(), owner, session, "große Läufe ✓"))
}

func TestFewListsAtATime(t *testing.T) {
	w := newWorld(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends []func()
	for range maxLists {
		done, err := w.AwaitList(ctx, owner)
		w.ok(err)
		ends = append(ends, done)
	}
	theirs, err := w.AwaitList(ctx, other)
	w.ok(err)
	theirs()
	waits, given := context.WithCancel(ctx)
	given()
	if _, err := w.AwaitList(waits, owner); !errors.Is(err, context.Canceled) {
		t.Errorf("one more: %v", err)
	}
	next := make(chan func())
	go func() {
		done, err := w.AwaitList(ctx, owner)
		if err != nil {
			t.Error(err)
		}
		next <- done
	}()
	ends[0]()
	(<-next)()
	ends[1]()
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if len(w.listings) != 0 {
		t.Errorf("%d owners are remembered", len(w.listings))
	}
}
