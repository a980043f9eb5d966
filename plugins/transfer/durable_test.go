package transfer

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		content string
		mode    os.FileMode
	}{{"first", 0o600}, {"a longer second", 0o644}, {"", 0o600}} {
		if err := WriteFile(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != c.content || info.Mode() != c.mode {
			t.Errorf("%q, %v after %q", got, info.Mode(), c.content)
		}
	}
	// A write that fails leaves what was there, and nothing else.
	full := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(full, "in it"), 0o700); err != nil {
		t.Fatal(err)
	}
	if WriteFile(full, []byte("x"), 0o600) == nil || WriteFile(filepath.Join(dir, "nowhere", "file"), nil, 0o600) == nil {
		t.Error("what cannot be written was")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
