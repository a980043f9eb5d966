package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Inventory compares the files of a data directory that no server uses with what a store names. Its methods are not to be called concurrently.
type Inventory struct {
	store       store.Store // nil: it cannot be opened, and nothing is known to have a record
	dir         string
	now         func() time.Time
	sessions    map[string]sessionRecord
	runs        map[string]runRecord
	checkpoints map[string]checkpointRecord
	points      []recoveryPoint
	snapshots   []samplerRecord
	used        map[string]bool   // folders that records name
	owners      map[string]string // of runs, as descriptions say
	claimed     int
}

// Item is a folder that no record names, or whose record is not known.
type Item struct {
	Path   string    `json:"path"` // under the data directory
	Origin string    `json:"was"`  // the path that it had when the server used it
	What   string    `json:"what"` // "checkpoint", "recovery point", "snapshot", "upload", "unfinished write", "something else"
	When   time.Time `json:"when,omitzero"`
	Why    string    `json:"why,omitempty"` // it was set aside
	Bytes  int64     `json:"bytes"`
	Whole  bool      `json:"whole"` // every file has the checksum that it should have
	// Fault is why it cannot be claimed, or not without an owner; "" = it can.
	Fault      string    `json:"fault,omitempty"`
	Checkpoint string    `json:"checkpoint,omitempty"` // the path it would have
	Owner      string    `json:"owner,omitempty"`
	BaseModel  string    `json:"base_model,omitempty"`
	CreatedAt  time.Time `json:"created_at,omitzero"`
	Step       int64     `json:"step,omitempty"`

	claim *description // what its record would say; nil if it cannot be claimed whoever owns it
}

// Missing is a record whose files are not there, or not whole.
type Missing struct {
	Name  string `json:"name"` // a checkpoint's path, or the id of a run or of a sampling session
	Path  string `json:"path"` // where the files should be
	Fault string `json:"fault"`
}

// Claimed is what came of an item.
type Claimed struct {
	Item       string `json:"item"`
	Checkpoint string `json:"checkpoint"` // the path that it has now
	Owner      string `json:"owner"`
	Note       string `json:"note,omitempty"` // what is not as it was
}

// OpenInventory reads what the store names. records may be nil: then only files are listed. Both stay the caller's; no server may use the directory meanwhile.
func OpenInventory(ctx context.Context, records store.Store, dataDir string) (*Inventory, error) {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	v := &Inventory{
		store: records, dir: dir, now: time.Now, sessions: map[string]sessionRecord{}, runs: map[string]runRecord{}, checkpoints: map[string]checkpointRecord{}, used: map[string]bool{}, owners: map[string]string{},
	}
	if records == nil {
		return v, nil
	}
	for _, read := range []func() error{
		func() error {
			return readAll(ctx, records, inSessions, func(s *sessionRecord) { v.sessions[s.ID] = *s })
		},
		func() error { return readAll(ctx, records, inRuns, func(r *runRecord) { v.runs[r.ID] = *r }) },
		func() error {
			return readAll(ctx, records, inCheckpoints, func(cp *checkpointRecord) { v.checkpoints[cp.Path], v.used[cp.Dir] = *cp, true })
		},
		func() error {
			return readAll(ctx, records, inPoints, func(p *recoveryPoint) { v.points, v.used[p.Dir] = append(v.points, *p), true })
		},
		func() error {
			return readAll(ctx, records, inSamplers, func(s *samplerRecord) {
				if v.used[s.Dir] = true; s.Dir != "" && v.sessions[s.SessionID].Status.Type == StatusActive {
					v.snapshots = append(v.snapshots, *s)
				}
			})
		},
		func() error {
			return readAll(ctx, records, inDeletions, func(d *deletionRecord) { v.used[d.Dir] = true }) // the next start does it
		},
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// readAll reads what can be read: the store tells what cannot, and its files are listed as without a record.
func readAll[T any](ctx context.Context, from store.Store, collection string, take func(*T)) error {
	err := from.All(ctx, collection, func(r store.Record) error {
		var value T
		if err := json.Unmarshal(r.Value, &value); err != nil {
			return fmt.Errorf("record %s %q: %w", collection, r.Key, err)
		}
		take(&value)
		return nil
	})
	if errors.Is(err, store.ErrRows) {
		return nil
	}
	return err
}

// Items lists what no record names, with checked checksums: what was set aside, and what lies where the server would set it aside.
func (v *Inventory) Items(ctx context.Context) ([]Item, error) {
	items := []Item{}
	for place, levels := range places {
		here, err := filepath.Glob(filepath.Join(escapeGlob(v.dir), place+strings.Repeat("/*", levels)))
		if err != nil {
			return nil, fmt.Errorf("look for files without records: %w", err)
		}
		for _, path := range here {
			if rel, err := filepath.Rel(v.dir, path); err == nil && !v.used[rel] {
				items = append(items, Item{Path: rel, Origin: rel})
			}
		}
		aside, err := filepath.Glob(filepath.Join(escapeGlob(v.dir), unclaimedDir, "*", place+strings.Repeat("/*", levels)))
		if err != nil {
			return nil, fmt.Errorf("look for unclaimed files: %w", err)
		}
		for _, path := range aside {
			rel, err := filepath.Rel(v.dir, path)
			if err != nil {
				return nil, fmt.Errorf("look for unclaimed files: %w", err)
			}
			parts := strings.SplitN(rel, string(filepath.Separator), 3)
			item := Item{Path: rel, Origin: parts[2]}
			if note, err := readNote(filepath.Join(v.dir, parts[0], parts[1])); err == nil {
				item.When, item.Why = note.When, note.Why
			}
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.Path, b.Path) })
	for i := range items { // what descriptions say of runs helps those that have none
		if d, err := readDescription(filepath.Join(v.dir, items[i].Path)); err == nil && d != nil {
			v.owners[d.Checkpoint.RunID] = d.Checkpoint.Owner
		}
	}
	for i := range items {
		if err := v.examine(ctx, &items[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func readNote(folder string) (claimNote, error) {
	var note claimNote
	b, err := readBounded(filepath.Join(folder, unclaimedNote), 64<<20)
	if err == nil {
		err = json.Unmarshal(b, &note)
	}
	return note, err
}

// kinds are what the places hold.
var kinds = map[string]string{"checkpoints": "checkpoint", "recovery": "recovery point", "snapshots": "snapshot", "incoming": "upload"}

// examine finds out what an item is and whether it is whole. Whatever its files are, only ctx's end is an error.
func (v *Inventory) examine(ctx context.Context, item *Item) error {
	path := filepath.Join(v.dir, item.Path)
	parts := strings.Split(item.Origin, string(filepath.Separator))
	item.What = kinds[parts[0]]
	item.Bytes = sizeOf(path)
	if !isFolder(path) {
		item.What, item.Fault = "something else", "it is not a folder"
		return nil
	}
	m, whole, fault, err := verify(ctx, path)
	if err != nil {
		return err
	}
	item.Whole, item.Fault = whole, fault
	base := filepath.Base(item.Origin)
	if base[0] == '.' && !whole {
		item.What = "unfinished write"
	}
	if !whole || item.What == "upload" {
		item.Fault = cmp.Or(item.Fault, "it is an upload that was not finished")
		return nil
	}
	item.Step = m.Step
	d, fault := v.claimOf(path, parts, m)
	if item.Fault = fault; d == nil {
		return nil
	}
	item.claim = d
	item.Checkpoint, item.Owner, item.BaseModel, item.CreatedAt = d.Checkpoint.Path, d.Checkpoint.Owner, d.Checkpoint.BaseModel, d.Checkpoint.CreatedAt
	return nil
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// claimOf finds out what the record of a whole folder would say, from its description, its manifest, and the run's record. parts are those of the path that it had.
func (v *Inventory) claimOf(path string, parts []string, m *plugins.Manifest) (*description, string) {
	var d *description
	var err error
	var place Path
	name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(parts[len(parts)-1], "."), ".unsettled"), "~")
	switch {
	case parts[0] == "checkpoints":
		place = Path{RunID: parts[1], Kind: CheckpointKind(parts[2]), Name: name}
		d, err = readDescription(path)
	case m.Metadata[descriptionKey] != "":
		d = &description{}
		err = json.Unmarshal([]byte(m.Metadata[descriptionKey]), d)
		place = Path{RunID: parts[1], Kind: KindWeights, Name: "recovered-" + name}
		if parts[0] == "snapshots" {
			place.Kind = KindSampler
		}
	default:
		return nil, "it does not say of which run and owner it is"
	}
	if _, invalid := ParsePath(place.String()); invalid != nil {
		return nil, "its place is none of a checkpoint: " + invalid.Error()
	}
	if err != nil {
		d = nil // it is as if there were none
	}
	if d != nil && (d.Checkpoint.RunID != place.RunID || d.Checkpoint.Kind != place.Kind) {
		return nil, "its description is that of " + quote(d.Checkpoint.Path)
	}
	if d != nil && d.Manifest != "" && d.Manifest != manifestSum(path) {
		return nil, plugins.ManifestFile + " does not have the checksum that " + descriptionFile + " states"
	}
	run, known := v.runs[place.RunID]
	if d == nil {
		d = &description{Checkpoint: CheckpointInfo{Owner: cmp.Or(run.Owner, v.owners[place.RunID]), BaseModel: run.BaseModel, CreatedAt: modified(path)}}
		if parts[0] == "checkpoints" {
			d.Checkpoint.UserMetadata = m.Metadata
		}
	}
	cp := &d.Checkpoint
	// What the files themselves say is checked by their checksums.
	seed := m.Seed
	cp.Path, cp.RunID, cp.Kind, cp.Name = place.String(), place.RunID, place.Kind, place.Name
	cp.LoRA = LoRAConfig{Rank: m.Rank, Seed: &seed, TrainAttn: m.TrainAttn, TrainMLP: m.TrainMLP, TrainUnembed: m.TrainUnembed}
	cp.Step, cp.WithOptimizer, cp.Size = m.Step, m.Scope != plugins.ScopeWeights.String(), sizeOf(path)-sizeOf(filepath.Join(path, descriptionFile))
	cp.ServedModel = cmp.Or(cp.ServedModel, run.ServedModel, m.BaseModel)
	cp.BaseModel = cmp.Or(cp.BaseModel, cp.ServedModel)
	if now := v.now(); cp.CreatedAt.Year() < 2000 || cp.CreatedAt.After(now.Add(24*time.Hour)) {
		cp.CreatedAt = modified(path)
	}
	cp.CreatedAt = cp.CreatedAt.UTC()
	if d.Run.UserMetadata, err = checkMetadata(d.Run.UserMetadata); err != nil {
		return nil, "its description's metadata of the run: " + err.Error()
	}
	if err := firstError(checkLoRA(cp.LoRA), checkTexts(cp.UserMetadata), checkLabel("owner", cp.Owner), checkLabel("base_model", cp.BaseModel), checkLabel("project_id", d.Run.ProjectID)); err != nil {
		return nil, "its description: " + err.Error()
	}
	switch {
	case known && cp.Owner != "" && run.Owner != cp.Owner:
		return nil, fmt.Sprintf("its run belongs to %s now, not to %s", quote(run.Owner), quote(cp.Owner))
	case cp.Owner == "" && known:
		cp.Owner = run.Owner // a server without keys has one owner, who has no name
	case cp.Owner == "" && d.Run.CreatedAt.IsZero():
		return d, "it does not say whose it is: give --owner"
	}
	return d, ""
}

// modified is when the last file of a folder was written.
func modified(path string) time.Time {
	info, err := os.Stat(filepath.Join(path, plugins.CompleteFile))
	if err != nil {
		return time.Unix(0, 0)
	}
	return info.ModTime()
}

// sizeOf is the size of the regular files in a folder, or of a file.
func sizeOf(path string) (bytes int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil // what cannot be read has no size
	})
	return bytes
}

// verify compares every file of a folder with the checksum in its manifest. Only ctx's end is an error.
func verify(ctx context.Context, path string) (m *plugins.Manifest, whole bool, fault string, err error) {
	m, fault = readManifest(path)
	if fault != "" {
		return nil, false, fault, nil
	}
	for _, name := range slices.Sorted(maps.Keys(m.SHA256)) {
		_, sum, err := durable.Checksum(ctx, filepath.Join(path, name), io.Discard)
		switch {
		case ctx.Err() != nil:
			return nil, false, "", ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return m, false, name + " is missing", nil
		case err != nil:
			return m, false, fmt.Sprintf("%s cannot be read: %v", name, err), nil
		case sum != m.SHA256[name]:
			return m, false, name + " does not have the checksum that " + plugins.ManifestFile + " states", nil
		}
	}
	return m, true, "", nil
}

// readManifest reads a folder's manifest and tells what is wrong with it.
func readManifest(path string) (*plugins.Manifest, string) {
	b, err := readBounded(filepath.Join(path, plugins.ManifestFile), maxDescription)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "it has no " + plugins.ManifestFile
	}
	var m *plugins.Manifest
	if err == nil {
		m, err = plugins.ParseManifest(b)
	}
	if err == nil {
		err = m.Check(m.ModelHash, plugins.ScopeWeights)
	}
	if err != nil {
		return nil, plugins.ManifestFile + " cannot be used: " + err.Error()
	}
	needed := []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.CompleteFile}
	if m.Scope != plugins.ScopeWeights.String() {
		needed = append(needed, plugins.OptimizerFile)
	}
	for _, name := range needed {
		if m.SHA256[name] == "" {
			return nil, plugins.ManifestFile + " states no checksum of " + name
		}
	}
	for name := range m.SHA256 {
		switch name {
		case plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.OptimizerFile, plugins.AccumulatorFile, plugins.CompleteFile:
		default:
			return nil, fmt.Sprintf("%s states a checksum of %s, which is no file of a checkpoint", plugins.ManifestFile, quote(name))
		}
	}
	return m, ""
}

// Missing lists the records whose files are not there, or not whole: for the latter all files of checkpoints are read.
func (v *Inventory) Missing(ctx context.Context) ([]Missing, error) {
	list := []Missing{}
	note := func(name, dir string, thorough bool) error {
		path := filepath.Join(v.dir, dir)
		_, fault := readManifest(path)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			fault = "its folder is missing"
		}
		if fault == "" && thorough {
			var err error
			if _, _, fault, err = verify(ctx, path); err != nil {
				return err
			}
		}
		if d, err := readDescription(path); fault == "" && err == nil && d != nil && d.Manifest != "" && d.Manifest != manifestSum(path) {
			fault = plugins.ManifestFile + " does not have the checksum that " + descriptionFile + " states"
		}
		if fault != "" {
			list = append(list, Missing{Name: name, Path: dir, Fault: fault})
		}
		return nil
	}
	for _, path := range slices.Sorted(maps.Keys(v.checkpoints)) {
		if err := note(path, v.checkpoints[path].Dir, true); err != nil {
			return nil, err
		}
	}
	for _, p := range v.points {
		if state := v.runs[p.RunID].State; state == stateLive || state == stateCreating {
			if err := note(p.RunID, p.Dir, false); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range v.snapshots {
		if err := note(s.ID, s.Dir, false); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// OfUse tells whether an item is claimed when all are: checkpoints are, and the states of runs that have no record, or none of their session, or were lost. What a live run left is of no use.
func (v *Inventory) OfUse(item Item) bool {
	switch item.What {
	case "checkpoint":
		return true
	case "recovery point":
		run, known := v.runs[strings.Split(item.Origin, string(filepath.Separator))[1]]
		_, session := v.sessions[run.SessionID] // without it the run is not known to the server
		return item.claim != nil && (!known || run.State == stateCorrupted || run.State == stateStored || run.SessionID != "" && !session)
	}
	return false
}
