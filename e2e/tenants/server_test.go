package tenants

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/e2e/launch"
)

var (
	flagURL   = flag.String("url", "", "address of a server that is running, such as http://127.0.0.1:8000; empty: one of this tree is started")
	flagKeyA  = flag.String("key-a", "", "with -url: the key of the tenant who does things")
	flagKeyB  = flag.String("key-b", "", "with -url: the key of the neighbour, of another name")
	flagModel = flag.String("base-model", "tinsmith/tiny-chat", "base model to train and sample")
	flagChat  = flag.Bool("chat", true, "with -url: whether the server has /v1/chat/completions")
	flagFull  = flag.Bool("full", os.Getenv("E2E_LEVEL") == "all", "the sizes of the table instead of a fraction")
)

// sized gives the full number with -full, else a smaller one.
func sized(full, small int) int {
	if *flagFull {
		return full
	}
	return small
}

// tenantsServer is the server under test.
type tenantsServer struct {
	*launch.Server  // nil: somebody else has started it
	url, keyA, keyB string
}

// own tells whether it is a process that we have started.
func (s *tenantsServer) own() bool { return s.Server != nil }

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
		if shared.server != nil && shared.server.own() {
			shared.server.Stop()
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
		shared.server, shared.err = begin("shared", 0, nil)
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
	if !s.own() {
		t.Skip("the server is not one that this test has started: its memory and its files cannot be seen")
	}
}

// chats skips what needs the chat API where there is none.
func (s *tenantsServer) chats(t testing.TB) {
	t.Helper()
	if !s.own() && !*flagChat {
		t.Skip("the server has no /v1/chat/completions")
	}
}

func build() (string, error) {
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "tinsmith-tenants-"); programs.err == nil {
			programs.err = launch.Build(context.Background(), programs.dir)
		}
	})
	return programs.dir, programs.err
}

// begin starts a server of this tree and waits until its model is ready; ann and bob are the two tenants. descriptors, if above 0, is how many files the process may have open. extra are keys of its configuration.
func begin(name string, descriptors int, extra map[string]any) (*tenantsServer, error) {
	folder, err := build()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(folder, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config := launch.Configuration(*flagModel)
	maps.Copy(config, extra)
	s, err := launch.Start(context.Background(), folder, dir, config, descriptors)
	if err != nil {
		return nil, err
	}
	return &tenantsServer{s, s.URL, s.Keys["ann"], s.Keys["bob"]}, nil
}

// alone starts a server for one test.
func alone(t testing.TB, name string, descriptors int, extra map[string]any) (s *tenantsServer, ann, bob client) {
	t.Helper()
	if *flagURL != "" {
		t.Skip("needs a server that this test starts")
	}
	s, err := begin(name, descriptors, extra)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s, client{s.url, s.keyA}, client{s.url, s.keyB}
}

// until waits for something that is to come by itself, and gives the last value that was looked at.
func until[T cmp.Ordered](within time.Duration, look func() T, enough func(T) bool) T {
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		if v := look(); enough(v) || time.Now().After(deadline) {
			return v
		}
	}
}
