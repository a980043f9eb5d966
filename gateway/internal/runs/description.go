package runs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/plugins"
)

// A checkpoint's folder says itself all that its record says, so that the record can be made again when the store is lost: in a file that never leaves the server. As long as there is a record, that is the truth.
// Recovery points and snapshots have the same in their manifests.

const (
	descriptionFile  = "tinsmith.json"
	descriptionKey   = "tinsmith" // in the metadata of recovery points and snapshots
	maxDescription   = 8 << 20
	describedAtATime = 100 // of the checkpoints that were there at the start, in one sweep
)

// description is what a folder says of itself.
type description struct {
	Checkpoint CheckpointInfo `json:"checkpoint"`
	Run        describedRun   `json:"run"`
	Manifest   string         `json:"manifest_sha256,omitempty"` // of the file that has the checksums of the others
}

// describedRun is what of its run a checkpoint needs, and does not change.
type describedRun struct {
	SessionID    string          `json:"session_id,omitempty"`
	ProjectID    string          `json:"project_id,omitempty"`
	Architecture string          `json:"architecture,omitempty"`
	ModelHash    string          `json:"model_hash,omitempty"`
	UserMetadata json.RawMessage `json:"user_metadata,omitempty"`
	CreatedAt    time.Time       `json:"created_at,omitzero"`
}

func (d *description) encode() []byte {
	b, err := durable.Seal(d)
	if err != nil {
		panic(fmt.Sprintf("encode a description: %v", err)) // it has no value that JSON has not
	}
	return b
}

// decodeDescription reads a description. What is in it was written by anybody: the caller checks it.
func decodeDescription(b []byte) (*description, error) {
	d := &description{}
	if err := durable.Unseal(b, d); err != nil {
		return nil, err
	}
	return d, nil
}

// readDescription reads a folder's description file; nil if there is none.
func readDescription(dir string) (*description, error) {
	b, err := readBounded(filepath.Join(dir, descriptionFile), maxDescription)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d, err := decodeDescription(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", descriptionFile, err)
	}
	return d, nil
}

// readBounded reads a regular file that may not be larger than limit.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", filepath.Base(path), limit)
	}
	return b, err
}

// described is the description of a checkpoint of a run, which may be nil. mu is held, or nobody else knows the two yet.
func described(info CheckpointInfo, r *run) *description {
	d := &description{Checkpoint: info}
	if r != nil {
		d.Run = describedRun{
			SessionID: r.SessionID, ProjectID: r.project(), Architecture: r.Architecture, ModelHash: r.ModelHash, UserMetadata: r.UserMetadata, CreatedAt: r.CreatedAt,
		}
	}
	return d
}

// complete adds what of the run lies apart.
func (d *description) complete(ctx context.Context, c *Core, apart bool, runID string) error {
	if !apart {
		return nil
	}
	texts := runTexts{UserMetadata: d.Run.UserMetadata}
	err := c.textsApart(ctx, runID, &texts)
	d.Run.UserMetadata = texts.UserMetadata
	return err
}

// describe writes the description of a checkpoint that is about to be stored. Without it the checkpoint is as good, so what goes wrong is tried again later.
func (c *Core) describe(ctx context.Context, cp *checkpoint, r *run) {
	c.mu.Lock()
	d, apart := described(cp.CheckpointInfo, r), r.Apart
	c.mu.Unlock()
	d.Manifest = manifestSum(c.file(cp.Dir))
	err := d.complete(ctx, c, apart, r.ID)
	if err == nil {
		err = durable.WriteFile(filepath.Join(c.file(cp.Dir), descriptionFile), d.encode(), 0o600)
	}
	if err != nil {
		c.logged("the description of a checkpoint could not be written yet", err, "path", cp.Path)
		c.mu.Lock()
		c.undescribed.again = append(c.undescribed.again, cp.Path)
		c.mu.Unlock()
	}
}

// manifestSum is the checksum of a folder's manifest; "" if it cannot be read.
func manifestSum(dir string) string {
	b, err := readBounded(filepath.Join(dir, plugins.ManifestFile), maxDescription)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// asMetadata has a folder that is not a checkpoint say which one it would make.
func (c *Core) asMetadata(r *run, kind CheckpointKind, number int64) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := Path{RunID: r.ID, Kind: kind, Name: "recovered-" + itoa(number)}
	return map[string]string{descriptionKey: string(mustJSON(described(CheckpointInfo{
		Path: path.String(), RunID: r.ID, Kind: kind, Name: path.Name, Owner: r.Owner, BaseModel: r.BaseModel, ServedModel: r.ServedModel, LoRA: r.LoRA, CreatedAt: c.cfg.now().UTC(),
		WithOptimizer: kind == KindWeights,
	}, r)))}
}

func (c *Core) ofPoint(r *run, p *recoveryPoint) map[string]string {
	return c.asMetadata(r, KindWeights, p.Seq)
}

func (c *Core) ofSnapshot(s *snapshot) map[string]string {
	return c.asMetadata(s.run, KindSampler, s.version)
}

// descriptions are the paths of checkpoints whose description may not be what their record is. mu of the core guards them.
type descriptions struct {
	waiting []string
	again   []string // they could not be written: the next sweep tries again
	check   []string // those that were there at the start and have not been looked at
	busy    bool     // a goroutine works on them
}

// checkDescriptions has the checkpoints of earlier processes looked at, a few in every sweep: those of older versions have no description, and a crash may have come before a change of one. mu is held, or nothing runs yet.
func (c *Core) checkDescriptions() {
	for path := range c.checkpoints {
		c.undescribed.check = append(c.undescribed.check, path)
	}
}

// describeNext goes on with what is to be looked at.
func (c *Core) describeNext() {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.undescribed
	n := min(describedAtATime, len(u.check))
	next := append(u.again, u.check[:n]...)
	u.again, u.check = nil, u.check[n:]
	c.describeSoon(next...)
}

// describeSoon brings the descriptions of checkpoints to what their records are, in the background. mu is held.
func (c *Core) describeSoon(paths ...string) {
	u := &c.undescribed
	u.waiting = append(u.waiting, paths...)
	if !u.busy && len(u.waiting) > 0 && !c.closing {
		u.busy = true
		c.start(c.describeWaiting)
	}
}

func (c *Core) describeWaiting(ctx context.Context) {
	for {
		c.mu.Lock()
		u := &c.undescribed
		if len(u.waiting) == 0 || ctx.Err() != nil {
			u.busy = false
			c.mu.Unlock()
			return
		}
		path := u.waiting[0]
		u.waiting = u.waiting[1:]
		cp := c.checkpoints[path]
		var dir string
		var d *description
		apart := false
		if cp != nil {
			r := c.runs[cp.RunID]
			dir, d, apart = c.file(cp.Dir), described(cp.CheckpointInfo, r), r != nil && r.Apart
		}
		c.mu.Unlock()
		if cp == nil {
			continue
		}
		if _, err := os.Lstat(dir); err != nil && c.cfg.Elsewhere != nil {
			continue // it is elsewhere, and says there what it said when it was made
		}
		before, err := readDescription(dir)
		if err != nil || before == nil {
			before = &description{}
		}
		if err := d.complete(ctx, c, apart, d.Checkpoint.RunID); err != nil {
			c.logged("the description of a checkpoint could not be written yet", err, "path", path)
			continue
		}
		if d.Run.CreatedAt.IsZero() {
			d.Run = before.Run // the run is not in memory
		}
		if d.Manifest = before.Manifest; d.Manifest == "" { // it never changes, but for damage
			d.Manifest = manifestSum(dir)
		}
		file, content := filepath.Join(dir, descriptionFile), d.encode()
		if have, err := readBounded(file, maxDescription); err == nil && bytes.Equal(have, content) {
			continue
		}
		err = durable.WriteFile(file, content, 0o600)
		if err == nil || errors.Is(err, fs.ErrNotExist) { // the latter when it is being deleted, or has no files
			continue
		}
		c.logged("the description of a checkpoint could not be written yet", err, "path", path)
		c.mu.Lock()
		c.undescribed.again = append(c.undescribed.again, path)
		c.mu.Unlock()
	}
}
