package ordeal

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
	"github.com/tinsmith/tinsmith/plugins"
)

// command runs a command of the program on the server's data directory.
func (s *server) command(args ...string) (stdout, stderr string, err error) {
	c := exec.Command(filepath.Join(s.programs, "tinsmith"), append(args, "--config", filepath.Join(s.dir, "tinsmith.yaml"))...)
	c.Env = append(os.Environ(), runVariable+"=1")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

// kill9 ends the server as a power cut would, but for the disk.
func (s *server) kill9() {
	s.Helper()
	s.ok(s.process.Process.Signal(syscall.SIGKILL))
	<-s.ended
}

// contents gives the files below folders of the data directory, wherever unclaimed they are, without those that change by themselves.
func (s *server) contents(folders ...string) map[string]string {
	s.Helper()
	data := filepath.Join(s.dir, "data")
	found := map[string]string{}
	for _, folder := range append(folders, "unclaimed") {
		s.ok(filepath.WalkDir(filepath.Join(data, folder), func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			rel, _ := filepath.Rel(data, path)
			if parts := strings.SplitN(rel, string(filepath.Separator), 3); parts[0] == "unclaimed" {
				rel = parts[2]
			}
			if slices.Contains(folders, strings.SplitN(rel, string(filepath.Separator), 2)[0]) {
				found[rel] = string(b)
			}
			return err
		}))
	}
	return found
}

// TestLostStore damages the store of a server that was killed. It must refuse to start and say what to do, or have lost nothing; no file of a checkpoint is deleted; and `tinsmith recover` brings back every checkpoint whose
// files are whole, from which a client goes on with the same bits.
func TestLostStore(t *testing.T) {
	remove := func(s *server, patterns ...string) {
		for _, p := range patterns {
			found, err := filepath.Glob(filepath.Join(s.dir, "data", p))
			s.ok(err)
			for _, path := range found {
				s.ok(os.RemoveAll(path))
			}
		}
	}
	change := func(s *server, pattern string, change func([]byte) []byte) {
		found, err := filepath.Glob(filepath.Join(s.dir, "data", pattern))
		s.ok(err)
		for _, path := range found {
			b, err := os.ReadFile(path)
			s.ok(err)
			s.ok(os.WriteFile(path, change(b), 0o600))
		}
	}
	for _, c := range []struct {
		name string
		lose func(s *server, older string)
	}{
		{"nothing", func(*server, string) {}},
		{"the database", func(s *server, _ string) { remove(s, "tinsmith.db*") }},
		{"the write-ahead log", func(s *server, _ string) { remove(s, "tinsmith.db-wal") }},
		{"the end of the write-ahead log", func(s *server, _ string) {
			change(s, "tinsmith.db-wal", func(b []byte) []byte { return b[:len(b)*2/3] })
		}},
		{"a bit of the write-ahead log", func(s *server, _ string) {
			change(s, "tinsmith.db-wal", func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}},
		{"half of the database", func(s *server, _ string) {
			change(s, "tinsmith.db", func(b []byte) []byte { clear(b[len(b)/2:]); return b })
		}},
		{"the database to an older copy", func(s *server, older string) {
			remove(s, "tinsmith.db*")
			b, err := os.ReadFile(filepath.Join(older, "tinsmith.db"))
			s.ok(err)
			s.ok(os.WriteFile(filepath.Join(s.dir, "data", "tinsmith.db"), b, 0o600))
		}},
		{"everything to an older copy", func(s *server, older string) {
			remove(s, "tinsmith.db*", "journal", "commits", "log*", "generation", "lock", "address", "token-secret")
			entries, err := os.ReadDir(filepath.Join(s.dir, "data"))
			s.ok(err)
			for _, e := range entries {
				if !e.IsDir() || e.Name() == "journal" {
					s.ok(os.RemoveAll(filepath.Join(s.dir, "data", e.Name())))
				}
			}
			s.ok(os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(older)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, settings{"plugin": "fake"}, nil)
			s.start()
			s.ready()
			client := newCaller(t, s.url)
			session := client.session()
			a := client.create(session, 0, 4)
			a.pass(0, 3, 12).must()
			a.step(1e-2).must()
			state, _ := a.save("early").must()
			s.end()
			older := t.TempDir()
			entries, err := os.ReadDir(filepath.Join(s.dir, "data"))
			s.ok(err)
			for _, e := range entries {
				path := filepath.Join(s.dir, "data", e.Name())
				switch {
				case e.Name() == "checkpoints" || e.Name() == "recovery" || e.Name() == "snapshots" || e.Name() == "scratch":
				case e.IsDir():
					s.ok(os.CopyFS(filepath.Join(older, e.Name()), os.DirFS(path)))
				case e.Type().IsRegular():
					b, err := os.ReadFile(path)
					s.ok(err)
					s.ok(os.WriteFile(filepath.Join(older, e.Name()), b, 0o600))
				}
			}
			s.ok(s.startAgain())
			s.ready()
			a.pass(1, 3, 12).must()
			a.step(1e-2).must()
			late, _ := a.save("late").must()
			named, _ := a.saveForSampler("named", 0).must()
			time.Sleep(1500 * time.Millisecond) // some of it is in the database by then, and some is not
			a.pass(2, 1, 8).must()
			s.kill9()
			before := s.contents("checkpoints")
			c.lose(s, older)
			said := s.refusalOrStart()
			switch {
			case said == "":
				s.ready()
				s.end()
			case !strings.Contains(said, "tinsmith recover"):
				t.Errorf("the refusal says %s", lastOf(said, 2000))
			default:
				t.Logf("refused: %.600s", lastOf(said, 600))
				if now := s.contents("checkpoints"); !maps.Equal(now, before) {
					t.Errorf("the refused start changed files: %d, were %d", len(now), len(before))
				}
				if out, _, err := s.command("recover"); err == nil || !strings.Contains(out, "checkpoints/") {
					t.Errorf("recover says %v\n%s", err, out)
				}
			}
			if now := s.contents("checkpoints"); !maps.Equal(now, before) {
				t.Errorf("files of checkpoints changed: %v, were %v", slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(before)))
			}
			out, errs, err := s.command("recover", "--accept", "--claim", "all", "--json")
			if err != nil {
				t.Fatalf("recover: %v\n%s%s", err, out, errs)
			}
			var report struct {
				Claimed []object
				Items   []object
				Missing []object
			}
			s.ok(json.Unmarshal([]byte(out), &report))
			t.Logf("%d claimed, %d items left, %d without files", len(report.Claimed), len(report.Items), len(report.Missing))
			s.ok(s.startAgain())
			s.ready()
			client = newCaller(t, s.url)
			next := client.session()
			for n, path := range []string{state["path"].(string), late["path"].(string)} {
				client.resume(next, n, path).pass(0, 1, 8).must()
			}
			client.sample(client.sampler(next, 9, named["path"].(string)), 0, 4).must()
			weights := 0
			for path := range s.contents("checkpoints") {
				if strings.HasSuffix(path, plugins.AdapterWeightsFile) {
					weights++
				}
			}
			if weights < 3 {
				t.Errorf("%d checkpoints", weights)
			}
		})
	}
}

// refusalOrStart starts the server, and gives what it says if it does not come up; "" if it does.
func (s *server) refusalOrStart() string {
	s.Helper()
	before := len(s.log())
	s.ok(s.startAgain())
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if s.gone() {
			return s.log()[before:]
		}
		if s.healthz().Status == "ok" {
			return ""
		}
	}
	s.Fatal("the server neither comes up nor ends")
	return ""
}

// lesson is the i-th operation of a run that is backed up while it goes on.
func lesson(r *trainee, i int) submitted {
	switch {
	case i%7 == 3:
		return r.saveForSampler(fmt.Sprint("at-", i), 0)
	case i%5 == 4:
		return r.save(fmt.Sprint("state-", i))
	case i%2 == 0:
		return r.pass(i, 2, 10)
	}
	return r.step(1e-2)
}

// TestBackupWhileTraining backs a server up while a run goes on, with saves and recovery points, and restores it elsewhere, where the client sends everything again: what the backup has is not done twice, the rest is done, and the run ends
// with the bits of the undisturbed one. So it does in the server that was backed up.
func TestBackupWhileTraining(t *testing.T) {
	const operations = 60
	more := settings{"recovery": settings{"snapshot_operations": 2, "disk_share": 1.0}}
	s := newServer(t, settings{"plugin": "fake"}, more)
	s.start()
	s.ready()
	client := newCaller(t, s.url)
	session := client.session()
	r := client.create(session, 0, 4)
	taken := make(chan error, 1)
	backup := filepath.Join(t.TempDir(), "backup")
	for i := range operations {
		if i == operations/3 {
			go func() {
				out, errs, err := s.command("backup", backup)
				if err != nil || !strings.Contains(out, "backed up") || strings.Contains(errs, "damaged") {
					err = fmt.Errorf("backup: %w\n%s%s", err, out, errs)
				}
				taken <- err
			}()
		}
		lesson(r, i).must()
	}
	s.ok(<-taken)
	r.save("end").must()
	want := sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
	s.end()
	if out, _, err := s.command("backup", backup); err == nil {
		t.Errorf("a backup over another: %s", out)
	}

	again := newServer(t, settings{"plugin": "fake"}, more)
	if out, errs, err := again.command("restore", backup); err != nil {
		t.Fatalf("restore: %v\n%s%s", err, out, errs)
	}
	if out, _, err := again.command("restore", backup); err == nil {
		t.Errorf("a restore over another: %s", out)
	}
	again.start()
	again.ready()
	if left := again.contents("checkpoints", "snapshots"); len(left) == 0 {
		t.Error("nothing was restored")
	}
	r = &trainee{newCaller(t, again.url), session, r.id, 0, 0}
	for i := range operations {
		lesson(r, i).must()
	}
	r.save("end").must()
	if got := sums(t, filepath.Join(again.dir, "data", "checkpoints", "*", "weights", "end~*")); got != want {
		t.Errorf("the restored run ended with %s, the other with %s", got, want)
	}
	again.end()

	// Of a server that does not run it is the same.
	cold := filepath.Join(t.TempDir(), "backup")
	if out, errs, err := again.command("backup", cold); err != nil {
		t.Fatalf("backup: %v\n%s%s", err, out, errs)
	}
	third := newServer(t, settings{"plugin": "fake"}, more)
	if out, errs, err := third.command("restore", cold); err != nil {
		t.Fatalf("restore: %v\n%s%s", err, out, errs)
	}
	third.start()
	third.ready()
	c := newCaller(t, third.url)
	c.resume(c.session(), 0, "tinker://"+r.id+"/weights/end").pass(0, 1, 8).must()
	if out, _, err := third.command("recover"); err == nil {
		t.Errorf("recover beside a running server: %s", out)
	}
}

// schema makes an empty schema in the database of TINSMITH_POSTGRES, and writes the file that names it.
func schema(t testing.TB, dir string) (file string) {
	t.Helper()
	file = filepath.Join(dir, strings.ToLower(rand.Text()))
	if err := os.WriteFile(file, []byte(storetest.Schema(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAnotherDriver gives a data directory in use another database: the server refuses, and deletes nothing. A backup is the way from one to the other, and back, and runs go on with the same bits.
func TestAnotherDriver(t *testing.T) {
	s := newServer(t, settings{"plugin": "fake"}, nil)
	postgres := settings{"store": settings{"driver": "postgres", "url_file": schema(t, s.dir)}}
	s.start()
	s.ready()
	client := newCaller(t, s.url)
	session := client.session()
	r := client.create(session, 0, 4)
	for i := range 20 {
		lesson(r, i).must()
	}
	s.end()
	before := s.contents("checkpoints", "snapshots", "recovery")
	s.configure(settings{"plugin": "fake"}, postgres)
	if said := s.refusalOrStart(); !strings.Contains(said, "another store") || !strings.Contains(said, "tinsmith recover") {
		t.Errorf("with another database it says %q", lastOf(said, 2000))
	}
	if out, _, err := s.command("recover"); err == nil || !strings.Contains(out, "another store") {
		t.Errorf("recover: %v\n%s", err, out)
	}
	if now := s.contents("checkpoints", "snapshots", "recovery"); !maps.Equal(now, before) {
		t.Errorf("files are %v, were %v", slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(before)))
	}
	s.configure(settings{"plugin": "fake"}, nil)
	s.ok(s.startAgain())
	s.ready()
	r.caller = newCaller(t, s.url)
	// move backs a server up and restores it elsewhere.
	move := func(from *server, to settings) *server {
		backup := filepath.Join(t.TempDir(), "backup")
		if out, errs, err := from.command("backup", backup); err != nil {
			t.Fatalf("backup: %v\n%s%s", err, out, errs)
		}
		next := newServer(t, settings{"plugin": "fake"}, to)
		if out, errs, err := next.command("restore", backup); err != nil {
			t.Fatalf("restore: %v\n%s%s", err, out, errs)
		}
		next.start()
		next.ready()
		return next
	}
	there := move(s, postgres)
	moved := &trainee{newCaller(t, there.url), session, r.id, r.seq, 0}
	for i := 20; i < 25; i++ {
		lesson(moved, i).must()
	}
	back := move(there, nil)
	moved.caller = newCaller(t, back.url)
	for i := 20; i < 30; i++ {
		lesson(r, i).must()
		if i >= 25 {
			lesson(moved, i).must()
		}
	}
	ends := map[*server]string{s: "", back: ""}
	for on, run := range map[*server]*trainee{s: r, back: moved} {
		run.save("end").must()
		ends[on] = sums(t, filepath.Join(on.dir, "data", "checkpoints", "*", "weights", "end~*"))
	}
	if ends[s] != ends[back] {
		t.Errorf("moved twice the run ends with %s, else with %s", ends[back], ends[s])
	}
	// The state that was accepted there begins anew.
	other := newServer(t, settings{"plugin": "fake"}, settings{"store": settings{"driver": "postgres", "url_file": schema(t, t.TempDir())}})
	s.end()
	s.ok(os.Rename(filepath.Join(s.dir, "data"), filepath.Join(other.dir, "data")))
	want := other.contents("checkpoints")
	if out, errs, err := other.command("recover", "--accept", "--claim", "all"); err != nil || !strings.Contains(out, "/weights/end") {
		t.Fatalf("recover: %v\n%s%s", err, out, errs)
	}
	for path, content := range other.contents("checkpoints") {
		if old, there := want[path]; there && old != content && !strings.HasSuffix(path, "tinsmith.json") {
			t.Errorf("%s changed", path)
		}
		delete(want, path)
	}
	if len(want) != 0 {
		t.Errorf("gone are %v", slices.Sorted(maps.Keys(want)))
	}
	s.ok(os.Remove(filepath.Join(other.dir, "data", "address"))) // the old one
	other.start()
	other.ready()
	client = newCaller(t, other.url)
	client.resume(client.session(), 0, "tinker://"+r.id+"/weights/end").pass(0, 1, 8).must()
}
