// Package keys knows who may use the server: a file with one line "name sha256-hex" per key, and behind it the word "admin" for a key of an administrator and "expires=TIME" for one that ends
// at a time. Keys themselves are never stored; they are shown once, when they are made. Comparison takes the same time whichever key matches. What a key has begun ends with it.
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
	"slices"
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
	// adminWord is in an administrator's line, and expiryWord, with an RFC 3339 time behind it, in that of a key that expires.
	adminWord  = "admin"
	expiryWord = "expires="
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// ErrUnknown says that a key is missing or not in the file.
var ErrUnknown = errors.New("unknown API key")

// ErrExpired says that a key is in the file, and its time is over. It is an ErrUnknown too.
var ErrExpired = fmt.Errorf("%w: it has expired", ErrUnknown)

// TellRefused gives what the holder of a credential is told that Begin did not take.
func TellRefused(err error) string {
	if errors.Is(err, ErrExpired) {
		return "the API key has expired: ask the operator for a new one"
	}
	return "the API key is missing or unknown"
}

// entry is one key of the file.
type entry struct {
	name    string
	hash    [sha256.Size]byte
	admin   bool
	expires time.Time // zero = never
}

// over tells whether its time is.
func (e entry) over(now time.Time) bool { return !e.expires.IsZero() && !now.Before(e.expires) }

// is tells whether two entries are one key of one holder; an administrator who is none any more keeps the key.
func (e entry) is(other entry) bool { return e.hash == other.hash && e.name == other.name }

// Ring answers whose a key is. It may be used concurrently, and follows changes of its file within a second or two, by itself while anything is held.
type Ring struct {
	path string // "" = any key or none

	mu      sync.RWMutex
	entries []entry
	checked time.Time
	stamp   string         // of the file as it was read last; "" = it is to be read again
	fault   string         // why the file could not be read last, as it was logged
	held    map[*hold]bool // what ends with its key
	changed bool           // the entries have, since what is held was compared with them
	overdue bool           // what has ended was not let go when it was looked at last
	waiting bool           // another look is due
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
	e, err := r.find(byKey(key))
	return e.name, err
}

// Admin tells whether a key is an administrator's. Without a keys file everybody is one: whoever reaches the server is its operator.
func (r *Ring) Admin(key string) bool {
	e, err := r.find(byKey(key))
	return err == nil && e.admin
}

// anyone is whom everything belongs to without a keys file.
var anyone = entry{name: Anonymous, admin: true}

// find gives the entry that a condition chooses, or ErrUnknown.
func (r *Ring) find(chosen func(entry) bool) (entry, error) {
	if r.path == "" {
		return anyone, nil
	}
	r.refresh()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.choose(chosen)
}

// choose asks about every entry, whichever is chosen. mu is held.
func (r *Ring) choose(chosen func(entry) bool) (entry, error) {
	found, err := entry{}, ErrUnknown
	now := time.Now()
	for _, e := range r.entries {
		switch {
		case !chosen(e):
		case !e.over(now):
			found, err = e, nil
		case errors.Is(err, ErrUnknown):
			err = ErrExpired
		}
	}
	return found, err
}

// byKey chooses the entry of a key.
func byKey(key string) func(entry) bool {
	if key == "" {
		return func(entry) bool { return false }
	}
	hash := sha256.Sum256([]byte(key))
	return func(e entry) bool { return subtle.ConstantTimeCompare(hash[:], e.hash[:]) == 1 }
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
	if time.Since(r.checked) >= recheck {
		r.look()
	}
	ended := r.ended()
	r.mu.Unlock()
	endAll(ended)
}

// look reads the file if it has changed. mu is held.
func (r *Ring) look() {
	r.checked = time.Now()
	if stamp, err := fileStamp(r.path); err == nil && stamp != "" && stamp == r.stamp {
		return
	}
	entries, stamp, err := read(r.path)
	if err == nil {
		r.entries, r.stamp, r.fault, r.changed = entries, stamp, "", true
		return
	}
	if fault := err.Error(); fault != r.fault {
		r.fault = fault
		slog.Warn("the changed keys file cannot be read: the keys known before stay in force", "error", err)
	}
}

// fileStamp is another one for every change of the file. It is "" for a file that was changed a moment ago: another change may leave the same times and the same length.
func fileStamp(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if age := time.Since(time.Unix(st.Ctim.Unix())); age < recheck && age > -recheck {
		return "", nil
	}
	return fmt.Sprint(st.Ino, st.Ctim.Nano(), st.Mtim.Nano(), st.Size), nil
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
		if len(words) < 2 || !validName.MatchString(words[0]) {
			return nil, fmt.Errorf("line %d: expected `name sha256-hex`, and behind it %s for an administrator's and %sTIME for one that expires", n, adminWord, expiryWord)
		}
		hash, err := hex.DecodeString(words[1])
		if err != nil || len(hash) != sha256.Size {
			return nil, fmt.Errorf("line %d: the second word must be a SHA-256 in hex", n)
		}
		e := entry{name: words[0]}
		for _, word := range words[2:] {
			text, expiry := strings.CutPrefix(word, expiryWord)
			switch {
			case word == adminWord && !e.admin:
				e.admin = true
			case expiry && e.expires.IsZero():
				if e.expires, err = time.Parse(time.RFC3339, text); err != nil {
					return nil, fmt.Errorf("line %d: %.60q is not %s and a time such as 2030-01-31T00:00:00Z", n, word, expiryWord)
				}
			default:
				return nil, fmt.Errorf("line %d: behind the SHA-256 can only be %s and %sTIME, each once, not %.40q", n, adminWord, expiryWord, word)
			}
		}
		copy(e.hash[:], hash)
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

// Add makes a key for name, appends its hash to the file (created with mode 0600), and returns the key, which is stored nowhere. A name may hold several keys.
func Add(path, name string) (string, error) { return AddWith(path, name, false, time.Time{}) }

// AddAdmin is Add of an administrator's key.
func AddAdmin(path, name string) (string, error) { return AddWith(path, name, true, time.Time{}) }

// AddWith is Add of a key that may be an administrator's and may expire; a zero time is never.
func AddWith(path, name string, admin bool, expires time.Time) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("key name %q: letters, digits and ._@- only, at most 64, beginning with a letter or digit", name)
	}
	key, line, err := newKey(entry{name: name, admin: admin, expires: expires})
	if err != nil {
		return "", err
	}
	f, err := lock(path, os.O_CREATE|os.O_APPEND)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := content(f)
	if err == nil {
		_, err = parse(data)
	}
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

// newKey makes a key, and the line of the file that says what it is.
func newKey(e entry) (key, line string, err error) {
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", "", fmt.Errorf("key: %w", err)
	}
	key = Prefix + base64.RawURLEncoding.EncodeToString(secret[:])
	e.hash = sha256.Sum256([]byte(key))
	return key, e.line(), nil
}

// line is that of a key.
func (e entry) line() string {
	text := fmt.Sprintf("%s %x", e.name, e.hash)
	if e.admin {
		text += " " + adminWord
	}
	if !e.expires.IsZero() {
		text += " " + expiryWord + e.expires.UTC().Format(time.RFC3339)
	}
	return text + "\n"
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

// Revoke removes one key from the file, whole or not at all, and ends what it holds.
func (r *Ring) Revoke(key string) error {
	ended, err := r.remove(key)
	endAll(ended)
	return err
}

func (r *Ring) remove(key string) ([]*hold, error) {
	if r.path == "" {
		return nil, errors.New("this server has no keys file: there is no key to revoke")
	}
	hash := sha256.Sum256([]byte(key))
	r.mu.Lock()
	defer r.mu.Unlock()
	locked, err := lock(r.path, 0)
	if err != nil {
		return nil, err
	}
	defer locked.Close()
	data, err := content(locked)
	if err != nil {
		return nil, fmt.Errorf("keys file %s: %w", r.path, err)
	}
	var kept strings.Builder
	removed := false
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) >= 2 && !strings.HasPrefix(words[0], "#") && subtle.ConstantTimeCompare([]byte(strings.ToLower(words[1])), []byte(hex.EncodeToString(hash[:]))) == 1 {
			removed = true
			continue
		}
		kept.WriteString(line)
	}
	if !removed {
		return nil, ErrUnknown
	}
	entries, err := parse([]byte(kept.String()))
	if err != nil {
		// It was broken by hand since it was read. The key must end all the same, and what was known of the others stays.
		entries = slices.DeleteFunc(slices.Clone(r.entries), func(e entry) bool { return e.hash == hash })
	}
	if err := durable.WriteFile(r.path, []byte(kept.String()), 0o600); err != nil {
		return nil, fmt.Errorf("keys file: %w", err)
	}
	r.entries, r.stamp, r.checked, r.changed = entries, "", time.Now(), true
	return r.ended(), nil
}
