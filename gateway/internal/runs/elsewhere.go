package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Elsewhere keeps the folders of checkpoints, snapshots and recovery points somewhere else, and only some of them in the data directory. The store brings a folder there before it commits a record that names the folder. Its
// methods may be called concurrently.
type Elsewhere interface {
	// Fetch has a folder in the data directory until release is called. An error that is fs.ErrNotExist says that it is nowhere. What may pass is waited for.
	Fetch(ctx context.Context, dir string) (release func(), err error)
	// Remove removes a folder there, after its deletion was journalled.
	Remove(ctx context.Context, dir string) error
}

// here has a folder in the data directory until release is called. One that is nowhere is not: who reads it finds that out.
func (c *Core) here(ctx context.Context, dir string) (release func(), err error) {
	if c.cfg.Elsewhere == nil || dir == "" {
		return func() {}, nil
	}
	release, err = c.cfg.Elsewhere.Fetch(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bring %s here: %w", dir, err)
	}
	return release, nil
}

// gone tells whether a folder is known to be nowhere.
func (c *Core) gone(dir string) bool {
	if c.cfg.Elsewhere != nil {
		return false
	}
	_, err := os.Lstat(c.file(dir))
	return errors.Is(err, fs.ErrNotExist)
}
