package runs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// pointsAlways has a recovery point written whenever one can be.
func (w *world) pointsAlways() { w.config.PointOperations, w.config.DiskShare = 1, 1 }

// A recovery point takes the place of everything before it: older points and the requests go, results, keys and hashes stay, and a rebuild begins there.
func TestRecoveryPoints(t *testing.T) {
	rec := &recorder{}
	w := newWorld(t, func(w *world) {
		w.pointsAlways()
		w.wrap = func(b plugins.Backend) plugins.Backend {
			rec.mu.Lock()
			defer rec.mu.Unlock()
			rec.Backend = b
			return rec
		}
	})
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	for i := range int64(4) {
		w.good(w.ForwardBackward(ctx, w.pass(run, 2*i+1)))
		w.good(w.OptimStep(ctx, w.step(run, 2*i+2)))
		w.eventually(func() bool {
			return len(w.runs[run].points) == 1 && w.runs[run].points[0].Seq == 2*i+2 && !w.disk.busy && !w.runs[run].writing
		})
	}
	folders := func() int {
		list, err := filepath.Glob(filepath.Join(w.dir, "recovery", "*", "*"))
		w.ok(err)
		return len(list)
	}
	w.eventually(func() bool { return folders() == 1 })
	w.eventually(func() bool {
		operations, err := w.store.List(ctx, inOperations, run, store.Range{}, 0)
		w.ok(err)
		return !slices.ContainsFunc(operations, func(op store.Record) bool { return op.Payload != nil || op.Ref != store.Ref{} })
	})
	if again, err := w.ForwardBackward(ctx, w.pass(run, 1)); err != nil || again.RequestID != run+":1" {
		t.Errorf("a repeat: %v, %v", again, err)
	}
	_, err := w.OptimStep(ctx, w.step(run, 1))
	w.refused(err, KindInvalid, "used before")
	w.good(w.ForwardBackward(ctx, w.pass(run, 9)))
	for n, lose := range []func(*world){(*world).restartBackend, (*world).restart} {
		rec.mu.Lock()
		rec.calls = nil
		rec.mu.Unlock()
		lose(w)
		out := w.outcome(run + ":1")
		if out.Failure != nil || out.ForwardBackward == nil {
			t.Errorf("a result was lost: %+v", out)
		}
		score := w.pass(run, int64(10+n))
		score.ForwardOnly = true
		w.good(w.ForwardBackward(ctx, score))
		rec.mu.Lock()
		if want := []string{"1 pass 2", "2 pass 2"}; !slices.Equal(rec.calls, want) {
			t.Errorf("the rebuild did %q, want %q", rec.calls, want)
		}
		rec.mu.Unlock()
	}
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	w.eventually(func() bool { return folders() == 0 })
}

// slowReleases is a store whose commits that give requests up wait until the test lets them go on.
type slowReleases struct {
	store.Store
	begun, goOn chan struct{}
}

func (s slowReleases) Commit(ctx context.Context, b store.Batch) error {
	if len(b.Release) > 0 {
		select {
		case s.begun <- struct{}{}:
		default:
		}
		<-s.goOn
	}
	return s.Store.Commit(ctx, b)
}

// pruning makes a run with a recovery point, of which what that covers is being deleted until the test closes goOn.
func (w *world) pruning() (run string, slow slowReleases) {
	w.t.Helper()
	w.inFront(func(s store.Store) store.Store {
		slow = slowReleases{s, make(chan struct{}, 1), make(chan struct{})}
		return slow
	})
	ctx := w.t.Context()
	run = w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.OptimStep(ctx, w.step(run, 2)))
	<-slow.begun
	return run, slow
}

// A recovery point that comes while what an earlier one covers is still being deleted is kept, and deletes what it covers itself afterwards.
func TestRecoveryPointDuringPruning(t *testing.T) {
	w := newWorld(t, (*world).pointsAlways)
	run, slow := w.pruning()
	ctx := t.Context()
	w.eventually(func() bool { return !w.disk.busy })
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	w.good(w.OptimStep(ctx, w.step(run, 4)))
	w.eventually(func() bool { return w.runs[run].prunable })
	close(slow.goOn)
	w.eventually(func() bool {
		p := w.runs[run].points
		return len(p) == 1 && p[0].Seq == 4 && !w.runs[run].pruning
	})
	operations, err := w.store.List(ctx, inOperations, run, store.Range{From: 1, To: 5}, 0)
	w.ok(err)
	for _, op := range operations {
		if op.Payload != nil || op.Ref != (store.Ref{}) {
			t.Errorf("the request %s is still there", op.Key)
		}
	}
}

// A rebuild reads the requests from the journal: it does not begin while some are being deleted.
func TestRebuildWaitsForPruning(t *testing.T) {
	w := newWorld(t, (*world).pointsAlways)
	run, slow := w.pruning()
	ctx := t.Context()
	w.restartBackend()
	next, err := w.ForwardBackward(ctx, w.pass(run, 3))
	w.ok(err)
	w.eventually(func() bool { return w.runs[run].rebuild != nil })
	w.Core.mu.Lock()
	if b := w.runs[run].rebuild; b.going || b.loaded {
		t.Error("the rebuild has begun")
	}
	w.Core.mu.Unlock()
	close(slow.goOn)
	w.good(next, nil)
	if out := w.good(w.OptimStep(ctx, w.step(run, 4))); out.OptimStep.Step != 2 {
		t.Errorf("step %d, want 2", out.OptimStep.Step)
	}
}

// After many passes without a step the accumulated gradient is part of the point. A step that fails drops it, also when it is only known from the point.
func TestRecoveryPointsWithAccumulatedGradients(t *testing.T) {
	for _, c := range []struct {
		name string
		rate float64 // of the step behind the passes, before the loss; 0 = the loss comes before it
	}{{"the step comes after the loss", 0}, {"the step came before the loss", 0.01}, {"a failed step came before the loss", overflowing}} {
		for _, name := range slices.Sorted(maps.Keys(lose)) {
			t.Run(c.name+", lost "+name, func(t *testing.T) {
				files := map[bool]map[string]string{}
				for _, disturbed := range []bool{false, true} {
					w := newWorld(t, func(w *world) {
						w.config.PointEvery = time.Hour
						if w.config.PointOperations = 1000; disturbed {
							w.pointsAlways()
						}
					})
					ctx := t.Context()
					run := w.newRun(w.session(), 0)
					for seq := range int64(4) {
						op := w.pass(run, seq+1)
						op.Data[0].Tokens = []int32{int32(seq), 3, 4, 5}
						w.good(w.ForwardBackward(ctx, op))
					}
					if disturbed {
						w.eventually(func() bool { p := w.runs[run].points; return len(p) == 1 && p[0].Scope == plugins.ScopeAccumulator })
						w.config.PointOperations = 1000
						w.Core.mu.Lock()
						w.Core.cfg.PointOperations, w.Core.cfg.PointEvery = 1000, time.Hour
						w.Core.mu.Unlock()
					}
					w.good(w.ForwardBackward(ctx, w.pass(run, 5)))
					step := func() {
						op := w.step(run, 6)
						if c.rate != 0 {
							op.Adam = withRate(op.Adam, c.rate)
						}
						s, err := w.OptimStep(ctx, op)
						w.ok(err)
						if failed := w.outcome(s.RequestID).Failure; (failed != nil) != (c.rate == overflowing) || failed != nil && !strings.HasPrefix(failed.Message, "base_model.") {
							t.Errorf("the step: %+v", failed)
						}
					}
					if c.rate != 0 {
						step()
					}
					if disturbed {
						lose[name](w)
					}
					if c.rate == 0 {
						step()
					}
					w.good(w.ForwardBackward(ctx, w.pass(run, 7)))
					w.good(w.OptimStep(ctx, w.step(run, 8)))
					files[disturbed] = w.contents(w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 9), Name: "end"})).Saved.Path)
				}
				compare(t, files[true], files[false])
			})
		}
	}
}

// A version that an unnamed sampler uses is written soon; until then the journal and the points before it stay, whatever points are taken behind it.
func TestPointsKeepWhatPinsNeed(t *testing.T) {
	var full atomic.Bool
	var moments atomic.Int64
	full.Store(true)
	w := newWorld(t, func(w *world) {
		w.pointsAlways()
		w.config.MaxHotSnapshots = 100
		w.wrap = func(b plugins.Backend) plugins.Backend { return refusingWeights{b, &full, &moments} }
	})
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 2), SamplerSeq: 0}))
	w.good(w.OptimStep(ctx, w.step(run, 3)))
	w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 4), SamplerSeq: 1}))
	w.eventually(func() bool { return !w.disk.busy && !w.runs[run].writing })
	w.good(w.OptimStep(ctx, w.step(run, 5)))
	w.eventually(func() bool {
		return slices.ContainsFunc(w.runs[run].points, func(p *recoveryPoint) bool { return p.Seq == 5 })
	})
	var want [2]string
	for i := range want {
		want[i] = fmt.Sprint(w.sampled(w.sample(session+":sample:"+itoa(int64(i)), 0)).Sequences)
	}
	for n, lose := range []func(*world){(*world).restartBackend, (*world).restart} {
		if n == 1 {
			full.Store(false)
		}
		lose(w)
		for i := range want {
			if got := fmt.Sprint(w.sampled(w.sample(session+":sample:"+itoa(int64(i)), int64(n+1))).Sequences); got != want[i] {
				t.Errorf("sampler %d: got %s, want %s", i, got, want[i])
			}
		}
	}
	if n := moments.Load(); n > 0 {
		t.Errorf("%d pins for samplers keep the optimizer's moments", n)
	}
	w.eventually(func() bool {
		return w.samplers[session+":sample:0"].Dir != "" && w.samplers[session+":sample:1"].Dir != ""
	})
}

// Weights for a sampler that could not be written are written when they can be, though nothing else happens: until then their run would need the journal back to them.
func TestWeightsThatCouldNotBeWritten(t *testing.T) {
	for _, c := range []struct {
		name    string
		hot     int  // so many may stay pinned
		records bool // the files are written, and their samplers' records are not
	}{
		{name: "in the background", hot: 100},
		{name: "to make room", hot: 1},
		{name: "records", hot: 100, records: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var full, never atomic.Bool
			full.Store(true)
			w := newWorld(t, func(w *world) {
				w.config.MaxHotSnapshots, w.config.DiskShare = c.hot, 1
				files := &full
				if c.records {
					files = &never
				}
				w.wrap = func(b plugins.Backend) plugins.Backend { return refusingWeights{b, files, &atomic.Int64{}} }
			})
			if c.records {
				w.inFront(func(s store.Store) store.Store { return refusingFolders{s, &full} })
			}
			ctx := t.Context()
			run := w.newRun(w.session(), 0)
			for i := range int64(2) {
				w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 2*i+1), SamplerSeq: i}))
				w.good(w.OptimStep(ctx, w.step(run, 2*i+2)))
			}
			written := func() (n int) {
				for _, s := range w.runs[run].pins {
					if s.dir != "" {
						n++
					}
				}
				return n
			}
			w.eventually(func() bool {
				idle := !w.disk.busy
				for _, s := range w.runs[run].pins {
					_, unwritten := w.Core.unwritten[s]
					idle = idle && unwritten && !s.spilling
				}
				return idle && len(w.runs[run].pins) == 2 && written() == 0
			})
			full.Store(false)
			w.sweep(ctx, time.Second)
			w.eventually(func() bool { return written() == 2 })
			folders, err := os.ReadDir(w.file(filepath.Join("snapshots", run)))
			w.ok(err)
			if len(folders) != 2 {
				t.Errorf("%d folders for two versions: attempts that failed have left some", len(folders))
			}
			w.Core.mu.Lock()
			defer w.Core.mu.Unlock()
			if counted := w.unnamed[owner]; counted != w.onDisk() {
				t.Errorf("%d bytes are counted for the owner, on disk are %d", counted, w.onDisk())
			}
		})
	}
}

// refusingWeights cannot write weights in the background while it is told so, and counts the pins for samplers that keep more than weights.
type refusingWeights struct {
	plugins.Backend
	full    *atomic.Bool
	moments *atomic.Int64
}

func (b refusingWeights) Pin(ctx context.Context, req plugins.PinRequest) (plugins.PinResult, error) {
	if strings.Contains(req.Name, ":sample:") && !req.WeightsOnly {
		b.moments.Add(1)
	}
	return b.Backend.Pin(ctx, req)
}

func (b refusingWeights) SaveAdapter(ctx context.Context, req plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if req.Position == 0 && req.Scope == plugins.ScopeWeights && b.full.Load() {
		return plugins.SaveAdapterResult{}, &plugins.Error{Kind: plugins.KindInternal, Message: "no room in the test"}
	}
	return b.Backend.SaveAdapter(ctx, req)
}

// refusingFolders is a store that cannot write where samplers' weights are while it is told so.
type refusingFolders struct {
	store.Store
	full *atomic.Bool
}

func (s refusingFolders) Commit(ctx context.Context, b store.Batch) error {
	if s.full.Load() && slices.ContainsFunc(b.Put, func(r store.Record) bool {
		return r.Collection == inSamplers && bytes.Contains(r.Value, []byte("snapshots/"))
	}) {
		return errDisk
	}
	return s.Store.Commit(ctx, b)
}

// A recovery point counts when everything up to its place has its result in the journal, not before: a result that is missing there would never come.
func TestRecoveryPointWaitsForResults(t *testing.T) {
	held := &holding{hold: make(chan struct{})}
	w := newWorld(t, (*world).pointsAlways)
	w.inFront(func(s store.Store) store.Store { held.Store = s; return held })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	held.key.Store(run + ":1")
	pass, err := w.ForwardBackward(ctx, w.pass(run, 1))
	w.ok(err)
	w.good(w.OptimStep(ctx, w.step(run, 2)))
	w.eventually(func() bool { return w.runs[run].written != nil || len(w.runs[run].points) > 0 })
	w.Core.mu.Lock()
	points := len(w.runs[run].points)
	w.Core.mu.Unlock()
	if points > 0 {
		t.Error("the point counts while a result before it is not in the journal")
	}
	close(held.hold)
	w.good(pass, nil)
	w.eventually(func() bool { return len(w.runs[run].points) == 1 && w.runs[run].written == nil })
}

// holding is a store in which the writing of one record's result waits.
type holding struct {
	store.Store
	key  atomic.Value // string
	hold chan struct{}
}

func (h *holding) Commit(ctx context.Context, b store.Batch) error {
	if slices.ContainsFunc(b.Put, func(r store.Record) bool { return r.Collection == inResults && r.Key == h.key.Load() }) {
		<-h.hold
	}
	return h.Store.Commit(ctx, b)
}

// contents reads the files of a checkpoint, but for its description, which has times.
func (w *world) contents(path string) map[string]string {
	w.t.Helper()
	w.Core.mu.Lock()
	dir := w.file(w.checkpoints[path].Dir)
	w.Core.mu.Unlock()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	w.ok(err)
	for _, e := range entries {
		if e.Name() == descriptionFile {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		w.ok(err)
		files[e.Name()] = string(content)
	}
	return files
}
