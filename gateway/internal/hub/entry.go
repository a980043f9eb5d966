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

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// ours is the file by which a cache and an entry of one are known to be made by Overlay. In the cache itself it has the path of the user's own one.
const ours = ".tinsmith"

// Repository tells whether a name can be that of a repository: Hugging Face's tools refuse others.
func Repository(repository string) bool {
	return name.MatchString(repository) && !strings.Contains(repository, "--") && !strings.Contains(repository, "..")
}

// UserCache is the folder of the cache that Hugging Face's own tools use in this environment; where that is one that Overlay has made, the one that it was made for.
func UserCache() string { return cacheDir() }

// Overlay makes dir a Hugging Face cache that has an entry for each repository, with the given files in its revision "main", and links to everything else that the user's own cache has. Entries that an
// earlier call made for other repositories go. Programs may read the cache meanwhile. The user's own cache is not changed, and what others put into dir neither: an entry of theirs for one of the
// repositories is an error.
func Overlay(dir, user string, repositories map[string]map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := noteUser(dir, user); err != nil {
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

// noteUser leaves in a cache whose overlay it is: whoever looks for a model of the user's in it, with its weights, finds the way.
func noteUser(dir, user string) error {
	user, err := filepath.Abs(user)
	if err != nil || sameFolder(dir, user) {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, ours), []byte(user), 0o600)
}

func sameFolder(a, b string) bool {
	a, errA := filepath.EvalSymlinks(a)
	b, errB := filepath.EvalSymlinks(b)
	return errA == nil && errB == nil && a == b
}

// writeEntry makes or renews an entry. What it points to is there before it does.
func writeEntry(dir string, files map[string][]byte) error {
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 { // the user's own, of an earlier call
		// Another call may do the same meanwhile.
		if err := unix.Unlink(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EISDIR) {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	folders := []string{filepath.Join(dir, "blobs"), filepath.Join(dir, "refs"), filepath.Join(dir, "snapshots")}
	for _, folder := range folders {
		if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, ours)); err != nil { // it is made before the folders
			return fmt.Errorf("%s is not of this program's making, and stays as it is: choose another folder for the cache", dir)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, ours), nil, 0o600); err != nil {
		return err
	}
	commit := commitOf(files)
	snapshot := filepath.Join(dir, "snapshots", commit)
	for _, folder := range append(folders, snapshot) {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
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
	if sameFolder(dir, user) {
		return nil
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
