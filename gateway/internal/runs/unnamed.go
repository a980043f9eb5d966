package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// A reinforcement-learning loop makes an unnamed sampler at every step, and hardly ever asks an older one than the last again. All of them are files until their session ends, so their bytes are bounded
// for each owner: beyond the bound those go that were unused for longest. The first of a run goes after all others, for it is the one that loops compare themselves with; the newest never does.

// unnamedLeft is how much of the bound is left when room is made, so that it need not be made at every step.
const unnamedLeft = 0.9

// removedReason says why weights are gone that were removed to make room.
func (c *Core) removedReason(s *snapshot, runID string) string {
	return fmt.Sprintf("the weights of this sampler, version %d of run %s, were removed from the disk: the unnamed samplers of a key may have %d MiB (sampling.unnamed_mib), and others were used later; "+
		"a sampler that is saved under a name stays until it is deleted", s.version, runID, c.cfg.MaxUnnamedBytes>>20)
}

// unnamedFile is a version on disk with the samplers that have it.
type unnamedFile struct {
	snap     *snapshot
	runID    string
	samplers []*sampler
	busy     bool // something samples from it, or waits to
}

// unnamedFiles lists what an owner has on disk, with the newest version of each of its runs, on disk or not. mu is held.
func (c *Core) unnamedFiles(owner string) (files []*unnamedFile, newest map[string]int64) {
	newest = map[string]int64{}
	known := map[*snapshot]*unnamedFile{}
	for _, smp := range c.samplers {
		if smp.Owner != owner || smp.snap == nil || smp.ended {
			continue
		}
		newest[smp.RunID] = max(newest[smp.RunID], smp.Version)
		if smp.snap.dir == "" {
			continue
		}
		f := known[smp.snap]
		if f == nil {
			f = &unnamedFile{snap: smp.snap, runID: smp.RunID}
			known[smp.snap], files = f, append(files, f)
		}
		f.samplers = append(f.samplers, smp)
		f.busy = f.busy || len(smp.jobs) > 0 || smp.model != nil && smp.model.uses(smp.snap.dir)
	}
	return files, newest
}

// boundUnnamed removes files of an owner's unnamed samplers that were unused for longest, if they have more bytes than they may. mu is held.
func (c *Core) boundUnnamed(owner string) {
	if c.cfg.MaxUnnamedBytes <= 0 || c.unnamed[owner] <= c.cfg.MaxUnnamedBytes {
		return
	}
	files, newest := c.unnamedFiles(owner)
	first := map[string]int64{}
	for _, f := range files {
		if v, known := first[f.runID]; !known || f.snap.version < v {
			first[f.runID] = f.snap.version
		}
	}
	rank := func(f *unnamedFile) int {
		if f.snap.version == first[f.runID] {
			return 1
		}
		return 0
	}
	slices.SortFunc(files, func(a, b *unnamedFile) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.snap.used.Compare(b.snap.used), cmp.Compare(a.snap.version, b.snap.version), cmp.Compare(a.runID, b.runID))
	})
	left := int64(unnamedLeft * float64(c.cfg.MaxUnnamedBytes))
	var gone []*unnamedFile
	var bytes int64
	for _, f := range files {
		if c.unnamed[owner] <= left {
			break
		}
		s := f.snap
		if f.busy || s.users > 0 || s.hot || s.spilling || s.version == newest[f.runID] {
			continue
		}
		gone, bytes = append(gone, f), bytes+s.bytes
		c.uncount(owner, s)
	}
	if len(gone) == 0 {
		return
	}
	c.log.Info("weights of unnamed samplers were removed to make room", "owner", owner, "samplers", len(gone), "bytes", bytes)
	c.removeUnnamed(gone)
}

// removeUnnamed takes the files of versions away: their samplers say from then on that they are gone. mu is held.
func (c *Core) removeUnnamed(gone []*unnamedFile) {
	var dirs []string
	var changed []*sampler
	for _, f := range gone {
		dirs = append(dirs, f.snap.dir)
		f.snap.dir, f.snap.folder, f.snap.removed, f.snap.lost = "", "", true, c.removedReason(f.snap, f.runID)
		for _, smp := range f.samplers {
			smp.Dir, smp.Removed = "", true
			changed = append(changed, smp)
		}
	}
	c.start(func(ctx context.Context) {
		ctx = context.WithoutCancel(ctx)
		// The files go when the records that named them do not any more; a crash before that leaves both.
		err := c.writeRecords(ctx, func() []store.Record {
			var records []store.Record
			for _, smp := range changed {
				records = append(records, smp.record())
			}
			for _, dir := range dirs {
				records = append(records, c.deletion(dir, "the unnamed samplers of a key have more than they may"))
			}
			return records
		})
		if err != nil {
			c.logged("the removal of unnamed samplers could not be stored", err)
			return
		}
		c.mu.Lock()
		c.erase(dirs...)
		c.mu.Unlock()
	})
}

// counted adds a version's files to what its owner has, once. mu is held, or nothing runs yet.
func (c *Core) counted(owner string, s *snapshot, bytes int64) {
	c.uncount(owner, s)
	s.bytes = bytes
	c.unnamed[owner] += bytes
}

// uncount takes them out. mu is held.
func (c *Core) uncount(owner string, s *snapshot) {
	if c.unnamed[owner] -= s.bytes; c.unnamed[owner] <= 0 {
		delete(c.unnamed, owner)
	}
	s.bytes = 0
}
