package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// readyWithin is generous: the machine may be busy with other tests.
const readyWithin = 2 * time.Minute

// programs is the folder of the binaries under test, built from this working tree.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "tinsmith-hostile-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	for output, source := range map[string]string{"tinsmith": "./gateway", "plugins/single": "./backends/single"} {
		build := exec.Command("go", "build", "-o", filepath.Join(programs, output), source)
		build.Dir = root()
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", source, err, out)
			return 1
		}
	}
	defer func() {
		if shared.server != nil {
			shared.server.stop()
		}
	}()
	return m.Run()
}

// root is the repository's.
func root() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}

func builtIn() string { return filepath.Join(root(), "configs", "models", "tiny-chat") }

// modelName is the one served model of most tests.
const modelName = "tinsmith/tiny-chat"

// server is one running process.
type server struct {
	dir, url string
	keys     map[string]string // name → key
	process  *exec.Cmd
	ended    chan error
}

// log is what the server and its plugin wrote.
func (s *server) log() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(b)
}

// launch starts a server with the keys ann and bob over dir and waits until its model is ready.
func launch(dir string, config map[string]any) (*server, error) {
	s := &server{dir: dir, keys: map[string]string{}, ended: make(chan error, 1)}
	config["listen"], config["data_dir"] = "127.0.0.1:0", filepath.Join(dir, "data")
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
		out, err := exec.Command(filepath.Join(programs, "tinsmith"), "key", "add", name, "--config", file).Output()
		if err != nil {
			return nil, fmt.Errorf("key add: %w", err)
		}
		s.keys[name] = strings.TrimSpace(string(out))
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.process = exec.Command(filepath.Join(programs, "tinsmith"), "serve", "--config", file)
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	go func() { s.ended <- s.process.Wait() }()
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-s.ended:
			return nil, fmt.Errorf("the server ended: %w\n%s", err, s.log())
		default:
		}
		address, err := os.ReadFile(filepath.Join(dir, "data", "address"))
		if err != nil {
			continue
		}
		s.url = strings.TrimSpace(string(address))
		if answer, err := http.Get(s.url + "/healthz"); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return s, nil
			}
		}
	}
	s.stop()
	return nil, fmt.Errorf("not ready within %v:\n%s", readyWithin, s.log())
}

// stop ends the process in the orderly way.
func (s *server) stop() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		_ = s.process.Process.Kill()
		<-s.ended
	}
	s.process = nil
}

// oneModel is the configuration of most tests.
func oneModel() map[string]any {
	return map[string]any{"models": []any{map[string]any{
		"name": modelName, "path": builtIn(), "backend": map[string]any{"plugin": "single", "device": "cpu", "dtype": "float32"},
	}}}
}

var shared struct {
	once   sync.Once
	server *server
	err    error
}

// faults are lines of a log that no request may cause.
var faults = regexp.MustCompile(`(?m)^.*(level=ERROR|panic|fatal error:|^goroutine \d+ \[|SIGSEGV|backend process was lost).*$`)

// start gives the shared server. The test fails if the server logged a fault meanwhile or is not healthy after it.
func start(t *testing.T) *server {
	t.Helper()
	shared.once.Do(func() {
		dir := filepath.Join(programs, "shared")
		if shared.err = os.Mkdir(dir, 0o700); shared.err == nil {
			shared.server, shared.err = launch(dir, oneModel())
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	s := shared.server
	before := len(s.log())
	t.Cleanup(func() { s.check(t, before) })
	return s
}

// check fails the test for faults logged behind a byte of the log, and when the server is not well.
func (s *server) check(t *testing.T, before int) {
	t.Helper()
	for _, line := range faults.FindAllString(s.log()[before:], -1) {
		t.Errorf("the server logged: %.500s", line)
	}
	select {
	case err := <-s.ended:
		s.ended <- err
		t.Fatalf("the server ended: %v", err)
	default:
	}
	answer, err := http.Get(s.url + "/healthz")
	if err != nil {
		t.Fatalf("the server is gone: %v", err)
	}
	defer answer.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("the server is not well: %d %s", answer.StatusCode, b.String())
	}
	if !strings.Contains(b.String(), `"restarts":0`) {
		t.Errorf("the backend was restarted: %s", b.String())
	}
}
