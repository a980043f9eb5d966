package durable

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChecksum(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("abc"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	var copied bytes.Buffer
	size, sum, err := Checksum(t.Context(), file, &copied)
	if want := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; err != nil || size != 3 || sum != want || copied.String() != "abc" {
		t.Errorf("got %d, %s, %v, and %q", size, sum, err, copied.String())
	}
	if _, _, err := Checksum(t.Context(), filepath.Join(dir, "nothing"), io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	for _, path := range []string{dir, link} {
		if _, _, err := Checksum(t.Context(), path, io.Discard); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("of %s: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Checksum(ctx, file, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// What was sealed comes back, and nothing in which a bit was changed or the end is missing comes back as anything else.
func TestSeal(t *testing.T) {
	type value struct{ Name string }
	b, err := Seal(value{"<ann>"})
	if err != nil {
		t.Fatal(err)
	}
	var got value
	if err := Unseal(b, &got); err != nil || got.Name != "<ann>" {
		t.Errorf("got %v, %v", got, err)
	}
	for bit := range 8 * len(b) {
		changed := bytes.Clone(b)
		changed[bit/8] ^= 1 << (bit % 8)
		var got value
		if err := Unseal(changed, &got); err == nil && got.Name != "<ann>" {
			t.Errorf("with bit %d changed: %v", bit, got)
		}
	}
	for n := range len(b) - 1 { // the last byte ends the line
		if err := Unseal(b[:n], &value{}); err == nil {
			t.Errorf("the first %d bytes are taken for the whole", n)
		}
	}
	for text, want := range map[string]string{`{"format":2}`: "format 2", `{"format":1,"sha256":"","content":{}}`: "checksum", `[]`: "array"} {
		if err := Unseal([]byte(text), &value{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
