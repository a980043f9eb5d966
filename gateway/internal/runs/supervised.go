package runs

import (
	"context"
	"fmt"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// watched is what is needed of a supervisor.
type watched interface {
	Wait(ctx context.Context) error
	State() supervisor.State
	Subscribe(func(supervisor.Event)) (unsubscribe func())
}

// Supervised makes Backends of supervisors. Close ends its subscriptions; the supervisors stay the caller's.
type Supervised struct {
	models      map[string]watched
	unsubscribe []func()

	mu      sync.Mutex
	current map[string]*supervisedBackend // by model
	changed chan struct{}                 // closed and replaced at every event
}

// supervisedBackend is one process.
type supervisedBackend struct {
	Backend
	lost   chan struct{}
	reason string // set before lost is closed
}

var _ Backends = (*Supervised)(nil)

// NewSupervised watches the supervisors, which go by the configured name of their model.
func NewSupervised(models map[string]*supervisor.Supervisor) *Supervised {
	all := make(map[string]watched, len(models))
	for name, s := range models {
		all[name] = s
	}
	return newSupervised(all)
}

func newSupervised(models map[string]watched) *Supervised {
	s := &Supervised{models: models, current: map[string]*supervisedBackend{}, changed: make(chan struct{})}
	for name, m := range models {
		s.unsubscribe = append(s.unsubscribe, m.Subscribe(func(e supervisor.Event) { s.event(name, e) }))
	}
	return s
}

// event takes note of a boot or a loss.
func (s *Supervised) event(model string, e supervisor.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current[model]; old != nil && (e.Err != nil || old.BootID != e.BootID) {
		old.reason = "the backend process was replaced"
		if e.Err != nil {
			old.reason = e.Err.Error()
		}
		close(old.lost)
		delete(s.current, model)
	}
	if e.Err == nil && s.current[model] == nil {
		b := &supervisedBackend{lost: make(chan struct{})}
		b.Backend = Backend{Backend: e.Backend, BootID: e.BootID, Model: e.Model, Lost: b.lost, Reason: func() string { return b.reason }}
		s.current[model] = b
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Backend implements Backends.
func (s *Supervised) Backend(ctx context.Context, model string) (Backend, error) {
	m := s.models[model]
	if m == nil {
		return Backend{}, fmt.Errorf("no backend is configured for %s", model)
	}
	for {
		s.mu.Lock()
		b, changed := s.current[model], s.changed
		s.mu.Unlock()
		if b != nil {
			return b.Backend, nil
		}
		if err := m.Wait(ctx); err != nil {
			if ctx.Err() == nil {
				if tail := m.State().StderrTail; tail != "" {
					err = fmt.Errorf("%w; the end of what it wrote: %s", err, tail)
				}
			}
			return Backend{}, err
		}
		// It is ready: its event has come since, or is about to.
		select {
		case <-changed:
		case <-ctx.Done():
			return Backend{}, ctx.Err()
		}
	}
}

// Close ends the subscriptions.
func (s *Supervised) Close() {
	for _, f := range s.unsubscribe {
		f()
	}
}
