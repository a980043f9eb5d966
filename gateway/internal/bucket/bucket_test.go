package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/bucket/buckettest"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a test's bucket for a gateway with a data directory.
func open(t *testing.T, s *buckettest.Server, dir string, cache int64) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), Options{Endpoint: s.URL, Bucket: s.Bucket, Prefix: s.Prefix, AccessKey: s.AccessKey, SecretKey: s.SecretKey, Dir: dir, CacheBytes: cache})
	ok(t, err)
	t.Cleanup(func() { ok(t, b.Close()) })
	return b
}

// write makes a folder.
func write(t *testing.T, dir, folder string, files map[string]string) {
	t.Helper()
	at := filepath.Join(dir, folder)
	ok(t, os.MkdirAll(at, 0o700))
	for name, content := range files {
		ok(t, os.WriteFile(filepath.Join(at, name), []byte(content), 0o600))
	}
}

func same(t *testing.T, dir, folder string, files map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, folder))
	ok(t, err)
	if len(entries) != len(files) {
		t.Errorf("%s has %d files, want %d", folder, len(entries), len(files))
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(dir, folder, name)); err != nil || string(got) != want {
			t.Errorf("%s/%s: %d bytes, want %d; %v", folder, name, len(got), len(want), err)
		}
	}
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

const one, two = "checkpoints/S:train:1/weights/a b~12", "recovery/S:train:1/7~ab"

// What one gateway has brought to the bucket another one gets, until it is removed.
func TestFolders(t *testing.T) {
	server := buckettest.New(t)
	first, second := t.TempDir(), t.TempDir()
	files := map[string]string{"adapter_model.safetensors": strings.Repeat("weights", 50_000), "empty": "", "adapter_config.json": "{}"}
	if server.Objects == nil {
		files["large"] = strings.Repeat("0123456789abcdef", 40<<16) // it goes in parts, which our own server does not take
	}
	write(t, first, one, files)
	write(t, first, two, map[string]string{"x": "y"})
	a := open(t, server, first, 1<<30)
	ok(t, a.Put(t.Context(), one))
	ok(t, a.Put(t.Context(), one))
	ok(t, a.Put(t.Context(), two))
	ok(t, a.Put(t.Context(), "snapshots/S/gone"))
	b := open(t, server, second, 1<<30)
	dirs, err := b.List(t.Context())
	if ok(t, err); fmt.Sprint(dirs) != fmt.Sprint([]string{one, two}) {
		t.Errorf("the bucket has %q", dirs)
	}
	release, err := b.Fetch(t.Context(), one)
	ok(t, err)
	same(t, second, one, files)
	release()
	if _, err := b.Fetch(t.Context(), "snapshots/S/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is nowhere: %v", err)
	}
	ok(t, os.RemoveAll(filepath.Join(second, one)))
	ok(t, b.Remove(t.Context(), one))
	ok(t, b.Remove(t.Context(), one))
	third := open(t, server, t.TempDir(), 1<<30)
	if _, err := third.Fetch(t.Context(), one); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that was removed: %v", err)
	}
	if dirs, err := third.List(t.Context()); err != nil || fmt.Sprint(dirs) != fmt.Sprint([]string{two}) {
		t.Errorf("then the bucket has %q, %v", dirs, err)
	}
	for _, dir := range []string{"", ".", "../x", "/etc", "a/../../b"} {
		if _, err := b.Fetch(t.Context(), dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q is fetched: %v", dir, err)
		}
		if b.Put(t.Context(), dir) == nil || b.Remove(t.Context(), dir) == nil {
			t.Errorf("%q is taken", dir)
		}
	}
	if id, err := a.Owner(t.Context(), "whose"); err != nil || id != "" {
		t.Errorf("nobody's bucket is of %q, %v", id, err)
	}
	ok(t, a.WriteOwner(t.Context(), "whose", "ours"))
	if id, err := b.Owner(t.Context(), "whose"); err != nil || id != "ours" {
		t.Errorf("the bucket is of %q, %v", id, err)
	}
}

// Local folders of what the bucket has are a cache: of bounded size, and gone with the process; what the bucket does not have stays.
func TestCache(t *testing.T) {
	server, dir := buckettest.New(t), t.TempDir()
	b := open(t, server, dir, 2500)
	content := func(i int) map[string]string {
		return map[string]string{"x": strings.Repeat(fmt.Sprint(i), 1000)}
	}
	name := func(i int) string { return fmt.Sprint("snapshots/run/", i) }
	var holds []func()
	for i := range 4 {
		write(t, dir, name(i), content(i))
		ok(t, b.Put(t.Context(), name(i)))
		if i == 0 {
			release, err := b.Fetch(t.Context(), name(0))
			ok(t, err)
			holds = append(holds, release)
		}
	}
	write(t, dir, name(9), content(9)) // no record names it yet
	same(t, dir, name(0), content(0))  // it is in use
	absent(t, filepath.Join(dir, name(1)))
	same(t, dir, name(3), content(3))
	release, err := b.Fetch(t.Context(), name(1))
	ok(t, err)
	same(t, dir, name(1), content(1))
	release()
	holds[0]()
	release, err = b.Fetch(t.Context(), name(9))
	ok(t, err)
	release()
	ok(t, b.Close())
	again, err := Open(t.Context(), b.opts)
	ok(t, err)
	defer again.Close()
	for i := range 4 {
		absent(t, filepath.Join(dir, name(i)))
	}
	same(t, dir, name(9), content(9))
}

// Many ask for the same folders at once.
func TestManyAtOnce(t *testing.T) {
	server, from, to := buckettest.New(t), t.TempDir(), t.TempDir()
	a, b := open(t, server, from, 1<<30), open(t, server, to, 1500)
	var all sync.WaitGroup
	for i := range 40 {
		dir, files := fmt.Sprint("snapshots/run/", i%4), map[string]string{"x": strings.Repeat(fmt.Sprint(i%4), 1000)}
		if i < 4 {
			write(t, from, dir, files)
		}
		all.Go(func() {
			if err := a.Put(t.Context(), dir); err != nil {
				t.Error(err)
				return
			}
			release, err := b.Fetch(t.Context(), dir)
			if err != nil {
				t.Error(err)
				return
			}
			same(t, to, dir, files)
			release()
		})
	}
	all.Wait()
}

// What comes from the bucket is what was sent there, or an error.
func TestDamage(t *testing.T) {
	server := buckettest.New(t)
	if server.Objects == nil {
		t.Skip("only the server of our own can be damaged")
	}
	from := t.TempDir()
	write(t, from, one, map[string]string{"x": "content", "y": "more"})
	ok(t, open(t, server, from, 1<<30).Put(t.Context(), one))
	object := func(name string) string { return server.Prefix + "/" + one + "/" + name }
	before := map[string][]byte{}
	for _, name := range []string{"x", manifestName} {
		server.Objects.Change(object(name), func(b []byte) []byte { before[name] = b; return b })
	}
	for _, c := range []struct {
		name, object string
		change       func([]byte) []byte
	}{
		{"a byte", "x", func(b []byte) []byte { b[0] ^= 1; return b }},
		{"cut off", "x", func(b []byte) []byte { return b[:3] }},
		{"longer", "x", func(b []byte) []byte { return append(b, 'z') }},
		{"gone", "x", func([]byte) []byte { return nil }},
		{"a name outside", manifestName, func(b []byte) []byte { return bytes.Replace(b, []byte(`"x"`), []byte(`"../../x"`), 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			server.Objects.Change(object(c.object), c.change)
			defer server.Objects.Change(object(c.object), func([]byte) []byte { return before[c.object] })
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			to := t.TempDir()
			if _, err := open(t, server, to, 1<<30).Fetch(ctx, one); err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it was fetched: %v", err)
			}
			absent(t, filepath.Join(to, one))
		})
	}
}

// memory is a store that notes what is committed.
type memory struct {
	store.Store
	batches []store.Batch
}

func (m *memory) Commit(_ context.Context, b store.Batch) error {
	m.batches = append(m.batches, b)
	return nil
}
func (m *memory) Err() error       { return nil }
func (m *memory) Room(int64) error { return nil }

// While the bucket is away no record is committed that names what it does not have, and new work is refused; fetches wait.
func TestAway(t *testing.T) {
	server, dir := buckettest.New(t), t.TempDir()
	b, inner := open(t, server, dir, 1<<30), &memory{}
	s := b.Store(inner)
	write(t, dir, one, map[string]string{"x": "y"})
	named := store.Batch{Put: []store.Record{{Collection: "checkpoints", Key: "1", Value: []byte(`{"Dir":"` + one + `"}`)}}}
	server.Away(true)
	if err := s.Commit(t.Context(), named); !errors.Is(err, store.ErrUnavailable) || len(inner.batches) != 0 {
		t.Errorf("committed: %v", err)
	}
	if !errors.Is(s.Err(), store.ErrUnavailable) || !errors.Is(s.Room(1), store.ErrUnavailable) {
		t.Errorf("new work is told %v", s.Err())
	}
	ok(t, s.Commit(t.Context(), store.Batch{Put: []store.Record{{Collection: "checkpoints", Key: "2", Value: []byte(`{}`)}, {Collection: "other", Value: []byte("no JSON")}}}))
	server.Away(false)
	other := open(t, server, t.TempDir(), 1<<30)
	server.Away(true)
	fetched := make(chan error, 1)
	go func() {
		_, err := other.Fetch(t.Context(), one)
		fetched <- err
	}()
	server.Away(false)
	for deadline := time.Now().Add(time.Minute); s.Err() != nil && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	ok(t, s.Commit(t.Context(), named))
	if len(inner.batches) != 2 {
		t.Errorf("%d batches were committed", len(inner.batches))
	}
	if err := <-fetched; err != nil && !errors.Is(err, fs.ErrNotExist) { // it may have been asked for before it was there
		t.Error(err)
	}
	release, err := other.Fetch(t.Context(), one)
	ok(t, err)
	release()
}
