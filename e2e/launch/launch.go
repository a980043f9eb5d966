// Package launch builds the programs of this tree and starts servers from them, for the tests beside it that look at a running server from outside. It knows
// processes, the configuration file, keys and /healthz. It knows no other request, and nothing of the server's own packages.
package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// readyWithin is generous: the machine may be busy with other tests.
const readyWithin = 2 * time.Minute

// root is the repository's folder: tests run in the folder of their package, two below it.
func root() string {
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return dir
}

// ModelDir is the directory of the built-in model.
func ModelDir() string { return filepath.Join(root(), "configs", "models", "tiny-chat") }

// Build compiles the server and its plugin single into a folder.
func Build(ctx context.Context, folder string) error {
	for output, source := range map[string]string{"tinsmith": "./gateway", "plugins/single": "./backends/single"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(folder, output), source)
		build.Dir = root()
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", source, err, out)
		}
	}
	return nil
}

// Program is the server's program in a folder that Build has filled.
func Program(folder string) string { return filepath.Join(folder, "tinsmith") }

// Configuration is that of a server of the built-in model, under a name, on the processor. It is the caller's to change.
func Configuration(name string) map[string]any {
	return map[string]any{"models": []any{map[string]any{
		"name": name, "path": ModelDir(), "backend": map[string]any{"plugin": "single", "device": "cpu", "dtype": "float32"},
	}}}
}

// Server is a server that runs. Its methods may be called concurrently.
type Server struct {
	URL  string
	Keys map[string]string // of ann and bob, by name
	Dir  string            // with the configuration, the keys, the data directory data, and log

	process *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// Start starts a server in an empty folder, which takes its configuration, keys, data directory and log, and waits until its models are ready. programs is a folder that Build has filled; listen, data_dir and auth
// of config are set here. descriptors, if above 0, is how many files the process may have open. The end of ctx kills it.
func Start(ctx context.Context, programs, dir string, config map[string]any, descriptors int) (*Server, error) {
	s := &Server{Dir: dir, Keys: map[string]string{}, ended: make(chan struct{})}
	config["listen"], config["data_dir"] = "127.0.0.1:0", s.data()
	config["auth"] = map[string]string{"keys_file": filepath.Join(dir, "keys")}
	b, err := json.Marshal(config) // JSON is YAML
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "tinsmith.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, err
	}
	for _, name := range []string{"ann", "bob"} {
		out, err := exec.CommandContext(ctx, Program(programs), "key", "add", name, "--config", file).Output()
		if err != nil {
			return nil, fmt.Errorf("key add: %w", err)
		}
		s.Keys[name] = strings.TrimSpace(string(out))
	}
	s.process = exec.CommandContext(ctx, Program(programs), "serve", "--config", file)
	if descriptors > 0 {
		s.process = exec.CommandContext(ctx, "sh", "-c", `ulimit -n "$1" && exec "$2" serve --config "$3"`, "sh", strconv.Itoa(descriptors), Program(programs), file)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.process.Wait() // Running tells how it ended
		close(s.ended)
	}()
	if err := s.ready(ctx); err != nil {
		s.Stop()
		return nil, fmt.Errorf("%w:\n%s", err, s.Log())
	}
	return s, nil
}

func (s *Server) ready(ctx context.Context) error {
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := s.Running(); err != nil {
			return err
		}
		address, err := os.ReadFile(filepath.Join(s.data(), "address"))
		if err != nil {
			continue
		}
		s.URL = strings.TrimSpace(string(address))
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/healthz", nil)
		if err != nil {
			return err
		}
		if answer, err := http.DefaultClient.Do(r); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return fmt.Errorf("the server is not ready within %v", readyWithin)
}

// Running is an error if the process has ended.
func (s *Server) Running() error {
	select {
	case <-s.ended:
		return fmt.Errorf("the server ended: %s", s.process.ProcessState)
	default:
		return nil
	}
}

// Stop ends the process in the orderly way, or after a minute in the other one.
func (s *Server) Stop() {
	_ = s.process.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		_ = s.process.Process.Kill()
		<-s.ended
	}
}

// Log is what the server and its plugin have written.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log")) // Start has made it
	return string(b)
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

func (s *Server) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.Process.Pid), name)
}

// Memory is a figure of the gateway's process as the kernel tells it, in bytes: VmRSS is what is resident, VmHWM the most that was.
func (s *Server) Memory(t testing.TB, figure string) int64 {
	t.Helper()
	b, err := os.ReadFile(s.proc("status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, figure+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("the kernel tells no %s of the process", figure)
	return 0
}

// ForgetPeak begins VmHWM anew and gives what is resident then, in bytes. It skips the test where the kernel does not do that.
func (s *Server) ForgetPeak(t testing.TB) int64 {
	t.Helper()
	if err := os.WriteFile(s.proc("clear_refs"), []byte("5"), 0o200); err != nil {
		t.Skipf("the kernel does not begin the high-water mark of a process anew: %v", err)
	}
	return s.Memory(t, "VmRSS")
}

// Descriptors is the number of files and connections that the gateway's process has open.
func (s *Server) Descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Stored is what the data directory takes on the disk, in bytes.
func (s *Server) Stored(t testing.TB) int64 {
	t.Helper()
	var sum int64
	err := filepath.Walk(s.data(), func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += stat.Blocks * 512
			}
		}
		return nil // files come and go meanwhile
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
