package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet(Progress) {}

// files is a data directory with files in it, by path; a path that ends in / is a folder.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range content {
		full := filepath.Join(dir, path)
		ok(t, os.MkdirAll(filepath.Dir(full), 0o700))
		if strings.HasSuffix(path, "/") {
			ok(t, os.MkdirAll(full, 0o700))
			continue
		}
		ok(t, os.WriteFile(full, []byte(text), 0o600))
	}
	return dir
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read gives the files below a folder.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	ok(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		found[rel] = string(b)
		return err
	}))
	return found
}

// records is a store of one file.
type records struct {
	during func() // what happens while it is copied
	err    error
}

func (r records) Backup(_ context.Context, dir string) error {
	if r.during != nil {
		r.during()
	}
	if r.err != nil {
		return r.err
	}
	if err := os.MkdirAll(filepath.Join(dir, "journal"), 0o700); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "records"), []byte("records"), 0o600), os.WriteFile(filepath.Join(dir, "journal", "1"), []byte("segment"), 0o600))
}

// put takes what records has written.
func put(dataDir string) func(context.Context, string) error {
	return func(_ context.Context, from string) error {
		b, err := os.ReadFile(filepath.Join(from, "records"))
		return errors.Join(err, os.WriteFile(filepath.Join(dataDir, "tinsmith.db"), b, 0o600))
	}
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func checkpoint(t *testing.T, weights string) string {
	t.Helper()
	b, err := (&plugins.Manifest{SHA256: map[string]string{plugins.AdapterWeightsFile: sumOf(weights)}}).Encode()
	ok(t, err)
	return string(b)
}

func dataDir(t *testing.T) (string, map[string]string) {
	t.Helper()
	kept := map[string]string{
		"checkpoints/r:train:0/weights/a~1/" + plugins.AdapterWeightsFile: "weights",
		"checkpoints/r:train:0/weights/a~1/" + plugins.ManifestFile:       checkpoint(t, "weights"),
		"checkpoints/r:train:0/weights/a~1/tinsmith.json":                 "described",
		"snapshots/r:train:0/3~1/" + plugins.AdapterWeightsFile:           "snapshot",
		"recovery/r:train:0/4~1/" + plugins.AdapterWeightsFile:            "point",
		"token-secret": "secret",
	}
	all := maps.Clone(kept)
	maps.Copy(all, map[string]string{
		"tinsmith.db": "database", "lock": "", "address": "x", "scratch/0/adapters/1": "spilled", "incoming/.upload-1/x": "upload", "unclaimed/t/checkpoints/x/y/z/f": "unclaimed",
		"checkpoints/r:train:0/weights/.b~1.tmp-1/x": "unfinished", "recovery/r:train:0/.6~1.unsettled/x": "unsettled", "checkpoints/r:train:0/weights/a~1/.tinsmith.json-1": "being replaced",
		"checkpoints/r:train:0/external_weights/": "",
	})
	return files(t, all), kept
}

// A backup has what records name, says so when its files are not what their manifests say, and comes back as it was.
func TestBackupAndRestore(t *testing.T) {
	data, kept := dataDir(t)
	dir := filepath.Join(t.TempDir(), "backup")
	held, released := 0, 0
	src := Source{Version: "v", DataDir: data, Store: records{}, Hold: func() func() { held++; return func() { released++ } }}
	var told []Progress
	result, err := Make(t.Context(), src, dir, func(p Progress) { told = append(told, p) })
	ok(t, err)
	if held != 1 || released != 1 || len(told) == 0 || len(result.Damaged) != 0 || result.Files != len(kept)+2 {
		t.Errorf("held %d, released %d, %d times told, result %+v", held, released, len(told), result)
	}
	a, err := os.Stat(filepath.Join(data, "checkpoints/r:train:0/weights/a~1", plugins.AdapterWeightsFile))
	ok(t, err)
	b, err := os.Stat(filepath.Join(dir, filesFolder, "checkpoints/r:train:0/weights/a~1", plugins.AdapterWeightsFile))
	ok(t, err)
	if !os.SameFile(a, b) || result.Linked == 0 {
		t.Error("the files are no links")
	}
	if info, err := os.Stat(filepath.Join(dir, secretName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the secret: %v, %v", info, err)
	}
	target := filepath.Join(t.TempDir(), "data")
	ok(t, Restore(t.Context(), dir, target, target, put(target), quiet))
	want := maps.Clone(kept)
	want["tinsmith.db"] = "records"
	if got := read(t, target); !maps.Equal(got, want) {
		t.Errorf("restored is\n%v, want\n%v", got, want)
	}
	a, err = os.Stat(filepath.Join(target, "checkpoints/r:train:0/weights/a~1", plugins.AdapterWeightsFile))
	ok(t, err)
	if os.SameFile(a, b) {
		t.Error("the restored file is the backup's own")
	}
	if err := Restore(t.Context(), dir, target, target, put(target), quiet); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a data directory in use: %v", err)
	}
	if _, err := Make(t.Context(), src, dir, quiet); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("over a backup: %v", err)
	}
	for _, inside := range []string{data, filepath.Join(data, "backups", "x")} {
		if _, err := Make(t.Context(), src, inside, quiet); err == nil || !strings.Contains(err.Error(), "data directory") {
			t.Errorf("in the data directory: %v", err)
		}
	}
}

// What is given up while it is copied is left out; what is damaged is told; an error leaves no backup.
func TestBackupOfWhatChanges(t *testing.T) {
	data, _ := dataDir(t)
	ok(t, os.WriteFile(filepath.Join(data, "checkpoints/r:train:0/weights/a~1", plugins.AdapterWeightsFile), []byte("weightS"), 0o600))
	dir := filepath.Join(t.TempDir(), "backup")
	result, err := Make(t.Context(), Source{DataDir: data, Store: records{}}, dir, func(p Progress) {
		ok(t, os.RemoveAll(filepath.Join(data, "snapshots/r:train:0/3~1")))
	})
	ok(t, err)
	if want := filesFolder + "/checkpoints/r:train:0/weights/a~1/" + plugins.AdapterWeightsFile; !slices.Equal(result.Damaged, []string{want}) {
		t.Errorf("damaged %v", result.Damaged)
	}
	for path := range read(t, dir) {
		if strings.Contains(path, "snapshots") {
			t.Errorf("the backup has %s", path)
		}
	}
	dir = filepath.Join(t.TempDir(), "backup")
	if _, err := Make(t.Context(), Source{DataDir: data, Store: records{err: errors.New("no database")}}, dir, quiet); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("got %v", err)
	}
	if err := Restore(t.Context(), dir, filepath.Join(t.TempDir(), "data"), "", put(""), quiet); err == nil || !strings.Contains(err.Error(), "not finished") {
		t.Errorf("restored a backup that was not finished: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	dir = filepath.Join(t.TempDir(), "backup")
	if _, err := Make(ctx, Source{DataDir: data, Store: records{during: cancel}}, dir, quiet); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if _, err := readManifest(dir); err == nil {
		t.Error("a backup that was given up is whole")
	}
}

// Of a backup in which anything is changed, cut or removed nothing is restored.
func TestDamagedBackups(t *testing.T) {
	data, _ := dataDir(t)
	whole := filepath.Join(t.TempDir(), "backup")
	_, err := Make(t.Context(), Source{DataDir: data, Store: records{}}, whole, quiet)
	ok(t, err)
	for path, text := range read(t, whole) {
		damages := map[string]func(string) error{
			"removed": os.Remove,
			"emptied": func(p string) error { return os.Truncate(p, 0) },
			"linked":  func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/dev/null", p)) },
		}
		for i := range text {
			if i%31 == 0 {
				damages[fmt.Sprintf("flipped at %d", i)] = func(p string) error {
					b := []byte(text)
					b[i] ^= 4
					return os.WriteFile(p, b, 0o600)
				}
			}
		}
		for name, damage := range damages {
			dir := filepath.Join(t.TempDir(), "copy")
			ok(t, os.CopyFS(dir, os.DirFS(whole)))
			ok(t, os.Remove(filepath.Join(dir, path)))
			ok(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
			ok(t, damage(filepath.Join(dir, path)))
			target := filepath.Join(t.TempDir(), "data")
			err := Restore(t.Context(), dir, target, target, put(target), quiet)
			if path == manifestName && err == nil { // a flipped letter of a key that is not known changes nothing
				continue
			}
			if err == nil {
				t.Errorf("%s %s: it was restored", path, name)
			}
			if left, _ := os.ReadDir(target); len(left) != 0 {
				t.Errorf("%s %s: it left %v", path, name, left)
			}
		}
	}
}

// A restore that is cut off anywhere is told, and goes on when it is called again.
func TestRestoreThatIsCutOff(t *testing.T) {
	data, kept := dataDir(t)
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := Make(t.Context(), Source{DataDir: data, Store: records{}}, dir, quiet)
	ok(t, err)
	target := filepath.Join(t.TempDir(), "data")
	err = Restore(t.Context(), dir, target, target, func(context.Context, string) error { return errors.New("no database") }, quiet)
	if err == nil || !Unfinished(target) {
		t.Fatalf("got %v", err)
	}
	half := filepath.Join(target, "checkpoints/r:train:0/weights/a~1", plugins.AdapterWeightsFile)
	ok(t, os.Truncate(half, 2))
	ok(t, Restore(t.Context(), dir, target, target, put(target), quiet))
	want := maps.Clone(kept)
	want["tinsmith.db"] = "records"
	if got := read(t, target); !maps.Equal(got, want) || Unfinished(target) {
		t.Errorf("restored is\n%v, want\n%v", got, want)
	}
}

// A list that somebody made names no file outside of what a backup has.
func TestHostileManifests(t *testing.T) {
	for _, path := range []string{
		"", ".", "..", "../x", "/etc/passwd", "files", "files/", "files/x", "files/checkpoints", "files/checkpoints/a/b/c", "files/checkpoints/a/b/c/d/e", "files/checkpoints/../b/c/d", "files/checkpoints/a//c/d",
		"files/incoming/x/y", "files/../store/x", "store", "store/../x", "token-secret/x", "backup.json", "lock", "files/checkpoints/.a/b/c/d", "files/recovery/a/.b/c", `files\checkpoints`,
	} {
		if (entry{Path: path}).allowed() {
			t.Errorf("%q is allowed", path)
		}
	}
	for _, path := range []string{"token-secret", "store/records", "store/journal/1", "files/checkpoints/a/b/c/d", "files/recovery/a/b/c"} {
		if !(entry{Path: path}).allowed() {
			t.Errorf("%q is not allowed", path)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, path := range []string{"files/checkpoints/a/b/c/d", "../x", "store/a"} {
		b, err := durable.Seal(manifest{Files: []entry{{Path: path, Bytes: 1}}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err != nil {
			return
		}
		for _, e := range m.Files {
			if full := filepath.Join("/data", e.Path); !strings.HasPrefix(full, "/data/") {
				t.Fatalf("%q leads to %s", e.Path, full)
			}
		}
	})
}

// A server answers in its data directory, however long that path is; only its owner gets at the socket.
func TestControl(t *testing.T) {
	data, kept := dataDir(t)
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 50))
	ok(t, os.Rename(data, long))
	data = long
	if _, err := Ask(t.Context(), data, filepath.Join(t.TempDir(), "b"), quiet); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a server: %v", err)
	}
	ok(t, os.WriteFile(filepath.Join(data, controlName), nil, 0o600)) // of a server that was killed
	if _, err := Ask(t.Context(), data, filepath.Join(t.TempDir(), "b"), quiet); !errors.Is(err, ErrNotRunning) {
		t.Errorf("with a dead server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	inside, goOn := make(chan struct{}), make(chan struct{})
	go func() {
		served <- Serve(ctx, Source{Version: "v", DataDir: data, Store: records{during: func() { inside <- struct{}{}; <-goOn }}})
	}()
	dir := filepath.Join(t.TempDir(), "backup")
	type reply struct {
		Result
		error
	}
	got := make(chan reply, 1)
	ask := func(dir string) {
		for {
			result, err := Ask(t.Context(), data, dir, quiet)
			if !errors.Is(err, ErrNotRunning) { // it is just being started
				got <- reply{result, err}
				return
			}
		}
	}
	go ask(dir)
	<-inside
	info, err := os.Stat(filepath.Join(data, controlName))
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&fs.ModeSocket == 0 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if _, err := Ask(t.Context(), data, filepath.Join(t.TempDir(), "another"), quiet); err == nil || !strings.Contains(err.Error(), "another backup") {
		t.Errorf("two at once: %v", err)
	}
	goOn <- struct{}{}
	if r := <-got; r.error != nil || r.Files != len(kept)+2 {
		t.Errorf("got %+v", r)
	}
	if _, err := readManifest(dir); err != nil {
		t.Error(err)
	}
	if _, err := Ask(t.Context(), data, dir, quiet); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("over a backup: %v", err)
	}
	// The end of the server ends a backup, and the client is told.
	go ask(filepath.Join(t.TempDir(), "third"))
	<-inside
	cancel()
	goOn <- struct{}{}
	if r := <-got; r.error == nil {
		t.Errorf("the server ended, and the client got %+v", r)
	}
	ok(t, <-served)
	if _, err := os.Lstat(filepath.Join(data, controlName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
