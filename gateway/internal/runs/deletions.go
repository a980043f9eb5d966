package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Files that a record names are deleted in three steps: the deletion becomes durable together with the end of the name, then the files go, then the deletion goes. What a crash cuts off is finished at the next start.
// Nothing is deleted because a record is absent: see unclaimed.go. Folders of deletions never come back under their names, which end in random digits.

// deletionRecord is a folder that is to go.
type deletionRecord struct {
	Dir string    `json:"dir"` // under the data directory
	Why string    `json:"why"`
	At  time.Time `json:"at"`
}

// deletion is an intent to delete a folder. It is committed with what takes the folder's name away; erase follows.
func (c *Core) deletion(dir, why string) store.Record {
	at := c.cfg.now().UTC()
	return store.Record{Collection: inDeletions, Key: dir, Rank: at.UnixNano(), Value: mustJSON(deletionRecord{Dir: dir, Why: why, At: at})}
}

// erasures are folders whose deletion is in the journal. mu of the core guards them.
type erasures struct {
	waiting []string
	again   []string // they could not be removed: the next sweep tries again
	busy    bool     // a goroutine works on them
	held    int      // while it is not 0 nothing is removed

	removing chan struct{} // closed when the folder that is just being removed is gone; nil = none is
}

// erase removes the files of deletions that are in the journal, in the background. mu is held.
func (c *Core) erase(dirs ...string) {
	e := &c.erasures
	e.waiting = append(e.waiting, dirs...)
	if e.held > 0 || e.busy || len(e.waiting) == 0 || c.closing {
		return // when the server stops the next start does it
	}
	e.busy = true
	c.start(c.eraseWaiting)
}

func (c *Core) eraseWaiting(ctx context.Context) {
	for {
		c.mu.Lock()
		e := &c.erasures
		if e.held > 0 || len(e.waiting) == 0 || ctx.Err() != nil {
			e.busy = false
			c.mu.Unlock()
			return
		}
		dirs := e.waiting
		e.waiting = nil
		c.mu.Unlock()
		var done store.Batch
		var failed []string
		for i, dir := range dirs {
			gone := c.mayRemove(dirs[i:])
			if gone == nil {
				break
			}
			err := c.removeFiles(ctx, dir)
			gone()
			if err != nil {
				c.logged("files could not be deleted", err, "path", dir)
				failed = append(failed, dir)
				continue
			}
			done.Delete = append(done.Delete, store.RecordKey{Collection: inDeletions, Key: dir})
		}
		if len(done.Delete) > 0 {
			// A deletion that stays is done again at the next start, and finds nothing.
			c.logged("a deletion could not be taken out of the journal", c.cfg.Store.Commit(context.WithoutCancel(ctx), done))
		}
		c.mu.Lock()
		c.erasures.again = append(c.erasures.again, failed...)
		c.mu.Unlock()
	}
}

// mayRemove tells that the first of some folders is being removed, until gone is called. While nothing may be removed it is nil, and the folders wait again.
func (c *Core) mayRemove(dirs []string) (gone func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &c.erasures
	if e.held > 0 {
		e.waiting = append(e.waiting, dirs...)
		return nil
	}
	removing := make(chan struct{})
	e.removing = removing
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		e.removing = nil
		close(removing)
	}
}

// eraseAgain tries what could not be removed. mu is held.
func (c *Core) eraseAgain() {
	again := c.erasures.again
	c.erasures.again = nil
	c.erase(again...)
}

// HoldDeletions keeps all files that records name where they are, until release is called: what is deleted meanwhile goes then. It waits for the folder that is just being removed, so that nobody
// who lists folders finds half of one.
func (c *Core) HoldDeletions() (release func()) {
	c.mu.Lock()
	c.erasures.held++
	removing := c.erasures.removing
	c.mu.Unlock()
	if removing != nil {
		<-removing
	}
	released := false
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !released {
			released = true
			c.erasures.held--
			c.erase()
		}
	}
}

// deleteBehind journals the deletion of folders whose records say themselves that they are over, and deletes them, in the background. mu is held.
func (c *Core) deleteBehind(why string, dirs ...string) {
	c.start(func(ctx context.Context) {
		var b store.Batch
		for _, dir := range dirs {
			b.Put = append(b.Put, c.deletion(dir, why))
		}
		if c.commitPatiently(context.WithoutCancel(ctx), b) == nil {
			c.mu.Lock()
			c.erase(dirs...)
			c.mu.Unlock()
		}
	})
}

// removeFiles removes a folder of a checkpoint, a snapshot or a recovery point, and what is then empty of a run that has ended.
func (c *Core) removeFiles(ctx context.Context, dir string) error {
	if !placed(dir) {
		return fmt.Errorf("%q is no folder that can be deleted", dir)
	}
	if c.cfg.Elsewhere != nil { // first: what is here only does not come again
		if err := c.cfg.Elsewhere.Remove(ctx, dir); err != nil {
			return err
		}
	}
	if err := removeFolder(c.file(dir)); err != nil {
		return err
	}
	parts := strings.Split(dir, string(filepath.Separator))
	if parts[0] != "snapshots" && parts[0] != "recovery" {
		return nil
	}
	c.mu.Lock()
	r := c.runs[parts[1]]
	ended := r == nil || !r.usable()
	c.mu.Unlock()
	if ended {
		os.Remove(filepath.Dir(c.file(dir))) // if it is empty
	}
	return nil
}

// removeFolder is os.RemoveAll for a folder into which somebody may just be writing its description: what came meanwhile goes too. Nothing new is begun there, for no record names it.
func removeFolder(path string) error {
	for again := 3; ; again-- {
		if err := os.RemoveAll(path); again == 0 || !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
}

// places are the folders of the data directory that hold what records name, with the number of levels below them.
var places = map[string]int{"checkpoints": 3, "snapshots": 2, "recovery": 2, "incoming": 1}

// placed tells whether a path is one of those that can be named: it is not above or outside of them, whatever a damaged record says.
func placed(dir string) bool {
	if !filepath.IsLocal(dir) || filepath.Clean(dir) != dir {
		return false
	}
	parts := strings.Split(dir, string(filepath.Separator))
	levels, known := places[parts[0]]
	return known && len(parts) == levels+1
}

// loadDeletions reads the deletions that an earlier process did not finish, and gives those that are to be done. A folder that is still needed is not deleted.
func (c *Core) loadDeletions(ctx context.Context, needed func(dir string) bool) (dirs []string, err error) {
	var vain store.Batch
	err = c.each(ctx, inDeletions, func(b []byte) error {
		var d deletionRecord
		if err := json.Unmarshal(b, &d); err != nil {
			return err
		}
		if needed(d.Dir) || !placed(d.Dir) || c.gone(d.Dir) {
			if needed(d.Dir) {
				c.log.Warn("files that were to be deleted have a record, and stay", "path", d.Dir, "why", d.Why)
			}
			vain.Delete = append(vain.Delete, store.RecordKey{Collection: inDeletions, Key: d.Dir})
			return nil
		}
		dirs = append(dirs, d.Dir)
		return nil
	})
	if err == nil && len(vain.Delete) > 0 {
		err = c.cfg.Store.Commit(ctx, vain)
	}
	if err != nil {
		return nil, fmt.Errorf("read deletions: %w", err)
	}
	slices.Sort(dirs)
	return dirs, nil
}

// discard removes what this process wrote and no record ever named, such as what a save that was cut off may have left: the folder, or its parts under a temporary name beside it.
func (c *Core) discard(dir string) {
	path := c.file(dir)
	unsettled := unsettledName(path)
	found := []string{path, unsettled}
	for _, p := range []string{path, unsettled} {
		left, _ := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(p)), "."+escapeGlob(filepath.Base(p))+".tmp-*"))
		found = append(found, left...)
	}
	for _, p := range found {
		c.logged("left-over files could not be removed", os.RemoveAll(p), "path", p)
	}
}
