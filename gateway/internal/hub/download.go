package hub

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // git's object ids are SHA-1
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// file is one entry of a repository's list.
type file struct {
	Name   string `json:"rfilename"`
	Size   int64  `json:"size"`
	BlobID string `json:"blobId"` // git object id, for files that are not large
	LFS    *struct {
		SHA256 string `json:"sha256"`
		Size   int64  `json:"size"`
	} `json:"lfs"`
}

// parts says which of a repository's files are brought.
type parts int

const (
	// model is a model directory that we read. Beside a model that is served no configuration of an adapter may lie: transformers would load that adapter.
	model parts = iota
	// withoutWeights is what a gateway reads of a model whose weights are on other machines.
	withoutWeights
	// withAdapters is a model directory or an adapter's.
	withAdapters
)

// wanted says whether a file belongs to what is brought.
func (f *file) wanted(p parts) bool {
	base := path.Base(f.Name)
	if base != f.Name { // other formats and originals live in folders
		return false
	}
	switch base {
	case "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "LICENSE", "README.md":
		return true
	case "model.safetensors.index.json":
		return p != withoutWeights
	case "adapter_config.json", "checkpoint.json", "checkpoint_complete":
		return p == withAdapters
	}
	return p != withoutWeights && strings.HasSuffix(base, ".safetensors")
}

// Snapshot is a revision of a repository in the cache.
type Snapshot struct {
	Dir     string
	Commit  string
	Adapter bool // it is an adapter of PEFT's, and no model
}

// Pull brings a revision of a repository into the cache. Where the hub cannot be asked it fails, whatever the cache has.
func Pull(ctx context.Context, r Reference, progress Progress) (Snapshot, error) {
	dir, err := download(ctx, r.Repository, cmp.Or(r.Revision, branch), withAdapters, progress)
	if err != nil {
		return Snapshot{}, err
	}
	_, err = os.Stat(filepath.Join(dir, "adapter_config.json"))
	return Snapshot{Dir: dir, Commit: filepath.Base(dir), Adapter: err == nil}, nil
}

// download brings parts of a repository's revision into the cache, and gives its snapshot. What is there is kept, a part of a file is continued, every file is checked against the
// hub's checksum. Nothing appears under its final name before it is whole.
func download(ctx context.Context, repository, revision string, p parts, progress Progress) (string, error) {
	if p != withAdapters && commitHash.MatchString(revision) {
		// A commit never changes: a complete snapshot of it needs no hub.
		if dir, err := cached(repository, revision); err == nil && complete(dir, p) {
			return dir, nil
		}
	}
	endpoint, err := endpointOf()
	if err != nil {
		return "", err
	}
	commit, files, err := list(ctx, endpoint, repository, revision, p)
	if err != nil {
		// Without the hub a snapshot that is complete still serves.
		if dir, cacheErr := cached(repository, revision); cacheErr == nil && p != withAdapters && complete(dir, p) && ctx.Err() == nil {
			return dir, nil
		}
		return "", fmt.Errorf("download %s@%s: %w", repository, revision, err)
	}
	root := repositoryDir(repository)
	snapshot := filepath.Join(root, "snapshots", commit)
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		return "", err
	}
	var total, done int64
	missing := int64(0)
	for _, f := range files {
		if total += f.Size; total < 0 {
			return "", fmt.Errorf("download %s: the hub gives sizes that nothing has", repository)
		}
		if info, err := os.Stat(filepath.Join(root, "blobs", f.digest())); err != nil || info.Size() != f.Size {
			missing += f.Size - sizeOf(filepath.Join(root, "blobs", f.digest()+".incomplete"))
		}
	}
	if err := room(root, missing); err != nil {
		return "", fmt.Errorf("download %s: %w", repository, err)
	}
	for _, f := range files {
		before := done
		report := func(n int64) {
			if progress != nil {
				progress(before+n, total)
			}
		}
		source := fmt.Sprintf("%s/%s/resolve/%s/%s", endpoint, repository, commit, url.PathEscape(f.Name))
		if err := fetch(ctx, source, filepath.Join(root, "blobs"), snapshot, f, report); err != nil {
			return "", fmt.Errorf("download %s of %s: %w", f.Name, repository, err)
		}
		done += f.Size
		report(f.Size)
	}
	if err := errors.Join(durable.SyncFolder(filepath.Join(root, "blobs")), durable.WriteFile(filepath.Join(snapshot, markOf(p)), nil, 0o644)); err != nil {
		return "", err // the mark says that every file is there, so it comes to the disk after them
	}
	if !commitHash.MatchString(revision) {
		ref := filepath.Join(root, "refs", filepath.FromSlash(revision))
		if err := os.MkdirAll(filepath.Dir(ref), 0o755); err != nil {
			return "", err
		}
		if err := durable.WriteFile(ref, []byte(commit), 0o644); err != nil {
			return "", err
		}
	}
	return snapshot, nil
}

// sizeOf is the size of a file, 0 without one.
func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// room refuses what a disk cannot hold before hours are spent on it.
func room(dir string, bytes int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err == nil { // else it will show
		if free := int64(disk.Bavail) * disk.Bsize; bytes > free { //nolint:unconvert // its type differs between platforms
			return fmt.Errorf("%d bytes are to come, and the disk of %s has room for %d", bytes, dir, free)
		}
	}
	return nil
}

// A snapshot that we have downloaded has a mark that says so; other tools ignore it.
const (
	completeName       = ".tinsmith-complete"
	withoutWeightsName = ".tinsmith-without-weights"
)

func markOf(p parts) string {
	if p == withoutWeights {
		return withoutWeightsName
	}
	return completeName
}

// complete tells whether all parts of a snapshot are there.
func complete(dir string, p parts) bool {
	_, err := os.Stat(filepath.Join(dir, completeName))
	if err != nil && p == withoutWeights {
		_, err = os.Stat(filepath.Join(dir, withoutWeightsName))
	}
	return err == nil
}

// list asks the hub for the commit of a revision and its files that we read.
func list(ctx context.Context, endpoint, repository, revision string, p parts) (string, []file, error) {
	state, err := askRevision(ctx, endpoint, repository, revision)
	if err != nil {
		return "", nil, err
	}
	if state.Commit == "" {
		return "", nil, fmt.Errorf("the hub names no commit for revision %s", revision)
	}
	var files []file
	weights := false
	for _, f := range state.Files {
		if !f.wanted(p) {
			continue
		}
		if !fileName.MatchString(f.Name) {
			return "", nil, fmt.Errorf("the hub has a file of the name %.200q, which is not taken", f.Name)
		}
		if f.Size < 0 || f.digest() == "" {
			return "", nil, fmt.Errorf("the hub gives no checksum or size for %.100q", f.Name)
		}
		weights = weights || strings.HasSuffix(f.Name, ".safetensors")
		files = append(files, f)
	}
	if !weights && p != withoutWeights {
		return "", nil, errors.New("the repository has no safetensors files")
	}
	return state.Commit, files, nil
}

// digest is the expected checksum: SHA-256 for large files, git's object id for the others; "" if it is neither.
func (f *file) digest() string {
	d := f.BlobID
	n := sha1.Size
	if f.LFS != nil {
		d, n = f.LFS.SHA256, sha256.Size
	}
	if b, err := hex.DecodeString(d); err != nil || len(b) != n {
		return ""
	}
	return strings.ToLower(d)
}

func (f *file) newHash() hash.Hash {
	if f.LFS != nil {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // git's object ids are SHA-1
	_, _ = h.Write([]byte("blob " + strconv.FormatInt(f.Size, 10) + "\x00"))
	return h
}

// fetch makes sure that the blob is there and whole, and links it into the snapshot.
func fetch(ctx context.Context, source, blobs, snapshot string, f file, report func(int64)) error {
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	blob := filepath.Join(blobs, f.digest())
	if info, err := os.Stat(blob); err != nil || info.Size() != f.Size {
		if err := repeated(ctx, func() (bool, error) { return fetchOnce(ctx, source, blob, f, report) }); err != nil {
			return err
		}
	}
	link := filepath.Join(snapshot, f.Name)
	if _, err := os.Lstat(link); err == nil {
		return nil
	}
	return os.Symlink(filepath.Join("..", "..", "blobs", f.digest()), link)
}

// fetchOnce continues the partial file, checks it and gives it its name. again tells whether another attempt may help.
func fetchOnce(ctx context.Context, source, blob string, f file, report func(int64)) (again bool, err error) {
	partial := blob + ".incomplete"
	out, err := os.OpenFile(partial, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false, err
	}
	defer out.Close()
	sum := f.newHash()
	have, err := io.Copy(sum, io.LimitReader(out, f.Size))
	if err != nil {
		return false, err
	}
	if have < f.Size {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		res, err := get(ctx, source, have)
		if err != nil {
			return passing(err), err
		}
		defer res.Body.Close()
		if res.StatusCode == http.StatusOK && have > 0 { // the server does not continue: from the beginning
			have, sum = 0, f.newHash()
		}
		if _, err := out.Seek(have, io.SeekStart); err != nil {
			return false, err
		}
		watchdog := time.AfterFunc(stalledAfter, func() { cancel(fmt.Errorf("no data for %s", stalledAfter)) })
		defer watchdog.Stop()
		counted := &countingWriter{n: have, report: func(n int64) { watchdog.Reset(stalledAfter); report(n) }}
		n, err := io.Copy(io.MultiWriter(out, sum, counted), io.LimitReader(res.Body, f.Size-have+1))
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return true, err
		}
		if have += n; have < f.Size {
			return true, fmt.Errorf("the connection ended at %d of %d bytes", have, f.Size)
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); have != f.Size || got != f.digest() {
		// Whatever is wrong with it, continuing it would not mend it.
		return true, errors.Join(fmt.Errorf("%d bytes with checksum %s, expected %d with %s", have, got, f.Size, f.digest()), os.Remove(partial))
	}
	if err := out.Truncate(f.Size); err != nil {
		return false, err
	}
	if err := out.Sync(); err != nil {
		return false, err
	}
	return false, os.Rename(partial, blob)
}

type countingWriter struct {
	n      int64
	report func(int64)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	w.report(w.n)
	return len(p), nil
}
