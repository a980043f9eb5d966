package ordeal

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReload changes micro-batch and recompute of the real backend under a training run, by SIGHUP: the run ends with the bits of one that nobody touched, also when its plugin is killed afterwards.
// What cannot be changed is refused by name, and changes nothing.
func TestReload(t *testing.T) {
	backend := func(change settings) settings {
		b := settings{"plugin": "single", "device": "cpu", "dtype": "float32", "threads": 2, "batch_tokens": 512, "recompute": "off"}
		for k, v := range change {
			b[k] = v
		}
		return b
	}
	info := settings{"log": settings{"level": "info"}}
	live := func(touched bool) string {
		s := newServer(t, backend(nil), info)
		s.start()
		s.ready()
		reload := func(change settings, words ...string) {
			if !touched {
				return
			}
			from := len(s.log())
			s.configure(backend(change), info)
			s.ok(s.process.Process.Signal(syscall.SIGHUP))
			text := ""
			for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				text = s.log()[from:]
				found := true
				for _, w := range words {
					found = found && strings.Contains(text, w)
				}
				if found {
					return
				}
			}
			t.Fatalf("after SIGHUP with %v the log lacks %q:\n%s", change, words, lastOf(text, 2000))
		}
		c := newCaller(t, s.url)
		r := c.create(c.session(), 0, 8)
		train := func(i int) {
			pass, step := r.pass(i, 6, 60), r.step(1e-2)
			pass.must()
			step.must()
		}
		train(0)
		pass := r.pass(1, 6, 60) // it may run under either
		reload(settings{"batch_tokens": 64, "recompute": "on"}, "backend configured", "batch_tokens", "recompute")
		pass.must()
		r.step(1e-2).must()
		train(2)
		reload(settings{"batch_tokens": 64, "recompute": "on", "threads": 1}, "not taken over", "threads")
		train(3)
		if touched {
			s.ok(syscall.Kill(children(s.process.Process.Pid)[0], syscall.SIGKILL))
		}
		train(4)
		if touched {
			s.await("well after the kill", func(h health) bool { return h.Status == "ok" && h.Models[0].Restarts == 1 })
		}
		r.save("end").must()
		return sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
	}
	if got, want := live(true), live(false); got != want {
		t.Errorf("the run that was reconfigured ended with %s, an undisturbed one with %s", got, want)
	}
}
