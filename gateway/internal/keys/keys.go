// Package keys knows who may use the server: a file with one line "name sha256-hex" per key. Keys themselves are never stored; they are shown once, when
// they are made. Comparison takes the same time whichever key matches.
package keys

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// Anonymous is the owner of everything on a server without a keys file.
const Anonymous = "local"

// Prefix begins every key; the Tinker SDK refuses keys that begin otherwise.
const Prefix = "tml-"

const (
	maxFileBytes = 1 << 20
	// recheck is how often a changed keys file is looked for.
	recheck = time.Second
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// ErrUnknown says that a key is missing or not in the file.
var ErrUnknown = errors.New("unknown API key")

type entry struct {
	name string
	hash [sha256.Size]byte
}

// Ring answers whose a key is. It may be used concurrently, and follows changes of its file within a second or two.
type Ring struct {
	path string // "" = any key or none

	mu      sync.RWMutex
	entries []entry
	checked time.Time
	stamp   string
	fault   string // why the file could not be read last, as it was logged
}

// Open reads the keys file; an empty path makes a ring that takes any key as Anonymous. A file without keys is refused: nobody could use the server.
func Open(path string) (*Ring, error) {
	r := &Ring{path: path}
	if path == "" {
		return r, nil
	}
	entries, stamp, err := read(path)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("keys file %s holds no key: make one with `tinsmith key add NAME`", path)
	}
	r.entries, r.stamp, r.checked = entries, stamp, time.Now()
	return r, nil
}

// Required says whether a key is needed at all.
func (r *Ring) Required() bool { return r.path != "" }

// Owner gives the name of the key's holder, or ErrUnknown. Without a keys file it is Anonymous for any key and none.
func (r *Ring) Owner(key string) (string, error) {
	if r.path == "" {
		return Anonymous, nil
	}
	r.refresh()
	hash := sha256.Sum256([]byte(key))
	r.mu.RLock()
	defer r.mu.RUnlock()
	owner, found := "", 0
	for i := range r.entries {
		if subtle.ConstantTimeCompare(hash[:], r.entries[i].hash[:]) == 1 {
			owner, found = r.entries[i].name, 1
		}
	}
	if found == 0 || key == "" {
		return "", ErrUnknown
	}
	return owner, nil
}

// Exists says whether a name still holds a key; tokens issued to it end with its last key.
func (r *Ring) Exists(name string) bool {
	if r.path == "" {
		return name == Anonymous
	}
	r.refresh()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.entries {
		if r.entries[i].name == name {
			return true
		}
	}
	return false
}

// refresh reads the file again when it has changed. A file that cannot be read leaves the known keys in force, which the log says once: somebody may believe that a key is revoked.
func (r *Ring) refresh() {
	r.mu.RLock()
	fresh := time.Since(r.checked) < recheck
	r.mu.RUnlock()
	if fresh {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < recheck {
		return
	}
	r.checked = time.Now()
	if stamp, err := fileStamp(r.path); err == nil && stamp == r.stamp {
		return
	}
	entries, stamp, err := read(r.path)
	if err == nil {
		r.entries, r.stamp, r.fault = entries, stamp, ""
		return
	}
	if fault := err.Error(); fault != r.fault {
		r.fault = fault
		slog.Warn("the changed keys file cannot be read: the keys known before stay in force", "error", err)
	}
}

func fileStamp(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size()), nil
}

func read(path string) ([]entry, string, error) {
	stamp, err := fileStamp(path)
	if err != nil {
		return nil, "", fmt.Errorf("keys file: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("keys file: %w", err)
	}
	defer f.Close()
	data, err := content(f)
	var entries []entry
	if err == nil {
		entries, err = parse(data)
	}
	if err != nil {
		return nil, "", fmt.Errorf("keys file %s: %w", path, err)
	}
	return entries, stamp, nil
}

func parse(data []byte) ([]entry, error) {
	var entries []entry
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 || !validName.MatchString(words[0]) {
			return nil, fmt.Errorf("line %d: expected `name sha256-hex`", n)
		}
		hash, err := hex.DecodeString(words[1])
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("line %d: the second word must be a SHA-256 in hex", n)
		}
		e := entry{name: words[0]}
		copy(e.hash[:], hash)
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

// Add makes a key for name, appends its hash to the file (created with mode 0600), and returns the key, which is stored nowhere. A name may hold several keys.
func Add(path, name string) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("key name %q: letters, digits and ._@- only, at most 64, beginning with a letter or digit", name)
	}
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", fmt.Errorf("key: %w", err)
	}
	key := Prefix + base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(key))
	f, err := lock(path, os.O_CREATE|os.O_APPEND)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := content(f)
	if err == nil {
		_, err = parse(data)
	}
	line := fmt.Sprintf("%s %x\n", name, hash)
	if n := len(data); n > 0 && data[n-1] != '\n' { // somebody has edited it
		line = "\n" + line
	}
	if err == nil && len(data)+len(line) > maxFileBytes {
		err = fmt.Errorf("is full: at most %d bytes are allowed", maxFileBytes)
	}
	if err != nil {
		return "", fmt.Errorf("keys file %s: %w", path, err)
	}
	if _, err := f.WriteString(line); err != nil {
		return "", fmt.Errorf("write keys file: %w", err)
	}
	return key, f.Sync()
}

// lock opens the keys file for reading and writing while no other process changes it.
func lock(path string, flags int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
		if err != nil {
			return nil, fmt.Errorf("keys file: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock keys file %s: %w", path, err)
		}
		locked, err := f.Stat()
		current, nowErr := os.Stat(path)
		if err == nil && nowErr == nil && os.SameFile(locked, current) {
			return f, nil
		}
		f.Close() // it was replaced while we waited: what is written there would be lost
		if err = errors.Join(err, nowErr); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("keys file: %w", err)
		}
	}
}

// content reads a keys file. One that is too large is refused: taking a part of it would lock out, and a rewriting forget, whoever is in the rest.
func content(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("has more than %d bytes", maxFileBytes)
	}
	return data, err
}

// Revoke removes one key from the file, whole or not at all.
func (r *Ring) Revoke(key string) error {
	if r.path == "" {
		return errors.New("this server has no keys file: there is no key to revoke")
	}
	hash := sha256.Sum256([]byte(key))
	r.mu.Lock()
	defer r.mu.Unlock()
	locked, err := lock(r.path, 0)
	if err != nil {
		return err
	}
	defer locked.Close()
	data, err := content(locked)
	if err != nil {
		return fmt.Errorf("keys file %s: %w", r.path, err)
	}
	var kept strings.Builder
	removed := false
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); len(words) == 2 && subtle.ConstantTimeCompare([]byte(strings.ToLower(words[1])), []byte(hex.EncodeToString(hash[:]))) == 1 {
			removed = true
			continue
		}
		kept.WriteString(line)
	}
	if !removed {
		return ErrUnknown
	}
	if err := durable.WriteFile(r.path, []byte(kept.String()), 0o600); err != nil {
		return fmt.Errorf("keys file: %w", err)
	}
	r.entries, _ = parse([]byte(kept.String()))
	r.stamp, r.checked = "", time.Now()
	return nil
}
