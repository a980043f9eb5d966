package keys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAddThenOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ann, err := Add(path, "ann")
	if err != nil {
		t.Fatal(err)
	}
	bob, err := Add(path, "bob")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(ann, Prefix) || ann == bob {
		t.Fatalf("keys %q and %q", ann, bob)
	}
	if data, _ := os.ReadFile(path); strings.Contains(string(data), ann) {
		t.Error("the file holds the key itself")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, key, owner string }{
		{"ann", ann, "ann"}, {"bob", bob, "bob"}, {"none", "", ""}, {"wrong", Prefix + "x", ""}, {"prefix of a key", ann[:len(ann)-1], ""}, {"key with space", ann + " ", ""},
	} {
		owner, err := ring.Owner(c.key)
		if owner != c.owner || (c.owner == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%s: got %q, %v", c.name, owner, err)
		}
	}
	if err := ring.Revoke(bob); err != nil {
		t.Fatal(err)
	}
	if _, err := ring.Owner(bob); !errors.Is(err, ErrUnknown) {
		t.Errorf("a revoked key still works: %v", err)
	}
	if owner, err := ring.Owner(ann); owner != "ann" || err != nil {
		t.Errorf("the other key: %q, %v", owner, err)
	}
}

func TestFollowsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := Add(path, "ann"); err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	bob, err := Add(path, "bob")
	if err != nil {
		t.Fatal(err)
	}
	ring.mu.Lock()
	ring.checked = time.Time{} // as if a second had passed
	ring.mu.Unlock()
	if owner, err := ring.Owner(bob); owner != "bob" {
		t.Errorf("a key added while running: %q, %v", owner, err)
	}
}

// A file that was edited without a line break at its end, and one that another process replaces while a key is added.
func TestAddToAnEditedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ann, err := Add(path, "ann")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := lock(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	added := make(chan string)
	go func() {
		bob, err := Add(path, "bob")
		if err != nil {
			t.Error(err)
		}
		added <- bob
	}()
	if err := os.WriteFile(path+".new", data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	held.Close()
	bob := <-added
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{ann: "ann", bob: "bob"} {
		if owner, err := ring.Owner(key); owner != want {
			t.Errorf("got %q, %v; want %s", owner, err, want)
		}
	}
}

// A file that is broken while the server runs changes nothing: neither who may use it, nor the keys behind its bound.
func TestBrokenWhileRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ann, err := Add(path, "ann")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"not a key": "bob\n", "too long": string(good) + strings.Repeat("# nothing\n", maxFileBytes/10)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		ring.mu.Lock()
		ring.checked = time.Time{} // as if a second had passed
		ring.mu.Unlock()
		if owner, err := ring.Owner(ann); owner != "ann" {
			t.Errorf("%s: got %q, %v", name, owner, err)
		}
		if ring.fault == "" {
			t.Errorf("%s: nothing is said of it", name)
		}
		if _, err := Add(path, "bob"); err == nil {
			t.Errorf("%s: a key was added", name)
		}
		if err := ring.Revoke("tml-none"); err == nil {
			t.Errorf("%s: a key was revoked that there is not", name)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != content {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"empty", "", "holds no key"},
		{"a bare key", "tml-abc\n", "line 1: expected `name sha256-hex`, and behind it admin"},
		{"short hash", "# c\nann 0011\n", "line 2: the second word must be a SHA-256"},
		{"another right", "ann " + strings.Repeat("0", 64) + " root", `line 1: behind the SHA-256 can only be admin and expires=TIME, each once, not "root"`},
		{"a broken end", "ann " + strings.Repeat("0", 64) + " expires=tomorrow", `line 1: "expires=tomorrow" is not expires= and a time such as`},
		{"a right twice", "ann " + strings.Repeat("0", 64) + " admin admin", `each once, not "admin"`},
		{"a word too many", "ann " + strings.Repeat("0", 64) + " admin now", `each once, not "now"`},
		{"odd name", "a/b " + strings.Repeat("0", 64), "line 1: expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := Add(filepath.Join(t.TempDir(), "keys"), "a b"); err == nil {
		t.Error("a name with a space was accepted")
	}
}

func TestNoFileTakesAnyKey(t *testing.T) {
	ring, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "not-needed", "tml-x"} {
		if owner, err := ring.Owner(key); owner != Anonymous || err != nil {
			t.Errorf("key %q: %q, %v", key, owner, err)
		}
	}
}

// Lines of both kinds stand in one file, an older file has none with a right, and a right can be taken from a key that stays.
func TestAdmin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ann, err := Add(path, "ann")
	if err != nil {
		t.Fatal(err)
	}
	root, err := AddAdmin(path, "root")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, key string
		admin     bool
	}{{"administrator", root, true}, {"user", ann, false}, {"unknown", "tml-x", false}, {"none", "", false}} {
		if got := ring.Admin(c.key); got != c.admin {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if owner, err := ring.Owner(root); owner != "root" || err != nil {
		t.Errorf("got %q, %v", owner, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(content), " admin", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	ring.mu.Lock()
	ring.checked = time.Time{} // as if a second had passed
	ring.mu.Unlock()
	if owner, err := ring.Owner(root); owner != "root" || err != nil || ring.Admin(root) {
		t.Errorf("without its right: %q, %v, admin %v", owner, err, ring.Admin(root))
	}
	if root, err = AddAdmin(path, "root"); err != nil {
		t.Fatal(err)
	}
	if err := ring.Revoke(root); err != nil {
		t.Errorf("revoke an administrator's key: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || strings.Count(string(after), "root") != 1 || strings.Contains(string(after), "admin") {
		t.Errorf("%s, %v", after, err)
	}
	if keyless, err := Open(""); err != nil || !keyless.Admin("") {
		t.Errorf("who reaches a server without keys is its operator, %v", err)
	}
}

// Two changes within one tick of the file system's clock that leave the length alone are both seen.
func TestChangesOfEqualLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	var made [3]string
	for i := range made {
		key, err := Add(path, "ann")
		if err != nil {
			t.Fatal(err)
		}
		made[i] = key
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(content), "\n")
	write := func(line string, stamp time.Time) {
		if err := errors.Join(os.WriteFile(path, []byte(line), 0o600), os.Chtimes(path, stamp, stamp)); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	write(lines[0], now)
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 3; i++ {
		write(lines[i], now)
		ring.mu.Lock()
		ring.checked = time.Time{}
		ring.mu.Unlock()
		if _, err := ring.Owner(made[i-1]); !errors.Is(err, ErrUnknown) {
			t.Errorf("change %d: the key that is gone still works", i)
		}
		if _, err := ring.Owner(made[i]); err != nil {
			t.Errorf("change %d: %v", i, err)
		}
	}
}
