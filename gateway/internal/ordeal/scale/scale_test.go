package scale

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

var (
	full  = flag.Bool("full", false, "measure, with TestCost")
	inAll = flag.Int("runs", 10_000, "how many runs TestCost has")
	sizes = flag.String("backends", "1,8,64,512", "how many backends TestCost has, one after the other")
)

// What a device takes, as measured on one GPU-sized model: a pass over a small batch, an optimizer step, a sample of a few tokens among others. Only their size beside the gateway's cost matters.
const (
	passTime   = 200 * time.Millisecond
	stepTime   = 20 * time.Millisecond
	sampleTime = 500 * time.Millisecond
	samplesNow = 64 // that a device decodes at once
)

const (
	model      = "scale/model"
	vocabulary = 16
	contextLen = 64
	steps      = 3   // of each run
	perOwner   = 100 // runs: more sessions than that are another person's
	operations = 1 + 3*steps
	seldom     = 800 * time.Second // that a run's operations are apart where all devices have time for them: 10,000 runs are then two thirds of what one device can do
)

// device is a fake backend that takes time: one pass or step after the other, and so many samples at once.
type device struct {
	*fake.Backend
	training chan struct{}
	sampling chan struct{}

	mu     sync.Mutex
	status plugins.Status // as the gateway is told of it
}

// changed takes note that samples wait for the device, or run on it.
func (d *device) changed(waiting, running int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.WaitingSamples += waiting
	d.status.RunningSamples += running
}

// train waits until the device trains nothing else and has it for a while.
func (d *device) train(ctx context.Context, takes time.Duration) error {
	select {
	case d.training <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.training }()
	time.Sleep(takes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.CycleSeconds += takes.Seconds()
	d.status.TrainedTokens++
	return nil
}

func (d *device) ForwardBackward(ctx context.Context, r plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	if err := d.train(ctx, passTime); err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	return d.Backend.ForwardBackward(ctx, r)
}

func (d *device) OptimStep(ctx context.Context, r plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	if err := d.train(ctx, stepTime); err != nil {
		return plugins.OptimStepResult{}, err
	}
	return d.Backend.OptimStep(ctx, r)
}

func (d *device) Sample(ctx context.Context, r plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	d.changed(1, 0)
	select {
	case d.sampling <- struct{}{}:
		d.changed(-1, 1)
	case <-ctx.Done():
		d.changed(-1, 0)
		return ctx.Err()
	}
	defer func() { d.changed(0, -1); <-d.sampling }()
	time.Sleep(sampleTime)
	return d.Backend.Sample(ctx, r, emit)
}

// pool is the backends, which never end.
type pool map[string]runs.Backend

// Backend implements runs.Backends.
func (p pool) Backend(_ context.Context, name string) (runs.Backend, error) {
	b, ok := p[name]
	if !ok {
		return runs.Backend{}, fmt.Errorf("no backend %s", name)
	}
	return b, nil
}

// status is what a backend has told of itself last, as a server knows it: by its name, under a lock.
func (p pool) status(name string) plugins.Status {
	b, ok := p[name]
	if !ok {
		return plugins.Status{}
	}
	d := b.Backend.(*device)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func newPool(n int) (pool, []string, error) {
	p, names := pool{}, []string{}
	for i := range n {
		b := fake.New(fake.Options{})
		config := fmt.Sprintf(`{"vocab_size": %d, "max_context_length": %d, "hidden_size": 4, "max_rank": 8}`, vocabulary, contextLen)
		info, err := b.Load(context.Background(), plugins.LoadRequest{Name: model, Config: json.RawMessage(config)}, func(plugins.LoadProgress) {})
		if err != nil {
			return nil, nil, err
		}
		of, err := b.Info(context.Background())
		if err != nil {
			return nil, nil, err
		}
		name := fmt.Sprintf("%s#%d", model, i)
		names = append(names, name)
		p[name] = runs.Backend{Backend: &device{Backend: b, training: make(chan struct{}, 1), sampling: make(chan struct{}, samplesNow)}, BootID: of.BootID, Model: info, Lost: make(chan struct{}), Reason: func() string { return "" }}
	}
	if n == 1 { // a model's only backend has its name
		return pool{model: p[names[0]]}, nil, nil
	}
	return p, names, nil
}

// client is one run: it trains, and samples what it has trained, as one who learns by reinforcement does. Its operations begin at least apart after each other.
func client(ctx context.Context, core *runs.Core, n int, apart time.Duration) error {
	owner := fmt.Sprint("owner-", n/perOwner)
	time.Sleep(operations * apart * time.Duration(n%1000) / 1000) // else all of them would train at once, and then all of them sample
	begun := time.Now()
	done := func(at runs.Submitted, err error) (*runs.Outcome, error) {
		defer func() {
			time.Sleep(apart - time.Since(begun))
			begun = time.Now()
		}()
		for {
			if err != nil {
				return nil, err
			}
			var out *runs.Outcome
			if out, err = core.Wait(ctx, owner, at.RequestID, time.Minute); errors.Is(err, runs.ErrPending) {
				err = nil
				continue
			}
			if err == nil && out.Failure != nil {
				err = fmt.Errorf("%s: %s", at.RequestID, out.Failure.Message)
			}
			return out, err
		}
	}
	session, err := core.CreateSession(ctx, runs.NewSession{Owner: owner})
	if err != nil {
		return err
	}
	seed := uint64(n)
	made, err := core.CreateRun(ctx, runs.NewRun{Owner: owner, SessionID: session.ID, BaseModel: model, LoRA: runs.LoRAConfig{Rank: 1, Seed: &seed, TrainAttn: true, TrainMLP: true, TrainUnembed: true}})
	if _, err = done(made, err); err != nil {
		return err
	}
	few := 4
	for step := range int64(steps) {
		next := func(k int64) runs.Operation { return runs.Operation{Owner: owner, RunID: made.RunID, Seq: 3*step + k} }
		if _, err = done(core.ForwardBackward(ctx, runs.ForwardBackward{Operation: next(1), Loss: "cross_entropy", Data: []runs.Datum{{
			Tokens: []int32{1, 2, 3, 4}, Inputs: map[string]runs.Tensor{"target_tokens": {Shape: []int{4}, Ints: []int64{2, 3, 4, 5}}},
		}}})); err != nil {
			return err
		}
		if _, err = done(core.OptimStep(ctx, runs.OptimStep{Operation: next(2), Adam: plugins.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}})); err != nil {
			return err
		}
		saved, err := done(core.SaveWeightsForSampler(ctx, runs.SaveWeightsForSampler{Operation: next(3), SamplerSeq: step + 1}))
		if err != nil {
			return err
		}
		sample, err := core.Sample(ctx, runs.Sample{Owner: owner, SamplerID: saved.SavedSampler.SamplerID, Seq: 1, Prompt: []int32{1, 2, 3}, NumSamples: 1, Params: runs.SamplingParams{MaxTokens: &few, Temperature: 1, TopP: 1, Seed: &seed}})
		if _, err = done(runs.Submitted{RequestID: sample.RequestID}, err); err != nil {
			return err
		}
	}
	return core.FinishSession(ctx, owner, session.ID, "success", "")
}

// measured is what a pool did.
type measured struct {
	took time.Duration // virtual
	cost time.Duration // of processors
}

// processor is the time that this process has had of processors.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure has so many runs train on so many backends.
func measure(ctx context.Context, dir string, backends, runsInAll int, apart time.Duration) (m measured, err error) {
	records, err := store.Open(ctx, store.Options{Dir: dir, Reserve: -1})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	p, names, err := newPool(backends)
	if err != nil {
		return m, err
	}
	core, err := runs.Open(ctx, runs.Config{
		Store: records, DataDir: dir, Backends: p, Models: []runs.Model{{Name: model, Backends: names}}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Status: p.status,
		SessionExpiry: max(5*time.Minute, 2*apart), // these clients have no heartbeat
	})
	if err != nil {
		return m, err
	}
	begun, before := time.Now(), processor()
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range runsInAll {
		all.Go(func() {
			if one := client(ctx, core, n, apart); one != nil {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					err = fmt.Errorf("run %d: %w", n, one)
				}
			}
		})
	}
	all.Wait()
	m = measured{time.Since(begun), processor() - before}
	return m, errors.Join(err, core.Close(ctx))
}

// fast is a folder in memory, where there is one: a disk's time is not the gateway's.
func fast(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "tinsmith-scale-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestPool: many runs over several backends come to their end, and take about as long as the devices need for them together.
func TestPool(t *testing.T) {
	for _, backends := range []int{1, 4} {
		t.Run(fmt.Sprint("backends=", backends), func(t *testing.T) {
			dir := fast(t)
			synctest.Test(t, func(t *testing.T) {
				const runsInAll = 24
				m, err := measure(context.Background(), dir, backends, runsInAll, 0)
				if err != nil {
					t.Fatal(err)
				}
				devices := runsInAll * steps * (passTime + stepTime) / time.Duration(backends)
				if m.took < devices || m.took > 2*devices+steps*(sampleTime+passTime) {
					t.Errorf("%d runs took %v of virtual time, and their devices need %v", runsInAll, m.took, devices)
				}
			})
		})
	}
}

// TestCost measures what an operation costs the gateway, by the number of backends: µs of a processor. Once the runs do all they can, so that one device makes each of them wait; and once all of them work equally seldom, whatever the
// number of devices. What is printed is also in docs/pool.md.
func TestCost(t *testing.T) {
	if !*full {
		t.Skip("a measurement of some minutes: runs with -full")
	}
	for _, size := range strings.Split(*sizes, ",") {
		backends, err := strconv.Atoi(size)
		if err != nil {
			t.Fatal(err)
		}
		for _, apart := range []time.Duration{seldom, 0} {
			dir := fast(t)
			synctest.Test(t, func(t *testing.T) {
				m, err := measure(context.Background(), dir, backends, *inAll, apart)
				if err != nil {
					t.Fatal(err)
				}
				n := float64(*inAll * (operations + steps))
				t.Logf("%3d backends, %d runs, operations at least %v apart: %6.1f µs an operation; %9.0f operations a second", backends, *inAll, apart, float64(m.cost.Microseconds())/n, n/m.took.Seconds())
			})
		}
	}
}
