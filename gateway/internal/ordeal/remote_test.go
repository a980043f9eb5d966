package ordeal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

// platform is another machine that starts a backend's program again whenever it has ended, with a data directory that no gateway sees.
type platform struct {
	testing.TB
	plugin, dir string
	address     string
	machine     *lan.Machine // nil: this one
	server      plugins.TLSFiles
	client      plugins.TLSFiles
	stop        chan struct{}
	stopped     sync.WaitGroup
}

// newPlatform starts one for a plugin, on this machine.
func newPlatform(t testing.TB, plugin string) *platform {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	return newPlatformAt(t, plugin, address, nil)
}

// newPlatformOn starts one on a machine of its own.
func newPlatformOn(t testing.TB, plugin string, m *lan.Machine) *platform {
	t.Helper()
	return newPlatformAt(t, plugin, net.JoinHostPort(m.Address(), "7000"), m, m.IP())
}

// newPlatformAt starts one that listens at an address, for which its certificate is good.
func newPlatformAt(t testing.TB, plugin, address string, m *lan.Machine, names ...net.IP) *platform {
	t.Helper()
	ca := authority.New(t)
	p := &platform{
		TB: t, plugin: plugin, dir: t.TempDir(), address: address, machine: m,
		server: ca.Issue(t, "backend", names...), client: ca.Issue(t, "gateway"), stop: make(chan struct{}),
	}
	p.stopped.Go(p.run)
	t.Cleanup(func() {
		close(p.stop)
		p.stopped.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			t.Logf("the log of the backend:\n%s", lastOf(string(b), 6000))
		}
	})
	return p
}

// pidFile has the number of the process that runs.
func (p *platform) pidFile() string { return filepath.Join(p.dir, "pid") }

func (p *platform) run() {
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		p.Error(err)
		return
	}
	defer log.Close()
	for {
		c := exec.Command(filepath.Join(programs, "plugins", p.plugin), "serve", "--listen", p.address, "--data", filepath.Join(p.dir, "data"), "--lease", "2s",
			"--tls-cert", p.server.Cert, "--tls-key", p.server.Key, "--client-ca", p.server.CA, "--model", filepath.Join(root(), "configs", "models", "tiny-chat"))
		c.Stdout, c.Stderr = log, log
		if err := p.machine.Start(c); err != nil {
			p.Error(err)
			return
		}
		if err := os.WriteFile(p.pidFile(), []byte(strconv.Itoa(c.Process.Pid)), 0o600); err != nil {
			p.Error(err)
		}
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		select {
		case <-ended:
			select {
			case <-p.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		case <-p.stop:
			_ = c.Process.Signal(syscall.SIGTERM)
			<-ended
			if code := c.ProcessState.ExitCode(); code != 0 {
				p.Errorf("asked to end, the backend exited with %d", code)
			}
			return
		}
	}
}

// section is the backend's in the gateway's configuration, by an address that may be that of a link.
func (p *platform) section(address string, more settings) settings {
	s := settings{"address": address, "tls": settings{"cert_file": p.client.Cert, "key_file": p.client.Key, "ca_file": p.client.CA}}
	for k, v := range more {
		s[k] = v
	}
	return s
}

// TestRemoteUnderKills kills gateway, backend, or both, which are on two machines with nothing in common, while a client works. All it gets is what a server with the same backend on its own machine gives, undisturbed.
func TestRemoteUnderKills(t *testing.T) {
	points := 6
	if os.Getenv("E2E_LEVEL") == "all" {
		points = 40
	}
	p := newPlatform(t, "fake")
	t.Setenv(elsewhereVariable, p.pidFile())
	got := killAt(t, victim{backend: p.section(p.address, settings{"plugin": "fake"})}, points, 0)
	want, _, _, _ := live(t, victim{backend: settings{"plugin": "fake"}})
	compare(t, got, want)
}

// TestRemoteModel is the real engine on another machine, by a link that breaks while a run trains, and goes silent: training and samples are, to the bit, what they are without all that, and a chat is answered.
func TestRemoteModel(t *testing.T) {
	work := func(s *server, disturb func(int)) findings {
		s.start()
		s.ready()
		c, f := newCaller(t, s.url), findings{}
		r := c.create(c.session(), 0, 4)
		for i := range 4 {
			pass, step := r.pass(i, 3, 20), r.step(1e-2)
			disturb(i)
			_, b := pass.must()
			out, _ := step.must()
			made, _ := r.saveForSampler("", i).must()
			_, tokens := c.sample(made["sampling_session_id"].(string), 0, 6).must()
			f[fmt.Sprint("round ", i)] = fmt.Sprintf("%s %v %x", essence(t, b), out["metrics"].(object)["grad_norm"], tokens)
		}
		r.save("end").must()
		f["weights and optimizer"] = sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
		return f
	}
	real := settings{"device": "cpu", "dtype": "float32", "threads": 1}
	local := settings{"plugin": "single"}
	for k, v := range real {
		local[k] = v
	}
	want := work(newServer(t, local, nil), func(int) {})
	p := newPlatform(t, "single")
	way := link.New(t, p.address)
	s := newServer(t, p.section(way.Address(), real), nil)
	compare(t, work(s, func(round int) {
		switch round {
		case 1:
			way.Cut()
		case 2: // nothing comes back, until the gateway has noticed; the backend goes on meanwhile
			way.Hold(link.Back, true)
			s.await("lost", func(h health) bool { return len(h.Models) == 1 && h.Models[0].Restarts >= 2 })
			way.Hold(link.Back, false)
		case 3:
			way.Delay(5 * time.Millisecond)
		}
	}), want)
	body, err := json.Marshal(object{"model": modelName, "max_tokens": 8, "temperature": 0, "messages": []object{{"role": "user", "content": "2+2="}}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(s.url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var out struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(answer.Body).Decode(&out); err != nil || answer.StatusCode != http.StatusOK || len(out.Choices) != 1 || out.Choices[0].Message.Content == "" {
		t.Errorf("the chat: %s, %+v, %v", answer.Status, out, err)
	}
	if strings.Contains(s.log(), "crashes the backend") {
		t.Error("a link that broke was taken for a crash")
	}
}
