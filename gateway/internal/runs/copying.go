package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// CopyCheckpoint asks for a copy of a checkpoint in a run of its own: that of SessionID and ModelSeq, or a new one in a project.
type CopyCheckpoint struct {
	Owner          string
	AccessOwner    string
	Source         string
	ProjectID      string // either this
	SessionID      string // or these two
	ModelSeq       int64
	TTLSeconds     *int64
	IdempotencyKey string
}

// CopyCheckpoint copies and describes the copy; the same idempotency key copies once.
func (c *Core) CopyCheckpoint(ctx context.Context, req CopyCheckpoint) (CheckpointInfo, error) {
	if err := firstError(checkTTL(req.TTLSeconds), checkLabel("destination_project_id", req.ProjectID)); err != nil {
		return CheckpointInfo{}, err
	}
	if (req.ProjectID == "") == (req.SessionID == "") {
		return CheckpointInfo{}, invalidf("destination: either destination_project_id, or session_id and model_seq_id")
	}
	if req.ModelSeq < 0 || req.ModelSeq > math.MaxInt32 {
		return CheckpointInfo{}, invalidf("model_seq_id: is %d, must be in 0 … %d", req.ModelSeq, math.MaxInt32)
	}
	if err := c.recall(ctx, req.SessionID); err != nil {
		return CheckpointInfo{}, err
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return CheckpointInfo{}, errClosing
	}
	src, err := c.readable(req.Owner, req.AccessOwner, req.Source)
	if err != nil {
		c.mu.Unlock()
		return CheckpointInfo{}, err
	}
	now := c.cfg.now().UTC()
	r := c.newRun(runRecord{Owner: req.Owner, BaseModel: src.BaseModel, ServedModel: src.ServedModel, LoRA: src.LoRA, UserMetadata: []byte("{}"), CreatedAt: now, LastRequest: now, State: stateStored})
	if req.SessionID != "" {
		s, err := c.usableSession(req.Owner, req.SessionID)
		if err != nil {
			c.mu.Unlock()
			return CheckpointInfo{}, err
		}
		r.ID, r.SessionID, r.session = s.ID+":train:"+itoa(req.ModelSeq), s.ID, s
	} else {
		r.ID, r.ProjectID = c.newID("copy", req.Owner, req.IdempotencyKey)+":train:0", req.ProjectID
	}
	r.model = c.byName[r.ServedModel]
	target := Path{RunID: r.ID, Kind: src.Kind, Name: src.Name}
	if done := c.checkpoints[target.String()]; done != nil && c.runs[r.ID] != nil && c.runs[r.ID].State == stateStored && c.runs[r.ID].Owner == req.Owner {
		info := done.CheckpointInfo
		c.mu.Unlock()
		return info, nil
	}
	if c.runs[r.ID] != nil {
		c.mu.Unlock()
		return CheckpointInfo{}, invalidf("model_seq_id: model %s exists already", r.ID)
	}
	if err := firstError(c.mayKeep(req.Owner, 1, src.textBytes()), c.mayStore(req.Owner, src.Size)); err != nil {
		c.mu.Unlock()
		return CheckpointInfo{}, err
	}
	if r.session != nil {
		if err := c.mayHold(r.Owner, 0, r.size()); err != nil {
			c.mu.Unlock()
			return CheckpointInfo{}, err
		}
	}
	if c.copying[r.ID] {
		c.mu.Unlock()
		return CheckpointInfo{}, refusef(KindBusy, "model %s is being made by another copy; repeat a little later", quote(r.ID))
	}
	c.copying[r.ID] = true
	size := src.Size
	c.store(req.Owner, size)
	defer func() {
		c.mu.Lock()
		c.store(req.Owner, -size)
		delete(c.copying, r.ID)
		c.mu.Unlock()
	}()
	copied := &checkpoint{src.checkpointRecord}
	from := c.file(src.Dir)
	if s := r.session; s != nil { // it may be long before the run is in it
		s.pending++
		defer func() {
			c.mu.Lock()
			s.pending--
			c.mu.Unlock()
		}()
	}
	c.mu.Unlock()

	copied.Origin = src.Origin.shown(src.Owner == req.Owner)
	copied.Path, copied.RunID, copied.Owner, copied.CreatedAt, copied.Public = target.String(), r.ID, req.Owner, now, false
	copied.expireIn(req.TTLSeconds)
	copied.Dir = c.newDir(target)
	if err := makeDirs(filepath.Dir(c.file(copied.Dir))); err != nil {
		return CheckpointInfo{}, fmt.Errorf("copy checkpoint: %w", err)
	}
	release, err := c.here(ctx, src.Dir)
	if err != nil {
		return CheckpointInfo{}, fmt.Errorf("copy checkpoint: %w", err)
	}
	defer release()
	if err := copyDir(from, c.file(unsettledName(copied.Dir))); err != nil {
		return CheckpointInfo{}, fmt.Errorf("copy checkpoint: %w", err)
	}
	copied.Dir = c.settle(copied.Dir)
	c.describe(ctx, copied, r)
	batch := c.checkpointMade(copied, r.SessionID, r.project(), AuditEntry{Event: "checkpoint_copied", Details: map[string]any{"source": req.Source}})
	batch.Put = append(batch.Put, r.record(), r.listed())
	if project := copied.Project; project != "" {
		batch.Put = append(batch.Put, r.inProject(project))
	}
	return copied.CheckpointInfo, c.installStored(ctx, r, batch, copied)
}

// installStored makes a run that only holds checkpoints durable and known.
func (c *Core) installStored(ctx context.Context, r *run, batch store.Batch, cps ...*checkpoint) error {
	for _, cp := range cps {
		c.displace(cp.Path, &batch)
	}
	if err := c.commit(ctx, batch); err != nil {
		c.mu.Lock()
		for _, cp := range cps {
			delete(c.replacing, cp.Path)
		}
		c.mu.Unlock()
		return fmt.Errorf("store checkpoint: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs[r.ID] == nil {
		c.runs[r.ID] = r
		if r.session != nil {
			r.session.runs = append(r.session.runs, r)
			if r.session.active() {
				c.hold(r.session, 0, r.size())
			}
		}
	}
	for _, cp := range cps {
		c.install(cp)
	}
	return nil
}

// copyDir copies the regular files of a folder, without its description, which is the owner's. Files of checkpoints never change, so a link to one is as good as a copy where the file system has links.
// What says that a checkpoint is complete comes last.
func copyDir(from, to string) (err error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int {
		last := map[bool]int{true: 1}
		return last[a.Name() == plugins.CompleteFile] - last[b.Name() == plugins.CompleteFile]
	})
	if err := makeDirs(to); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	for _, e := range entries {
		if e.Name() == descriptionFile || e.Name()[0] == '.' { // the latter of one that was being written
			continue
		}
		if !e.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", e.Name())
		}
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if os.Link(source, target) == nil {
			continue
		}
		if err := copyFile(source, target); err != nil {
			return err
		}
	}
	for _, dir := range []string{to, filepath.Dir(to)} {
		if err := durable.SyncFolder(dir); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
