package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/plugins"
)

// Source is what is copied.
type Source struct {
	Version string
	DataDir string
	// FilesDir is the folder of what records name; "" = DataDir.
	FilesDir string
	Store    interface {
		// Backup writes a consistent copy of the store's own files into a folder that does not exist.
		Backup(ctx context.Context, dir string) error
	}
	// Folders are those of FilesDir that are kept elsewhere too; nil = all are in FilesDir.
	Folders Folder
	// Hold keeps all files that records name where they are until release is called; nil where nothing deletes any.
	Hold func() (release func())
}

// Folder gives folders that are kept elsewhere, of which only some are here.
type Folder interface {
	List(ctx context.Context) (dirs []string, err error)
	// Fetch has a folder here until release is called.
	Fetch(ctx context.Context, dir string) (release func(), err error)
}

// Progress tells how far a backup or the restoring of one is.
type Progress struct {
	Doing string `json:"doing"` // what, in words
	Files int    `json:"files"` // done
	Bytes int64  `json:"bytes"`
	Of    int64  `json:"of,omitempty"` // bytes in all, as far as is known
}

// Result is what a backup holds.
type Result struct {
	Files  int   `json:"files"`
	Bytes  int64 `json:"bytes"`
	Linked int64 `json:"linked"` // of the bytes: those that share the disk with the data directory
	// Damaged are files that are not what the manifest in their folder says. They are in the backup as they are.
	Damaged []string `json:"damaged,omitempty"`
}

// Make makes a backup in dir, which must not exist or be empty, and lie outside of the data directory. When it returns nil the backup is whole, checked, and durable; otherwise dir has no backup.json.
func Make(ctx context.Context, src Source, dir string, progress func(Progress)) (Result, error) {
	result, err := makeBackup(ctx, src, dir, progress)
	if err != nil {
		return Result{}, fmt.Errorf("back up to %s: %w", dir, err)
	}
	return result, nil
}

func makeBackup(ctx context.Context, src Source, dir string, progress func(Progress)) (result Result, err error) {
	src.FilesDir = cmp.Or(src.FilesDir, src.DataDir)
	if err := prepare(src.DataDir, src.FilesDir, dir); err != nil {
		return result, err
	}
	if src.Hold != nil {
		defer src.Hold()()
	}
	progress(Progress{Doing: "copying the store"})
	// The store is first: what its records name was on disk before they were made, and does not go before this ends.
	if err := src.Store.Backup(ctx, filepath.Join(dir, storeFolder)); err != nil {
		return result, err
	}
	c := &copying{ctx: ctx, result: &result, from: src.FilesDir, to: filepath.Join(dir, filesFolder), progress: progress}
	if err := os.Mkdir(c.to, 0o700); err != nil {
		return result, err
	}
	if c.list, err = Folders(c.from); err != nil {
		return result, err
	}
	if c.elsewhere = src.Folders; c.elsewhere != nil {
		more, err := c.elsewhere.List(ctx)
		if err != nil {
			return result, err
		}
		c.list = append(c.list, more...)
		slices.Sort(c.list)
		c.list = slices.Compact(c.list)
	}
	if err := c.all(); err != nil {
		return result, err
	}
	if _, _, err := copyFile(ctx, filepath.Join(src.DataDir, secretName), filepath.Join(dir, secretName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return result, err
	}
	m := manifest{Version: src.Version, Made: time.Now().UTC()}
	if err := m.collect(ctx, dir, &result, progress); err != nil {
		return result, err
	}
	if err := damage(dir, &m, &result); err != nil {
		return result, err
	}
	return result, m.write(dir)
}

// prepare makes the folder of a new backup.
func prepare(dataDir, filesDir, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	here, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for _, in := range []string{dataDir, filesDir} {
		whole, err := filepath.EvalSymlinks(in)
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(whole, here); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("it lies in the data directory %s, and would be lost with it", in)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("it is not empty: it has %s", entries[0].Name())
	}
	return nil
}

// copying copies the folders of the data directory that hold files.
type copying struct {
	ctx       context.Context
	result    *Result
	from, to  string
	progress  func(Progress)
	list      []string // the folders, under the data directory
	elsewhere Folder
	done      int
	copied    bool // links cannot be made: the file systems differ
}

// Folders lists what of a folder of files is copied. Names that begin with a dot are those of writes that are going on: no record names them.
func Folders(from string) (all []string, err error) {
	for place, levels := range places {
		list := []string{place}
		for range levels {
			var below []string
			for _, dir := range list {
				entries, err := os.ReadDir(filepath.Join(from, dir))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, err
				}
				for _, e := range entries {
					if e.IsDir() && e.Name()[0] != '.' {
						below = append(below, filepath.Join(dir, e.Name()))
					}
				}
			}
			list = below
		}
		all = append(all, list...)
	}
	slices.Sort(all)
	return all, nil
}

func (c *copying) all() error {
	for _, dir := range c.list {
		err := c.folder(dir)
		if errors.Is(err, fs.ErrNotExist) {
			// Something that never had a record was given up meanwhile; what has one stays.
			if _, gone := os.Lstat(filepath.Join(c.from, dir)); errors.Is(gone, fs.ErrNotExist) {
				err = os.RemoveAll(filepath.Join(c.to, dir))
			}
		}
		if err != nil {
			return err
		}
		c.done++
		if c.done%64 == 0 || c.done == len(c.list) {
			c.progress(Progress{Doing: fmt.Sprintf("copying folder %d of %d", c.done, len(c.list)), Files: c.result.Files, Bytes: c.result.Bytes})
		}
	}
	return nil
}

func (c *copying) folder(dir string) error {
	if c.elsewhere != nil {
		release, err := c.elsewhere.Fetch(c.ctx, dir)
		if err != nil {
			return err
		}
		defer release()
	}
	entries, err := os.ReadDir(filepath.Join(c.from, dir))
	if err != nil {
		return err
	}
	target := filepath.Join(c.to, dir)
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if !e.Type().IsRegular() || e.Name()[0] == '.' {
			continue // the latter is a file that is just being replaced
		}
		if err := c.file(filepath.Join(c.from, dir, e.Name()), filepath.Join(target, e.Name())); err != nil {
			return err
		}
	}
	for at := target; at != filepath.Dir(c.to); at = filepath.Dir(at) {
		if err := durable.SyncFolder(at); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) file(from, to string) error {
	if !c.copied {
		err := os.Link(from, to)
		if err == nil {
			info, err := os.Lstat(to)
			if err != nil {
				return err
			}
			c.result.Linked += info.Size()
			c.result.Bytes += info.Size()
			c.result.Files++
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.copied = true
	}
	n, _, err := copyFile(c.ctx, from, to)
	c.result.Bytes += n
	c.result.Files++
	return err
}

// collect reads every file of the backup.
func (m *manifest) collect(ctx context.Context, dir string, result *Result, progress func(Progress)) error {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		paths = append(paths, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(paths)
	of := result.Bytes
	result.Files, result.Bytes = 0, 0
	for _, path := range paths {
		bytes, sum, err := measure(ctx, filepath.Join(dir, path))
		if err != nil {
			return err
		}
		m.Files = append(m.Files, entry{Path: path, Bytes: bytes, SHA256: sum})
		result.Files++
		if result.Bytes += bytes; result.Files%64 == 0 || result.Files == len(paths) || bytes > 64<<20 {
			progress(Progress{Doing: "checking", Files: result.Files, Bytes: result.Bytes, Of: max(of, result.Bytes)})
		}
	}
	return nil
}

// damage compares the files of checkpoints with the manifests in their folders.
func damage(dir string, m *manifest, result *Result) error {
	sums := map[string]string{}
	for _, e := range m.Files {
		sums[e.Path] = e.SHA256
	}
	for _, e := range m.Files {
		folder, isManifest := strings.CutSuffix(e.Path, "/"+plugins.ManifestFile)
		if !isManifest || !strings.HasPrefix(e.Path, filesFolder+"/") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Path))
		if err != nil {
			return err
		}
		said, err := plugins.ParseManifest(b)
		if err != nil {
			result.Damaged = append(result.Damaged, e.Path)
			continue
		}
		for name, want := range said.SHA256 {
			if path := folder + "/" + name; sums[path] != want {
				result.Damaged = append(result.Damaged, path)
			}
		}
	}
	slices.Sort(result.Damaged)
	return nil
}
