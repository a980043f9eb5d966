// Package bucket keeps folders of files in an S3 bucket, from where another gateway gets them: what a record names is there before the record is (store.go), comes from there when it is needed and is not on this machine, and goes
// from there when its deletion is in the journal. The local folders of what the bucket has are a cache of bounded size. The package knows folders by their paths below the data directory, and not what is in them.
package bucket

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

const (
	manifestName = ".folder.json" // the last object of a folder that is written, and the first that is removed
	cachedName   = "cached"       // a folder of the data directory: each of its files names a folder that the bucket has
	fetchingName = "fetching"     // folders that are on their way here

	headerTimeout = time.Minute
	watchEvery    = time.Second
	tries         = 3 // of the client, for one request
)

// Options say which bucket, and where the cache is.
type Options struct {
	Endpoint             string // https://HOST[:PORT], or http
	Region               string // "" = what the server says
	Bucket, Prefix       string // the objects' names begin with the prefix
	AccessKey, SecretKey string
	CAFile               string // of certificates that sign the server's; "" = the system's
	Dir                  string // the data directory, which the caller has locked
	CacheBytes           int64  // local folders of what the bucket has take no more, but for those in use
}

// Bucket is safe for concurrent use.
type Bucket struct {
	opts   Options
	client *minio.Client
	conns  *http.Transport

	mu      sync.Mutex
	folders map[string]*folder // what the bucket is known to have
	bytes   int64              // of local folders among them
	busy    map[string]chan struct{}

	trouble atomic.Pointer[store.Trouble]
	stop    context.CancelFunc
	ended   chan struct{}
}

// folder is one that the bucket has.
type folder struct {
	local bool
	users int
	used  time.Time
	bytes int64
}

// Open finds the bucket, which must exist, and empties the cache: while this process was away others may have deleted what is in it.
func Open(ctx context.Context, opts Options) (*Bucket, error) {
	u, err := url.Parse(opts.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("files.s3.endpoint: %w", err)
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: headerTimeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	if opts.CAFile != "" {
		pem, err := os.ReadFile(opts.CAFile)
		if err != nil {
			return nil, fmt.Errorf("files.s3.ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("files.s3.ca_file: %s has no certificates", opts.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(opts.AccessKey, opts.SecretKey, ""), Secure: u.Scheme == "https", Transport: transport, Region: opts.Region, MaxRetries: tries,
	})
	if err != nil {
		return nil, fmt.Errorf("files.s3: %w", err)
	}
	b := &Bucket{opts: opts, client: client, conns: transport, folders: map[string]*folder{}, busy: map[string]chan struct{}{}, ended: make(chan struct{})}
	if err := b.empty(); err != nil {
		return nil, err
	}
	there, err := client.BucketExists(ctx, opts.Bucket)
	if err != nil {
		return nil, store.NewTrouble(store.Failing, fmt.Errorf("files.s3: %w", err))
	}
	if !there {
		return nil, fmt.Errorf("files.s3.bucket: there is no bucket %q at %s", opts.Bucket, opts.Endpoint)
	}
	watching, stop := context.WithCancel(context.Background())
	b.stop = stop
	go b.watch(watching)
	return b, nil
}

// Close lets go of the bucket.
func (b *Bucket) Close() error {
	b.stop()
	<-b.ended
	b.conns.CloseIdleConnections()
	return nil
}

// watch finds out when a bucket that failed answers again.
func (b *Bucket) watch(ctx context.Context) {
	defer close(b.ended)
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if b.trouble.Load() == nil {
			continue
		}
		if _, err := b.client.BucketExists(ctx, b.opts.Bucket); err == nil {
			b.trouble.Store(nil)
		}
	}
}

// failed notes that the bucket cannot be used at present.
func (b *Bucket) failed(err error) *store.Trouble {
	t := store.NewTrouble(store.Failing, fmt.Errorf("files.s3: %w", err))
	b.trouble.Store(t)
	return t
}

// key is the name of an object.
func (b *Bucket) key(dir, name string) string {
	return path.Join(b.opts.Prefix, filepath.ToSlash(dir), name)
}

func (b *Bucket) local(dir string) string { return filepath.Join(b.opts.Dir, dir) }

// mark is the file that says that the bucket has a folder.
func (b *Bucket) mark(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(b.opts.Dir, cachedName, hex.EncodeToString(sum[:]))
}

// empty removes the local folders that the bucket has.
func (b *Bucket) empty() error {
	for _, name := range []string{cachedName, fetchingName} {
		if err := os.MkdirAll(filepath.Join(b.opts.Dir, name), 0o700); err != nil {
			return fmt.Errorf("make a folder of the cache: %w", err)
		}
	}
	left, err := os.ReadDir(filepath.Join(b.opts.Dir, fetchingName))
	if err != nil {
		return fmt.Errorf("empty the cache: %w", err)
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(b.opts.Dir, fetchingName, e.Name())); err != nil {
			return fmt.Errorf("empty the cache: %w", err)
		}
	}
	marks, err := os.ReadDir(filepath.Join(b.opts.Dir, cachedName))
	if err != nil {
		return fmt.Errorf("empty the cache: %w", err)
	}
	for _, e := range marks {
		content, err := os.ReadFile(filepath.Join(b.opts.Dir, cachedName, e.Name()))
		if err != nil {
			return fmt.Errorf("empty the cache: %w", err)
		}
		dir := string(content)
		if filepath.Base(b.mark(dir)) == e.Name() && allowed(dir) { // else it was not written whole: the folder had not come, or was uploaded only
			if err := os.RemoveAll(b.local(dir)); err != nil {
				return fmt.Errorf("empty the cache: %w", err)
			}
		}
		if err := os.Remove(filepath.Join(b.opts.Dir, cachedName, e.Name())); err != nil {
			return fmt.Errorf("empty the cache: %w", err)
		}
	}
	return nil
}

// allowed tells whether a path is one below the data directory.
func allowed(dir string) bool {
	return dir != "." && filepath.IsLocal(dir) && filepath.Clean(dir) == dir
}

// begin makes the caller the only one that works on a folder, until end is called.
func (b *Bucket) begin(ctx context.Context, dir string) (end func(), err error) {
	for {
		b.mu.Lock()
		busy := b.busy[dir]
		if busy == nil {
			mine := make(chan struct{})
			b.busy[dir] = mine
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				delete(b.busy, dir)
				b.mu.Unlock()
				close(mine)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// keep notes that the bucket has a folder, with so many bytes here if it is local, and makes room in the cache. users is 1 for who uses it already.
func (b *Bucket) keep(dir string, local bool, bytes int64, users int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.folders[dir]
	if f == nil {
		f = &folder{}
		b.folders[dir] = f
	}
	if local && !f.local {
		f.local, f.bytes = true, bytes
		b.bytes += bytes
	}
	f.users += users
	f.used = time.Now()
	b.evict()
}

// evict removes the local folders that were not used for longest, as far as the cache is too large. mu is held.
func (b *Bucket) evict() {
	for b.bytes > b.opts.CacheBytes {
		oldest := ""
		for dir, f := range b.folders {
			if f.local && f.users == 0 && b.busy[dir] == nil && (oldest == "" || f.used.Before(b.folders[oldest].used)) {
				oldest = dir
			}
		}
		if oldest == "" {
			return
		}
		f := b.folders[oldest]
		if os.RemoveAll(b.local(oldest)) != nil { // it stays as it is: a part of it would be taken for the whole
			f.used = time.Now()
			return
		}
		f.local = false
		b.bytes -= f.bytes
		_ = os.Remove(b.mark(oldest)) // one too many removes nothing
	}
}

// release ends one use of a local folder.
func (b *Bucket) release(dir string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.folders[dir]; f != nil {
		f.users--
		f.used = time.Now()
		b.evict()
	}
}

// use is for a folder that is known to be in the bucket and here.
func (b *Bucket) use(dir string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.folders[dir]
	if f == nil || !f.local {
		return false
	}
	f.users++
	return true
}

// writeMark notes durably that the bucket has a folder.
func (b *Bucket) writeMark(dir string) error {
	return durable.WriteFile(b.mark(dir), []byte(dir), 0o600)
}

// missing tells whether an error says that there is no such object.
func missing(err error) bool {
	var e minio.ErrorResponse
	return errors.As(err, &e) && e.Code == minio.NoSuchKey || errors.Is(err, fs.ErrNotExist)
}
