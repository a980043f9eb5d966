// Package hub finds model directories: as they are named, in the local Hugging Face cache, or by downloading them into it. It knows files and the hub's
// HTTP interface, and nothing of models.
package hub

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Progress is told how many bytes of a download are there.
type Progress func(done, total int64)

// name is org/name or name, as the hub allows them.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$`)

// Resolve gives the model directory that path means: a directory, a name in the local Hugging Face cache, or hf://org/name[@revision].
func Resolve(ctx context.Context, path string, progress Progress) (string, error) {
	return resolve(ctx, path, model, progress)
}

// ResolveWithoutWeights is Resolve for a machine that reads configuration, tokenizer and chat template alone: a download leaves the weights out.
func ResolveWithoutWeights(ctx context.Context, path string, progress Progress) (string, error) {
	return resolve(ctx, path, withoutWeights, progress)
}

func resolve(ctx context.Context, path string, p parts, progress Progress) (string, error) {
	if rest, ok := strings.CutPrefix(path, "hf://"); ok {
		repository, revision, _ := strings.Cut(rest, "@")
		if revision == "" {
			revision = "main"
		}
		if !name.MatchString(repository) || !validRevision(revision) {
			return "", fmt.Errorf("model path %q is not hf://org/name[@revision]", path)
		}
		return download(ctx, repository, revision, p, progress)
	}
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return "", fmt.Errorf("model path %s is not a directory", path)
		}
		return path, nil
	}
	if !name.MatchString(path) {
		return "", fmt.Errorf("model path %s: %w", path, fs.ErrNotExist)
	}
	dir, err := cached(path, "main")
	if err != nil {
		return "", fmt.Errorf("model path %q is neither a directory nor a model in the Hugging Face cache %s; hf://%s downloads it: %w", path, cacheDir(), path, err)
	}
	return dir, nil
}

// Find is Resolve without a download: for hf://org/name[@revision] that is not in the cache it gives "".
func Find(ctx context.Context, path string) (dir string, err error) {
	rest, ok := strings.CutPrefix(path, "hf://")
	if !ok {
		return Resolve(ctx, path, nil)
	}
	repository, revision, _ := strings.Cut(rest, "@")
	if !name.MatchString(repository) || revision != "" && !validRevision(revision) {
		return "", fmt.Errorf("model path %q is not hf://org/name[@revision]", path)
	}
	if dir, err := cached(repository, cmp.Or(revision, "main")); err == nil {
		return dir, nil
	}
	return "", nil
}

func validRevision(r string) bool {
	return len(r) <= 200 && !strings.Contains(r, "..") && regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`).MatchString(r)
}

// cacheDir is the folder of the cache that Hugging Face's own tools use. One that Overlay has made has tokenizers alone for what is served; the user's own, which it leads to, has the weights too.
func cacheDir() string {
	dir := namedCache()
	if user, err := os.ReadFile(filepath.Join(dir, ours)); err == nil && filepath.IsAbs(string(user)) {
		return string(user)
	}
	return dir
}

// namedCache is the folder that the environment names, or the usual one.
func namedCache() string {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return dir
	}
	return filepath.Join(homeDir(), "hub")
}

// homeDir is where Hugging Face's own tools keep their cache and their token.
func homeDir() string {
	if home := os.Getenv("HF_HOME"); home != "" {
		return home
	}
	user, err := os.UserHomeDir()
	if err != nil {
		user = "."
	}
	return filepath.Join(user, ".cache", "huggingface")
}

func repositoryDir(repository string) string {
	return filepath.Join(cacheDir(), "models--"+strings.ReplaceAll(repository, "/", "--"))
}

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// cached gives the snapshot of a revision that is in the cache.
func cached(repository, revision string) (string, error) {
	root := repositoryDir(repository)
	commit := revision
	if !commitHash.MatchString(commit) {
		b, err := os.ReadFile(filepath.Join(root, "refs", filepath.FromSlash(revision)))
		if err != nil {
			return "", err
		}
		if commit = strings.TrimSpace(string(b)); !commitHash.MatchString(commit) {
			return "", fmt.Errorf("the cache's reference %s of %s is not a commit", revision, repository)
		}
	}
	dir := filepath.Join(root, "snapshots", commit)
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return "", err
	}
	return dir, nil
}
