package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// maxText bounds the JSON files of a checkpoint, and the headers of its tensor files.
const maxText = 16 << 20

// directory reads the files of a checkpoint's directory by their fixed names: regular files only, so that no link leads out of it.
type directory struct {
	path string
	sums map[string]string // SHA-256 in hex that files must have; nil for a foreign adapter
}

// manifest reads the manifest; nil if there is none.
func (d directory) manifest() (*plugins.Manifest, error) {
	if _, err := os.Lstat(filepath.Join(d.path, plugins.ManifestFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	text, err := d.text(plugins.ManifestFile)
	if err != nil {
		return nil, err
	}
	m, err := plugins.ParseManifest(text)
	if err != nil {
		return nil, err
	}
	if m.SHA256 == nil {
		m.SHA256 = map[string]string{}
	}
	return m, nil
}

// check tells whether a file is there, regular and not larger than limit.
func (d directory) check(name string, limit int64) (string, error) {
	path := filepath.Join(d.path, name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", plugins.Invalidf("path", "%s has no %s", d.path, name)
	case err != nil:
		return "", unreadable(err)
	case !info.Mode().IsRegular():
		return "", plugins.Invalidf("path", "%s is not a regular file", path)
	case info.Size() > limit:
		return "", plugins.Invalidf("path", "%s has %d bytes; at most %d are possible for this model", path, info.Size(), limit)
	}
	return path, nil
}

// unreadable says why a file gave nothing. Where it was the system that refused (a disk error, too many open files), the file may be as it should: that passes, and is no fault of the checkpoint.
func unreadable(err error) error {
	var refused syscall.Errno
	if errors.As(err, &refused) {
		return &plugins.Error{Kind: plugins.KindInternal, Field: "path", Message: err.Error()}
	}
	return plugins.Invalidf("path", "%v", err)
}

// verify compares a checksum with the manifest's.
func (d directory) verify(name string, sum []byte) error {
	if d.sums != nil && d.sums[name] != hex.EncodeToString(sum) {
		return plugins.Invalidf("path", "%s does not have the checksum that %s states", name, plugins.ManifestFile)
	}
	return nil
}

// text reads a small file.
func (d directory) text(name string) ([]byte, error) {
	path, err := d.check(name, maxText)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return nil, unreadable(err)
	}
	sum := sha256.Sum256(text)
	return text, d.verify(name, sum[:])
}

// tensors opens a tensor file, which the caller closes.
func (d directory) tensors(name string, limit int64) (*safetensors.File, error) {
	path, err := d.check(name, limit)
	if err != nil {
		return nil, err
	}
	if d.sums != nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, unreadable(err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, unreadable(err)
		}
		if err := d.verify(name, sum.Sum(nil)); err != nil {
			return nil, err
		}
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, unreadable(err)
	}
	return f, nil
}
