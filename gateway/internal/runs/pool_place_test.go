package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Work that crashes its backend stays with one: it takes the others from nobody, and is found there.
func TestPoolKeepsCrashesTogether(t *testing.T) {
	const steps, runs = 4, 5
	want := neverMoved(t, steps)
	w, p := pooled(t, 3, func(w *world) { w.fake = crashOnMark })
	session := w.session()
	bad := w.newRun(session, 100)
	home := w.home(bad)
	results := make([][]string, runs)
	var all sync.WaitGroup
	for n := range runs {
		all.Go(func() { results[n] = w.learn(w.newRun(session, int64(n)), int64(n), steps) })
	}
	req := w.pass(bad, 1)
	req.Data[0].Tokens = []int32{marked, 3, 4, 5}
	s, err := w.ForwardBackward(t.Context(), req)
	w.ok(err)
	w.failure(w.outcome(s.RequestID), CategoryServer, "it crashes the backend of "+home)
	all.Wait()
	for n, got := range results {
		if !slices.Equal(got, want) {
			t.Errorf("run %d: the results differ from an undisturbed run's:\n%v\n%v", n, got, want)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.names {
		if n := p.members[name].crashes; name == home && (n < 2 || n > 4) || name != home && n != 0 {
			t.Errorf("%s crashed %d times", name, n)
		}
	}
}

// A run goes to a backend with another arithmetic only if it must, and says so then.
func TestPoolPrefersTheSameArithmetic(t *testing.T) {
	w, p := pooled(t, 2, func(w *world) { w.pool.members[w.pool.names[1]].arithmetic = " of another kind" })
	session := w.session()
	var run string
	for n := int64(0); run == "" || w.home(run) != p.names[0]; n++ {
		run = w.newRun(session, n)
	}
	w.good(w.ForwardBackward(t.Context(), w.pass(run, 1)))
	w.good(w.OptimStep(t.Context(), w.step(run, 2)))
	p.kill(p.names[0])
	w.eventually(func() bool { return w.runs[run].rebuild != nil })
	s, err := w.ForwardBackward(t.Context(), w.pass(run, 3))
	w.ok(err)
	time.Sleep(50 * time.Millisecond)
	if home := w.home(run); home != p.names[0] {
		t.Fatalf("it went to %s, whose arithmetic is another, while its own backend comes again", home)
	}
	p.begin(p.names[0])
	w.good(s, nil)
	inexact := func() string {
		info, err := w.Run(t.Context(), owner, run, ScopeOwned)
		w.ok(err)
		return info.Inexact
	}
	if why := inexact(); why != "" {
		t.Errorf("inexact: %s", why)
	}
	w.ok(w.Drain(t.Context(), p.names[0], true))
	w.arrived(run, p.names[1])
	w.good(w.OptimStep(t.Context(), w.step(run, 4)))
	if why := inexact(); !strings.Contains(why, p.names[1]) || !strings.Contains(why, "of another kind") {
		t.Errorf("inexact: %q", why)
	}
	w.refused(w.Drain(t.Context(), p.names[1], true), KindInvalid, p.names[1], "no other backend")
	w.refused(w.Drain(t.Context(), "nobody", true), KindNotFound, "nobody")
}

// A version whose home has no room is sampled elsewhere, with the same tokens: its files go there once, and it is loaded as any saved version.
func TestPoolSendsVersionsElsewhere(t *testing.T) {
	busy := map[string]bool{}
	var mu sync.Mutex
	w, p := pooled(t, 2, func(w *world) {
		w.config.Status = func(backend string) plugins.Status {
			mu.Lock()
			defer mu.Unlock()
			if busy[backend] {
				return plugins.Status{WaitingSamples: 5}
			}
			return plugins.Status{}
		}
	})
	run := w.trained(w.session(), 0)
	home := w.home(run)
	other := p.names[1-slices.Index(p.names, home)]
	saved := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), SamplerSeq: 1}))
	id := saved.SavedSampler.SamplerID
	first := w.sampled(w.sample(id, 0))
	if p.sampled(home) != 1 || p.sampled(other) != 0 {
		t.Fatalf("%d samples at home, %d elsewhere", p.sampled(home), p.sampled(other))
	}
	mu.Lock()
	busy[home] = true
	mu.Unlock()
	var all sync.WaitGroup
	for i := range int64(6) {
		all.Go(func() {
			if got := w.sampled(w.sample(id, 1+i)); fmt.Sprint(got.Sequences) != fmt.Sprint(first.Sequences) {
				t.Errorf("elsewhere it says %v, at home %v", got.Sequences, first.Sequences)
			}
		})
	}
	all.Wait()
	if p.sampled(home) != 1 || p.sampled(other) != 6 {
		t.Errorf("%d samples at home, %d elsewhere", p.sampled(home), p.sampled(other))
	}
	p.mu.Lock()
	loads := len(slices.DeleteFunc(slices.Clone(p.members[other].calls), func(adapter string) bool { return !strings.HasPrefix(adapter, "saved-") }))
	p.mu.Unlock()
	if loads != 1 {
		t.Errorf("the version was loaded %d times", loads)
	}
	// Once it has room again, it is at home as well.
	mu.Lock()
	clear(busy)
	mu.Unlock()
	for i := range int64(20) {
		req := w.sample(id, 10+i)
		req.Prompt = []int32{int32(i), 3}
		w.sampled(req)
	}
	if p.sampled(home) == 1 || p.sampled(other) == 6 {
		t.Errorf("%d samples at home, %d elsewhere", p.sampled(home), p.sampled(other))
	}
}

// full is a backend without memory for another adapter.
type full struct{ plugins.Backend }

func (f full) CreateAdapter(context.Context, plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	return plugins.AdapterInfo{}, &plugins.Error{Kind: plugins.KindCapacity, Message: "no room"}
}

func (f full) LoadAdapter(context.Context, plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	return plugins.AdapterInfo{}, &plugins.Error{Kind: plugins.KindCapacity, Message: "no room"}
}

// A run that its backend has no memory for is made, or made again, in another one.
func TestPoolFindsRoom(t *testing.T) {
	w, p := pooled(t, 3, func(w *world) { w.pool.members[w.pool.names[0]].full = true })
	session := w.session()
	var made []string
	for n := range int64(4) {
		run := w.newRun(session, n)
		made = append(made, run)
		if w.home(run) == p.names[0] {
			t.Errorf("%s is in the backend without room", run)
		}
		w.good(w.ForwardBackward(t.Context(), w.pass(run, 1)))
		w.good(w.OptimStep(t.Context(), w.step(run, 2)))
	}
	p.kill(p.names[1])
	for _, run := range made {
		w.good(w.ForwardBackward(t.Context(), w.pass(run, 3)))
		w.arrived(run, p.names[2])
	}
}

// A backend that joins gets runs of those that are busier: one after the other, until none is far busier than another.
func TestPoolBalances(t *testing.T) {
	now, later := movedClock()
	w, p := pooled(t, 2, func(w *world) { w.config.Now, w.config.SessionExpiry = now, time.Hour })
	p.kill(p.names[1])
	w.eventually(func() bool { return !w.models[0].slots[1].running })
	session := w.session()
	var made []string
	for n := range int64(6) {
		made = append(made, w.newRun(session, n))
	}
	later(20 * time.Second)
	for _, run := range made {
		w.good(w.ForwardBackward(t.Context(), w.pass(run, 1)))
	}
	p.begin(p.names[1])
	count := func() (n int) {
		for _, run := range made {
			if r := w.runs[run]; r.home.index == 1 && r.rebuild == nil {
				n++
			}
		}
		return n
	}
	w.eventually(func() bool { return count() == 3 && w.models[0].moves.balancing == nil })
	for _, run := range made {
		w.good(w.OptimStep(t.Context(), w.step(run, 2)))
	}
	later(15 * time.Second)
	w.Core.mu.Lock()
	w.rebalance(w.models[0])
	if n := count(); n != 3 || w.models[0].moves.balancing != nil {
		t.Errorf("%d runs moved, and more do, although none is far busier", n)
	}
	w.Core.mu.Unlock()
}

// From a backend that has time left no run moves: it would gain nothing.
func TestPoolMovesFromBusyBackends(t *testing.T) {
	now, later := movedClock()
	var worked atomic.Int64 // a time.Duration
	worked.Store(int64(time.Second))
	w, p := pooled(t, 2, func(w *world) {
		w.config.Now, w.config.SessionExpiry = now, time.Hour
		w.config.Status = func(string) plugins.Status {
			return plugins.Status{CycleSeconds: time.Duration(worked.Load()).Seconds()}
		}
	})
	p.kill(p.names[1])
	w.eventually(func() bool { return !w.models[0].slots[1].running })
	session := w.session()
	for n := range int64(6) {
		w.good(w.ForwardBackward(t.Context(), w.pass(w.newRun(session, n), 1)))
	}
	pass := func(d time.Duration, share float64) { // the backends work for so much of it
		later(d)
		worked.Add(int64(share * float64(d)))
		w.Core.mu.Lock()
		w.rebalance(w.models[0])
		w.Core.mu.Unlock()
	}
	pass(10*time.Second, 0.1)
	pass(10*time.Second, 0.1)
	p.begin(p.names[1])
	w.eventually(func() bool { return w.models[0].slots[1].running })
	w.Core.mu.Lock()
	w.rebalance(w.models[0])
	if w.models[0].moves.balancing != nil || len(w.models[0].slots[1].homed()) != 0 {
		t.Error("a run moves from a backend that has nearly nothing to do")
	}
	w.Core.mu.Unlock()
	pass(6*time.Second, 0.9)
	w.eventually(func() bool { return len(w.models[0].slots[1].homed()) > 0 })
}

// A key's weight is spread over the backends as its runs at work are.
func TestPoolSpreadsWeights(t *testing.T) {
	w, _ := pooled(t, 2, func(w *world) { w.config.Weights = map[string]float64{owner: 3} })
	session := w.session()
	var first *run
	for n := range int64(3) {
		id := w.newRun(session, n)
		w.Core.mu.Lock()
		if r := w.runs[id]; first == nil {
			first = r
		}
		w.Core.mu.Unlock()
	}
	w.Core.mu.Lock()
	here := 0
	for _, r := range w.runs {
		if r.home == first.home {
			here++
		}
	}
	w.Core.mu.Unlock()
	if share := w.shareOf(first); share.Key != owner || share.Weight != 3*float64(here)/3 {
		t.Errorf("%+v with %d of 3 runs there", share, here)
	}
}

// Clock cycles of different backends have different numbers, which grow, also behind a restart.
func TestPoolNumbersCycles(t *testing.T) {
	w, _ := pooled(t, 2, nil)
	seen, last := map[float64]string{}, map[string]float64{}
	round := func(run string, seq int64) {
		n := w.good(w.ForwardBackward(t.Context(), w.pass(run, seq))).ForwardBackward.Metrics["clock_cycle:unique"]
		if other := seen[n]; n == 0 || other != "" {
			t.Errorf("%s ran in cycle %v, as %s did", run, n, other)
		}
		home := w.home(run)
		if seen[n] = home; n <= last[home] {
			t.Errorf("cycle %v of %s came after %v", n, home, last[home])
		}
		last[home] = n
	}
	session := w.session()
	one, two := w.newRun(session, 0), w.newRun(session, 1)
	for seq := range int64(3) {
		round(one, seq+1)
		round(two, seq+1)
	}
	w.close()
	for _, name := range w.pool.names {
		w.pool.begin(name)
	}
	w.restartBackend() // which the world ends again
	w.open()
	for seq := range int64(2) {
		round(one, seq+4)
		round(two, seq+4)
	}
}

// A backend with other weights than the first gets no work, and no run is lost to it.
func TestPoolRefusesOtherWeights(t *testing.T) {
	w, p := pooled(t, 3, func(w *world) { w.pool.members[w.pool.names[1]].hash = "of something else" })
	session := w.session()
	var made []string
	for n := range int64(4) {
		made = append(made, w.newRun(session, n))
	}
	id := w.baseSampler(session, 50)
	for i := range int64(20) {
		req := w.sample(id, i)
		req.Prompt = []int32{2, int32(i)}
		w.sampled(req)
	}
	for _, run := range made {
		if w.home(run) == p.names[1] {
			t.Errorf("%s is in the backend with other weights", run)
		}
	}
	if n := p.sampled(p.names[1]); n > 0 {
		t.Errorf("%d samples of the base model are of other weights", n)
	}
	p.kill(p.names[0])
	for _, run := range made {
		w.arrived(run, p.names[2])
	}
	p.kill(p.names[2])
	s, err := w.ForwardBackward(t.Context(), w.pass(made[0], 1))
	w.ok(err)
	time.Sleep(20 * time.Millisecond)
	p.begin(p.names[0])
	w.good(s, nil)
	if infos := w.BackendInfos(); !infos[1].Odd || infos[0].Odd || infos[2].Odd {
		t.Errorf("%+v", infos)
	}
}
