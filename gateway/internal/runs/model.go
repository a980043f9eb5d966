package runs

import (
	"context"
	"encoding/json"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Target is what a model name of an OpenAI client means for a caller.
type Target struct {
	Name        string // as asked
	ServedModel string // the base model's configured name
	RunID       string // "" for the base model
	Path        string // "" unless a saved checkpoint

	source source
}

// ServedModel is one entry of the list of models.
type ServedModel struct {
	ID           string // what a client asks for
	BaseModel    string // configured name; equal to ID for a base model
	Alias        bool   // another name of BaseModel
	RunID        string
	SessionID    string
	Owner        string
	DisplayName  string // of the session; "" = none
	Recipe       string // from the metadata of the run or its session; "" = none
	UserMetadata json.RawMessage
	CreatedAt    time.Time // of a live adapter: when its newest weights were made; zero for base models
	Origin       *Origin   // of an import
}

// model is a served base model in memory. mu of the core guards it.
type model struct {
	Model
	slots      []*slot       // its backends, at least one
	changed    chan struct{} // closed and replaced when one of them is there, is gone, or is drained
	samples    sampleQueue
	generating generations
	cycles     cycleCount
	residents  residents
	moves      moves
}

func newModel(m Model) *model {
	out := &model{Model: m, changed: make(chan struct{}), samples: newSampleQueue(), generating: newGenerations()}
	names := m.Backends
	if len(names) == 0 {
		names = []string{m.Name}
	}
	for i, name := range names {
		out.slots = append(out.slots, &slot{model: out, name: name, index: i, frozen: map[string]*frozen{}, inquest: newInquest()})
	}
	out.cycles, out.residents = newCycleCount(len(names)), newResidents(len(names))
	return out
}

// backend waits for the process of one of a model's backends and takes note of it.
func (c *Core) backend(ctx context.Context, s *slot) (Backend, error) {
	b, err := c.cfg.Backends.Backend(ctx, s.name)
	if err != nil {
		if ctx.Err() != nil {
			return Backend{}, ctx.Err()
		}
		if err := c.failed(s.model); err != nil {
			return Backend{}, err
		}
		return Backend{}, refusef(KindBackend, "the backend of %s has failed: %s", s.name, err)
	}
	b.slot = s
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.running && s.known.BootID == b.BootID {
		return b, nil
	}
	if s.running {
		c.backendEnded(s.known)
	}
	s.known, s.running = b, true
	if b.Lost != nil {
		c.start(func(ctx context.Context) {
			select {
			case <-b.Lost:
				c.mu.Lock()
				c.backendEnded(b)
				c.mu.Unlock()
			case <-ctx.Done():
			}
		})
	}
	if b.Leaving != nil {
		c.start(func(ctx context.Context) { c.watchLeaving(ctx, b) })
	}
	c.proceed(s)
	c.joined(s)
	return b, nil
}

// backendEnded takes note that a process is gone, and has the adapters that were in it rebuilt in another one. mu is held.
func (c *Core) backendEnded(b Backend) {
	s := b.slot
	if s.known.BootID == b.BootID {
		s.running = false
		if s.leaves {
			s.drained, s.leaves = false, false
		}
		s.frozen = map[string]*frozen{}
	}
	c.crashed(b)
	s.model.wake()
	for r := range inOrder(c.runs) {
		if r.home == s && r.boot == b.BootID {
			c.interrupt(r, b.reason(nil))
		}
	}
	c.proceed(s)
}

// unknownModel says what there is.
func (c *Core) unknownModel(name string) error {
	names := make([]string, 0, len(c.models))
	for _, m := range c.models {
		if c.failed(m) == nil {
			names = append(names, m.Name)
		}
	}
	return invalidf("base_model %s: is not served here; served are %s", quote(name), strings.Join(names, ", "))
}

// limits gives the size of the vocabulary and of the context as far as they are known, else 0.
func (c *Core) limits(m *model) (vocab, length int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	length = m.MaxContextLength
	for _, s := range m.slots {
		if s.known.Backend == nil {
			continue
		}
		vocab = s.known.Model.VocabSize
		if n := s.known.Model.MaxContextLength; length == 0 || n > 0 && n < length {
			length = n
		}
	}
	return vocab, length
}

// Models gives the configured models in their order.
func (c *Core) Models() []Model {
	list := make([]Model, len(c.models))
	for i, m := range c.models {
		list[i] = m.Model
	}
	return list
}

// ModelInfo says what the backend of a model loaded, waiting until it is ready.
func (c *Core) ModelInfo(ctx context.Context, name string) (plugins.ModelInfo, error) {
	m := c.byName[name]
	if m == nil {
		return plugins.ModelInfo{}, notFoundf("model %s is not served here", quote(name))
	}
	b, err := c.anyBackend(ctx, m)
	return b.Model, err
}

// Resolve finds what a name means: a base model or alias (with ChatLatest the caller's newest adapter on it, if there is one), "NAME:latest" the caller's newest adapter on it,
// "RUN" and "tinker://RUN" the newest version of a live run and the newest checkpoint of any other (of another owner's, the newest published one), "tinker://RUN/sampler_weights/NAME" a checkpoint, "NAME;PATH" the same. KindNotFound otherwise, KindFailed if
// the base model cannot be served.
func (c *Core) Resolve(_ context.Context, owner, name string) (Target, error) {
	t, err := c.resolve(owner, name)
	if err == nil {
		err = c.failed(c.byName[t.ServedModel])
	}
	return t, err
}

func (c *Core) resolve(owner, name string) (Target, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if base, path, ok := strings.Cut(name, ";"); ok {
		m := c.byName[base]
		if m == nil {
			return Target{}, notFoundf("model %s: %s is not served here", quote(name), quote(base))
		}
		t, err := c.resolvePath(owner, name, path)
		if err == nil && t.ServedModel != m.Name {
			return Target{}, invalidf("model %s: the weights belong to %s", quote(name), t.ServedModel)
		}
		return t, err
	}
	if m := c.byName[name]; m != nil {
		if m.ChatLatest {
			if t, ok := c.latest(owner, name, m); ok {
				return t, nil
			}
		}
		return Target{Name: name, ServedModel: m.Name}, nil
	}
	if base, ok := strings.CutSuffix(name, ":latest"); ok && c.byName[base] != nil {
		if t, ok := c.latest(owner, name, c.byName[base]); ok {
			return t, nil
		}
		return Target{}, notFoundf("model %s: you have no adapter on %s yet; one that was imported is named by its path until it has been trained", quote(name), base)
	}
	return c.resolvePath(owner, name, name)
}

// resolvePath finds a run or a checkpoint. mu is held.
func (c *Core) resolvePath(owner, name, path string) (Target, error) {
	id := strings.TrimPrefix(path, "tinker://")
	r := c.runs[id]
	if r != nil && r.Owner != owner {
		r = nil
	}
	switch {
	case r != nil && r.State == stateLive:
		return Target{Name: name, ServedModel: r.ServedModel, RunID: r.ID, source: source{run: r}}, nil
	case r != nil && (r.State == stateCreating || r.State == stateCorrupted): // its weights are not there yet, or are lost: no older ones stand in for them
		return Target{}, notFoundf("model %s: is not live (%s: %s); %s", quote(name), r.State, r.Reason, c.newestOf(r))
	}
	if cp := c.newestReadable(owner, id); cp != nil {
		if c.byName[cp.ServedModel] == nil {
			return Target{}, notFoundf("model %s: its base model %s is not served here", quote(name), cp.ServedModel)
		}
		return Target{Name: name, ServedModel: cp.ServedModel, RunID: cp.RunID, Path: cp.Path, source: source{saved: cp}}, nil
	}
	if r != nil {
		return Target{}, notFoundf("model %s: is not live (%s: %s); %s", quote(name), r.State, r.Reason, c.newestOf(r))
	}
	if !strings.HasPrefix(path, "tinker://") || !strings.Contains(id, "/") {
		return Target{}, notFoundf("no model %s", quote(name))
	}
	cp, err := c.samplable(owner, "", path)
	if err != nil {
		return Target{}, err
	}
	return Target{Name: name, ServedModel: cp.ServedModel, RunID: cp.RunID, Path: cp.Path, source: source{saved: cp}}, nil
}

// newestReadable finds the newest checkpoint of a run whose adapter a caller may sample, of either kind. mu is held.
func (c *Core) newestReadable(owner, runID string) *checkpoint {
	now := c.cfg.now()
	for _, cp := range slices.Backward(c.lists.byRun[runID]) {
		if (cp.Owner == owner || cp.Public) && !expired(cp.ExpiresAt, now) && (cp.Kind == KindSampler || cp.Kind == KindWeights) {
			return cp
		}
	}
	return nil
}

// untrained tells whether a checkpoint is an import, or a copy or a save of one, that no step has trained. mu is held.
func (c *Core) untrained(cp *checkpoint) bool {
	r := c.runs[cp.RunID]
	return cp.Step == 0 && r != nil && (r.State == stateStored || r.Import)
}

// latest finds the owner's adapter on a model whose weights are the newest; a saved one only if none is live. Imports count when they have been trained. mu is held.
func (c *Core) latest(owner, name string, m *model) (Target, bool) {
	var newest *run
	for _, r := range c.runs {
		if r.Owner == owner && r.model == m && r.State == stateLive && !r.Import && (newest == nil || r.live.weightsAt.After(newest.live.weightsAt)) {
			newest = r
		}
	}
	if newest != nil {
		return Target{Name: name, ServedModel: m.Name, RunID: newest.ID, source: source{run: newest}}, true
	}
	var saved *checkpoint
	now := c.cfg.now()
	for _, cp := range slices.Backward(c.lists.byOwner[owner]) {
		if cp.ServedModel == m.Name && cp.Kind == KindSampler && !expired(cp.ExpiresAt, now) && !c.untrained(cp) {
			saved = cp
			break
		}
	}
	if saved == nil {
		return Target{}, false
	}
	return Target{Name: name, ServedModel: m.Name, RunID: saved.RunID, Path: saved.Path, source: source{saved: saved}}, true
}

// ServedModels lists what the caller can name: base models, aliases, live runs, sampler checkpoints, each kind oldest first. Metadata of more than maxInline bytes are left out, and all of them where they come to more than
// one answer has. Of a base model that cannot be served nothing is listed.
func (c *Core) ServedModels(ctx context.Context, owner string) ([]ServedModel, error) {
	list, err := c.servedModels(owner)
	if err == nil {
		c.nameAll(ctx, list)
	}
	return list, err
}

func (c *Core) servedModels(owner string) ([]ServedModel, error) {
	served := map[string]bool{}
	for _, m := range c.models {
		served[m.Name] = c.failed(m) == nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []ServedModel
	for _, m := range c.models {
		if !served[m.Name] {
			continue
		}
		list = append(list, ServedModel{ID: m.Name, BaseModel: m.Name})
		for _, a := range m.Aliases {
			list = append(list, ServedModel{ID: a, BaseModel: m.Name, Alias: true})
		}
	}
	bases := len(list)
	for _, r := range c.runs {
		if r.Owner == owner && r.State == stateLive && served[r.ServedModel] {
			list = append(list, r.served())
		}
	}
	runs := len(list)
	now := c.cfg.now()
	bytes := int64(0)
	for _, cp := range c.lists.byOwner[owner] {
		if cp.Kind == KindSampler && !expired(cp.ExpiresAt, now) && served[cp.ServedModel] {
			entry := c.servedCheckpoint(cp)
			if bytes += int64(len(entry.UserMetadata)); bytes > maxListBytes {
				entry.UserMetadata = nil
			}
			list = append(list, entry)
		}
	}
	for _, part := range [][]ServedModel{list[bases:runs], list[runs:]} {
		sort.Slice(part, func(i, j int) bool { return part[i].CreatedAt.Before(part[j].CreatedAt) })
	}
	return list, nil
}

// ServedModel describes what a name was resolved to, as ServedModels does; false for what the caller does not find there.
func (c *Core) ServedModel(owner string, t Target) (ServedModel, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Path != "" {
		cp := c.checkpoints[t.Path]
		if cp == nil || cp.Owner != owner || expired(cp.ExpiresAt, c.cfg.now()) {
			return ServedModel{}, false
		}
		return c.servedCheckpoint(cp), true
	}
	if t.RunID != "" {
		r := c.runs[t.RunID]
		if r == nil || r.Owner != owner || r.State != stateLive {
			return ServedModel{}, false
		}
		return r.served(), true
	}
	return ServedModel{ID: t.ServedModel, BaseModel: t.ServedModel}, true
}

// served describes a live run.
func (r *run) served() ServedModel {
	m := ServedModel{ID: "tinker://" + r.ID, BaseModel: r.ServedModel, RunID: r.ID, SessionID: r.SessionID, Owner: r.Owner, CreatedAt: r.live.weightsAt}
	if !r.Apart {
		m.UserMetadata = r.UserMetadata
	}
	n := namingOf(r.session, r.UserMetadata)
	m.DisplayName, m.Recipe = n.DisplayName, n.Recipe
	return m
}

// servedCheckpoint describes a sampler checkpoint. mu is held.
func (c *Core) servedCheckpoint(cp *checkpoint) ServedModel {
	m := ServedModel{ID: cp.Path, BaseModel: cp.ServedModel, RunID: cp.RunID, Owner: cp.Owner, CreatedAt: cp.CreatedAt, Origin: cp.Origin}
	if cp.UserMetadata != nil && cp.textBytes() <= maxInline {
		m.UserMetadata = mustJSON(cp.UserMetadata)
	}
	m.SessionID, _ = c.whereabouts(cp.RunID)
	if r := c.runs[cp.RunID]; r != nil {
		n := namingOf(r.session, r.UserMetadata)
		m.DisplayName, m.Recipe = n.DisplayName, n.Recipe
	}
	return m
}
