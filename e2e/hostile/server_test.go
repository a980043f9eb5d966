package hostile

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/e2e/launch"
)

// modelName is the one served model of most tests.
const modelName = "tinsmith/tiny-chat"

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
	if err := launch.Build(context.Background(), programs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if shared.server != nil {
			shared.server.Stop()
		}
	}()
	return m.Run()
}

// server is one running process.
type server struct{ *launch.Server }

// begin starts a server in an empty folder and waits until its models are ready.
func begin(dir string, config map[string]any) (*server, error) {
	s, err := launch.Start(context.Background(), programs, dir, config, 0)
	if err != nil {
		return nil, err
	}
	return &server{s}, nil
}

// oneModel is the configuration of most tests.
func oneModel() map[string]any { return launch.Configuration(modelName) }

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
			shared.server, shared.err = begin(dir, oneModel())
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	s := shared.server
	before := len(s.Log())
	t.Cleanup(func() { s.check(t, before) })
	return s
}

// check fails the test for faults logged behind a byte of the log, and when the server is not well.
func (s *server) check(t *testing.T, before int) {
	t.Helper()
	for _, line := range faults.FindAllString(s.Log()[before:], -1) {
		t.Errorf("the server logged: %.500s", line)
	}
	if err := s.Running(); err != nil {
		t.Fatal(err)
	}
	answer, err := http.Get(s.URL + "/healthz")
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
