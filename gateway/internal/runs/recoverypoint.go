package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// recoveryPoint is a state of a run on disk from which its adapter can be rebuilt: what it was loaded from at first, or what was saved on the way. It is complete up to and
// including operation Seq. It is never changed.
type recoveryPoint struct {
	RunID     string        `json:"run_id"`
	Seq       int64         `json:"seq"`
	Dir       string        `json:"dir"` // a checkpoint, under the data directory
	Version   int64         `json:"version"`
	Scope     plugins.Scope `json:"scope"`
	OnTop     bool          `json:"on_top,omitempty"` // a checkpoint that the first operation loaded into the fresh adapter; else the adapter is made from it
	CreatedAt time.Time     `json:"created_at"`
}

func (p *recoveryPoint) record() store.Record {
	return store.Record{Collection: inPoints, Key: p.Dir, Parent: p.RunID, Rank: p.Seq, Value: mustJSON(p)}
}

// loadedDir is where the checkpoint that an operation loads is kept.
func loadedDir(op *operation) string {
	return filepath.Join("recovery", op.run.ID, itoa(op.seq)+"-loaded")
}

// keepLoaded links a checkpoint that is about to be loaded, so that the run can be rebuilt from it when the checkpoint itself has been deleted.
func (c *Core) keepLoaded(op *operation, body *createBody) (dir string, err error) {
	dir = loadedDir(op)
	if err := os.RemoveAll(c.file(dir)); err != nil {
		return "", fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	if err := makeDirs(filepath.Dir(c.file(dir))); err != nil {
		return "", fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	err = copyDir(c.file(body.Dir), c.file(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", notFoundf("checkpoint %s is deleted", body.Path)
	}
	if err != nil {
		return "", fmt.Errorf("keep the loaded checkpoint: %w", err)
	}
	return dir, nil
}

// basePoint is the newest state from which everything that is still wanted of a run can be reached: the run as it is, and every version that an unnamed sampler uses and that is
// not on disk. nil = the fresh adapter. mu is held.
func (c *Core) basePoint(r *run) *recoveryPoint {
	wanted := int64(unloadSeq)
	for _, s := range r.pins {
		if s.dir == "" && s.lost == "" {
			wanted = min(wanted, s.seq)
		}
	}
	var base *recoveryPoint
	for _, p := range r.points {
		if p.Seq <= wanted && (base == nil || p.Seq > base.Seq) {
			base = p
		}
	}
	return base
}

// dropPoints deletes the recovery points of a run that are not to be kept.
func (c *Core) dropPoints(ctx context.Context, r *run, keep []*recoveryPoint) error {
	var b store.Batch
	c.mu.Lock()
	dropped := slices.DeleteFunc(slices.Clone(r.points), func(p *recoveryPoint) bool { return slices.Contains(keep, p) })
	r.points = slices.DeleteFunc(r.points, func(p *recoveryPoint) bool { return slices.Contains(dropped, p) })
	c.mu.Unlock()
	for _, p := range dropped {
		b.Delete = append(b.Delete, store.RecordKey{Collection: inPoints, Key: p.Dir})
	}
	if len(dropped) == 0 {
		return nil
	}
	// The record goes first: a folder without a record is removed at the next start, a record without its folder would be missed.
	if err := c.cfg.Store.Commit(ctx, b); err != nil {
		return fmt.Errorf("drop recovery points: %w", err)
	}
	var errs []error
	for _, p := range dropped {
		errs = append(errs, os.RemoveAll(c.file(p.Dir)))
	}
	if len(keep) == 0 {
		os.Remove(filepath.Join(c.cfg.DataDir, "recovery", r.ID)) // empty by now
	}
	return errors.Join(errs...)
}

// makeDirs makes a folder and those above it, and makes their names durable.
func makeDirs(path string) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", path)
		}
		return nil
	}
	parent := filepath.Dir(path)
	if err := makeDirs(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// discard removes what a save that was cut off may have left: the folder, or its parts under a temporary name beside it.
func (c *Core) discard(dir string) {
	path := c.file(dir)
	left, _ := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(path)), "."+escapeGlob(filepath.Base(path))+".tmp-*"))
	for _, p := range append(left, path) {
		c.logged("left-over files could not be removed", os.RemoveAll(p), "path", p)
	}
}
