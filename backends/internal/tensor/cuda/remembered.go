package cuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// What checks find about products is kept in files, so that the next process need not find it out again: one file for each device, driver, library and set
// of shapes. A file that is damaged, or about anything else, is as none.

// circumstances are what a finding holds for, and for nothing else.
type circumstances struct {
	Format          int
	What            string // was found
	Device, UUID    string
	Major, Minor    int
	Multiprocessors int
	Kernels         string // their hash
	Driver          string // its version, and the file
	Library         string // likewise, of cuBLASLt
	Weights         [][2]int
	Warpgroups      bool // are used
}

// circumstancesFormat changes with what findings mean.
const circumstancesFormat = 1

// circumstances gives those of a finding about a device, of the model's weights as well if cuBLASLt has a part in it.
func (o *Options) circumstances(what string, driver *cudart.Driver, info cudart.Information, library *cudart.CuBLASLt, warpgroups bool) (circumstances, error) {
	c := circumstances{Format: circumstancesFormat, What: what, Device: info.Name, UUID: info.UUID, Major: info.Major, Minor: info.Minor, Multiprocessors: info.Multiprocessors, Warpgroups: warpgroups}
	var err error
	if c.Kernels, err = info.KernelsHash(); err != nil {
		return c, err
	}
	if c.Driver, err = libraryFile(driver.Path()); err != nil {
		return c, err
	}
	c.Driver = fmt.Sprint(driver.Version(), " ", c.Driver)
	if library != nil {
		if c.Library, err = libraryFile(library.Path()); err != nil {
			return c, err
		}
		c.Library, c.Weights = library.Version()+" "+c.Library, o.Weights
	}
	return c, nil
}

// libraryFile tells a library's file from another that takes its place: by its name behind links, which has the release in it, its size and when it was
// written.
func libraryFile(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d bytes of %s", path, info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano)), nil
}

const (
	// mostRemembered bounds the files, of which those that were written first are deleted.
	mostRemembered = 64
	// longestRemembered bounds what is read of one.
	longestRemembered = 16 << 20
	rememberedEnding  = ".json"
)

// rememberedFile is the JSON after the first line, which is its SHA-256 in hexadecimal digits.
type rememberedFile struct {
	Circumstances circumstances
	Found         json.RawMessage
}

// path is that of the file, one for each circumstances.
func (c *circumstances) path(folder string) (string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return filepath.Join(folder, hex.EncodeToString(sum[:16])+rememberedEnding), nil
}

// errDamaged is the error about a file that is not as it was written.
var errDamaged = errors.New("the file is damaged")

// recall reads what was found in circumstances; fs.ErrNotExist if nothing was.
func (c *circumstances) recall(folder string, found any) error {
	path, err := c.path(folder)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, longestRemembered))
	if err != nil {
		return err
	}
	sum, text, _ := bytes.Cut(data, []byte("\n"))
	if want := sha256.Sum256(text); string(sum) != hex.EncodeToString(want[:]) {
		return errDamaged
	}
	var file rememberedFile
	if err := json.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if own, err := file.Circumstances.path(folder); err != nil || own != path {
		return fmt.Errorf("%w: it is about something else", errDamaged)
	}
	if err := json.Unmarshal(file.Found, found); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// remember writes what was found: as a whole or not at all.
func (c *circumstances) remember(folder string, found any) (err error) {
	path, err := c.path(folder)
	if err != nil {
		return err
	}
	file := rememberedFile{Circumstances: *c}
	if file.Found, err = json.Marshal(found); err != nil {
		return err
	}
	text, err := json.Marshal(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	forgetOldest(folder)
	sum := sha256.Sum256(text)
	f, err := os.CreateTemp(folder, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Concat([]byte(hex.EncodeToString(sum[:])+"\n"), text))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// forgetOldest makes room for another file. What others delete meanwhile is gone as well; a file that stays does no harm.
func forgetOldest(folder string) {
	paths, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(paths) < mostRemembered {
		return
	}
	written := map[string]time.Time{}
	for _, p := range paths {
		if info, err := os.Stat(p); err == nil {
			written[p] = info.ModTime()
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return written[a].Compare(written[b]) })
	for _, p := range paths[:len(paths)-mostRemembered+1] {
		_ = os.Remove(p)
	}
}

// once gives what was found in circumstances, now or by another process before: find is asked for it else, and what it finds is kept unless that is an
// error. remembered says that it was not asked. Without a folder nothing is kept.
func once[T any](folder string, circumstances func() (circumstances, error), find func() (T, error)) (found T, remembered bool, err error) {
	if folder == "" {
		found, err = find()
		return found, false, err
	}
	about, err := circumstances()
	if err != nil {
		slog.Warn("what is found out about products is not kept for the next start", "folder", folder, "error", err)
		found, err = find()
		return found, false, err
	}
	var before T
	switch err = about.recall(folder, &before); {
	case err == nil:
		return before, true, nil
	case !errors.Is(err, fs.ErrNotExist):
		slog.Warn("what was found out about products cannot be read and is found out again", "folder", folder, "error", err)
	}
	if found, err = find(); err != nil {
		return found, false, err
	}
	if err := about.remember(folder, found); err != nil {
		slog.Warn("what is found out about products is not kept for the next start", "folder", folder, "error", err)
	}
	return found, false, nil
}
