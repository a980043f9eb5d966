package ordeal

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
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

	"github.com/tinsmith/tinsmith/gateway/internal/cmd"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
)

const (
	// runVariable makes the test binary the gateway.
	runVariable = "TINSMITH_TEST_GATEWAY"
	// idleVariable makes it a gateway with a backend that does nothing, with so many runs.
	idleVariable = "TINSMITH_TEST_IDLE"
	// profileVariable names a file for the CPU profile of that gateway.
	profileVariable = "TINSMITH_TEST_PROFILE"
	// heldVariable names a file: before it is there that gateway opens no API, however early its model is loaded.
	heldVariable = "TINSMITH_TEST_HELD"
	// programsVariable names the folder of the programs, where a test binary that runs this one has made it.
	programsVariable = "TINSMITH_TEST_PROGRAMS"
	// modelName is the one served model.
	modelName = "tinsmith/tiny-chat"
	// within bounds whatever should come to pass; the machine may be busy.
	within = 2 * time.Minute
)

// programs is a folder laid out as a build is: the gateway, and the plugins in a folder beside it.
var programs string

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		os.Exit(gateway())
	}
	if clients, err := strconv.Atoi(os.Getenv(idleVariable)); err == nil {
		if err := idleGateway(clients); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

// gateway is the main function of the gateway under test.
func gateway() int {
	profileOnSignal()
	k := newKiller()
	held := func(b runs.Backends) runs.Backends {
		for file := os.Getenv(heldVariable); file != ""; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				break
			}
		}
		return k.backends(b)
	}
	return cmd.Program{Version: "ordeal", DecorateStore: k.store, DecorateBackends: held}.Main()
}

func run(m *testing.M) int {
	if programs = os.Getenv(programsVariable); programs != "" {
		return m.Run()
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if programs, err = os.MkdirTemp("", "tinsmith-ordeal-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	if err := copyProgram(self, filepath.Join(programs, "tinsmith")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-o", filepath.Join(programs, "plugins")+"/", "./backends/fake", "./backends/single", "./backends/dataparallel", "./backends/tensorparallel")
	build.Dir = root()
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the plugins: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv(programsVariable, programs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// copyProgram makes a second name for a program; where that is not possible, a copy.
func copyProgram(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o700)
}

// root is the repository's.
func root() string {
	dir, err := filepath.Abs("../../..")
	if err != nil {
		panic(err)
	}
	return dir
}

// server is a gateway that can be started again over the same data and port.
type server struct {
	testing.TB
	dir, url string
	programs string       // the folder of the programs that run
	machine  *lan.Machine // where it runs; nil: here
	kill     []string     // for each start from the first: where it is killed, see killer; "" = nowhere
	starts   int
	changing sync.Mutex // of the next two, while revive replaces them
	process  *exec.Cmd
	ended    chan struct{} // closed when the process is gone
	mortal   chan struct{} // closed to end what revives it
	over     chan struct{} // closed when nothing revives it any more
}

// settings change the configuration of a server.
type settings map[string]any

// newServer writes a configuration; plugin is the program of its backend with what else its section has.
func newServer(t testing.TB, backend settings, more settings) *server {
	t.Helper()
	return newServerIn(t, t.TempDir(), backend, more)
}

// newServerOn has one run on a machine of its own, where it listens for all and so asks for a key; here if there is no machine.
func newServerOn(t testing.TB, m *lan.Machine, backend settings, more settings) *server {
	t.Helper()
	if m == nil {
		return newServer(t, backend, more)
	}
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	if err := os.WriteFile(keys, fmt.Appendf(nil, "tests %x\n", sha256.Sum256([]byte(testKey))), 0o600); err != nil {
		t.Fatal(err)
	}
	all := settings{"listen": net.JoinHostPort(m.Address(), "0"), "auth": settings{"keys_file": keys}}
	for k, v := range more {
		all[k] = v
	}
	s := newServerIn(t, dir, backend, all)
	s.machine = m
	return s
}

// newServerIn keeps the data in a folder that exists.
func newServerIn(t testing.TB, dir string, backend settings, more settings) *server {
	t.Helper()
	s := &server{TB: t, dir: dir, programs: programs}
	s.configure(backend, more)
	t.Cleanup(func() {
		s.end()
		if t.Failed() {
			t.Logf("the log of the server:\n%s", lastOf(s.log(), 6000))
		}
	})
	return s
}

// configure writes the configuration, for the next start or the next SIGHUP.
func (s *server) configure(backend settings, more settings) {
	s.Helper()
	config := settings{
		"listen": "127.0.0.1:0", "data_dir": filepath.Join(s.dir, "data"), "log": settings{"level": "warn"},
		"models": []any{settings{"name": modelName, "path": filepath.Join(root(), "configs", "models", "tiny-chat"), "backend": backend}},
	}
	for k, v := range more {
		config[k] = v
	}
	b, err := json.Marshal(config) // JSON is YAML
	s.ok(err)
	s.ok(os.WriteFile(filepath.Join(s.dir, "tinsmith.yaml"), b, 0o600))
}

func (s *server) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func lastOf(text string, n int) string { return text[max(0, len(text)-n):] }

// log is what gateway and plugins wrote, in all starts.
func (s *server) log() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(b)
}

// start starts the gateway and waits until it listens; it may be long before it is ready.
func (s *server) start() {
	s.Helper()
	s.ok(s.startAgain())
	for deadline := time.Now().Add(within); s.url == "" && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(s.dir, "data", "address")); err == nil {
			s.url = strings.TrimSpace(string(b))
		}
		if s.gone() {
			break
		}
	}
	if s.url == "" {
		s.Fatalf("the server did not listen:\n%s", lastOf(s.log(), 4000))
	}
}

// startAgain starts the gateway, at the address that its clients know if there is one.
func (s *server) startAgain() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--config", filepath.Join(s.dir, "tinsmith.yaml")}
	if s.url != "" {
		args = append(args, "--listen", strings.TrimPrefix(s.url, "http://"))
	}
	process := exec.Command(filepath.Join(s.programs, "tinsmith"), args...)
	process.Env = append(os.Environ(), runVariable+"=1", countVariable+"="+filepath.Join(s.dir, "counts"))
	if s.starts < len(s.kill) {
		process.Env = append(process.Env, killVariable+"="+s.kill[s.starts])
	}
	s.starts++
	process.Stdout, process.Stderr = log, log
	if err := s.machine.Start(process); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.changing.Lock()
	s.process, s.ended = process, ended
	s.changing.Unlock()
	go func() { _ = process.Wait(); close(ended) }()
	return nil
}

// running is the process that runs, or ran last, and what is closed when it is gone: of a server that is revived.
func (s *server) running() (*os.Process, <-chan struct{}) {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.process.Process, s.ended
}

func (s *server) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// revive starts the gateway again whenever it is gone, until end.
func (s *server) revive() {
	s.mortal, s.over = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.over)
		for {
			select {
			case <-s.mortal:
				return
			case <-s.ended:
				if err := s.startAgain(); err != nil {
					s.Errorf("start again: %v", err)
					return
				}
			}
		}
	}()
}

// end ends the gateway in the orderly way.
func (s *server) end() {
	if s.mortal != nil {
		close(s.mortal)
		<-s.over
		s.mortal = nil
	}
	if s.process == nil || s.gone() {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGTERM) // it may be gone by now
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		_ = s.process.Process.Kill()
		<-s.ended
	}
}

// health is the answer of /healthz.
type health struct {
	Status  string
	Storage struct{ State, Reason string }
	Models  []struct {
		State, Reason string
		Restarts      int
		LastLoss      string `json:"last_loss"`
		Backends      []backendHealth
		Rebuilding    struct {
			Runs     int
			Replayed int `json:"operations_replayed"`
			ToReplay int `json:"operations_to_replay"`
		}
	}
}

// backendHealth is one of a model's several backends in it.
type backendHealth struct{ Name, State string }

// healthz asks how the server is; the zero health while nobody listens.
func (s *server) healthz() health {
	var h health
	answer, err := http.Get(s.url + "/healthz")
	if err != nil {
		return h
	}
	defer answer.Body.Close()
	_ = json.NewDecoder(answer.Body).Decode(&h) // not JSON: not well
	return h
}

// await waits for a state of health.
func (s *server) await(what string, is func(health) bool) {
	s.Helper()
	var h health
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if h = s.healthz(); is(h) {
			return
		}
	}
	s.Fatalf("not %s: %+v\n%s", what, h, lastOf(s.log(), 3000))
}

func (s *server) ready() {
	s.Helper()
	s.await("ready", func(h health) bool { return h.Status == "ok" })
}

// children are the plugin processes of a gateway.
func children(pid int) []int {
	var found []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread is gone
		}
		for _, f := range bytes.Fields(b) {
			if n, err := strconv.Atoi(string(f)); err == nil {
				found = append(found, n)
			}
		}
	}
	return found
}

// process figures, from the kernel.
type figures struct {
	cpu time.Duration // of the process since its start, user and system
	rss int64         // bytes
}

func measure(pid int) (figures, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return figures{}, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return figures{}, errors.New("the kernel's figures of a process have another form")
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(string(fields[i]), 10, 64); return n }
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	return figures{cpu: time.Duration(number(11)+number(12)) * tick, rss: number(21) * int64(os.Getpagesize())}, nil
}
