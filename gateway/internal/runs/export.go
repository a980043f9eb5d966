package runs

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Export is an adapter that leaves the server.
type Export struct {
	Path        string // the checkpoint, tinker://RUN/KIND/NAME, or tinker://RUN for the newest weights of a live run
	ServedModel string
	ModelHash   string // of the base model that the adapter was trained on, as the backend states it
	Step        int64
	LoRA        LoRAConfig
	CreatedAt   time.Time // of the checkpoint, or of the run
	Trained     int64     // tokens, of a live run
	Origin      *Origin   // of an import
	Began       *Origin   // of the import that it was trained on from; nil of an import itself
	write       func(io.Writer) error
	close       func()
}

// Write writes the adapter's files as a plain tar without folders. An error means that what was written is not whole.
func (e *Export) Write(w io.Writer) error { return e.write(w) }

// Close frees what the export holds. It must be called once.
func (e *Export) Close() { e.close() }

// Export opens the adapter that a name means: a checkpoint of any kind that the caller may read, or an own run (RUN or tinker://RUN). Of a run that is live these are the newest weights, written
// for this call; of one that has ended it is the newest checkpoint. Files are compared with their checksums first. The backend writes the adapter with modules and names for who reads these (plugins.ExportPEFT, which "" is, or
// plugins.ExportTinker); external weights leave for PEFT as they were written.
func (c *Core) Export(ctx context.Context, owner, name, names string) (*Export, error) {
	if names = cmp.Or(names, plugins.ExportPEFT); names != plugins.ExportPEFT && names != plugins.ExportTinker {
		return nil, invalidf("names %s is not allowed: %s or %s", quote(names), plugins.ExportPEFT, plugins.ExportTinker)
	}
	if _, err := ParsePath(name); err == nil {
		return c.exportCheckpoint(ctx, owner, name, names)
	}
	id := strings.TrimPrefix(name, "tinker://")
	if !validRunID(id) {
		return nil, invalidf("path %s: expected tinker://RUN/KIND/NAME, tinker://RUN or RUN", quote(name))
	}
	if err := c.recall(ctx, id); err != nil {
		return nil, err
	}
	c.mu.Lock()
	r := c.runs[id]
	if r == nil || r.Owner != owner {
		c.mu.Unlock()
		return nil, notFoundf("no training run %s", quote(id))
	}
	live, path := r.usable(), ""
	if cp := c.newestOfAny(r.ID); !live && cp != nil {
		path = cp.Path
	}
	c.mu.Unlock()
	switch {
	case live:
		return c.exportLive(ctx, r, names)
	case path == "":
		return nil, notFoundf("training run %s has ended and has no checkpoint that could be exported", quote(id))
	}
	return c.exportCheckpoint(ctx, owner, path, names)
}

// newestOfAny finds the newest checkpoint of a run, whatever its kind. mu is held.
func (c *Core) newestOfAny(runID string) *checkpoint {
	var newest *checkpoint
	for _, kind := range []CheckpointKind{KindSampler, KindWeights, KindExternal} {
		if cp := c.newestCheckpoint(runID, kind); cp != nil && (newest == nil || cp.CreatedAt.After(newest.CreatedAt)) {
			newest = cp
		}
	}
	return newest
}

func (c *Core) exportCheckpoint(ctx context.Context, owner, path, names string) (*Export, error) {
	c.mu.Lock()
	found, err := c.readable(owner, "", path)
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	cp := found.checkpointRecord
	entry := c.auditOften(owner, AuditEntry{Event: "checkpoint_downloaded", RunID: cp.RunID, Path: cp.Path})
	c.mu.Unlock()
	if cp.Kind != KindExternal || names == plugins.ExportTinker { // others' files are to be trained on or sampled here, with modules, names and forms of experts that other programs may not have
		files := exported
		if cp.Kind == KindWeights {
			files = adapterFiles
		}
		release, err := c.here(ctx, cp.Dir)
		if err != nil {
			return nil, fmt.Errorf("export: %w", err)
		}
		defer release()
		if err := c.intact(ctx, &cp, files...); err != nil {
			return nil, err
		}
		return c.exportWritten(ctx, c.byName[cp.ServedModel], source{saved: found}, c.exportOf(&cp, owner), files, names, entry)
	}
	release, err := c.here(ctx, cp.Dir)
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	if err := c.intact(ctx, &cp, exported...); err != nil {
		release()
		return nil, err
	}
	if err := c.commit(ctx, store.Batch{Add: []store.Record{entry}}); err != nil {
		release()
		return nil, fmt.Errorf("export: %w", err)
	}
	e := c.exportOf(&cp, owner)
	e.close = release
	e.fill(c.file(cp.Dir), exported)
	return e, nil
}

// exportOf describes a checkpoint that is exported for owner, whose it need not be.
func (c *Core) exportOf(cp *checkpointRecord, owner string) *Export {
	e := &Export{Path: cp.Path, ServedModel: cp.ServedModel, Step: cp.Step, LoRA: cp.LoRA, CreatedAt: cp.CreatedAt, Origin: cp.Origin.shown(cp.Owner == owner)}
	if e.Origin == nil {
		e.Began = c.began(&cp.CheckpointInfo, owner)
	}
	return e
}

// adapterFiles are what leaves of a training checkpoint.
var adapterFiles = []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile}

// exportLive exports the newest weights of a run. The run's order is not touched, and no checkpoint is made.
func (c *Core) exportLive(ctx context.Context, r *run, names string) (*Export, error) {
	c.mu.Lock()
	e := &Export{Path: "tinker://" + r.ID, ServedModel: r.ServedModel, LoRA: r.LoRA, CreatedAt: r.CreatedAt, Trained: r.live.tokens, Began: r.Began}
	entry := c.auditOften(r.Owner, AuditEntry{Event: "checkpoint_downloaded", RunID: r.ID, Path: e.Path})
	c.mu.Unlock()
	return c.exportWritten(ctx, r.model, source{run: r}, e, exported, names, entry)
}

// exportWritten has the model's backend write weights for other programs, into a folder that goes with the export, and completes e.
func (c *Core) exportWritten(ctx context.Context, m *model, src source, e *Export, files []string, names string, entry store.Record) (*Export, error) {
	if m == nil {
		return nil, notFoundf("%s: its model %s is not served here, which is needed to write it for other programs", e.Path, quote(e.ServedModel))
	}
	if err := c.refuses(m); err != nil {
		return nil, err
	}
	if err := makeDirs(c.file("incoming")); err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	dir := filepath.Join("incoming", ".export-"+c.newID("", "", ""))
	e.close = func() { c.logged("an export could not be removed", os.RemoveAll(c.file(dir))) }
	saved, err := c.saveFor(ctx, m, src, c.file(dir), names)
	if err != nil {
		e.close()
		if plugins.KindOf(err) == plugins.KindInvalid { // of some adapters there is no form with these names
			return nil, invalidf("%v", err)
		}
		return nil, err
	}
	if src.run != nil {
		e.Step = saved.Step
	}
	e.fill(c.file(dir), files)
	// Without its marker the folder is removed at the next start if this process is killed, and not set aside as something of worth.
	if err := os.Remove(filepath.Join(c.file(dir), plugins.CompleteFile)); err != nil {
		e.close()
		return nil, fmt.Errorf("export: %w", err)
	}
	if err := c.commit(ctx, store.Batch{Add: []store.Record{entry}}); err != nil {
		e.close()
		return nil, fmt.Errorf("export: %w", err)
	}
	return e, nil
}

// saveFor writes weights for other programs; while processes are replaced it waits.
func (c *Core) saveFor(ctx context.Context, m *model, src source, path, names string) (plugins.SaveAdapterResult, error) {
	for attempt := 0; ; attempt++ {
		if err := notNow(c.cfg.Store.Room(0)); err != nil {
			return plugins.SaveAdapterResult{}, err
		}
		b, _, err := c.place(ctx, m, func() (source, error) { return src, nil }, &plugins.SampleRequest{}, &blame{})
		if err != nil {
			return plugins.SaveAdapterResult{}, err
		}
		adapter, version, release, err := c.acquire(ctx, b, src)
		if err == nil {
			var saved plugins.SaveAdapterResult
			saved, err = b.SaveAdapter(ctx, plugins.SaveAdapterRequest{
				Adapter: adapter, Version: version, Scope: plugins.ScopeWeights, Path: path, ExportNames: names,
			})
			release()
			if err == nil {
				return saved, nil
			}
			if plugins.KindOf(err) == plugins.KindBackendLost {
				c.awaitEnd(ctx, b)
			}
		}
		if !lost(err) {
			return plugins.SaveAdapterResult{}, err
		}
		if err := os.RemoveAll(path); err != nil { // a process that went away before it could say so may have written it
			return plugins.SaveAdapterResult{}, err
		}
		if err := pause(ctx, attempt); err != nil {
			return plugins.SaveAdapterResult{}, err
		}
	}
}

// fill has an export write some files of a folder; a file that is not there is left out.
func (e *Export) fill(dir string, files []string) {
	if m, fault := readManifest(dir); fault == "" {
		e.ModelHash = m.ModelHash
	}
	e.write = func(w io.Writer) error {
		out := tar.NewWriter(w)
		for _, file := range files {
			var err error
			if file == plugins.CompleteFile { // it is empty
				err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, ModTime: archived})
			} else {
				err = addFile(out, filepath.Join(dir, file), file)
			}
			if err != nil {
				return fmt.Errorf("export %s: %w", e.Path, err)
			}
		}
		return out.Close()
	}
}
