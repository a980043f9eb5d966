package tinker

import (
	"os"
	"path/filepath"
	"testing"
)

// TestModelFile: links lead to where the Hugging Face cache keeps its files, and nowhere else.
func TestModelFile(t *testing.T) {
	root := t.TempDir()
	snapshot, blobs := filepath.Join(root, "models--a--b", "snapshots", "0123"), filepath.Join(root, "models--a--b", "blobs")
	plain := filepath.Join(root, "plain")
	for _, dir := range []string{snapshot, blobs, plain} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(blobs, "abc"), filepath.Join(root, "secret"), filepath.Join(plain, "own.json"), filepath.Join(plain, ".hidden.json"), filepath.Join(plain, "code.py")} {
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		filepath.Join(snapshot, "tokenizer.json"): "../../blobs/abc", filepath.Join(snapshot, "out.json"): "../../../secret", filepath.Join(plain, "out.json"): "../secret",
		filepath.Join(plain, "blob.json"): "../models--a--b/blobs/abc", filepath.Join(plain, "none.json"): "nowhere", filepath.Join(plain, "inside.json"): "own.json",
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(plain, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, name string
		given     bool
	}{
		{snapshot, "tokenizer.json", true}, {snapshot, "out.json", false}, {plain, "own.json", true}, {plain, "inside.json", true}, {plain, "out.json", false}, {plain, "blob.json", false},
		{plain, "none.json", false}, {plain, ".hidden.json", false}, {plain, "code.py", false}, {plain, "../secret", false}, {plain, ".", false}, {filepath.Join(root, "link"), "own.json", true},
	} {
		if path, info := modelFile(c.dir, c.name); (info != nil) != c.given {
			t.Errorf("%s of %s: %q", c.name, c.dir, path)
		}
	}
}
