package fleet

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestSockets: what killed processes have left is removed, and only that; a folder that somebody else could have made is not used.
func TestSockets(t *testing.T) {
	temporary, err := os.MkdirTemp("", "t") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temporary) })
	t.Setenv("TMPDIR", temporary)
	dir := socketFolder("/data")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(dir) != temporary {
		t.Fatalf("%q: %v, %v", dir, info, err)
	}
	if other := socketFolder("/other"); other == dir || other == "" {
		t.Errorf("another data directory has %q", other)
	}
	left := filepath.Join(dir, "tinsmith-4294967295")
	kept := filepath.Join(dir, "tinsmith-2")
	for _, folder := range []string{left, kept, filepath.Join(dir, "another")} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(left, "plugin4294967295"), filepath.Join(kept, "plugin1"), filepath.Join(dir, "another", "plugin1")} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	precious := filepath.Join(kept, "plugin-notes")
	if err := os.WriteFile(precious, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := socketFolder("/data"); again != dir {
		t.Errorf("the second start has %q, the first %q", again, dir)
	}
	for path, want := range map[string]bool{left: false, filepath.Join(kept, "plugin1"): false, precious: true, filepath.Join(dir, "another", "plugin1"): true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
	for name, make := range map[string]func(dir string) error{
		"open to others": func(dir string) error { return os.Chmod(dir, 0o755) },
		"a link": func(dir string) error {
			if err := os.Rename(dir, dir+"-moved"); err != nil {
				return err
			}
			return os.Symlink(dir+"-moved", dir)
		},
	} {
		dir := socketFolder("/" + name)
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		if got := socketFolder("/" + name); got != "" {
			t.Errorf("%s: %q is used", name, got)
		}
	}
}
