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
	if ring.Exists("bob") || !ring.Exists("ann") {
		t.Error("Exists does not follow Revoke")
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
		{"a bare key", "tml-abc\n", "line 1: expected `name sha256-hex`"},
		{"short hash", "# c\nann 0011\n", "line 2: the second word must be a SHA-256"},
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

func TestTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ours := Tokens{[]byte(strings.Repeat("k", 32)), time.Hour}
	token, err := ours.Issue("ann", now)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token, "eyJ") {
		t.Errorf("token begins %q, the SDK wants eyJ", token[:3])
	}
	parts := strings.Split(token, ".")
	for _, c := range []struct {
		name, token string
		at          time.Time
		owner       string
	}{
		{"fresh", token, now, "ann"},
		{"just before the end", token, now.Add(time.Hour - time.Second), "ann"},
		{"expired", token, now.Add(time.Hour), ""},
		{"changed body", parts[0] + "." + parts[1] + "x." + parts[2], now, ""},
		{"line breaks in the signature", parts[0] + "." + parts[1] + "." + parts[2][:9] + "\r\n" + parts[2][9:], now, ""},
		{"no signature", parts[0] + "." + parts[1] + ".", now, ""},
		{"alg none", "eyJhbGciOiJub25lIn0." + parts[1] + ".", now, ""},
		{"empty", "", now, ""},
		{"huge", strings.Repeat("a.", 4096), now, ""},
	} {
		owner, err := ours.Owner(c.token, c.at)
		if owner != c.owner || (c.owner == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%s: got %q, %v", c.name, owner, err)
		}
	}
	if _, err := (Tokens{[]byte(strings.Repeat("j", 32)), time.Hour}).Owner(token, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("a token of another server: %v", err)
	}
}

func FuzzToken(f *testing.F) {
	t := Tokens{[]byte(strings.Repeat("k", 32)), time.Hour}
	good, _ := t.Issue("ann", time.Unix(1_800_000_000, 0))
	f.Add(good)
	f.Add("a.b.c")
	f.Fuzz(func(tt *testing.T, token string) {
		if owner, err := t.Owner(token, time.Unix(1_800_000_000, 0)); err == nil && (owner != "ann" || token != good) {
			tt.Errorf("accepted %q as %q", token, owner)
		}
	})
}
