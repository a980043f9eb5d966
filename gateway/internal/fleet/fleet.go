// Package fleet has the backends of all served models, one or several supervised processes each, started here or attached to elsewhere, in the form that package runs asks for. It knows processes and no requests.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/attach"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
)

// Fleet runs the backends. It satisfies runs.Backends; its methods may be called concurrently.
type Fleet struct {
	members []*member // in the order of the configuration
	byName  map[string]*member
	models  map[string][]*member
}

// member is one backend of a model.
type member struct {
	model      string
	name       string                 // that of the model, if it has no other
	supervisor *supervisor.Supervisor // nil for a model that is without a backend
	without    supervisor.State       // why, then

	mu      sync.Mutex
	current *runs.Backend
	lost    chan struct{} // closed when current's process is gone
	reason  string        // why the last process was lost
	outside bool          // somebody else ended it
	changed chan struct{} // closed and replaced at every change
}

// State is one backend for health checks and metrics.
type State struct {
	Serves string // the model's name
	Name   string // of the backend; the model's, if it has no other
	supervisor.State
}

// Config says what to run and how to watch it.
type Config struct {
	Models          []*catalog.Model
	PluginDir       string         // has the programs
	DataDir         string         // scratch space and lock files lie in it
	Reserve         int64          // bytes of its disk that scratch space leaves free
	ProgressTimeout time.Duration  // see supervisor.Config; 0 = its default
	Leases          *attach.Leases // for backends on other machines; nil where no model has one
}

// longestPause is that between two tries to attach to a backend: it is there again without this gateway being told.
const longestPause = 15 * time.Second

// New prepares the backends. A model whose directory cannot be used (catalog.Model.Err) has none, and counts as failed. The caller holds the data directory: what processes of a killed gateway have left of their sockets is removed.
func New(c Config) (*Fleet, error) {
	f := &Fleet{byName: map[string]*member{}, models: map[string][]*member{}}
	sockets := socketFolder(c.DataDir)
	for i, m := range c.Models {
		if m.Err != nil {
			for _, b := range m.Members() {
				f.add(&member{model: m.Name, name: b.Name, without: supervisor.State{Phase: supervisor.Failed, Since: time.Now(), Reason: m.Err.Error()}})
			}
			continue
		}
		for j, b := range m.Members() {
			place := fmt.Sprint(i) // of its own under the data directory
			if j > 0 {
				place += fmt.Sprintf("-%d", j)
			}
			s, err := c.supervise(m, b, place, sockets)
			if err != nil {
				return nil, fmt.Errorf("model %s: %w", b.Name, err)
			}
			one := &member{model: m.Name, name: b.Name, supervisor: s, changed: make(chan struct{})}
			s.Subscribe(one.observe)
			f.add(one)
		}
	}
	return f, nil
}

func (f *Fleet) add(m *member) {
	f.members = append(f.members, m)
	f.byName[m.name] = m
	f.models[m.model] = append(f.models[m.model], m)
}

// supervise prepares one backend of a model.
func (c *Config) supervise(m *catalog.Model, b config.Backend, place, sockets string) (*supervisor.Supervisor, error) {
	sc := supervisor.Config{
		Name: b.Name, Load: plugins.LoadRequest{Name: m.Name, Config: b.Section, Reserve: c.Reserve}, ProgressTimeout: c.ProgressTimeout, Loaded: vocabularyOf(m),
	}
	if b.Remote != nil { // directories are those of its machine
		sc.Attach, sc.LongestPause = attach.To(attach.Config{
			Address: b.Remote.Address, TLS: b.Remote.TLS.Files(), Plugin: b.Plugin, Model: b.Remote.Model, ModelDir: m.Dir, Leases: c.Leases,
		}), longestPause
		return supervisor.New(sc)
	}
	program, err := Program(c.PluginDir, b.Plugin)
	if err != nil {
		return nil, err
	}
	sc.Program, sc.LockFile, sc.Sockets = program, filepath.Join(c.DataDir, "backend-"+place+".lock"), sockets
	sc.Load.ModelDir, sc.Load.Scratch = m.Dir, filepath.Join(c.DataDir, "scratch", place)
	return supervisor.New(sc)
}

// Program is the path of a plugin. The error says which there are.
func Program(dir, plugin string) (string, error) {
	path := filepath.Join(dir, plugin)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("backend.plugin: there is no %q in %s, which has %v", plugin, dir, programs(dir))
	} else if err != nil {
		return "", fmt.Errorf("backend.plugin: %w", err)
	}
	return path, nil
}

// programs lists the plugins in a folder, none if it cannot be read.
func programs(dir string) []string {
	entries, _ := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Start starts all processes and returns at once; the end of ctx ends them as Close does.
func (f *Fleet) Start(ctx context.Context) {
	for _, m := range f.members {
		if m.supervisor != nil {
			m.supervisor.Start(ctx)
		}
	}
}

// Close ends all processes, with whatever they are doing, and returns when they are gone.
func (f *Fleet) Close() {
	var all sync.WaitGroup
	for _, m := range f.members {
		if m.supervisor != nil {
			all.Go(m.supervisor.Close)
		}
	}
	all.Wait()
}

// Configure changes the configuration of a running backend to another `backend:` section, and gives the keys that have changed. See supervisor.Supervisor.Configure.
func (f *Fleet) Configure(ctx context.Context, backend string, section json.RawMessage) ([]string, error) {
	m, ok := f.byName[backend]
	if !ok {
		return nil, fmt.Errorf("there is no backend %q", backend)
	}
	if m.supervisor == nil {
		return nil, errors.New(m.without.Reason)
	}
	return m.supervisor.Configure(ctx, section)
}

// States gives a snapshot of every backend, in the order of the configuration.
func (f *Fleet) States() []State {
	out := make([]State, len(f.members))
	for i, m := range f.members {
		out[i] = State{m.model, m.name, m.state()}
	}
	return out
}

// Observe calls f whenever States says something else than before, but for how long ago something was. f must return at once. It cannot be taken back.
func (f *Fleet) Observe(changed func()) {
	for _, m := range f.members {
		if m.supervisor != nil {
			m.supervisor.Observe(changed)
		}
	}
}

func (m *member) state() supervisor.State {
	if m.supervisor == nil {
		return m.without
	}
	return m.supervisor.State()
}

// Failed says why all of a model's backends are given up: nothing of it works before the server is started again. The text has the end of the first process's stderr. nil for one that works, or may yet.
func (f *Fleet) Failed(model string) error {
	return f.all(model, func(m *member) error { return failure(m.state()) })
}

// all gives what is wrong with the first backend of a model, if something is with each.
func (f *Fleet) all(model string, wrong func(*member) error) error {
	var first error
	for _, m := range f.models[model] {
		err := wrong(m)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// Status is what a backend has reported last, the zero Status if it has no process that is ready.
func (f *Fleet) Status(backend string) plugins.Status {
	m, ok := f.byName[backend]
	if !ok {
		return plugins.Status{}
	}
	s := m.state()
	if s.Phase != supervisor.Ready {
		return plugins.Status{}
	}
	return s.Status
}

// failure is why a backend is in the phase Failed, nil in others.
func failure(s supervisor.State) error {
	switch {
	case s.Phase != supervisor.Failed:
		return nil
	case s.StderrTail == "":
		return errors.New(s.Reason)
	}
	return fmt.Errorf("%s; its last output: %s", s.Reason, s.StderrTail)
}

// Refuse says why a model takes no new work for now: each of its backends seems to hang, or has accepted work that waits for room on the disk. What was accepted is done by the next process, so a backend that is being replaced or
// loaded takes work; and one that has failed for good fails it with its reason.
func (f *Fleet) Refuse(model string) error { return f.all(model, (*member).refuse) }

func (m *member) refuse() error {
	state := m.state()
	if state.Stalled != "" {
		return fmt.Errorf("the backend of %s hangs: %s", m.name, state.Stalled)
	}
	if state.Status.NoRoom != "" {
		return fmt.Errorf("the backend of %s has work that waits for the disk: %s", m.name, state.Status.NoRoom)
	}
	return nil
}

// Idle says why a model's backends do nothing for now: each is being started or replaced, or seems to hang. "" = one works.
func (f *Fleet) Idle(model string) string {
	if err := f.all(model, (*member).idle); err != nil {
		return err.Error()
	}
	return ""
}

func (m *member) idle() error {
	if err := m.refuse(); err != nil {
		return err
	}
	if m.supervisor == nil {
		return errors.New(m.without.Reason)
	}
	_, _, err := m.supervisor.Backend()
	return err
}

// observe follows the process: ready, or lost.
func (m *member) observe(e supervisor.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Err == nil {
		lost := make(chan struct{})
		m.lost = lost
		m.current = &runs.Backend{Backend: e.Backend, BootID: e.BootID, Model: e.Model, Lost: lost, Reason: m.lossReason, Outside: m.lossOutside, Leaving: e.Leaving, Release: e.Release}
	} else if m.current != nil {
		m.reason, m.outside, m.current = e.Err.Error(), e.Outside, nil
		close(m.lost)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *member) lossReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reason
}

func (m *member) lossOutside() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outside
}

// Forgive tells that the crashes of a backend so far had a cause that does not come again. See supervisor.Supervisor.Forgive.
func (f *Fleet) Forgive(backend string) {
	if m, ok := f.byName[backend]; ok && m.supervisor != nil {
		m.supervisor.Forgive()
	}
}

// Backend waits until a backend is ready, or has failed for good, or ctx ends.
func (f *Fleet) Backend(ctx context.Context, name string) (runs.Backend, error) {
	m, ok := f.byName[name]
	if !ok {
		return runs.Backend{}, fmt.Errorf("there is no backend %q", name)
	}
	if m.supervisor == nil {
		return runs.Backend{}, failure(m.without)
	}
	for {
		m.mu.Lock()
		current, changed := m.current, m.changed
		m.mu.Unlock()
		if current != nil {
			return *current, nil
		}
		if err := m.supervisor.Wait(ctx); err != nil {
			if failed := failure(m.supervisor.State()); failed != nil && ctx.Err() == nil {
				err = failed
			}
			return runs.Backend{}, err
		}
		// Ready, but the event is not here yet; or lost again in between.
		select {
		case <-changed:
		case <-ctx.Done():
			return runs.Backend{}, ctx.Err()
		}
	}
}
