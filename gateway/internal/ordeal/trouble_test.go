package ordeal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// refusedForNow checks that new work is refused in the way that makes clients repeat it.
func refusedForNow(t *testing.T, s *server, path string, body object, words string) {
	t.Helper()
	status, after, text := s.post(path, body)
	if status != http.StatusServiceUnavailable || after == "" || !strings.Contains(text, words) {
		t.Errorf("%s: %d, Retry-After %q, %s; want a 503 with %q", path, status, after, text, words)
	}
}

// post sends a request once.
func (s *server) post(path string, body object) (status int, retryAfter, text string) {
	s.Helper()
	b, err := json.Marshal(body)
	s.ok(err)
	answer, err := http.Post(s.url+"/api/v1"+path, "application/json", bytes.NewReader(b))
	s.ok(err)
	content, err := io.ReadAll(answer.Body)
	s.ok(errors.Join(err, answer.Body.Close()))
	return answer.StatusCode, answer.Header.Get("Retry-After"), string(content)
}

func (r *trainee) stepBody(seq int) object {
	return object{"model_id": r.id, "seq_id": seq, "type": "optim_step", "adam_params": object{"learning_rate": 1e-2}}
}

// smallDisk is a file system of so many MiB.
func smallDisk(t *testing.T, mebibytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mebibytes)); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes the room of a file system down to what is to be left.
func fill(t *testing.T, dir string, left int64) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "ballast"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		room := int64(fs.Bavail)*fs.Bsize - left
		if room <= 0 {
			return
		}
		if _, err := f.Write(make([]byte, min(room, 256<<10))); errors.Is(err, unix.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk fills the disk below a training run, first down to the reserve and then wholly, and gives the room back.
func TestFullDisk(t *testing.T) {
	train := func(t *testing.T, s *server, between func(*trainee)) string {
		r := newCaller(t, s.url).create(newCaller(t, s.url).session(), 0, 4)
		r.pass(0, 3, 12).must()
		r.step(1e-2).must()
		between(r)
		r.pass(1, 3, 12).must()
		r.step(1e-2).must()
		r.save("end").must()
		return sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
	}
	backend := settings{"plugin": "fake"}
	dir := smallDisk(t, 32)
	s := newServerIn(t, dir, backend, settings{"store": settings{"reserve_mib": 8}})
	s.start()
	s.ready()
	full := func(h health) bool { return h.Storage.State == "full" && h.Status == "degraded" }
	got := train(t, s, func(r *trainee) {
		fill(t, dir, 4<<20)
		s.await("full", full)
		refusedForNow(t, s, "/optim_step", r.stepBody(r.seq+1), "full")
		fill(t, dir, 0)
		// The store has files that it writes over: some sessions still find room there.
		session := object{"tags": []string{}, "user_metadata": object{"notes": strings.Repeat("n", 32<<10)}, "type": "create_session"}
		for taken := 0; ; taken++ {
			if status, _, _ := s.post("/create_session", session); status != http.StatusOK {
				break
			}
			if taken == 1000 {
				t.Fatal("1000 sessions were created on a full disk")
			}
		}
		refusedForNow(t, s, "/create_session", session, "")
		// What the client sends meanwhile it repeats, and it succeeds when there is room.
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Second)
			if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
				t.Error(err)
			}
		}()
		r.pass(9, 1, 5).must()
		r.step(0).must()
		<-done
		s.await("well again", func(h health) bool { return h.Status == "ok" && h.Storage.State == "ok" })
	})
	plain := newServer(t, backend, nil)
	plain.start()
	want := train(t, plain, func(r *trainee) { r.pass(9, 1, 5).must(); r.step(0).must() })
	if got != want {
		t.Errorf("the run that met a full disk ended with %s, an undisturbed one with %s", got, want)
	}
}

// TestWorkThatWaitsForTheDisk lets a disk have no room for an adapter that would have to leave the memory for another one: the server says so and refuses new work, although its own records still find room, and what it has
// accepted is done when there is room again.
func TestWorkThatWaitsForTheDisk(t *testing.T) {
	const rank, reserve = 64, 8
	train := func(s *server, between func(first *trainee)) (all []string) {
		c := newCaller(t, s.url)
		session := c.session()
		var runs []*trainee
		for n := range 3 { // of which two fit, but only one while it is stepped
			r := c.create(session, n, rank)
			r.pass(n, 2, 8).must()
			r.step(1e-2).must()
			runs = append(runs, r)
		}
		between(runs[0])
		for i, r := range runs {
			r.pass(3+i, 2, 8).must()
			r.step(1e-2).must()
			r.save("end").must()
			all = append(all, sums(t, filepath.Join(s.dir, "data", "checkpoints", strings.ReplaceAll(r.id, ":", "*"), "weights", "end~*")))
		}
		return all
	}
	backend := settings{"plugin": "single", "device": "cpu", "adapter_memory_mib": 60}
	dir := smallDisk(t, 192)
	s := newServerIn(t, dir, backend, settings{"store": settings{"reserve_mib": reserve}, "recovery": settings{"snapshot_every": "1h", "snapshot_operations": 1000}})
	s.start()
	s.ready()
	got := train(s, func(r *trainee) {
		fill(t, dir, (reserve+1)<<20)
		r.pass(9, 1, 5).must()
		waiting := r.step(0) // for which the last run, that no file has, would have to go
		s.await("work waits for the disk", func(h health) bool {
			return h.Status == "degraded" && h.Storage.State == "full" && strings.Contains(h.Storage.Reason, "waits for the disk")
		})
		refusedForNow(t, s, "/optim_step", r.stepBody(r.seq+1), "waits for the disk")
		s.ok(os.Remove(filepath.Join(dir, "ballast")))
		waiting.must()
		s.await("well again", func(h health) bool { return h.Status == "ok" && h.Storage.State == "ok" })
	})
	plain := newServer(t, backend, nil)
	plain.start()
	plain.ready()
	want := train(plain, func(r *trainee) { r.pass(9, 1, 5).must(); r.step(0).must() })
	if !slices.Equal(got, want) {
		t.Errorf("the runs that waited for the disk ended with %s, undisturbed ones with %s", got, want)
	}
}

// TestLockedDirectory starts a second server over the data of a first one: it waits, says so, and takes over when the first one is killed.
func TestLockedDirectory(t *testing.T) {
	first := newServer(t, settings{"plugin": "fake"}, nil)
	first.start()
	first.ready()
	second := newServerIn(t, first.dir, settings{"plugin": "fake"}, nil)
	second.ok(os.Remove(filepath.Join(first.dir, "log")))
	second.ok(second.startAgain())
	for deadline := time.Now().Add(within); second.url == "" && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, rest, ok := strings.Cut(second.log(), "listening on "); ok {
			second.url, _, _ = strings.Cut(rest, "\n")
		}
	}
	second.await("waiting for the lock", func(h health) bool { return h.Storage.State == "locked" && h.Status == "degraded" })
	refusedForNow(t, second, "/create_session", object{}, "starting")
	if b, err := os.ReadFile(filepath.Join(first.dir, "data", "address")); err != nil || strings.TrimSpace(string(b)) != first.url {
		t.Errorf("the address file says %s, %v; want %s", b, err, first.url)
	}
	first.ok(first.process.Process.Kill())
	<-first.ended
	second.ready()
	if b, err := os.ReadFile(filepath.Join(first.dir, "data", "address")); err != nil || strings.TrimSpace(string(b)) != second.url {
		t.Errorf("the address file says %s, %v; want %s", b, err, second.url)
	}
}

// TestHangingBackend stops the plugin: the server says that it hangs and takes nothing for it, and goes on when it does.
func TestHangingBackend(t *testing.T) {
	s := newServer(t, settings{"plugin": "fake"}, nil)
	s.start()
	s.ready()
	r := newCaller(t, s.url).create(newCaller(t, s.url).session(), 0, 4)
	r.pass(0, 2, 8).must()
	plugin := children(s.process.Process.Pid)
	if len(plugin) != 1 {
		t.Fatalf("plugins %v", plugin)
	}
	s.ok(syscall.Kill(plugin[0], syscall.SIGSTOP))
	s.await("hanging", func(h health) bool {
		return h.Status == "degraded" && h.Models[0].State == "hanging" && h.Models[0].Reason != ""
	})
	refusedForNow(t, s, "/optim_step", r.stepBody(2), "hangs")
	s.ok(syscall.Kill(plugin[0], syscall.SIGCONT))
	r.step(1e-2).must()
	s.await("well again", func(h health) bool { return h.Status == "ok" && h.Models[0].Restarts == 0 })
}

// TestLogWithoutReader: a server whose log nobody reads any more goes on.
func TestLogWithoutReader(t *testing.T) {
	s := newServer(t, settings{"plugin": "fake"}, nil)
	name := filepath.Join(s.dir, "log")
	s.ok(unix.Mkfifo(name, 0o600))
	reader, err := os.OpenFile(name, os.O_RDWR, 0) // for reading alone it would wait for the server
	s.ok(err)
	s.start()
	s.ready()
	s.ok(os.Remove(name)) // or those who want to print the log wait for its end
	s.ok(reader.Close())
	s.ok(syscall.Kill(children(s.process.Process.Pid)[0], syscall.SIGKILL)) // of which the server tells its log
	s.await("well after the kill", func(h health) bool { return h.Status == "ok" && h.Models[0].Restarts == 1 })
}

// TestKilledForHanging lets a plugin hang for good: it is killed and replaced, and the client of the run sees nothing of it.
func TestKilledForHanging(t *testing.T) {
	if os.Getenv("E2E_LEVEL") != "all" {
		t.Skip("takes half a minute; E2E_LEVEL=all runs it")
	}
	s := newServer(t, settings{"plugin": "fake"}, nil)
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	r := c.create(c.session(), 0, 4)
	_, before := r.pass(0, 2, 8).must()
	s.ok(syscall.Kill(children(s.process.Process.Pid)[0], syscall.SIGSTOP))
	_, after := r.pass(0, 2, 8).must() // the same data and weights: the first gradient is still in the accumulator
	if essence(t, before) != essence(t, after) {
		t.Error("the pass differs after the plugin was replaced")
	}
	s.await("well again", func(h health) bool { return h.Status == "ok" && h.Models[0].Restarts == 1 })
}

// TestRebuildingIsShown kills the plugin under a run with a long past: the server says how far the run is on its way back, and serves everything else meanwhile.
func TestRebuildingIsShown(t *testing.T) {
	const passes = 6
	s := newServer(t, settings{"plugin": "fake", "delays": []any{settings{"operation": "forward_backward", "seconds": 0.7}}}, nil)
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	session := c.session()
	r := c.create(session, 0, 4)
	for i := range passes {
		r.pass(i, 1, 6).must()
	}
	sampler := c.sampler(session, 0, "")
	s.ok(syscall.Kill(children(s.process.Process.Pid)[0], syscall.SIGKILL))
	s.await("rebuilding", func(h health) bool {
		m := h.Models
		return h.Status == "ok" && m[0].State == "rebuilding" && m[0].Rebuilding.Runs == 1 && m[0].Rebuilding.ToReplay == passes && m[0].Rebuilding.Replayed > 0 && m[0].Rebuilding.Replayed < passes
	})
	c.sample(sampler, 0, 4).must()
	s.await("rebuilt", func(h health) bool { return h.Status == "ok" && h.Models[0].State == "ready" })
	r.step(1e-2).must()
}

// TestWorkThatCrashesItsBackend lets a pass and a sample crash the plugin whenever they run: each fails with the reason and the plugin's last words, and everybody else goes on as if they had never been.
// Their crashes together are more than the supervisor allows.
func TestWorkThatCrashesItsBackend(t *testing.T) {
	const poison = 50
	backend := settings{"plugin": "fake", "delays": []any{settings{"operation": "optim_step", "seconds": 0.05}}, "faults": []any{
		settings{"operation": "forward_backward", "token": poison, "action": "crash", "exit_code": 7},
		settings{"operation": "sample", "token": poison, "action": "crash", "exit_code": 8},
	}}
	live := func(poisoned bool) findings {
		s := newServer(t, backend, nil)
		s.start()
		s.ready()
		c := newCaller(t, s.url)
		session := c.session()
		guilty, others := c.create(session, 0, 4), []*trainee{c.create(session, 1, 4), c.create(session, 2, 2)}
		sampler := c.sampler(session, 0, "")
		f := findings{}
		var waiting []func()
		work := func(rounds int) {
			for i := range rounds {
				for j, r := range others {
					pass, step, sample := r.pass(i, 2, 8), r.step(1e-2), c.sample(sampler, 10*i+j, 4)
					name := fmt.Sprint("round ", i, " of ", j)
					waiting = append(waiting, func() {
						_, b := pass.must()
						step.must()
						_, tokens := sample.must()
						f[name] = fmt.Sprintf("%s %x", essence(t, b), tokens)
					})
				}
			}
		}
		fails := func(one submitted, words ...string) {
			_, _, err := one.result()
			for _, w := range append(words, "told to crash", "it crashes the backend") {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("the guilty work ended with %v, want %q in it", err, w)
				}
			}
		}
		work(6)
		if poisoned {
			guilty.mark = poison
			fails(guilty.pass(0, 2, 8), "exit status 7")
			guilty.mark = 0
			fails(c.sampleOf(sampler, 1000, 4, []int{11, poison, 12}), "exit status 8")
		}
		guilty.pass(1, 2, 8).must()
		guilty.step(1e-2).must()
		for _, w := range waiting {
			w()
		}
		for i, r := range append(others, guilty) {
			name := fmt.Sprint("end", i)
			r.save(name).must()
			f[name] = sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", name+"~*"))
		}
		s.await("well", func(h health) bool {
			return h.Status == "ok" && (h.Models[0].Restarts > 0) == poisoned && h.Models[0].Restarts <= 8
		})
		if poisoned {
			t.Logf("%d restarts", s.healthz().Models[0].Restarts)
		}
		return f
	}
	compare(t, live(true), live(false))
}

// TestBackendThatStaysDead gives up a plugin that crashes whenever it loads the model, and fails what has waited for it with the reason and the last of its output. (Crashes whose cause is found to be some work do not count.)
func TestBackendThatStaysDead(t *testing.T) {
	if os.Getenv("E2E_LEVEL") != "all" { // the pauses between the starts take a while
		t.Skip("takes half a minute; E2E_LEVEL=all runs it")
	}
	s := newServer(t, settings{"plugin": "fake", "faults": []any{settings{"operation": "load", "n": 1, "action": "crash", "exit_code": 7}}}, nil)
	s.start()
	c := newCaller(t, s.url)
	waiting := c.submit("/create_model", object{"session_id": c.session(), "model_seq_id": 0, "base_model": modelName, "type": "create_model", "lora_config": object{"rank": 4}})
	s.await("given up", func(h health) bool {
		return h.Status == "degraded" && h.Models[0].State == "failed" && strings.Contains(h.Models[0].Reason, "5 crashes")
	})
	if _, _, err := waiting.result(); err == nil || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "told to crash") {
		t.Errorf("the creation ended with %v, want the reason and the last of the plugin's output", err)
	}
}

// TestRebuildThatCrashesItsBackend gives a run a past that crashes the plugin, which it did not when it was new, and kills the server in the middle: that run is given up by name, with the operation that
// does it, and all others are rebuilt and go on.
func TestRebuildThatCrashesItsBackend(t *testing.T) {
	const poison = 50
	live := func(poisoned bool) findings {
		s := newServer(t, settings{"plugin": "fake"}, nil)
		s.start()
		s.ready()
		c := newCaller(t, s.url)
		session := c.session()
		guilty, others := c.create(session, 0, 4), []*trainee{c.create(session, 1, 4), c.create(session, 2, 2)}
		guilty.mark = poison
		for i := range 3 {
			for _, r := range append(others, guilty) {
				r.pass(i, 2, 8).must()
				r.step(1e-2).must()
			}
		}
		guilty.mark = 0
		s.end()
		if poisoned {
			s.configure(settings{"plugin": "fake", "faults": []any{settings{"operation": "forward_backward", "token": poison, "action": "crash", "exit_code": 7}}}, nil)
		}
		s.start()
		if poisoned {
			s.await("crashed", func(h health) bool { return len(h.Models) == 1 && h.Models[0].LastLoss != "" })
			s.ok(s.process.Process.Kill())
			<-s.ended
			s.start()
		}
		f := findings{}
		for i, r := range others {
			_, b := r.pass(3, 2, 8).must()
			r.step(1e-2).must()
			name := fmt.Sprint("end", i)
			r.save(name).must()
			f[name] = essence(t, b) + sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", name+"~*"))
		}
		_, _, err := guilty.pass(3, 2, 8).result()
		if (err != nil) != poisoned || poisoned && (!strings.Contains(err.Error(), "its rebuild crashes the backend") || !strings.Contains(err.Error(), guilty.id+":1 ran again") || !strings.Contains(err.Error(), "exit status 7")) {
			t.Errorf("the guilty run ended with %v", err)
		}
		s.await("well", func(h health) bool { return h.Status == "ok" && h.Models[0].State == "ready" })
		return f
	}
	compare(t, live(true), live(false))
}
