package modelfile

import (
	"strings"
	"testing"
)

func TestPlaceholder(t *testing.T) {
	const oid = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range []struct{ name, content, want string }{
		{"pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize 597352\n", "Git LFS pointer in place of its 597352 bytes"},
		{"pointer with an extension", "version https://git-lfs.github.com/spec/v1\next-0-foo sha256:" + oid + "\noid sha256:" + oid + "\nsize 12\n", "its 12 bytes"},
		{"pointer of a checkout on Windows", "version https://git-lfs.github.com/spec/v1\r\noid sha256:" + oid + "\r\nsize 12\r\n", "its 12 bytes"},
		{"pointer without its last line's end", "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize 12", "its 12 bytes"},
		{"older pointer", "version http://git-media.github.com/spec/v1\n", ""},
		{"pointer of the first version", "version https://hawser.github.com/spec/v1\noid sha256:" + oid + "\nsize 12\n", "its 12 bytes"},
		{"page", "<!DOCTYPE html>\n<html></html>", "web page"},
		{"page behind space and a mark", "\ufeff\n  <html lang=en>", "web page"},
		{"error of an object store", `<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`, "web page"},
		{"error of a hub", `{"error":"Repository not found"}`, "error message of a server"},
		{"vocabulary that begins with a word", `{"error": 0, "a": 1}`, ""},
		{"JSON", `{"a": "<html>"}`, ""},
		{"template", "<|im_start|>{{ messages }}", ""},
		{"template that asks for HTML", "<htm", ""},
		{"nothing", "", ""},
		{"text", "version 3", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Placeholder([]byte(c.content))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// FuzzPlaceholder: what is looked at is bounded, and what a file is does not depend on what follows.
func FuzzPlaceholder(f *testing.F) {
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"))
	f.Add([]byte("\ufeff <!DOCTYPE html>"))
	f.Add([]byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		whole, beginning := Placeholder(content), Placeholder(content[:min(len(content), placeholderBytes)])
		if (whole == nil) != (beginning == nil) || whole != nil && whole.Error() != beginning.Error() {
			t.Fatalf("%v, of the beginning %v", whole, beginning)
		}
	})
}
