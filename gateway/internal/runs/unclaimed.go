package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/plugins"
)

// What lies in the data directory and has no record was left by a crash at a bad moment, or the store knows less than the disk does: an older copy of it, or a damaged one. So it is not deleted but goes to
// unclaimed/TIME/ under the path that it had, and `tinsmith recover` takes it back or deletes it. Deleted are only the incomplete parts of a write that never ended, and recovery points that had not begun to count of runs that go on without them.

const (
	unclaimedDir  = "unclaimed"
	unclaimedNote = "note.json"
	toldEach      = 20 // folders that are logged one by one
)

// claimNote says of one folder in unclaimed what is in it.
type claimNote struct {
	Format int       `json:"format"` // 1
	When   time.Time `json:"when"`
	Why    string    `json:"why"`
	Paths  []string  `json:"paths"` // where the things were, under the data directory; they have the same paths under the note's folder
}

// unsettledName is where a folder lies until its record is about to be made: it does not count before, and a crash gives it up.
func unsettledName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".unsettled")
}

// settle gives a folder its name. What it returns is where the folder is.
func (c *Core) settle(dir string) string {
	unsettled := unsettledName(dir)
	err := os.Rename(c.file(unsettled), c.file(dir))
	if err == nil {
		err = durable.SyncFolder(filepath.Dir(c.file(dir)))
	}
	if _, missing := os.Lstat(c.file(dir)); missing != nil {
		c.logged("a folder keeps its temporary name", err, "path", unsettled)
		return unsettled
	}
	return dir
}

// setAsideUnnamed moves what is not in used, the folders that records name and those whose deletion is journalled, to unclaimed.
func (c *Core) setAsideUnnamed(ctx context.Context, used map[string]bool) error {
	var unnamed []string
	for place, levels := range places {
		pattern := place + strings.Repeat("/*", levels)
		found, err := filepath.Glob(filepath.Join(escapeGlob(c.cfg.DataDir), pattern))
		if err != nil {
			return fmt.Errorf("look for left-over files: %w", err)
		}
		for _, path := range found {
			rel, err := filepath.Rel(c.cfg.DataDir, path)
			if err != nil {
				return fmt.Errorf("look for left-over files: %w", err)
			}
			switch {
			case used[rel]:
			case c.unfinished(ctx, rel):
				// A backend that has not noticed yet that its gateway is gone may still be writing there.
				c.logged("left-over files could not be removed", os.RemoveAll(path), "path", path)
			default:
				unnamed = append(unnamed, rel)
			}
		}
	}
	if len(unnamed) == 0 {
		return nil
	}
	// On a disk without room they may have to stay where they are, until a later start: that is no reason not to serve what has records.
	c.logged("files without records could not be set aside", c.setAside("at the start of the server no record named it", unnamed))
	return nil
}

// unfinished tells whether a folder that no record names has the name of a write that did not end, and is worth nothing: it is not whole, or it is a recovery point that did not count yet, of a run that goes on without or has ended.
func (c *Core) unfinished(ctx context.Context, dir string) bool {
	name := filepath.Base(dir)
	if name[0] != '.' {
		return false
	}
	if _, err := os.Lstat(filepath.Join(c.file(dir), plugins.CompleteFile)); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	parts := strings.Split(dir, string(filepath.Separator))
	return parts[0] == "recovery" && strings.HasSuffix(name, ".unsettled") && c.knows(ctx, parts[1])
}

// setAside moves folders to unclaimed. One that cannot be moved stays where it is, and is logged.
func (c *Core) setAside(why string, dirs []string) error {
	into, err := makeUnclaimed(c.cfg.DataDir, claimNote{Format: 1, When: c.cfg.now().UTC(), Why: why, Paths: dirs})
	if err != nil {
		return err
	}
	moved := 0
	for _, dir := range dirs {
		to := filepath.Join(into, dir)
		err := os.MkdirAll(filepath.Dir(to), 0o700)
		if err == nil {
			err = os.Rename(c.file(dir), to)
		}
		if err != nil {
			c.logged("files without a record could not be set aside", err, "path", dir)
			continue
		}
		if moved++; moved <= toldEach {
			c.log.Warn("files without a record were set aside; tinsmith recover takes them back", "path", dir, "now", filepath.Join(unclaimedDir, filepath.Base(into), dir), "why", why)
		}
	}
	if moved > toldEach {
		c.log.Warn("more files without a record were set aside; tinsmith recover lists them", "count", moved-toldEach, "folder", filepath.Join(unclaimedDir, filepath.Base(into)))
	}
	return nil
}

// makeUnclaimed makes a new folder in unclaimed with its note.
func makeUnclaimed(dataDir string, note claimNote) (string, error) {
	if err := makeDirs(filepath.Join(dataDir, unclaimedDir)); err != nil {
		return "", fmt.Errorf("set files aside: %w", err)
	}
	for n := 1; ; n++ {
		into := filepath.Join(dataDir, unclaimedDir, note.When.Format("20060102T150405Z"))
		if n > 1 {
			into += "-" + itoa(int64(n))
		}
		err := os.Mkdir(into, 0o700)
		if errors.Is(err, fs.ErrExist) && n < 10_000 {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("set files aside: %w", err)
		}
		b, err := json.MarshalIndent(note, "", "  ")
		if err != nil {
			return "", fmt.Errorf("set files aside: %w", err)
		}
		if err := durable.WriteFile(filepath.Join(into, unclaimedNote), append(b, '\n'), 0o600); err != nil {
			return "", fmt.Errorf("set files aside: %w", err)
		}
		return into, durable.SyncFolder(filepath.Dir(into))
	}
}

// escapeGlob makes a folder's name match itself.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
