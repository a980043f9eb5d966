package transformers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// loaded gives a backend with a worker of its own, which is expected to be lost if lost is not nil.
func loaded(t *testing.T, wait time.Duration, lost chan error) *Backend {
	t.Helper()
	b := New(Options{Version: "test", Wait: wait, Lost: func(err error) {
		if lost == nil {
			t.Error(err)
			return
		}
		lost <- err
	}})
	section := fmt.Sprintf(`{"python": %q, "dtype": "float32", "threads": 1, "max_context_length": 64}`, python(t))
	if _, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: goldenDir(t, "llama"), Config: json.RawMessage(section)}, func(plugins.LoadProgress) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func sample(b *Backend, t *testing.T) error {
	q := plugins.SampleRequest{ID: "s", Version: plugins.LatestVersion, Prompt: []int32{1, 2, 3}, NumSamples: 1, MaxTokens: 4, TopP: 1, RepetitionPenalty: 1}
	return b.Sample(t.Context(), q, func(plugins.SampleEvent) error { return nil })
}

// TestWorkerDies: an error names the worker and why, the program is told to end, and nothing succeeds any more.
func TestWorkerDies(t *testing.T) {
	for name, busy := range map[string]bool{"while it works": true, "while nothing is asked of it": false} {
		t.Run(name, func(t *testing.T) {
			lost := make(chan error, 2)
			b := loaded(t, 0, lost)
			pid := b.model.cmd.Process.Pid
			if busy {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- sample(b, t) }()
				time.Sleep(50 * time.Millisecond) // whether it is in the call or before it, the outcome is the same
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if err := <-done; !errors.Is(err, plugins.ErrBackendLost) {
					t.Errorf("what ran says %v", err)
				}
			} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := <-lost; !strings.Contains(err.Error(), fmt.Sprintf("process %d) died: signal: killed", pid)) {
				t.Errorf("the reason is %v", err)
			}
			if err := sample(b, t); !errors.Is(err, plugins.ErrBackendLost) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestWorkerHangs: a worker that gives no sign of life is ended, by name.
func TestWorkerHangs(t *testing.T) {
	lost := make(chan error, 1)
	b := loaded(t, 2*time.Second, lost)
	pid := b.model.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := sample(b, t); !errors.Is(err, plugins.ErrBackendLost) {
		t.Errorf("what ran says %v", err)
	}
	if err := <-lost; !strings.Contains(err.Error(), fmt.Sprintf("process %d) has given no sign of life for 2s", pid)) {
		t.Errorf("the reason is %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the worker goes on: %v", err)
	}
}

// TestRefusals are models and settings that are refused by name.
func TestRefusals(t *testing.T) {
	good := goldenDir(t, "llama")
	edited := func(t *testing.T, change func(map[string]any)) string {
		dir := t.TempDir()
		raw, err := os.ReadFile(filepath.Join(good, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]any
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatal(err)
		}
		change(c)
		if raw, err = json.Marshal(c); err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
		}
		if err == nil {
			err = os.Symlink(filepath.Join(good, "model.safetensors"), filepath.Join(dir, "model.safetensors"))
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	with := func(dir, file, text string) string {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct{ name, dir, more, field, says string }{
		{name: "no such folder", dir: "/nowhere", field: "model_dir", says: "config.json"},
		{name: "weights that are pickled", dir: func() string {
			dir := edited(t, func(map[string]any) {})
			if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "pytorch_model.bin")); err != nil {
				t.Fatal(err)
			}
			return dir
		}(), field: "model_dir", says: "safetensors"},
		{name: "an adapter among the files", dir: with(edited(t, func(map[string]any) {}), "adapter_config.json", "{}"), field: "model_dir", says: "tinsmith import"},
		{name: "weights of another name", dir: edited(t, func(c map[string]any) { c["transformers_weights"] = "../other.safetensors" }), field: "model_dir", says: "transformers_weights"},
		{name: "an index that leads out", dir: with(edited(t, func(map[string]any) {}), "model.safetensors.index.json", `{"weight_map": {"a": "../../b.safetensors"}}`), field: "model_dir", says: "no safetensors file of this directory"},
		{name: "a context beyond the model's", dir: good, more: `, "max_context_length": 2048`, field: "config.max_context_length", says: "1 to 1024"},
		{name: "no interpreter", dir: good, more: `, "python": "/nowhere/python"`, field: "config.python", says: "cannot be started"},
		{name: "code of the model's", dir: edited(t, func(c map[string]any) {
			c["model_type"] = "mine"
			c["auto_map"] = map[string]any{"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
		}), field: "model_dir", says: "trust_remote_code"},
		{name: "a missing layer", dir: edited(t, func(c map[string]any) { c["num_hidden_layers"] = 3 }), field: "model_dir", says: "missing keys"},
		{name: "another shape", dir: edited(t, func(c map[string]any) { c["intermediate_size"] = 128 }), field: "model_dir", says: "mismatch"},
		{name: "modules that are not there", dir: good, more: `, "modules": {"attention": ["nothing"], "mlp": ["gate_proj"]}`, field: "config.modules", says: "the model has down_proj, gate_proj"},
	} {
		t.Run(c.name, func(t *testing.T) {
			section := fmt.Sprintf(`{"dtype": "float32", "threads": 1, "python": %q%s}`, python(t), c.more)
			_, err := New(Options{Version: "test"}).Load(t.Context(), plugins.LoadRequest{ModelDir: c.dir, Config: json.RawMessage(section), Scratch: t.TempDir()}, func(plugins.LoadProgress) {})
			var e *plugins.Error
			if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != c.field || !strings.Contains(e.Message, c.says) {
				t.Errorf("error %v, want an invalid %s that says %q", err, c.field, c.says)
			}
		})
	}
}

// TestConfig names what is wrong with a section.
func TestConfig(t *testing.T) {
	for _, c := range []struct{ name, section, field string }{
		{"good", `{"plugin":"transformers","python":"/opt/venv/bin/python","device":"cuda:1","dtype":"bfloat16","threads":4,"max_context_length":4096,"max_rank":32,"attention":"sdpa","modules":{"mlp":["fc1"]},"trust_remote_code":true}`, ""},
		{"no interpreter", `{}`, "config.python"},
		{"a relative path", `{"python":"python3"}`, "config.python"},
		{"unknown key", `{"python":"/p","thread":1}`, "config"},
		{"trailing data", `{"python":"/p"} {}`, "config"},
		{"plugin", `{"python":"/p","plugin":"single"}`, "config.plugin"},
		{"device", `{"python":"/p","device":"cuda:x"}`, "config.device"},
		{"dtype", `{"python":"/p","dtype":"int8"}`, "config.dtype"},
		{"threads", `{"python":"/p","threads":-1}`, "config.threads"},
		{"context", `{"python":"/p","max_context_length":-1}`, "config.max_context_length"},
		{"rank", `{"python":"/p","max_rank":1000}`, "config.max_rank"},
		{"attention", `{"python":"/p","attention":"flash"}`, "config.attention"},
		{"group", `{"python":"/p","modules":{"head":["x"]}}`, "config.modules"},
		{"module", `{"python":"/p","modules":{"mlp":["a.b"]}}`, "config.modules.mlp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := New(Options{}).CheckConfig(json.RawMessage(c.section))
			if c.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *plugins.Error
			if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != c.field {
				t.Errorf("error %v, want an invalid %s", err, c.field)
			}
		})
	}
}

// TestWorkerBounds: the worker itself ends where a frame is larger than it may be, and where it is cut.
func TestWorkerBounds(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a head that is too large": bytes.Repeat([]byte{0xff}, 12),
		"a frame that is cut":      {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{'},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := startWorker(python(t), 1, "", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.conn.Write(frame); err != nil {
				t.Fatal(err)
			}
			w.conn.(interface{ CloseWrite() error }).CloseWrite()
			<-w.ended
			if w.state == nil {
				t.Error("it ended as if all were well")
			}
			w.close()
		})
	}
}

// TestOrphan: the worker goes with the process that has started it, also if that is killed, and however busy it is.
func TestOrphan(t *testing.T) {
	if os.Getenv("TRANSFORMERS_TEST_PARENT") != "" {
		w, err := startWorker(python(t), 1, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(w.cmd.Process.Pid, syscall.SIGSTOP) // a busy one does not read its socket either
		fmt.Printf("worker %d\n", w.cmd.Process.Pid)
		select {}
	}
	python(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestOrphan$")
	cmd.Env = append(os.Environ(), "TRANSFORMERS_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "worker %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		// One that nobody has waited for yet has ended all the same.
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(state, []byte(") Z ")) {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("worker %d outlived the process that started it: %s", pid, state)
		}
	}
}

// FuzzReadFrame: whatever comes over the socket, memory is bounded by what comes, and there is an error or a frame that is written as it was read.
func FuzzReadFrame(f *testing.F) {
	var whole bytes.Buffer
	if err := writeFrame(&whole, map[string]int{"a": 1}, []byte{1, 2}, nil, []byte{3}); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(bytes.Repeat([]byte{0xff}, 12))
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0x3f, 0, 0, 0, 0, '{', '}'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		head, body, err := readFrame(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if want := len(raw) - 12; len(head)+len(body) > want {
			t.Errorf("%d and %d bytes out of %d", len(head), len(body), want)
		}
		if !json.Valid(head) {
			return
		}
		var again bytes.Buffer
		if err := writeFrame(&again, json.RawMessage(head), body); err != nil {
			t.Fatal(err)
		}
		if _, b, err := readFrame(&again); err != nil || !bytes.Equal(b, body) {
			t.Errorf("written again: %v, %v", b, err)
		}
	})
}
