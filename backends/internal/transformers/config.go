package transformers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// Config is a model's `backend:` section. Zero values mean the defaults given here.
type Config struct {
	Plugin string `json:"plugin,omitempty"` // "transformers"
	// Python is the interpreter of an environment that has torch, transformers and safetensors: an absolute path.
	Python string `json:"python"`
	Device string `json:"device,omitempty"` // "cpu" (default), "cuda", "cuda:N", or "auto": spread over all GPUs by accelerate
	DType  string `json:"dtype,omitempty"`  // "float32" or "bfloat16" (default)
	// Threads that torch computes with; 0: as many as there are processors. Another number is another arithmetic.
	Threads          int `json:"threads,omitempty"`
	MaxContextLength int `json:"max_context_length,omitempty"` // 0: what the model's config.json says
	MaxRank          int `json:"max_rank,omitempty"`           // default 64
	// Attention is transformers' implementation: "eager" (default) or "sdpa".
	Attention string `json:"attention,omitempty"`
	// Modules says which linear modules carry LoRA, by the last part of their names, under "attention" and "mlp"; "experts" under "mlp" are stacked ones. Empty: those with well-known names.
	Modules map[string][]string `json:"modules,omitempty"`
	// TrustRemoteCode lets the model directory run its own Python code with the rights of this server.
	TrustRemoteCode bool `json:"trust_remote_code,omitempty"`
}

const (
	maxThreads = 1024
	maxContext = 1 << 24
	maxRank    = 512
	maxModules = 64
)

// parseConfig reads a section strictly. Errors are KindInvalid and name the key.
func parseConfig(section json.RawMessage) (Config, error) {
	var c Config
	if len(section) > 0 {
		d := json.NewDecoder(bytes.NewReader(section))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			return c, plugins.Invalidf("config", "not a configuration of the transformers backend: %v", err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return c, plugins.Invalidf("config", "something follows the JSON value")
		}
	}
	setDefault(&c.Plugin, "transformers")
	setDefault(&c.Device, "cpu")
	setDefault(&c.DType, "bfloat16")
	setDefault(&c.Threads, runtime.NumCPU())
	setDefault(&c.MaxRank, 64)
	setDefault(&c.Attention, "eager")
	return c, c.validate()
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

func (c *Config) validate() error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{{"plugin", c.Plugin, []string{"transformers"}}, {"dtype", c.DType, []string{"float32", "bfloat16"}}, {"attention", c.Attention, []string{"eager", "sdpa"}}} {
		if !slices.Contains(f.allowed, f.value) {
			return plugins.Invalidf("config."+f.name, "%.100q is not allowed: %s", f.value, strings.Join(f.allowed, ", "))
		}
	}
	if !filepath.IsAbs(c.Python) {
		return plugins.Invalidf("config.python", "%.200q is not allowed: the absolute path of a Python that has torch, transformers and safetensors, such as /opt/venv/bin/python", c.Python)
	}
	if number, gpu := strings.CutPrefix(c.Device, "cuda:"); c.Device != "cpu" && c.Device != "cuda" && c.Device != "auto" && (!gpu || !isNumber(number)) {
		return plugins.Invalidf("config.device", "%.100q is not allowed: cpu, cuda, cuda:N, auto", c.Device)
	}
	for _, f := range []struct {
		name            string
		value, low, max int
	}{{"threads", c.Threads, 1, maxThreads}, {"max_context_length", c.MaxContextLength, 0, maxContext}, {"max_rank", c.MaxRank, 1, maxRank}} {
		if f.value < f.low || f.value > f.max {
			return plugins.Invalidf("config."+f.name, "%d is not allowed: %d to %d", f.value, f.low, f.max)
		}
	}
	for group, names := range c.Modules {
		if group != "attention" && group != "mlp" {
			return plugins.Invalidf("config.modules", "%.100q is not allowed: attention, mlp", group)
		}
		if len(names) == 0 || len(names) > maxModules || slices.ContainsFunc(names, func(n string) bool { return n == "" || len(n) > 100 || strings.Contains(n, ".") }) {
			return plugins.Invalidf("config.modules."+group, "%d names are not allowed, or one of them: 1 to %d, each the last part of a module's name, such as q_proj", len(names), maxModules)
		}
	}
	return nil
}

func isNumber(s string) bool {
	return s != "" && len(s) < 4 && strings.Trim(s, "0123456789") == ""
}
