package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Server is what the self-test does to a server beside sending requests.
type Server interface {
	// URL is its address without a slash at the end. It stays the same when the server is started again.
	URL() string
	// KillPlugin kills the process of the backend, as a fault would.
	KillPlugin(ctx context.Context) error
	// KillAndStart kills the server and its plugin, and returns when one with the same records is ready.
	KillAndStart(ctx context.Context) error
	// Export writes a checkpoint as a PEFT adapter into a folder that is not there yet.
	Export(ctx context.Context, path, dir string) error
}

// Process is a server in a process of its own. It is not used concurrently, but for URL.
type Process struct {
	program, dir, url string
	readyWithin       time.Duration
	cmd               *exec.Cmd
	ended             chan struct{} // closed when cmd has ended
	mu                sync.Mutex
}

// Start starts `PROGRAM serve` in a folder, which takes its configuration, records and log. settings are the configuration but for where it listens (loopback, a free port) and keeps its records (in the folder). The
// caller stops it.
func Start(ctx context.Context, program, dir string, settings map[string]any, readyWithin time.Duration) (*Process, error) {
	p := &Process{program: program, dir: dir, readyWithin: readyWithin}
	config := map[string]any{"listen": "127.0.0.1:0", "data_dir": p.data()}
	for name, value := range settings {
		config[name] = value
	}
	b, err := json.MarshalIndent(config, "", "  ") // JSON is YAML
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.file(), b, 0o600); err != nil {
		return nil, err
	}
	return p, p.start(ctx, "")
}

func (p *Process) data() string { return filepath.Join(p.dir, "data") }
func (p *Process) file() string { return filepath.Join(p.dir, "tinsmith.yaml") }

// URL implements Server.
func (p *Process) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

// start starts the process, on the address that the earlier one had, and waits until the model is ready.
func (p *Process) start(ctx context.Context, address string) error {
	arguments := []string{"serve", "--config", p.file()}
	if address != "" {
		arguments = append(arguments, "--listen", address)
	}
	if err := os.Remove(p.address()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.program, arguments...) //nolint:noctx // Stop ends it, in the orderly way
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ctrl-C at the terminal is for the self-test, which stops the server then
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // how it ended is told where that matters
		close(ended)
	}(p.cmd, p.ended)
	if err := p.ready(ctx); err != nil {
		p.Stop()
		return fmt.Errorf("%w; its last output:\n%s", err, p.tail())
	}
	return nil
}

// address is the file in which the server says where it listens.
func (p *Process) address() string { return filepath.Join(p.data(), "address") }

func (p *Process) ready(ctx context.Context) error {
	c := &client{server: p, http: newHTTP()}
	defer c.http.CloseIdleConnections()
	for deadline := time.Now().Add(p.readyWithin); time.Now().Before(deadline); {
		select {
		case <-p.ended:
			return fmt.Errorf("the server ended: %s", p.cmd.ProcessState)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		b, err := os.ReadFile(p.address())
		if err != nil {
			continue
		}
		p.mu.Lock()
		p.url = strings.TrimSpace(string(b))
		p.mu.Unlock()
		h, err := health(ctx, c)
		if err == nil && h.State == "failed" {
			return fmt.Errorf("the model is not served: %s", h.Reason)
		}
		if err == nil && h.Status == "ok" {
			return nil
		}
	}
	return fmt.Errorf("the server was not ready within %v", p.readyWithin)
}

// tail is the end of the server's log.
func (p *Process) tail() string {
	f, err := os.Open(filepath.Join(p.dir, "log"))
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 2000
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(b))
}

// Stop ends the server in the orderly way, or after a while in the other one.
func (p *Process) Stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.kill()
	}
}

// kill ends the gateway and what it has started.
func (p *Process) kill() {
	children := childrenOf(p.cmd.Process.Pid)
	_ = p.cmd.Process.Kill()
	<-p.ended
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// KillPlugin implements Server.
func (p *Process) KillPlugin(context.Context) error {
	children := childrenOf(p.cmd.Process.Pid)
	if len(children) == 0 {
		return errors.New("the server has no plugin to kill")
	}
	for _, pid := range children {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill the plugin: %w", err)
		}
	}
	return nil
}

// KillAndStart implements Server.
func (p *Process) KillAndStart(ctx context.Context) error {
	p.kill()
	return p.start(ctx, strings.TrimPrefix(p.URL(), "http://"))
}

// Export implements Server with the command that users have for it.
func (p *Process) Export(ctx context.Context, path, dir string) error {
	out, err := exec.CommandContext(ctx, p.program, "export", path, dir, "--url", p.URL(), "--key", "tml-selftest").CombinedOutput()
	if err != nil {
		return fmt.Errorf("tinsmith export: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// childrenOf lists the processes that a process has started and that run.
func childrenOf(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// PID (NAME) STATE PPID …, where NAME may have any character.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent) {
			found = append(found, pid)
		}
	}
	return found
}

// restartedSoon is how often it is looked whether a plugin is back.
const restartedSoon = 50 * time.Millisecond

// state is what /healthz says of the server and its one model.
type state struct {
	Status, Version           string
	State, Reason             string
	Restarts                  int
	Device, DType, Arithmetic string
}

func health(ctx context.Context, c *client) (state, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.URL()+"/healthz", nil)
	if err != nil {
		return state{}, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return state{}, err
	}
	defer answer.Body.Close()
	var h struct {
		Status, Version string
		Models          []struct {
			State, Reason, Device, DType, Arithmetic string
			Restarts                                 int
		}
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&h); err != nil { // with status 503 too
		return state{}, fmt.Errorf("/healthz: %w", err)
	}
	s := state{Status: h.Status, Version: h.Version}
	if len(h.Models) == 1 {
		m := h.Models[0]
		s.State, s.Reason, s.Restarts, s.Device, s.DType, s.Arithmetic = m.State, m.Reason, m.Restarts, m.Device, m.DType, m.Arithmetic
	}
	return s, nil
}

// answerWithin is how long the server may take to begin an answer. It holds requests for results for less than a minute.
const answerWithin = 5 * time.Minute

// newHTTP gives a client without the connections of others, and without a proxy: the server is on this machine.
func newHTTP() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16, ResponseHeaderTimeout: answerWithin}}
}
