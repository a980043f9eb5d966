package cmd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/backup"
	"github.com/tinsmith/tinsmith/gateway/internal/bucket"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// What several gateways share besides records and files: small secrets, as records of their own.
const (
	inShared = "shared_by_gateways"
	tokenKey = "tokens" // signs tokens
	filesKey = "files"  // what the file filesName says

	// filesName is a file in the shared folder that says whose it is: a folder that is not mounted has none.
	filesName = "tinsmith-files"

	// exitFenced is the status of a gateway that found another one in its place; whoever starts it again makes it a standby.
	exitFenced = 75 // EX_TEMPFAIL
)

// turn is this process's turn to serve: data directory, bucket and lease. The zero turn is of a gateway that shares nothing.
type turn struct {
	lock   *store.DirLock
	bucket *bucket.Bucket // of the files, or nil
	lease  *store.Lease
}

func (t turn) end() error {
	var err error
	if t.lease != nil {
		err = t.lease.Leave()
	}
	if t.bucket != nil {
		err = errors.Join(err, t.bucket.Close())
	}
	return errors.Join(err, t.lock.Close())
}

// holdDataDir waits for the data directory of a gateway that shares everything else, and leaves its address there.
func holdDataDir(ctx context.Context, cfg config.Config, h *health, address net.Addr) (*store.DirLock, error) {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	for told := false; ; told = true {
		lock, err := store.LockDir(cfg.DataDir)
		if err == nil {
			h.setStore(nil, nil)
			closeToOthers(ctx, cfg.DataDir)
			if err := server.WriteAddress(cfg.TLS.Scheme(), address, cfg.DataDir); err != nil {
				return nil, errors.Join(err, lock.Close())
			}
			return lock, nil
		}
		trouble := store.TroubleOf(err)
		if trouble == nil {
			return nil, err
		}
		if h.setStore(nil, trouble); !told {
			slog.WarnContext(ctx, "waiting for the data directory", "state", trouble.State, "error", err)
			fmt.Fprintln(os.Stderr, besideAnother(cfg.DataDir))
		}
		select {
		case <-time.After(retryStore):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// awaitTurn waits until no other gateway serves.
func awaitTurn(ctx context.Context, cfg config.Config, h *health) (*store.Lease, error) {
	url, err := postgresURL(cfg)
	if err != nil {
		return nil, err
	}
	options := store.LeaseOptions{PostgresURL: url, Name: gatewayName(), Time: cfg.Store.Lease, Lost: fenced}
	lease, err := store.AwaitLease(ctx, options, func(w store.Waiting) {
		if h.setStandby(w); w.Err != nil {
			slog.WarnContext(ctx, "waiting for the database", "error", w.Err)
		} else if w.Holder != "" {
			slog.InfoContext(ctx, "this gateway is a standby", "serving", w.Holder)
		}
	})
	if err == nil {
		h.setStandby(store.Waiting{})
		slog.InfoContext(ctx, "this gateway serves now: it has the lease of the database")
	}
	return lease, err
}

// fenced ends the process: another gateway has taken over. What this one would do next could be wrong by now, and its clients find the other one.
func fenced(err error) {
	slog.Error("this gateway ends: it is to be started again as a standby", "error", err)
	os.Exit(exitFenced)
}

// gatewayName tells people which gateway it is.
func gatewayName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "unnamed"
	}
	return fmt.Sprintf("%s (process %d)", name, os.Getpid())
}

// takeTurn is awaitTurn for a command that does not wait for a server.
func takeTurn(ctx context.Context, cfg config.Config) (turn, error) {
	url, err := postgresURL(cfg)
	if err != nil {
		return turn{}, err
	}
	const longest = 4 // times that a lease lasts: the last holder may have been killed a moment ago
	limited, cancel := context.WithTimeout(ctx, longest*cmp.Or(cfg.Store.Lease, store.DefaultLease))
	defer cancel()
	var last store.Waiting
	lease, err := store.AwaitLease(limited, store.LeaseOptions{PostgresURL: url, Name: gatewayName(), Time: cfg.Store.Lease, Lost: fenced}, func(w store.Waiting) { last = w })
	switch {
	case err == nil:
		return turn{lease: lease}, nil
	case ctx.Err() != nil || limited.Err() == nil:
		return turn{}, err
	case last.Err != nil:
		return turn{}, last.Err
	}
	return turn{}, fmt.Errorf("%w: the database, by %s", store.ErrLocked, last.Holder)
}

// leased is a store that leaves its lease when it is closed.
type leased struct {
	store.Store
	turn turn
}

func (l leased) Close() error { return errors.Join(l.Store.Close(), l.turn.end()) }

// sharedFiles is where the files are that gateways share.
type sharedFiles interface {
	owner(ctx context.Context) (string, error) // what setOwner has written there; "" if nothing was
	setOwner(ctx context.Context, id string) error
	used(ctx context.Context) (string, error) // something that a store has left there, or ""
	String() string
}

// bindFiles makes sure that the shared files are those that belong to the records, and not, say, an empty folder that something else was to be mounted on. A new store takes a new place; again takes whatever is there.
func bindFiles(ctx context.Context, records store.Store, files sharedFiles, again bool) error {
	id, err := files.owner(ctx)
	if err != nil {
		return fmt.Errorf("files: %w", err)
	}
	r, err := records.Get(ctx, inShared, filesKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if used, err := files.used(ctx); err != nil {
			return fmt.Errorf("files: %w", err)
		} else if used != "" && !again {
			return fmt.Errorf("files: %s has %s, and the database knows of no files: they are another store's", files, used)
		}
	case err != nil:
		return fmt.Errorf("read whose the shared files are: %w", err)
	case again:
	case id == "":
		return fmt.Errorf("files: %s has no file %s, which is in the place that belongs to the database: is it mounted?", files, filesName)
	case id != string(r.Value):
		return fmt.Errorf("files: %s is the place of another store", files)
	default:
		return nil
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	id = hex.EncodeToString(b[:])
	if err := files.setOwner(ctx, id); err != nil {
		return fmt.Errorf("files: %w", err)
	}
	return records.Commit(ctx, store.Batch{Put: []store.Record{{Collection: inShared, Key: filesKey, Value: []byte(id)}}})
}

// folder is a shared folder.
type folder string

func (f folder) String() string { return string(f) }

func (f folder) owner(context.Context) (string, error) {
	b, err := os.ReadFile(filepath.Join(string(f), filesName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return strings.TrimSpace(string(b)), err
}

func (f folder) setOwner(_ context.Context, id string) error {
	return durable.WriteFile(filepath.Join(string(f), filesName), []byte(id+"\n"), 0o600)
}

func (f folder) used(context.Context) (string, error) {
	for _, name := range backup.Places() {
		entries, err := os.ReadDir(filepath.Join(string(f), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if len(entries) > 0 {
			return name, nil
		}
	}
	return "", nil
}

// inBucket is a bucket.
type inBucket struct {
	*bucket.Bucket
	name string
}

func (b inBucket) String() string { return b.name }

func (b inBucket) owner(ctx context.Context) (string, error) { return b.Owner(ctx, filesName) }

func (b inBucket) setOwner(ctx context.Context, id string) error {
	return b.WriteOwner(ctx, filesName, id)
}

func (b inBucket) used(ctx context.Context) (string, error) {
	dirs, err := b.List(ctx)
	if err != nil || len(dirs) == 0 {
		return "", err
	}
	return dirs[0], nil
}

// openBucket opens the bucket of a configuration; nil if it has none. What may pass is waited for where h is not nil.
func openBucket(ctx context.Context, cfg config.Config, h *health) (*bucket.Bucket, error) {
	s := cfg.Files.S3
	if s == nil {
		return nil, nil
	}
	access, secret, err := bucketKeys(s.KeyFile)
	if err != nil {
		return nil, err
	}
	const defaultCache = 10 << 10 // MiB
	options := bucket.Options{
		Endpoint: s.Endpoint, Region: s.Region, Bucket: s.Bucket, Prefix: s.Prefix, AccessKey: access, SecretKey: secret, CAFile: s.CAFile, Dir: cfg.DataDir, CacheBytes: int64(cmp.Or(s.CacheMiB, defaultCache)) << 20,
	}
	for {
		b, err := bucket.Open(ctx, options)
		trouble := store.TroubleOf(err)
		if err == nil && h != nil {
			h.setStore(nil, nil)
		}
		if err == nil || trouble == nil || h == nil || ctx.Err() != nil {
			return b, err
		}
		slog.WarnContext(ctx, "waiting for the bucket", "error", err)
		h.setStore(nil, trouble)
		select {
		case <-time.After(retryStore):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// bucketKeys reads the file of an access key and its secret.
func bucketKeys(file string) (access, secret string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("files.s3.key_file: %w", err)
	}
	lines := strings.Fields(string(b))
	if len(lines) != 2 {
		return "", "", fmt.Errorf("files.s3.key_file: %s has %d words; the access key is to be in the first line and the secret key in the second", file, len(lines))
	}
	return lines[0], lines[1], nil
}

// filesOf is where the files of a configuration are.
func filesOf(cfg config.Config, b *bucket.Bucket) sharedFiles {
	if b == nil {
		return folder(cfg.FilesDir())
	}
	return inBucket{b, cfg.Files.S3.Endpoint + "/" + cfg.Files.S3.Bucket + "/" + cfg.Files.S3.Prefix}
}

// sharedSecret reads the secret that signs tokens from the records, or makes it: tokens are good at every gateway.
func sharedSecret(ctx context.Context, records store.Store) ([]byte, error) {
	r, err := records.Get(ctx, inShared, tokenKey)
	if err == nil && len(r.Value) == secretBytes {
		return r.Value, nil
	}
	if err == nil {
		slog.WarnContext(ctx, "the secret of tokens is damaged: a new one is made, and the tokens of before end", "bytes", len(r.Value))
	} else if !errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("read the secret of tokens: %w", err)
	}
	b := make([]byte, secretBytes)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	if err := records.Commit(ctx, store.Batch{Put: []store.Record{{Collection: inShared, Key: tokenKey, Value: b}}}); err != nil {
		return nil, fmt.Errorf("store the secret of tokens: %w", err)
	}
	return b, nil
}

// restoreShared restores the records of a backup into a database that gateways share; the files are in their folder by then, and go to the bucket if there is one.
func restoreShared(ctx context.Context, from string, cfg config.Config, options store.Options) (err error) {
	turn, err := takeTurn(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, turn.end()) }()
	b, err := openBucket(ctx, cfg, nil)
	if err != nil {
		return err
	}
	if b != nil {
		defer func() { err = errors.Join(err, b.Close()) }()
		if err := uploadRestored(ctx, filesOf(cfg, b), cfg.DataDir, b); err != nil {
			return err
		}
	}
	options.Lease = turn.lease
	if err := store.Restore(ctx, from, options); err != nil {
		return err
	}
	records, err := store.Open(ctx, options)
	if err != nil {
		return err
	}
	return errors.Join(bindFiles(ctx, records, filesOf(cfg, b), true), records.Close())
}

// uploadRestored brings the folders of a backup to an empty bucket, or one in which that was cut off.
func uploadRestored(ctx context.Context, files sharedFiles, dataDir string, b *bucket.Bucket) error {
	const begun = "a backup is being restored here"
	owner, err := files.owner(ctx)
	if err != nil {
		return fmt.Errorf("files: %w", err)
	}
	if owner != begun {
		if used, err := files.used(ctx); err != nil {
			return fmt.Errorf("files: %w", err)
		} else if owner != "" || used != "" {
			return fmt.Errorf("files: %s is in use (%s): a backup is restored into an empty bucket, or under another prefix", files, used)
		}
		if err := files.setOwner(ctx, begun); err != nil {
			return fmt.Errorf("files: %w", err)
		}
	}
	dirs, err := backup.Folders(dataDir)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := b.Put(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}
