package runs

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	Path          string // tinker://RUN/KIND/NAME
	RunID         string
	Kind          CheckpointKind
	Name          string
	Owner         string
	BaseModel     string // the name the client used
	ServedModel   string
	LoRA          LoRAConfig
	CreatedAt     time.Time
	ExpiresAt     *time.Time
	Size          int64
	Public        bool
	Step          int64
	WithOptimizer bool
	UserMetadata  map[string]string
	// Notices say, of the training checkpoint of an import, what the program that wrote the adapter would do differently when it is trained on.
	Notices []string `json:",omitempty"`
	// Origin says, of the checkpoints of an import and their copies, where it came from; nil for others and for imports of older versions.
	Origin *Origin `json:",omitempty"`
}

// ID is the last two parts of the path.
func (i CheckpointInfo) ID() string { return string(i.Kind) + "/" + i.Name }

// checkpoint is a checkpoint in memory. The record is what is stored.
type checkpoint struct{ checkpointRecord }

type checkpointRecord struct {
	CheckpointInfo
	Dir     string // of its files, under the data directory
	Project string `json:",omitempty"` // of its run
}

func (cp *checkpoint) record() store.Record {
	return store.Record{Collection: inCheckpoints, Key: cp.Path, Parent: cp.RunID, Rank: cp.CreatedAt.UnixNano(), Value: mustJSON(cp.checkpointRecord)}
}

func (cp *checkpoint) info() *CheckpointInfo {
	i := cp.CheckpointInfo
	return &i
}

func (cp *checkpoint) expireIn(ttlSeconds *int64) {
	cp.ExpiresAt = nil
	if ttlSeconds != nil {
		at := cp.CreatedAt.Add(time.Duration(*ttlSeconds) * time.Second)
		cp.ExpiresAt = &at
	}
}

func expired(at *time.Time, now time.Time) bool { return at != nil && !at.After(now) }

// newDir names a new folder for a checkpoint's files. The tilde cannot be part of a name.
func (c *Core) newDir(p Path) string {
	return filepath.Join("checkpoints", p.RunID, string(p.Kind), p.Name+"~"+c.newID("", "", "")[:8])
}

// checkpointMade is what becomes durable with a new checkpoint.
func (c *Core) checkpointMade(cp *checkpoint, session, project string, entry AuditEntry) store.Batch {
	entry.RunID, entry.Path, cp.Project = cp.RunID, cp.Path, project
	return store.Batch{
		Put: []store.Record{cp.record(), c.audit(cp.Owner, entry)},
		Add: []store.Record{c.usage(cp.Owner, session, project, cp.BaseModel, UsageCheckpoint, 1)},
	}
}

// install makes a checkpoint known, in place of an older one of the same path, whose deletion is in the journal by then. mu is held.
func (c *Core) install(cp *checkpoint) {
	if old := c.checkpoints[cp.Path]; old != nil {
		c.lists.remove(old)
		c.erase(old.Dir)
	}
	c.checkpoints[cp.Path] = cp
	c.lists.add(cp)
	delete(c.replacing, cp.Path)
	c.changedOf(cp.Owner, cp.RunID, changedCheckpoints)
}

// displace has the checkpoint that a new one takes the place of deleted with the batch that makes the new one durable. Until install nobody changes or deletes the old one.
func (c *Core) displace(path string, batch *store.Batch) {
	c.saveMu.Lock() // what changes or deletes it now comes before
	defer c.saveMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.checkpoints[path]; old != nil {
		c.replacing[path] = true
		batch.Put = append(batch.Put, c.deletion(old.Dir, "checkpoint "+path+" was overwritten"))
	}
}

// newestCheckpoint finds the newest of a kind. mu is held.
func (c *Core) newestCheckpoint(runID string, kind CheckpointKind) *checkpoint {
	now := c.cfg.now()
	for _, cp := range slices.Backward(c.lists.byRun[runID]) {
		if cp.Kind == kind && !expired(cp.ExpiresAt, now) {
			return cp
		}
	}
	return nil
}

// readable finds a checkpoint that a caller may read. mu is held.
func (c *Core) readable(owner, accessOwner, path string) (*checkpoint, error) {
	if _, err := ParsePath(path); err != nil {
		return nil, err
	}
	cp := c.checkpoints[path]
	if cp == nil || expired(cp.ExpiresAt, c.cfg.now()) || !cp.Public && cp.Owner != owner && (accessOwner == "" || cp.Owner != accessOwner) {
		return nil, notFoundf("no checkpoint %s", quote(path))
	}
	return cp, nil
}

// samplable finds a checkpoint that can be sampled. mu is held.
func (c *Core) samplable(owner, accessOwner, path string) (*checkpoint, error) {
	cp, err := c.readable(owner, accessOwner, path)
	if err != nil {
		return nil, err
	}
	if cp.Kind != KindSampler {
		return nil, invalidf("path %s: only sampler_weights can be sampled; save_weights_for_sampler makes them", cp.Path)
	}
	if c.byName[cp.ServedModel] == nil {
		return nil, notFoundf("path %s: its base model %s is not served here", cp.Path, cp.ServedModel)
	}
	return cp, nil
}

// trainable finds a checkpoint that can be trained on, and gives a copy.
func (c *Core) trainable(owner, accessOwner, path string, withOptimizer bool) (*checkpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cp, err := c.readable(owner, accessOwner, path)
	if err != nil {
		return nil, err
	}
	if cp.Kind != KindWeights {
		return nil, invalidf("path %s: only weights can be trained on; save_state makes them", cp.Path)
	}
	if withOptimizer && !cp.WithOptimizer {
		return nil, invalidf("path %s: has no optimizer state (it was imported); load it without", cp.Path)
	}
	found := *cp
	return &found, nil
}

// ownCheckpoint finds a checkpoint that a caller may change. mu is held.
func (c *Core) ownCheckpoint(owner, path string) (*checkpoint, error) {
	if _, err := ParsePath(path); err != nil {
		return nil, err
	}
	cp := c.checkpoints[path]
	if cp == nil || cp.Owner != owner || expired(cp.ExpiresAt, c.cfg.now()) {
		return nil, notFoundf("no checkpoint %s", quote(path))
	}
	return cp, nil
}

// WeightsInfo describes a checkpoint that the caller may read (its own, AccessOwner's, or public).
func (c *Core) WeightsInfo(_ context.Context, owner, accessOwner, path string) (CheckpointInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cp, err := c.readable(owner, accessOwner, path)
	if err != nil {
		return CheckpointInfo{}, err
	}
	return cp.CheckpointInfo, nil
}

// RunCheckpoints lists the checkpoints of a run, oldest first: all of an own run, the public ones of another.
func (c *Core) RunCheckpoints(ctx context.Context, owner, runID string) ([]CheckpointInfo, error) {
	if err := c.recall(ctx, runID); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[runID]
	if r == nil || r.Owner != owner && !c.hasPublic(runID) {
		return nil, notFoundf("no training run %s", quote(runID))
	}
	list, bytes := []CheckpointInfo{}, int64(0)
	now := c.cfg.now()
	for _, cp := range c.lists.byRun[runID] {
		if (cp.Owner == owner || cp.Public) && !expired(cp.ExpiresAt, now) {
			list, bytes = append(list, cp.CheckpointInfo), bytes+cp.textBytes()
		}
	}
	if bytes > maxListBytes {
		return nil, invalidf("the user_metadata of the checkpoints of %s have %d MiB, and one answer has at most %d: read GET /api/v1/checkpoints by page, or one at a time by weights_info", runID, bytes>>20, maxListBytes>>20)
	}
	return list, nil
}

// Checkpoints lists the caller's checkpoints, newest first, with the number there are in all. Page.Limit is 100 by default. Kinds nil = all.
func (c *Core) Checkpoints(_ context.Context, owner string, page Page, kinds []CheckpointKind) ([]CheckpointInfo, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total, now := 0, c.cfg.now()
	from, to, err := page.cut(math.MaxInt, 100)
	if err != nil {
		return nil, 0, err
	}
	list, bytes := []CheckpointInfo{}, int64(0)
	for _, cp := range slices.Backward(c.lists.byOwner[owner]) {
		if expired(cp.ExpiresAt, now) || kinds != nil && !slices.Contains(kinds, cp.Kind) {
			continue
		}
		if total >= from && total < to {
			list, bytes = append(list, cp.CheckpointInfo), bytes+cp.textBytes()
		}
		total++
	}
	if bytes > maxListBytes {
		return nil, 0, tooLarge("checkpoints", len(list), bytes)
	}
	return list, total, nil
}

// tooLarge refuses a page whose texts are too large for one answer. A page of 20 never is.
func tooLarge(what string, n int, bytes int64) error {
	return invalidf("limit: the user_metadata of these %d %s have %d MiB, and one answer has at most %d: ask for fewer at a time", n, what, (bytes+1<<20-1)>>20, maxListBytes>>20)
}

// DeleteCheckpoint deletes a checkpoint and its files. KindNotFound if it does not exist or is not the caller's, except that a repeat with the same idempotency key succeeds.
func (c *Core) DeleteCheckpoint(ctx context.Context, owner, path, idempotencyKey string) error {
	key := strings.Join([]string{owner, path, idempotencyKey}, "\x00")
	c.mu.Lock()
	cp, err := c.ownCheckpoint(owner, path)
	_, repeat := c.deleted[key]
	c.mu.Unlock()
	if err != nil {
		if repeat && idempotencyKey != "" {
			return nil
		}
		return err
	}
	if err := c.deleteCheckpoint(ctx, cp, "checkpoint_deleted"); err != nil {
		return err
	}
	c.mu.Lock()
	c.deleted[key] = c.cfg.now()
	c.mu.Unlock()
	return nil
}

// deleteCheckpoint takes a checkpoint out of the store, out of memory and off the disk.
func (c *Core) deleteCheckpoint(ctx context.Context, cp *checkpoint, event string) error {
	if err := c.takeTurn(); err != nil {
		return err
	}
	defer c.saveMu.Unlock()
	c.mu.Lock()
	here, replaced := c.checkpoints[cp.Path] == cp, c.replacing[cp.Path]
	c.mu.Unlock()
	if !here {
		return nil
	}
	if replaced {
		return beingReplaced(cp.Path)
	}
	err := c.commit(ctx, store.Batch{
		Delete: []store.RecordKey{{Collection: inCheckpoints, Key: cp.Path}},
		Put:    []store.Record{c.audit(cp.Owner, AuditEntry{Event: event, RunID: cp.RunID, Path: cp.Path}), c.deletion(cp.Dir, event)},
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checkpoints[cp.Path] == cp {
		delete(c.checkpoints, cp.Path)
		c.lists.remove(cp)
		c.changedOf(cp.Owner, cp.RunID, changedCheckpoints)
	}
	c.erase(cp.Dir)
	return nil
}

func beingReplaced(path string) error {
	return refusef(KindBusy, "checkpoint %s is just being overwritten; repeat a little later", quote(path))
}

// change alters a checkpoint and stores it. Checkpoints are replaced, never changed in place: others may hold them.
func (c *Core) change(ctx context.Context, owner, path string, entry AuditEntry, alter func(*checkpoint) bool) error {
	if err := c.takeTurn(); err != nil {
		return err
	}
	defer c.saveMu.Unlock()
	c.mu.Lock()
	cp, err := c.ownCheckpoint(owner, path)
	if err == nil && c.replacing[path] {
		err = beingReplaced(path)
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	changed := *cp
	needed := alter(&changed)
	c.mu.Unlock()
	if !needed {
		return nil
	}
	entry.RunID, entry.Path = cp.RunID, cp.Path
	if err := c.commit(ctx, store.Batch{Put: []store.Record{changed.record(), c.audit(owner, entry)}}); err != nil {
		return fmt.Errorf("change checkpoint: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checkpoints[path] == cp {
		*cp = changed
		c.changedOf(cp.Owner, cp.RunID, changedCheckpoints)
		c.describeSoon(path)
	}
	return nil
}

// PublishCheckpoint makes a checkpoint readable for everybody, or private again. Repeats succeed.
func (c *Core) PublishCheckpoint(ctx context.Context, owner, path string, public bool) error {
	event := "checkpoint_unpublished"
	if public {
		event = "checkpoint_published"
	}
	return c.change(ctx, owner, path, AuditEntry{Event: event}, func(cp *checkpoint) bool {
		needed := cp.Public != public
		cp.Public = public
		return needed
	})
}

// SetCheckpointTTL sets when a checkpoint is deleted, counted from now; nil = never.
func (c *Core) SetCheckpointTTL(ctx context.Context, owner, path string, ttlSeconds *int64) error {
	if err := checkTTL(ttlSeconds); err != nil {
		return err
	}
	return c.change(ctx, owner, path, AuditEntry{Event: "checkpoint_ttl_set"}, func(cp *checkpoint) bool {
		cp.ExpiresAt = nil
		if ttlSeconds != nil {
			at := c.cfg.now().UTC().Add(time.Duration(*ttlSeconds) * time.Second)
			cp.ExpiresAt = &at
		}
		return true
	})
}
