package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/page"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

const served = "tinsmith/tiny-chat"

// world is the server with the built-in model's text side over a backend in this process.
type world struct {
	*testing.T
	core    *runs.Core
	backend runs.Backend
	handler http.Handler
	url     string
	data    string

	keysFile string
	refuse   atomic.Pointer[error] // why nothing new is taken
	failure  atomic.Pointer[error] // why the model cannot be served
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWithKeys(t, "")
}

func newWorldWithKeys(t *testing.T, file string) *world {
	t.Helper()
	w := &world{T: t, data: t.TempDir(), keysFile: file}
	dir, err := filepath.Abs("../../../configs/models/tiny-chat")
	w.ok(err)
	b := fake.New(fake.Options{Exit: func(int) {}})
	configuration, err := json.Marshal(fake.Config{HiddenSize: 4, MaxContextLength: 64, Faults: w.faults()})
	w.ok(err)
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: served, Config: configuration, Scratch: t.TempDir()}, func(plugins.LoadProgress) {})
	w.ok(err)
	about, err := b.Info(t.Context())
	w.ok(err)
	w.backend = runs.Backend{Backend: b, BootID: about.BootID, Model: info, Lost: make(chan struct{}), Reason: func() string { return "" }}
	cfg := config.DefaultModel()
	cfg.Name, cfg.Aliases, cfg.Path = served, []string{"an/alias"}, dir
	model, err := catalog.Load(cfg, dir)
	w.ok(err)
	records, err := store.Open(t.Context(), store.Options{Dir: w.data})
	w.ok(err)
	w.core, err = runs.Open(t.Context(), runs.Config{Store: records, DataDir: w.data, Models: []runs.Model{model.Served()}, Backends: w, Refuse: w.refuses, Failed: w.fails, ResponsesKept: time.Hour})
	w.ok(err)
	ring, err := keys.Open(file)
	w.ok(err)
	settings := config.Default()
	settings.DataDir, settings.Auth.KeysFile = w.data, file
	secrets, err := redactor(settings, []*catalog.Model{model}, "/opt/tinsmith/bin/plugins")
	w.ok(err)
	auth := &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: bytes.Repeat([]byte{1}, 32), Lifetime: time.Hour}, Redactor: secrets}
	tinkerAPI, err := tinker.New(w.core, auth, tinker.Options{MaxPerClient: 100, Directories: map[string]string{served: dir}, ClientFiles: filepath.Join(w.data, "huggingface")})
	w.ok(err)
	answers, err := inference.New(w.core, auth, []*catalog.Model{model})
	w.ok(err)
	w.handler = server.New(server.Options{Health: func() server.Health { return server.Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Routes: append([]func(gin.IRouter){page.Register, tinkerAPI.Register}, surfaces(answers)...)})
	ts := httptest.NewServer(w.handler)
	w.url = ts.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		w.ok(w.core.Close(ctx))
		ts.Close()
		w.ok(records.Close())
		b.Lose()
	})
	return w
}

// faults are what the backend fails at: one step size and one token, with reasons that no tenant is to read.
func (w *world) faults() []fake.Fault {
	rate, token := 0.123, int32(77)
	return []fake.Fault{
		{Operation: "optim_step", Rate: &rate, Action: "fail", Kind: "internal", Message: w.secrets()},
		{Operation: "sample", Token: &token, Action: "fail", Kind: "unavailable", Message: w.secrets()},
	}
}

// secrets are where things are, in the words of a backend and a database.
func (w *world) secrets() string {
	return "cannot write " + w.data + "/scratch/0/x: /proc/self/maps; failed to connect to `user=tin database=records`: 10.0.0.7:5432 (db.internal)"
}

func (w *world) fails(string) error {
	if why := w.failure.Load(); why != nil {
		return *why
	}
	return nil
}

func (w *world) refuses(string) error {
	if why := w.refuse.Load(); why != nil {
		return *why
	}
	return nil
}

// Backend implements runs.Backends.
func (w *world) Backend(context.Context, string) (runs.Backend, error) { return w.backend, nil }

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run runs a client command and gives what it prints.
func (w *world) run(c *cobra.Command, input string, arguments ...string) (string, error) {
	var out bytes.Buffer
	c.SetArgs(append(arguments, "--url", w.url+"/"))
	c.SetIn(strings.NewReader(input))
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(w.Context())
	return out.String(), err
}

// await waits for an operation that must not fail.
func (w *world) await(s runs.Submitted, err error) *runs.Outcome {
	w.Helper()
	w.ok(err)
	out, err := w.core.Wait(w.Context(), keys.Anonymous, s.RequestID, 3*time.Minute)
	w.ok(err)
	if out.Failure != nil {
		w.Fatal(out.Failure.Message)
	}
	return out
}

// trained makes a run with one step.
func (w *world) trained() string {
	w.Helper()
	session, err := w.core.CreateSession(w.Context(), runs.NewSession{Owner: keys.Anonymous})
	w.ok(err)
	run := w.await(w.core.CreateRun(w.Context(), runs.NewRun{Owner: keys.Anonymous, SessionID: session.ID, BaseModel: served, UserMetadata: []byte(`{"name": "mine"}`), LoRA: runs.LoRAConfig{Rank: 4, TrainAttn: true, TrainMLP: true, TrainUnembed: true}})).CreatedRun.RunID
	w.await(w.core.ForwardBackward(w.Context(), runs.ForwardBackward{Operation: runs.Operation{Owner: keys.Anonymous, RunID: run, Seq: 1}, Loss: "cross_entropy", Data: []runs.Datum{{
		Tokens: []int32{5, 6}, Inputs: map[string]runs.Tensor{"target_tokens": {Ints: []int64{7, 8}}, "weights": {Floats: []float32{1, 1}}, "mask\x1b[31m": {Ints: []int64{1}}},
	}}}))
	w.await(w.core.OptimStep(w.Context(), runs.OptimStep{Operation: runs.Operation{Owner: keys.Anonymous, RunID: run, Seq: 2}, Adam: plugins.AdamParams{LearningRate: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}))
	return run
}

// fits demands lines that a terminal of 80 columns has room for.
func fits(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > lineWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

func TestNamed(t *testing.T) {
	for _, c := range []struct {
		name  string
		given map[string]any
		want  string
	}{
		{"in order", map[string]any{"b": 1, "a": "x"}, "a=x, b=1"},
		{"long", map[string]any{"a": strings.Repeat("é", 50)}, "a=" + strings.Repeat("é", 17) + "…"},
		{"what controls a terminal", map[string]any{"a": "x\x1b[31m\ny"}, "a=x[31m y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := named(c.given, 20); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestClientCommands(t *testing.T) {
	w := newWorld(t)
	run := w.trained()

	t.Run("models", func(t *testing.T) {
		out, err := w.run(modelsCommand(), "")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 7 || lines[0] != served || lines[1] != "  base model" || lines[3] != "  alias of "+served || lines[4] != "tinker://"+run || !strings.HasPrefix(lines[5], "  adapter on "+served+", made ") || lines[6] != "  name=mine" {
			t.Errorf("%s", out)
		}
		fits(t, out)
	})
	t.Run("cycles", func(t *testing.T) {
		out, err := w.run(runsCommand(), "", "tinker://"+run, "--cycles")
		if err != nil || !regexp.MustCompile(`(?s)^ +CYCLE .*forward_backward of 2 tokens.*optim_step\n$`).MatchString(out) {
			t.Errorf("%s, %v", out, err)
		}
		fits(t, out)
		var answer struct {
			Cycles []struct{ Operations []struct{ Kind string } }
		}
		if out, err = w.run(runsCommand(), "", run, "--cycles", "--json"); err != nil || json.Unmarshal([]byte(out), &answer) != nil || len(answer.Cycles) == 0 || answer.Cycles[0].Operations[0].Kind != "forward_backward" {
			t.Errorf("%s, %v", out, err)
		}
		for _, args := range [][]string{{"--cycles"}, {run, "--cycles", "--series", "loss"}} {
			if out, err := w.run(runsCommand(), "", args...); err == nil || !strings.HasPrefix(err.Error(), "--cycles is for one RUN") {
				t.Errorf("%v: %s, %v", args, out, err)
			}
		}
	})
	t.Run("runs", func(t *testing.T) {
		out, err := w.run(runsCommand(), "")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out, "\n")
		row := strings.Fields(lines[1])
		if row[0] != run || row[1] != "1" || row[2] == "-" || lines[2] != "  "+served+", rank 4" || strings.Contains(lines[3], "norm -") || lines[4] != "  name=mine" {
			t.Errorf("%s", out)
		}
		fits(t, out)
		if !strings.Contains(out, `not read by the loss: "mask\x1b[31m"`) || strings.Contains(out, "\x1b") { // a name from outside says nothing to a terminal
			t.Errorf("%q", out)
		}
	})
	t.Run("chat", func(t *testing.T) {
		// Greedy is greedy though the client library cannot send a 0, and the second turn sees the first.
		one, err := w.run(chatCommand(), "hello\n", "--temperature", "0", "--model", "tinker://"+run)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := w.run(chatCommand(), "hello\n", "--temperature", "0", "--model", "tinker://"+run); err != nil || again != one {
			t.Errorf("%v: %q, before %q", err, again, one)
		}
		if base, err := w.run(chatCommand(), "hello\n", "--temperature", "0"); err != nil || base == one {
			t.Errorf("%v: the base model says %q too", err, base)
		}
		if asked, err := w.run(chatCommand(), "", "hello", "--temperature", "0", "--model", "tinker://"+run); err != nil || asked != one {
			t.Errorf("%v: as an argument %q", err, asked)
		}
		if _, err := w.run(chatCommand(), "", "--model", "no/model"); err == nil || !strings.Contains(err.Error(), "no/model") {
			t.Errorf("%v", err)
		}
		if _, err := w.run(chatCommand(), "hello\n", "--temperature", "-5"); err == nil || !strings.Contains(err.Error(), "temperature: -5 is not between 0 and 2") {
			t.Errorf("%v", err)
		}
		if _, err := w.run(chatCommand(), strings.Repeat("a ", 100<<10)+"\n"); err == nil || !strings.Contains(err.Error(), "context length") {
			t.Errorf("%v", err)
		}
	})
	t.Run("import", func(t *testing.T) {
		saved := w.await(w.core.SaveWeightsForSampler(w.Context(), runs.SaveWeightsForSampler{Operation: runs.Operation{Owner: keys.Anonymous, RunID: run, Seq: 3}, Name: "a"})).Saved.Path
		found, err := filepath.Glob(filepath.Join(w.data, "checkpoints", "*", "*", "*", "adapter_config.json"))
		w.ok(err)
		if len(found) == 0 {
			found, err = filepath.Glob(filepath.Join(w.data, "checkpoints", "*", "*", "adapter_config.json"))
			w.ok(err)
		}
		if len(found) == 0 {
			t.Fatalf("no files of %s", saved)
		}
		out, err := w.run(importCommand(), "", filepath.Dir(found[0]), "--base", served, "--name", "again")
		if err != nil || !strings.Contains(out, "/weights/again") || !strings.Contains(out, "/sampler_weights/again") {
			t.Fatalf("%v: %s", err, out)
		}
		sampler := strings.TrimSpace(strings.SplitAfter(out, "sample it:")[1])
		one, err := w.run(chatCommand(), "hello\n", "--temperature", "0", "--model", saved)
		w.ok(err)
		if two, err := w.run(chatCommand(), "hello\n", "--temperature", "0", "--model", sampler); err != nil || two != one {
			t.Errorf("%v: imported it says %q, before %q", err, two, one)
		}
		// An adapter of another program, that would train on otherwise there: its scale is kept, and what is not is said in a line.
		foreign := t.TempDir()
		config, err := os.ReadFile(found[0])
		w.ok(err)
		config = bytes.Replace(config, []byte(`"lora_alpha": 32`), []byte(`"lora_alpha": 12`), 1)
		config = bytes.Replace(config, []byte(`"lora_dropout": 0`), []byte(`"lora_dropout": 0.05`), 1)
		w.ok(os.WriteFile(filepath.Join(foreign, "adapter_config.json"), config, 0o600))
		weights, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "adapter_model.safetensors"))
		w.ok(err)
		w.ok(os.WriteFile(filepath.Join(foreign, "adapter_model.safetensors"), weights, 0o600))
		if out, err = w.run(importCommand(), "", foreign, "--base", served, "--name", "scaled"); err != nil || !strings.HasSuffix(out, "note: lora_dropout 0.05 is not applied when it is trained on here\n") {
			t.Errorf("%v: %s", err, out)
		}
		scaled, err := filepath.Glob(filepath.Join(w.data, "checkpoints", "*", "*", "*", "adapter_config.json"))
		w.ok(err)
		kept := 0
		for _, path := range scaled {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(`"lora_alpha": 12`)) {
				kept++
			}
		}
		if kept != 2 {
			t.Errorf("%d checkpoints have the scale of the import, want both of it", kept)
		}
		if _, err := w.run(importCommand(), "", t.TempDir(), "--base", served); err == nil || !strings.Contains(err.Error(), "not a PEFT adapter") {
			t.Errorf("%v", err)
		}
		if _, err := w.run(importCommand(), "", filepath.Dir(found[0]), "--base", "no/model", "--name", "b"); err == nil || strings.Count(err.Error(), "no/model") != 1 {
			t.Errorf("%v", err)
		}
	})
	t.Run("no server", func(t *testing.T) {
		c := modelsCommand()
		c.SetArgs([]string{"--url", "http://127.0.0.1:1"})
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "is the server running") {
			t.Errorf("%v", err)
		}
	})
}

func TestServerAddress(t *testing.T) {
	for _, c := range []struct{ name, url string }{
		{"no scheme", "127.0.0.1:8000"},
		{"a name only", "localhost"},
		{"another scheme", "ftp://127.0.0.1"},
		{"no host", "http://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TINSMITH_URL", c.url)
			for _, command := range []*cobra.Command{modelsCommand(), runsCommand(), chatCommand()} {
				command.SetArgs(nil)
				command.SilenceErrors, command.SilenceUsage = true, true
				if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--url: %q", c.url)) {
					t.Errorf("%s: %v", command.Name(), err)
				}
			}
		})
	}
}

// A key stays with the server that it is meant for.
func TestKeyIsNotSentOn(t *testing.T) {
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer s.Close()
	conn := connection{url: s.URL, key: "tml-secret"}
	if err := conn.call(t.Context(), http.MethodGet, "/api/v1/tinsmith/runs", nil, new(any)); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("got %v", err)
	}
	if reached {
		t.Error("the request went on to another server")
	}
	models := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer models.Close()
	c := chatCommand()
	c.SetArgs([]string{"hello", "--model", "x", "--url", models.URL, "--key", "tml-secret"})
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetOut(io.Discard)
	if err := c.ExecuteContext(t.Context()); err == nil {
		t.Error("it succeeds")
	}
	if reached {
		t.Error("a question went on to another server")
	}
}

// TestModelsTellProducts: of a base model the command says how its devices multiply, if its backend has told.
func TestModelsTellProducts(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			_, _ = io.WriteString(w, `{"storage":{"state":"ok"},"models":[{"name":"base","state":"ready","products":"by warps (no Hopper)"},{"name":"other","state":"ready"}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"data":[{"id":"base"},{"id":"other"},{"id":"short","base_model":"base"}]}`)
	}))
	defer s.Close()
	out, err := (&world{T: t, url: s.URL}).run(modelsCommand(), "")
	if want := "base\n  base model\n  by warps (no Hopper)\nother\n  base model\nshort\n  alias of base\n"; err != nil || out != want {
		t.Errorf("%q, error %v; want %q", out, err, want)
	}
}

// TestServersControlNoTerminal: what a server says is written without what a terminal would obey.
func TestServersControlNoTerminal(t *testing.T) {
	const evil = "\\u001b]0;x\\u0007\\u009b31m"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"`+evil+`","base_model":"`+evil+`"}]}`)
		default:
			_, _ = io.WriteString(w, `{"runs":[{"run_id":"`+evil+`","base_model":"`+evil+`","corrupted":true,"corrupted_reason":"`+evil+`"}]}`)
		}
	}))
	defer s.Close()
	w := &world{T: t, url: s.URL}
	for name, c := range map[string]*cobra.Command{"models": modelsCommand(), "runs": runsCommand()} {
		out, err := w.run(c, "")
		if err != nil || !strings.Contains(out, "]0;x31m") || strings.ContainsAny(out, "\x1b\x07\u009b") {
			t.Errorf("%s: %q %v", name, out, err)
		}
	}
}

// Over HTTPS a command believes the certificates of --ca, the server's own among them, and no others.
func TestCommandsOverHTTPS(t *testing.T) {
	t.Cleanup(func() { client.Transport = nil })
	w := newWorld(t)
	s := httptest.NewTLSServer(w.handler)
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	own := filepath.Join(t.TempDir(), "own.pem")
	w.ok(os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	none := filepath.Join(t.TempDir(), "none.pem")
	w.ok(os.WriteFile(none, []byte("no certificate"), 0o600))
	ask := func(arguments ...string) error {
		c := usageCommand()
		c.SetArgs(append(arguments, "--url", s.URL))
		c.SetOut(io.Discard)
		c.SilenceErrors, c.SilenceUsage = true, true
		return c.ExecuteContext(t.Context())
	}
	for _, c := range []struct{ name, ca, want string }{
		{"nothing", "", "--ca FILE"},
		{"a file without certificates", none, "has no certificate"},
		{"no file", none + "x", "no such file"},
	} {
		if err := ask("--ca", c.ca); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	w.ok(ask("--ca", own))
	client.Transport = nil
	t.Setenv("TINSMITH_CA", own)
	w.ok(ask())
}
