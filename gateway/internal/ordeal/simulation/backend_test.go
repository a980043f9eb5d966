package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// models are the two served ones; each has a process of its own, with other weights.
var models = []string{"sim/one", "sim/two"}

const (
	vocabulary = 16
	contextLen = 64
)

// process is a backend that can end, and its way to the gateway, which can be cut.
type process struct {
	w       *world
	of      *server
	model   string
	number  int
	boot    string
	backend *fake.Backend
	info    plugins.ModelInfo
	lost    chan struct{}
	dead    bool      // guarded by the scheduler's mu
	cut     time.Time // nothing gets through until then; only the scheduler's goroutine uses it
}

// newFake makes a backend and loads its model.
func newFake(model string) (*fake.Backend, plugins.ModelInfo, string) {
	b := fake.New(fake.Options{Exit: func(int) { panic("nothing tells a simulated backend to end") }})
	config := fmt.Sprintf(`{"vocab_size": %d, "max_context_length": %d, "hidden_size": 4, "max_rank": 8, "seed": %d}`, vocabulary, contextLen, len(model)*100+int(model[len(model)-1]))
	info, err := b.Load(context.Background(), plugins.LoadRequest{Name: model, Config: json.RawMessage(config)}, func(plugins.LoadProgress) {})
	mustBe(err)
	return b, info, must(b.Info(context.Background())).BootID
}

// startProcess makes a model's next process.
func (w *world) startProcess(of *server, model string) {
	w.processes++
	p := &process{w: w, of: of, model: model, number: w.processes, lost: make(chan struct{})}
	p.backend, p.info, p.boot = newFake(model)
	w.mu.Lock()
	defer w.mu.Unlock()
	of.processes[model] = p
	close(of.changed)
	of.changed = make(chan struct{})
}

// end is the end of a process: what it computes and what it has answered and not delivered is lost.
func (p *process) end() {
	p.w.scheduler.mu.Lock()
	dead := p.dead
	p.dead = true
	p.w.scheduler.mu.Unlock()
	if dead {
		return
	}
	p.backend.Lose()
	close(p.lost)
}

// Backend implements runs.Backends.
func (of *server) Backend(ctx context.Context, model string) (runs.Backend, error) {
	for {
		of.w.mu.Lock()
		p, changed := of.processes[model], of.changed
		of.w.mu.Unlock()
		if p != nil && !p.gone() {
			return runs.Backend{
				Backend: p, BootID: p.boot, Model: p.info, Lost: p.lost, Reason: func() string { return "the simulation ended it" },
				Outside: func() bool { return true }, // it says nothing about the work that it had
			}, nil
		}
		select {
		case <-changed:
		case <-of.over:
			return runs.Backend{}, errors.New("the gateway is gone")
		case <-ctx.Done():
			return runs.Backend{}, ctx.Err()
		}
	}
}

func (p *process) gone() bool {
	p.w.scheduler.mu.Lock()
	defer p.w.scheduler.mu.Unlock()
	return p.dead
}

// pass is the way of a call to the process, or of an answer from it.
func (p *process) pass(at place, key string) (verdict, error) {
	key = fmt.Sprint(p.number, " ", key)
	v := goOn
	if at == toBackend || p.w.chance(p.w.plan.parked, "park", key) {
		v = p.w.park(parked{place: at, key: key, of: p.of, in: p})
	}
	if v == gone || p.gone() {
		return v, &plugins.Error{Kind: plugins.KindBackendLost, Message: "the simulated process is gone"}
	}
	return v, nil
}

// through is one call of the contract. A call that arrives twice has its first answer.
func through[T any](p *process, key string, f func() (T, error)) (T, error) {
	var zero T
	v, err := p.pass(toBackend, key)
	if err != nil {
		return zero, err
	}
	result, err := f()
	if v == twice {
		_, _ = f()
	}
	if _, lost := p.pass(fromBackend, key); lost != nil {
		return zero, lost
	}
	return result, err
}

// named leaves out of the name of an adapter what is random in it.
func named(adapter string) string {
	if strings.HasPrefix(adapter, "saved-") {
		return adapter[:strings.LastIndexByte(adapter, '-')]
	}
	return adapter
}

func nothing(err error) (struct{}, error) { return struct{}{}, err }

func (p *process) Info(ctx context.Context) (plugins.Info, error) { return p.backend.Info(ctx) }

func (p *process) Load(context.Context, plugins.LoadRequest, func(plugins.LoadProgress)) (plugins.ModelInfo, error) {
	panic("the core loads no model")
}

func (p *process) Status(ctx context.Context, report func(plugins.Status)) error {
	return p.backend.Status(ctx, report)
}

func (p *process) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	return through(p, "create "+req.Adapter, func() (plugins.AdapterInfo, error) {
		return p.backend.CreateAdapter(ctx, req)
	})
}

func (p *process) DeleteAdapter(ctx context.Context, adapter string) error {
	_, err := through(p, "delete "+named(adapter), func() (struct{}, error) { return nothing(p.backend.DeleteAdapter(ctx, adapter)) })
	return err
}

func (p *process) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	return through(p, fmt.Sprint("pass ", req.Adapter, " @", req.Position), func() (plugins.ForwardBackwardResult, error) {
		req := req
		p.misplace(ctx, req.Adapter, &req.Position, func(position int64) {
			again := req
			again.Position = position
			_, _ = p.backend.ForwardBackward(ctx, again)
		})
		return p.backend.ForwardBackward(ctx, req)
	})
}

func (p *process) OptimStep(ctx context.Context, req plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	return through(p, fmt.Sprint("step ", req.Adapter, " @", req.Position), func() (plugins.OptimStepResult, error) {
		req := req
		p.misplace(ctx, req.Adapter, &req.Position, nil)
		return p.backend.OptimStep(ctx, req)
	})
}

func (p *process) Pin(ctx context.Context, req plugins.PinRequest) (plugins.PinResult, error) {
	return through(p, fmt.Sprint("pin ", req.Adapter, " @", req.Position, " ", req.Name), func() (plugins.PinResult, error) {
		req := req
		p.misplace(ctx, req.Adapter, &req.Position, nil)
		return p.backend.Pin(ctx, req)
	})
}

func (p *process) Unpin(ctx context.Context, req plugins.UnpinRequest) error {
	_, err := through(p, "unpin "+req.Adapter+" "+req.Name, func() (struct{}, error) { return nothing(p.backend.Unpin(ctx, req)) })
	return err
}

func (p *process) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	v, err := p.pass(toBackend, "sample "+req.ID)
	if err != nil {
		return err
	}
	if v == twice {
		second := req
		second.ID += "'"
		_ = p.backend.Sample(ctx, second, func(plugins.SampleEvent) error { return nil })
	}
	if err := p.backend.Sample(ctx, req, emit); err != nil {
		return err
	}
	_, err = p.pass(fromBackend, "sample "+req.ID)
	return err
}

func (p *process) Cancel(ctx context.Context, req plugins.CancelRequest) error {
	_, err := through(p, "cancel "+req.ID, func() (struct{}, error) { return nothing(p.backend.Cancel(ctx, req)) })
	return err
}

func (p *process) SaveAdapter(ctx context.Context, req plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	return through(p, fmt.Sprint("save ", req.Adapter, " @", req.Position, " v", req.Version), func() (plugins.SaveAdapterResult, error) {
		req := req
		p.misplace(ctx, req.Adapter, &req.Position, nil)
		return p.backend.SaveAdapter(ctx, req)
	})
}

func (p *process) LoadAdapter(ctx context.Context, req plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	return through(p, fmt.Sprint("load ", named(req.Adapter), " @", req.Position), func() (plugins.AdapterInfo, error) {
		req := req
		p.misplace(ctx, req.Adapter, &req.Position, nil)
		return p.backend.LoadAdapter(ctx, req)
	})
}

func (p *process) Configure(ctx context.Context, req plugins.ConfigureRequest) (plugins.ConfigureResult, error) {
	return p.backend.Configure(ctx, req)
}

func (p *process) SetVocabulary(ctx context.Context, v plugins.Vocabulary) error {
	return p.backend.SetVocabulary(ctx, v)
}
