package runs

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// source is where the weights of a sample come from. The zero source is the base model; else one field is set.
type source struct {
	run   *run        // its newest version
	saved *checkpoint // a checkpoint
	snap  *snapshot   // a version that an unnamed save keeps
}

// frozen is a saved adapter in a backend, loaded only to be sampled. It stays for the next sample until room is needed.
type frozen struct {
	adapter string
	users   int
	used    time.Time
	ready   chan struct{} // closed when loaded, or not
	err     error
}

// snapshot is a version of a run that unnamed samplers use; those of one version share it. It is hot while it is pinned in the backend, and goes to disk when newer ones
// need its place.
type snapshot struct {
	run      *run
	version  int64
	seq      int64  // of the first operation that pinned it
	pin      string // name of the pin
	hot      bool
	dir      string // under the data directory; "" = not on disk
	folder   string // the same, from when the files are written on: it counts as dir when its samplers' records are durable
	bytes    int64  // of its files, as they are counted for its owner
	lost     string // why it is neither
	removed  bool   // to make room
	users    int    // samples that run on it
	used     time.Time
	spilling bool

	published error // why it could not be written for another backend, when that was tried last
}

// errReplaced says that the process that was asked for is not the one that has the adapter now.
var errReplaced = &plugins.Error{Kind: plugins.KindUnavailable, Message: "the backend process was replaced meanwhile"}

// acquire makes a source usable in the model's backend: the adapter's id and version for a sample, and what gives it free again.
func (c *Core) acquire(ctx context.Context, b Backend, src source) (adapter string, version int64, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case src.run != nil:
		if err := c.awaitRebuilt(ctx, src.run); err != nil {
			return "", 0, nil, err
		}
		if src.run.State != stateLive {
			return "", 0, nil, notFoundf("model %s is gone (%s: %s); %s", src.run.ID, src.run.State, src.run.Reason, c.newestOf(src.run))
		}
		if src.run.boot != b.BootID {
			return "", 0, nil, errReplaced
		}
		return src.run.adapter, plugins.LatestVersion, c.use(src.run), nil
	case src.saved != nil:
		if c.checkpoints[src.saved.Path] != src.saved || expired(src.saved.ExpiresAt, c.cfg.now()) {
			return "", 0, nil, notFoundf("checkpoint %s is deleted", src.saved.Path)
		}
		path, dir := src.saved.Path, src.saved.Dir // it may be changed while mu is given up
		adapter, version, release, err = c.acquireSaved(ctx, b, dir)
		return adapter, version, release, c.ofCheckpoint(err, path, dir)
	case src.snap != nil:
		s := src.snap
		if !s.hot && s.dir == "" && s.lost == "" {
			if err := c.awaitRebuilt(ctx, s.run); err != nil {
				return "", 0, nil, err
			}
			if !s.hot && s.dir == "" && s.lost == "" {
				return "", 0, nil, errReplaced
			}
		}
		if s.hot && s.run.boot == b.BootID {
			s.users++
			s.used = c.cfg.now()
			done := c.use(s.run)
			return s.run.adapter, s.version, func() {
				done()
				c.mu.Lock()
				defer c.mu.Unlock()
				s.users--
				c.cool(s.run)
			}, nil
		}
		if s.hot && s.dir == "" { // in another backend, or in the process that has replaced b
			if now, ok := b.slot.current(); !ok || now.BootID != b.BootID {
				return "", 0, nil, errReplaced
			}
			if err := c.publish(ctx, s); err != nil {
				return "", 0, nil, err
			}
		}
		switch {
		case s.dir == "" && s.lost == "":
			return "", 0, nil, errReplaced
		case s.dir == "" && s.removed:
			return "", 0, nil, notFoundf("%s", s.lost)
		case s.dir == "":
			return "", 0, nil, refusef(KindBackend, "the weights of this sampler were lost: %s", s.lost)
		}
		s.used = c.cfg.now()
		return c.acquireSaved(ctx, b, s.dir)
	}
	return "", plugins.LatestVersion, func() {}, nil
}

// acquireSaved loads a saved adapter unless it is there. mu is held, and given up while loading.
func (c *Core) acquireSaved(ctx context.Context, b Backend, dir string) (adapter string, version int64, release func(), err error) {
	on := b.slot
	f := on.frozen[dir]
	if f == nil {
		on.loads++
		f = &frozen{adapter: "saved-" + itoa(on.loads) + "-" + b.BootID, ready: make(chan struct{})}
		on.frozen[dir] = f
		f.users++ // of the loader
		c.start(func(ctx context.Context) {
			release, err := c.here(ctx, dir)
			if f.err = err; err == nil {
				_, f.err = b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: f.adapter, Path: c.file(dir), Scope: plugins.ScopeWeights, Frozen: true})
				release()
			}
			close(f.ready)
			c.mu.Lock()
			defer c.mu.Unlock()
			f.users--
			if f.err != nil && on.frozen[dir] == f {
				delete(on.frozen, dir)
			}
			c.evict(b)
		})
		if c.closing {
			return "", 0, nil, errClosing
		}
	}
	f.users++
	f.used = c.cfg.now()
	release = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		f.users--
		c.evict(b)
	}
	c.mu.Unlock()
	select {
	case <-f.ready:
		err = f.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	if err != nil {
		f.users--
		return "", 0, nil, err
	}
	return f.adapter, plugins.LatestVersion, release, nil
}

// evict deletes the frozen adapters that were used longest ago while there are too many. mu is held.
func (c *Core) evict(b Backend) {
	m := b.slot
	if m.known.BootID != b.BootID || !m.running {
		return
	}
	for len(m.frozen) > c.cfg.MaxFrozen {
		oldest := ""
		for dir, f := range m.frozen {
			if f.users == 0 && (oldest == "" || cmp.Or(f.used.Compare(m.frozen[oldest].used), cmp.Compare(dir, oldest)) < 0) {
				oldest = dir
			}
		}
		if oldest == "" {
			return
		}
		adapter := m.frozen[oldest].adapter
		delete(m.frozen, oldest)
		c.start(func(ctx context.Context) {
			if err := b.DeleteAdapter(ctx, adapter); err != nil && !lost(err) {
				c.logged("a saved adapter could not be freed", err, "adapter", adapter)
			}
		})
	}
}

// callPin runs an unnamed save: the version is pinned and a sampling session made over it.
func (c *Core) callPin(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	got, err := b.Pin(ctx, plugins.PinRequest{Adapter: r.adapter, Position: op.position, Name: op.save.SamplerID, WeightsOnly: true})
	if err != nil {
		return done{}, err
	}
	now := c.cfg.now().UTC()
	smp := &sampler{model: r.model, session: r.session, samplerRecord: samplerRecord{
		ID: op.save.SamplerID, SessionID: r.SessionID, Owner: r.Owner, BaseModel: r.BaseModel, ServedModel: r.ServedModel, RunID: r.ID, CreatedAt: now, Unnamed: true, Version: got.Version, Seq: op.seq,
	}}
	if op.save.TTLSeconds != nil {
		at := now.Add(time.Duration(*op.save.TTLSeconds) * time.Second)
		smp.ExpiresAt = &at
	}
	return done{
		outcome: Outcome{SavedSampler: &SavedSampler{SamplerID: smp.ID}},
		batch:   store.Batch{Put: []store.Record{smp.record()}},
		then: func() {
			s := r.pins[got.Version]
			if s == nil {
				s = &snapshot{run: r, version: got.Version, seq: op.seq}
				r.pins[got.Version] = s
			}
			extra := smp.ID // a pin that is not needed, because its version is pinned already
			if !s.hot {
				s.pin, s.hot, extra = smp.ID, true, ""
			}
			if s.removed { // it is the run's newest version still, or again
				s.removed, s.lost = false, ""
			}
			s.used = c.cfg.now()
			smp.snap = s
			if smp.Dir = s.dir; smp.Dir != "" {
				c.start(func(ctx context.Context) {
					err := c.writeRecords(context.WithoutCancel(ctx), func() []store.Record { return []store.Record{smp.record()} })
					c.logged("sampler could not be stored", err, "sampler", smp.ID)
				})
			}
			c.samplers[smp.ID] = smp
			r.session.samplers = append(r.session.samplers, smp)
			if r.session.active() {
				c.hold(r.session, 0, smp.size())
			}
			if r.usable() && r.boot != b.BootID { // the process has gone meanwhile; the rebuild pins it again
				s.hot = false
				return
			}
			if !r.usable() {
				s.hot = false
				if s.dir == "" {
					s.lost = r.Reason
				}
				return
			}
			if extra != "" {
				c.unpin(b, r.adapter, extra)
			}
			c.writeSoon(s)
			c.cool(r)
		},
	}, nil
}

// unpin gives a pin back in the background. mu is held.
func (c *Core) unpin(b Backend, adapter, name string) {
	c.start(func(ctx context.Context) {
		if err := b.Unpin(ctx, plugins.UnpinRequest{Adapter: adapter, Name: name}); err != nil && !lost(err) {
			c.logged("a version could not be unpinned", err, "run", adapter)
		}
	})
}

// hotSnapshots lists the pinned ones, longest unused first. mu is held.
func (r *run) hotSnapshots() []*snapshot {
	var hot []*snapshot
	for _, s := range r.pins {
		if s.hot {
			hot = append(hot, s)
		}
	}
	sort.Slice(hot, func(i, j int) bool {
		if !hot[i].used.Equal(hot[j].used) {
			return hot[i].used.Before(hot[j].used)
		}
		return hot[i].version < hot[j].version
	})
	return hot
}

// cool writes the snapshots that were used longest ago to disk while too many are pinned. mu is held.
func (c *Core) cool(r *run) {
	b, ok := r.home.current()
	if !ok || b.BootID != r.boot || r.State != stateLive {
		return
	}
	hot := r.hotSnapshots()
	surplus := len(hot) - c.cfg.MaxHotSnapshots
	for _, s := range hot {
		if surplus <= 0 {
			return
		}
		if s.spilling {
			surplus--
			continue
		}
		if s.users > 0 {
			continue
		}
		surplus--
		s.spilling = true
		c.start(func(ctx context.Context) {
			err := c.spill(ctx, b, s)
			if err != nil && !lost(err) {
				c.logged("a snapshot could not be written", err, "run", r.ID, "version", s.version)
			}
			c.mu.Lock()
			c.spilt(s, err)
			c.mu.Unlock()
			c.prune(ctx, r)
		})
	}
}

// spill writes a pinned version to disk, where its samplers find it from then on, and unpins it.
func (c *Core) spill(ctx context.Context, b Backend, s *snapshot) error {
	if err := c.writeSnapshot(ctx, b, s); err != nil {
		return err
	}
	c.mu.Lock()
	hot, pin, adapter := s.hot, s.pin, s.run.adapter
	s.hot = false
	c.mu.Unlock()
	if !hot {
		return nil
	}
	if err := b.Unpin(ctx, plugins.UnpinRequest{Adapter: adapter, Name: pin}); err != nil && !lost(err) {
		return fmt.Errorf("unpin: %w", err)
	}
	return nil
}

// writeSnapshot writes a pinned version to disk, unless it is there. It stays pinned.
func (c *Core) writeSnapshot(ctx context.Context, b Backend, s *snapshot) error {
	c.mu.Lock()
	needed, dir, bytes, adapter := s.hot && s.dir == "", s.folder, int64(0), s.run.adapter
	c.mu.Unlock()
	if !needed {
		return nil
	}
	if dir == "" {
		dir = filepath.Join("snapshots", s.run.ID, itoa(s.version)+"~"+c.newID("", "", "")[:8])
		if err := makeDirs(filepath.Dir(c.file(dir))); err != nil {
			return fmt.Errorf("write snapshot: %w", err)
		}
		saved, err := b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: adapter, Version: s.version, Scope: plugins.ScopeWeights, Path: c.file(dir), Metadata: c.ofSnapshot(s)})
		if err != nil {
			c.discard(dir)
			return err
		}
		bytes = saved.Bytes
		c.mu.Lock()
		s.folder = dir
		c.mu.Unlock()
	}
	if bytes == 0 { // an attempt before has written the files
		bytes = sizeOf(c.file(dir))
	}
	// The folder counts once its samplers' records are durable: from then on the journal that the version could be computed from may go. A sampler that came while they were written has a record of its own.
	written, wanted := false, false
	for first := true; !written; first = false {
		err := c.writeRecords(context.WithoutCancel(ctx), func() []store.Record {
			var records []store.Record
			for _, smp := range s.run.session.samplers {
				if smp.snap == s && (first || smp.Dir != dir) { // an attempt before may have failed to store what it says
					smp.Dir, smp.Removed = dir, false
					records = append(records, smp.record())
				}
			}
			return records
		})
		if err != nil {
			return fmt.Errorf("write snapshot: %w", err)
		}
		c.mu.Lock()
		written, wanted = true, false
		for _, smp := range s.run.session.samplers {
			written = written && (smp.snap != s || smp.Dir == dir)
			wanted = wanted || smp.snap == s && !smp.ended
		}
		if written {
			s.dir = dir
		}
		if written && wanted {
			c.counted(s.run.Owner, s, bytes)
			c.boundUnnamed(s.run.Owner)
		}
		c.mu.Unlock()
	}
	if !wanted { // its samplers ended meanwhile, and did not know of the folder
		c.mu.Lock()
		c.deleteBehind("its sampling sessions have ended", dir)
		c.mu.Unlock()
	}
	return nil
}

// writeSoon has a pinned version written in the background, so that nothing but the file is needed to keep it. mu is held.
func (c *Core) writeSoon(s *snapshot) {
	if s.dir != "" || s.spilling {
		return
	}
	c.disk.versions = append(c.disk.versions, func(ctx context.Context) {
		c.mu.Lock()
		b, ok := s.run.home.current()
		ok = ok && s.hot && s.dir == "" && !s.spilling && b.BootID == s.run.boot
		s.spilling = s.spilling || ok
		c.mu.Unlock()
		if !ok {
			return
		}
		err := c.writeSnapshot(ctx, b, s)
		c.mu.Lock()
		if err != nil && !lost(err) && s.hot { // else its run or its samplers ended meanwhile
			c.logged("a snapshot could not be written", err, "run", s.run.ID, "version", s.version)
		}
		c.spilt(s, err)
		c.cool(s.run) // which took it for one that would not stay pinned
		c.mu.Unlock()
		c.prune(ctx, s.run)
	})
	c.writeBehind()
}

// writeAgain has the pinned versions written that could not be: until one is on disk, its run needs the journal back to it. mu is held.
func (c *Core) writeAgain() {
	var list []*snapshot
	for s := range c.unwritten {
		if r := s.run; r.pins[s.version] != s || c.runs[r.ID] != r { // nobody wants it any more
			delete(c.unwritten, s)
		} else if !s.spilling {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *snapshot) int {
		return cmp.Or(cmp.Compare(a.run.ID, b.run.ID), cmp.Compare(a.version, b.version))
	})
	for _, s := range list {
		delete(c.unwritten, s)
		c.writeSoon(s)
	}
}

// callSave runs a save that makes a checkpoint. Its folder has a name of its own, so that an older checkpoint of the same path stays whole until the new one is.
func (c *Core) callSave(ctx context.Context, b Backend, op *operation) (done, error) {
	r := op.run
	path, err := ParsePath(op.save.Path)
	if err != nil {
		return done{}, err
	}
	if op.dir != "" {
		c.discard(op.dir)
	}
	dir := c.newDir(path)
	op.dir = dir
	if err := makeDirs(filepath.Dir(c.file(dir))); err != nil {
		c.log.Error("the folder of a checkpoint could not be made", "path", path.String(), "error", err)
	}
	scope := scopeOf(path.Kind == KindWeights)
	got, err := b.SaveAdapter(ctx, plugins.SaveAdapterRequest{
		Adapter: r.adapter, Position: op.position, Scope: scope, Path: c.file(dir), ExportNames: c.exportNames(r.model, path.Kind), StackedExperts: stackedExperts(path.Kind),
		Metadata: op.save.UserMetadata,
	})
	if err != nil {
		return done{}, err
	}
	cp := &checkpoint{checkpointRecord{Dir: dir, CheckpointInfo: CheckpointInfo{
		Path: path.String(), RunID: r.ID, Kind: path.Kind, Name: path.Name, Owner: r.Owner, BaseModel: r.BaseModel, ServedModel: r.ServedModel, LoRA: r.LoRA,
		CreatedAt: c.cfg.now().UTC(), Size: got.Bytes, Step: got.Step, WithOptimizer: scope == plugins.ScopeOptimizer, UserMetadata: op.save.UserMetadata,
	}}}
	cp.expireIn(op.save.TTLSeconds)
	if path.Kind == KindExternal && r.LoRA.TrainUnembed && b.Model.TiedHead {
		c.log.Warn("an adapter on the output head of a tied model leaves: tools that merge it into the one matrix refuse it or change the embedding too; use tinsmith export --merge, or train with train_unembed=False", "path", cp.Path)
	}
	c.describe(ctx, cp, r)
	batch := c.checkpointMade(cp, r.SessionID, r.project(), AuditEntry{Event: "checkpoint_created"})
	c.displace(cp.Path, &batch)
	return done{outcome: Outcome{Saved: &SavedWeights{Path: cp.Path, Size: cp.Size}}, batch: batch, then: func() { c.install(cp) }}, nil
}

// exportNames says whose modules and names a checkpoint has: those of other programs, unless it is to be trained on here.
func (c *Core) exportNames(m *model, kind CheckpointKind) string {
	if kind == KindWeights {
		return ""
	}
	return cmp.Or(m.ExportNames, plugins.ExportPEFT)
}

// stackedExperts tells whether a checkpoint has layers of experts as they are kept. With PEFT's names each expert has tensors of its own, several times as many as are trained, and of some models there is no such form: only what is made to
// leave is written so.
func stackedExperts(kind CheckpointKind) bool { return kind != KindExternal }

// file is the absolute path of something in the data directory.
func (c *Core) file(dir string) string { return filepath.Join(c.cfg.DataDir, dir) }
