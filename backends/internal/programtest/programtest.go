// Package programtest tests the program of a backend: that it works as a process of its own, started as the gateway starts it. What the backend computes is tested where it is
// computed; package main of each program calls Main and Run.
package programtest

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// Program is what the tests must know of a backend's program.
type Program struct {
	Name   string // what Info calls the plugin
	Config string // the `backend:` section as JSON
	Device string // what ModelInfo calls the device under this section
}

// Main is TestMain of a program's package: it runs the program if this process was started as the plugin, by these tests or by a gateway, or does what DriverVariable says, else the tests.
func Main(m *testing.M, program func()) {
	if os.Getenv(plugins.EnvLifeline) != "" {
		program()
		return
	}
	if os.Getenv(DriverVariable) != "" {
		if err := printDriver(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// Run runs all tests of a program. The caller's folder lies two below the repository's root.
func Run(t *testing.T, p Program) {
	t.Run("contract", p.contract)
	t.Run("built-in model", p.builtInModel)
}

// start starts the program as a gateway does, and ends it with the test.
func start(t *testing.T) *plugins.Client {
	t.Helper()
	end, lifeline, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("", "program-") // a socket's path has 108 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program) // go-plugin ends it, in a cleanup
	cmd.Env = []string{plugins.EnvLifeline + "=3", plugins.EnvLock + "=4", plugins.EnvSocketDir + "=" + sockets}
	cmd.ExtraFiles = []*os.File{end, lock}
	config := plugins.ClientConfig(cmd)
	config.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Off})
	config.Stderr, config.SyncStdout, config.SyncStderr = io.Discard, io.Discard, io.Discard
	client := goplugin.NewClient(config)
	t.Cleanup(func() {
		client.Kill()
		for _, f := range []*os.File{lifeline, lock} {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(sockets); err != nil {
			t.Error(err)
		}
	})
	if _, err := client.Start(); err != nil {
		t.Fatal(err)
	}
	if err := end.Close(); err != nil {
		t.Error(err)
	}
	backend, err := plugins.Dispense(client)
	if err != nil {
		t.Fatal(err)
	}
	return backend
}

// load loads the built-in model.
func (p Program) load(t *testing.T, b *plugins.Client) plugins.ModelInfo {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "configs", "models", "tiny-chat"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tinsmith/tiny-chat", Config: []byte(p.Config)}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// contract: the program keeps the contract in a process of its own.
func (p Program) contract(t *testing.T) {
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		b := start(t)
		return plugintest.Subject{Backend: b, Model: p.load(t, b)}
	})
}

// builtInModel: the built-in model loads with the settings of its files, and is sure of what it writes, which random weights would not be.
func (p Program) builtInModel(t *testing.T) {
	b := start(t)
	info := p.load(t, b)
	if info.DType != "bfloat16" || info.Device != p.Device || info.Architecture != "Qwen3ForCausalLM" {
		t.Errorf("%+v", info)
	}
	i, err := b.Info(t.Context())
	if err != nil || i.Plugin != p.Name || i.BootID == "" {
		t.Errorf("%+v, %v", i, err)
	}
	q := plugins.SampleRequest{ID: "q", Prompt: []int32{int32(info.VocabSize) - 9}, NumSamples: 1, MaxTokens: 40, Temperature: 0, TopP: 1, RepetitionPenalty: 1}
	total, n := 0.0, 0
	if err := b.Sample(t.Context(), q, func(e plugins.SampleEvent) error {
		if e.Tokens != nil {
			for _, lp := range e.Tokens.Logprobs {
				total += float64(lp)
				n++
			}
		}
		return nil
	}); err != nil || n != 40 {
		t.Fatalf("%d tokens, %v", n, err)
	}
	if mean := total / float64(n); mean < -math.Log(float64(info.VocabSize))/2 {
		t.Errorf("the likeliest tokens have a mean log-probability of %v: the model has learned nothing", mean)
	}
}
