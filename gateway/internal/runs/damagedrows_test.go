package runs

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// spoil changes rows of the database of a server that does not run.
func (w *world) spoil(update string, args ...any) {
	w.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.dir, "tinsmith.db"))
	w.ok(err)
	done, err := db.ExecContext(w.t.Context(), update, args...)
	w.ok(err)
	if n, _ := done.RowsAffected(); n == 0 {
		w.t.Fatalf("%s %v: there is no such row", update, args)
	}
	w.ok(db.Close())
}

// A row of the database that is damaged takes nothing down but what needs it: the server starts, files stay, and what is left of them can be claimed.
func TestStartWithDamagedRows(t *testing.T) {
	const shift = "UPDATE tinsmith_records SET place = place + 1 WHERE collection = ? AND id = ?"
	for _, c := range []struct {
		collection string
		key        func(session, run, path string) string
		runs       bool // the run goes on
		saved      bool // the checkpoint is there
		claimed    int  // what recover brings back by itself
	}{
		{inCheckpoints, func(_, _, path string) string { return path }, true, false, 1},
		{inRuns, func(_, run, _ string) string { return run }, false, true, 1},
		{inSessions, func(session, _, _ string) string { return session }, false, true, 1},
		{inLive, func(session, _, _ string) string { return session }, false, true, 0},
		{inOperations, func(_, run, _ string) string { return run + ":1" }, false, true, 1},
		{inPoints, nil, false, true, 1},
		{inAudit, nil, true, true, 0},
	} {
		t.Run(c.collection, func(t *testing.T) {
			w := newWorld(t, (*world).pointsAlways)
			ctx := t.Context()
			session := w.session()
			run := w.trained(session, 0)
			w.eventually(func() bool { return len(w.runs[run].points) > 0 && !w.runs[run].writing && !w.runs[run].pruning })
			path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"})).Saved.Path
			beside := w.newRun(w.session(), 0)
			before := w.tree("checkpoints", "recovery")
			w.close()
			switch c.collection {
			case inAudit, inPoints:
				w.spoil("UPDATE tinsmith_records SET place = place + 1 WHERE collection = ?", c.collection)
			case inOperations:
				w.spoilOperations(run)
			default:
				w.spoil(shift, c.collection, c.key(session, run, path))
			}
			w.restartBackend()
			w.open()
			w.good(w.ForwardBackward(ctx, w.pass(beside, 1)))
			if c.runs {
				w.good(w.ForwardBackward(ctx, w.pass(run, 6)))
			} else {
				w.eventually(func() bool { return w.runs[run] == nil || !w.runs[run].usable() })
				if _, err := w.ForwardBackward(ctx, w.pass(run, 6)); err == nil {
					t.Error("a run goes on of which records are damaged")
				}
			}
			if !c.runs && c.collection != inOperations { // nothing is made in the place of what cannot be read
				if _, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}}); err == nil {
					t.Error("a run was made anew")
				}
			}
			if _, err := w.WeightsInfo(ctx, owner, "", path); (err == nil) != c.saved {
				t.Errorf("the checkpoint: %v", err)
			}
			if len(w.store.Damage()) == 0 {
				t.Error("nothing is told")
			}
			w.eventually(func() bool { return len(w.erasures.waiting) == 0 && !w.erasures.busy })
			w.close()
			after := w.tree("checkpoints", "recovery", unclaimedDir)
			for file := range before {
				base, found := filepath.Base(filepath.Dir(file))+"/"+filepath.Base(file), c.runs && strings.HasPrefix(file, "recovery")
				for path := range after {
					found = found || strings.HasSuffix(path, base)
				}
				if !found {
					t.Errorf("%s is gone", file)
				}
			}
			claimed := 0
			w.offline(func(v *Inventory) {
				items, err := v.Items(ctx)
				w.ok(err)
				for _, item := range items {
					if v.OfUse(item) {
						got, err := v.Claim(ctx, item, "")
						w.ok(err)
						claimed++
						path = got.Checkpoint
					}
				}
			})
			if claimed < c.claimed {
				t.Errorf("%d were claimed, want %d", claimed, c.claimed)
			}
			w.restartBackend()
			w.open()
			if _, err := w.WeightsInfo(ctx, owner, "", path); err != nil {
				t.Error(err)
			}
		})
	}
}

// spoilOperations damages one row of a run's operations, wherever the store has them.
func (w *world) spoilOperations(run string) {
	w.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.dir, "tinsmith.db"))
	w.ok(err)
	var n int64
	for _, update := range []string{
		"UPDATE tinsmith_records SET place = place + 1 WHERE collection = '" + inOperations + "' AND parent = ?",
		"UPDATE tinsmith_blocks SET heads = heads || '!' WHERE parent = ?",
	} {
		done, err := db.ExecContext(w.t.Context(), update, run)
		w.ok(err)
		more, _ := done.RowsAffected()
		n += more
	}
	w.ok(db.Close())
	if n == 0 {
		w.t.Fatal("the run has no operations")
	}
}

// When the damaged rows are given up there are records that belong to nothing: the server starts with them as well.
func TestStartWithoutASession(t *testing.T) {
	w := newWorld(t, (*world).pointsAlways)
	session := w.session()
	run := w.trained(session, 0)
	w.eventually(func() bool { return len(w.runs[run].points) > 0 && !w.runs[run].writing && !w.runs[run].pruning })
	var dir string
	w.ok(w.store.All(t.Context(), inPoints, func(r store.Record) error { dir = r.Key; return nil }))
	w.ok(w.store.Commit(t.Context(), store.Batch{Delete: []store.RecordKey{{Collection: inSessions, Key: session}}}))
	w.restart()
	w.eventually(func() bool { return len(w.erasures.waiting) == 0 && !w.erasures.busy })
	found, err := filepath.Glob(filepath.Join(w.dir, unclaimedDir, "*", dir))
	w.ok(err)
	if _, err := os.Stat(filepath.Join(w.dir, dir)); err != nil && len(found) == 0 {
		t.Errorf("the newest state of run %s is gone: %s", run, fmt.Sprint(w.tree("recovery", unclaimedDir)))
	}
}
