package keys

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

// Entry is what people may know of a key of the file.
type Entry struct {
	Name    string
	ID      string // the beginning of its hash, which tells keys of one name apart
	Admin   bool
	Expires time.Time // zero = never
}

// idBytes of a hash are in an ID.
const idBytes = 4

func (e entry) shown() Entry {
	return Entry{Name: e.name, ID: hex.EncodeToString(e.hash[:idBytes]), Admin: e.admin, Expires: e.expires}
}

// Entries lists the keys that the ring knows, as they are in the file. Without a keys file there are none.
func (r *Ring) Entries() []Entry {
	if r.path == "" {
		return nil
	}
	r.refresh()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return shown(r.entries)
}

func shown(entries []entry) []Entry {
	list := make([]Entry, len(entries))
	for i, e := range entries {
		list[i] = e.shown()
	}
	return list
}

// List reads the keys of a file.
func List(path string) ([]Entry, error) {
	entries, _, err := read(path)
	return shown(entries), err
}

// Selection names keys of a file.
type Selection struct {
	Name string
	ID   string // the beginning of one; "" = the only key of the name
	All  bool   // all keys of the name
}

// find gives the keys that are meant. Only All means several.
func (s Selection) find(entries []entry) ([]entry, error) {
	var found []entry
	var ids []string
	for _, e := range entries {
		if e.name == s.Name && strings.HasPrefix(e.shown().ID, strings.ToLower(s.ID)) {
			found, ids = append(found, e), append(ids, e.shown().ID)
		}
	}
	switch {
	case len(found) == 0 && s.ID != "":
		return nil, fmt.Errorf("%s has no key %q: `tinsmith key list` shows what there is", s.Name, s.ID)
	case len(found) == 0:
		return nil, fmt.Errorf("there is no key of %q: `tinsmith key list` shows what there is", s.Name)
	case len(found) > 1 && !s.All:
		return nil, fmt.Errorf("%s has several keys, %s: say which with --id, or --all", s.Name, strings.Join(ids, ", "))
	}
	return found, nil
}

// Remove takes keys out of a file, and gives what was removed. A server that uses the file ends what they have begun within two seconds. The last key of a file stays, for a server would not start without one.
func Remove(path string, which Selection) ([]Entry, error) {
	var gone []entry
	err := edit(path, func(entries []entry) (map[entry]string, error) {
		var err error
		if gone, err = which.find(entries); err != nil {
			return nil, err
		}
		if len(gone) == len(entries) {
			return nil, errors.New("it is the last key of the file, without which no server starts: add another one first")
		}
		lines := map[entry]string{}
		for _, e := range gone {
			lines[e] = ""
		}
		return lines, nil
	})
	return shown(gone), err
}

// Rotate makes a new key with the name, the rights and the end of another one, and gives it. The old one still works for a while, but not beyond its own end; 0 = it is removed at once.
func Rotate(path string, which Selection, keep time.Duration) (key string, old Entry, err error) {
	which.All = false
	err = edit(path, func(entries []entry) (map[entry]string, error) {
		found, err := which.find(entries)
		if err != nil {
			return nil, err
		}
		now, before := time.Now(), found[0]
		if before.over(now) {
			return nil, fmt.Errorf("the key %s of %s expired at %s: remove it and add another one", before.shown().ID, before.name, before.expires.UTC().Format(time.RFC3339))
		}
		made, line, err := newKey(before)
		if err != nil {
			return nil, err
		}
		key = made
		last := before
		if end := now.Add(keep).UTC().Truncate(time.Second); last.expires.IsZero() || end.Before(last.expires) {
			last.expires = end
		}
		old = last.shown()
		if keep > 0 {
			line = last.line() + line
		}
		return map[entry]string{before: line}, nil
	})
	if err != nil {
		return "", Entry{}, err
	}
	return key, old, nil
}

// edit replaces the lines of keys in a file, whole or not at all; every other line stays as it is.
func edit(path string, change func([]entry) (map[entry]string, error)) error {
	locked, err := lock(path, 0)
	if err != nil {
		return err
	}
	defer locked.Close()
	data, err := content(locked)
	var entries []entry
	if err == nil {
		entries, err = parse(data)
	}
	var lines map[entry]string
	if err == nil {
		lines, err = change(entries)
	}
	if err != nil {
		return fmt.Errorf("keys file %s: %w", path, err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		if one, err := parse([]byte(line)); err == nil && len(one) == 1 {
			if i := slices.IndexFunc(entries, one[0].same); i >= 0 {
				if instead, changed := lines[entries[i]]; changed {
					out.WriteString(instead)
					continue
				}
			}
		}
		out.WriteString(line)
	}
	if out.Len() > maxFileBytes {
		return fmt.Errorf("keys file %s: is full: at most %d bytes are allowed", path, maxFileBytes)
	}
	if err := durable.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("keys file: %w", err)
	}
	return nil
}

// same tells whether two entries are of equal lines.
func (e entry) same(other entry) bool {
	return e.is(other) && e.admin == other.admin && e.expires.Equal(other.expires)
}
