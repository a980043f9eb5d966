package redact

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func redactor() *Redactor {
	return New(Secrets{
		Paths: []string{"/srv/tin data", "/srv/models/llama-3.2", "/models", "", "/", "relative"},
		Words: PostgresWords("postgres://tin:p%40ss@db.internal:5432/records?search_path=x"),
	})
}

func TestFault(t *testing.T) {
	r := redactor()
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "the backend of tinsmith/tiny-chat has failed: exit status 2", "the backend of tinsmith/tiny-chat has failed: exit status 2"},
		{"a path of ours", "open /srv/models/llama-3.2/config.json: no such file", "open (a path): no such file"},
		{"with a blank", "mkdir /srv/tin data/checkpoints/RUN: permission denied", "mkdir (a path): permission denied"},
		{"alone", "/models", "(a path)"},
		{"at the end of a sentence", "nothing is in /models.", "nothing is in (a path)."},
		{"of something else that begins so", "the name models is taken", "the name models is taken"},
		{"any path", `fork/exec "/usr/lib/x86_64-linux-gnu/libcuda.so.1": bad`, `fork/exec "(a path)": bad`},
		{"in brackets", "cannot load (/home/ann/model/a.safetensors)", "cannot load ((a path))"},
		{"behind a sign", "path=/home/ann/x file:/home/ann/y", "path=(a path) file:(a path)"},
		{"an endpoint", "the server is starting, see /healthz", "the server is starting, see /healthz"},
		{"a checkpoint", "no checkpoint \"tinker://RUN:train:0/weights/a\"", "no checkpoint \"tinker://RUN:train:0/weights/a\""},
		{"last output", "exit status 2; its last output:\n/home/ann/x.go:12\nuser secret", "exit status 2; an administrator is told its last output"},
		{"store", "nothing new is taken for now: the store is full: 3 MiB are free in /srv/tin data; the last 64 MiB", "nothing new is taken for now: the store is full; an administrator is told why"},
		{"database", "failed to connect to `user=tin database=records`: 10.0.0.7:5432 (db.internal): dial error: dial tcp 10.0.0.7:5432: refused", "failed to connect to `user=(withheld) database=(withheld)`: (an address) ((withheld)): dial error: dial tcp (withheld):5432: refused"},
		{"a lookup", "lookup db.internal on 127.0.0.53:53: no such host", "lookup (withheld) on (an address): no such host"},
		{"a role", `password authentication failed for user "tin"`, `password authentication failed for user (withheld)`},
		{"a URL", "cannot parse postgres://tin:p%40ss@db.internal:5432/records", "cannot parse (an address)"},
		{"IPv6", "connect [fe80::1]:5432: refused", "connect (an address): refused"},
		{"words side by side", "refused tin:p@ss@db.internal tin tin", "refused (withheld):(withheld)@(withheld) (withheld) (withheld)"},
		{"a word within another", "tinsmith and tin-can stay, tin does not", "tinsmith and tin-can stay, (withheld) does not"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := r.Fault(c.text); got != c.want {
				t.Errorf("%q\nwant %q", got, c.want)
			}
		})
	}
	var none *Redactor
	if got := none.Fault("open /home/ann/x: no"); got != "open (a path): no" {
		t.Errorf("nil: %q", got)
	}
}

// What a caller wrote himself is told back to him.
func TestRequest(t *testing.T) {
	r := redactor()
	for text, want := range map[string]string{
		`path "/etc/passwd/x": must begin with tinker://`: `path "/etc/passwd/x": must begin with tinker://`,
		"tensor x in /srv/models/llama-3.2/a.safetensors": "tensor x in (a path)",
		"user tin at 10.0.0.1":                            "user tin at 10.0.0.1",
	} {
		if got := r.Request(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A folder has the name by which it was configured and the one that the system gives in errors.
func TestLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	r := New(Secrets{Paths: []string{link}})
	if got := r.Request("a " + dir + " b " + link); strings.Contains(got, dir) || strings.Contains(got, link) {
		t.Error(got)
	}
}

// Whatever a fault says, none of the secrets is left.
func FuzzFault(f *testing.F) {
	r := redactor()
	for _, s := range []string{"open %s: no", "%s", "\"%s/x\"", "user=%s", "(%s)", "at %s."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, frame string) {
		before, after, ok := strings.Cut(frame, "%s")
		if !ok || len(after) > 0 && !strings.ContainsRune(" \"'`,;:()/\n", rune(after[0])) {
			return
		}
		text := before + " /srv/models/llama-3.2" + after
		if got := r.Fault(text); strings.Contains(got, "/srv/models/llama-3.2") {
			t.Errorf("%q became %q", text, got)
		}
	})
}
