package transformers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.loadedWorker != nil {
		shared.w.close()
	}
	if foreignMade != "" {
		_ = os.RemoveAll(foreignMade)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	os.Exit(code)
}

// python gives the interpreter of the tests' environment, or skips.
var findPython = sync.OnceValues(func() (path, why string) {
	path = os.Getenv("TINSMITH_TRANSFORMERS_PYTHON")
	if path == "" {
		path, _ = filepath.Abs("../../../.venv/bin/python")
	}
	out, err := exec.Command(path, "-I", "-c", "import importlib.util as u, sys; sys.exit(' '.join(m for m in ('torch', 'transformers', 'safetensors') if u.find_spec(m) is None) or 0)").CombinedOutput()
	if err != nil {
		return "", "no Python with torch, transformers and safetensors: " + path + ": " + err.Error() + " " + strings.TrimSpace(string(out))
	}
	return path, ""
})

func python(t *testing.T) string {
	t.Helper()
	path, why := findPython()
	if why != "" {
		t.Skip(why)
	}
	return path
}

// goldenDir unpacks a model of package model's testdata.
func goldenDir(t testing.TB, name string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", name), to)
	return modelOnly(t, to)
}

// modelOnly moves what is no part of the model, values of tests, into the folder "values" beside it: every safetensors file of a model directory is weights.
func modelOnly(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(dir, "values")
	if err := os.MkdirAll(values, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Base(f) != "model.safetensors" {
			if err := os.Rename(f, filepath.Join(values, filepath.Base(f))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// makeForeign makes the tiny models of testdata/tiny.py, all at once, for starting Python takes longest.
var makeForeign = sync.OnceValues(func() (dir string, err error) {
	path, _ := findPython()
	if dir, err = os.MkdirTemp("", "transformers-"); err != nil {
		return "", err
	}
	out, err := exec.Command(path, filepath.Join("testdata", "tiny.py"), dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return dir, err
})

// foreignDir gives the model of a family.
func foreignDir(t *testing.T, family string) string {
	t.Helper()
	python(t)
	dir, err := makeForeign()
	if err != nil {
		t.Fatal(err)
	}
	foreignMade = dir
	return filepath.Join(dir, family)
}

// foreignMade is removed at the end.
var foreignMade string

type loadedWorker struct {
	w    *worker
	c    Config
	a    *loadAnswer
	hash string
}

// shared is a worker that tests one after the other use: starting one takes seconds, and each takes 700 MB.
var shared struct {
	name string
	*loadedWorker
}

// sharedWorker gives the worker of that name, started for the first test that asks for it, in place of the one before.
func sharedWorker(t *testing.T, name string, dir func() string, section map[string]any) *loadedWorker {
	t.Helper()
	if shared.name == name {
		return shared.loadedWorker
	}
	if shared.loadedWorker != nil {
		shared.w.close()
		shared.name, shared.loadedWorker = "", nil
	}
	merged := map[string]any{"python": python(t), "dtype": "float32", "threads": 1}
	for k, v := range section {
		merged[k] = v
	}
	raw, err := json.Marshal(merged)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	at := dir()
	hash, _, err := examine(t.Context(), at, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	w, err := startWorker(c.Python, c.Threads, "", loadLimit)
	if err != nil {
		t.Fatal(err)
	}
	a, err := w.loadWhile(context.Background(), at, &c, func() {})
	if err != nil {
		w.close()
		t.Fatal(err)
	}
	shared.name, shared.loadedWorker = name, &loadedWorker{w: w, c: c, a: a, hash: hash}
	return shared.loadedWorker
}

// backend gives a fresh backend on a worker that goes on when it is gone.
func (l *loadedWorker) backend(t *testing.T) (*Backend, plugins.ModelInfo) {
	t.Helper()
	b := &Backend{options: Options{Lost: func(err error) { t.Error(err) }}}
	m := newModel(l.w, l.a)
	m.lastID.Store(lastTestID.add())
	open := func(context.Context, plugins.LoadRequest, func(plugins.LoadProgress)) (simple.Opened, error) {
		return opened(m, l.c, l.a, l.hash), nil
	}
	b.Backend = simple.New(simple.Options{Plugin: "transformers", Version: "test", Topology: "test", Configure: b.configure, Open: open})
	info, err := b.Load(t.Context(), plugins.LoadRequest{}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	b.config, b.model = l.c, m
	return b, info
}

// lastTestID keeps the numbers of passes of different backends on one worker apart.
var lastTestID testIDs

type testIDs struct {
	mu sync.Mutex
	n  uint64
}

func (i *testIDs) add() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += 1 << 32
	return i.n
}
