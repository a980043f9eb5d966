package runs

import (
	"archive/tar"
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// FileTokens are the files of an exported checkpoint by name, each with a token that opens it without further credentials until Expires.
type FileTokens struct {
	Tokens  map[string]string
	Expires time.Time
}

// exported are the files of a checkpoint that leave the server: the adapter, not the state of its training.
var exported = []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.ManifestFile, plugins.CompleteFile}

// Requester is who asked for a link.
type Requester struct {
	Owner string
	Key   string // stands for the key that the request came with; kept in the link as it is, for whoever checks that the key is still there
}

// A token is what it allows and until when, and a keyed hash of that: nobody can make or change one, and a checkpoint that is deleted takes its tokens with it.
type tokenBody struct {
	Path string `json:"p"`
	Dir  string `json:"d"` // so that a later checkpoint of the same path has other tokens
	File string `json:"f"` // "" = the archive
	Ends int64  `json:"e"` // seconds since 1970
	By   string `json:"o"` // Requester.Owner
	Key  string `json:"k"` // Requester.Key
}

func (c *Core) sign(by Requester, cp *checkpoint, file string, ends time.Time) string {
	return c.signToken(forFiles, tokenBody{Path: cp.Path, Dir: cp.Dir, File: file, Ends: ends.Unix(), By: by.Owner, Key: by.Key})
}

// The purposes of tokens.
const (
	forFiles = "token"
	forTrace = "trace"
)

// signToken makes a token for one purpose; it is worth nothing for another.
func (c *Core) signToken(purpose string, what tokenBody) string {
	body := base64.RawURLEncoding.EncodeToString(mustJSON(what))
	return body + "." + base64.RawURLEncoding.EncodeToString(c.digest(purpose, body))
}

// openToken checks a token and gives what it allows.
func (c *Core) openToken(purpose, token string) (tokenBody, error) {
	refused := refusef(KindForbidden, "the link is not valid or has expired; ask for a new one")
	body, sum, _ := strings.Cut(token, ".")
	// Compared as text: a decoder would pass over line breaks and spare bits, and one token would have many forms.
	if len(token) > 4096 || !hmac.Equal([]byte(sum), []byte(base64.RawURLEncoding.EncodeToString(c.digest(purpose, body)))) {
		return tokenBody{}, refused
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return tokenBody{}, refused
	}
	var t tokenBody
	if err := json.Unmarshal(raw, &t); err != nil || c.cfg.now().Unix() >= t.Ends {
		return tokenBody{}, refused
	}
	return t, nil
}

// Requester tells who asked for the link that a token of ArchiveToken, FileTokens or TraceToken is in. KindForbidden if it is none or has expired.
func (c *Core) Requester(token string) (Requester, error) {
	t, err := c.openToken(forFiles, token)
	if err != nil {
		t, err = c.openToken(forTrace, token)
	}
	return Requester{Owner: t.By, Key: t.Key}, err
}

// verify finds the checkpoint and the file of a token.
func (c *Core) verify(token string) (cp checkpointRecord, file string, err error) {
	t, err := c.openToken(forFiles, token)
	if err != nil {
		return cp, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.checkpoints[t.Path]
	if found == nil || found.Dir != t.Dir || expired(found.ExpiresAt, c.cfg.now()) {
		return cp, "", notFoundf("checkpoint %s is deleted", t.Path)
	}
	return found.checkpointRecord, t.File, nil
}

// downloadable finds a checkpoint whose files may be given out. mu is held.
func (c *Core) downloadable(owner, path string, kinds ...CheckpointKind) (*checkpoint, error) {
	cp, err := c.readable(owner, "", path)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(kinds, cp.Kind) {
		return nil, invalidf("path %s: a checkpoint of kind %s cannot be downloaded so; %v can", cp.Path, cp.Kind, kinds)
	}
	return cp, nil
}

// ArchiveToken gives a token that lets its bearer read the archive of a sampler or external checkpoint without further credentials until it expires.
func (c *Core) ArchiveToken(ctx context.Context, by Requester, path string) (token string, expires time.Time, err error) {
	c.mu.Lock()
	cp, err := c.downloadable(by.Owner, path, KindSampler, KindExternal)
	if err != nil {
		c.mu.Unlock()
		return "", time.Time{}, err
	}
	expires = c.cfg.now().UTC().Add(c.cfg.URLLifetime).Truncate(time.Second)
	token = c.sign(by, cp, "", expires)
	entry := AuditEntry{Event: "checkpoint_downloaded", RunID: cp.RunID, Path: cp.Path}
	c.mu.Unlock()
	if err := c.commit(ctx, store.Batch{Add: []store.Record{c.auditOften(by.Owner, entry)}}); err != nil {
		return "", time.Time{}, fmt.Errorf("archive: %w", err)
	}
	return token, expires, nil
}

// OpenArchive checks a token and returns the name of the archive and a function that writes it as a tar stream: the adapter's files in its root, no folders, no links.
func (c *Core) OpenArchive(ctx context.Context, token string) (name string, write func(io.Writer) error, err error) {
	cp, file, err := c.verify(token)
	if err != nil {
		return "", nil, err
	}
	if file != "" {
		return "", nil, refusef(KindForbidden, "the link is for one file")
	}
	release, err := c.here(ctx, cp.Dir)
	if err != nil {
		return "", nil, err
	}
	defer release()
	if err := c.intact(ctx, &cp, exported...); err != nil {
		return "", nil, err
	}
	return cp.Name + ".tar", func(w io.Writer) error {
		release, err := c.here(ctx, cp.Dir)
		if err != nil {
			return fmt.Errorf("archive %s: %w", cp.Path, err)
		}
		defer release()
		out := tar.NewWriter(w)
		for _, file := range exported {
			if err := addFile(out, filepath.Join(c.file(cp.Dir), file), file); err != nil {
				return fmt.Errorf("archive %s: %w", cp.Path, err)
			}
		}
		return out.Close()
	}, nil
}

// archived is the time of every file of an archive: the same weights give the same bytes, whenever they were saved. Years before 1980 are more than some programs can read.
var archived = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// addFile writes one file; one that does not exist is left out.
func addFile(out *tar.Writer, path, name string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size(), ModTime: archived}); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, info.Size())
	return err
}

// FileTokens gives the tokens of an external checkpoint's files.
func (c *Core) FileTokens(ctx context.Context, by Requester, path string) (FileTokens, error) {
	c.mu.Lock()
	found, err := c.downloadable(by.Owner, path, KindExternal)
	if err != nil {
		c.mu.Unlock()
		return FileTokens{}, err
	}
	cp := *found
	c.mu.Unlock()
	release, err := c.here(ctx, cp.Dir)
	if err != nil {
		return FileTokens{}, err
	}
	defer release()
	out := FileTokens{Tokens: map[string]string{}, Expires: c.cfg.now().UTC().Add(c.cfg.URLLifetime).Truncate(time.Second)}
	for _, file := range exported {
		if _, err := os.Stat(filepath.Join(c.file(cp.Dir), file)); err == nil {
			out.Tokens[file] = c.sign(by, &cp, file, out.Expires)
		}
	}
	if len(out.Tokens) == 0 {
		return FileTokens{}, fmt.Errorf("checkpoint %s: has no files", cp.Path)
	}
	entry := AuditEntry{Event: "checkpoint_downloaded", RunID: cp.RunID, Path: cp.Path}
	if err := c.commit(ctx, store.Batch{Add: []store.Record{c.auditOften(by.Owner, entry)}}); err != nil {
		return FileTokens{}, fmt.Errorf("files: %w", err)
	}
	return out, nil
}

// OpenFile opens the file of a token. The caller closes it.
func (c *Core) OpenFile(ctx context.Context, token string) (name string, modified time.Time, f io.ReadSeekCloser, err error) {
	cp, file, err := c.verify(token)
	if err != nil {
		return "", time.Time{}, nil, err
	}
	if !slices.Contains(exported, file) {
		return "", time.Time{}, nil, refusef(KindForbidden, "the link is for an archive")
	}
	release, err := c.here(ctx, cp.Dir)
	if err != nil {
		return "", time.Time{}, nil, err
	}
	defer release() // a file that is open stays
	if err := c.intact(ctx, &cp, file); err != nil {
		return "", time.Time{}, nil, err
	}
	opened, err := os.Open(filepath.Join(c.file(cp.Dir), file))
	if err != nil {
		return "", time.Time{}, nil, fmt.Errorf("open a file of %s: %w", cp.Path, err)
	}
	return file, cp.CreatedAt, opened, nil
}
