package tenants

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
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
)

var (
	flagURL   = flag.String("url", "", "address of a server that is running, such as http://127.0.0.1:8000; empty: one of this tree is started")
	flagKeyA  = flag.String("key-a", "", "with -url: the key of the tenant who does things")
	flagKeyB  = flag.String("key-b", "", "with -url: the key of the neighbour, of another name")
	flagModel = flag.String("base-model", "tinsmith/tiny-chat", "base model to train and sample")
	flagChat  = flag.Bool("chat", true, "with -url: whether the server has /v1/chat/completions")
	flagFull  = flag.Bool("full", os.Getenv("E2E_LEVEL") == "all", "the sizes of the table instead of a fraction")
)

// readyWithin is generous: the machine may be busy with other tests.
const readyWithin = 2 * time.Minute

// sized gives the full number with -full, else a smaller one.
func sized(full, small int) int {
	if *flagFull {
		return full
	}
	return small
}

// tenantsServer is the server under test. dir and process are those of one of our own.
type tenantsServer struct {
	url        string
	keyA, keyB string
	dir        string
	process    *exec.Cmd
	ended      chan error
}

var shared struct {
	once   sync.Once
	server *tenantsServer
	err    error
}

// programs is the folder of the binaries under test, once they are built.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	defer func() {
		if shared.server != nil {
			shared.server.stop()
		}
		if programs.dir != "" {
			os.RemoveAll(programs.dir)
		}
	}()
	return m.Run()
}

// start gives the server that tests share, and the two tenants.
func start(t testing.TB) (s *tenantsServer, ann, bob client) {
	t.Helper()
	shared.once.Do(func() {
		if *flagURL != "" {
			if *flagKeyA == "" || *flagKeyB == "" {
				shared.err = fmt.Errorf("-url needs -key-a and -key-b")
				return
			}
			shared.server = &tenantsServer{url: strings.TrimSuffix(*flagURL, "/"), keyA: *flagKeyA, keyB: *flagKeyB}
			return
		}
		shared.server, shared.err = launch("shared", 0, nil)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	s = shared.server
	return s, client{s.url, s.keyA}, client{s.url, s.keyB}
}

// ours skips what only a process that we have started can be asked.
func (s *tenantsServer) ours(t testing.TB) {
	t.Helper()
	if s.process == nil {
		t.Skip("the server is not one that this test has started: its memory and its files cannot be seen")
	}
}

// chats skips what needs the chat API where there is none.
func (s *tenantsServer) chats(t testing.TB) {
	t.Helper()
	if s.process == nil && !*flagChat {
		t.Skip("the server has no /v1/chat/completions")
	}
}

func build() (string, error) {
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "tinsmith-tenants-"); programs.err != nil {
			return
		}
		for output, source := range map[string]string{"tinsmith": "./gateway", "plugins/single": "./backends/single"} {
			command := exec.Command("go", "build", "-o", filepath.Join(programs.dir, output), source)
			command.Dir = filepath.Join("..", "..")
			if out, err := command.CombinedOutput(); err != nil {
				programs.err = fmt.Errorf("build %s: %w\n%s", source, err, out)
				return
			}
		}
	})
	return programs.dir, programs.err
}

// launch starts a server of this tree with the keys ann and bob and waits until its model is ready. descriptors, if above 0, is how many files the process may have open.
func launch(name string, descriptors int, extra map[string]any) (*tenantsServer, error) {
	folder, err := build()
	if err != nil {
		return nil, err
	}
	s := &tenantsServer{dir: filepath.Join(folder, name), ended: make(chan error, 1)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, err
	}
	model, err := filepath.Abs(filepath.Join("..", "..", "configs", "models", "tiny-chat"))
	if err != nil {
		return nil, err
	}
	config := map[string]any{
		"listen": "127.0.0.1:0", "data_dir": filepath.Join(s.dir, "data"), "auth": map[string]string{"keys_file": filepath.Join(s.dir, "keys")},
		"models": []any{map[string]any{"name": *flagModel, "path": model, "backend": map[string]any{"plugin": "single", "device": "cpu", "dtype": "float32"}}},
	}
	for key, value := range extra {
		config[key] = value
	}
	b, err := json.Marshal(config) // JSON is YAML
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "tinsmith.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return nil, err
	}
	program := filepath.Join(folder, "tinsmith")
	for name, key := range map[string]*string{"ann": &s.keyA, "bob": &s.keyB} {
		out, err := exec.Command(program, "key", "add", name, "--config", file).Output()
		if err != nil {
			return nil, fmt.Errorf("key add: %w", err)
		}
		*key = strings.TrimSpace(string(out))
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.process = exec.Command(program, "serve", "--config", file)
	if descriptors > 0 {
		s.process = exec.Command("sh", "-c", `ulimit -n "$1" && exec "$2" serve --config "$3"`, "sh", strconv.Itoa(descriptors), program, file)
	}
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
		address, err := os.ReadFile(filepath.Join(s.dir, "data", "address"))
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

// alone starts a server for one test.
func alone(t testing.TB, name string, descriptors int, extra map[string]any) (s *tenantsServer, ann, bob client) {
	t.Helper()
	if *flagURL != "" {
		t.Skip("needs a server that this test starts")
	}
	s, err := launch(name, descriptors, extra)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s, client{s.url, s.keyA}, client{s.url, s.keyB}
}

func (s *tenantsServer) log() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(b)
}

// stop ends a process of our own in the orderly way.
func (s *tenantsServer) stop() {
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

// memory reads a figure of the gateway's process, such as VmRSS or VmHWM, in bytes.
func (s *tenantsServer) memory(t testing.TB, figure string) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
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
	t.Fatalf("%s is not in the process's status", figure)
	return 0
}

// peak begins a new high-water mark of the gateway's memory and gives what it is then.
func (s *tenantsServer) peak(t testing.TB) int64 {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.process.Process.Pid), []byte("5"), 0); err != nil {
		t.Skipf("the high-water mark of a process cannot be begun anew here: %v", err)
	}
	return s.memory(t, "VmRSS")
}

// stored is what the data directory takes on the disk.
func (s *tenantsServer) stored(t testing.TB) int64 {
	t.Helper()
	var sum int64
	err := filepath.Walk(filepath.Join(s.dir, "data"), func(_ string, info os.FileInfo, err error) error {
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

// until waits for something that is to come by itself, and gives the last value that was looked at.
func until[T cmp.Ordered](within time.Duration, look func() T, enough func(T) bool) T {
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		if v := look(); enough(v) || time.Now().After(deadline) {
			return v
		}
	}
}
