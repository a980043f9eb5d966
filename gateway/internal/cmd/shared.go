package cmd

import (
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
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// What several gateways share besides records and files: small secrets, as records of their own.
const (
	inSecrets = "secrets"
	tokenKey  = "tokens" // signs tokens
	filesKey  = "files"  // what the file filesName says

	// filesName is a file in the shared folder that says whose it is: a folder that is not mounted has none.
	filesName = "tinsmith-files"

	// exitFenced is the status of a gateway that found another one in its place; whoever starts it again makes it a standby.
	exitFenced = 75 // EX_TEMPFAIL
)

// turn is this process's turn to serve: data directory and lease. The zero turn is of a gateway that shares nothing.
type turn struct {
	lock  *store.DirLock
	lease *store.Lease
}

func (t turn) end() error {
	var err error
	if t.lease != nil {
		err = t.lease.Leave()
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
	wait := cfg.Store.Lease
	if wait == 0 {
		wait = 3 * time.Second
	}
	limited, cancel := context.WithTimeout(ctx, longest*wait)
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

// bindFiles makes sure that the shared folder is the one that belongs to the records, and not an empty one that something else was to be mounted on. A new store takes a new folder; again takes whatever is there.
func bindFiles(ctx context.Context, records store.Store, dir string, again bool) error {
	path := filepath.Join(dir, filesName)
	here, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("files.dir: %w", err)
	}
	id := strings.TrimSpace(string(here))
	r, err := records.Get(ctx, inSecrets, filesKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if used, err := filesUsed(dir); err != nil {
			return err
		} else if used != "" && !again {
			return fmt.Errorf("files.dir: %s has %s, and the database knows of no files: they are another store's", dir, used)
		}
	case err != nil:
		return fmt.Errorf("read whose the shared files are: %w", err)
	case again:
	case id == "":
		return fmt.Errorf("files.dir: %s has no file %s, which is in the folder that belongs to the database: is it mounted?", dir, filesName)
	case id != string(r.Value):
		return fmt.Errorf("files.dir: %s is the folder of another store", dir)
	default:
		return nil
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	id = hex.EncodeToString(b[:])
	if err := durable.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return fmt.Errorf("files.dir: %w", err)
	}
	return records.Commit(ctx, store.Batch{Put: []store.Record{{Collection: inSecrets, Key: filesKey, Value: []byte(id)}}})
}

// filesUsed names something in a folder that a store has left, or "".
func filesUsed(dir string) (string, error) {
	for _, name := range backup.Places() {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("files.dir: %w", err)
		}
		if len(entries) > 0 {
			return name, nil
		}
	}
	return "", nil
}

// sharedSecret reads the secret that signs tokens from the records, or makes it: tokens are good at every gateway.
func sharedSecret(ctx context.Context, records store.Store) ([]byte, error) {
	r, err := records.Get(ctx, inSecrets, tokenKey)
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
	if err := records.Commit(ctx, store.Batch{Put: []store.Record{{Collection: inSecrets, Key: tokenKey, Value: b}}}); err != nil {
		return nil, fmt.Errorf("store the secret of tokens: %w", err)
	}
	return b, nil
}

// restoreShared restores the records of a backup into a database that gateways share; the files are in their folder by then.
func restoreShared(ctx context.Context, from string, cfg config.Config, options store.Options) (err error) {
	turn, err := takeTurn(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, turn.end()) }()
	options.Lease = turn.lease
	if err := store.Restore(ctx, from, options); err != nil {
		return err
	}
	records, err := store.Open(ctx, options)
	if err != nil {
		return err
	}
	return errors.Join(bindFiles(ctx, records, cfg.FilesDir(), true), records.Close())
}
