package hub

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestOverlay(t *testing.T) {
	user, dir := t.TempDir(), filepath.Join(t.TempDir(), "new", "hub")
	for _, entry := range []string{"models--a--own", "models--Qwen--Qwen3-8B", "datasets--b--own", "version.txt", ".locks"} {
		if err := os.MkdirAll(filepath.Join(user, entry, "refs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	overlay := func(repositories map[string]map[string][]byte) {
		t.Helper()
		if err := Overlay(dir, user, repositories); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(repository, file, wanted string) {
		t.Helper()
		entry := filepath.Join(dir, "models--"+strings.ReplaceAll(repository, "/", "--"))
		commit, err := os.ReadFile(filepath.Join(entry, "refs", "main"))
		if err != nil || !commitHash.Match(commit) {
			t.Fatalf("%q %v", commit, err)
		}
		if got, err := os.ReadFile(filepath.Join(entry, "snapshots", string(commit), file)); err != nil || string(got) != wanted {
			t.Errorf("%s of %s: %q %v, expected %q", file, repository, got, err, wanted)
		}
	}
	list := func() string {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			if e.Name() != ours {
				names = append(names, e.Name())
			}
		}
		return strings.Join(names, " ")
	}
	first := map[string][]byte{"config.json": []byte("{}"), "tokenizer.json": []byte("1")}
	overlay(map[string]map[string][]byte{"tinsmith/tiny-chat": first, "Qwen/Qwen3-8B": first})
	holds("tinsmith/tiny-chat", "tokenizer.json", "1")
	holds("Qwen/Qwen3-8B", "tokenizer.json", "1") // served, and so not the user's own
	if got := list(); got != "datasets--b--own models--Qwen--Qwen3-8B models--a--own models--tinsmith--tiny-chat" {
		t.Errorf("the cache has %s", got)
	}
	// Other files are another commit; what is served no longer is the user's own again; what the user has removed is gone.
	if err := os.RemoveAll(filepath.Join(user, "models--a--own")); err != nil {
		t.Fatal(err)
	}
	overlay(map[string]map[string][]byte{"tinsmith/tiny-chat": {"config.json": []byte("{}"), "tokenizer.json": []byte("2")}, "plain": first})
	holds("tinsmith/tiny-chat", "tokenizer.json", "2")
	holds("plain", "tokenizer.json", "1")
	if to, err := os.Readlink(filepath.Join(dir, "models--Qwen--Qwen3-8B")); err != nil || to != filepath.Join(user, "models--Qwen--Qwen3-8B") {
		t.Errorf("the user's own model is not there: %q %v", to, err)
	}
	if got := list(); got != "datasets--b--own models--Qwen--Qwen3-8B models--plain models--tinsmith--tiny-chat" {
		t.Errorf("the cache has %s", got)
	}
	// A link of an earlier call gives way, and the user's own files stay.
	overlay(map[string]map[string][]byte{"Qwen/Qwen3-8B": first})
	holds("Qwen/Qwen3-8B", "tokenizer.json", "1")
	if _, err := os.Stat(filepath.Join(user, "models--Qwen--Qwen3-8B", "refs", "main")); err == nil {
		t.Error("the user's own cache was changed")
	}
	// Called again in the environment that it made.
	if err := Overlay(dir, dir, map[string]map[string][]byte{"Qwen/Qwen3-8B": first}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"../x", "a/../b", "a--b", "a/b/c", "", "a b"} {
		if err := Overlay(dir, user, map[string]map[string][]byte{bad: first}); err == nil {
			t.Errorf("%q is taken as a repository", bad)
		}
	}
	if err := Overlay(dir, user, map[string]map[string][]byte{"x": {"../y": nil}}); err == nil {
		t.Error("a file outside is taken")
	}
}

// TestOverlayOfOthers: a folder that has models which are not of Overlay's making keeps them.
func TestOverlayOfOthers(t *testing.T) {
	user := t.TempDir()
	ref := filepath.Join(user, "models--Qwen--Qwen3-8B", "refs", "main")
	if err := os.MkdirAll(filepath.Dir(ref), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ref, []byte("the user's"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"config.json": []byte("{}")}
	for name, own := range map[string]string{"the user's own cache": user, "another folder": t.TempDir()} {
		if err := Overlay(user, own, map[string]map[string][]byte{"Qwen/Qwen3-8B": files}); err == nil || !strings.Contains(err.Error(), "not of this program's making") {
			t.Errorf("%s: %v", name, err)
		}
		if err := Overlay(user, own, map[string]map[string][]byte{"another/one": files}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := os.ReadFile(ref); err != nil || string(got) != "the user's" {
			t.Errorf("%s: the user's model is %q %v", name, got, err)
		}
	}
}

// TestOverlayLeadsBack: a server that is started where the cache of clients is set finds its model with the weights, and a second overlay is of the user's own cache too.
func TestOverlayLeadsBack(t *testing.T) {
	user, dir := t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", user)
	const commit = "0123456789012345678901234567890123456789"
	entry := filepath.Join(user, "models--a--b")
	for path, content := range map[string]string{"refs/main": commit, "snapshots/" + commit + "/config.json": "{}"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(entry, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(entry, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Overlay(dir, UserCache(), map[string]map[string][]byte{"a/b": {"config.json": []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		t.Setenv("HF_HUB_CACHE", dir)
		if got := UserCache(); got != user {
			t.Errorf("the user's cache is %s, expected %s", got, user)
		}
		if got, err := Resolve(t.Context(), "a/b", nil); err != nil || got != filepath.Join(entry, "snapshots", commit) {
			t.Errorf("the model is %s %v", got, err)
		}
	}
}

// TestOverlaysTogether: several shells may begin at the same time.
func TestOverlaysTogether(t *testing.T) {
	for range 20 {
		user, dir := t.TempDir(), t.TempDir()
		if err := os.MkdirAll(filepath.Join(user, "models--a--b", "refs"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(user, "models--a--b"), filepath.Join(dir, "models--a--b")); err != nil { // of an earlier call
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if err := Overlay(dir, user, map[string]map[string][]byte{"a/b": {"config.json": []byte("{}")}}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}
