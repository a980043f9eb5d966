package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// ours is the file by which an entry of a cache is known to be made by Overlay.
const ours = ".tinsmith"

// Repository tells whether a name can be that of a repository: Hugging Face's tools refuse others.
func Repository(repository string) bool {
	return name.MatchString(repository) && !strings.Contains(repository, "--") && !strings.Contains(repository, "..")
}

// UserCache is the folder of the cache that Hugging Face's own tools use in this environment.
func UserCache() string { return cacheDir() }

// Overlay makes dir a Hugging Face cache that has an entry for each repository, with the given files in its revision "main", and links to everything else that the user's own cache has. Entries that an
// earlier call made for other repositories go. Programs may read the cache meanwhile. The user's own cache is not changed.
func Overlay(dir, user string, repositories map[string]map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries := map[string]bool{}
	for repository, files := range repositories {
		if !Repository(repository) {
			return fmt.Errorf("%.200q cannot be the name of a repository", repository)
		}
		entry := "models--" + strings.ReplaceAll(repository, "/", "--")
		entries[entry] = true
		if err := writeEntry(filepath.Join(dir, entry), files); err != nil {
			return fmt.Errorf("cache entry of %s: %w", repository, err)
		}
	}
	if err := removeOld(dir, entries); err != nil {
		return err
	}
	return linkUser(dir, user)
}

// writeEntry makes or renews an entry. What it points to is there before it does.
func writeEntry(dir string, files map[string][]byte) error {
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 { // the user's own, of an earlier call
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	commit := commitOf(files)
	snapshot := filepath.Join(dir, "snapshots", commit)
	for _, folder := range []string{filepath.Join(dir, "blobs"), filepath.Join(dir, "refs"), snapshot} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(filepath.Join(dir, ours), nil, 0o600); err != nil {
		return err
	}
	for file, content := range files {
		if file != filepath.Base(file) || strings.HasPrefix(file, ".") {
			return fmt.Errorf("%.200q cannot be the name of a file", file)
		}
		sum := sha256.Sum256(content)
		blob := hex.EncodeToString(sum[:])
		if info, err := os.Stat(filepath.Join(dir, "blobs", blob)); err != nil || info.Size() != int64(len(content)) {
			if err := durable.WriteFile(filepath.Join(dir, "blobs", blob), content, 0o600); err != nil {
				return err
			}
		}
		if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, file)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return durable.WriteFile(filepath.Join(dir, "refs", "main"), []byte(commit), 0o600)
}

// commitOf stands in for a commit's hash: the same files have the same.
func commitOf(files map[string][]byte) string {
	h := sha256.New()
	for _, file := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256(files[file])
		fmt.Fprintf(h, "%q %x\n", file, sum)
	}
	return hex.EncodeToString(h.Sum(nil))[:40]
}

// removeOld removes what earlier calls made and nobody wants any more, and links that lead nowhere.
func removeOld(dir string, wanted map[string]bool) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		_, marked := os.Lstat(filepath.Join(path, ours))
		_, alive := os.Stat(path)
		switch {
		case wanted[e.Name()]:
		case e.Type()&fs.ModeSymlink != 0 && errors.Is(alive, fs.ErrNotExist), e.IsDir() && marked == nil:
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkUser links what the user's cache has and dir has not.
func linkUser(dir, user string) error {
	if user, err := filepath.EvalSymlinks(user); err == nil {
		if own, err := filepath.EvalSymlinks(dir); err == nil && own == user {
			return nil
		}
	}
	user, err := filepath.Abs(user)
	if err != nil {
		return err
	}
	list, err := os.ReadDir(user)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		kind, _, ok := strings.Cut(e.Name(), "--")
		if !ok || kind != "models" && kind != "datasets" && kind != "spaces" {
			continue
		}
		if err := os.Symlink(filepath.Join(user, e.Name()), filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
