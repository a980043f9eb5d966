package runs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// puppet is a supervisor whose events the test makes.
type puppet struct {
	mu        sync.Mutex
	ready     chan struct{}
	failed    error
	tell      func(supervisor.Event)
	unwatched bool
}

func (p *puppet) Wait(ctx context.Context) error {
	p.mu.Lock()
	ready := p.ready
	p.mu.Unlock()
	select {
	case <-ready:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *puppet) State() supervisor.State { return supervisor.State{StderrTail: "last words"} }

func (p *puppet) Subscribe(f func(supervisor.Event)) func() {
	p.tell = f
	return func() { p.unwatched = true }
}

func TestSupervised(t *testing.T) {
	p := &puppet{ready: make(chan struct{})}
	s := newSupervised(map[string]watched{base: p})
	if _, err := s.Backend(t.Context(), "nope"); err == nil {
		t.Error("a model that is not configured has a backend")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Backend(ctx, base); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while loading: %v", err)
	}
	got := make(chan Backend)
	go func() {
		b, err := s.Backend(t.Context(), base)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	close(p.ready)
	p.tell(supervisor.Event{BootID: "one", Backend: fake.New(fake.Options{})})
	first := <-got
	if first.BootID != "one" {
		t.Fatalf("got %+v", first)
	}
	p.tell(supervisor.Event{BootID: "one", Err: errors.New("killed by signal 9")})
	select {
	case <-first.Lost:
	default:
		t.Fatal("the loss was not told")
	}
	if !strings.Contains(first.Reason(), "signal 9") {
		t.Errorf("reason %q", first.Reason())
	}
	p.tell(supervisor.Event{BootID: "two", Backend: fake.New(fake.Options{})})
	if second, err := s.Backend(t.Context(), base); err != nil || second.BootID != "two" {
		t.Errorf("after the restart: %+v, %v", second, err)
	}
	p.tell(supervisor.Event{BootID: "two", Err: errors.New("killed")})
	p.mu.Lock()
	p.failed = errors.New("crashed too often")
	p.mu.Unlock()
	if _, err := s.Backend(t.Context(), base); err == nil || !strings.Contains(err.Error(), "crashed too often") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("when it has failed: %v", err)
	}
	s.Close()
	if !p.unwatched {
		t.Error("the subscription was not ended")
	}
}
