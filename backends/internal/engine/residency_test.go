package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// startScratch loads the test model on a device with hooks, with a directory for what does not fit, which it gives.
func startScratch(t *testing.T) (*Engine, *faulty, string) {
	t.Helper()
	return startScratchOn(t, placement{plugin: pluginSingle})
}

// startScratchOn does so as a placement says; the device is the last one then.
func startScratchOn(t *testing.T, p placement) (*Engine, *faulty, string) {
	t.Helper()
	var f *faulty
	o := testOptions()
	o.Plugin = p.plugin
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := cpu.New(cpu.Options{Threads: 1})
		f = &faulty{Device: d}
		return f, err
	}
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	dir, scratch := t.TempDir(), filepath.Join(t.TempDir(), "scratch")
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(p.section), Scratch: scratch}, nil); err != nil {
		t.Fatal(err)
	}
	return e, f, scratch
}

// limitTo leaves room for so many adapters of the shape of r, and checks from then on that no more is taken.
func limitTo(t *testing.T, e *Engine, f *faulty, id string, adapters int) {
	t.Helper()
	hook(t, e, func() {
		m := e.loaded.adapters
		layout := e.runs[id].layout
		m.limit = int64(adapters) * (m.weightBytes(layout) + 2*lora.ParameterBytes(layout))
		check := func([]int32) error {
			if m.used > m.limit {
				t.Errorf("%d bytes are in memory, the limit is %d", m.used, m.limit)
			}
			return nil
		}
		f.alloc, f.gather = func(int) error { return check(nil) }, check
		if err := m.trim(); err != nil {
			t.Error(err)
		}
	})
}

// archive reads all files of a checkpoint.
func archive(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		if files[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Twenty runs that train and sample in turn and at once, with room for four, give the checkpoints, samples and log-probabilities that they give with room for all; and the limit is kept throughout.
func TestMoreAdaptersThanFit(t *testing.T) {
	const adapters, rank = 20, 16
	type result struct {
		archives []map[string][]byte
		samples  []sampled
		logprobs [][]float32
	}
	play := func(limited bool) (r result) {
		e, f, scratch := startScratch(t)
		random := rand.New(rand.NewPCG(8, 8))
		var drivers []*driver
		for i := range adapters {
			drivers = append(drivers, create(t, e, fmt.Sprint("a", i), uint64(i), rank))
			if limited && i == 0 {
				limitTo(t, e, f, "a0", 4)
			}
		}
		r.samples = make([]sampled, 2*adapters)
		r.logprobs = make([][]float32, adapters)
		for round := range 3 {
			data := make([][]plugins.Datum, adapters)
			for i := range data {
				data[i] = randomData(random, 1+random.IntN(10), 30)
			}
			prompt := randomTokens(random, 20)
			var calls []func()
			for i, d := range drivers {
				calls = append(calls, func() {
					r.logprobs[i] = append(r.logprobs[i], d.pass(data[i]).Logprobs[0]...)
					if round == 1 {
						if _, err := e.Pin(context.Background(), plugins.PinRequest{Adapter: d.adapter, Position: d.position(), Name: "p", WeightsOnly: i%2 == 0}); err != nil {
							t.Error(err)
						}
					}
					d.step()
				})
				if round == 2 { // the version that is pinned, beside the training of the next
					calls = append(calls, func() {
						for n, version := range []int64{1, 0} {
							q := ask(fmt.Sprint("q", i, "-", n), d.adapter, prompt, 2, 12)
							if q.Version = version; version == 0 {
								q.Adapter, q.Version = "", plugins.LatestVersion
							}
							var err error
							if r.samples[2*i+n], err = collect(context.Background(), e, q); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			together(calls...)
		}
		for i, d := range drivers {
			d.pass(randomData(random, 2, 20)) // in the middle of a window
			if i%5 == 0 {
				r.archives = append(r.archives, archive(t, d.save(plugins.ScopeAccumulator)))
			}
		}
		for i, d := range drivers {
			r.archives = append(r.archives, archive(t, d.save(plugins.ScopeAccumulator)))
			path := filepath.Join(t.TempDir(), "pinned")
			scope := plugins.ScopeWeights
			if i%2 == 1 {
				scope = plugins.ScopeOptimizer
			}
			if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: d.adapter, Version: 1, Scope: scope, Path: path}); err != nil {
				t.Fatal(err)
			}
			r.archives = append(r.archives, archive(t, path))
		}
		s := e.status(time.Now())
		if limited != (s.SpilledBytes > 0) || s.AdapterBytes <= 0 {
			t.Errorf("limited %v: %d bytes in memory, %d in files", limited, s.AdapterBytes, s.SpilledBytes)
		}
		for _, d := range drivers {
			if err := e.DeleteAdapter(t.Context(), d.adapter); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "everything is freed", func() bool {
			s := e.status(time.Now())
			return s.AdapterBytes == 0 && s.SpilledBytes == 0
		})
		if left, err := os.ReadDir(filepath.Join(scratch, "adapters")); err != nil || len(left) > 0 {
			t.Errorf("files are left: %v, %v", left, err)
		}
		return r
	}
	want, got := play(false), play(true)
	for i := range want.archives {
		for name, content := range want.archives[i] {
			if !bytes.Equal(content, got.archives[i][name]) {
				t.Errorf("archive %d: %s differs", i, name)
			}
		}
	}
	for i := range want.logprobs {
		equalBits(t, fmt.Sprint("log-probabilities of run ", i), got.logprobs[i], want.logprobs[i])
	}
	for i := range want.samples {
		for k := range want.samples[i].sequences {
			if !slices.Equal(got.samples[i].sequences[k].Tokens, want.samples[i].sequences[k].Tokens) {
				t.Errorf("sample %d: other tokens", i)
			}
			equalBits(t, fmt.Sprint("sample ", i), got.samples[i].sequences[k].Logprobs, want.samples[i].sequences[k].Logprobs)
		}
	}
}

// With room for no more than one optimizer step needs, nothing is refused for what others hold: it waits for the end of the cycle, and gives what it gives with room for all. So it does where the disk takes only every third
// adapter that is to be moved out: what needs it waits, whatever it is, and nothing is done twice.
func TestRoomForOneStep(t *testing.T) {
	const runs, rank = 6, 16
	play := func(t *testing.T, tight, refusing bool) []map[string][]byte {
		e, _, _ := startScratch(t)
		refused := 0
		create(t, e, "first", 1, rank)
		if tight {
			hook(t, e, func() {
				e.loaded.adapters.limit = e.loaded.adapters.stepBytes(e.runs["first"].layout)
				e.loaded.plan.batchTokens = 64 // so that cycles are long, and calls fall into them
				if refusing {
					e.diskPause = time.Millisecond
					e.loaded.adapters.space = func(string) (int64, error) {
						if refused++; refused%3 != 0 {
							return 0, nil
						}
						return math.MaxInt64, nil
					}
				}
			})
		}
		saved := make([]map[string][]byte, runs)
		var calls []func()
		for i := range runs {
			random := rand.New(rand.NewPCG(8, uint64(i)))
			calls = append(calls, func() {
				d := create(t, e, fmt.Sprint("r", i), uint64(i), rank)
				for round := range 6 {
					passed, stepped := d.passCycle(randomData(random, 1+random.IntN(10), 30)), func() float64 { return 0 }
					if round%2 == 0 {
						stepped = d.stepCycle()
					}
					passed()
					stepped()
					if round%2 == 1 {
						path := d.save(plugins.ScopeAccumulator)
						for _, req := range []plugins.LoadAdapterRequest{{Adapter: fmt.Sprint(d.adapter, "-", round)}, {Adapter: d.adapter, Position: d.position()}} {
							req.Path, req.Scope = path, plugins.ScopeAccumulator
							if _, err := e.LoadAdapter(context.Background(), req); err != nil {
								t.Errorf("load %s: %v", req.Adapter, err)
							}
						}
					}
					q := ask(fmt.Sprint("q", i, round), d.adapter, randomTokens(random, 20), 2, 12)
					_, err := collect(context.Background(), e, q)
					for refusing && errors.Is(err, plugins.ErrCapacity) { // as those who ask for samples do
						_, err = collect(context.Background(), e, q)
					}
					if err != nil {
						t.Error(err)
					}
				}
				d.step()
				saved[i] = archive(t, d.save(plugins.ScopeOptimizer))
			})
		}
		together(calls...)
		hook(t, e, func() {
			if refusing && refused < 20 {
				t.Errorf("the disk was asked %d times only", refused)
			}
		})
		return saved
	}
	want := play(t, false, false)
	for _, c := range []struct {
		name     string
		refusing bool
	}{
		{"a disk that takes everything", false},
		{"a disk that takes every third file", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := play(t, true, c.refusing)
			for i := range want {
				for name, content := range want[i] {
					if !bytes.Equal(content, got[i][name]) {
						t.Errorf("run %d: %s differs", i, name)
					}
				}
			}
		})
	}
}

// While the disk takes no adapters, work for which some would have to be moved out is not decided, Status says why, and everything else goes on. It is done, once, when the disk takes them again; or given back when the engine closes.
func TestWaitsForDisk(t *testing.T) {
	breaks := []struct {
		name    string
		disrupt func(*residency)
		why     string
	}{
		{"less is free than is kept for others", func(m *residency) {
			m.reserve, m.space = 64<<20, func(string) (int64, error) { return 64<<20 + 100, nil }
		}, "64 MiB are kept for others"},
		{"the disk is out of order", func(m *residency) { m.space = func(string) (int64, error) { return 0, syscall.EIO } }, "input/output error"},
	}
	random := rand.New(rand.NewPCG(12, 9))
	data, more := randomData(random, 3, 30), randomData(random, 2, 30)
	type player struct {
		t    *testing.T
		e    *Engine
		a, b *driver
	}
	// Two runs in the middle of a window, with room for one optimizer step of one of them: what the other has that is in no file would have to go for it.
	begin := func(t *testing.T, limited bool) player {
		e, _, _ := startScratch(t)
		a := create(t, e, "a", 1, 16)
		if limited {
			hook(t, e, func() {
				e.loaded.adapters.limit, e.diskPause = e.loaded.adapters.stepBytes(e.runs["a"].layout), time.Millisecond
			})
		}
		p := player{t, e, a, create(t, e, "b", 2, 16)}
		p.b.pass(data)
		p.a.pass(data)
		return p
	}
	work := func(p player) (undecided func() bool, wait func()) {
		var group sync.WaitGroup
		for _, d := range []*driver{p.b, p.a} {
			stepped, passed := d.stepCycle(), d.passCycle(more)
			group.Go(func() { stepped(); passed() })
		}
		group.Go(func() { create(p.t, p.e, "c", 3, 16) })
		return func() bool { return !decided(p.e, "a") || !decided(p.e, "b") }, group.Wait
	}
	archives := func(p player) (all []map[string][]byte) {
		for _, id := range []string{"a", "b"} {
			path := filepath.Join(p.t.TempDir(), id)
			if _, err := p.e.SaveAdapter(context.Background(), plugins.SaveAdapterRequest{Adapter: id, Version: plugins.LatestVersion, Scope: plugins.ScopeOptimizer, Path: path}); err != nil {
				p.t.Fatal(err)
			}
			all = append(all, archive(p.t, path), archive(p.t, map[string]*driver{"a": p.a, "b": p.b}[id].save(plugins.ScopeAccumulator)))
		}
		return all
	}
	free := begin(t, false)
	_, wait := work(free)
	wait()
	want := archives(free)
	for _, c := range breaks {
		t.Run(c.name, func(t *testing.T) {
			p := begin(t, true)
			hook(t, p.e, func() { c.disrupt(p.e.loaded.adapters) })
			undecided, wait := work(p)
			told := ""
			eventually(t, "work waits for the disk", func() bool {
				s := p.e.status(time.Now())
				told = s.NoRoom
				return told != "" && waitsForDisk(p.e)
			})
			if !strings.Contains(told, "move out") || !strings.Contains(told, c.why) {
				t.Errorf("status says %q", told)
			}
			for range 20 { // however often it is tried
				if _, err := collect(t.Context(), p.e, ask("q", "", []int32{1, 2}, 1, 4)); err != nil {
					t.Errorf("a sample of the base model: %v", err)
				}
			}
			if !undecided() {
				t.Error("all was decided without the disk")
			}
			if s := p.e.status(time.Now()); s.LastProgressAge > time.Minute {
				t.Errorf("no progress for %v while nothing can be done", s.LastProgressAge)
			}
			hook(t, p.e, func() { p.e.loaded.adapters.reserve, p.e.loaded.adapters.space = 0, freeSpace })
			wait()
			eventually(t, "nothing waits for the disk", func() bool { return p.e.status(time.Now()).NoRoom == "" })
			for i, files := range archives(p) {
				for name, content := range want[i] {
					if !bytes.Equal(content, files[name]) {
						t.Errorf("archive %d: %s differs", i, name)
					}
				}
			}
		})
	}
	t.Run("delete what is being made", func(t *testing.T) {
		p := begin(t, true)
		saved := p.a.save(plugins.ScopeWeights)
		hook(t, p.e, func() { breaks[0].disrupt(p.e.loaded.adapters) })
		made := map[string]chan error{"loaded": make(chan error, 1)}
		go func() {
			_, err := p.e.LoadAdapter(context.Background(), plugins.LoadAdapterRequest{Adapter: "loaded", Path: saved})
			made["loaded"] <- err
		}()
		for id, ended := range made {
			eventually(t, "the adapter is being made", func() bool {
				p.e.mu.Lock()
				defer p.e.mu.Unlock()
				return p.e.runs[id] != nil
			})
			if err := p.e.DeleteAdapter(t.Context(), id); err != nil {
				t.Error(err)
			}
			if err := <-ended; !errors.Is(err, plugins.ErrNotFound) || !strings.Contains(err.Error(), "deleted while it was made") {
				t.Errorf("%s: %v", id, err)
			}
		}
	})
	t.Run("close", func(t *testing.T) {
		p := begin(t, true)
		hook(t, p.e, func() { breaks[0].disrupt(p.e.loaded.adapters) })
		errs := make(chan error, 3)
		for _, d := range []*driver{p.a, p.b} {
			position := d.position()
			go func() {
				_, err := p.e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: d.adapter, Position: position, Adam: adamDefaults})
				errs <- err
			}()
		}
		eventually(t, "a step waits for the disk", func() bool { return waitsForDisk(p.e) })
		go func() {
			_, err := p.e.CreateAdapter(context.Background(), plugins.CreateAdapterRequest{Adapter: "c", Config: plugins.AdapterConfig{Rank: 16, TrainMLP: true, TrainAttention: true, TrainUnembed: true}})
			errs <- err
		}()
		eventually(t, "the adapter is being made", func() bool {
			p.e.mu.Lock()
			defer p.e.mu.Unlock()
			return p.e.runs["c"] != nil
		})
		if err := p.e.Close(); err != nil {
			t.Error(err)
		}
		refused := 0
		for range 3 {
			if err := <-errs; errors.Is(err, plugins.ErrUnavailable) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused == 0 {
			t.Error("nothing was given back")
		}
	})
}

// What was needed longest ago goes to a file first, not what was made first.
func TestLongestUnusedGoesFirst(t *testing.T) {
	e, f, _ := startScratch(t)
	for i, id := range []string{"a", "b", "c"} {
		create(t, e, id, uint64(i), 16)
	}
	limitTo(t, e, f, "a", 3)
	if _, err := collect(t.Context(), e, ask("q", "a", []int32{1, 2, 3}, 1, 4)); err != nil {
		t.Fatal(err)
	}
	create(t, e, "d", 4, 16)
	for id, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		hook(t, e, func() {
			if here := e.runs[id].latest.weights.content != nil; here != want {
				t.Errorf("the weights of %s are in memory: %v, want %v", id, here, want)
			}
		})
	}
}

// waitsForDisk tells whether an operation is held back for the disk.
func waitsForDisk(e *Engine) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.order, func(r *run) bool { return !r.held.IsZero() })
}

// decided tells whether no operation of an adapter waits.
func decided(e *Engine, adapter string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.runs[adapter].queue.waiting) == 0
}

// Versions that are pinned only to be sampled do not keep their moments; others do.
func TestPinnedMoments(t *testing.T) {
	e, _, _ := startScratch(t)
	d := create(t, e, "a", 1, 8)
	var weights, moments int64
	hook(t, e, func() {
		layout := e.runs["a"].layout
		weights, moments = e.loaded.adapters.weightBytes(layout), 2*lora.ParameterBytes(layout)
	})
	holds := func(what string, want int64) {
		t.Helper()
		eventually(t, what, func() bool { return e.status(time.Now()).AdapterBytes == want })
	}
	pin := func(name string, only bool) {
		t.Helper()
		if _, err := e.Pin(t.Context(), plugins.PinRequest{Adapter: "a", Name: name, WeightsOnly: only}); err != nil {
			t.Fatal(err)
		}
	}
	save := func(version int64, scope plugins.Scope) error {
		_, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: version, Scope: scope, Path: filepath.Join(t.TempDir(), "c")})
		return err
	}
	holds("the first version", weights+moments)
	pin("sampler", true)
	d.step()
	holds("the pinned version has no moments", 2*weights+moments)
	pin("snapshot", false)
	pin("sampler 2", true)
	d.step()
	holds("the snapshot has moments", 3*weights+2*moments)
	if err := save(0, plugins.ScopeWeights); err != nil {
		t.Error(err)
	}
	if err := save(0, plugins.ScopeOptimizer); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "optimizer state is gone") {
		t.Errorf("a version whose moments are gone: %v", err)
	}
	if err := save(1, plugins.ScopeOptimizer); err != nil {
		t.Error(err)
	}
	if err := e.Unpin(t.Context(), plugins.UnpinRequest{Adapter: "a", Name: "snapshot"}); err != nil {
		t.Fatal(err)
	}
	holds("no snapshot is left", 3*weights+moments)
}

// A file that the disk has changed fails what needs it, by name; what needs room waits while the disk takes nothing. Nothing else is touched.
func TestSpillFailures(t *testing.T) {
	e, f, scratch := startScratch(t)
	random := rand.New(rand.NewPCG(9, 9))
	data := randomData(random, 2, 20)
	a := create(t, e, "a", 1, 16)
	limitTo(t, e, f, "a", 3)
	files := filepath.Join(scratch, "adapters")
	moved := filepath.Join(scratch, "moved")

	b, c := create(t, e, "b", 2, 16), create(t, e, "c", 3, 16)
	if err := os.Rename(files, moved); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 4)
	for i := range cap(made) {
		go func() {
			id := fmt.Sprint("x", i)
			_, err := e.CreateAdapter(context.Background(), plugins.CreateAdapterRequest{Adapter: id, Config: plugins.AdapterConfig{Rank: 16, TrainAttention: true, TrainMLP: true, TrainUnembed: true}})
			if err == nil {
				_, err = e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: id, Position: 1, Adam: adamDefaults})
			}
			made <- err
		}()
	}
	eventually(t, "one waits for the disk", func() bool { return strings.Contains(e.status(time.Now()).NoRoom, "move out") })
	if err := os.Rename(moved, files); err != nil {
		t.Fatal(err)
	}
	for range cap(made) {
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	for _, d := range []*driver{a, b, c} {
		d.pass(data)
		d.step()
	}

	// Everything goes to files, and those of one run are changed.
	var broken []string
	hook(t, e, func() {
		m := e.loaded.adapters
		for {
			if moved, err := m.moveOut(0); err != nil || !moved {
				break
			}
		}
		broken = append(broken, e.runs["b"].latest.weights.file)
	})
	for _, path := range broken {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, flip(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "b", Position: b.position(), Data: data, Loss: "cross_entropy"}); err == nil || !strings.Contains(err.Error(), `weights of adapter "b"`) {
		t.Errorf("a pass over damaged weights: %v", err)
	}
	if _, err := collect(t.Context(), e, ask("q", "b", []int32{1}, 1, 1)); err == nil || !strings.Contains(err.Error(), `weights of adapter "b"`) {
		t.Errorf("a sample of damaged weights: %v", err)
	}
	a.pass(data)
	a.step()
	c.pass(data)
	c.step()
}
