package backup

import (
	"context"
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
)

// Names in a backup.
const (
	manifestName = "backup.json"
	storeFolder  = "store"
	filesFolder  = "files"
	secretName   = "token-secret"
	maxManifest  = 1 << 30
)

// places are the folders of the data directory that are copied, with the number of folders below them in which files lie.
var places = map[string]int{"checkpoints": 3, "snapshots": 2, "recovery": 2}

// Places lists those folders.
func Places() []string { return slices.Sorted(maps.Keys(places)) }

// manifest is the content of backup.json.
type manifest struct {
	Version string    `json:"version"` // of the program
	Made    time.Time `json:"made"`
	Files   []entry   `json:"files"` // in order of their paths
}

// entry is one file.
type entry struct {
	Path   string `json:"path"` // in the backup, with slashes
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (m *manifest) write(dir string) error {
	b, err := durable.Seal(m)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, manifestName), b, 0o600)
}

// readManifest reads and checks the list of a backup's files, but not the files.
func readManifest(dir string) (*manifest, error) {
	path := filepath.Join(dir, manifestName)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no backup, or one that was not finished: it has no %s", dir, manifestName)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return nil, fmt.Errorf("%s is not the list of a backup's files", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func decodeManifest(b []byte) (*manifest, error) {
	m := &manifest{}
	if err := durable.Unseal(b, m); err != nil {
		return nil, err
	}
	for i, e := range m.Files {
		if !e.allowed() || i > 0 && e.Path <= m.Files[i-1].Path {
			return nil, fmt.Errorf("files[%d] %.200q is none of a backup, or not in its place", i, e.Path)
		}
	}
	return m, nil
}

// allowed tells whether a file may be in a backup: wherever a backup comes from, restoring it writes nothing else.
func (e entry) allowed() bool {
	if e.Bytes < 0 || !filepath.IsLocal(e.Path) || filepath.ToSlash(filepath.Clean(e.Path)) != e.Path {
		return false
	}
	parts := strings.Split(e.Path, "/")
	switch parts[0] {
	case secretName:
		return len(parts) == 1
	case storeFolder:
		return len(parts) > 1
	case filesFolder:
		levels, known := 0, false
		if len(parts) > 1 {
			levels, known = places[parts[1]]
		}
		return known && len(parts) == levels+3 && !slices.ContainsFunc(parts[2:len(parts)-1], func(p string) bool { return p[0] == '.' })
	}
	return false
}

// measure gives a regular file's size and SHA-256.
func measure(ctx context.Context, path string) (int64, string, error) {
	return durable.Checksum(ctx, path, io.Discard)
}

// copyFile copies a regular file to a new one, makes the content durable, and gives its size and SHA-256.
func copyFile(ctx context.Context, from, to string) (bytes int64, sum string, err error) {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	bytes, sum, err = durable.Checksum(ctx, from, out)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return 0, "", errors.Join(err, os.Remove(to))
	}
	return bytes, sum, nil
}
