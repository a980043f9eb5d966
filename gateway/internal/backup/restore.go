package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// restoring is in a data directory until what is restored into it is whole. The server does not start while it is there.
const restoring = "restoring-files"

// Unfinished tells whether a data directory has a part of a backup only.
func Unfinished(dataDir string) bool {
	_, err := os.Lstat(filepath.Join(dataDir, restoring))
	return !errors.Is(err, fs.ErrNotExist)
}

// Restore puts a backup into a data directory that does not exist, is empty, or has what an earlier call was cut off at. filesDir takes the files; it is the data directory, or another folder, which exists then, and is as empty. putStore restores the store from the folder that it is given. Every file is checked on the way. After an error
// the data directory is not to be used; the backup is only read.
func Restore(ctx context.Context, dir, dataDir, filesDir string, putStore func(ctx context.Context, from string) error, progress func(Progress)) error {
	if err := restore(ctx, dir, dataDir, filesDir, putStore, progress); err != nil {
		return fmt.Errorf("restore %s to %s: %w", dir, dataDir, err)
	}
	return nil
}

func restore(ctx context.Context, dir, dataDir, filesDir string, putStore func(ctx context.Context, from string) error, progress func(Progress)) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return err
	}
	if len(entries) > 0 && !Unfinished(dataDir) {
		return fmt.Errorf("the data directory is not empty: it has %s; nothing was changed", entries[0].Name())
	}
	if filesDir != dataDir && !Unfinished(dataDir) {
		for _, place := range Places() {
			entries, err := os.ReadDir(filepath.Join(filesDir, place))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if len(entries) > 0 {
				return fmt.Errorf("the folder of files %s is not empty: it has %s/%s; nothing was changed", filesDir, place, entries[0].Name())
			}
		}
		if _, err := os.Stat(filesDir); err != nil {
			return err
		}
	}
	// Of a backup that is damaged nothing is taken.
	var p Progress
	for _, e := range m.Files {
		p.Of += e.Bytes
	}
	p.Doing = "checking"
	for i, e := range m.Files {
		bytes, sum, err := measure(ctx, filepath.Join(dir, filepath.FromSlash(e.Path)))
		if err != nil {
			return fmt.Errorf("the backup is damaged: %w", err)
		}
		if bytes != e.Bytes || sum != e.SHA256 {
			return fmt.Errorf("the backup is damaged: %s is not what %s says", e.Path, manifestName)
		}
		if p.Files, p.Bytes = i+1, p.Bytes+bytes; i%64 == 0 || bytes > 64<<20 {
			progress(p)
		}
	}
	if err := durable.WriteFile(filepath.Join(dataDir, restoring), []byte("`tinsmith restore` was not finished here; call it again\n"), 0o600); err != nil {
		return err
	}
	p.Doing, p.Files, p.Bytes = "copying", 0, 0
	synced := map[string]bool{}
	for i, e := range m.Files {
		to, isFile := strings.CutPrefix(e.Path, filesFolder+"/")
		if !isFile && (e.Path != secretName || filesDir != dataDir) {
			continue // with files elsewhere the secret is a record
		}
		target := filepath.Join(filesDir, filepath.FromSlash(to))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) { // of the attempt before
			return err
		}
		if _, sum, err := copyFile(ctx, filepath.Join(dir, filepath.FromSlash(e.Path)), target); err != nil {
			return err
		} else if sum != e.SHA256 {
			return fmt.Errorf("the backup changed meanwhile: %s", e.Path)
		}
		for at := filepath.Dir(target); len(at) >= len(filesDir); at = filepath.Dir(at) {
			synced[at] = true
		}
		if p.Files, p.Bytes = i+1, p.Bytes+e.Bytes; i%64 == 0 || e.Bytes > 64<<20 {
			progress(p)
		}
	}
	for at := range synced {
		if err := durable.SyncFolder(at); err != nil {
			return err
		}
	}
	progress(Progress{Doing: "restoring the store", Files: len(m.Files), Bytes: p.Of, Of: p.Of})
	if err := putStore(ctx, filepath.Join(dir, storeFolder)); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dataDir, restoring)); err != nil {
		return err
	}
	return durable.SyncFolder(dataDir)
}
