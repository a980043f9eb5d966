package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Claim makes the record of an item that Items listed, and of its run if there is none, and brings the files to their place. No record is replaced: where the name is taken the checkpoint gets another one. owner is whose it becomes
// if it does not say that itself.
func (v *Inventory) Claim(ctx context.Context, item Item, owner string) (Claimed, error) {
	if v.store == nil {
		return Claimed{}, errors.New("claim: the store is not open")
	}
	if item.claim == nil {
		return Claimed{}, fmt.Errorf("claim %s: %s", item.Path, item.Fault)
	}
	d := *item.claim
	cp := &checkpoint{checkpointRecord{CheckpointInfo: d.Checkpoint}}
	if item.Fault != "" {
		if owner == "" {
			return Claimed{}, fmt.Errorf("claim %s: %s", item.Path, item.Fault)
		}
		if err := checkLabel("owner", owner); err != nil {
			return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
		}
		cp.Owner = owner
	}
	var notes []string
	if old, taken := v.checkpoints[cp.Path]; taken && old.Dir == item.Origin && !exists(filepath.Join(v.dir, old.Dir)) {
		// The record was there all the time: only the files come back.
		if err := v.move(item.Path, old.Dir); err != nil {
			return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
		}
		v.used[old.Dir] = true
		return Claimed{Item: item.Path, Checkpoint: old.Path, Owner: old.Owner, Note: "it had a record, which stays as it is"}, nil
	}
	place, err := v.freeName(Path{RunID: cp.RunID, Kind: cp.Kind, Name: cp.Name})
	if err != nil {
		return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
	}
	if place.String() != cp.Path {
		notes = append(notes, "there is another checkpoint "+cp.Path)
		cp.Path, cp.Name = place.String(), place.Name
	}
	if expired(cp.ExpiresAt, v.now()) {
		notes = append(notes, "its time to live had ended at "+cp.ExpiresAt.UTC().Format("2006-01-02 15:04:05")+"; now it has none")
		cp.ExpiresAt = nil
	}
	if !cp.Origin.valid() {
		cp.Origin = nil
	}
	cp.Dir = item.Origin
	fits := strings.HasPrefix(cp.Dir, filepath.Join("checkpoints", place.RunID, string(place.Kind), place.Name)+"~")
	if !fits || cp.Dir != item.Path && exists(filepath.Join(v.dir, cp.Dir)) {
		cp.Dir = filepath.Join("checkpoints", place.RunID, string(place.Kind), place.Name+"~"+(&Core{}).newID("", "", "")[:8])
	}
	if !placed(cp.Dir) {
		return Claimed{}, fmt.Errorf("claim %s: %s is no place for a checkpoint", item.Path, quote(cp.Dir))
	}
	batch := v.records(cp, &d)
	d.Checkpoint = cp.CheckpointInfo
	d.Manifest = manifestSum(filepath.Join(v.dir, item.Path))
	// Until the record is stored the folder has none, wherever it lies; the next start or the next call finds it again.
	if err := v.move(item.Path, cp.Dir); err != nil {
		return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
	}
	if err := durable.WriteFile(filepath.Join(v.dir, cp.Dir, descriptionFile), d.encode(), 0o600); err != nil {
		return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
	}
	if err := v.store.Commit(ctx, batch); err != nil {
		return Claimed{}, fmt.Errorf("claim %s: %w", item.Path, err)
	}
	v.checkpoints[cp.Path], v.used[cp.Dir] = cp.checkpointRecord, true
	return Claimed{Item: item.Path, Checkpoint: cp.Path, Owner: cp.Owner, Note: strings.Join(notes, "; ")}, nil
}

// records are those of a claimed checkpoint, and of its run if that has none.
func (v *Inventory) records(cp *checkpoint, d *description) store.Batch {
	now := v.now().UTC()
	v.claimed++
	entry := AuditEntry{Time: now, Event: "checkpoint_recovered", RunID: cp.RunID, Path: cp.Path}
	of, known := v.runs[cp.RunID]
	s := v.sessions[cmp.Or(of.SessionID, d.Run.SessionID)]
	switch cp.Project = d.Run.ProjectID; {
	case known && of.SessionID == "":
		cp.Project = of.ProjectID
	case known:
		cp.Project = s.ProjectID
	}
	batch := store.Batch{Put: []store.Record{
		cp.record(),
		{Collection: inAudit, Key: itoa(now.UnixNano()) + "-recovered-" + itoa(v.claimed), Parent: cp.Owner, Rank: now.UnixNano(), Value: mustJSON(entry)},
	}}
	if known {
		return batch
	}
	r := &run{runRecord: runRecord{
		ID: cp.RunID, Owner: cp.Owner, ProjectID: d.Run.ProjectID, BaseModel: cp.BaseModel, ServedModel: cp.ServedModel, Architecture: d.Run.Architecture, LoRA: cp.LoRA, UserMetadata: d.Run.UserMetadata,
		CreatedAt: d.Run.CreatedAt, LastRequest: now, State: stateStored, ModelHash: d.Run.ModelHash,
	}}
	if r.CreatedAt.Year() < 2000 || r.CreatedAt.After(cp.CreatedAt) {
		r.CreatedAt = cp.CreatedAt
	}
	r.CreatedAt = r.CreatedAt.UTC()
	if s.ID != "" && s.Owner == cp.Owner && !s.Retired && sessionOf(cp.RunID) == s.ID {
		r.SessionID, r.ProjectID, cp.Project = s.ID, "", s.ProjectID
		batch.Put[0] = cp.record()
	}
	batch.Put = append(batch.Put, r.part()...)
	batch.Put = append(batch.Put, r.record(), r.listed())
	if cp.Project != "" {
		batch.Put = append(batch.Put, r.inProject(cp.Project))
	}
	v.runs[r.ID] = r.runRecord
	return batch
}

// freeName gives a path that no checkpoint has, as near to the wanted one as can be.
func (v *Inventory) freeName(p Path) (Path, error) {
	name := p.Name
	for n := 1; n < 10_000; n++ {
		if _, taken := v.checkpoints[p.String()]; !taken {
			_, err := ParsePath(p.String())
			return p, err
		}
		suffix := "-recovered"
		if n > 1 {
			suffix += "-" + itoa(n)
		}
		p.Name = name[:min(len(name), maxNameBytes-len(suffix))] + suffix
	}
	return p, fmt.Errorf("there are too many checkpoints like %s", p)
}

// move brings a folder to another place in the data directory.
func (v *Inventory) move(from, to string) error {
	if from == to {
		return nil
	}
	source, target := filepath.Join(v.dir, from), filepath.Join(v.dir, to)
	if exists(target) {
		return fmt.Errorf("%s exists", to)
	}
	if err := makeDirs(filepath.Dir(target)); err != nil {
		return err
	}
	if err := os.Rename(source, target); err != nil {
		return err
	}
	v.tidy(filepath.Dir(from))
	return errors.Join(durable.SyncFolder(filepath.Dir(target)), durable.SyncFolder(filepath.Join(v.dir, unclaimedOrSelf(from))))
}

// unclaimedOrSelf is the folder above a thing that is there in any case.
func unclaimedOrSelf(from string) string {
	place, _, _ := strings.Cut(from, string(filepath.Separator))
	return place
}

// tidy removes folders in unclaimed that are empty, with the note of one that holds nothing else.
func (v *Inventory) tidy(dir string) {
	for strings.HasPrefix(dir, unclaimedDir+string(filepath.Separator)) {
		path := filepath.Join(v.dir, dir)
		if entries, err := os.ReadDir(path); err == nil && len(entries) == 1 && entries[0].Name() == unclaimedNote {
			os.Remove(filepath.Join(path, unclaimedNote))
		}
		if os.Remove(path) != nil {
			return // something is in it
		}
		dir = filepath.Dir(dir)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Discard deletes things in unclaimed for good, as Items names them, and gives their size. Nothing else can be deleted so.
func (v *Inventory) Discard(path string) (bytes int64, err error) {
	parts := strings.SplitN(path, string(filepath.Separator), 3)
	if len(parts) != 3 || parts[0] != unclaimedDir || !filepath.IsLocal(path) || !placed(parts[2]) || strings.HasPrefix(parts[1], ".") {
		return 0, fmt.Errorf("discard %s: only what lies in %s can be discarded, by the path that is listed", quote(path), unclaimedDir)
	}
	full := filepath.Join(v.dir, path)
	if !exists(full) {
		return 0, fmt.Errorf("discard %s: there is no such thing", quote(path))
	}
	bytes = sizeOf(full)
	if err := os.RemoveAll(full); err != nil {
		return 0, fmt.Errorf("discard %s: %w", quote(path), err)
	}
	v.tidy(filepath.Dir(path))
	return bytes, nil
}
