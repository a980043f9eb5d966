package runs

import (
	"context"
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

// maxIntact bounds how many files are known to be intact.
const maxIntact = 10_000

// fileState is what a file looked like when its checksum was compared.
type fileState struct {
	size     int64
	modified time.Time
}

// intact compares files of a checkpoint with the checksums in its manifest before they are given out, once while a file stays as it is. Damage is the server's fault, told and logged.
func (c *Core) intact(ctx context.Context, cp *checkpointRecord, files ...string) error {
	dir := c.file(cp.Dir)
	m, fault := readManifest(dir)
	for _, name := range files {
		if fault != "" || name == plugins.ManifestFile {
			continue // the manifest has a checksum of itself
		}
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			if m.SHA256[name] != "" {
				fault = name + " is missing"
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", cp.Path, err)
		}
		now := fileState{info.Size(), info.ModTime()}
		c.mu.Lock()
		before, known := c.intactFiles[path]
		c.mu.Unlock()
		if known && before == now {
			continue
		}
		_, sum, err := durable.Checksum(ctx, path, io.Discard)
		if err != nil {
			return fmt.Errorf("checkpoint %s: %s: %w", cp.Path, name, err)
		}
		if sum != m.SHA256[name] {
			fault = name + " does not have the checksum that " + plugins.ManifestFile + " states"
			continue
		}
		c.mu.Lock()
		if len(c.intactFiles) >= maxIntact {
			clear(c.intactFiles)
		}
		c.intactFiles[path] = now
		c.mu.Unlock()
	}
	if fault != "" {
		c.log.Error("a checkpoint is damaged", "path", cp.Path, "folder", cp.Dir, "found", fault)
		return fmt.Errorf("checkpoint %s is damaged: %s", cp.Path, fault)
	}
	return nil
}
