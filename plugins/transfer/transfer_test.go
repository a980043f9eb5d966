package transfer_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/transfer"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A directory comes out as it went in, in pieces, whatever of it is wanted.
func TestMoves(t *testing.T) {
	from := t.TempDir()
	content := map[string]string{"a": "", "b.safetensors": strings.Repeat("0123456789", 250_000), "c": "x", "d": "", ".hidden": "no"}
	write(t, from, content)
	if err := os.Mkdir(filepath.Join(from, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"inside": "c", "outside": "/etc/hostname"} {
		if err := os.Symlink(target, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	content["inside"] = "x"
	files, err := transfer.List(from)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "a b.safetensors c d inside" {
		t.Fatalf("listed %s", got)
	}
	for _, wanted := range [][]int{{0, 1, 2, 3, 4}, {1}, {0, 3}, {}} {
		to := t.TempDir()
		r := transfer.NewReceiver(to, files, wanted)
		if err := transfer.Send(from, files, wanted, r.Write); err != nil {
			t.Fatal(err)
		}
		if err := r.Finished(); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(to)
		if err != nil || len(entries) != len(wanted) {
			t.Fatalf("%d files came, %v; want %d", len(entries), err, len(wanted))
		}
		for _, i := range wanted {
			if got, err := os.ReadFile(filepath.Join(to, files[i].Name)); err != nil || string(got) != content[files[i].Name] {
				t.Errorf("%s: %d bytes, %v", files[i].Name, len(got), err)
			}
		}
	}
}

func TestChecks(t *testing.T) {
	file := func(name string, size int64) transfer.File { return transfer.File{Name: name, Size: size} }
	for _, c := range []struct {
		name  string
		files []transfer.File
		want  string // of the refusal; "": none
	}{
		{"a checkpoint", []transfer.File{file("adapter_config.json", 1), file("checkpoint_complete", 0)}, ""},
		{"nothing", nil, ""},
		{"no name", []transfer.File{file("", 1)}, "0 bytes"},
		{"a long name", []transfer.File{file(strings.Repeat("a", 256), 1)}, "256 bytes"},
		{"the folder above", []transfer.File{file("..", 1)}, "dot"},
		{"a path", []transfer.File{file("a/b", 1)}, "separator"},
		{"a path of another system", []transfer.File{file(`a\b`, 1)}, "separator"},
		{"a control character", []transfer.File{file("a\nb", 1)}, "control"},
		{"no UTF-8", []transfer.File{file("a\xff", 1)}, "UTF-8"},
		{"twice", []transfer.File{file("a", 1), file("a", 1)}, "twice"},
		{"a negative size", []transfer.File{file("a", -1)}, "-1 bytes"},
		{"too large together", []transfer.File{file("a", transfer.MaxBytes), file("b", 1)}, "together"},
		{"too many", make([]transfer.File, transfer.MaxFiles+1), "257 files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := transfer.Check(c.files)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	files := []transfer.File{file("a", 1), file("b", 1)}
	for _, wanted := range [][]int{{-1}, {2}, {0, 0}, {1, 0}} {
		if transfer.CheckWanted(files, wanted) == nil {
			t.Errorf("%v was accepted", wanted)
		}
	}
}

// What does not fit the list is refused, and nothing of it is taken for whole.
func TestRefusals(t *testing.T) {
	abc := transfer.File{Name: "abc", Size: 3, SHA256: sha256.Sum256([]byte("abc"))}
	for _, c := range []struct {
		name string
		file int
		data string
		want string
	}{
		{"another file", 1, "abc", "file 1"},
		{"nothing in it", 0, "", "0 bytes"},
		{"too long", 0, "abcd", "4 bytes"},
		{"other bytes", 0, "abd", "SHA-256"},
		{"cut", 0, "ab", "not whole"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := transfer.NewReceiver(t.TempDir(), []transfer.File{abc}, []int{0})
			defer r.Close()
			err := r.Write(c.file, []byte(c.data))
			if err == nil {
				err = r.Finished()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	r := transfer.NewReceiver(t.TempDir(), []transfer.File{abc}, []int{0})
	if err := r.Write(0, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(0, []byte("a")); err == nil {
		t.Error("a piece behind the end was taken")
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"abc": "ab"})
	if err := transfer.Send(dir, []transfer.File{abc}, []int{0}, func(int, []byte) error { return nil }); err == nil {
		t.Error("a file that was cut after it was listed was sent")
	}
}

// Whatever comes, files that are whole are what the list says, and nothing lies beside them.
func FuzzReceiver(f *testing.F) {
	f.Add([]byte("abc"), []byte{0, 3, 'a', 'b', 'c', 1, 1, 'x'})
	f.Add([]byte(""), []byte{0, 0})
	f.Add([]byte("x"), []byte{1, 1, 'x'})
	f.Fuzz(func(t *testing.T, content, stream []byte) {
		dir := t.TempDir()
		in := filepath.Join(dir, "in")
		if err := os.Mkdir(in, 0o700); err != nil {
			t.Fatal(err)
		}
		files := []transfer.File{
			{Name: "a", Size: int64(len(content)), SHA256: sha256.Sum256(content)}, {Name: "b", Size: 1, SHA256: sha256.Sum256([]byte("x"))},
		}
		r := transfer.NewReceiver(in, files, transfer.All(files))
		defer r.Close()
		var err error
		for len(stream) >= 2 && err == nil {
			file, n := int(int8(stream[0])), min(int(stream[1]), len(stream)-2)
			err = r.Write(file, stream[2:][:n])
			stream = stream[2+n:]
		}
		if err == nil {
			err = r.Finished()
		}
		got, _ := os.ReadFile(filepath.Join(in, "a"))
		if err == nil && !bytes.Equal(got, content) {
			t.Errorf("%q was taken for %q", got, content)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%v lie beside the folder", entries)
		}
	})
}

// No list that is accepted leaves its folder or is larger than the bounds.
func FuzzCheck(f *testing.F) {
	f.Add("adapter_config.json", int64(3))
	f.Add("../x", int64(-1))
	f.Fuzz(func(t *testing.T, name string, size int64) {
		if transfer.Check([]transfer.File{{Name: name, Size: size}}) != nil {
			return
		}
		if filepath.Base(name) != name || name == "." || name == ".." || !filepath.IsLocal(name) || size < 0 || size > transfer.MaxBytes || binary.Size([]byte(name)) > transfer.MaxNameBytes {
			t.Errorf("accepted %q with %d bytes", name, size)
		}
	})
}
