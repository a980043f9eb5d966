package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/e2e/launch"
)

// copyModel copies the built-in model.
func copyModel(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(launch.ModelDir())); err != nil {
		t.Fatal(err)
	}
	return dir
}

// program runs the server's program to its end and gives its exit status and all it wrote.
func program(t testing.TB, arguments ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, launch.Program(programs), arguments...).CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("hangs: %.2000s", out)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code := 0
	if exit != nil {
		code = exit.ExitCode()
	}
	return code, string(out)
}

// loads starts a server with a model directory and gives the reason why the model is not served, or "" if it is.
func loads(t testing.TB, dir string) string {
	t.Helper()
	folder := t.TempDir()
	config := oneModel()
	config["models"].([]any)[0].(object)["path"] = dir
	config["listen"], config["data_dir"] = "127.0.0.1:0", filepath.Join(folder, "data")
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "tinsmith.yaml")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(launch.Program(programs), "serve", "--config", path)
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() {
		_ = server.Process.Signal(os.Interrupt) // it may be gone already
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = server.Process.Kill()
			<-ended
			t.Error("the server does not end")
		}
		all, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(all, []byte("goroutine ")) || bytes.Contains(all, []byte("panic")) || bytes.Contains(all, []byte("signal:")) {
			t.Errorf("a crash: %.3000s", all)
		}
	}()
	for deadline := time.Now().Add(answerWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			all, _ := os.ReadFile(log.Name())
			return "ended: " + string(all)
		default:
		}
		address, err := os.ReadFile(filepath.Join(folder, "data", "address"))
		if err != nil {
			continue
		}
		health, err := exec.Command("curl", "-s", strings.TrimSpace(string(address))+"/healthz").Output()
		if err != nil {
			continue
		}
		var h struct {
			Models []struct{ State, Reason string }
		}
		if json.Unmarshal(health, &h) != nil || len(h.Models) == 0 {
			continue
		}
		switch m := h.Models[0]; m.State {
		case "ready":
			return ""
		case "failed":
			return m.Reason
		case "restarting":
			return "restarting: " + m.Reason
		}
	}
	all, _ := os.ReadFile(log.Name())
	t.Fatalf("neither served nor refused: %.3000s", all)
	return ""
}

// edit changes one JSON file of a model.
func edit(t testing.TB, path string, change func(object)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var o object
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	change(o)
	if b, err = json.Marshal(o); err != nil {
		t.Fatal(err)
	}
	write(t, path, b)
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWrongModelDirectories(t *testing.T) {
	set := func(key string, value any) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			edit(t, filepath.Join(dir, "config.json"), func(o object) {
				if value == nil {
					delete(o, key)
				} else {
					o[key] = value
				}
			})
		}
	}
	put := func(name, text string) func(testing.TB, string) {
		return func(t testing.TB, dir string) { write(t, filepath.Join(dir, name), []byte(text)) }
	}
	index := func(text string) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			if err := os.Remove(filepath.Join(dir, "model.safetensors")); err != nil { // which goes before an index
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(text))
		}
	}
	weights := func(change func([]byte) []byte) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			path := filepath.Join(dir, "model.safetensors")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, change(b))
		}
	}
	header := func(old, new string) func(testing.TB, string) {
		return weights(func(b []byte) []byte {
			n := binary.LittleEndian.Uint64(b)
			return safetensors(strings.Replace(string(b[8:8+n]), old, new, 1), b[8+n:])
		})
	}
	for _, c := range []struct {
		name   string
		change func(testing.TB, string)
		words  []string
	}{
		{"hidden 10^9", set("hidden_size", 1000000000), []string{"hidden_size", "1000000000"}},
		{"layers 10^6", set("num_hidden_layers", 1000000), []string{"num_hidden_layers", "1000000"}},
		{"more layers than there are", set("num_hidden_layers", 7), []string{"7 layers"}},
		{"no heads", set("num_attention_heads", 0), []string{"num_attention_heads", "0"}},
		{"heads that do not divide", set("num_key_value_heads", 5), []string{"num_key_value_heads", "5"}},
		{"no vocabulary", set("vocab_size", 0), []string{"vocab_size", "0"}},
		{"negative vocabulary", set("vocab_size", -4096), []string{"vocab_size", "-4096"}},
		{"larger vocabulary", set("vocab_size", 1<<24), []string{"embed_tokens"}},
		{"odd head", set("head_dim", 31), []string{"head_dim", "31"}},
		{"eps 0", set("rms_norm_eps", 0), []string{"rms_norm_eps"}},
		{"eps below float32", set("rms_norm_eps", 1e-60), []string{"rms_norm_eps", "1e-60"}},
		{"eps as text", set("rms_norm_eps", "NaN"), []string{"rms_norm_eps"}},
		{"theta 0", set("rope_parameters", object{"rope_theta": 0}), []string{"rope_theta", "0"}},
		{"theta below 0 beside another one", set("rope_theta", -1), []string{"rope_theta", "-1"}},
		{"negative end token", set("eos_token_id", -1), []string{"eos_token_id", "-1", "0 to 4095"}},
		{"padding beyond the vocabulary", set("pad_token_id", 4096), []string{"pad_token_id", "4096", "0 to 4095"}},
		{"negative window", set("sliding_window", -4096), []string{"sliding_window", "-4096"}},
		{"negative end token among the defaults", put("generation_config.json", `{"eos_token_id": [4089, -2]}`), []string{"generation_config.json", "eos_token_id", "-2"}},
		{"template of a large expression", put("chat_template.jinja", "{{ "+strings.Repeat("(", 10)+"1"+strings.Repeat(strings.Repeat("+1", 400)+")", 10)+" }}"), []string{"chat template", "deeper than"}},
		{"decoders that grow", put("tokenizer.json", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "`+strings.Repeat("x", 1<<20)+`"}}`), []string{"decoder (Replace)", "1048576 times"}},
		{"unknown architecture", set("architectures", []string{"EvilForCausalLM"}), []string{"EvilForCausalLM"}},
		{"no architecture", set("architectures", nil), []string{"architectures"}},
		{"config with NaN", put("config.json", `{"rms_norm_eps": NaN}`), []string{"config.json"}},
		{"config of a million levels", put("config.json", strings.Repeat(`{"a":`, 1<<17)), []string{"config.json"}},
		{"config of megabytes", put("config.json", `{"a":"`+strings.Repeat("x", 8<<20)+`"}`), []string{"config.json"}},
		{"no config", func(t testing.TB, dir string) { os.Remove(filepath.Join(dir, "config.json")) }, []string{"config.json"}},
		{"no weights", func(t testing.TB, dir string) { os.Remove(filepath.Join(dir, "model.safetensors")) }, []string{"model.safetensors"}},
		{"cut weights", weights(func(b []byte) []byte { return b[:len(b)/2] }), []string{"model.safetensors"}},
		{"empty weights", weights(func(b []byte) []byte { return nil }), []string{"model.safetensors"}},
		{"header longer than the file", weights(func(b []byte) []byte { binary.LittleEndian.PutUint64(b, 1<<40); return b }), []string{"header"}},
		{"largest header", weights(func(b []byte) []byte { binary.LittleEndian.PutUint64(b, math.MaxUint64); return b }), []string{"header"}},
		{"missing tensor", header("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.xx_proj.weight"), []string{"up_proj"}},
		{"another dtype", header(`"BF16"`, `"I16"`), []string{"I16"}},
		{"index with a path", index(`{"weight_map":{"model.norm.weight":"../../../etc/passwd.safetensors"}}`), []string{"passwd"}},
		{"index of a missing file", index(`{"weight_map":{"model.norm.weight":"x.safetensors"}}`), []string{"x.safetensors"}},
		{"index that is no object", index(`[]`), []string{"index.json"}},
		{"tokenizer of a million levels", put("tokenizer.json", strings.Repeat(`{"a":`, 1<<20)), []string{"tokenizer"}},
		{"tokenizer of lists", put("tokenizer.json", strings.Repeat(`[`, 1<<20)), []string{"tokenizer"}},
		{"no tokenizer", put("tokenizer.json", ``), []string{"tokenizer"}},
		{"pipe for weights", func(t testing.TB, dir string) {
			path := filepath.Join(dir, "model.safetensors")
			os.Remove(path)
			if out, err := exec.Command("mkfifo", path).CombinedOutput(); err != nil {
				t.Fatalf("mkfifo: %v %s", err, out)
			}
		}, []string{"model.safetensors"}},
		{"pipe for the config", func(t testing.TB, dir string) {
			path := filepath.Join(dir, "config.json")
			os.Remove(path)
			if out, err := exec.Command("mkfifo", path).CombinedOutput(); err != nil {
				t.Fatalf("mkfifo: %v %s", err, out)
			}
		}, []string{"config.json"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyModel(t)
			c.change(t, dir)
			reason := loads(t, dir)
			if reason == "" {
				t.Fatal("served")
			}
			for _, w := range c.words {
				if !strings.Contains(reason, w) {
					t.Errorf("the reason does not name %q: %.600s", w, reason)
				}
			}
		})
	}
}

func TestWrongConfigs(t *testing.T) {
	model := "models: [{name: m, path: " + launch.ModelDir() + "}]\n"
	for _, c := range []struct {
		name, text string
		words      []string
	}{
		{"empty", "", nil},
		{"binary", "\x00\xff\xfe", nil},
		{"list", "- a\n- b\n", []string{"mapping"}},
		{"unknown key", "listn: x\n" + model, []string{"listn", "listen", "1"}},
		{"twice", "listen: 127.0.0.1:0\nlisten: 127.0.0.1:1\n" + model, []string{"listen", "twice"}},
		{"aliases", "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", nil},
		{"alias in a backend", "models: [{name: m, path: x, backend: &b {x: *b}}]\n", nil},
		{"deep", strings.Repeat("[", 1<<16), nil},
		{"deep backend", "models: [{name: m, path: x, backend: {a: " + strings.Repeat("[", 50000) + strings.Repeat("]", 50000) + "}}]\n", nil},
		{"no models", "listen: 127.0.0.1:0\n", []string{"models"}},
		{"port", "listen: 127.0.0.1:99999\n" + model, []string{"listen", "99999"}},
		{"open without keys", "listen: 0.0.0.0:8000\n" + model, []string{"keys_file"}},
		{"negative duration", "sessions: {expire_after: -5m}\n" + model, []string{"expire_after"}},
		{"huge duration", "training: {gap_wait: 99999999999999h}\n" + model, []string{"gap_wait"}},
		{"negative number", "sampling: {max_waiting: -1}\n" + model, []string{"max_waiting", "-1"}},
		{"huge number", "sampling: {max_per_client: 99999999999999999999}\n" + model, []string{"max_per_client"}},
		{"plugin by path", "models: [{name: m, path: x, backend: {plugin: ../../bin/sh}}]\n", []string{"plugin", "bin/sh"}},
		{"level", "log: {level: loud}\n" + model, []string{"log.level", "loud", "debug"}},
		{"store", "store: {driver: mysql}\n" + model, []string{"driver", "mysql"}},
		{"no such model", "models: [{name: m, path: /nowhere/at/all}]\n", []string{"models[0]", "path", "/nowhere/at/all"}},
		{"no such model beside another", "models: [{name: a, path: " + launch.ModelDir() + "}, {name: m, path: ./none}]\n", []string{"models[1]", "none"}},
		{"no such plugin", "models: [{name: m, path: " + launch.ModelDir() + ", backend: {plugin: singel}}]\n", []string{"models[0]", "backend.plugin", "singel", "single"}},
		{"setting of a plugin", "models: [{name: m, path: " + launch.ModelDir() + ", backend: {plugin: single, thread: 4}}]\n", []string{"models[0]", "backend.thread", "threads"}},
		{"value of a setting", "models: [{name: m, path: " + launch.ModelDir() + ", backend: {plugin: single, dtype: int4}}]\n", []string{"backend.dtype", "int4", "bfloat16"}},
		{"setting of another plugin", "models: [{name: m, path: " + launch.ModelDir() + ", backend: {plugin: single, devices: [cpu]}}]\n", []string{"backend.devices"}},
		{"two faults", "models: [{name: m, path: /nowhere, backend: {plugin: none}}]\n", []string{"path", "/nowhere", "backend.plugin", "none"}},
		{"two of a name", "models: [{name: m, path: " + launch.ModelDir() + "}, {name: m, path: " + launch.ModelDir() + "}]\n", []string{"models[1].name", "already"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tinsmith.yaml")
			write(t, path, []byte(c.text))
			code, out := program(t, "check-config", path)
			if code == 0 || strings.Contains(out, "goroutine ") || len(out) > 4000 || strings.TrimSpace(out) == "" {
				t.Fatalf("status %d: %.2000s", code, out)
			}
			for _, w := range c.words {
				if !strings.Contains(out, w) {
					t.Errorf("the message does not name %q: %s", w, out)
				}
			}
		})
	}
}

// TestRightConfigs: what is right is called so, and what cannot be told before a start is named.
func TestRightConfigs(t *testing.T) {
	for _, c := range []struct {
		name, text string
		words      []string
	}{
		{"one model", "models: [{name: m, path: " + launch.ModelDir() + "}]\n", []string{"is valid: 1 model(s)"}},
		{"section", "models: [{name: m, path: " + launch.ModelDir() + ", backend: {plugin: single, device: cpu, threads: 2}}]\n", []string{"is valid"}},
		{"download", "models: [{name: m, path: hf://org/name-that-is-in-no-cache}]\n", []string{"is downloaded when the server starts", "is valid"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tinsmith.yaml")
			write(t, path, []byte(c.text))
			code, out := program(t, "check-config", path)
			if code != 0 {
				t.Fatalf("status %d: %.2000s", code, out)
			}
			for _, w := range c.words {
				if !strings.Contains(out, w) {
					t.Errorf("the message does not name %q: %s", w, out)
				}
			}
		})
	}
}
