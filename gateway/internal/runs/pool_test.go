package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// pool has the processes of several backends of one model. It is the Backends of a world.
type pool struct {
	w     *world
	names []string

	mu      sync.Mutex
	members map[string]*member
	changed chan struct{} // closed and replaced when a process starts or a backend fails
}

// member is one backend.
type member struct {
	process    *fake.Backend // nil while there is none
	loaded     plugins.ModelInfo
	lost       chan struct{}
	failed     error
	crashed    bool   // its last process ended by itself
	crashes    int    // how often one did
	config     string // of its processes; "" = the world's
	arithmetic string
	hash       string
	calls      []string // adapters that were made or loaded in it
	samples    int      // that it was asked for
	full       bool     // it has no memory for another adapter
	leaving    chan struct{}
	released   []string // why its processes were given back
}

// pooled is a world whose model has so many backends.
func pooled(t testing.TB, n int, change func(*world)) (*world, *pool) {
	t.Helper()
	p := &pool{members: map[string]*member{}, changed: make(chan struct{})}
	for i := range n {
		name := fmt.Sprintf("%s#%d", base, i+1)
		p.names = append(p.names, name)
		p.members[name] = &member{}
	}
	w := newWorld(t, func(w *world) {
		p.w, w.pool = w, p
		w.config.Models[0].Backends = p.names
		if change != nil {
			change(w)
		}
		for _, name := range p.names {
			p.begin(name)
		}
	})
	w.eventually(func() bool {
		return !slices.ContainsFunc(w.models[0].slots, func(s *slot) bool { return !s.running })
	})
	return w, p
}

// begin starts the process of a backend.
func (p *pool) begin(name string) {
	p.mu.Lock()
	m := p.members[name]
	config := m.config
	p.mu.Unlock()
	if config == "" {
		config = p.w.fake
	}
	var b *fake.Backend
	b = fake.New(fake.Options{Exit: func(int) { // by itself
		p.mu.Lock()
		m.crashed = true
		m.crashes++
		p.mu.Unlock()
		p.lose(name, b)
		go p.begin(name)
	}})
	dir := p.w.t.TempDir()
	p.w.ok(os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"vocab_size": 64}`), 0o600))
	info, err := b.Load(context.Background(), plugins.LoadRequest{ModelDir: dir, Name: base, Config: json.RawMessage(config), Scratch: p.w.t.TempDir()}, func(plugins.LoadProgress) {})
	p.w.ok(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	m.process, m.loaded, m.lost, m.leaving = b, info, make(chan struct{}), make(chan struct{})
	close(p.changed)
	p.changed = make(chan struct{})
}

// lose ends a process, if it is the one of its backend.
func (p *pool) lose(name string, b *fake.Backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[name]
	if m.process == nil || b != nil && m.process != b {
		return
	}
	m.process.Lose()
	m.process = nil
	close(m.lost)
}

// kill ends the process of a backend from outside.
func (p *pool) kill(name string) {
	p.mu.Lock()
	p.members[name].crashed = false
	p.mu.Unlock()
	p.lose(name, nil)
}

// fail has a backend never come back.
func (p *pool) fail(name string) {
	p.mu.Lock()
	p.members[name].failed = fmt.Errorf("%s is broken", name)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.kill(name)
}

func (p *pool) end() {
	for _, name := range p.names {
		p.kill(name)
	}
}

// Backend implements Backends.
func (p *pool) Backend(ctx context.Context, name string) (Backend, error) {
	for {
		p.mu.Lock()
		m, changed := p.members[name], p.changed
		if m == nil {
			p.mu.Unlock()
			return Backend{}, fmt.Errorf("there is no backend %s", name)
		}
		if m.failed != nil {
			p.mu.Unlock()
			return Backend{}, m.failed
		}
		if b := m.process; b != nil {
			info, err := b.Info(ctx)
			model := plugins.ModelInfo{Architecture: "Fake", VocabSize: 64, MaxContextLength: 128, MaxRank: 64, ModelHash: m.loaded.ModelHash + m.hash, Arithmetic: m.loaded.Arithmetic + m.arithmetic}
			var behind plugins.Backend = b
			if m.full {
				behind = full{b}
			}
			out := Backend{Backend: noted{behind, p, m}, BootID: info.BootID, Model: model, Lost: m.lost, Reason: func() string { return "killed by the test" }, Outside: func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return !m.crashed
			}, Leaving: m.leaving, Release: func(why string) {
				p.mu.Lock()
				m.released = append(m.released, why)
				p.mu.Unlock()
				p.kill(name)
			}}
			p.mu.Unlock()
			return out, err
		}
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Backend{}, ctx.Err()
		}
	}
}

// noted notes what a backend is asked for.
type noted struct {
	plugins.Backend
	p *pool
	m *member
}

func (b noted) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	b.note(req.Adapter)
	return b.Backend.CreateAdapter(ctx, req)
}

func (b noted) LoadAdapter(ctx context.Context, req plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	b.note(req.Adapter)
	return b.Backend.LoadAdapter(ctx, req)
}

func (b noted) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	b.p.mu.Lock()
	b.m.samples++
	b.p.mu.Unlock()
	return b.Backend.Sample(ctx, req, emit)
}

func (b noted) note(adapter string) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.m.calls = append(b.m.calls, adapter)
}

// sampled is how many samples a backend was asked for.
func (p *pool) sampled(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members[name].samples
}

// home is the name of a run's home.
func (w *world) home(run string) string {
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	return w.runs[run].home.name
}

// arrived waits until a run is in its home, and is not on its way elsewhere.
func (w *world) arrived(run, home string) {
	w.t.Helper()
	w.eventually(func() bool {
		r := w.runs[run]
		return r.home.name == home && r.rebuild == nil && r.moving == nil && r.boot == r.home.known.BootID
	})
}

// learn trains a run for some steps and gives what every operation said, and what an unnamed sampler of every other version says.
func (w *world) learn(run string, n int64, steps int) []string {
	ctx := w.t.Context()
	var said []string
	seq := int64(0)
	next := func() int64 { seq++; return seq }
	for i := range steps {
		var all []Submitted
		for range 2 {
			s, err := w.ForwardBackward(ctx, w.pass(run, next()))
			w.ok(err)
			all = append(all, s)
		}
		s, err := w.OptimStep(ctx, w.step(run, next()))
		w.ok(err)
		for _, s := range append(all, s) {
			out := w.outcome(s.RequestID)
			switch {
			case out.Failure != nil:
				w.t.Errorf("%s failed: %+v", s.RequestID, *out.Failure)
			case out.OptimStep != nil:
				said = append(said, fmt.Sprint(out.OptimStep.Step, out.OptimStep.Version, out.OptimStep.Metrics["grad_norm"], out.OptimStep.Metrics["adapter_norm"]))
			default:
				said = append(said, fmt.Sprint(out.ForwardBackward.Metrics["loss:sum"], out.ForwardBackward.Logprobs))
			}
		}
		if i%2 == 0 {
			continue
		}
		saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, next()), SamplerSeq: n*1000 + int64(i)}))
		for k := range int64(3) {
			said = append(said, fmt.Sprint(w.sampled(w.sample(saved.SavedSampler.SamplerID, k)).Sequences))
		}
	}
	return said
}

// neverMoved is what learn says with one backend that nothing happens to.
func neverMoved(t *testing.T, steps int) []string {
	t.Helper()
	w := newWorld(t, nil)
	return w.learn(w.newRun(w.session(), 0), 0, steps)
}

// TestPoolSpreadsRuns: runs are made in the backend with the fewest, and samples of the base model go to all.
func TestPoolSpreadsRuns(t *testing.T) {
	w, p := pooled(t, 3, nil)
	session := w.session()
	homes := map[string]int{}
	for n := range int64(6) {
		homes[w.home(w.newRun(session, n))]++
	}
	for _, name := range p.names {
		if homes[name] != 2 {
			t.Errorf("homes %v", homes)
		}
	}
	id := w.baseSampler(session, 50)
	for i := range int64(40) {
		req := w.sample(id, i)
		req.Prompt = []int32{2, int32(i)}
		w.sampled(req)
	}
	for _, name := range p.names {
		if p.sampled(name) == 0 {
			t.Errorf("%s was asked for no sample", name)
		}
	}
	// The same beginning goes to the same backend.
	before := map[string]int{}
	for _, name := range p.names {
		before[name] = p.sampled(name)
	}
	for i := range int64(10) {
		w.sampled(w.sample(id, 100+i))
	}
	grew := 0
	for _, name := range p.names {
		if p.sampled(name) > before[name] {
			grew++
		}
	}
	if grew != 1 {
		t.Errorf("prompts that are equal went to %d backends", grew)
	}
}

// TestPoolLosesABackend: the runs of a backend that dies go on in the others, and with none left they wait for the next one.
func TestPoolLosesABackend(t *testing.T) {
	const steps = 8
	want := neverMoved(t, steps)
	w, p := pooled(t, 2, nil)
	run := w.newRun(w.session(), 0)
	first := w.home(run)
	other := p.names[1-slices.Index(p.names, first)]
	done := make(chan []string)
	go func() { done <- w.learn(run, 0, steps) }()
	w.eventually(func() bool { return w.runs[run].live.step >= 2 })
	p.kill(first)
	w.eventually(func() bool { return w.runs[run].live.step >= 4 })
	if got := w.home(run); got != other {
		t.Errorf("the run is in %s, its backend %s is gone", got, first)
	}
	p.kill(other) // now there is none
	time.Sleep(20 * time.Millisecond)
	p.begin(first)
	if got := <-done; !slices.Equal(got, want) {
		t.Errorf("the results differ from an undisturbed run's:\n%v\n%v", got, want)
	}
	w.arrived(run, first)
	p.begin(other)
	p.fail(first)
	w.arrived(run, other)
	info, err := w.Run(t.Context(), owner, run, ScopeOwned)
	w.ok(err)
	if info.Inexact != "" || info.Backend != other {
		t.Errorf("%+v", info)
	}
}

// TestPoolMoves: a run whose backend is drained after every step has the results of one that never moved, with passes accumulated and samples in flight, and leaves nothing behind.
func TestPoolMoves(t *testing.T) {
	const steps = 20
	want := neverMoved(t, steps)
	w, p := pooled(t, 2, nil)
	run := w.newRun(w.session(), 0)
	done := make(chan []string)
	go func() { done <- w.learn(run, 0, steps) }()
	moves := 0
	for step := int64(1); step < steps; step++ {
		w.eventually(func() bool { return w.runs[run].live.step >= step })
		home := w.home(run)
		w.ok(w.Drain(t.Context(), home, true))
		other := p.names[1-slices.Index(p.names, home)]
		w.arrived(run, other)
		w.ok(w.Drain(t.Context(), home, false))
		moves++
	}
	if got := <-done; !slices.Equal(got, want) {
		t.Errorf("the results differ from those of a run that never moved:\n%v\n%v", got, want)
	}
	w.Core.mu.Lock()
	if n := w.runs[run].homes; n != moves || w.models[0].moves.count != int64(moves) {
		t.Errorf("%d homes and %d moves, want %d", n, w.models[0].moves.count, moves)
	}
	w.Core.mu.Unlock()
	// The home has the run, and the others nothing of it.
	for end := time.Now().Add(longest); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, name := range p.names {
			p.mu.Lock()
			b := p.members[name].process
			p.mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			_ = b.Status(ctx, func(st plugins.Status) {
				if name != w.home(run) {
					left += st.Adapters
				}
				cancel()
			})
			cancel()
		}
		w.Core.mu.Lock()
		for _, s := range w.models[0].slots {
			if s.name != w.runs[run].home.name {
				left -= len(s.frozen)
			}
		}
		w.Core.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d adapters are left where the run was", left)
		}
	}
}

// TestPoolUnderKills: many runs and their samples, while backends are killed and drained at random, have the results of runs that nothing happened to.
func TestPoolUnderKills(t *testing.T) {
	const steps, runs, blows = 6, 8, 24
	want := neverMoved(t, steps)
	w, p := pooled(t, 4, func(w *world) {
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "forward_backward", "seconds": 0.002}, {"operation": "sample", "seconds": 0.002}]}`
		w.pointsAlways()
	})
	session := w.session()
	results := make([][]string, runs)
	var all sync.WaitGroup
	for n := range runs {
		all.Go(func() { results[n] = w.learn(w.newRun(session, int64(n)), int64(n), steps) })
	}
	source := rand.New(rand.NewPCG(1, 2))
	for range blows {
		name := p.names[source.IntN(len(p.names))]
		switch source.IntN(3) {
		case 0:
			if err := w.Drain(t.Context(), name, true); err == nil {
				time.Sleep(time.Duration(source.IntN(20)) * time.Millisecond)
				w.ok(w.Drain(t.Context(), name, false))
			}
		default:
			p.kill(name)
			time.Sleep(time.Duration(source.IntN(20)) * time.Millisecond)
			p.begin(name)
		}
		time.Sleep(time.Duration(source.IntN(20)) * time.Millisecond)
	}
	all.Wait()
	for n, got := range results {
		if !slices.Equal(got, want) {
			t.Errorf("run %d: the results differ from an undisturbed run's:\n%v\n%v", n, got, want)
		}
	}
}
