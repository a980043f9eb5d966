package engine

import (
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
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// faulty is the processor with hooks. They run on the device goroutine; one that is nil does nothing.
type faulty struct {
	tensor.Device
	gather   func(ids []int32) error
	alloc    func(bytes int) error
	gradient func()
	download func(n int) error
}

func (f *faulty) Download(dst []float32, src tensor.Tensor) error {
	if f.download != nil {
		if err := f.download(len(dst)); err != nil {
			return err
		}
	}
	return f.Device.Download(dst, src)
}

func (f *faulty) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	if f.gather != nil {
		if err := f.gather(ids); err != nil {
			return err
		}
	}
	return f.Device.GatherRows(dst, m, ids)
}

func (f *faulty) Alloc(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	return f.allocate(d, rows, cols, f.Device.Alloc)
}

// AllocUnset fills with NaN what must not be read before it is written.
func (f *faulty) AllocUnset(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	t, err := f.allocate(d, rows, cols, f.Device.AllocUnset)
	if err != nil {
		return t, err
	}
	return t, f.Upload(t, slices.Repeat([]float32{float32(math.NaN())}, rows*cols))
}

func (f *faulty) allocate(d tensor.DType, rows, cols int, alloc func(tensor.DType, int, int) (tensor.Tensor, error)) (tensor.Tensor, error) {
	if f.alloc != nil {
		if err := f.alloc(rows * cols * d.Size()); err != nil {
			return tensor.Tensor{}, err
		}
	}
	return alloc(d, rows, cols)
}

func (f *faulty) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, c []float32) error {
	if f.gradient != nil {
		f.gradient()
	}
	return f.Device.SoftmaxGradient(logits, lse, targets, c)
}

// startFaulty loads the test model on a device with hooks, which may be set on the device goroutine (see hook).
func startFaulty(t *testing.T) (*Engine, *faulty) {
	t.Helper()
	var f *faulty
	e := openOn(t, func(d *faulty) { f = d })
	e.interval = 0
	subject(t, e)
	return e, f
}

// openOn makes an engine on a device with hooks, which opened is given when the engine loads its model.
func openOn(t *testing.T, opened func(*faulty)) *Engine {
	o := testOptions()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := cpu.New(cpu.Options{Threads: c.Threads})
		f := &faulty{Device: d}
		opened(f)
		return f, err
	}
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// hook changes the device between two steps.
func hook(t *testing.T, e *Engine, set func()) {
	t.Helper()
	if err := e.onDevice(func() error { set(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// block holds the device goroutine until the function it gives is called, or the test ends, so that work can be put together. Then the device goroutine calls then, before anything else, unless that is nil.
func block(t testing.TB, e *Engine, then func()) (release func()) {
	t.Helper()
	gate, held := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	if !e.call(func() {
		close(held)
		<-gate
		if then != nil {
			then()
		}
	}) {
		t.Fatal("the engine has ended")
	}
	<-held // else what is asked for next might be taken before it
	return release
}

// queued tells whether the operation waits.
func queued(e *Engine, adapter string, position int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[adapter].queue.waiting[position] != nil
}

// A long training pass lets the sampler have its turns.
func TestTrainingYields(t *testing.T) {
	e, f := startFaulty(t)
	create(t, e, "a", 1, 4)
	var during atomic.Int64
	hook(t, e, func() { f.gradient = func() { during.Store(e.counters.sampledTokens.Load()) } })
	release := block(t, e, nil)
	done := make(chan error, 2)
	go func() {
		_, err := collect(context.Background(), e, ask("q", "", []int32{1, 2}, 1, 12))
		done <- err
	}()
	go func() {
		_, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: "a", Position: 1, Loss: "cross_entropy", Data: randomData(rand.New(rand.NewPCG(1, 1)), 4, 30)})
		done <- err
	}()
	eventually(t, "both wait", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.waiting.count == 1 && e.runs["a"].queue.waiting[1] != nil
	})
	release()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := during.Load(); n < 3 {
		t.Errorf("%d tokens were sampled when the forward pass was through; the sampler had no turn", n)
	}
}

// An operation on which the device fails is the only one of its batch that fails, and adds nothing; the others get the bits that they have alone.
func TestBatchFailure(t *testing.T) {
	e, f := startFaulty(t)
	const poison = 88
	random := rand.New(rand.NewPCG(2, 2))
	data := make([][]plugins.Datum, 4)
	want := make([]map[string][]float32, len(data))
	for i := range data {
		data[i] = randomData(random, 3, 30)
		for k := range data[i] {
			for n, token := range data[i][k].Tokens {
				data[i][k].Tokens[n] = min(token, poison-1)
			}
		}
		d := create(t, e, fmt.Sprint("alone", i), uint64(i), 4)
		d.pass(data[i])
		d.step()
		want[i] = d.weights()
	}
	bad := slices.Clone(data[1])
	bad[2].Tokens = slices.Clone(bad[2].Tokens)
	bad[2].Tokens[0] = poison
	failures := 0
	hook(t, e, func() {
		f.gather = func(ids []int32) error {
			if slices.Contains(ids, poison) {
				failures++
				return errors.New("the device is on fire")
			}
			return nil
		}
	})
	var drivers []*driver
	for i := range data {
		drivers = append(drivers, create(t, e, fmt.Sprint("fused", i), uint64(i), 4))
	}
	release := block(t, e, nil)
	errs := make([]chan error, len(data))
	for i, d := range drivers {
		errs[i] = make(chan error, 1)
		send := data[i]
		if i == 1 {
			send = bad
		}
		p := d.position()
		go func() {
			_, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: p, Loss: "cross_entropy", Data: send})
			errs[i] <- err
		}()
		eventually(t, "it waits", func() bool { return queued(e, d.adapter, p) })
	}
	release()
	for i := range data {
		err := <-errs[i]
		if i == 1 {
			if plugins.KindOf(err) != plugins.KindInternal || !strings.Contains(err.Error(), "on fire") {
				t.Errorf("the operation at fault: %v", err)
			}
			drivers[1].pass(data[1])
		} else if err != nil {
			t.Errorf("operation %d: %v", i, err)
		}
		drivers[i].step()
		equalTensors(t, fmt.Sprint("run ", i), drivers[i].weights(), want[i])
	}
	hook(t, e, func() {
		if failures != 2 {
			t.Errorf("%d attempts on the operation at fault, want one fused and one alone", failures)
		}
	})
	// So it is with sampling. Tokens that the device fails on are not drawn.
	good := ask("good", "", []int32{1}, 4, 10)
	good.LogitBias = map[int32]float64{poison: -1e6}
	alone, err := collect(t.Context(), e, good)
	if err != nil {
		t.Fatal(err)
	}
	release = block(t, e, nil)
	type answer struct {
		sampled
		err error
	}
	answers := map[string]chan answer{"good": make(chan answer, 1), "bad": make(chan answer, 1)}
	for id, c := range answers {
		q := good
		if q.ID = id; id == "bad" {
			q.Prompt = []int32{1, poison}
		}
		go func() {
			s, err := collect(context.Background(), e, q)
			c <- answer{s, err}
		}()
	}
	eventually(t, "both wait", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.waiting.count == 8
	})
	release()
	if a := <-answers["bad"]; plugins.KindOf(a.err) != plugins.KindInternal || !strings.Contains(a.err.Error(), "on fire") {
		t.Errorf("the request at fault: %v", a.err)
	}
	a := <-answers["good"]
	if a.err != nil {
		t.Fatal(a.err)
	}
	for i, s := range a.sequences {
		equalBits(t, "sampled beside the request at fault", s.Logprobs, alone.sequences[i].Logprobs)
	}
}

// When memory runs out, what needs it fails with KindCapacity and leaves everything as it was.
func TestNoMemory(t *testing.T) {
	e, f := startFaulty(t)
	d := create(t, e, "a", 1, 4)
	path := d.save(plugins.ScopeOptimizer)
	data := randomData(rand.New(rand.NewPCG(3, 3)), 2, 20)
	d.pass(data) // the workspace has its size
	left, out := 0, false
	hook(t, e, func() {
		f.alloc = func(int) error {
			if left--; out && left < 0 {
				return fmt.Errorf("no room in the test: %w", tensor.ErrMemory)
			}
			return nil
		}
	})
	attempts := []struct {
		name string
		call func() error
	}{
		{"first pass", func() error { // before it an adapter takes nothing
			if _, err := e.CreateAdapter(context.Background(), plugins.CreateAdapterRequest{Adapter: "c", Config: plugins.AdapterConfig{Rank: 2, TrainMLP: true}}); err != nil {
				return err
			}
			defer func() { _ = e.DeleteAdapter(context.Background(), "c") }()
			_, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: "c", Position: 1, Loss: "cross_entropy", Data: data})
			return err
		}},
		{"load", func() error {
			_, err := e.LoadAdapter(context.Background(), plugins.LoadAdapterRequest{Adapter: "l", Path: path, Scope: plugins.ScopeOptimizer})
			return err
		}},
		{"pass", func() error {
			_, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Loss: "cross_entropy", Data: data})
			return err
		}},
	}
	for _, a := range attempts {
		for n := range 3 {
			hook(t, e, func() { left, out = n, true })
			err := a.call()
			if !errors.Is(err, plugins.ErrCapacity) || !strings.Contains(err.Error(), "no room in the test") {
				if err == nil && n > 0 {
					break // it needs fewer allocations
				}
				t.Errorf("%s, allocation %d: %v", a.name, n, err)
			}
			hook(t, e, func() { out = false })
		}
		hook(t, e, func() { out = false })
	}
	if _, err := e.Pin(t.Context(), plugins.PinRequest{Adapter: "l", Name: "p"}); !errors.Is(err, plugins.ErrNotFound) {
		t.Errorf("an adapter for which there was no memory exists: %v", err)
	}
}

// A step that finds no memory, whichever of its allocations it is that fails, says so and leaves the gradient to the next one, which has the bits that it would have had at once.
func TestStepWithoutMemory(t *testing.T) {
	e, f := startFaulty(t)
	random := rand.New(rand.NewPCG(8, 3))
	data, more := randomData(random, 2, 20), randomData(random, 3, 20)
	d, want := create(t, e, "a", 1, 4), create(t, e, "b", 1, 4)
	for _, r := range []*driver{d, want} {
		r.pass(data)
		r.step()
		r.pass(more)
	}
	want.step()
	before := d.weights()
	failed := 0
	for stepped := false; !stepped; {
		left := failed
		hook(t, e, func() {
			f.alloc = func(int) error {
				if left--; left < 0 {
					return fmt.Errorf("no room in the test: %w", tensor.ErrMemory)
				}
				return nil
			}
		})
		r, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: d.position(), Adam: adamDefaults})
		hook(t, e, func() { f.alloc = nil })
		switch {
		case err == nil:
			stepped = true
			if r.Version != 2 || r.Step != 2 {
				t.Errorf("%+v", r)
			}
		case !errors.Is(err, plugins.ErrCapacity) || !strings.Contains(err.Error(), "no room in the test") || !strings.Contains(err.Error(), "kept for the next one"):
			t.Fatalf("allocation %d: %v", failed, err)
		default:
			equalTensors(t, "weights after a step without memory", d.weights(), before)
			failed++
		}
	}
	if failed < 3 {
		t.Errorf("%d allocations of a step have failed: new weights and two moments are more", failed)
	}
	equalTensors(t, "weights", d.weights(), want.weights())
	for _, r := range []*driver{d, want} {
		r.pass(data)
		r.step()
	}
	equalTensors(t, "weights one step on", d.weights(), want.weights())
}

// A save that breaks off at any place leaves nothing behind, neither a checkpoint nor part of one, and the run goes on.
func TestSaveBreaksOff(t *testing.T) {
	e, f := startFaulty(t)
	d := create(t, e, "a", 1, 4)
	d.pass(randomData(rand.New(rand.NewPCG(5, 5)), 2, 20))
	d.step()
	d.pass(randomData(rand.New(rand.NewPCG(5, 6)), 2, 20))
	dir := t.TempDir()
	path := filepath.Join(dir, "c")
	left, saved := 0, false
	for n := 0; !saved; n++ {
		hook(t, e, func() {
			left = n
			f.download = func(int) error {
				if left--; left == -1 {
					return errors.New("the device fell off the bus")
				}
				return nil
			}
		})
		_, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Position: d.position(), Scope: plugins.ScopeAccumulator, Path: path})
		saved = err == nil
		entries, failed := os.ReadDir(dir)
		if failed != nil {
			t.Fatal(failed)
		}
		switch {
		case saved && (len(entries) != 1 || n < 4):
			t.Fatalf("after %d downloads a checkpoint was written: %v", n, entries)
		case !saved && (len(entries) != 0 || !strings.Contains(err.Error(), "fell off the bus")):
			t.Fatalf("broken off at download %d: %v, left %v", n, err, entries)
		}
	}
	hook(t, e, func() { f.download = nil })
	load(t, e, "b", path, plugins.ScopeAccumulator)
	if _, err := e.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Position: d.position(), Path: filepath.Join(dir, "none", "c")}); err == nil {
		t.Error("a checkpoint was written where no directory is")
	}
	d.step()
}

// Close ends everything that is under way, and frees the device.
func TestClose(t *testing.T) {
	for range 5 {
		e := start(t, "")
		random := rand.New(rand.NewPCG(4, 4))
		create(t, e, "a", 1, 8)
		var calls []func()
		closed := func(err error) {
			if err != nil && !errors.Is(err, plugins.ErrUnavailable) {
				t.Error(err)
			}
		}
		for i := range int64(6) {
			data := randomData(random, 10, 60)
			calls = append(calls, func() {
				_, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: "a", Position: i + 1, Loss: "cross_entropy", Data: data})
				closed(err)
			}, func() {
				_, err := collect(context.Background(), e, ask(fmt.Sprint(i), "", []int32{1}, 3, 400))
				closed(err)
			}, func() {
				_, err := e.SaveAdapter(context.Background(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: filepath.Join(t.TempDir(), "c")})
				closed(err)
			}, func() {
				_, err := e.CreateAdapter(context.Background(), plugins.CreateAdapterRequest{Adapter: fmt.Sprint(i), Config: plugins.AdapterConfig{Rank: 8, TrainMLP: true}})
				closed(err)
			})
		}
		calls = append(calls, func() {
			eventually(t, "it works", func() bool { return e.counters.sampledTokens.Load() > 20 })
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		together(calls...)
	}
}

// What a failed pass left in its pages is not shared: the same prompt, asked again, has the bits that it has where nothing failed.
func TestFailedPassIsNotShared(t *testing.T) {
	prompt := randomTokens(rand.New(rand.NewPCG(4, 4)), 100)
	for name, load := range map[string]func(t *testing.T, e *Engine){
		"attention":        func(t *testing.T, e *Engine) { subject(t, e) },
		"linear attention": func(t *testing.T, e *Engine) { denseHybrid.load(t, e, `{"max_context_length": 320}`) },
	} {
		t.Run(name, func(t *testing.T) {
			var f *faulty
			e := openOn(t, func(d *faulty) { f = d })
			load(t, e)
			hook(t, e, func() { f.gather = func([]int32) error { return errors.New("on fire") } })
			q := ask("failed", "", prompt, 1, 8)
			q.Version = 0
			if _, err := collect(t.Context(), e, q); err == nil || !strings.Contains(err.Error(), "on fire") {
				t.Fatalf("got %v", err)
			}
			hook(t, e, func() { f.gather = nil })
			q.ID = "again"
			got, err := collect(t.Context(), e, q)
			if err != nil {
				t.Fatal(err)
			}
			fresh := openOn(t, func(*faulty) {})
			load(t, fresh)
			want, err := collect(t.Context(), fresh, q)
			if err != nil {
				t.Fatal(err)
			}
			equalSamples(t, name, got.sequences, want.sequences)
		})
	}
}
