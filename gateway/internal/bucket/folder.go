package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

const (
	maxManifest = 1 << 20
	maxFiles    = 10_000
	retryFetch  = time.Second
)

// manifest is the object that makes a folder of the bucket whole.
type manifest struct {
	Files []file `json:"files"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Put brings a folder to the bucket, unless that has it. When it returns nil the folder is there as a whole; its files are not changed meanwhile. A folder that is neither here nor there is none of Put's business.
func (b *Bucket) Put(ctx context.Context, dir string) error {
	if !allowed(dir) {
		return fmt.Errorf("%q is no folder that can be kept", dir)
	}
	end, err := b.begin(ctx, dir)
	if err != nil {
		return err
	}
	defer end()
	b.mu.Lock()
	_, known := b.folders[dir]
	b.mu.Unlock()
	if known {
		return nil
	}
	m, err := describe(ctx, b.local(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := b.manifest(ctx, dir); err == nil {
			b.keep(dir, false, 0, 0)
		} else if !missing(err) {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	size := int64(0)
	for _, f := range m.Files {
		if err := b.upload(ctx, dir, f); err != nil {
			return err
		}
		size += f.Bytes
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.client.PutObject(ctx, b.opts.Bucket, b.key(dir, manifestName), bytes.NewReader(text), int64(len(text)), minio.PutObjectOptions{SendContentMd5: true, ContentType: "application/json"}); err != nil {
		return fmt.Errorf("upload %s: %w", dir, err)
	}
	if err := b.writeMark(dir); err != nil {
		return err
	}
	b.keep(dir, true, size, 0)
	return nil
}

// describe makes the manifest of a local folder.
func describe(ctx context.Context, dir string) (manifest, error) {
	var m manifest
	entries, err := os.ReadDir(dir)
	if err != nil {
		return m, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return m, fmt.Errorf("%s is no file: the folder cannot be kept", filepath.Join(dir, e.Name()))
		}
		if e.Name() == manifestName {
			return m, fmt.Errorf("%s has the name of what is written about a folder", filepath.Join(dir, e.Name()))
		}
		n, sum, err := durable.Checksum(ctx, filepath.Join(dir, e.Name()), io.Discard)
		if err != nil {
			return m, err
		}
		m.Files = append(m.Files, file{e.Name(), n, sum})
	}
	return m, nil
}

func (b *Bucket) upload(ctx context.Context, dir string, f file) error {
	in, err := os.Open(filepath.Join(b.local(dir), f.Name))
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := b.client.PutObject(ctx, b.opts.Bucket, b.key(dir, f.Name), in, f.Bytes, minio.PutObjectOptions{SendContentMd5: true, ContentType: "application/octet-stream"})
	if err != nil {
		return fmt.Errorf("upload %s: %w", filepath.Join(dir, f.Name), err)
	}
	if info.Size != f.Bytes {
		return fmt.Errorf("upload %s: %d of %d bytes came there", filepath.Join(dir, f.Name), info.Size, f.Bytes)
	}
	return nil
}

// manifest reads that of a folder; an error that is missing means that the bucket has no such folder.
func (b *Bucket) manifest(ctx context.Context, dir string) (m manifest, err error) {
	text, err := b.read(ctx, b.key(dir, manifestName), maxManifest)
	if err != nil {
		return m, fmt.Errorf("read what %s has: %w", dir, err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: what %s has: %w", errDamaged, dir, err)
	}
	if len(m.Files) > maxFiles {
		return m, fmt.Errorf("%w: what %s has: %d files", errDamaged, dir, len(m.Files))
	}
	for _, f := range m.Files {
		if f.Name == "" || f.Name != filepath.Base(f.Name) || !filepath.IsLocal(f.Name) || f.Bytes < 0 {
			return m, fmt.Errorf("%w: what %s has: %q is no name of a file there", errDamaged, dir, f.Name)
		}
	}
	return m, nil
}

// read gives a small object.
func (b *Bucket) read(ctx context.Context, key string, limit int64) ([]byte, error) {
	o, err := b.client.GetObject(ctx, b.opts.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer o.Close()
	text, err := io.ReadAll(io.LimitReader(o, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", key, limit)
	}
	return text, err
}

// Fetch has a folder here until release is called. While the bucket cannot be reached it waits. An error that is fs.ErrNotExist says that the folder is neither here nor in the bucket.
func (b *Bucket) Fetch(ctx context.Context, dir string) (release func(), err error) {
	if !allowed(dir) {
		return nil, fmt.Errorf("%q is no folder that can be kept", dir)
	}
	for damaged := 0; ; {
		if b.use(dir) {
			return func() { b.release(dir) }, nil
		}
		got, err := b.fetch(ctx, dir)
		switch {
		case err == nil && got:
			return func() { b.release(dir) }, nil
		case err == nil: // it is here alone: nothing removes it but its deletion
			return func() {}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case missing(err):
			return nil, fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
		case errors.Is(err, errDamaged):
			if damaged++; damaged == tries {
				return nil, err
			}
			continue
		default:
			_ = b.failed(err) // it is kept for Err
		}
		select {
		case <-time.After(retryFetch):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// errDamaged: what came is not what was sent.
var errDamaged = errors.New("a file of the bucket is damaged")

// fetch is one try. got tells whether the bucket has the folder, which is in use then.
func (b *Bucket) fetch(ctx context.Context, dir string) (got bool, err error) {
	end, err := b.begin(ctx, dir)
	if err != nil {
		return false, err
	}
	defer end()
	if b.use(dir) {
		return true, nil
	}
	if _, err := os.Lstat(b.local(dir)); err == nil {
		return false, nil
	}
	m, err := b.manifest(ctx, dir)
	if err != nil {
		return false, err
	}
	into, err := os.MkdirTemp(filepath.Join(b.opts.Dir, fetchingName), "folder-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(into) // it has its name by then, or is worth nothing
	size := int64(0)
	for _, f := range m.Files {
		if err := b.download(ctx, dir, into, f); err != nil {
			return false, err
		}
		size += f.Bytes
	}
	if err := os.MkdirAll(filepath.Dir(b.local(dir)), 0o700); err != nil {
		return false, err
	}
	if err := b.writeMark(dir); err != nil { // before the folder is there: after a power cut its files may not be whole
		return false, err
	}
	if err := os.Rename(into, b.local(dir)); err != nil {
		return false, err
	}
	b.keep(dir, true, size, 1)
	return true, nil
}

func (b *Bucket) download(ctx context.Context, dir, into string, f file) error {
	to := filepath.Join(into, f.Name)
	o, err := b.client.GetObject(ctx, b.opts.Bucket, b.key(dir, f.Name), minio.GetObjectOptions{})
	if err != nil {
		return fmt.Errorf("download %s: %w", filepath.Join(dir, f.Name), err)
	}
	defer o.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(o, f.Bytes+1))
	if err = errors.Join(err, out.Close()); err != nil {
		if missing(err) { // the manifest is there
			err = fmt.Errorf("%w: it is missing", errDamaged)
		}
		return fmt.Errorf("download %s: %w", filepath.Join(dir, f.Name), err)
	}
	n, sum, err := durable.Checksum(ctx, to, io.Discard)
	if err != nil {
		return err
	}
	if n != f.Bytes || sum != f.SHA256 {
		return fmt.Errorf("%w: %s has %d bytes and the checksum %.12s, and had %d and %.12s", errDamaged, filepath.Join(dir, f.Name), n, sum, f.Bytes, f.SHA256)
	}
	return nil
}

// Remove takes a folder out of the bucket, whose deletion is in the journal; the local one is the caller's to remove, afterwards. What is not there is as removed.
func (b *Bucket) Remove(ctx context.Context, dir string) error {
	if !allowed(dir) {
		return fmt.Errorf("%q is no folder that can be removed", dir)
	}
	end, err := b.begin(ctx, dir)
	if err != nil {
		return err
	}
	defer end()
	names := []string{b.key(dir, manifestName)} // first: without it nothing else counts
	for o := range b.client.ListObjects(ctx, b.opts.Bucket, minio.ListObjectsOptions{Prefix: b.key(dir, "") + "/", Recursive: true}) {
		if o.Err != nil {
			return b.failed(o.Err)
		}
		if o.Key != names[0] {
			names = append(names, o.Key)
		}
	}
	for _, name := range names {
		if err := b.client.RemoveObject(ctx, b.opts.Bucket, name, minio.RemoveObjectOptions{}); err != nil && !missing(err) {
			return b.failed(err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.folders[dir]; f != nil {
		if f.local {
			b.bytes -= f.bytes
		}
		delete(b.folders, dir)
	}
	if err := os.Remove(b.mark(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List gives the folders that the bucket has.
func (b *Bucket) List(ctx context.Context) (dirs []string, err error) {
	prefix := ""
	if b.opts.Prefix != "" {
		prefix = path.Clean(b.opts.Prefix) + "/"
	}
	for o := range b.client.ListObjects(ctx, b.opts.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, fmt.Errorf("list the bucket: %w", o.Err)
		}
		if dir, whole := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), "/"+manifestName); whole && allowed(filepath.FromSlash(dir)) {
			dirs = append(dirs, filepath.FromSlash(dir))
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// Owner reads what WriteOwner has written; "" if nothing was.
func (b *Bucket) Owner(ctx context.Context, name string) (string, error) {
	text, err := b.read(ctx, b.key("", name), 1<<10)
	if missing(err) {
		return "", nil
	}
	return string(text), err
}

// WriteOwner writes whose the bucket's folders are.
func (b *Bucket) WriteOwner(ctx context.Context, name, text string) error {
	_, err := b.client.PutObject(ctx, b.opts.Bucket, b.key("", name), strings.NewReader(text), int64(len(text)), minio.PutObjectOptions{SendContentMd5: true, ContentType: "text/plain"})
	return err
}
