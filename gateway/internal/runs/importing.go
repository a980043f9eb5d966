package runs

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Import is a PEFT adapter directory that becomes a run with a training and a sampler checkpoint of one name.
type Import struct {
	Owner     string
	BaseModel string // a served name or alias
	Name      string // of the checkpoints
	ProjectID string
	MaxBytes  int64     // of all files; 0 = 16 GiB
	Tar       io.Reader // the directory's files in the root of a plain tar
	Source    string    // where the directory is from, in the importer's words; "" if that is not said
}

// importable are the files that are taken from an uploaded directory; others are skipped.
var importable = []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.ManifestFile, plugins.CompleteFile}

// Import checks the files by loading them into the model's backend (shapes, base model, checksums) and returns the two checkpoints, the first with what cannot be trained on as where it comes from.
func (c *Core) Import(ctx context.Context, req Import) (training, sampler CheckpointInfo, err error) {
	fail := func(err error) (CheckpointInfo, CheckpointInfo, error) {
		return CheckpointInfo{}, CheckpointInfo{}, err
	}
	if err := firstError(checkName(req.Name), checkLabel("project_id", req.ProjectID), checkSource(req.Source)); err != nil {
		return fail(err)
	}
	m := c.byName[req.BaseModel]
	if m == nil {
		return fail(c.unknownModel(req.BaseModel))
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = 16 << 30
	}
	c.mu.Lock()
	err = firstError(c.mayKeep(req.Owner, 2, 0), c.mayStore(req.Owner, 0))
	c.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	incoming := filepath.Join("incoming", ".upload-"+c.newID("", "", ""))
	defer func() { c.logged("an upload could not be removed", os.RemoveAll(c.file(incoming))) }()
	size, sum, err := unpack(req.Tar, c.file(incoming), req.MaxBytes, c.cfg.Store.Room)
	if err != nil {
		return fail(err)
	}
	c.mu.Lock()
	if err = c.mayStore(req.Owner, 2*size); err == nil {
		c.store(req.Owner, 2*size)
		defer func() {
			c.mu.Lock()
			c.store(req.Owner, -2*size)
			c.mu.Unlock()
		}()
	}
	c.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	// Two checkpoints, twice as large each where the upload has half the precision of ours.
	if err := firstError(notNow(c.cfg.Store.Room(2*2*size)), c.refuses(m)); err != nil {
		return fail(err)
	}
	b, err := c.anyBackend(ctx, m)
	if err != nil {
		return fail(err)
	}
	now := c.cfg.now().UTC()
	r := c.newRun(runRecord{
		ID: c.newID("", "", "") + ":train:0", Owner: req.Owner, ProjectID: req.ProjectID, BaseModel: req.BaseModel, ServedModel: m.Name, Architecture: b.Model.Architecture,
		UserMetadata: []byte("{}"), CreatedAt: now, LastRequest: now, State: stateStored,
	})
	r.model = m
	info, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: r.ID, Path: c.file(incoming), Scope: plugins.ScopeWeights})
	if err != nil {
		if k := plugins.KindOf(err); k == plugins.KindInvalid || k == plugins.KindNotFound || k == plugins.KindNotFinite || k == plugins.KindTooLarge {
			// The uploader knows the files by their names, not by where they lie here.
			return fail(invalidf("the adapter cannot be used with %s: %s", req.BaseModel, strings.ReplaceAll(err.Error(), c.file(incoming)+string(filepath.Separator), "")))
		}
		return fail(fmt.Errorf("import: %w", err))
	}
	defer func() {
		if err := b.DeleteAdapter(context.WithoutCancel(ctx), r.ID); err != nil && !lost(err) {
			c.logged("adapter could not be deleted", err, "run", r.ID)
		}
	}()
	seed := info.Config.Seed
	r.LoRA = LoRAConfig{Rank: info.Config.Rank, Seed: &seed, TrainAttn: info.Config.TrainAttention, TrainMLP: info.Config.TrainMLP, TrainUnembed: info.Config.TrainUnembed}
	batch := store.Batch{Put: []store.Record{r.record(), r.listed()}}
	if r.ProjectID != "" {
		batch.Put = append(batch.Put, r.inProject(r.ProjectID))
	}
	var made []*checkpoint
	var dirs []string
	giveUp := func(err error) (CheckpointInfo, CheckpointInfo, error) {
		for _, dir := range dirs { // no record names them
			c.discard(dir)
		}
		return fail(fmt.Errorf("import: %w", err))
	}
	for _, kind := range []CheckpointKind{KindWeights, KindSampler} {
		path := Path{RunID: r.ID, Kind: kind, Name: req.Name}
		dir := c.newDir(path)
		if err := makeDirs(filepath.Dir(c.file(dir))); err != nil {
			return giveUp(err)
		}
		dirs = append(dirs, dir)
		got, err := b.SaveAdapter(ctx, plugins.SaveAdapterRequest{
			Adapter: r.ID, Version: info.Version, Scope: plugins.ScopeWeights, Path: c.file(dir), ExportNames: c.exportNames(m, kind), StackedExperts: stackedExperts(kind),
		})
		if err != nil {
			return giveUp(err)
		}
		cp := &checkpoint{checkpointRecord{Dir: dir, CheckpointInfo: CheckpointInfo{
			Path: path.String(), RunID: r.ID, Kind: kind, Name: req.Name, Owner: req.Owner, BaseModel: req.BaseModel, ServedModel: m.Name, LoRA: r.LoRA, CreatedAt: now, Size: got.Bytes,
		}}}
		cp.Origin = &Origin{Source: req.Source, SHA256: sum}
		if kind == KindWeights {
			cp.Notices = info.Notices
		}
		c.describe(ctx, cp, r)
		one := c.checkpointMade(cp, "", req.ProjectID, AuditEntry{Event: "checkpoint_created", Purpose: "import"})
		batch.Put, batch.Add = append(batch.Put, one.Put...), append(batch.Add, one.Add...)
		made = append(made, cp)
	}
	if err := c.installStored(ctx, r, batch, made...); err != nil {
		return fail(err)
	}
	return made[0].CheckpointInfo, made[1].CheckpointInfo, nil
}

// unpack writes the importable files of a tar into a new folder, each after room has been asked whether it may, and gives their size and the SHA-256 of the weights. Nothing else in the tar is looked at.
func unpack(r io.Reader, dir string, maxBytes int64, room func(bytes int64) error) (size int64, sum string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, "", uploadError(err)
	}
	weights := sha256.New()
	in := tar.NewReader(io.LimitReader(r, maxBytes+1<<20))
	seen := map[string]bool{}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, "", invalidf("the upload is not a tar file: %s", err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if !slices.Contains(importable, name) {
			continue
		}
		// A sparse file is a few bytes here and any number of zeros on disk.
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return 0, "", invalidf("the upload has %s as a sparse file; only plain regular files are taken", name)
			}
		}
		if h.Typeflag != tar.TypeReg || seen[name] {
			return 0, "", invalidf("the upload has %s twice, or not as a regular file", name)
		}
		if maxBytes -= h.Size; h.Size < 0 || maxBytes < 0 {
			return 0, "", invalidf("the upload is too large")
		}
		if err := notNow(room(h.Size)); err != nil {
			return 0, "", err
		}
		seen[name] = true
		size += h.Size
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return 0, "", uploadError(err)
		}
		var out io.Writer = f
		if name == plugins.AdapterWeightsFile {
			out = io.MultiWriter(f, weights)
		}
		_, err = io.CopyN(out, in, h.Size)
		if err := errors.Join(err, f.Close()); err != nil {
			return 0, "", uploadError(err)
		}
	}
	for _, name := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile} {
		if !seen[name] {
			return 0, "", invalidf("the upload has no %s; it must be the directory of a PEFT adapter", name)
		}
	}
	return size, hex.EncodeToString(weights.Sum(nil)), nil
}

// uploadError tells what is wrong with the upload from what is wrong with our disk, where the same upload may succeed later.
func uploadError(err error) error {
	var here *fs.PathError
	if errors.As(err, &here) {
		return refusef(KindUnavailable, "the upload cannot be kept for now: %v", here.Err)
	}
	return invalidf("the upload ends early: %s", err)
}
