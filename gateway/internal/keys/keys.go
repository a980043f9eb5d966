// Package keys knows who may use the server: a file with one line "name sha256-hex" per key. Keys themselves are never stored; they are shown once, when
// they are made. Comparison takes the same time whichever key matches.
package keys

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// refresh reads the file again when it has changed. A file that cannot be read leaves the known keys in force.
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
	if stamp, err := fileStamp(r.path); err != nil || stamp == r.stamp {
		return
	}
	if entries, stamp, err := read(r.path); err == nil {
		r.entries, r.stamp = entries, stamp
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
	entries, err := parse(f)
	if err != nil {
		return nil, "", fmt.Errorf("keys file %s: %w", path, err)
	}
	return entries, stamp, nil
}

func parse(r io.Reader) ([]entry, error) {
	var entries []entry
	lines := bufio.NewScanner(io.LimitReader(r, maxFileBytes))
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
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return "", fmt.Errorf("keys file: %w", err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock keys file %s: %w", path, err)
	}
	if _, err := parse(f); err != nil {
		return "", fmt.Errorf("keys file %s: %w", path, err)
	}
	if _, err := fmt.Fprintf(f, "%s %x\n", name, hash); err != nil {
		return "", fmt.Errorf("write keys file: %w", err)
	}
	return key, f.Sync()
}

// Revoke removes one key from the file, whole or not at all.
func (r *Ring) Revoke(key string) error {
	if r.path == "" {
		return errors.New("this server has no keys file: there is no key to revoke")
	}
	hash := sha256.Sum256([]byte(key))
	r.mu.Lock()
	defer r.mu.Unlock()
	lock, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("keys file: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock keys file %s: %w", r.path, err)
	}
	data, err := io.ReadAll(io.LimitReader(lock, maxFileBytes))
	if err != nil {
		return fmt.Errorf("keys file: %w", err)
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
	temporary, err := os.CreateTemp(filepath.Dir(r.path), ".keys-*")
	if err != nil {
		return fmt.Errorf("keys file: %w", err)
	}
	defer os.Remove(temporary.Name())
	if _, err = temporary.WriteString(kept.String()); err == nil {
		err = temporary.Sync()
	}
	if closeErr := temporary.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary.Name(), r.path)
	}
	if err != nil {
		return fmt.Errorf("write keys file: %w", err)
	}
	r.entries, _ = parse(strings.NewReader(kept.String()))
	r.stamp, r.checked = "", time.Now()
	return nil
}
