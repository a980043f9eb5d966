package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// tree is every file below some folders of the data directory, with its content's size.
func (w *world) tree(folders ...string) map[string]int64 {
	w.t.Helper()
	found := map[string]int64{}
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(w.dir, folder), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			rel, _ := filepath.Rel(w.dir, path)
			found[rel] = info.Size()
			return err
		})
		w.ok(err)
	}
	return found
}

// cutShort is a store in which the deletions that are done cannot be taken out, as if the server were killed before.
type cutShort struct{ store.Store }

func (s cutShort) Commit(ctx context.Context, b store.Batch) error {
	for _, k := range b.Delete {
		if k.Collection == inDeletions {
			return errors.New("killed")
		}
	}
	return s.Store.Commit(ctx, b)
}

func (w *world) pendingDeletions() (dirs []string) {
	w.t.Helper()
	w.ok(w.store.All(w.t.Context(), inDeletions, func(r store.Record) error {
		var d deletionRecord
		dirs = append(dirs, r.Key)
		return json.Unmarshal(r.Value, &d)
	}))
	return dirs
}

// A deletion that is cut off after it was asked for, before or after the files have gone, is finished at the next start, whatever asked for it.
func TestDeletionsAreFinishedAtTheNextStart(t *testing.T) {
	type asked struct {
		name string
		ask  func(w *world, clock *clock, run string)
		dir  func(w *world, run string) string
	}
	checkpointDir := func(w *world, run string) string { return w.checkpoints["tinker://"+run+"/weights/a"].Dir }
	for _, c := range []asked{
		{"by the user", func(w *world, _ *clock, run string) {
			w.ok(w.DeleteCheckpoint(w.t.Context(), owner, "tinker://"+run+"/weights/a", ""))
		}, checkpointDir},
		{"by a ttl", func(w *world, clock *clock, run string) {
			w.ok(w.SetCheckpointTTL(w.t.Context(), owner, "tinker://"+run+"/weights/a", ttl(60)))
			clock.add(time.Hour)
			w.sweep(w.t.Context(), time.Second)
		}, checkpointDir},
		{"by an overwriting save", func(w *world, _ *clock, run string) {
			w.good(w.SaveWeights(w.t.Context(), SaveWeights{Operation: at(run, 7), Name: "a", Overwrite: true}))
		}, checkpointDir},
		{"by the end of the session", func(w *world, _ *clock, run string) {
			w.ok(w.FinishSession(w.t.Context(), owner, sessionOf(run), "success", ""))
		}, func(w *world, run string) string { return w.samplers[sessionOf(run)+":sample:0"].Dir }},
		{"of a recovery point by the end of the run", func(w *world, _ *clock, run string) {
			w.good(w.UnloadRun(w.t.Context(), owner, run))
			w.eventually(func() bool { return len(w.runs[run].points) == 0 })
		}, func(w *world, run string) string { return w.runs[run].points[0].Dir }},
	} {
		for _, cut := range []string{"before the files go", "after the files have gone", "in the middle"} {
			t.Run(c.name+", "+cut, func(t *testing.T) {
				w, clock := clocked(t, func(w *world) { w.pointsAlways() })
				run := w.trained(w.session(), 0)
				ctx := t.Context()
				w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"}))
				w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6)}))
				w.eventually(func() bool {
					s := w.samplers[sessionOf(run)+":sample:0"]
					return s.Dir != "" && len(w.runs[run].points) == 1 && !w.disk.busy && !w.runs[run].writing && !w.runs[run].pruning && !w.erasures.busy
				})
				w.Core.mu.Lock()
				dir := c.dir(w, run)
				w.Core.mu.Unlock()
				switch cut {
				case "before the files go", "in the middle":
					w.HoldDeletions()
				default:
					w.inFront(func(s store.Store) store.Store { return cutShort{s} })
				}
				c.ask(w, clock, run)
				w.eventually(func() bool { return slices.Contains(w.pendingDeletions(), dir) })
				gone := func() bool { _, err := os.Lstat(w.file(dir)); return errors.Is(err, fs.ErrNotExist) }
				switch cut {
				case "after the files have gone":
					w.eventually(gone)
				case "in the middle":
					w.ok(os.Remove(filepath.Join(w.file(dir), plugins.AdapterWeightsFile)))
				default:
					if gone() {
						t.Fatal("the files went while deletions were held")
					}
				}
				w.restart()
				w.eventually(gone)
				w.eventually(func() bool { return !slices.Contains(w.pendingDeletions(), dir) })
				if left := w.tree(unclaimedDir); len(left) != 0 {
					t.Errorf("something was set aside: %v", left)
				}
			})
		}
	}
}

// A record of a deletion that has come to name something else, such as a whole folder of the server, deletes nothing.
func TestDamagedDeletionsDeleteNothing(t *testing.T) {
	w := newWorld(t, nil)
	run := w.trained(w.session(), 0)
	ctx := t.Context()
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"}))
	dir := w.checkpoints["tinker://"+run+"/weights/a"].Dir
	var b store.Batch
	for _, d := range []string{"", ".", "..", "checkpoints", "checkpoints/" + run, "checkpoints/" + run + "/weights", "../x", "/etc", dir + "/..", "checkpoints/" + run + "/../" + run, dir} {
		r := w.deletion(d, "a test")
		r.Key = "key of " + d
		b.Put = append(b.Put, r)
	}
	w.ok(w.store.Commit(ctx, b))
	before := w.tree("")
	w.restart()
	w.eventually(func() bool { return !w.erasures.busy })
	after := w.tree("")
	for file := range before {
		if _, there := after[file]; !there && strings.HasPrefix(file, "checkpoints") {
			t.Errorf("%s is gone", file)
		}
	}
	_, err := w.WeightsInfo(ctx, owner, "", "tinker://"+run+"/weights/a")
	w.ok(err)
}

// While a checkpoint is being overwritten nobody changes or deletes the old one: that would be stored behind the new one.
func TestOverwrittenCheckpointIsNotChanged(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"})).Saved.Path
	var b store.Batch
	w.displace(path, &b)
	if len(b.Put) != 1 || b.Put[0].Collection != inDeletions {
		t.Fatalf("batch %+v", b)
	}
	w.refused(w.PublishCheckpoint(ctx, owner, path, true), KindBusy, "overwritten")
	w.refused(w.DeleteCheckpoint(ctx, owner, path, ""), KindBusy, "overwritten")
}

// Whatever the store has lost, no file of a checkpoint is deleted at the start: what it does not name is set aside, as it was.
func TestNoRecordDeletesNoFiles(t *testing.T) {
	for _, c := range []struct {
		name    string
		refused bool
		lose    func(w *world, older string)
	}{
		{"no database", true, func(w *world, _ string) { removeAll(w, "tinsmith.db*") }},
		{"nothing but the files", false, func(w *world, _ string) { w.loseStore() }},
		{"an older copy of the database", true, func(w *world, older string) {
			removeAll(w, "tinsmith.db*")
			for _, name := range []string{"tinsmith.db"} {
				b, err := os.ReadFile(filepath.Join(older, name))
				w.ok(err)
				w.ok(os.WriteFile(filepath.Join(w.dir, name), b, 0o600))
			}
		}},
		{"an older copy of everything but the files", false, func(w *world, older string) {
			w.loseStore()
			w.ok(os.CopyFS(w.dir, os.DirFS(older)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, (*world).pointsAlways)
			ctx := t.Context()
			session := w.session()
			run := w.trained(session, 0)
			w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"}))
			w.close()
			older := t.TempDir()
			w.ok(os.CopyFS(older, os.DirFS(w.dir)))
			for _, folder := range []string{"checkpoints", "recovery", "snapshots"} {
				w.ok(os.RemoveAll(filepath.Join(older, folder)))
			}
			w.restartBackend()
			w.open()
			w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 6), Name: "b"}))
			w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 7), Name: "c"}))
			w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 8), SamplerSeq: 3}))
			w.eventually(func() bool { return w.samplers[session+":sample:3"].Dir != "" && !w.erasures.busy })
			w.close()
			before := w.tree("checkpoints", "snapshots")
			c.lose(w, older)
			if s, err := store.Open(ctx, store.Options{Dir: w.dir}); c.refused {
				var loss *store.Loss
				if !errors.As(err, &loss) {
					t.Fatalf("the store opens: %v", err)
				}
				if left := w.tree(unclaimedDir); len(left) != 0 {
					t.Errorf("set aside are %v", left)
				}
				w.accept = true
			} else {
				w.ok(err)
				w.ok(s.Close())
			}
			w.restartBackend()
			w.open()
			w.eventually(func() bool { return !w.erasures.busy && !w.undescribed.busy })
			after := w.tree("checkpoints", "snapshots")
			for file, size := range w.tree(unclaimedDir) {
				if parts := strings.SplitN(file, string(filepath.Separator), 3); parts[2] != unclaimedNote {
					after[parts[2]] = size
				}
			}
			maps.DeleteFunc(after, func(file string, _ int64) bool { return strings.HasPrefix(file, "recovery") })
			if fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("files are\n%v, and were\n%v", after, before)
			}
			if aside := w.tree(unclaimedDir); len(aside) < 10 {
				t.Errorf("set aside are %v", aside)
			}
		})
	}
}

func removeAll(w *world, patterns ...string) {
	w.t.Helper()
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(w.dir, p))
		w.ok(err)
		for _, path := range found {
			w.ok(os.RemoveAll(path))
		}
	}
}

// Of what a crash leaves, only that is deleted which nobody can want: a write that did not end, and a recovery point that did not count.
func TestUnfinishedWrites(t *testing.T) {
	w := newWorld(t, nil)
	run := w.trained(w.session(), 0)
	made := func(dir string, whole bool) {
		w.ok(os.MkdirAll(w.file(dir), 0o700))
		w.ok(os.WriteFile(filepath.Join(w.file(dir), plugins.AdapterWeightsFile), []byte("x"), 0o600))
		if whole {
			w.ok(os.WriteFile(filepath.Join(w.file(dir), plugins.CompleteFile), nil, 0o600))
		}
	}
	w.close()
	cases := []struct {
		dir         string
		whole, goes bool
	}{
		{"checkpoints/" + run + "/weights/.a~01.tmp-1", false, true},
		{"checkpoints/" + run + "/weights/.a~01.tmp-2", true, false},
		{"checkpoints/" + run + "/weights/b~01", false, false},
		{"snapshots/" + run + "/.3~01.tmp-1", false, true},
		{"recovery/" + run + "/.4~01.unsettled", true, true},
		{"recovery/unknown:train:0/.4~01.unsettled", true, false},
		{"recovery/unknown:train:0/..4~01.unsettled.tmp-1", false, true},
		{"recovery/" + run + "/4~02", true, false},
		{"incoming/.upload-1", false, true},
		{"incoming/.upload-2", true, false},
	}
	for _, c := range cases {
		made(c.dir, c.whole)
	}
	w.restartBackend()
	w.open()
	for _, c := range cases {
		if _, err := os.Lstat(w.file(c.dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is where it was: %v", c.dir, err)
		}
		found, err := filepath.Glob(filepath.Join(w.dir, unclaimedDir, "*", c.dir))
		w.ok(err)
		if len(found) > 0 == c.goes {
			t.Errorf("%s: set aside as %v", c.dir, found)
		}
	}
	notes, err := filepath.Glob(filepath.Join(w.dir, unclaimedDir, "*", unclaimedNote))
	w.ok(err)
	if len(notes) != 1 {
		t.Fatalf("notes %v", notes)
	}
	b, err := os.ReadFile(notes[0])
	w.ok(err)
	var note claimNote
	w.ok(json.Unmarshal(b, &note))
	if len(note.Paths) != 5 || note.Why == "" || note.When.IsZero() {
		t.Errorf("note %+v", note)
	}
}

// told calls something when a message is logged.
type told struct {
	slog.Handler
	message string
	do      func()
}

func (h told) Enabled(context.Context, slog.Level) bool { return true }

func (h told) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return nil
}

// A backup that begins while several folders are being removed has those that are still there to itself.
func TestDeletionsAreHeldBetweenTwoFolders(t *testing.T) {
	held := make(chan func(), 1)
	w := newWorld(t, nil)
	w.Core.log = slog.New(told{slog.DiscardHandler, "files could not be deleted", func() { held <- w.HoldDeletions() }})
	dir := filepath.Join("checkpoints", "a:train:0", "weights", "x~1")
	w.ok(os.MkdirAll(filepath.Join(w.dir, dir), 0o700))
	w.Core.mu.Lock()
	w.erase("no place", dir)
	w.Core.mu.Unlock()
	release := <-held
	w.eventually(func() bool { return !w.erasures.busy })
	if _, err := os.Stat(filepath.Join(w.dir, dir)); err != nil {
		t.Errorf("it was removed while nothing may be: %v", err)
	}
	release()
	w.eventually(func() bool { return !w.erasures.busy && len(w.erasures.waiting) == 0 })
	if _, err := os.Stat(filepath.Join(w.dir, dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

// Where nothing can be set aside, as on a full disk, the server starts, and what has no record stays.
func TestStartWhereNothingCanBeSetAside(t *testing.T) {
	w := newWorld(t, nil)
	dir := filepath.Join(w.dir, "checkpoints", "a:train:0", "weights", "x~1")
	w.ok(os.MkdirAll(dir, 0o700))
	w.ok(os.WriteFile(filepath.Join(w.dir, unclaimedDir), nil, 0o600))
	w.restart()
	w.newRun(w.session(), 0)
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	w.ok(os.Remove(filepath.Join(w.dir, unclaimedDir)))
	w.restart()
	if found, err := filepath.Glob(filepath.Join(w.dir, unclaimedDir, "*", "checkpoints", "a:train:0", "weights", "x~1")); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}
