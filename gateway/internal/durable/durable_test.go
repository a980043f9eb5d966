package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a file")
	for _, text := range []string{"first", "", "second, which is longer"} {
		if err := WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("got %q, %v; want %q", got, err, text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// What cannot be finished leaves what there was.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a folder")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("text"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := WriteFile(filepath.Join(dir, "nowhere", "file"), nil, 0o600); err == nil {
		t.Error("a file was written where no folder is")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 || !names[0].IsDir() {
		t.Errorf("left behind: %v, %v", names, err)
	}
	if err := SyncFolder(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a folder was synced that there is not")
	}
}

// What a killed writer has left is removed, and nothing that only looks like it.
func TestRemoveUnfinished(t *testing.T) {
	dir := t.TempDir()
	left, others := []string{".secret-1", ".secret-4294967295"}, []string{"secret", ".secret", ".secret-", ".secret-old", ".secrets-1", ".other-1", "secret-1"}
	for _, name := range append(append([]string{}, left...), others...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".secret-7"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveUnfinished(filepath.Join(dir, "secret")); err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	for _, name := range append(others, ".secret-7") {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
