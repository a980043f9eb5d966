package ordeal

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	killVariable  = "TINSMITH_TEST_KILL"   // a point
	countVariable = "TINSMITH_TEST_COUNTS" // a file that takes how many events there were
	// elsewhereVariable names a file with the number of the backend's process, where that is no child of the gateway's.
	elsewhereVariable = "TINSMITH_TEST_BACKEND_PID"
)

// point is one place at which processes are killed.
type point struct {
	event  string // "write": a commit of the store; "call": a call of the contract
	when   string // "before" or "after"
	n      int    // which one, from 1
	victim string // "gateway", "backend" or "both"
}

func (p point) String() string { return fmt.Sprintf("%s:%s:%d:%s", p.event, p.when, p.n, p.victim) }

func parsePoint(text string) point {
	f := strings.Split(text, ":")
	if len(f) != 4 {
		return point{}
	}
	n, _ := strconv.Atoi(f[2])
	return point{f[0], f[1], n, f[3]}
}

// killer counts writes and calls, and kills at one of them.
type killer struct {
	point point
	file  string

	mu     sync.Mutex
	counts map[string]int
}

func newKiller() *killer {
	return &killer{point: parsePoint(os.Getenv(killVariable)), file: os.Getenv(countVariable), counts: map[string]int{}}
}

// next counts an event and gives its number.
func (k *killer) next(event string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[event]++
	return k.counts[event]
}

// at is a place that may be the point.
func (k *killer) at(event, when string, n int) {
	if k.point.event != event || k.point.when != when || k.point.n != n {
		return
	}
	if k.point.victim != "gateway" {
		for _, pid := range append(children(os.Getpid()), elsewhere()...) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if k.point.victim != "backend" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal comes
	}
}

// elsewhere is the backend's process on another machine, if there is one.
func elsewhere() []int {
	if pid := pidIn(os.Getenv(elsewhereVariable)); pid != 0 {
		return []int{pid}
	}
	return nil
}

// pidIn is the number of a process that is in a file; 0 if there is none.
func pidIn(file string) int {
	b, err := os.ReadFile(file)
	pid, wrong := strconv.Atoi(string(b))
	if err != nil || wrong != nil || pid <= 1 {
		return 0
	}
	return pid
}

// note keeps the counts for the test, so that it knows how many points there are.
func (k *killer) note() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = os.WriteFile(k.file, fmt.Appendf(nil, "%d %d", k.counts["write"], k.counts["call"]), 0o600) // without it the test fails
}

func (k *killer) store(s store.Store) store.Store        { return &killedStore{s, k} }
func (k *killer) backends(b runs.Backends) runs.Backends { return &killedBackends{b, k} }

// killedStore is a store whose writes are points.
type killedStore struct {
	store.Store
	*killer
}

func (s *killedStore) Commit(ctx context.Context, b store.Batch) error {
	n := s.next("write")
	s.at("write", "before", n)
	err := s.Store.Commit(ctx, b)
	s.at("write", "after", n)
	return err
}

func (s *killedStore) Close() error {
	s.note()
	return s.Store.Close()
}

// killedBackends are backends whose calls are points.
type killedBackends struct {
	runs.Backends
	*killer
}

func (b *killedBackends) Backend(ctx context.Context, model string) (runs.Backend, error) {
	got, err := b.Backends.Backend(ctx, model)
	if err == nil {
		got.Backend = &killedBackend{got.Backend, b.killer}
	}
	return got, err
}

// killedBackend has a point before and after every call that changes anything or answers a client.
type killedBackend struct {
	plugins.Backend
	*killer
}

// call makes one call between its two points.
func call[A, R any](b *killedBackend, ctx context.Context, a A, do func(context.Context, A) (R, error)) (R, error) {
	n := b.next("call")
	b.at("call", "before", n)
	r, err := do(ctx, a)
	b.at("call", "after", n)
	return r, err
}

// only makes a call that has nothing but an error fit call.
func only[A any](do func(context.Context, A) error) func(context.Context, A) (struct{}, error) {
	return func(ctx context.Context, a A) (struct{}, error) { return struct{}{}, do(ctx, a) }
}

func (b *killedBackend) CreateAdapter(ctx context.Context, r plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	return call(b, ctx, r, b.Backend.CreateAdapter)
}

func (b *killedBackend) DeleteAdapter(ctx context.Context, adapter string) error {
	_, err := call(b, ctx, adapter, only(b.Backend.DeleteAdapter))
	return err
}

func (b *killedBackend) ForwardBackward(ctx context.Context, r plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	return call(b, ctx, r, b.Backend.ForwardBackward)
}

func (b *killedBackend) OptimStep(ctx context.Context, r plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	return call(b, ctx, r, b.Backend.OptimStep)
}

func (b *killedBackend) Pin(ctx context.Context, r plugins.PinRequest) (plugins.PinResult, error) {
	return call(b, ctx, r, b.Backend.Pin)
}

func (b *killedBackend) Unpin(ctx context.Context, r plugins.UnpinRequest) error {
	_, err := call(b, ctx, r, only(b.Backend.Unpin))
	return err
}

func (b *killedBackend) Sample(ctx context.Context, r plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	_, err := call(b, ctx, r, only(func(ctx context.Context, r plugins.SampleRequest) error { return b.Backend.Sample(ctx, r, emit) }))
	return err
}

func (b *killedBackend) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	return call(b, ctx, r, b.Backend.SaveAdapter)
}

func (b *killedBackend) LoadAdapter(ctx context.Context, r plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	return call(b, ctx, r, b.Backend.LoadAdapter)
}
