package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// crashOnMark has passes and samples with the marked token crash their process.
var crashOnMark = fmt.Sprintf(`{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "forward_backward", "seconds": 0.05}, {"operation": "sample", "seconds": 0.05}],
	"faults": [{"operation": "forward_backward", "token": %d, "action": "crash"}, {"operation": "sample", "token": %d, "action": "crash"}]}`, marked, marked)

// stuck is a backend whose passes and samples do not begin once there were so many crashes, until more are allowed.
type stuck struct {
	plugins.Backend
	crashes, allowed *atomic.Int64
}

func (s stuck) wait(ctx context.Context) error {
	for s.crashes.Load() >= s.allowed.Load() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s stuck) ForwardBackward(ctx context.Context, r plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	if err := s.wait(ctx); err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	return s.Backend.ForwardBackward(ctx, r)
}

func (s stuck) Sample(ctx context.Context, r plugins.SampleRequest, event func(plugins.SampleEvent) error) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Backend.Sample(ctx, r, event)
}

// charged is how many crashes are stored of something.
func (w *world) charged(key string) int64 {
	rec, err := w.store.Get(w.t.Context(), inCrashes, key)
	var x charges
	if err == nil && json.Unmarshal(rec.Value, &x) != nil {
		w.t.Errorf("the crashes of %s are stored as %q", key, rec.Value)
	}
	return int64(x.Crashes)
}

// The server is restarted after every crash: the work that crashes its backend is found all the same, after no more crashes than in one life.
func TestCrashesOutliveTheServer(t *testing.T) {
	for _, c := range []struct {
		name   string
		sample bool
		crowd  int
		most   int64
	}{
		{"a pass alone", false, 0, 3},
		{"a sample alone", true, 0, 3},
		{"a pass among others", false, 3, 4},
		{"a sample among others", true, 3, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			var allowed atomic.Int64
			w := newWorld(t, func(w *world) {
				w.fake = crashOnMark
				w.wrap = func(b plugins.Backend) plugins.Backend { return stuck{b, &w.losses, &allowed} }
			})
			allowed.Store(1)
			w.crashes.Store(true)
			session := w.session()
			sampler, guiltyRun := w.baseSampler(session, 0), w.newRun(session, 0)
			var runs, ids []string
			for i := range c.crowd {
				runs = append(runs, w.newRun(session, int64(i+1)))
			}
			for i, run := range runs {
				pass, err := w.ForwardBackward(t.Context(), w.pass(run, 1))
				w.ok(err)
				sample, err := w.Sample(t.Context(), w.sample(sampler, int64(i)))
				w.ok(err)
				ids = append(ids, pass.RequestID, sample.RequestID)
			}
			guilty := ""
			if c.sample {
				op := w.sample(sampler, 1000)
				op.Prompt = []int32{3, marked, 4}
				s, err := w.Sample(t.Context(), op)
				w.ok(err)
				guilty = s.RequestID
			} else {
				op := w.pass(guiltyRun, 1)
				op.Data[0].Tokens[1] = marked
				s, err := w.ForwardBackward(t.Context(), op)
				w.ok(err)
				guilty = s.RequestID
			}
			for life := int64(1); ; life++ {
				over := false
				w.eventually(func() bool {
					over = w.futures[guilty] == nil
					return over || w.charged(guilty) == life
				})
				if over {
					break
				}
				w.restart()
				allowed.Store(life + 1) // not before: what is stuck must not begin in this life
			}
			allowed.Store(1000)
			failed := w.outcome(guilty)
			w.failure(failed, CategoryServer, "it crashes the backend", "killed by the test")
			for _, id := range ids {
				if out := w.outcome(id); out.Failure != nil {
					t.Errorf("%s failed: %s", id, out.Failure.Message)
				}
			}
			if n := w.losses.Load(); n > c.most {
				t.Errorf("%d crashes, want at most %d", n, c.most)
			}
			w.eventually(func() bool { // what is over is forgotten
				n := 0
				for _, id := range append(ids, guilty) {
					n += int(w.charged(id))
				}
				return n == 0
			})
		})
	}
}

// A past operation that crashes every process in which its run is rebuilt costs that run, and nobody else anything.
func TestRebuildThatCrashesTheBackend(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts in the middle %v", restarts), func(t *testing.T) {
			var told, allowed atomic.Int64
			w := newWorld(t, func(w *world) {
				w.config.Explained = func(string) { told.Add(1) }
				w.wrap = func(b plugins.Backend) plugins.Backend { return stuck{b, &w.losses, &allowed} }
			})
			allowed.Store(1000)
			session := w.session()
			var runs []string
			for i := range 4 {
				run := w.newRun(session, int64(i))
				runs = append(runs, run)
				op := w.pass(run, 1)
				if i == 2 {
					op.Data[0].Tokens[1] = marked
				}
				w.good(w.ForwardBackward(t.Context(), op))
				w.good(w.OptimStep(t.Context(), w.step(run, 2)))
			}
			guilty := runs[2]
			w.fake = crashOnMark
			if restarts {
				allowed.Store(1)
			}
			w.crashes.Store(true)
			w.restart()
			var ids []string
			for _, run := range runs {
				s, err := w.ForwardBackward(t.Context(), w.pass(run, 3))
				w.ok(err)
				ids = append(ids, s.RequestID)
			}
			for life := int64(1); restarts && life <= 2; life++ {
				w.eventually(func() bool {
					return w.charged(rebuildKey+guilty) == life
				})
				w.restart()
				allowed.Store(life + 1) // not before: what is stuck must not begin in this life
			}
			allowed.Store(1000)
			for i, id := range ids {
				out := w.outcome(id)
				if i == 2 {
					w.failure(out, CategoryServer, "the run was lost", "its rebuild crashes the backend", "operation "+guilty+":1 ran again", "killed by the test")
				} else if out.Failure != nil {
					t.Errorf("%s failed: %s", id, out.Failure.Message)
				}
			}
			for i, run := range runs {
				_, err := w.OptimStep(t.Context(), w.step(run, 4))
				if gone := err != nil && KindOf(err) == KindNotFound && strings.Contains(err.Error(), "corrupted"); gone != (i == 2) {
					t.Errorf("a step of run %d: %v", i, err)
				}
			}
			if n := w.losses.Load(); n != 3 {
				t.Errorf("%d crashes, want 3", n)
			}
			if n := told.Load(); n < 1 || n > 2 { // with the verdict, and when something has succeeded since
				t.Errorf("the crashes were explained %d times", n)
			}
		})
	}
}
